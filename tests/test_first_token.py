"""Time to first token against its limit: three outcomes, by an interval over prompts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fixtures.analysis import first_token
from fixtures.analysis.checks import Check, Finding
from fixtures.analysis.intervals import Outcome
from fixtures.analysis.measurement import Measurement
from fixtures.analysis.regressions import doubted
from tests.kit.builders import measurement, sample

PROMPTS = 10


def taking(*factors: float, depth: int = 2, repeats: int = 1) -> Measurement:
    """Prompt n takes n + 1 times 10 ms to its first token, times its factor; repeats of it scatter a little."""
    samples = (
        sample(f"p{n}", repeat=r, ttft_s=0.01 * (n + 1) * factor * (1 + 0.01 * r))
        for n, factor in enumerate(factors)
        for r in range(repeats)
    )
    return measurement(depth, tuple(samples))


PLAIN = taking(*[1.0] * PROMPTS, depth=0)


@pytest.mark.parametrize(
    ("most", "outcome"), [(1.3, Outcome.HOLDS), (1.1, Outcome.FALLS_SHORT), (1.2, Outcome.UNDECIDED)]
)
def test_the_interval_over_prompts_decides(most: float, outcome: Outcome) -> None:
    seen = first_token.verdict(taking(*[1.15] * 4, *[1.2] * 3, *[1.25] * 3), PLAIN, most)
    assert (seen.outcome, seen.floor, seen.samples) == (outcome, most, PROMPTS)
    assert (seen.lower, seen.estimate, seen.upper) == pytest.approx((1.15, 1.2, 1.25))


def test_a_prompt_counts_once_however_often_it_was_asked() -> None:
    seen = first_token.verdict(taking(*[1.2] * PROMPTS, repeats=3), taking(*[1.0] * PROMPTS, depth=0, repeats=3), 1.5)
    assert (seen.samples, seen.estimate) == (PROMPTS, pytest.approx(1.2))


def test_a_few_prompts_decide_nothing_and_say_how_many_do() -> None:
    few = first_token.verdict(taking(2.0, 2.0), PLAIN, 1.1)
    assert few.outcome is Outcome.UNDECIDED
    assert few.message.endswith("2 prompts can't give an interval: at least 8 are needed.")


def test_nothing_in_common_is_undecided() -> None:
    stranger = replace(PLAIN, samples=(sample("another"),))
    assert first_token.verdict(taking(1.0), stranger, 1.1).outcome is Outcome.UNDECIDED


def test_the_message_says_how_long_and_what_to_look_at() -> None:
    told = first_token.verdict(taking(*[2.0] * PROMPTS), PLAIN, 1.5).message
    assert told.startswith(
        "Time to first token at 2 steps exceeds its limit of 1.500 × baseline: 2.000 × (interval 2.000 to 2.000), the "
        "median over 10 prompts; 55.0 ms plain, 110.0 ms speculative. The draft's prefill"
    )


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        (Check.NOISY_HOST, Outcome.UNDECIDED),
        (Check.CLOCKS_THROTTLED, Outcome.UNDECIDED),
        (Check.MIXED_SOURCES, Outcome.FALLS_SHORT),
    ],
)
def test_it_is_a_time_and_a_disturbed_host_casts_doubt_on_it(check: Check, outcome: Outcome) -> None:
    slow = first_token.verdict(taking(*[2.0] * PROMPTS), PLAIN, 1.5)
    assert slow.outcome is Outcome.FALLS_SHORT
    assert doubted(slow, [Finding(check, "Seen.", "It matters.", "Look.")]).outcome is outcome


def test_without_a_common_prompt_it_was_compared_with_nothing() -> None:
    seen = first_token.verdict(taking(1.0), replace(PLAIN, samples=(sample("another"),)), 1.1)
    assert (seen.lower, seen.upper) == (-math.inf, math.inf)
    assert "was compared with nothing: no prompt has a sample on both servers" in seen.message
