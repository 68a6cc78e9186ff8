"""What the summary says of depths by the depth model: from enough depths, and never a crash."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from fixtures.analysis.measurement import Measurement
from fixtures.report.depths import lines
from tests.kit.builders import measurement, sample, slowed
from tests.kit.nights import night

NIGHT = night(seed=1).measured
"""An 8B shape on an H200, whose plain token takes 4.58 ms: 1.31, 1.54, 1.67 and 1.69 × at 1, 2, 3 and 5 steps."""


def test_the_best_depth_is_told_and_those_that_may_be_better() -> None:
    best, rivals = lines(NIGHT)
    assert best == "Depth model: 5 steps, 1.737 × the plain server."
    told = (
        "  By what is known these may be better by more than 1 %: 4 steps 1.738 × (1.659 to 1.816), predicted; 6 steps "
    )
    assert rivals.startswith(told)


def test_depths_of_which_nothing_is_known_have_no_upper_bound() -> None:
    """One depth costs thrice as much as its neighbours: no line goes through that."""
    rivals = lines({d: slowed(m, 1.0 if d in {0, 1} else 3.0) for d, m in NIGHT.items()})[1]
    assert " or more), predicted" in rivals
    assert "inf" not in rivals


def test_no_speculation_is_a_legal_answer() -> None:
    assert lines({d: slowed(m, 3.0 if d else 1.0) for d, m in NIGHT.items()}) == [
        "Depth model: no speculation.",
        "  No other depth from 0 to 16 can be better by more than 1 %.",
    ]


def test_within_one_percent_the_smaller_depth_is_named() -> None:
    alike = {d: measurement(d) for d in (0, 2, 3)}
    assert lines(alike)[0].startswith("Depth model: 2 steps, 2.000 ×")


def test_where_servers_alternated_the_partners_are_the_measure() -> None:
    partners = {d: slowed(NIGHT[0], 2.0) for d in NIGHT if d}
    ratios = [float(re.findall(r"(\d\.\d{3}) ×", lines(NIGHT, by)[0])[0]) for by in ({}, partners)]
    assert ratios[1] == pytest.approx(2 * ratios[0], rel=0.01)


@pytest.mark.parametrize("few", [(), (0,), (0, 2), (1, 2, 3)])
def test_too_few_depths_say_nothing(few: tuple[int, ...]) -> None:
    assert lines({d: NIGHT[d] for d in few}) == []


def test_depths_without_a_common_prompt_say_so() -> None:
    apart = {d: measurement(d, (sample(f"p{d}"),)) for d in (0, 2, 3)}
    (said,) = lines(apart)
    assert said.startswith(
        "Depth model: nothing can be said: a depth model takes the plain server, a depth and a prompt"
    )


def test_whatever_was_measured_a_summary_does_not_crash() -> None:
    rng = random.Random(7)
    for _ in range(200):
        depths = [0, *rng.sample([1, 2, 3, 5, 10], k=rng.randint(2, 5))]
        assert lines({d: strange(d, rng) for d in depths})


def strange(depth: int, rng: random.Random) -> Measurement:
    """One to four completions that nothing but their types holds together."""
    samples = []
    for n in range(rng.randint(1, 4)):
        tokens = rng.choice([2, 3, 33, 1000])
        verifies = tokens - 1 if depth == 0 else rng.randint(1, tokens - 1)
        one = sample(f"p{n % 2}", tokens=tokens, verifies=verifies, decode_s=10 ** rng.uniform(-6, 4))
        histogram = tuple(rng.randint(0, 9) for _ in range(depth + 1)) if depth and rng.random() < 0.5 else None
        samples.append(replace(one, accepted_histogram=histogram))
    return measurement(depth, tuple(samples))
