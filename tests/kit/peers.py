"""How others decide that something became slower, on the same nights as our rule.

A rule gives each night a score, in ln of how much slower tonight looks, and an alarm above a threshold: the one in use
today, or one tuned to the same nights without a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata, t

from tests.kit.noise import CPU_RECORDINGS, Array, recorded_accept_lengths

FIVE_PERCENT = -np.log(0.95)


@dataclass(frozen=True)
class Peer:
    """A rule; both arrays are ln(seconds per cycle) of shape (nights, passes, prompts)."""

    name: str
    score: Callable[[Array, Array], Array]
    threshold: float


def best_of_three(tonight: Array, reference: Array) -> Array:
    """One prompt's best throughput of three attempts, against its mean."""
    return tonight[:, :3, 0].min(axis=1) + np.log(np.exp(-reference[:, :, 0]).mean(axis=1))


def mean_of_five(tonight: Array, reference: Array) -> Array:
    """Mean throughput of five prompts, the same ones each night."""
    return -np.log(np.exp(-tonight[:, 0, :5]).mean(axis=1)) + np.log(np.exp(-reference[:, :, :5]).mean(axis=(1, 2)))


def mean_of_five_redrawn(tonight: Array, reference: Array) -> Array:
    """The same with other prompts each night, whose accept lengths differ as those of a trained pair."""
    rng = np.random.default_rng(11)
    lengths = np.log(recorded_accept_lengths(CPU_RECORDINGS[-1]))
    drawn = [rng.choice(lengths, (len(tonight), 5)) for _ in range(2)]
    return -np.log(np.exp(drawn[0] - tonight[:, 0, :5]).mean(axis=1)) + np.log(
        np.exp(drawn[1] - reference[:, 0, :5]).mean(axis=1)
    )


def mean_of_all(tonight: Array, reference: Array) -> Array:
    """Mean seconds per token of all completions (pytest-benchmark's mean)."""
    return np.log(np.exp(tonight).mean(axis=(1, 2))) - np.log(np.exp(reference).mean(axis=(1, 2)))


def fifth_percentile_times_length(tonight: Array, reference: Array) -> Array:
    """The 20th percentile of step times; accept length is the same on the same prompts."""
    low = (np.percentile(x.reshape(len(x), -1), 20, axis=1) for x in (tonight, reference))
    return next(low) - next(low)


def mann_whitney(tonight: Array, reference: Array) -> Array:
    """The normal score of Mann and Whitney's U, unpaired."""
    a, b = tonight.reshape(len(tonight), -1), reference.reshape(len(reference), -1)
    n, m = a.shape[1], b.shape[1]
    ranks = rankdata(np.concatenate([a, b], axis=1), axis=1)[:, :n].sum(axis=1)
    return (ranks - n * (n + 1) / 2 - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12)


def asv(tonight: Array, reference: Array) -> Array:
    """A factor of 1.1 between medians, if Mann and Whitney agree at 0.2 %."""
    median = np.median(tonight, axis=(1, 2)) - np.median(reference, axis=(1, 2))
    return np.where(mann_whitney(tonight, reference) > norm.isf(0.001), median, -np.inf)


def paired_t(tonight: Array, reference: Array) -> Array:
    """Student's t of the paired means by prompt."""
    differences = tonight.mean(axis=1) - reference.mean(axis=1)
    prompts = differences.shape[1]
    return differences.mean(axis=1) / (differences.std(axis=1, ddof=1) / np.sqrt(prompts))


def all_peers(prompts: int) -> tuple[Peer, ...]:
    """The rules in use, with their thresholds of today."""
    return (
        Peer("one prompt, best of 3, 5 % (SGLang's kits)", best_of_three, FIVE_PERCENT),
        Peer("mean of 5 prompts redrawn, 5 %", mean_of_five_redrawn, FIVE_PERCENT),
        Peer("mean of 5 prompts kept, 5 %", mean_of_five, FIVE_PERCENT),
        Peer("pytest-benchmark mean:5%", mean_of_all, np.log(1.05)),
        Peer("P20 of step times × accept length, 5 %", fifth_percentile_times_length, FIVE_PERCENT),
        Peer("asv: factor 1.1 and Mann-Whitney 0.2 %", asv, np.log(1.1)),
        Peer("Mann-Whitney 0.2 % alone", mann_whitney, float(norm.isf(0.001))),
        Peer("paired t over prompts, 0.2 %", paired_t, float(t.isf(0.001, prompts - 1))),
    )
