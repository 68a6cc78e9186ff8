"""What runs is what was asked, and figures came about under conditions that let them mean something."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fixtures.analysis import conditions
from fixtures.analysis.checks import (
    COUNTS,
    TIMES,
    Check,
    Finding,
    UnknownCheckError,
    launch_findings,
    named,
    release,
    unsilenced,
)
from fixtures.analysis.measurement import Measurement
from fixtures.engine.server_info import reported
from tests.kit.builders import RECORDINGS, from_noise_recording, measurement, sample, slowed
from tests.kit.noise import H200

HOSTS = ("cpu-sglang-0.5.23", "h200-sglang-0.5.17")


def recorded(host: str, name: str) -> dict[str, Any]:
    return reported(json.loads((RECORDINGS / host / f"{name}.info.json").read_text()))


def findings(depth: int = 2, *, host: str = HOSTS[0], **changed: Any) -> tuple[Finding, ...]:
    """Of the recorded server with 2 steps, `changed` after the fact, beside the recorded plain one."""
    base = recorded(host, "base")
    return launch_findings(
        {**recorded(host, "d2"), **changed},
        depth=depth,
        expected_max_running_requests=base["max_running_requests"],
        baseline_reported=base,
    )


def checks(*args: Any, **kwargs: Any) -> list[Check]:
    return [f.check for f in findings(*args, **kwargs)]


# The launch


@pytest.mark.parametrize("host", HOSTS)
def test_recorded_servers_are_what_was_asked(host: str) -> None:
    assert findings(host=host) == ()
    base = recorded(host, "base")
    assert (
        launch_findings(
            base, depth=0, expected_max_running_requests=base["max_running_requests"], baseline_reported=base
        )
        == ()
    )


def test_depth_three_asked_and_two_started_is_found() -> None:
    found = findings(depth=3)
    assert [f.check for f in found] == [Check.DEPTH, Check.DRAFT_TOKENS]
    assert found[0].grave
    assert found[0].seen == (
        "speculative_num_steps = 3 was asked for at 3 steps, and the server reports speculative_num_steps = 2."
    )


@pytest.mark.parametrize(
    ("changed", "check"),
    [
        ({"speculative_num_draft_tokens": 2}, Check.DRAFT_TOKENS),
        ({"speculative_eagle_topk": 4}, Check.TOPK),
        ({"speculative_adaptive": True}, Check.ADAPTIVE_OFF),
        ({"speculative_algorithm": "EAGLE"}, Check.ALGORITHM),
        ({"speculative_algorithm": None}, Check.ALGORITHM),
        ({"max_running_requests": 48}, Check.MAX_RUNNING_REQUESTS),
        ({"effective_max_running_requests_per_dp": 3}, Check.MAX_RUNNING_REQUESTS),
        ({"disable_overlap_schedule": False}, Check.OVERLAP),
        ({"disable_cuda_graph": True}, Check.GRAPH),
        ({"disable_decode_cuda_graph": True}, Check.GRAPH),
    ],
    ids=str,
)
def test_each_thing_that_is_not_as_asked_has_its_check(changed: dict[str, Any], check: Check) -> None:
    assert checks(**changed) == [check]


def test_a_key_that_the_server_does_not_report_is_found_too() -> None:
    found = findings(speculative_num_steps=None)
    assert "doesn't report speculative_num_steps" in found[0].seen


def test_a_baseline_that_speculates_is_found() -> None:
    deep = recorded(HOSTS[0], "d2")
    found = launch_findings(deep, depth=0, expected_max_running_requests=4, baseline_reported=deep)
    assert [f.check for f in found] == [Check.ALGORITHM]
    assert "speculative_algorithm = 'EAGLE3'" in found[0].seen


def test_a_baseline_that_admits_more_requests_is_found_with_both_values() -> None:
    base, deep = recorded(HOSTS[0], "base"), recorded(HOSTS[0], "d2")
    found = launch_findings(
        deep, depth=2, expected_max_running_requests=4, baseline_reported={**base, "max_running_requests": 48}
    )
    assert found[0].seen == (
        "The baseline reports max_running_requests = 48, and this server reports max_running_requests = 4."
    )


@pytest.mark.parametrize(("version", "grave"), [("0.5.10", False), ("0.5.11", True), ("0.5.23", True), (None, True)])
def test_another_scheduler_than_the_baselines_is_only_said_where_sglang_knows_no_other(
    version: str | None, grave: bool
) -> None:
    (found,) = findings(disable_overlap_schedule=False, version=version)
    assert found.grave is grave
    assert ("can't run EAGLE-3 with the overlap scheduler" in found.message) is not grave


def test_the_leading_numbers_of_a_version_are_its_release() -> None:
    assert release("0.5.10.post2") == (0, 5, 10)
    assert release("0.5.9rc1+cu129") == (0, 5, 9)
    assert release("unknown") == ()


# Names and messages


def test_a_finding_says_what_was_seen_why_it_matters_what_to_try_and_how_to_silence_it() -> None:
    (found,) = findings(speculative_adaptive=True)
    assert found.message == (
        "adaptive-off: The server speculates adaptively (speculative_adaptive = True). "
        "It changes the depth as it runs, so no figure belongs to one depth. "
        "Remove speculative-adaptive from launch.flags. "
        'To silence this check: [checks] silenced = ["adaptive-off"] in the profile.'
    )


def test_a_silenced_check_is_not_found() -> None:
    found = findings(depth=3)
    assert [f.check for f in unsilenced(found, named(["depth"]))] == [Check.DRAFT_TOKENS]


def test_an_unknown_name_silences_nothing_and_lists_the_known_ones() -> None:
    with pytest.raises(UnknownCheckError, match=r"^no check is called dept; there are: algorithm, depth, draft-tokens"):
        named(["dept", "depth"])


# Conditions


def test_a_scheduler_that_waits_for_its_core_is_on_a_noisy_host() -> None:
    found = conditions.noisy_host(cpu_s=10.0, waited_s=2.0)
    assert found is not None
    assert found.seen == "Beside 10.0 s of CPU the scheduler waited 2.0 s for a core that something else had."
    assert conditions.noisy_host(cpu_s=20.0, waited_s=1.9) is None


def test_a_scheduler_that_sleeps_is_told_and_makes_no_time_doubtful() -> None:
    found = conditions.scheduler_idle(cpu_s=20.1, idle_s=10.2)
    assert found is not None
    assert found.seen.startswith("Beside 20.1 s of CPU the scheduler did nothing for 10.2 s, and waited for no core")
    assert conditions.scheduler_idle(cpu_s=20.0, idle_s=1.9) is None
    assert Check.SCHEDULER_IDLE not in TIMES | COUNTS


def plain(prompts: int = 24) -> Measurement:
    return measurement(0, tuple(sample(f"p{n}", decode_s=1.0 + 0.001 * (n % 3), verifies=100) for n in range(prompts)))


@pytest.mark.parametrize("factor", [1.1, 0.9])
def test_a_baseline_that_moved_by_more_than_the_tolerance_has_drifted(factor: float) -> None:
    found = conditions.baseline_drift(plain(), slowed(plain(), factor), tolerance=0.05)
    assert found is not None
    assert f"took {100 * (factor - 1):+.1f} % more time" in found.seen


def test_a_baseline_that_moved_within_the_tolerance_has_not_drifted() -> None:
    assert conditions.baseline_drift(plain(), slowed(plain(), 1.04), tolerance=0.05) is None


def with_cycles(*ms: float) -> Measurement:
    samples = tuple(sample(f"p{n}", verifies=100, decode_s=0.1 * value) for n, value in enumerate(ms))
    return measurement(2, samples, discarded=2)


def test_leading_completions_far_above_the_later_ones_are_warm_up() -> None:
    slow_start = (13.0, 12.0, 10.02, 9.98, 10.0, 10.02, 9.98, 10.0, 10.02, 9.98)
    assert conditions.warm_up_length(slow_start) == 2
    assert [s.prompt for s in conditions.settled(with_cycles(*slow_start)).samples][:2] == ["p2", "p3"]
    assert conditions.settled(with_cycles(*slow_start)).discarded == 4


def test_a_slow_completion_later_on_is_no_warm_up() -> None:
    assert conditions.warm_up_length((10.0, 13.0, 10.02, 9.98, 10.0, 10.02, 9.98, 10.0)) == 0


def test_half_a_percent_above_a_very_steady_host_is_no_warm_up() -> None:
    assert conditions.warm_up_length((10.05, 10.0, 10.0, 10.0, 10.0, 10.0)) == 0


def test_recorded_measurements_after_their_warm_up_are_settled() -> None:
    for path in RECORDINGS.glob("*/noise_*.json"):
        recorded_ = from_noise_recording(path, 0 if "base" in path.name else 2)
        single = replace(recorded_, samples=recorded_.samples[: 6 * 10])
        assert conditions.warm_up_not_settled(single) is None


def test_a_quarter_of_the_completions_in_warm_up_is_found() -> None:
    found = conditions.warm_up_not_settled(with_cycles(14, 13, 12, *(10.0, 10.02, 9.98) * 3))
    assert found is not None
    assert "the first 3 of 12 completions" in found.seen
    assert "after 2 completions thrown away" in found.seen


def state(*reasons: str) -> dict[str, Any]:
    return {
        "uuid": "GPU-1",
        "sm_clock_mhz": 1200,
        "power_w": 690.0,
        "power_limit_w": 700.0,
        "temperature_c": 80,
        "throttle_reasons": reasons,
    }


def test_a_gpu_that_slowed_down_is_found_with_its_clocks() -> None:
    found = conditions.clocks_throttled([state("gpu_idle"), state("hw_thermal_slowdown")])
    assert found is not None
    assert "GPU-1 hw_thermal_slowdown (SM 1200 MHz, 690.0 W of 700.0 W, 80 °C)" in found.seen
    assert conditions.power_capped([state("hw_thermal_slowdown")]) is None


def test_a_gpu_at_its_power_limit_is_found() -> None:
    assert conditions.power_capped([state("sw_power_cap")]) is not None
    assert conditions.clocks_throttled([state("sw_power_cap"), state("gpu_idle")]) is None


def test_other_users_of_the_gpus_are_found_by_name() -> None:
    found = conditions.gpu_shared(["pid 7 (python, 900 MiB) on GPU-1"])
    assert found is not None
    assert "1 other process: pid 7" in found.seen
    assert conditions.gpu_shared([]) is None


@pytest.mark.parametrize(
    ("share", "disabled", "device", "found"),
    [(0.8, False, "cuda", True), (1.0, False, "cuda", False), (0.0, True, "cuda", False), (0.0, False, "cpu", False)],
)
def test_a_gpu_that_decodes_without_graphs_is_found_unless_that_was_asked(
    share: float, disabled: bool, device: str, found: bool
) -> None:
    assert (conditions.graph_not_used(share, disabled=disabled, device=device) is not None) is found
    assert conditions.graph_not_used(None, disabled=False, device="cuda") is None


def test_counts_from_different_sources_are_found_and_the_baselines_does_not_matter() -> None:
    assert conditions.mixed_sources({0: "tokens", 1: "stream", 2: "stream"}) is None
    found = conditions.mixed_sources({0: "tokens", 1: "stream", 2: "metrics"})
    assert found is not None
    assert "stream at 1 step, metrics at 2 steps" in found.seen


def test_too_few_samples_are_found_with_their_refusals() -> None:
    found = conditions.few_samples(measurement(2), least=8)
    assert found is not None
    assert "4 samples (0 completions refused); an interval needs 8" in found.seen
    assert conditions.few_samples(measurement(2), least=4) is None


def test_completions_of_a_few_cycles_are_too_short() -> None:
    assert conditions.prompts_too_short(measurement(2, (sample(verifies=15, tokens=31),))) is not None
    assert conditions.prompts_too_short(measurement(2, (sample(verifies=16, tokens=31),))) is None


def test_every_check_has_a_name_fit_for_the_command_line() -> None:
    assert all(check.value.replace("-", "").isalpha() and check.value.islower() for check in Check)


# All conditions of one measurement


def conditions_of(seen: Measurement, *, alternating: bool = False) -> list[Check]:
    return [f.check for f in conditions.of_measurement(seen, least=4, alternating=alternating)]


def test_a_measurement_under_good_conditions_has_no_finding() -> None:
    assert conditions_of(measurement(2)) == []
    assert conditions_of(measurement(2, scheduler={"wall": 10.0, "cpu": 9.8})) == []


def test_waiting_for_a_core_is_found_unless_servers_alternated_or_compute_on_gpus() -> None:
    waited = measurement(2, scheduler={"wall": 12.0, "cpu": 10.0, "waited": 1.9})
    assert conditions_of(waited) == [Check.NOISY_HOST]
    assert conditions_of(waited, alternating=True) == []
    assert conditions_of(replace(waited, host={"accelerators": [{"state": {}}]})) == []


@pytest.mark.parametrize(
    ("scheduler", "found"),
    [
        ({"wall": 15.0, "cpu": 10.0, "waited": 0.1}, [Check.SCHEDULER_IDLE]),
        ({"wall": 15.0, "cpu": 10.0, "waited": 2.0}, [Check.NOISY_HOST, Check.SCHEDULER_IDLE]),
        ({"wall": 12.0, "cpu": 10.0, "waited": 60.0}, [Check.NOISY_HOST]),
        ({"wall": 9.8, "cpu": 10.0, "waited": 60.0}, []),
        ({"wall": 15.0, "cpu": 10.0}, []),
        ({"wall": 12.0, "cpu": 0.1, "waited": 0.0}, []),
    ],
    ids=["sleeps", "both", "others waited too", "lost nothing", "nobody keeps account", "does not compute"],
)
def test_waiting_for_a_core_is_told_from_sleeping(scheduler: dict[str, float], found: list[Check]) -> None:
    assert conditions_of(measurement(2, scheduler=scheduler)) == found


def test_what_the_host_tells_of_its_gpus_is_looked_at() -> None:
    states = [{"state": {"throttle_reasons": ["hw_slowdown", "sw_power_cap"]}}]
    seen = measurement(2, host={"accelerators": states, "gpu_others": ["pid 7 (x, 9 MiB) on GPU-1"]})
    assert conditions_of(seen) == [Check.CLOCKS_THROTTLED, Check.POWER_CAPPED, Check.GPU_SHARED]


def test_cycles_that_differ_from_pass_to_pass_on_a_gpu_are_told_and_dismiss_nothing() -> None:
    paces = [0.85, *[1.03, 0.97] * 3, 1.03]
    later = [sample(f"p{n}", repeat=1, decode_s=0.5 * pace) for n, pace in enumerate(paces)]
    moved = replace(two_passes(), samples=(*two_passes().samples[:8], *later))
    on_gpu = replace(moved, host={"accelerators": [{"state": {}}]})
    assert conditions_of(on_gpu) == [Check.UNSTEADY]
    (found,) = conditions.of_measurement(on_gpu, least=4, alternating=False)
    assert "At 2 steps a prompt's cycles lie 3.0 % apart" in found.seen
    assert "over 8 pairs, at most 17.6 %" in found.seen
    assert Check.UNSTEADY not in TIMES | COUNTS
    assert conditions_of(moved) == [], "a CPU changes its pace all the time"
    assert conditions_of(replace(on_gpu, boots=(0, 1))) == [], "boots differ by more"
    assert conditions_of(replace(two_passes(), host=on_gpu.host)) == []
    assert conditions_of(on_gpu, alternating=True) == [], "what moves both servers cancels out"
    by_lot = {"workload": {"temperature": 0.7}}
    assert conditions_of(replace(on_gpu, identity=by_lot)) == [], "each pass is other work"
    assert conditions_of(replace(on_gpu, samples=on_gpu.samples[:11])) == [], "three prompts of eight don't tell"


def test_a_boot_that_was_unsteady_is_told_though_another_was_not() -> None:
    uneven = [
        sample(f"p{n % 8}", repeat=n // 8, decode_s=0.5 * (1.03 if n in (9, 11, 12, 14, 15) else 1)) for n in range(16)
    ]
    even = [replace(each, repeat=each.repeat + 2) for each in two_passes().samples]
    seen = conditions.unsteady(replace(measurement(2, (*uneven, *even)), boots=(0, 2)))
    assert seen
    assert "lie 3.0 % apart from pass to pass (the median over 8 pairs," in seen.seen


@pytest.mark.parametrize("passes", [2, 4, 10, 40])
def test_a_quiet_gpu_is_steady_however_long_a_night_looks(passes: int) -> None:
    nights = np.exp(H200().completions(np.random.default_rng(7), 200, passes))
    for night in nights:
        told = (sample(f"p{p}", repeat=n, decode_s=0.5 * x) for n, row in enumerate(night) for p, x in enumerate(row))
        assert conditions.unsteady(measurement(2, tuple(told))) is None


def test_decode_lines_without_a_graph_on_a_gpu_make_times_doubtful() -> None:
    seen = measurement(2)
    on_gpu = replace(seen, server=replace(seen.server, graph_share=0.75, reported={"device": "cuda"}))
    assert conditions_of(on_gpu) == [Check.GRAPH_NOT_USED]
    asked = replace(on_gpu.server, reported={"device": "cuda", "disable_cuda_graph": True})
    assert conditions_of(replace(on_gpu, server=asked)) == []
    assert conditions_of(replace(on_gpu, server=replace(on_gpu.server, reported={"device": "cpu"}))) == []


def test_a_request_decoded_without_its_graph_makes_times_doubtful() -> None:
    seen = measurement(2)
    seen = replace(seen, server=replace(seen.server, graph_fell_back="Decode batch, cuda graph: False"))
    assert conditions_of(seen) == [Check.GRAPH_NOT_USED]


def two_passes(*first: float) -> Measurement:
    """Two passes over eight prompts; the first completions take so many ms per cycle, the rest 10."""
    ms = [*first, *[10.0] * (16 - len(first))]
    samples = (sample(f"p{n % 8}", repeat=n // 8, decode_s=0.05 * each) for n, each in enumerate(ms))
    return measurement(2, tuple(samples), discarded=2)


def test_warm_up_beyond_the_asked_one_is_discarded_and_told() -> None:
    after = conditions.steady(two_passes(14.0, 12.0))
    assert [len(after.samples), after.discarded] == [14, 4]
    assert after.notes == ("2 completions more than the warm-up discarded: slower than the later ones scatter",)


def test_a_prompts_only_sample_is_never_discarded() -> None:
    single = replace(two_passes(14.0), samples=two_passes(14.0).samples[:8])
    assert conditions.steady(single) is single
