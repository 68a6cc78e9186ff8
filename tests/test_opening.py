"""What is settled before anything boots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures import choosing, opening, results
from fixtures.analysis.checks import Check
from fixtures.checkout import RESULTS, ROOT
from fixtures.engine import command
from fixtures.rehearsal import Unasked as Options
from fixtures.resume import without_port
from tests.kit.builders import measurement


def test_a_resumed_sweep_expects_the_launch_that_a_profile_with_nccl_settings_gets() -> None:
    day = opening.open_day(Options(perf_profile="kimi-k2.5-int4", perf_wait=1.0), boots=False)
    booted = command.launch(day.profile, 2, port=30000, api_key="0" * 48, root=ROOT, inside=Path("depth-2.inside"))
    asked = day.asked(2, None)
    assert without_port(asked.arguments) == without_port(booted.public_argv)
    assert dict(asked.environment) == booted.public_environment


def test_addresses_and_depths_contradict_each_other() -> None:
    options = Options(perf_server=["0=http://127.0.0.1:1", "2=http://127.0.0.1:2"], perf_depths="2", perf_wait=1.0)
    with pytest.raises(opening.NotReady, match="--perf-server says which depths there are"):
        opening.open_day(options, boots=False)


def test_an_empty_list_of_depths_is_refused_rather_than_taken_for_all() -> None:
    with pytest.raises(opening.NotReady, match="--perf-depths"):
        opening.open_day(Options(perf_depths="", perf_wait=1.0), boots=False)


def test_going_on_with_some_depths_leaves_the_finished_others_where_they_are(tmp_path: Path) -> None:
    for depth in (0, 1, 3):
        results.write(tmp_path, measurement(depth))
    day = opening.open_day(Options(perf_depths="3", perf_wait=1.0), boots=False)
    day.asked = lambda *_: None  # type: ignore[method-assign,assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "obstacles", lambda *_: ())
        folder, found = opening.resumed(Options(perf_resume=tmp_path), day, opening.preflight.Interpreter("python"))
    assert folder == tmp_path
    assert [m.depth for m in found] == [0, 3]
    assert (tmp_path / "depth-1.json").exists()


@pytest.mark.parametrize(("temperature", "passes"), [(0.0, 1), (0.7, 3)])
def test_the_draft_alone_takes_one_pass_unless_its_counts_differ_from_pass_to_pass(
    temperature: float, passes: int
) -> None:
    options = Options(perf_profile="kimi-k2.5-int4", perf_draft_only=True, perf_wait=1.0)
    day = opening.open_day(options, boots=False)
    changes = {"temperature": temperature, "passes": 3, "oracle": None}
    day.profile = day.profile.model_copy(update={"workload": day.profile.workload.model_copy(update=changes)})
    assert day.passes == passes


def test_there_is_no_baseline_of_the_draft_alone_to_resume_from(tmp_path: Path) -> None:
    day = opening.open_day(Options(perf_draft_only=True, perf_wait=1.0), boots=False)
    with pytest.raises(opening.NotReady, match="--perf-draft-only has none; sweep anew"):
        opening.resumed(Options(perf_resume=tmp_path), day, opening.preflight.Interpreter("python"))


def test_what_is_no_folder_is_nothing_to_resume_and_is_told_as_what_it_is(tmp_path: Path) -> None:
    day = opening.open_day(Options(perf_wait=1.0), boots=False)
    (tmp_path / "file").touch()
    for name, what in (("gone", "there is no such folder"), ("file", "is a file")):
        with pytest.raises(opening.NotReady, match=f"--perf-resume .*/{name}: {what}; give the folder of the sweep"):
            opening.resumed(Options(perf_resume=tmp_path / name), day, opening.preflight.Interpreter("python"))


def test_how_the_host_felt_while_the_plain_server_was_alone_bars_no_sweep_that_alternated() -> None:
    day = opening.open_day(Options(perf_wait=1.0), boots=False)
    noisy = replace(measurement(0), scheduler={"wall": 100.0, "cpu": 80.0, "waited": 15.0})
    for alternated in ({}, {2: noisy}):
        day.sweep = SimpleNamespace(measured={0: noisy}, alternated=alternated, before={}, again=None)  # type: ignore[assignment]
        barred = {finding.check for finding in day.findings_accepted(0)}
        assert (Check.NOISY_HOST in barred) is (not alternated)
        assert Check.NOISY_HOST in {finding.check for finding in day.findings(0)}


def test_nights_are_remembered_beside_the_sweeps_however_the_folder_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    day = opening.open_day(Options(perf_wait=1.0), boots=False)
    monkeypatch.chdir(ROOT)
    assert opening.nights_file(Path("results/20261129T000000-x"), day.profile).parent == RESULTS


def test_what_lists_tests_alone_tells_of_prompts_and_oracle_at_once_too(tmp_path: Path) -> None:
    day = opening.open_day(Options(perf_wait=1.0), boots=False)
    absent = {"prompts": tmp_path / "no.jsonl", "oracle": tmp_path / "no.json"}
    profile = day.profile.model_copy(update={"workload": day.profile.workload.model_copy(update=absent)})
    with pytest.raises(opening.NotReady) as refused:
        choosing.data(profile)
    told = [
        f'{profile.file}: workload.{key} = "{file}": there is no such file; correct it' for key, file in absent.items()
    ]
    assert str(refused.value).splitlines() == told
