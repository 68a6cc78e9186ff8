"""How two hosts scatter, resampled from recordings: ln(seconds per cycle) around its prompt's median, in time order.

Nothing here is Gaussian but the slow drift of the shared host, whose size the recordings' halves give.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Array = NDArray[np.float64]

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"
H200_RECORDING = RECORDINGS / "h200-sglang-0.5.17" / "noise_d2.json"
CPU_RECORDINGS = tuple(sorted((RECORDINGS / "cpu-sglang-0.5.23").glob("noise_cpu_*.json")))

OUTLIER = 0.005
"""On the H200 a completion this far off is an outlier; the rest lies within 0.1 %."""
COMPLETION_S = 0.8
"""Seconds of one completion on the shared host."""
DRIFT = 0.035
DRIFT_S = 60.0
"""Without a drift of this size and time constant the medians of two halves of a session differ too little."""


class Noise(Protocol):
    """A host's scatter, and how a night is measured there."""

    name: str
    prompts: int

    def sessions(self, rng: np.random.Generator, count: int, passes: int) -> Array:
        """What a night compares, as ln, of shape (count, passes, prompts)."""


def recorded(path: Path) -> Array:
    """ln(seconds per cycle) of a noise recording, of shape (passes, prompts), in time order."""
    rows = [r for r in json.loads(path.read_text(encoding="utf-8")) if r.get("conc", 1) == 1]
    key = "prompt" if "prompt" in rows[0] else "seed"
    prompts = 1 + max(r[key] for r in rows)
    assert [r[key] for r in rows] == [i % prompts for i in range(len(rows))], f"{path} isn't in time order"
    cycles = [r["decode"] / (r.get("verifies") or r["chunks"] - 1) for r in rows]
    return np.log(np.array(cycles)).reshape(-1, prompts)


def recorded_accept_lengths(path: Path) -> Array:
    """Accept length by prompt, of the first pass of a noise recording."""
    rows = [r for r in json.loads(path.read_text(encoding="utf-8")) if r["rep"] == 0]
    return np.array([(r["tokens"] - 1) / (r.get("verifies") or r["chunks"] - 1) for r in rows])


def blocks(rng: np.random.Generator, series: Array, count: int, length: int, block: int) -> Array:
    """`count` series of `length`, each of circular blocks from random rows of `series` (Politis and Romano, 1992)."""
    needed = -(-length // block)
    row = rng.integers(len(series), size=(count, needed, 1))
    start = rng.integers(series.shape[1], size=(count, needed, 1))
    at = (start + np.arange(block)) % series.shape[1]
    return series[row, at].reshape(count, -1)[:, :length]


@dataclass(frozen=True)
class H200:
    """One stream on one H200, within a session: 0.03 %, a burst, three outliers in eighty, a first pass that is off."""

    name: str = "H200"
    prompts: int = 10

    def completions(self, rng: np.random.Generator, count: int, passes: int) -> Array:
        """ln(seconds per cycle) around the prompt's median."""
        scatter = blocks(rng, self._pool(), count, passes * self.prompts, self.prompts)
        outlier = np.abs(scatter) > OUTLIER
        size = scatter * np.exp(rng.normal(0, 0.5, scatter.shape))
        scatter = np.where(outlier, np.clip(size, -0.2, 0.2), scatter).reshape(count, passes, self.prompts)
        # The first pass lay 0.08 % below the others in one recorded session, 0.01 % above in the other.
        scatter[:, 0] += np.where(rng.random((count, 1)) < 0.5, -0.0008, 0.0001) + rng.normal(0, 0.0004, (count, 1))
        return scatter

    def sessions(self, rng: np.random.Generator, count: int, passes: int) -> Array:
        """Seconds per cycle, the first pass after the boot dropped."""
        return self.completions(rng, count, passes + 1)[:, 1:]

    def _pool(self) -> Array:
        cycles = recorded(H200_RECORDING)
        scatter = cycles - np.median(cycles, axis=0)
        # A median of eight values is too close to them by √(7/8).
        scatter = np.where(np.abs(scatter) < OUTLIER, scatter * np.sqrt(8 / 7), scatter)
        scatter[0] -= np.median(scatter[0])
        return scatter.reshape(1, -1)


@dataclass(frozen=True)
class SharedCpu:
    """The CPU engine on two shared cores: fast spells of 20–30 %, and drift that halves of a session show."""

    name: str = "CPU, alternating"
    prompts: int = 24
    block: int = 24

    def completions(self, rng: np.random.Generator, count: int, length: int) -> Array:
        """ln(seconds per cycle) of neighbouring completions, of shape (count, length)."""
        pool = [recorded(path) for path in CPU_RECORDINGS]
        series = np.array([(cycles - np.median(cycles)).ravel() for cycles in pool])
        return blocks(rng, series, count, length, self.block) + self._drift(rng, count, length)

    def sessions(self, rng: np.random.Generator, count: int, passes: int) -> Array:
        """Speculative over plain, of neighbouring completions of one prompt, in the order A B, B A."""
        pairs = self.completions(rng, count, 2 * passes * self.prompts).reshape(count, -1, 2)
        sign = np.where(np.arange(pairs.shape[1]) % 2, -1.0, 1.0)
        return ((pairs[:, :, 1] - pairs[:, :, 0]) * sign).reshape(count, passes, self.prompts)

    @staticmethod
    def _drift(rng: np.random.Generator, count: int, length: int) -> Array:
        keep = np.exp(-COMPLETION_S / DRIFT_S)
        steps = rng.normal(0, DRIFT * np.sqrt(1 - keep * keep), (count, length))
        steps[:, 0] = rng.normal(0, DRIFT, count)
        return np.asarray(lfilter([1.0], [1.0, -keep], steps, axis=1))


@dataclass(frozen=True)
class Frozen:
    """The shared CPU without alternation: each night's cycles against a reference of another day."""

    name: str = "CPU, frozen reference"
    prompts: int = 24

    def sessions(self, rng: np.random.Generator, count: int, passes: int) -> Array:
        """Seconds per cycle of one server alone."""
        series = SharedCpu().completions(rng, count, passes * self.prompts)
        return series.reshape(count, passes, self.prompts)


@dataclass(frozen=True, eq=False)  # kept in a cache by what it is: arrays have no hash
class Recorded:
    """Nights resampled from ln ratios that were recorded themselves, of shape (passes, prompts), in time order."""

    name: str
    logs: Array

    @property
    def prompts(self) -> int:
        return self.logs.shape[1]

    def sessions(self, rng: np.random.Generator, count: int, passes: int) -> Array:
        """Circular blocks of one pass, of what each prompt's completions scatter around their own median."""
        scatter = (self.logs - np.median(self.logs, axis=0)).reshape(1, -1)
        series = blocks(rng, scatter, count, passes * self.prompts, self.prompts)
        return series.reshape(count, passes, self.prompts)
