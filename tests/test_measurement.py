"""Figures follow from samples by arithmetic that anyone can check, and a file gives back what was written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fixtures.analysis.measurement import (
    Measurement,
    MeasurementError,
    Refusal,
    by_boot,
    common_prompts,
    from_json,
    joined,
    to_json,
)
from fixtures.analysis.phases import CyclePhases
from tests.kit.builders import measurement, sample


def test_throughput_is_decode_tokens_over_decode_time() -> None:
    assert sample(tokens=101, decode_s=0.5).throughput == 200.0


def test_accept_length_does_not_count_the_prefills_token() -> None:
    assert sample(tokens=101, verifies=50).accept_length == 2.0


def test_figures_of_a_measurement_are_pooled_not_averaged() -> None:
    two = measurement(2, (sample("a", tokens=101, decode_s=0.5, verifies=50), sample("b", tokens=301, decode_s=1.5)))
    assert two.throughput == 400 / 2.0
    assert two.accept_length == 400 / 100
    assert two.seconds_per_cycle == 2.0 / 100


def test_throughput_is_accept_length_over_seconds_per_cycle() -> None:
    one = measurement(2, (sample("a", decode_s=0.37, verifies=41), sample("b", decode_s=0.71, verifies=63)))
    assert one.throughput == pytest.approx(one.accept_length / one.seconds_per_cycle, rel=1e-12)


def test_completions_thrown_away_as_warm_up_leave_the_figures_of_counts_as_they_are() -> None:
    """A prompt of three tokens per verify and one of one and a half: lost from a sum, either would move it."""
    both = [sample(p, repeat=k, tokens=31, verifies=v) for k in (0, 1) for p, v in (("a", 10), ("b", 20))]
    whole, late = (measurement(2, tuple(samples)) for samples in (both, both[1:]))
    assert late.accept_length == whole.accept_length == 2.0
    assert late.throughput == pytest.approx(late.accept_length / late.seconds_per_cycle)
    assert (late.tokens, late.verifies) == (90, 50)


def test_samples_of_a_prompt_come_by_repeat() -> None:
    mixed = measurement(2, (sample("a", repeat=1), sample("b"), sample("a")))
    assert [s.repeat for s in mixed.of_prompt("a")] == [0, 1]
    assert mixed.prompts() == ("a", "b")


def test_common_prompts_are_those_that_all_have() -> None:
    assert common_prompts([measurement(2, (sample("a"), sample("b"))), measurement(0, (sample("b"),))]) == {"b"}


def of_boot(first: int, *, mean_ms: float, cycles: int, graphs: float) -> Measurement:
    """Two passes of one boot, whose verifies take so long."""
    one = measurement(2, (sample("a", repeat=first), sample("a", repeat=first + 1)), boots=(first,))
    phases = CyclePhases("clock", "0-0", cycles, {"verify": mean_ms}, {"verify": 0.0}, accept_length=2.0)
    return replace(one, phases=phases, server=replace(one.server, graph_share=graphs))


def test_the_phases_of_several_boots_are_those_of_all_their_cycles() -> None:
    both = joined(of_boot(0, mean_ms=10.0, cycles=30, graphs=0.5), of_boot(2, mean_ms=14.0, cycles=10, graphs=1.0))
    assert both.phases is not None
    # 30 × 10 and 10 × 14 over 40; a quarter of the cycles lies 3 ms above it, the rest 1 ms below.
    assert both.phases.mean_ms == {"verify": 11.0}
    assert both.phases.sd_ms == {"verify": pytest.approx(3**0.5)}
    assert (both.phases.cycles, both.phases.accept_length, both.phases.rank) == (40, 2.0, "0-0")
    assert both.server.graph_share == 0.5


def on_gpu(*reasons: str, mhz: int) -> dict[str, object]:
    state = {"sm_clock_mhz": mhz, "throttle_reasons": list(reasons)}
    return {"host": "a", "accelerators": [{"uuid": "GPU-1", "state": state}]}


def test_a_gpu_that_was_slowed_down_in_one_boot_shows_on() -> None:
    one, two = (of_boot(first, mean_ms=1.0, cycles=1, graphs=1.0) for first in (0, 2))
    slowed, well = on_gpu("hw_thermal_slowdown", mhz=900), on_gpu("gpu_idle", mhz=1980)
    (gpu,) = joined(replace(one, host=slowed), replace(two, host=well)).host["accelerators"]
    assert gpu["state"] == {"sm_clock_mhz": 900, "throttle_reasons": ["gpu_idle", "hw_thermal_slowdown"]}
    assert joined(replace(one, host=well), replace(two, host=slowed)).host["accelerators"] == [
        {"uuid": "GPU-1", "state": {"sm_clock_mhz": 900, "throttle_reasons": ["hw_thermal_slowdown", "gpu_idle"]}}
    ]


def test_a_driver_that_does_not_answer_at_a_later_boot_takes_nothing_of_the_earlier_one() -> None:
    one, two = (of_boot(first, mean_ms=1.0, cycles=1, graphs=1.0) for first in (0, 2))
    slowed = on_gpu("hw_thermal_slowdown", mhz=900)
    both = joined(replace(one, host=slowed), replace(two, host={"accelerators_error": "NVML: unknown error"}))
    assert both.host == {"accelerators_error": "NVML: unknown error", "accelerators": slowed["accelerators"]}


def test_each_boot_has_the_passes_from_its_first_to_the_next_ones() -> None:
    both = joined(of_boot(0, mean_ms=1.0, cycles=1, graphs=1.0), of_boot(2, mean_ms=1.0, cycles=1, graphs=1.0))
    assert [[s.repeat for s in boot.samples] for boot in by_boot(both)] == [[0, 1], [2, 3]]
    assert [boot.boots for boot in by_boot(both)] == [(0,), (2,)]
    assert by_boot(replace(both, boots=(0, 2, 4))) == by_boot(both)


def test_what_is_written_is_read_back_equal() -> None:
    full = measurement(
        2,
        (replace(sample("a"), accepted_histogram=(1, 2, 3), text="é\x1b[2J\u2028"), sample("b")),
        refusals=(Refusal("c", 0, "HTTP 500"),),
        host={"gpu": "H200"},
        seconds={"boot": 13.0},
    )
    assert from_json(to_json(full)) == full


def test_control_characters_of_a_text_are_escaped_in_the_file() -> None:
    assert "\x1b" not in to_json(measurement(2, (replace(sample("a"), text="\x1b[2J"),)))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "samples": []}', json.dumps({"schema": 1, "server": 3})],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MeasurementError):
        from_json(text)
