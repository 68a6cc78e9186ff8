"""Reports for tests: the sweep recorded on an H200, and a night with everything in it that a report can tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fixtures import profiles
from fixtures.analysis import accept_length, verdicts
from fixtures.analysis.checks import Check, Finding
from fixtures.analysis.cycle import Part
from fixtures.analysis.explanations import explain
from fixtures.analysis.facts import Comparison
from fixtures.analysis.intervals import Rule
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.nccl_gain import NcclGain, nccl_gain
from fixtures.analysis.phases import TOTAL, UNEXPLAINED, CyclePhases
from fixtures.analysis.reference import Accepted, of_sweep
from fixtures.analysis.regressions import Tonight
from fixtures.analysis.verdicts import Outcome, Verdict
from fixtures.profiles import Profile
from fixtures.report.contents import Report
from fixtures.report.recorded import recorded
from fixtures.report.trend import Night, Stored, tonight
from tests.kit.builders import measurement, sample, slowed
from tests.kit.nights import Fault, night, phases_ms

ROOT = Path(__file__).resolve().parent.parent.parent
Made: TypeAlias = Callable[[], Report]
HOSTILE = (
    "</p><script>document.title = 'owned'</script><img src='http://example.invalid/x.png'> \u202eevil\u202c \x1b[31m"
)
"""What a model may write."""


def judged(measured: dict[int, Measurement], profile: Profile) -> list[Verdict]:
    """Every verdict on floors and texts."""
    floors, plain = profile.floors, measured[0]
    return [
        verdict
        for depth, m in sorted(measured.items())
        if depth
        for verdict in (
            verdicts.throughput(m, plain, floors.throughput[depth]),
            accept_length.verdict(m, floors.accept_length[depth]),
            verdicts.identical_text(m, plain, 0.0),
        )
    ]


def h200() -> Report:
    """Six servers on one H200."""
    profile = profiles.load("h200-llama8b-shape")
    measured = recorded(ROOT / "perf/recordings/h200")["2026-11-29-sweep"]
    assert profile.workload.oracle
    oracle = profiles.read_oracle(profile.workload.oracle)
    return Report(
        profile,
        measured,
        expected={d: {p: oracle.histogram(p, d) for p in measured[0].prompts()} for d in measured if d},
        verdicts=judged(measured, profile),
        words={0: "baseline", **{d: "holds" for d in measured if d}},
        findings=dict.fromkeys(measured, ()),
    )


def h200_among_nights() -> Report:
    """The same with a reference and a quarter of nights before it."""
    report = h200()
    measured = dict(report.measured)
    reference = of_sweep(measured, Accepted("ada", "2026-11-02T03:00:00+00:00", "first night"))
    comparisons = dict.fromkeys(measured, Comparison((), ()))
    night = {d: Tonight(m, measured[0], 4) for d, m in measured.items()}
    return replace(
        report,
        reference=reference,
        comparisons=comparisons,
        conclusions=explain(night, reference, comparisons),
        stored=stored(measured, [1.03] * 45 + [1.0] * 45),
    )


def stored(measured: dict[int, Measurement], steps: Sequence[float]) -> Stored:
    """Nights before this one: its own figures times `steps`, with 0.1 % of noise; a new SGLang half way."""
    rng = np.random.default_rng(1)
    first = datetime(2026, 10, 1, 3, tzinfo=UTC)
    nights = [
        replace(
            one,
            when=(first + timedelta(days=n)).isoformat(),
            ratio=one.ratio * step * (1 + 0.001 * rng.normal()),
            cycle_ms=one.cycle_ms / step * (1 + 0.001 * rng.normal()),
            context={**one.context, "SGLang": "0.5.22" if n < len(steps) // 2 else "0.5.23"},
        )
        for n, step in enumerate(steps)
        for one in tonight(measured)
    ]
    return Stored(tuple(nights), without_key=2)


def full() -> Report:
    """A night whose verify is 10 % slower than the reference's, on which a depth died and a model wrote markup."""
    profile = profiles.load("cpu-tiny").narrowed([1, 2, 3, 5])
    bad, quiet = night(Fault(slower={Part.VERIFY: 1.1}), seed=1), night(seed=900)
    when = "2026-11-29T03:00:00+00:00"
    measured = {d: replace(m, started_at=when, phases=_phases(d) if d else None) for d, m in bad.measured.items()}
    reference = of_sweep(quiet.measured, Accepted("ada", "2026-11-02T03:00:00+00:00", "first night"))
    comparisons = dict.fromkeys(measured, Comparison((), ("environment.NCCL_PROTO: 'LL' → None",)))
    both = {d: Tonight(m, measured[0], 4) for d, m in measured.items()}
    phases = {"phases": bad.phases, "reference_phases": quiet.phases}
    finding = Finding(Check.NOISY_HOST, "Load was 9 on 2 cores.", "Times mean little.", "Wait for a quiet host.")
    hostile = Verdict("text", 3, Outcome.FALLS_SHORT, 0.5, 0.5, 0.5, 1.0, 4, f"Differs: {HOSTILE}")
    return Report(
        profile,
        measured,
        verdicts=[*judged(measured, profile), hostile],
        words={0: "baseline", 1: "holds", 2: "undecided", 3: "fails: output", 5: "fails: throughput"},
        failed={10: "10 steps: the server ended while it booted"},
        failures={3: {"output": f"Differs: {HOSTILE}"}, 10: {"launch": "10 steps gave no measurement."}},
        findings={0: (), 1: (finding,)},
        reference=reference,
        comparisons=comparisons,
        conclusions=explain(both, reference, comparisons, **phases),
        stored=stored(measured, [1.03] * 30 + [1.0] * 30),
        nccl_gains=(gained(measured[3]),),
        seconds={"boots": 60.0, "measuring": 120.0},
        folder=Path("results/20261129T030000-cpu-tiny"),
    )


def gained(tuned: Measurement) -> NcclGain:
    """Without its NCCL settings the depth took a quarter longer."""
    found = nccl_gain(slowed(tuned, 1.25), tuned, {"NCCL_PROTO": "LL"}, rule=Rule(delta=0.01))
    assert found
    return found


def _phases(depth: int) -> CyclePhases:
    parts = {part.value: ms for part, ms in phases_ms(depth).items() if part is not Part.UNEXPLAINED}
    gap = phases_ms(depth)[Part.UNEXPLAINED]
    return CyclePhases("cuda events", "", 100, {**parts, UNEXPLAINED: gap, TOTAL: sum(parts.values()) + gap}, {})


def empty() -> Report:
    """A night on which nothing was measured."""
    return Report(profiles.load("cpu-tiny"), {}, failed={0: "the server ended while it booted"})


def thin() -> Report:
    """One sample of each server, on prompts that they have in common or not, and cycles that no line goes through."""
    profile = profiles.load("cpu-tiny")
    measured = {
        0: measurement(0, (sample("p0", decode_s=1.0, verifies=100),)),
        1: measurement(1, (sample("p0", decode_s=9.0, verifies=60),)),
        2: measurement(2, (sample("p0", decode_s=0.5, verifies=50),)),
    }
    return Report(profile, measured, verdicts=judged(measured, profile))


def flat(depth: int, values: Sequence[float], *, key: str = "k") -> tuple[Night, ...]:
    """Nights in January with these multiples of the plain server's, and nothing else that moves."""
    days = (datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=n) for n in range(len(values)))
    return tuple(
        Night(key, depth, day.isoformat(), value, 2.0, 6.0 + 1e-9 * n, {"SGLang": "0.5.23"})
        for n, (day, value) in enumerate(zip(days, values, strict=True))
    )
