"""Which processes belong to a server, and whether they live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fixtures.engine.process_tree import MARK, Family, Seen, kin, look, look_around, parse_stat, send

NOTHING = "import time; time.sleep(600)"


def seen(pid: int, parent: int = 1, session: int = 1, start_ticks: int = 1000, state: str = "S") -> Seen:
    return Seen(pid, "x", state, parent, pid, session, start_ticks)


def present(*processes: Seen) -> dict[int, Seen]:
    return {process.pid: process for process in processes}


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", NOTHING]) as running:
        yield running
        running.kill()


def test_a_name_with_spaces_and_parentheses_is_read() -> None:
    text = "417 (a) (b c) S 1 2 3 0 -1 4194560 9 9 9 9 9 9 9 9 20 0 1 0 123456 99 9"
    assert parse_stat(text) == Seen(417, "a) (b c", "S", 1, 2, 3, 123456)


@pytest.mark.parametrize("text", ["", "417", "417 (x) S 1 2", "x (y) S 1 2 3"])
def test_other_text_is_no_process(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_stat(text)


def test_this_process_is_seen() -> None:
    now = look(os.getpid())
    assert now is not None
    assert (now.pid, now.parent, now.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert now.lives
    assert look_around()[os.getpid()].start_ticks == now.start_ticks


def test_a_zombie_does_not_live(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    while (now := look(child.pid)) is not None and now.state != "Z":
        time.sleep(0.01)
    assert now is not None
    assert not now.lives


LEADER = seen(10, session=10)


def test_descendants_are_kin_however_deep() -> None:
    all_ = present(
        LEADER, seen(11, parent=10), seen(12, parent=11, session=12), seen(13, parent=1), seen(14, parent=13)
    )
    assert {p.pid for p in kin(LEADER, (), all_)} == {10, 11, 12}


def test_a_member_of_the_leaders_session_is_kin_after_the_leader_is_gone() -> None:
    assert {p.pid for p in kin(LEADER, (), present(seen(11, session=10)))} == {11}


def test_a_descendant_once_known_is_kin_with_its_own_children() -> None:
    known = seen(12, parent=11, session=12)
    all_ = present(replace(known, parent=1), seen(15, parent=12, session=12))
    assert {p.pid for p in kin(LEADER, [known], all_)} == {12, 15}


def test_a_pid_with_a_new_owner_is_not_kin() -> None:
    usurper = seen(10, session=10, start_ticks=2000)
    assert kin(LEADER, (), present(usurper, seen(11, parent=10, session=10))) == set()


def test_a_signal_reaches_only_the_very_process(child: subprocess.Popen[bytes]) -> None:
    now = look(child.pid)
    assert now is not None
    send(replace(now, start_ticks=now.start_ticks - 1), signal.SIGKILL)
    send(seen(2**22 - 1), signal.SIGKILL)
    time.sleep(0.05)
    assert child.poll() is None
    send(now, signal.SIGKILL)
    assert child.wait(5) == -signal.SIGKILL


def test_a_marked_orphan_is_found_by_looking_thoroughly() -> None:
    code = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {NOTHING!r}], start_new_session=True, "
        "stdout=subprocess.DEVNULL).pid)"
    )
    environment = {**os.environ, MARK: "test-mark-417"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    orphan = look(int(done.stdout))
    assert orphan is not None
    family = Family(LEADER, "test-mark-417")
    family.watch()
    assert family.living() == ()
    family.watch(thoroughly=True)
    assert [p.pid for p in family.living()] == [orphan.pid]
    family.signal(signal.SIGKILL)
    while (now := look(orphan.pid)) is not None and now.lives:
        time.sleep(0.01)
    assert family.living() == ()
