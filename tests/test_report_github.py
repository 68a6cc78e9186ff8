"""What GitHub is told: the summary's Markdown, and workflow commands that nothing in them can break out of."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("matplotlib")

from fixtures.analysis.verdicts import Outcome, Verdict
from fixtures.report import github
from fixtures.report.contents import Report
from tests.kit import reports
from tests.kit.builders import sample


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


def test_the_summary_tells_what_nccl_settings_gain() -> None:
    lines = github.summary(reports.full()).splitlines()
    (first,) = (n for n, line in enumerate(lines) if line.startswith("NCCL settings at 3 steps: "))
    assert lines[first].endswith(r" tok/s (NCCL\_PROTO=LL).")
    assert [line.split(" | ")[0] for line in lines[first + 2 :][:4:2]] == ["| NCCL settings", "| without"]
    assert lines[first + 5].startswith("| with | ")
    assert "-20.0 %" in lines[first + 7]
    assert not [line for line in github.summary(reports.h200()).splitlines() if "NCCL" in line]


def test_markup_of_a_model_is_text_in_the_summary() -> None:
    summary = github.summary(reports.full())
    assert "<" not in summary
    assert "&lt;script&gt;" in summary


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b", r"a \| b"),
        ("`rm` *x*", r"\`rm\` \*x\*"),
        ("two\nlines", "two lines"),
        ("[x](y)", r"\[x\](y)"),
        ("isn't #1 & <b>", r"isn't \#1 &amp; &lt;b&gt;"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    assert github.escaped(text) == shown


def test_a_night_without_measurements_has_a_summary() -> None:
    assert "Nothing was measured." in github.summary(reports.empty())


FILE = "perf/profiles/cpu-tiny.toml"
PLACE = f"file={FILE},line=1"


def night(*several: Verdict, failed: dict[int, str] | None = None, **failures: str) -> Report:
    """A night with these verdicts, and tests that failed at 2 steps with what they said."""
    return replace(reports.empty(), verdicts=several, failed=failed or {}, failures={2: failures} if failures else {})


def test_what_falls_short_is_an_error_what_is_undecided_a_warning_and_what_holds_nothing() -> None:
    told = [*github.commands(night(*map(verdict, Outcome), failed={5: "it died"}), file=FILE)]
    assert told == [
        f"::error {PLACE},title=no measurement of 5 steps::it died",
        f"::error {PLACE},title=throughput at 2 steps%3A falls short::Throughput fell.",
        f"::warning {PLACE},title=throughput at 2 steps%3A undecided::Throughput fell.",
    ]


def test_a_drills_alarm_says_in_its_title_that_it_is_no_night() -> None:
    drill = replace(night(verdict(Outcome.FALLS_SHORT)), mark="a drill, slow-verify=15%")
    (told,) = github.commands(drill, file=FILE)
    assert "title=Not a night%3A a drill%2C slow-verify=15%25. throughput at 2 steps%3A falls short::" in told
    assert "**Not a night: a drill, slow-verify=15%. Falls short" in github.summary(drill)


def test_what_fails_undecided_is_an_error() -> None:
    one = verdict(Outcome.UNDECIDED, "Noise.")
    (told,) = github.commands(night(one, throughput="Noise. The third night in a row."), file=FILE)
    assert told.startswith("::error ")


def test_a_failure_that_is_no_verdicts_is_an_error_of_its_own_and_a_verdicts_is_told_once() -> None:
    one = verdict(Outcome.FALLS_SHORT)
    told = [*github.commands(night(one, throughput="Throughput fell. Since May.", launch="Another depth."), file=FILE)]
    assert told == [
        f"::error {PLACE},title=throughput at 2 steps%3A falls short::Throughput fell.",
        f"::error {PLACE},title=launch at 2 steps failed::Another depth.",
    ]


def test_a_depth_that_was_not_measured_is_told_once() -> None:
    (told,) = github.commands(night(failed={2: "It died."}, launch="It died.", output="It died."), file=FILE)
    assert "no measurement of 2 steps" in told


def test_a_message_cannot_start_a_command_of_its_own() -> None:
    hostile = verdict(Outcome.FALLS_SHORT, "100 %\r\n::error::owned")
    (told,) = github.commands(night(hostile), file="a.toml")
    assert told.endswith("::100 %25%0D%0A::error::owned")
    assert len(told.splitlines()) == 1


def test_the_chart_has_a_bar_and_a_floor_for_each_depth_and_room_above() -> None:
    (chart, _) = github.chart(reports.h200())
    assert chart.splitlines() == [
        "```mermaid",
        "xychart-beta",
        "  x-axis steps [1, 2, 3, 5, 10]",
        '  y-axis "throughput, × plain server" 0 --> 1.87',
        "  bar [1.301, 1.551, 1.669, 1.699, 1.484]",
        "  line [1.230, 1.470, 1.580, 1.610, 1.410]",
        "  line [1, 1, 1, 1, 1]",
        "```",
    ]


def test_a_depth_that_shares_no_prompt_with_the_plain_server_has_no_bar() -> None:
    report = reports.h200()
    apart = replace(report.measured[10], samples=(sample("another"),))
    (chart, _) = github.chart(replace(report, measured={**report.measured, 10: apart}))
    assert "  x-axis steps [1, 2, 3, 5]" in chart.splitlines()
    assert "nan" not in chart


def test_no_chart_without_a_depth_beside_the_plain_server() -> None:
    assert [*github.chart(reports.empty())] == []


def test_the_jobs_summary_links_to_the_runs_artifacts_where_there_is_a_run() -> None:
    run = {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "7"}
    assert "(https://github.example/a/b/actions/runs/7#artifacts)" in github.job_summary(reports.h200(), run)
    assert "artifacts" not in github.job_summary(reports.h200(), {})


def test_words_without_a_measurement_stay_out_of_the_table() -> None:
    report = replace(reports.h200(), measured={})
    assert "371.1" not in github.summary(report)
