"""The nightly workflow, step by step on this machine: nights in a row, one that fails, one that is cancelled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("matplotlib")

from tests.kit import markdown, workflow
from tests.kit.scratch import ROOT, plain
from tests.kit.suite import PATIENCE_S, Suite, suite_in
from tests.kit.warm import Warm
from tests.kit.workflow import Done, Night, Runner

NIGHTLY = ROOT / ".github/workflows/nightly.yml"
SWEEP = "Sweep and report"


def told() -> dict[str, Any]:
    return workflow.read(NIGHTLY)


# --- the file


def test_no_expression_stands_in_a_shell_script() -> None:
    blocks = [step["run"] for step in told()["jobs"]["night"]["steps"] if "run" in step]
    assert len(blocks) >= 5
    assert not [block for block in blocks if "${{" in block]


def test_scripts_fail_where_any_part_of_a_pipe_does() -> None:
    assert told()["defaults"]["run"]["shell"] == "bash"


def test_one_night_at_a_time_on_a_host_and_none_is_cut_short_by_the_next() -> None:
    job = told()["jobs"]["night"]
    assert job["concurrency"] == {"group": "eagle3-perf-${{ matrix.host }}", "cancel-in-progress": False}
    assert job["runs-on"] == ["self-hosted", "${{ matrix.host }}"]


def test_the_sweep_times_out_before_the_job_so_that_what_follows_it_is_done() -> None:
    job = told()["jobs"]["night"]
    (sweep,) = (step for step in job["steps"] if step.get("name") == SWEEP)
    assert sweep["timeout-minutes"] < job["timeout-minutes"]


def test_actions_are_pinned_by_major_version_and_nothing_may_be_written() -> None:
    used = {step["uses"] for step in told()["jobs"]["night"]["steps"] if "uses" in step}
    assert all(action.startswith("actions/") and action.partition("@v")[2].isdecimal() for action in used)
    assert told()["permissions"] == {"contents": "read"}


def test_nights_are_found_and_kept_at_the_same_places() -> None:
    steps = told()["jobs"]["night"]["steps"]
    paths = {step["with"]["path"] for step in steps if step.get("uses", "").startswith("actions/cache/")}
    assert len(paths) == 1


@pytest.mark.parametrize(
    ("event", "variables", "runs"),
    [
        ("schedule", {}, False),
        ("schedule", {"EAGLE3_PROFILE": "mine"}, True),
        ("workflow_dispatch", {}, True),
    ],
)
def test_a_repository_without_a_profile_has_no_nights(event: str, variables: dict[str, str], *, runs: bool) -> None:
    contexts = {"github": {"event_name": event}, "vars": variables}
    assert bool(workflow.value(told()["jobs"]["night"]["if"], contexts)) is runs


def test_hosts_that_share_depths_wait_keep_and_upload_apart() -> None:
    """The rows that docs/nightly.md gives, in place of the workflow's own."""
    (text,) = markdown.texts(ROOT / "docs/nightly.md", "yaml")
    rows = yaml.safe_load(text)["matrix"]["include"]
    job = told()["jobs"]["night"]
    assert [set(row) for row in rows] == [set(job["strategy"]["matrix"]["include"][0])] * 2
    named = [job["concurrency"]["group"], job["runs-on"][1]]
    named += [step["with"][key] for step in job["steps"] for key in ("key", "name") if key in step.get("with", {})]
    assert len(named) == 5
    github = {"run_id": "1", "run_attempt": "1"}
    for name in named:
        assert len({workflow.evaluated(name, {"matrix": row, "github": github}) for row in rows}) == 2


# --- nights on the stand-in


@dataclass
class Host:
    """A self-hosted runner on a host where SGLang is the stand-in."""

    suite: Suite
    runner: Runner

    def night(self, **options: Any) -> Night:
        """A night; its profile is that of the repository's variable."""
        variables = {
            "EAGLE3_PROFILE": str(self.suite.folder / "small.toml"),
            "EAGLE3_PYTHON": str(self.python),
            # Far from 1 and from 20: other work shares the machine.
            "EAGLE3_LIMIT": "median:300%",
        }
        return self.runner.night(**{"vars": variables, **options})

    @property
    def python(self) -> Path:
        return self.suite.folder / "python3"

    @property
    def kept(self) -> int:
        """Runs that the next night may be compared with."""
        last = max((self.runner.folder / "cache").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return len(list(last.glob(".benchmarks/small/*/*.json")))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[Host]:
    with suite_in(tmp_path_factory.mktemp("host"), warm) as suite:
        suite.profile(1)
        workflow.interpreter(suite.folder, sys.executable)
        environment = {**plain(), "EAGLE3_PERF_LOCKS": str(suite.locks), "HOME": str(suite.folder)}
        yield Host(suite, Runner(suite.folder / "runner", NIGHTLY, "night", environment))


@dataclass(frozen=True)
class Nights:
    """The first night of a host, and one on which depth 1 is twenty times slower."""

    first: Night
    slow: Night


@dataclass(frozen=True)
class LaterNights:
    """A third night, which is well, and a fourth, which is cancelled while depth 1 boots."""

    third: Night
    cancelled: Night


@pytest.fixture(scope="module")
def nights(host: Host) -> Nights:
    first = host.night()
    host.suite.faults(d1={"cycle_factor": 20})
    return Nights(first, host.night())


@pytest.fixture(scope="module")
def later(host: Host, nights: Nights) -> LaterNights:  # noqa: ARG001 - after these
    host.suite.faults()
    third = host.night()
    host.suite.faults(d1={"booting": [["wait_for", "nobody"]]})
    return LaterNights(third, host.night(cancel=(SWEEP, lambda process: cancel(process, host.suite))))


def cancel(process: subprocess.Popen[str], suite: Suite) -> None:
    """As a runner does: SIGINT to the step's first process."""
    deadline = time.monotonic() + PATIENCE_S
    while not [line for line in suite.record() if line["event"] == "waiting"]:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def failed(night: Night) -> dict[str, Done]:
    return {name: step for name, step in night.steps.items() if step.status}


def stored(night: Night) -> list[str]:
    return sorted(path.name[:4] for path in (night.checkout / ".benchmarks" / "small").glob("*/*.json"))


def held(night: Night) -> str:
    """The day on which throughput at depth 1 last held, by what the night leaves to the next."""
    judged = json.loads((night.checkout / "results/small.nights.json").read_text())
    return str(judged["throughput at 1"]["held"])


@pytest.mark.faults
def test_the_first_night_is_green_with_nothing_to_compare(nights: Nights) -> None:
    assert failed(nights.first) == {}
    assert "ready" in nights.first.steps["Preflight"].output.splitlines()
    assert "Comparing against" not in nights.first.steps[SWEEP].output
    assert stored(nights.first) == ["0001"]
    assert held(nights.first)


@pytest.mark.faults
def test_the_suite_is_installed_with_what_its_report_takes(nights: Nights) -> None:
    assert (nights.first.checkout / ".venv/asked.txt").read_text() == "install --quiet -e .[report]\n"


@pytest.mark.faults
def test_a_slow_night_fails_by_its_comparison_and_no_later_one_is_compared_with_it(nights: Nights) -> None:
    assert list(failed(nights.slow)) == [SWEEP]
    sweep = nights.slow.steps[SWEEP]
    assert sweep.status == pytest.ExitCode.TESTS_FAILED
    assert "Comparing against benchmarks from" in sweep.output
    assert "past --benchmark-compare-fail, compared with" in sweep.output
    assert stored(nights.slow) == ["0001"]


@pytest.mark.faults
def test_a_night_that_fails_leaves_its_figures_page_and_summary_all_the_same(nights: Nights) -> None:
    artifact, summary = nights.slow.artifact, nights.slow.summary
    assert summary.startswith("## EAGLE-3 on SGLang: small")
    assert summary.count("Falls short") == 1
    files = {"benchmark.json", "junit.xml", "preflight.txt", "sweep.txt"}
    assert {path.name for path in artifact.iterdir()} == {"report", "results", *files}
    assert list(artifact.glob("results/*-small/depth-1.json"))
    assert list(ET.parse(artifact / "junit.xml").iter("failure"))
    assert (artifact / "report/index.html").stat().st_size > 10_000
    assert held(nights.slow) == held(nights.first)


@pytest.mark.faults
def test_nights_leave_nothing_on_the_host(nights: Nights, host: Host) -> None:
    said = [night.steps["Nothing is left on the host"].output for night in (nights.first, nights.slow)]
    assert said == ["nothing of a gone run is left\n"] * 2
    assert host.suite.left(host.suite.record()) == []


@pytest.mark.faults
@pytest.mark.slow
def test_a_night_after_a_slow_one_is_compared_with_the_last_green_one_and_has_a_trend(later: LaterNights) -> None:
    assert failed(later.third) == {}
    assert "0001_" in later.third.steps[SWEEP].output.partition("Comparing against benchmarks from")[2].splitlines()[0]
    assert "Up to 2 comparable nights" in (later.third.artifact / "report/index.html").read_text()
    assert stored(later.third) == ["0001", "0002"]


@pytest.mark.faults
@pytest.mark.slow
def test_a_cancel_reaches_the_sweep_and_leaves_the_host_clean(later: LaterNights, host: Host) -> None:
    assert later.cancelled.steps[SWEEP].status == pytest.ExitCode.INTERRUPTED
    assert "Interrupted. To go on from here: --perf-resume" in later.cancelled.steps[SWEEP].output
    assert later.cancelled.steps["Nothing is left on the host"].output == "nothing of a gone run is left\n"
    assert host.suite.left(host.suite.record()) == []
    assert list(later.cancelled.artifact.glob("results/*-small/depth-0.json"))
    assert stored(later.cancelled) == ["0001", "0002"]


# --- nights that come to nothing


@pytest.mark.faults
def test_a_night_whose_profile_nobody_named_fails_and_says_so(host: Host) -> None:
    night = host.runner.night(vars={"EAGLE3_PYTHON": str(host.python)})
    assert list(failed(night)) == ["Preflight"]
    assert "name a profile in this run or in the variable EAGLE3_PROFILE" in night.steps["Preflight"].output
    assert SWEEP not in night.steps
    assert night.summary.startswith("## EAGLE-3 on SGLang: no report")


@pytest.mark.faults
@pytest.mark.slow
def test_what_people_type_is_no_shell_text_and_no_option(host: Host) -> None:
    night = host.night(inputs={"profile": '--co"; touch "$HOME/ran"; "', "depths": "$(touch $HOME/ran)"})
    assert list(failed(night)) == ["Preflight"]
    assert not (host.suite.folder / "ran").exists()
    assert "no report" in night.summary


@pytest.mark.faults
@pytest.mark.slow
def test_a_part_of_a_night_is_compared_and_is_no_base(host: Host, nights: Nights) -> None:  # noqa: ARG001 - after these
    host.suite.faults()
    before = host.kept
    night = host.night(inputs={"depths": "1", "compare": True})
    assert failed(night) == {}
    assert "Comparing against" in night.steps[SWEEP].output
    assert host.kept == before


@pytest.mark.faults
@pytest.mark.slow
def test_a_night_that_is_not_compared_is_the_new_base(host: Host, nights: Nights) -> None:  # noqa: ARG001 - after these
    host.suite.faults()
    before = host.kept
    night = host.night(inputs={"compare": False})
    assert failed(night) == {}
    assert "Comparing against" not in night.steps[SWEEP].output
    assert host.kept == before + 1


# --- nights on the real engine, and a real environment


@pytest.mark.engine
@pytest.mark.slow
def test_two_nights_of_one_depth_on_the_real_engine(tmp_path: Path) -> None:
    environment = {**plain(), "EAGLE3_PERF_LOCKS": str(tmp_path / "locks")}
    runner = Runner(tmp_path / "runner", NIGHTLY, "night", environment)
    contexts = {
        "vars": {"EAGLE3_PYTHON": str(workflow.interpreter(tmp_path, sys.executable)), "EAGLE3_LIMIT": "median:300%"},
        "matrix": {"host": "here", "depths": "2"},
        "inputs": {"profile": "cpu-tiny"},
    }
    first, second = runner.night(**contexts), runner.night(**contexts)
    assert (failed(first), failed(second)) == ({}, {})
    assert "Comparing against benchmarks from" in second.steps[SWEEP].output
    assert "2.068" in second.summary, "the pair's accept length at 2 steps"


@pytest.mark.slow
def test_the_environment_that_is_installed_runs_the_preflight(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "runner", NIGHTLY, "night", plain())
    night = runner.night(vars={"EAGLE3_PYTHON": sys.executable, "EAGLE3_PROFILE": "kimi-k2.5-int4"})
    assert list(failed(night)) == ["Preflight"], "there are no eight GPUs here"
    assert "not ready: nothing would boot" in night.steps["Preflight"].output
    assert "accelerators" in night.steps["Preflight"].output
