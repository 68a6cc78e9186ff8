"""References of several boots and days, and nights held against them, where nothing but sessions scatters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fixtures.analysis.intervals import Outcome, Paired, Rule, look
from fixtures.analysis.regressions import honest, session
from fixtures.analysis.sessions import Spread, spread

PASSES = 10


@dataclass(frozen=True)
class Seen:
    """How nights ended against references of their own."""

    known: float
    """Share of references that know how far sessions lie apart."""
    delta: float
    """Median of the changes that may be claimed."""
    quiet: Counter[Outcome]
    slower: Counter[Outcome]
    """Of nights slower by what may be claimed."""


def drawn(rng: np.random.Generator, sizes: Sequence[int], day: float, boot: float) -> tuple[Spread, float]:
    """The spread that so many boots a day show, and tonight's level less their mean; days and boots are normal."""
    levels = rng.normal(0, day, len(sizes) + 1)
    boots = [(str(n), levels[n] + rng.normal(0, boot)) for n, size in enumerate(sizes) for _ in range(size)]
    return spread(boots), levels[-1] + rng.normal(0, boot) - np.mean([x for _, x in boots])


def nights(sizes: Sequence[int], day: float, boot: float, *, count: int, seed: int = 11) -> Seen:
    """As many references and nights, by the rule itself."""
    rng, known, deltas = np.random.default_rng(seed), 0, []
    quiet, slower = Counter[Outcome](), Counter[Outcome]()
    for _ in range(count):
        apart, moved = drawn(rng, sizes, day, boot)
        rule = honest(Rule(0.005, looks=(PASSES,)), apart)
        for outcomes, level in ((quiet, moved), (slower, moved + rule.delta)):
            # Twenty values alike have bounds, and those are the value itself.
            outcomes[look(Paired({"p": (level,) * 20}), PASSES, rule, session(rule, apart, 1)).outcome] += 1
        known += apart.known
        deltas.append(rule.delta)
    return Seen(known / count, median(deltas), quiet, slower)
