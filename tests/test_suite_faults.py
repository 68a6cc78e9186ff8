"""Faults, each really provoked: bounded time, a clear message, finished results kept, nothing left on the host."""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.mounts import mounted
from tests.kit.suite import Going, Run, Suite, suite_in
from tests.kit.warm import Warm

pytestmark = pytest.mark.faults

CPU = Path(__file__).resolve().parent / "recordings" / "cpu-sglang-0.5.23"
FOREVER = [["wait_for", "never"]]
"""A stand-in waits for a file that nobody makes."""


# --- servers that die, one depth each; the last one is well ---

DEADLY: Mapping[str, Mapping[str, Any]] = {
    "d1": {"booting": [["print", "torch.OutOfMemoryError: \x1b[31mCUDA out of memory.\x1b[0m\x07"], ["kill_self"]]},
    "d2": {"streaming": [["kill_self"]]},
    "d3": {"streaming": [["kill_scheduler"], ["wait_for", "never"]]},
    "d5": {"asked": {"/server_info": [["kill_self"]]}},
}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Run:
    with suite_in(tmp_path_factory.mktemp("deaths"), warm) as suite:
        suite.profile()
        suite.faults(**DEADLY)
        run = suite.run("-k", "eagle3")
        assert suite.finished() == [0, 10]
    return run


def test_a_dead_server_takes_no_other_depth_with_it_and_leaves_nothing(deaths: Run) -> None:
    assert deaths.status == 1
    assert deaths.booted == [0, 1, 2, 3, 5, 10]
    assert deaths.left == []
    assert not [name for name in deaths.failed() if "steps10" in name]
    assert deaths.lines("depth 10: depth-10.json")


def test_no_floor_of_a_depth_that_was_to_be_measured_and_was_not_is_passed_over(deaths: Run) -> None:
    judged = {"accept_length_holds_its_floor", "throughput_holds_its_floor", "cycle_costs_no_more_than_its_ceiling"}
    assert {f"{name}[steps{depth:02d}]" for name in judged for depth in (1, 2, 3, 5)} <= deaths.failed()


@pytest.mark.parametrize(
    ("depth", "told"),
    [
        pytest.param("1 step", "The server died before it was ready: killed by SIGKILL", id="while-booting"),
        pytest.param("2 steps", "The server died: killed by SIGKILL", id="while-streaming"),
        pytest.param("3 steps", "The server died: its process sglang::schedul", id="its-scheduler-alone"),
        pytest.param("5 steps", "The server died: killed by SIGKILL", id="while-idle"),
    ],
)
def test_a_death_is_told_in_full_once_with_the_cause_and_the_log(deaths: Run, depth: str, told: str) -> None:
    assert len(deaths.lines(f"{depth} gave no measurement. {told}")) >= 1, deaths.output
    number = depth.split(maxsplit=1)[0]
    assert deaths.lines("Whole log: ", f"depth-{number}.log")
    assert deaths.lines(f"depth {number}: no measurement; see depth-{number}.log")


def test_a_death_is_told_again_in_one_line(deaths: Run) -> None:
    again = deaths.lines("gave no measurement", "(told in full above)")
    assert {line.split(" gave")[0] for line in again} == {"1 step", "2 steps", "3 steps", "5 steps"}
    assert max(map(len, again)) < 120


def test_a_ci_log_names_the_death_at_each_test_in_one_line(suite: Suite) -> None:
    """Where CI is set, pytest's summary cuts nothing off."""
    suite.profile(2)
    suite.faults(d2=DEADLY["d1"])
    run = suite.run("-k", "eagle3", CI="true")
    first, *again = run.lines("ERROR perf/")
    assert "killed by SIGKILL, which the suite didn't send" in first
    assert len(again) == 14
    assert all("2 steps gave no measurement. The server died" in line for line in again)
    assert all(line.endswith(" (told in full above)") for line in again)


def test_control_characters_of_a_log_do_not_reach_the_terminal(deaths: Run) -> None:
    assert deaths.lines("CUDA out of memory.")
    assert not [c for c in deaths.output if not (c.isprintable() or c == "\n")]


# --- boots that come to nothing ---


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param({"booting": FOREVER}, "max_total_num_tokens=8192", id="it-hangs"),
        pytest.param({"silent": True, "booting": FOREVER}, "(the server printed nothing)", id="it-prints-nothing"),
    ],
)
def test_a_boot_that_hangs_ends_at_its_limit(suite: Suite, fault: dict[str, Any], told: str) -> None:
    suite.profile(2, boot_limit_s=2.0)
    suite.faults(d0=fault)
    run = suite.run("-k", "eagle3")
    assert run.status == 1
    assert run.booted == [0], "without a baseline no depth is worth its boot"
    assert run.lines("baseline gave no measurement. The server wasn't ready within 2 s")
    assert run.lines(told)
    assert run.left == []


def test_a_port_lost_between_choice_and_bind_costs_another_try_and_no_night(suite: Suite) -> None:
    suite.profile(2)
    suite.faults(d2={"booting": [["wait_for", "go"]]})
    going = suite.start("-k", "eagle3")
    waiting = going.until("waiting", depth=2)
    with socket.create_server(("127.0.0.1", waiting["port"])):
        suite.go("go")
        going.until("ready", depth=2)
        run = going.wait()
    assert run.status == 0, run.output
    assert run.booted == [0, 2, 2]
    assert [path.name for path in suite.results.glob("*port-taken*")] == ["depth-2.port-taken-1.log"]


# --- a freeze of garbage collectors that came too early ---


def failed_freeze() -> str:
    """What 0.5.23 logs of it, as recorded, in hexadecimal."""
    lines = (CPU / "deaths" / "scheduler_killed.log").read_text().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if "post-warmup freeze_gc failed" in line)
    last = next(n for n, line in enumerate(lines) if line.startswith("requests.exceptions.ConnectionError"))
    return "".join(lines[first : last + 1]).encode().hex()


def test_a_freeze_that_sglang_asked_for_too_early_is_asked_for_again(suite: Suite) -> None:
    suite.profile(1, 2)
    too_early = ["print_bytes", failed_freeze()]
    suite.faults(d1={"booting": [too_early]}, d2={"booting": [too_early], "asked": {"/freeze_gc": [["fail", "no"]]}})
    run = suite.run("-k", "eagle3")
    assert run.status == 0, run.output
    told = [(line["event"], line["depth"]) for line in run.record if line["event"] != "completion"]
    assert told[:2] == [("booting", 0), ("ready", 0)]
    assert [each for each in told if each[0] == "frozen"] == [("frozen", 1)], (
        "the plain server's log says nothing of it"
    )
    events = [line["event"] for line in run.record if line["depth"] == 1]
    assert events.index("frozen") < events.index("completion")
    unfrozen = "the server's garbage collectors aren't frozen"
    assert [bool([n for n in suite.measured(d)["notes"] if unfrozen in n]) for d in (0, 1, 2)] == [False, False, True]


# --- servers that won't go ---


def test_a_server_that_ignores_sigterm_is_killed_at_its_limit(suite: Suite) -> None:
    suite.profile(2, stop_limit_s=1.0)
    suite.faults(d2={"booting": [["ignore_sigterm"]]})
    run = suite.run("-k", "eagle3")
    assert run.status == 0, run.output
    assert run.lines("2 steps: after ", "the server was killed, since it didn't end when it was told to")
    assert run.left == []


def test_a_grandchild_in_a_session_of_its_own_is_ended_too(suite: Suite) -> None:
    suite.profile(2)
    suite.faults(d2={"booting": [["grandchild"], ["orphan"]]})
    run = suite.run("-k", "eagle3")
    assert run.status == 0, run.output
    log = (suite.results / "depth-2.log").read_text()
    assert "grandchild " in log
    assert "orphan " in log
    assert run.lines("2 steps: after ", "processes that had outlived their server were ended")
    assert run.left == []


# --- interrupts ---

MOMENTS: Mapping[str, Mapping[str, Any]] = {
    "boot": {"booting": FOREVER},
    "stream": {"streaming": FOREVER},
    "stop": {"stopping": FOREVER},
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("boot", signal.SIGINT, id="ctrl-c-during-a-boot"),
        pytest.param("stream", signal.SIGINT, id="ctrl-c-during-a-stream"),
        pytest.param("stop", signal.SIGINT, id="ctrl-c-during-a-stop"),
        pytest.param("boot", signal.SIGTERM, id="sigterm-during-a-boot"),
        pytest.param("stream", signal.SIGTERM, id="sigterm-during-a-stream"),
        pytest.param("stream", signal.SIGHUP, id="sighup-during-a-stream"),
    ],
)
def test_an_interrupt_stops_cleanly_and_shows_what_is_finished(
    suite: Suite, moment: str, number: signal.Signals
) -> None:
    suite.profile(1, 2)
    suite.faults(d2=MOMENTS[moment])
    going = suite.start("-k", "eagle3")
    going.until("waiting", depth=2)
    going.signal(number)
    run = going.wait()
    assert run.status == pytest.ExitCode.INTERRUPTED, run.output
    assert run.left == []
    assert suite.finished() == ([0, 1, 2] if moment == "stop" else [0, 1])
    for depth in suite.finished():
        assert run.lines(f"depth {depth}: depth-{depth}.json"), run.output
    assert run.lines(f"Interrupted. To go on from here: --perf-resume {suite.results}")


def test_a_second_ctrl_c_kills_a_server_that_takes_its_time(suite: Suite) -> None:
    suite.profile(2, stop_limit_s=600.0)
    suite.faults(d2={"streaming": [["wait_for", "go"]], "stopping": FOREVER})
    going = suite.start("-k", "eagle3")
    going.until("waiting", name="go")
    going.signal(signal.SIGINT)
    going.until("stopping", depth=2)
    going.signal(signal.SIGINT)
    run = going.wait()
    assert run.status == pytest.ExitCode.INTERRUPTED, run.output
    assert run.left == []


# --- runs that were killed, and hosts that are in use ---


def test_a_run_killed_in_the_middle_is_cleaned_up_by_the_next_one(suite: Suite) -> None:
    suite.profile(2)
    suite.faults(d2={"streaming": FOREVER})
    going = suite.start("-k", "eagle3")
    going.until("waiting", depth=2)
    going.signal(signal.SIGKILL)
    killed = going.wait()
    assert killed.status == -signal.SIGKILL
    assert len([line for line in killed.left if line.startswith("process")]) == 2, "leader and scheduler"
    suite.faults()
    run = suite.run("-k", "eagle3")
    assert run.status == 0, run.output
    assert run.lines(f"a server was left by a run that is gone (pid {killed.pid}", "ended pid ", "sglang::schedul")
    assert not run.lines("waiting for cpu"), "a dead run's lease is nobody's"
    assert run.left == []


def test_a_lease_held_by_another_run_is_waited_for_and_told(suite: Suite) -> None:
    suite.profile(2)
    suite.faults(d0={"streaming": [["wait_for", "go"]]})
    first = suite.start("-k", "eagle3")
    first.until("waiting", depth=0)
    impatient = suite.run("-k", "eagle3", "--perf-wait=0.5", f"--perf-results={suite.folder}/second")
    assert impatient.status == 1
    assert impatient.booted == []
    assert impatient.lines(f"waiting for cpu, held by pid {first.pid} (")
    assert impatient.lines("cpu was not free within", f"it is held by pid {first.pid} (")
    patient = suite.start("-k", "eagle3", f"--perf-results={suite.folder}/third")
    patient.says(f"waiting for cpu, held by pid {first.pid} (")
    suite.go("go")
    one, other = first.wait(), patient.wait()
    assert (one.status, other.status) == (0, 0), other.output
    assert other.left == []


@pytest.mark.parametrize("option", ["--perf-results", "--perf-resume"])
def test_a_folder_that_a_live_sweep_measures_into_is_not_touched(suite: Suite, option: str) -> None:
    suite.profile(2)
    suite.faults(d2={"streaming": [["wait_for", "go"]]})
    first = suite.start("-k", "eagle3")
    first.until("waiting", depth=2)
    before = sorted(path.name for path in suite.results.iterdir())
    second = suite.run("-k", "eagle3", f"{option}={suite.results}")
    assert second.status == pytest.ExitCode.USAGE_ERROR
    assert second.lines(f"{option} {suite.results}: another session is measuring into it")
    assert second.booted == []
    assert sorted(path.name for path in suite.results.iterdir()) == before
    suite.go("go")
    assert first.wait().status == 0


# --- disks and logs ---


def test_a_full_disk_is_told_and_keeps_what_is_finished(suite: Suite) -> None:
    suite.profile(1, 2)
    suite.faults(d1={"booting": [["flood", 200]]})
    with mounted(suite.folder / "small", "size=130m") as disk:
        run = suite.run("-k", "eagle3", f"--perf-results={disk}/night")
        assert run.status == 1
        assert (disk / "night" / "depth-0.json").stat().st_size > 0
        assert not (disk / "night" / "depth-1.json").exists()
    assert run.lines("1 step gave no measurement.", "depth-1.json can't be written: No space left on device")
    assert run.lines("2 steps gave no measurement.", "takes no other measurement: No space left on device")
    assert run.booted == [0, 1], "a boot whose measurement could not be kept is spared"
    assert run.left == []


def test_a_log_of_200_mb_of_garbage_disturbs_nothing(suite: Suite) -> None:
    suite.profile(2)
    nasty = b"\xff\xfe\x00\x1b[2J {not a decode batch} \xc3(\n" * 100
    suite.faults(d2={"booting": [["print_bytes", nasty.hex()], ["flood", 200], ["print_bytes", nasty.hex()]]})
    run = suite.run("-k", "eagle3")
    assert run.status == 0, run.output
    assert (suite.results / "depth-2.log").stat().st_size > 200_000_000
    assert run.left == []


# --- completions that don't come ---


def test_completions_refused_by_the_server_are_no_measurement_and_their_text_has_no_key(suite: Suite) -> None:
    suite.profile(1, 2)
    suite.faults(d1={"status": 503})
    run = suite.run("-k", "eagle3")
    assert suite.finished() == [0, 2]
    assert run.lines("1 step gave no measurement.", "HTTP 503")
    assert run.left == []
    keys = [line["key"] for line in run.record if line["event"] == "booting"]
    assert not [key for key in keys if key in run.output]


def test_a_stream_that_stalls_is_left_at_its_limit(suite: Suite) -> None:
    suite.profile(2, changed=lambda text: text.replace("token_limit_s = 10.0", "token_limit_s = 3.0"))
    suite.faults(d2={"streaming": FOREVER})
    run = suite.run("-k", "eagle3")
    assert suite.finished() == [0]
    assert run.lines("2 steps gave no measurement.", "stopped waiting after 2 chunks")
    assert run.left == []


# --- pytest that ends otherwise than planned ---


def test_a_timeout_while_completions_stream_fails_the_test_that_ran_into_it(suite: Suite) -> None:
    suite.profile(2)
    suite.faults(d2={"streaming": FOREVER})
    run = suite.run("-k", "eagle3 and steps02 and oracle", "--timeout=6", "--timeout-method=signal")
    assert run.failed() == {"verify_counts_equal_the_oracles[steps02]"}
    assert run.lines("2 steps gave no measurement. Timeout (>6.0s) from pytest-timeout.")
    assert not run.lines("Exception in callback")
    assert not run.lines("stopped waiting")
    assert suite.finished() == [0]
    assert run.left == []


def test_stopping_at_the_first_failure_leaves_nothing(suite: Suite) -> None:
    suite.profile(1, 2)
    suite.faults(d1={"miscounted": 1})
    run = suite.run("-k", "eagle3", "-x")
    assert run.status == 1
    assert run.booted == [0, 1]
    assert run.lines("depth 1: depth-1.json")
    assert run.left == []


BREAKS = """
def pytest_runtest_logreport(report):
    if report.when == "call":
        raise RuntimeError("a plugin breaks")
"""


def test_an_internal_error_of_pytest_leaves_nothing(suite: Suite) -> None:
    suite.profile(1, 2)
    (suite.folder / "breaks.py").write_text(BREAKS)
    run = suite.run("-k", "eagle3", "-p", "breaks", PYTHONPATH=str(suite.folder))
    assert run.status == pytest.ExitCode.INTERNAL_ERROR
    assert run.lines("INTERNALERROR> RuntimeError: a plugin breaks")
    assert run.booted == [0, 1]
    assert suite.finished() == [0, 1]
    assert run.left == []


def test_a_failing_collection_boots_nothing(suite: Suite) -> None:
    suite.profile()
    broken = suite.folder / "test_broken.py"
    broken.write_text("import there_is_no_such_module\n")
    run = suite.run(paths=("perf/", str(broken)))
    assert run.status == pytest.ExitCode.INTERRUPTED
    assert run.booted == []
    assert run.left == []


# --- going on after an interruption ---


def interrupted(suite: Suite) -> Run:
    """A sweep of three depths that was ended in its second one."""
    suite.profile(1, 2, 3)
    suite.faults(d2={"booting": FOREVER})
    going: Going = suite.start("-k", "eagle3")
    going.until("waiting", depth=2)
    going.signal(signal.SIGINT)
    suite.faults()
    return going.wait()


def test_a_resumed_sweep_takes_the_finished_depths_and_boots_the_rest(suite: Suite) -> None:
    assert interrupted(suite).booted == [0, 1, 2]
    run = suite.run("-k", "eagle3", f"--perf-resume={suite.results}")
    assert run.status == 0, run.output
    assert run.booted == [2, 3]
    assert suite.finished() == [0, 1, 2, 3]
    assert len([line for line in run.lines("holds") if line.split()[0] in "123"]) == 3
    aside = {path.name for path in suite.results.glob("before-*/*")}
    assert aside == {"depth-2.log", "depth-2.inside"}, "what the interrupted boot wrote"
    elsewhere = suite.folder / "elsewhere"
    run = suite.run("-k", "eagle3", f"--perf-resume={suite.results}", f"--perf-results={elsewhere}")
    assert run.booted == []
    assert run.lines(f"  depth 3: depth-3.json, {suite.results}/depth-3.log"), "the log stays where it was written"


def test_a_sweep_of_another_profile_is_not_resumed(suite: Suite) -> None:
    interrupted(suite)
    other = suite.profile(1, 2, 3, environment={"OTHER": "1"}, name="other")
    run = suite.run("-k", "eagle3", f"--perf-resume={suite.results}", f"--perf-profile={other}")
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.lines("what is there isn't what this session would measure")
    assert run.lines("depth 0: profile: 'small' → 'other'")
    assert run.booted == []
