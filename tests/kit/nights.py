"""Nights with one known fault each: the tiny pair's exact counts, and cycles that scatter as recorded on an H200."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from fixtures.analysis.lines import Estimate
from fixtures.analysis.measurement import Measurement, Sample
from fixtures.analysis.sides import Part, Phases
from tests.kit.builders import RECORDINGS, measurement, sample
from tests.kit.noise import H200, Array

TOKENS = 128
DEPTHS = (1, 2, 3, 5)
PLAIN_MS = 4.6
GAP_MS = 0.3
"""What a cycle takes between its phases."""
PHASE_ERROR = 0.002
"""Relative standard error of a measured phase, and of what lies between them."""
Histograms = Mapping[str, Mapping[int, tuple[int, ...]]]


@dataclass(frozen=True)
class Fault:
    """What is wrong in a night; nothing by default."""

    counts: str = "right"
    """Whose counts, in recordings/tiny-eagle3/faults.json."""
    runs: Mapping[int, int] = field(default_factory=dict)
    """Depth asked for → depth that runs."""
    slower: Mapping[Part, float] = field(default_factory=dict)
    """Factors of phases; UNEXPLAINED is the gap between them, CYCLE the plain server's token."""
    depths: frozenset[int] = frozenset(DEPTHS)
    """Where phases are slower."""


QUIET = Fault()


@dataclass(frozen=True)
class Night:
    """Measurements and phases by depth."""

    measured: Mapping[int, Measurement]
    phases: Mapping[int, Phases]

    @property
    def measured_speculative(self) -> dict[int, Measurement]:
        """Without the plain server."""
        return {d: m for d, m in self.measured.items() if d}


@cache
def counts(whose: str) -> Histograms:
    """How many verifies accepted 0, 1, … drafts, by prompt and depth."""
    raw = json.loads((RECORDINGS / "tiny-eagle3" / "faults.json").read_text(encoding="utf-8"))
    return {p: {int(d): tuple(h) for d, h in by_depth.items()} for p, by_depth in raw[whose].items()}


def phases_ms(depth: int) -> dict[Part, float]:
    """True phases of a night without a fault: 6.15 ms in all at 2 steps, as an 8B shape takes on an H200."""
    return {Part.DRAFT: 0.2 * depth, Part.VERIFY: 4.9 + 0.1 * depth, Part.EXTEND: 0.35, Part.UNEXPLAINED: GAP_MS}


def night(fault: Fault = QUIET, *, seed: int, passes: int = 4, depths: Sequence[int] = DEPTHS) -> Night:
    """A night of these depths, the plain server included."""
    rng = np.random.default_rng(seed)
    prompts = len(counts("right"))
    scatter = {d: H200(prompts=prompts).sessions(rng, 1, passes)[0] for d in (0, *depths)}
    true = {d: _phases(fault, d) for d in depths if d}
    plain_ms = PLAIN_MS * fault.slower.get(Part.CYCLE, 1.0)
    return Night(
        {0: _plain(plain_ms, scatter[0]), **{d: _speculative(fault, d, ms, scatter[d]) for d, ms in true.items()}},
        {d: _measured(ms, rng) for d, ms in true.items()},
    )


def _phases(fault: Fault, depth: int) -> dict[Part, float]:
    true = phases_ms(fault.runs.get(depth, depth))
    return {p: ms * (fault.slower.get(p, 1.0) if depth in fault.depths else 1.0) for p, ms in true.items()}


def _measured(true: Mapping[Part, float], rng: np.random.Generator) -> Phases:
    seen = {p: ms * (1 + PHASE_ERROR * rng.normal()) for p, ms in true.items()}
    return {part: Estimate(ms, ms * PHASE_ERROR) for part, ms in seen.items()}


def _plain(token_ms: float, scatter: Array) -> Measurement:
    return measurement(0, _samples(dict.fromkeys(counts("right"), (TOKENS - 1,)), token_ms, scatter, plain=True))


def _speculative(fault: Fault, depth: int, true: Mapping[Part, float], scatter: Array) -> Measurement:
    runs = fault.runs.get(depth, depth)
    histograms = {p: by_depth[runs] for p, by_depth in counts(fault.counts).items()}
    return measurement(depth, _samples(histograms, sum(true.values()), scatter))


def _samples(
    histograms: Mapping[str, tuple[int, ...]], cycle_ms: float, scatter: Array, *, plain: bool = False
) -> tuple[Sample, ...]:
    return tuple(
        replace(
            sample(
                prompt,
                repeat=repeat,
                tokens=TOKENS,
                verifies=sum(histogram),
                decode_s=sum(histogram) * cycle_ms / 1000 * float(np.exp(scatter[repeat, n])),
            ),
            source=prompt.partition("-")[0],
            accepted_histogram=None if plain else histogram,
        )
        for repeat in range(len(scatter))
        for n, (prompt, histogram) in enumerate(histograms.items())
    )
