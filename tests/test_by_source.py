"""Acceptance and throughput by where prompts come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.analysis.by_source import by_source
from fixtures.analysis.positions import added, rates
from tests.kit.builders import measurement, sample
from tests.kit.nights import counts, night

MEASURED = night(seed=2).measured


def test_each_source_has_its_own_figures_in_the_order_measured() -> None:
    seen = by_source(MEASURED[2])
    assert [(s.source, s.prompts) for s in seen] == [("kjv", 12), ("pydoc", 12)]
    assert [round(s.accept_length, 3) for s in seen] == [2.082, 2.054]


def test_acceptance_by_position_is_that_of_the_sources_own_verifies() -> None:
    own = [by_depth[2] for p, by_depth in counts("right").items() if p.startswith("pydoc")]
    assert by_source(MEASURED[2])[1].acceptance == pytest.approx(rates(added(own)))


def test_a_ratio_is_paired_with_the_plain_servers_completions_of_the_same_prompts() -> None:
    kjv, pydoc = by_source(MEASURED[2], MEASURED[0])
    assert kjv.ratio
    assert pydoc.ratio
    assert kjv.ratio.centre == pytest.approx(2.082 * 4.6 / 6.15, rel=0.002)
    assert pydoc.ratio.centre == pytest.approx(2.054 * 4.6 / 6.15, rel=0.002)


def test_without_histograms_acceptance_is_not_known() -> None:
    assert by_source(measurement(2))[0].acceptance is None


def test_a_draft_that_loses_on_one_source_shows_it_there() -> None:
    good, bad = replace(sample("a"), source="code"), replace(sample("b", verifies=90), source="chat")
    seen = {s.source: s.accept_length for s in by_source(measurement(2, (good, bad)))}
    assert seen == {"code": 2.0, "chat": pytest.approx(100 / 90)}
