"""The decision rule for thousands of nights at once, and the rules of others beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, norm, t

from fixtures.analysis import guards
from fixtures.analysis.intervals import Rule, Session, spare
from tests.kit.noise import Array

HOLDS, FALLS_SHORT, UNDECIDED = 0, 1, -1


@dataclass(frozen=True)
class Nights:
    """How each of many nights ended."""

    outcome: Array
    passes: Array

    def share(self, outcome: int) -> float:
        """Share of the nights that ended so."""
        return float(np.mean(self.outcome == outcome))

    def alarmed_within(self, passes: int) -> float:
        """Share of the nights that fell short after at most so many passes."""
        return float(np.mean((self.outcome == FALLS_SHORT) & (self.passes <= passes)))


def decide(
    tonight: Array,
    reference: Array,
    rule: Rule,
    session: Session | Sequence[Session] | None = None,
    *,
    guarded: bool = True,
    scattering: bool = True,
) -> Nights:
    """`intervals.look` after each of the rule's looks, for all nights; both arrays are (nights, passes, prompts).

    Without `scattering` the reference's medians are taken as true.
    """
    logs = tonight - np.median(reference, axis=1, keepdims=True)
    residuals = np.sort(_residuals(reference), axis=1) * scattering
    outcome = np.full(len(logs), UNDECIDED)
    passes = np.full(len(logs), rule.looks[-1])
    for taken in rule.looks:
        lower, upper = bounds(logs[:, :taken], residuals, rule, session)
        holds = upper < np.log1p(rule.delta)
        now = np.where(holds, HOLDS, np.where(lower > 0, FALLS_SHORT, UNDECIDED))
        if guarded:
            suspected, certain = _alarms(logs[:, :taken], reference.shape[1], rule)
            now[holds & suspected & (taken < rule.looks[-1])] = UNDECIDED
            now[certain] = FALLS_SHORT
        fresh = (outcome == UNDECIDED) & (now != UNDECIDED)
        outcome[fresh], passes[fresh] = now[fresh], taken
    return Nights(outcome, passes)


def _residuals(reference: Array) -> Array:
    count = reference.shape[1]
    if count == 1:
        return (reference - np.median(reference, axis=2, keepdims=True)).reshape(len(reference), -1)
    scale = np.sqrt(count / (count - 1))
    return ((reference - np.median(reference, axis=1, keepdims=True)) * scale).reshape(len(reference), -1)


def bounds(
    logs: Array, residuals: Array, rule: Rule, session: Session | Sequence[Session] | None = None
) -> tuple[Array, Array]:
    """`intervals.estimate` for all nights; residuals are sorted."""
    alpha, beta = rule.alpha / len(rule.looks), rule.beta / len(rule.looks)
    flat = np.sort(logs.reshape(len(logs), -1), axis=1)
    low, centre, high = _sign(flat, alpha, beta)
    ref_low, ref_centre, ref_high = _sign(residuals, beta, alpha)
    below, above = (_far(level / rule.boots, session) for level in (rule.alpha, rule.beta))
    middle = centre - ref_centre
    down = np.sqrt((centre - low) ** 2 + (ref_high - ref_centre) ** 2 + below**2)
    up = np.sqrt((high - centre) ** 2 + (ref_centre - ref_low) ** 2 + above**2)
    return middle - down, middle + up


def _far(level: float, session: Session | Sequence[Session] | None) -> Array:
    """The session's part of the bounds: one for all nights, or one each."""
    sessions = [session or Session()] if session is None or isinstance(session, Session) else session
    freedom, error = (np.array([getattr(s, name) for s in sessions]) for name in ("freedom", "error"))
    return np.asarray(t.isf(level, freedom) * error)


def _sign(ordered: Array, alpha: float, beta: float) -> tuple[Array, Array, Array]:
    count = ordered.shape[1]
    q, r = spare(count, alpha), spare(count, beta)
    infinite = np.full(len(ordered), np.inf)
    return (
        ordered[:, q] if q >= 0 else -infinite,
        np.median(ordered, axis=1),
        ordered[:, count - 1 - r] if r >= 0 else infinite,
    )


def _alarms(logs: Array, reference_passes: int, rule: Rule) -> tuple[Array, Array]:
    nights, taken, prompts = logs.shape
    alpha = rule.alpha / len(rule.looks)
    flat = logs.reshape(nights, -1)
    centre = np.median(flat, axis=1)[:, None]
    deviations = flat - centre
    noise = 1.4826 * np.median(np.abs(deviations), axis=1)
    scatter = 1.2533 * noise * np.sqrt(1 / taken + 1 / reference_passes)
    middle = np.median(logs, axis=1) - centre
    least = np.log1p(rule.delta) - np.minimum(0, centre)
    slow = (logs.min(axis=1) - centre > least) & (middle > guards.TAILS * norm.isf(alpha / prompts) * scatter[:, None])
    fence = np.maximum(least[:, 0], guards.FENCE * noise)
    count = (deviations > fence[:, None]).sum(axis=1)
    chance = binom.sf(count - 1, taken * prompts, guards.USUAL_OUTLIERS)
    suspected = slow.any(axis=1) | (chance <= guards.SUSPICION)
    certain = (slow.any(axis=1) & (taken >= guards.PASSES)) | (chance <= alpha)
    return suspected, certain
