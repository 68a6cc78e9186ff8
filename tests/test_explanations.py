"""A night against its reference, from measurement to message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.analysis.causes import Cause
from fixtures.analysis.conclusions import Conclusion
from fixtures.analysis.explanations import explain, wrong_layers
from fixtures.analysis.facts import Comparison
from fixtures.analysis.measurement import Measurement, from_json
from fixtures.analysis.reference import Accepted, Reference, of_sweep
from fixtures.analysis.regressions import Tonight
from fixtures.analysis.sides import Part, Side
from tests.kit.builders import slowed
from tests.kit.nights import DEPTHS, QUIET, Fault, Night, night

SAME = Comparison((), ())
LOST_NCCL = Comparison((), ("host.kernel: '6.1' → '6.2'", "environment.NCCL_PROTO: 'LL' → None"))


def reference(*, seed: int = 900) -> Reference:
    """Of three quiet nights, so that how far sessions lie apart is known to be next to nothing."""
    accepted = Accepted("ada", "2026-11-02T03:00:00+00:00", "first night")
    whole = of_sweep(night(seed=seed).measured, accepted)
    days = [f"2026-11-0{1 + n // 4}T0{n % 4}:00:00+00:00" for n in range(12)]
    depths = {
        d: replace(r, boots=tuple(replace(r.boots[0], when=when) for when in days)) for d, r in whole.depths.items()
    }
    return replace(whole, depths=depths)


REFERENCE = reference()


def explained(
    of: Night, comparison: Comparison = SAME, *, alternating: bool = False, phased: bool = False
) -> dict[int, Conclusion]:
    plain = of.measured[0]
    tonight = {d: Tonight(m, plain, 4, alternating=alternating) for d, m in of.measured.items()}
    return explain(
        tonight,
        REFERENCE,
        dict.fromkeys(tonight, comparison),
        phases=of.phases if phased else None,
        reference_phases=night(seed=900).phases if phased else None,
    )


def blamed(seen: dict[int, Conclusion]) -> dict[int, tuple[Cause, ...]]:
    return {d: c.causes for d, c in seen.items() if c.causes}


def test_a_quiet_night_blames_nothing() -> None:
    assert blamed(explained(night(seed=1))) == {}


def test_a_slower_verify_with_a_lost_nccl_variable_names_it_first() -> None:
    seen = explained(night(Fault(slower={Part.VERIFY: 1.05}), seed=1), LOST_NCCL, phased=True)
    assert blamed(seen) == dict.fromkeys(DEPTHS, (Cause.VERIFY,))
    assert "look at NCCL settings" in seen[2].message
    assert "most suspicious first: environment.NCCL_PROTO: 'LL' → None; host.kernel" in seen[2].message


def test_wrong_layers_are_named_though_a_reference_has_no_histograms() -> None:
    assert blamed(explained(night(Fault("wrong layers"), seed=1))) == dict.fromkeys(DEPTHS, (Cause.WRONG_LAYERS,))


def test_wrong_layers_are_named_though_neither_histograms_nor_depth_1_are_known() -> None:
    """At 2.05 tokens a verify of 2 steps, the first guess was right in half of the verifies at least."""
    folder = Path(__file__).parent.parent / "perf/recordings/h200"
    then, now = (
        {d: from_json((folder / name / f"depth-{d}.json").read_text(encoding="utf-8")) for d in (0, 2)}
        for name in ("2026-11-29-second-boots", "2026-11-29-control-wrong-layers")
    )
    known = of_sweep(then, Accepted("ada", "2026-11-29T19:00:00+00:00", "first night"))
    assert known.depths[2].accepted is None
    seen = explain({2: Tonight(now[2], now[0], 1)}, known, {2: SAME})
    assert seen[2].causes[0] is Cause.WRONG_LAYERS


def test_a_text_that_is_not_the_plain_servers_takes_the_signature_away() -> None:
    of = night(Fault("wrong layers"), seed=1)
    garbled = {d: _saying(m, "x" if d else "y") for d, m in of.measured.items()}
    assert blamed(explained(replace(of, measured=garbled))) == dict.fromkeys(DEPTHS, (Cause.ACCEPTANCE,))


def _saying(measurement: Measurement, text: str) -> Measurement:
    return replace(measurement, samples=tuple(replace(s, text=text, text_sha256=text) for s in measurement.samples))


def test_an_unhealthy_server_takes_the_signature_away() -> None:
    of = night(Fault("wrong layers"), seed=1)
    tonight = {2: Tonight(of.measured[2], of.measured[0], 4)}
    seen = explain(tonight, REFERENCE, {2: SAME}, unhealthy=frozenset({2}))
    assert seen[2].causes == (Cause.ACCEPTANCE,)


def test_prompts_that_only_the_reference_has_are_not_missed_at_position_one() -> None:
    """Half of the prompts accept 90 of 100 first guesses and half 50; tonight has the latter, as they were."""
    then = {f"p{n}": (10.0, 90.0) if n < 4 else (50.0, 50.0) for n in range(8)}
    sides = [
        Side(1, figures=dict.fromkeys(of, (0.01,)), tokens={}, verifies={}, accepted=of)
        for of in (then, {p: h for p, h in then.items() if h[1] == 50})
    ]
    assert wrong_layers(sides[1], {1: sides[0]}, sound=True) is None


def test_another_depth_is_recognised_by_the_references_counts() -> None:
    assert blamed(explained(night(Fault(runs={2: 3}), seed=1))) == {2: (Cause.ANOTHER_DEPTH,)}


def test_another_depth_is_recognised_by_the_servers_own_account_where_no_counts_are_known() -> None:
    of = night(Fault(runs={2: 3}), seed=1)
    fewer = replace(REFERENCE, depths={d: r for d, r in REFERENCE.depths.items() if d in {0, 2}})
    told = replace(of.measured[2], server=replace(of.measured[2].server, reported={"speculative_num_steps": 3}))
    seen = [explain({2: Tonight(m, of.measured[0], 4)}, fewer, {2: SAME})[2].causes for m in (of.measured[2], told)]
    assert seen[0] != seen[1] == (Cause.ANOTHER_DEPTH,)


@pytest.mark.parametrize("alternating", [False, True])
def test_a_slower_plain_server_is_the_plain_servers_alternating_or_not(alternating: bool) -> None:
    seen = blamed(explained(night(Fault(slower={Part.CYCLE: 1.05}), seed=1), alternating=alternating))
    assert set(seen.values()) == {(Cause.PLAIN_SERVER,)}
    assert set(seen) == ({0, *DEPTHS} if alternating else {0})


def test_alternating_on_a_slower_host_blames_no_depth() -> None:
    of = night(QUIET, seed=1)
    slow = replace(of, measured={d: slowed(m, 1.3) for d, m in of.measured.items()})
    assert set(blamed(explained(slow, alternating=True))) == {0}


def test_where_numerics_may_differ_accept_length_has_an_interval_over_prompts() -> None:
    upgraded = Comparison((), ("sglang: '0.5.23' → '0.5.24'",))
    exact, sampled = (
        explained(night(Fault("one wrong layer"), seed=1), c)[2].attribution.shares[0].log for c in (SAME, upgraded)
    )
    assert exact.lower == exact.upper
    assert sampled.upper - sampled.lower > 0.01


def test_a_depth_that_the_reference_lacks_is_left_out() -> None:
    of = night(seed=1)
    fewer = replace(REFERENCE, depths={d: r for d, r in REFERENCE.depths.items() if d != 3})
    tonight = {d: Tonight(m, of.measured[0], 4) for d, m in of.measured.items()}
    assert explain(tonight, fewer, {}).keys() == {0, 1, 2, 5}
