"""What --perf-preflight says of options that other servers, a reference or an earlier run have to do with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures import announcing, references
from fixtures.analysis.reference import Accepted, of_sweep, to_json
from fixtures.choosing import NotReady
from fixtures.rehearsal import Unasked as Options
from tests.kit.answers import as_json
from tests.kit.builders import measurement
from tests.kit.scripted_server import serving

PLAIN = {
    "version": "0.5.23",
    "speculative_algorithm": None,
    "max_running_requests": 4,
    "disable_overlap_schedule": True,
}
SPECULATIVE = {
    **PLAIN,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 2,
    "speculative_num_draft_tokens": 3,
    "speculative_eagle_topk": 1,
}


def said(*, comparison: str | None = None, **options: Any) -> tuple[bool, dict[str, str]]:
    """Whether a run could begin; and by what was looked at, the line about it."""
    ready, lines = announcing.report(Options(**options), comparison=comparison)
    return ready, {line.partition(":")[0].split(maxsplit=1)[-1]: line for line in lines if ":" in line}


def test_servers_of_somebody_elses_are_asked_what_they_run() -> None:
    with serving(lambda _: as_json(PLAIN)) as plain, serving(lambda _: as_json(SPECULATIVE)) as speculative:
        ready, lines = said(perf_server=[f"0={plain.url}", f"2={speculative.url}"])
        assert ready
        swapped, wrong = said(perf_server=[f"0={plain.url}", f"3={speculative.url}"])
    assert lines["server 0"].endswith("SGLang 0.5.23, runs what was asked")
    assert lines["server 2"].startswith("fine")
    assert "lease" not in lines
    assert "interpreter" not in lines
    assert swapped
    assert wrong["server 3"].startswith("warning")
    assert "speculative_num_draft_tokens = 4 was asked for at 3 steps" in wrong["server 3"]


def test_servers_that_do_not_answer_are_no_start() -> None:
    ready, lines = said(perf_server=["0=http://127.0.0.1:9", "2=http://127.0.0.1:9"])
    assert not ready
    assert lines["server 2"].startswith("refused")
    assert "doesn't answer" in lines["server 2"]


def test_the_server_without_nccl_settings_is_in_the_plan_unless_a_drill_leaves_it_out() -> None:
    planned = "the fastest depth: once more without the NCCL settings, which isn't in the time below"
    _, lines = announcing.report(Options(perf_profile="kimi-k2.5-int4"), comparison=None)
    assert lines.index(planned) == len(lines) - 2
    _, drilled = announcing.report(
        Options(perf_profile="kimi-k2.5-int4", perf_drill="slow-verify=15%"), comparison=None
    )
    assert planned not in drilled


def test_an_address_with_a_secret_is_refused_without_it() -> None:
    with pytest.raises(NotReady) as refused:
        announcing.report(Options(perf_server=["0=http://me:secret@127.0.0.1:1"]), comparison=None)
    assert "secret" not in str(refused.value).replace("may be secrets", "")


def test_an_acceptance_says_what_it_would_write_or_why_it_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "folder_for", lambda _: tmp_path)
    assert "reference" not in said()[1]
    # The CPU's default looks once.
    ready, lines = said(perf_accept="first night")
    assert not ready
    assert "--perf-accept: a reference takes 2 passes" in lines["reference"]
    ada = Accepted("ada", "2026-11-02T03:00:00+00:00", "first night")
    (tmp_path / "cpu-tiny.json").write_text(to_json(of_sweep({0: measurement(0)}, ada)))
    assert said()[1]["reference"].endswith("cpu-tiny.json, of 2026-11-02 (ada: first night)")
    (tmp_path / "cpu-tiny.json").write_text("{}")
    ready, lines = said()
    assert not ready
    assert "restore it from version control" in lines["reference"]


def test_an_acceptance_into_a_folder_that_takes_no_file_is_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "folder_for", lambda _: Path("/proc/self/references"))
    assert "/proc/self/references/cpu-tiny.json can't be written (" in said(perf_accept="why")[1]["reference"]


def test_a_comparison_that_can_not_be_made_is_no_start() -> None:
    ready, lines = said(comparison="--benchmark-compare: no run to compare with")
    assert not ready
    assert lines["comparison"] == "refused  comparison: --benchmark-compare: no run to compare with"
    assert said(benchmark_compare=True)[1]["comparison"].startswith("fine")


def test_the_engine_alone_with_nothing_to_judge_is_no_start() -> None:
    ready, lines = said(perf_profile="cpu-tiny", perf_engine_only=True, perf_wait=1.0)
    assert not ready
    assert lines["simulation"].startswith("refused")
    assert "nothing would be judged" in lines["simulation"]


def test_the_draft_alone_has_no_plain_server_in_its_plan() -> None:
    _, lines = said(perf_profile="cpu-tiny", perf_draft_only=True)
    assert [name for name in lines if name.endswith("depth 1") or name == "1"] != []
    assert not [name for name in lines if name.endswith("depth 0") or name == "0"]
