"""What GitHub is told: the summary's Markdown, and workflow commands that nothing in them can break out of."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("matplotlib")

from fixtures.analysis.verdicts import Outcome, Verdict
from fixtures.report import github
from tests.kit import reports


def verdict(outcome: Outcome, message: str = "Throughput fell.") -> Verdict:
    return Verdict("throughput", 2, outcome, 1.4, 1.39, 1.41, 1.5, 20, message)


def test_the_summary_has_the_verdict_the_table_and_the_best_depth() -> None:
    lines = github.summary(reports.h200()).splitlines()
    assert lines[2] == "**Holds: 15 verdicts at 1, 2, 3, 5 and 10 steps.**"
    assert "| 5 | 6 | 371.1 | 1.699 | 1.610 | 2.557 | 2.550 | 6.89 | holds |" in lines
    assert "Best: 5 steps, 1.699 × the plain server." in lines


def test_the_summary_tells_what_fell_short_and_why() -> None:
    summary = github.summary(reports.full())
    assert "**Falls short: text at 3 steps; no measurement of 10 steps.**" in summary
    assert "3 steps lost" in summary
    assert "environment.NCCL\\_PROTO" in summary


def test_markup_of_a_model_is_text_in_the_summary() -> None:
    summary = github.summary(reports.full())
    assert "<" not in summary
    assert "&lt;script&gt;" in summary


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a | b", r"a \| b"), ("`rm` *x*", r"\`rm\` \*x\*"), ("two\nlines", "two lines"), ("[x](y)", r"\[x\](y)")],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert github.escaped(text) == shown


def test_a_night_without_measurements_has_a_summary() -> None:
    assert "Nothing was measured." in github.summary(reports.empty())


def test_what_falls_short_is_an_error_what_is_undecided_a_warning_and_what_holds_nothing() -> None:
    several = [verdict(outcome) for outcome in Outcome]
    told = [*github.commands(several, {5: "it died"}, file="perf/profiles/cpu-tiny.toml")]
    place = "file=perf/profiles/cpu-tiny.toml,line=1"
    assert told == [
        f"::error {place},title=no measurement of 5 steps::it died",
        f"::error {place},title=throughput at 2 steps%3A falls short::Throughput fell.",
        f"::warning {place},title=throughput at 2 steps%3A undecided::Throughput fell.",
    ]


def test_a_message_cannot_start_a_command_of_its_own() -> None:
    hostile = verdict(Outcome.FALLS_SHORT, "100 %\r\n::error::owned")
    (told,) = github.commands([hostile], {}, file="a.toml")
    assert told.endswith("::100 %25%0D%0A::error::owned")
    assert len(told.splitlines()) == 1


def test_words_without_a_measurement_stay_out_of_the_table() -> None:
    report = replace(reports.h200(), measured={})
    assert "371.1" not in github.summary(report)
