"""A server's life, with real processes that play scripts of faults."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures import profiles
from fixtures.engine import command, process, process_tree, server_info, server_log
from fixtures.engine.command import Launch
from tests.kit.server_program import FIRED_UP, GOOD, KEY, script_launch

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "recordings"
QUICK = process.Limits(boot_s=20.0, stop_s=5.0)


class Fast:
    """Time that runs twenty times as fast, for processes that really run."""

    factor = 20

    def clock(self) -> float:
        return time.monotonic() * self.factor

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.factor)


class Notes:
    """A ledger that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def intend(self, server: str, log: Path) -> None:
        self.told.append(("intend", server, log))

    def started(self, server: str, pid: int, start_ticks: int, group: int) -> None:
        self.told.append(("started", server, pid, start_ticks, group))

    def ended(self, server: str) -> None:
        self.told.append(("ended", server))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run" / "depth-2.log"


@contextmanager
def booted(script: Any, log: Path, **options: Any) -> Iterator[process.Server]:
    server = process.boot(script_launch(script), log=log, **{"limits": QUICK, **options})
    try:
        yield server
    finally:
        server.stop()


def failure(script: Any, log: Path, **options: Any) -> str:
    """The message of a boot that fails."""
    with pytest.raises(process.BootError) as caught:
        process.boot(script_launch(script), log=log, **{"limits": QUICK, **options})
    return str(caught.value)


def printed_pid(server: process.Server, what: str) -> int:
    match = re.search(rf"{what} (\d+)", server.log_text())
    assert match is not None
    return int(match[1])


def lives(pid: int) -> bool:
    seen = process_tree.look(pid)
    return seen is not None and seen.lives


def eventually(condition: Callable[[], bool], limit_s: float = 5.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def nobody_is_left() -> bool:
    """No process of any scripted server is alive on this machine that this test run started."""
    mark = f"{process_tree.MARK}=".encode()
    return not any(
        seen.lives and any(variable.startswith(mark) for variable in environment(seen.pid))
        for seen in process_tree.look_around().values()
        if os.getpid() in _ancestors(seen)
    )


def environment(pid: int) -> list[bytes]:
    """A process's variables as /proc has them; none of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _ancestors(seen: process_tree.Seen) -> set[int]:
    found: set[int] = set()
    now: process_tree.Seen | None = seen
    while now is not None and now.parent not in found and now.parent > 0:
        found.add(now.parent)
        now = process_tree.look(now.parent)
    return found


# --- boot


def test_a_server_that_answers_is_ready_and_ends_well(log: Path) -> None:
    with booted(GOOD, log) as server:
        assert server.alive()
        server.check_alive()
        assert 0 < server.boot_s < 20
        assert server.url == f"http://127.0.0.1:{server.launch.port}"
        assert server.api_key == KEY
        stopped = server.stop()
    assert (stopped.how, stopped.exit_code) == ("graceful", 0)
    assert not lives(server.pid)
    socket.create_server(("127.0.0.1", server.launch.port)).close()


def test_a_second_stop_gives_the_same_answer(log: Path) -> None:
    with booted(GOOD, log) as server:
        assert server.stop() is server.stop()


def test_a_server_that_dies_at_boot_is_noticed_at_once_with_its_last_words(log: Path) -> None:
    began = time.monotonic()
    told = failure([["print", "Load weight begin."], ["fail", "no such tensor: lm_head"]], log)
    assert time.monotonic() - began < 3
    assert "died before it was ready: RuntimeError: no such tensor: lm_head; exit code 1." in told
    assert str(log) in told
    assert nobody_is_left()


def test_a_server_killed_at_boot_says_by_which_signal(log: Path) -> None:
    assert "killed by SIGKILL, which the suite didn't send" in failure([["kill_self"]], log)


def test_a_server_that_killed_itself_says_over_what_in_the_first_line(log: Path) -> None:
    recording = RECORDINGS / "cpu-sglang-0.5.23" / "deaths" / "draft_cut_off.log"
    first, *rest = failure([["print_file", str(recording)], ["kill_self"]], log).split("\n")
    assert "SafetensorError: Error while deserializing header" in first
    assert first.endswith("; SGLang then ended itself.")
    assert "killed by SIGKILL" not in first
    assert rest[-1] == f"Whole log: {log}"


def test_a_boot_that_hangs_says_in_which_phase_and_since_when(log: Path) -> None:
    script = [["print", "[2026-11-29 15:49:59] Load weight begin. avail mem=139.09 GB"], ["hang"]]
    fast = Fast()
    told = failure(script, log, limits=process.Limits(boot_s=40, stop_s=5), clock=fast.clock, sleep=fast.sleep)
    assert re.search(r"wasn't ready within 40 s: it has been in phase weights \(0 %\) for \d+ s\.", told)
    assert nobody_is_left()


def test_a_boot_that_prints_nothing_says_so(log: Path) -> None:
    fast = Fast()
    told = failure([["hang"]], log, limits=process.Limits(boot_s=20, stop_s=5), clock=fast.clock, sleep=fast.sleep)
    assert "in phase start for" in told
    assert "(the server printed nothing)" in told


def test_readiness_that_flaps_is_not_believed(log: Path) -> None:
    fast = Fast()
    flapping = [200, 503] * 500
    limits = process.Limits(boot_s=25, stop_s=5)
    told = failure([["serve", flapping], ["hang"]], log, limits=limits, clock=fast.clock, sleep=fast.sleep)
    assert "wasn't ready within 25 s" in told


def test_the_line_that_says_ready_is_not_enough_while_health_is_refused(log: Path) -> None:
    limits = process.Limits(boot_s=0.8, stop_s=5)
    told = failure([["serve", [503]], ["print", FIRED_UP], ["hang"]], log, limits=limits)
    assert "wasn't ready within 0.8 s" in told


def test_a_server_whose_log_never_says_ready_is_ready_when_it_generates(log: Path) -> None:
    fast = Fast()
    with booted([["serve"], ["hang"]], log, clock=fast.clock, sleep=fast.sleep) as server:
        assert "fired up" not in server.log_text()
        assert server.boot_s >= 10


def test_progress_tells_each_phase_with_the_time_since_the_start(log: Path) -> None:
    script = [
        ["print", "[2026-11-29 15:49:59] Load weight begin. avail mem=139.09 GB"],
        ["sleep", 0.1],
        ["print", "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:01<00:01,  1.00it/s]\r"],
        ["sleep", 0.1],
        *GOOD,
    ]
    told: list[tuple[str, str, float]] = []
    with booted(script, log, progress=lambda *step: told.append(step)) as server:
        assert server.ready
    steps = [step[:2] for step in told]
    assert steps[:2] == [("start", ""), ("weights", "0 %")] or steps[0] == ("weights", "0 %")
    assert ("weights", "40 %, 2/5") in steps
    assert steps[-1] == ("ready", server.url)
    assert [step[2] for step in told] == sorted(step[2] for step in told)


def test_an_unknown_flag_is_told_with_the_version_that_lacks_it(log: Path) -> None:
    recording = RECORDINGS / "cpu-sglang-0.5.23" / "boot_failure_unknown_flag.log"
    told = failure([["print_file", str(recording)], ["exit", 2]], log)
    assert f"SGLang {importlib.metadata.version('sglang')} doesn't know the flag --no-such-flag; exit code 2." in told


def test_a_program_that_is_not_there_is_a_clear_error(log: Path, tmp_path: Path) -> None:
    launch = Launch(("/no/such/python",), {}, tmp_path, "127.0.0.1", 20001, KEY)
    notes = Notes()
    with pytest.raises(process.BootError, match=r"can't be started: .*/no/such/python.*nothing runs"):
        process.boot(lambda _: launch, log=log, ledger=notes)
    assert [told[0] for told in notes.told] == ["intend", "ended"]


# --- ports


def holding(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_a_port_taken_between_choice_and_bind_leads_to_another_port(log: Path) -> None:
    held: list[socket.socket] = []

    def launch_on(port: int) -> Launch:
        if not held:
            held.append(holding(port))
        launch: Launch = script_launch(GOOD)(port)
        return launch

    server = process.boot(launch_on, log=log, limits=QUICK)
    try:
        assert server.launch.port != held[0].getsockname()[1]
        assert "address already in use" in log.with_name("depth-2.port-taken-1.log").read_text()
    finally:
        server.stop()
        held[0].close()


def test_a_port_that_is_always_taken_fails_after_three_tries(log: Path) -> None:
    held: list[socket.socket] = []

    def launch_on(port: int) -> Launch:
        held.append(holding(port))
        launch: Launch = script_launch(GOOD)(port)
        return launch

    with pytest.raises(process.PortTaken, match="address already in use"):
        process.boot(launch_on, log=log, limits=QUICK)
    assert len(held) == 3
    assert nobody_is_left()
    for taken in held:
        taken.close()


def test_a_fixed_port_that_is_taken_is_refused_before_anything_starts(log: Path) -> None:
    with holding(0) as taken:
        port = taken.getsockname()[1]
        notes = Notes()
        told = failure(GOOD, log, port=port, ledger=notes)
    assert told.startswith(f"Port {port} on 127.0.0.1 is taken (pid {os.getpid()}")
    assert notes.told == []
    assert not log.exists()


# --- watching


def test_a_server_killed_while_idle_is_noticed(log: Path) -> None:
    with booted([["worker"], *GOOD], log) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: not server.alive())
        with pytest.raises(process.ServerDied, match=r"The server died: killed by SIGKILL"):
            server.check_alive()
        worker = printed_pid(server, "worker")
        assert lives(worker)
        assert server.stop().how != "graceful"
        assert not lives(worker)


def test_a_worker_killed_while_its_leader_lives_on_is_noticed(log: Path) -> None:
    with booted([["worker"], *GOOD], log) as server:
        server.check_alive()
        worker = printed_pid(server, "worker")
        os.kill(worker, signal.SIGKILL)
        assert eventually(lambda: not lives(worker))
        assert server.alive()
        with pytest.raises(process.ServerDied, match=rf"pid {worker}\) is gone, while its leader lives on"):
            server.check_alive()


def test_a_worker_that_went_with_its_leader_is_not_what_the_server_died_of(log: Path) -> None:
    with booted([["worker"], *GOOD], log) as server:
        worker = printed_pid(server, "worker")
        for pid in (worker, server.pid):
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not lives(worker))
        with pytest.raises(process.ServerDied, match=r"The server died: killed by SIGKILL"):
            server.check_alive()


# --- stop


def test_a_server_that_ignores_sigterm_is_killed(log: Path) -> None:
    fast = Fast()
    limits = process.Limits(boot_s=600, stop_s=20)
    with booted([["ignore_sigterm"], *GOOD], log, limits=limits, clock=fast.clock, sleep=fast.sleep) as server:
        stopped = server.stop()
    assert stopped.how == "killed"
    assert 20 + process.GROUP_S < stopped.seconds < 60
    assert not lives(server.pid)


def test_a_grandchild_in_a_session_of_its_own_does_not_outlive_the_server(log: Path) -> None:
    with booted([["grandchild"], *GOOD], log) as server:
        grandchild = printed_pid(server, "grandchild")
        assert os.getsid(grandchild) != server.pid
        assert server.stop().how == "group"
    assert not lives(grandchild)


def test_an_orphan_that_was_never_seen_beside_its_parent_does_not_outlive_the_server(log: Path) -> None:
    with booted([["orphan"], *GOOD], log) as server:
        orphan = printed_pid(server, "orphan")
        assert lives(orphan)
    assert not lives(orphan)


def test_an_orphan_that_comes_with_the_leaders_end_does_not_outlive_it(log: Path) -> None:
    with booted([["orphan_at_the_end"], *GOOD], log) as server:
        assert server.stop().how == "graceful"
    assert not lives(printed_pid(server, "orphan"))


def test_the_ledger_hears_of_the_intent_the_start_and_the_end(log: Path) -> None:
    notes = Notes()
    with booted(GOOD, log, ledger=notes) as server:
        name = notes.told[0][1]
        assert notes.told == [
            ("intend", name, log),
            ("started", name, server.pid, server.start_ticks, server.pid),
        ]
    assert notes.told[2:] == [("ended", name)]


def test_a_ledger_that_cannot_record_the_intent_keeps_the_server_from_starting(log: Path) -> None:
    class Full(Notes):
        def intend(self, server: str, log: Path) -> None:
            super().intend(server, log)
            raise OSError(28, "No space left on device")

    assert "can't be recorded" in failure(GOOD, log, ledger=Full())
    assert not log.exists()


def test_a_ledger_that_cannot_record_the_start_ends_the_server(log: Path) -> None:
    class Full(Notes):
        def started(self, server: str, pid: int, start_ticks: int, group: int) -> None:
            super().started(server, pid, start_ticks, group)
            raise OSError(28, "No space left on device")

    notes = Full()
    with pytest.raises(OSError, match="No space left"):
        process.boot(script_launch(GOOD), log=log, ledger=notes)
    assert [told[0] for told in notes.told] == ["intend", "started", "ended"]
    assert not lives(notes.told[1][2])


# --- interrupts, in a process of their own

DRIVER = """
import sys, time
from pathlib import Path
from fixtures.engine import process
from tests.kit.server_program import GOOD, script_launch
script, then = {script!r}, {then!r}
def tell(phase, detail, elapsed_s):
    print("booting", flush=True)
server = process.boot(
    script_launch(script), log=Path({log!r}), limits=process.Limits(stop_s={stop_s}), progress=tell
)
print("pid", server.pid, flush=True)
exec(then)
"""


@contextmanager
def driver(log: Path, script: Any, then: str, stop_s: float = 30.0) -> Iterator[subprocess.Popen[str]]:
    code = DRIVER.format(script=script, then=then, log=str(log), stop_s=stop_s)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as driving:
        try:
            yield driving
        finally:
            driving.kill()


def heard(driving: subprocess.Popen[str], word: str) -> str:
    assert driving.stdout is not None
    return next(line for line in driving.stdout if line.startswith(word))


def marked(log: Path) -> list[int]:
    """Pids of living processes whose script logs to this file's folder, found by the driver's server mark."""
    pids = re.findall(r"(?:self|worker|grandchild) (\d+)", log.read_text()) if log.exists() else []
    return [int(pid) for pid in pids if lives(int(pid))]


def test_ctrl_c_during_boot_leaves_nothing(log: Path) -> None:
    with driver(log, [["worker"], ["hang"]], "") as driving:
        heard(driving, "booting")
        assert eventually(lambda: marked(log) != [])
        driving.send_signal(signal.SIGINT)
        assert driving.wait(20) != 0
    assert marked(log) == []


def test_ctrl_c_during_a_stop_kills_at_once(log: Path) -> None:
    stubborn = [["ignore_sigterm"], ["worker"], *GOOD]
    with driver(log, stubborn, "print('stopping', flush=True); server.stop()") as driving:
        heard(driving, "stopping")
        time.sleep(0.3)
        began = time.monotonic()
        driving.send_signal(signal.SIGINT)
        assert driving.wait(20) != 0
        assert time.monotonic() - began < 5
    assert marked(log) == []


@pytest.mark.parametrize("then", ["raise RuntimeError('a bug of the suite')", "sys.exit(3)", "pass"])
def test_no_server_outlives_a_suite_that_forgets_it(log: Path, then: str) -> None:
    with driver(log, [["worker"], *GOOD], then) as driving:
        pid = int(heard(driving, "pid").split()[1])
        driving.wait(20)
    assert not lives(pid)
    assert marked(log) == []


# --- the log


def test_no_secret_reaches_the_log(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    script = [["print", "server_args=ServerArgs(api_key='{key}', token='hf_abcdefghijklmnop')"], *GOOD]
    with booted(script, log) as server:
        text = server.log_text()
    assert "server_args=ServerArgs(api_key='[hidden]', token='[hidden]')" in text
    assert KEY not in repr(server.launch)


def test_log_and_folder_are_the_users_own(log: Path) -> None:
    with booted(GOOD, log):
        assert log.stat().st_mode & 0o777 == 0o600
        assert log.parent.stat().st_mode & 0o777 == 0o700


def test_garbage_in_the_log_hurts_nobody(log: Path) -> None:
    script = [["print_bytes", "fffe00c3281b5b33316d" * 50], ["print", ""], *GOOD]
    with booted(script, log) as server:
        assert b"\xff\xfe\x00" in log.read_bytes()
        assert FIRED_UP in server.log_text()


def test_a_full_disk_holds_no_server_up_and_is_said() -> None:
    script = [["flood", 1], *GOOD]
    with booted(script, Path("/dev/full")) as server:
        server.check_alive()
        assert re.fullmatch(r"\d{7} bytes: No space left on device", server.log_lost)
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: not server.alive())
        with pytest.raises(process.ServerDied, match=r"incomplete; lost \d+ bytes: No space left on device"):
            server.check_alive()


def test_a_log_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = failure(GOOD, tmp_path / "file" / "depth-2.log")
    assert "File exists" in told
    assert "nothing runs" in told


@pytest.mark.parametrize("megabytes", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_huge_log_is_kept_whole_and_read_in_part(log: Path, megabytes: int) -> None:
    with booted([["print", "first line"], ["flood", megabytes], *GOOD], log) as server:
        assert log.stat().st_size > megabytes * 1_000_000
        text = server.log_text()
        assert len(text) < 9 << 20
        assert text.startswith("first line")
        assert FIRED_UP in text


def test_rounds_leave_no_descriptor_and_no_thread(log: Path) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with booted(GOOD, log):
        pass
    before = held()
    for _ in range(4):
        with booted(GOOD, log):
            pass
    assert held() == before


def test_a_proxy_in_the_environment_is_not_asked(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with booted(GOOD, log) as server:
        assert server.ready


# --- the real engine


@pytest.mark.engine
def test_the_real_server_boots_keeps_its_key_loses_a_worker_and_leaves_nothing(log: Path) -> None:
    profile = profiles.load("cpu-tiny")
    server = process.boot(
        lambda port: command.launch(profile, 2, port=port, api_key=KEY, root=ROOT),
        log=log,
        limits=process.Limits(profile.launch.boot_limit_s, profile.launch.stop_limit_s),
    )
    try:
        server.check_alive()
        told = server_info.reported(server_info.fetch(server.url, server.api_key))
        assert (told["speculative_num_steps"], told["speculative_num_draft_tokens"]) == (2, 3)
        text = server.log_text()
        assert KEY not in text
        assert "'api_key': '[hidden]'" in text
        assert {"load_weight", "kv_cache", "imports", "warm_up", "total"} <= server_log.boot_phases(text).keys()
        workers = [p for p in process_tree.look_around().values() if p.session == server.pid]
        scheduler = next(p for p in workers if p.name.startswith("sglang::schedul"))
        os.kill(scheduler.pid, signal.SIGKILL)
        assert eventually(lambda: not lives(scheduler.pid))
        with pytest.raises(process.ServerDied, match=r"scheduler_0 crashed with exit code -9: killed by SIGKILL"):
            server.check_alive()
    finally:
        stopped = server.stop()
    assert stopped.seconds < 30
    assert not [p for p in process_tree.look_around().values() if p.session == server.pid and p.lives]


@pytest.mark.engine
def test_the_real_server_refuses_a_flag_that_its_version_lacks(log: Path) -> None:
    profile = profiles.load("cpu-tiny")
    flags = {**profile.launch.flags, "no-such-flag": True}
    wrong = profile.model_copy(update={"launch": profile.launch.model_copy(update={"flags": flags})})
    with pytest.raises(process.BootError, match=r"SGLang 0\.5\.23 doesn't know the flag --no-such-flag; "):
        process.boot(lambda port: command.launch(wrong, 0, port=port, api_key=KEY, root=ROOT), log=log)
