"""Runs that are killed, and the run after them. Every process here is real, and none outlives its test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fixtures import birthmark, host, leftovers
from fixtures.engine.process_tree import MARK, look, look_around
from fixtures.leftovers import Ledger, Leftover, Record

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parent.parent
LOG = "/r/logs/depth-02.log"

SUITE = """
import signal, subprocess, sys
from pathlib import Path
from fixtures.engine.process_tree import look
from fixtures.leftovers import Ledger
folder, server, moment, *argv = sys.argv[1:]
ledger = Ledger(Path(folder))
ledger.intend(server, Path("/r/logs/depth-02.log"))
if moment != "intended":
    child = subprocess.Popen(argv, start_new_session=True)
    if moment == "recorded":
        ledger.started(server, child.pid, look(child.pid).start_ticks, child.pid)
print("ready", flush=True)
signal.pause()
"""
"""A run that stops at a moment: its server intended, started, or recorded as started."""

SERVER = "import signal; signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
FAMILY = """
import os, signal, subprocess, sys
told, tell = os.pipe()
os.set_blocking(tell, False)
signal.set_wakeup_fd(tell)
signal.signal(signal.SIGTERM, lambda *_: None)
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
os.read(told, 1)
child.kill()
child.wait()
"""
"""A server that ends its child by itself; its arguments are the child's program and that one's argument. A signal that
comes before it waits is in the pipe, where signal.pause() would wait for a second one."""
CHILD = """
import pathlib, signal, sys
told = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: told.touch())
while True:
    signal.pause()
"""

RUNAWAY = """
import os, sys
if os.fork():
    os._exit(0) if sys.argv[1] == "dies" else signal_pause()
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 256)
os.chdir("/")
title = "import signal; open('/proc/self/comm', 'w').write('innocent'); signal.pause()"
os.execve(sys.executable, ["innocent", "-c", title], {})
""".replace("signal_pause()", "__import__('signal').pause()")
"""A server whose grandchild leaves its session, group, parent, title, environment, folder and open files."""


def bearers(server: str) -> dict[int, str]:
    """pid → name of the living processes that bear the server's birthmark."""
    return {p.pid: p.name for p in look_around().values() if p.lives and birthmark.bears(p.pid, server)}


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def server() -> Iterator[str]:
    """A server's name; whatever bears its mark is gone after the test."""
    name = uuid.uuid4().hex
    yield name
    for pid in bearers(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not bearers(name))


@contextlib.contextmanager
def suite(folder: Path, server: str, moment: str, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose server is this Python program, stopped at the moment; killed and reaped in the end."""
    argv = [sys.executable, "-c", SUITE, str(folder), server, moment, sys.executable, "-c", program, *arguments]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def sweep(folder: Path, grace_s: float = 5) -> tuple[Leftover, ...]:
    return leftovers.sweep_leftovers(folder, grace_s=grace_s)


def record_of(folder: Path) -> Record:
    (path,) = folder.glob("server-*.json")
    record = leftovers.parse_record(path.read_text())
    assert record is not None
    return record


# --- a run killed, and the next one ---


def test_a_server_whose_run_was_killed_is_ended_and_spoken_of(tmp_path: Path, server: str) -> None:
    with suite(tmp_path, server, "recorded", SERVER) as run:
        pass
    (pid,) = bearers(server)
    (leftover,) = sweep(tmp_path)
    assert [p.pid for p in leftover.ended] == [pid]
    assert not bearers(server)
    assert not list(tmp_path.iterdir())
    assert str(leftover).startswith(f"a server was left by a run that is gone (pid {run.pid}, server intended 20")
    assert f"log {LOG}); ended pid {pid} (" in str(leftover)


def test_the_command_ends_what_a_killed_run_left_and_then_finds_nothing(tmp_path: Path, server: str) -> None:
    with suite(tmp_path, server, "recorded", SERVER):
        pass
    words = [sys.executable, "-m", "fixtures.leftovers"]
    environment = {**os.environ, "EAGLE3_PERF_LOCKS": str(tmp_path)}
    said = [
        subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    ]
    assert not bearers(server)
    assert [len(lines) for lines in said] == [2, 1]
    assert said[0][0].startswith("a server was left by a run that is gone")
    assert {lines[-1] for lines in said} == {"nothing of a gone run is left"}


def test_the_command_tells_a_lock_folder_that_cannot_be_without_a_traceback() -> None:
    words = [sys.executable, "-m", "fixtures.leftovers"]
    environment = {**os.environ, "EAGLE3_PERF_LOCKS": "/proc/none"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("the lock folder /proc/none can't be used: No such file or directory. ")


def test_a_server_of_a_run_under_way_is_said_and_left_alone(tmp_path: Path, server: str) -> None:
    said: list[str] = []
    with suite(tmp_path, server, "recorded", SERVER) as run:
        assert leftovers.clean(tmp_path, said.append)
        assert bearers(server)
    assert said[0] == f"a server of a run under way was left alone (pid {run.pid}, log {LOG})"


def test_a_server_started_at_the_moment_its_run_was_killed_is_found_without_its_pid(
    tmp_path: Path, server: str
) -> None:
    with suite(tmp_path, server, "started", SERVER):
        pass
    assert record_of(tmp_path).leader is None
    (pid,) = bearers(server)
    (leftover,) = sweep(tmp_path)
    assert [p.pid for p in leftover.ended] == [pid]
    assert not bearers(server)


def test_a_run_killed_before_its_server_started_leaves_nothing_to_speak_of(tmp_path: Path, server: str) -> None:
    with suite(tmp_path, server, "intended", SERVER):
        pass
    assert record_of(tmp_path).server == server
    assert sweep(tmp_path) == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("leader", ["lives", "dies"])
def test_a_grandchild_in_a_session_of_its_own_is_ended_too(tmp_path: Path, server: str, leader: str) -> None:
    with suite(tmp_path, server, "recorded", RUNAWAY, leader):
        eventually(lambda: "innocent" in bearers(server).values())
        eventually(lambda: len(bearers(server)) == (2 if leader == "lives" else 1))
        (pid,) = (pid for pid, name in bearers(server).items() if name == "innocent")
    runaway, recorded = look(pid), record_of(tmp_path)
    assert runaway is not None
    assert recorded.leader is not None
    assert recorded.leader.pid not in (runaway.parent, runaway.group, runaway.session)
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    (leftover,) = sweep(tmp_path)
    assert pid in [p.pid for p in leftover.ended]
    assert not bearers(server)


def test_a_leader_that_can_end_its_children_is_asked_alone(tmp_path: Path, server: str) -> None:
    told = tmp_path / "told"
    with suite(tmp_path, server, "recorded", FAMILY, CHILD, str(told)):
        eventually(lambda: len(bearers(server)) == 2)
    (leftover,) = sweep(tmp_path)
    assert len(leftover.ended) == 2
    assert not told.exists()
    assert not bearers(server)


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path, server: str) -> None:
    with suite(tmp_path, server, "recorded", STUBBORN) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "\n"
    (leftover,) = sweep(tmp_path, grace_s=0.2)
    assert leftover.alive == ()
    assert not bearers(server)


def test_a_server_without_birthmark_is_ended_by_its_leader(tmp_path: Path, server: str) -> None:
    """As on a kernel that doesn't keep the mark."""
    child = subprocess.Popen([sys.executable, "-c", FAMILY, SERVER, ""], start_new_session=True)
    try:
        me, leader = host.identity(), host.identity(child.pid)
        assert me is not None
        eventually(lambda: [p for p in look_around().values() if p.parent == child.pid])
        write(tmp_path, Record(server, LOG, "2026", replace(me, start=1), leader, child.pid))
        (leftover,) = sweep(tmp_path)
        assert len(leftover.ended) == 2
        assert child.wait() == 0
    finally:
        child.kill()
        child.wait()


def test_an_orphan_without_birthmark_is_known_by_its_environment(tmp_path: Path, server: str) -> None:
    """As on a kernel that doesn't keep the mark, unless the orphan renamed itself."""
    child = subprocess.Popen([sys.executable, "-c", SERVER], env={MARK: server})
    try:
        me = host.identity()
        assert me is not None
        write(tmp_path, Record(server, LOG, "2026", replace(me, start=1)))
        assert len(sweep(tmp_path)) == 1
        assert child.wait() == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


# --- what is never touched ---


def test_the_servers_of_a_living_run_are_never_touched(tmp_path: Path, server: str) -> None:
    with suite(tmp_path, server, "recorded", SERVER):
        assert sweep(tmp_path) == ()
        assert len(bearers(server)) == 1
        assert record_of(tmp_path).server == server


def test_the_servers_of_another_container_are_never_touched(tmp_path: Path, server: str) -> None:
    with suite(tmp_path, server, "recorded", SERVER):
        pass
    record = record_of(tmp_path)
    write(tmp_path, replace(record, owner=replace(record.owner, namespace="pid:[1]")))
    assert sweep(tmp_path) == ()
    assert len(bearers(server)) == 1


@contextlib.contextmanager
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        yield child
        assert child.poll() is None, "the bystander was ended"
    finally:
        child.kill()
        child.wait()


def write(folder: Path, record: Record) -> None:
    host.write_record(folder / f"server-{record.server}.json", leftovers.encode_record(record), mode=0o600)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"start": 1}, id="pid-has-a-new-owner"),
        pytest.param({"boot": "00000000-0000-0000-0000-000000000000"}, id="before-the-last-boot"),
        pytest.param({"namespace": "pid:[1]"}, id="pid-of-another-container"),
    ],
)
def test_a_record_that_matches_nobody_is_removed_silently(tmp_path: Path, change: dict[str, object]) -> None:
    me = host.identity()
    assert me is not None
    with bystander() as child:
        there = host.identity(child.pid)
        assert there is not None
        leader = replace(there, **change)  # type: ignore[arg-type]
        write(tmp_path, Record("feed", LOG, "2026", replace(me, start=1), leader, child.pid))
        assert sweep(tmp_path) == ()
        assert not list(tmp_path.iterdir())


def test_a_group_whose_leader_is_gone_proves_nothing(tmp_path: Path) -> None:
    """A daemon whose group has the number that a dead leader once had."""
    me = host.identity()
    assert me is not None
    daemon = "import os, signal; os.fork() and os._exit(0); print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", daemon], start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        pid = int(first.stdout.readline())
        first.wait()
        try:
            seen = look(pid)
            assert seen is not None
            assert seen.session == first.pid
            leader = replace(me, pid=first.pid, start=seen.start_ticks)
            write(tmp_path, Record("feed", LOG, "2026", replace(me, start=1), leader, first.pid))
            assert sweep(tmp_path) == ()
            assert host.identity(pid) is not None
        finally:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_record_of_another_user_is_not_believed(tmp_path: Path) -> None:
    me = host.identity()
    assert me is not None
    with bystander() as child:
        write(tmp_path, Record("feed", LOG, "2026", replace(me, start=1), host.identity(child.pid), child.pid))
        os.chown(tmp_path / "server-feed.json", 65534, 65534)
        assert sweep(tmp_path) == ()


def test_a_record_of_another_name_or_behind_a_link_is_not_believed(tmp_path: Path) -> None:
    me = host.identity()
    assert me is not None
    with bystander() as child:
        record = Record("feed", LOG, "2026", replace(me, start=1), host.identity(child.pid), child.pid)
        write(tmp_path, record)
        (tmp_path / "server-feed.json").rename(tmp_path / "elsewhere.json")
        (tmp_path / "server-feed.json").symlink_to(tmp_path / "elsewhere.json")
        (tmp_path / "server-other.json").write_text(leftovers.encode_record(record))
        assert sweep(tmp_path) == ()


SWEEP = """
import os, sys
from pathlib import Path
from fixtures import leftovers
from tests.kit.clock import Time
os.setuid(65534)
at = Time()
print(*leftovers.sweep_leftovers(Path(sys.argv[1]), grace_s=1, clock=at.clock, sleep=at.sleep))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_process_that_can_not_be_ended_is_spoken_of_and_kept_on_record() -> None:
    me = host.identity()
    assert me is not None
    with tempfile.TemporaryDirectory() as folder, bystander() as child:
        Path(folder).chmod(0o777)
        write(Path(folder), Record("feed", LOG, "2026", replace(me, start=1), host.identity(child.pid), child.pid))
        os.chown(f"{folder}/server-feed.json", 65534, 65534)
        told = subprocess.check_output([sys.executable, "-c", SWEEP, folder], cwd=ROOT, text=True, timeout=20)
        assert told.endswith(f"; STILL ALIVE after SIGKILL: pid {child.pid} (sleep): the host needs a person\n")
        assert record_of(Path(folder)).server == "feed"


# --- the ledger ---


def test_a_server_is_on_record_from_its_intent_to_its_end_for_this_user_only(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.intend("feed", Path(LOG))
    intended = record_of(tmp_path)
    assert (intended.server, intended.log, intended.owner, intended.leader) == ("feed", LOG, host.identity(), None)
    assert stat.S_IMODE((tmp_path / "server-feed.json").stat().st_mode) == 0o600
    ledger.started("feed", 4711, 99, 4711)
    assert record_of(tmp_path) == replace(intended, leader=replace(intended.owner, pid=4711, start=99), group=4711)
    ledger.ended("feed")
    assert not list(tmp_path.iterdir())


def test_what_is_started_after_a_server_does_not_bear_its_mark(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.intend("first", Path(LOG))
    ledger.started("first", 4711, 99, 4711)
    ledger.intend("second", Path(LOG))
    ledger.ended("second")
    with bystander() as child:
        assert not birthmark.bears(child.pid, "first")
        assert not birthmark.bears(child.pid, "second")


def test_an_intent_that_can_not_be_recorded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="server-feed"):
        Ledger(tmp_path / "vanished").intend("feed", Path(LOG))


def test_ending_what_was_never_recorded_is_no_error(tmp_path: Path) -> None:
    Ledger(tmp_path).ended("feed")


FEED = Record("feed", LOG, "2026", host.Identity(7, 99, "boot", "pid:[1]"), host.Identity(8, 100, "boot", "pid:[1]"), 8)


@pytest.mark.parametrize("record", [FEED, replace(FEED, leader=None, group=None)], ids=["started", "intended"])
def test_a_record_survives_its_file(record: Record) -> None:
    assert leftovers.parse_record(leftovers.encode_record(record)) == record


def test_a_record_of_a_later_version_is_read() -> None:
    assert leftovers.parse_record(json.dumps(asdict(FEED) | {"schema": 9})) == FEED


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param('{"server": "feed"', id="cut-off"),
        pytest.param("[]", id="list"),
        pytest.param(json.dumps(asdict(FEED) | {"owner": None}), id="no-owner"),
        pytest.param(json.dumps(asdict(FEED) | {"leader": {"pid": -1}}), id="half-a-leader"),
        pytest.param(json.dumps(asdict(FEED) | {"group": "x"}), id="group-no-number"),
    ],
)
def test_a_broken_record_is_no_record_and_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "server-feed.json").write_text(text)
    assert sweep(tmp_path) == ()
    assert (tmp_path / "server-feed.json").read_text() == text
