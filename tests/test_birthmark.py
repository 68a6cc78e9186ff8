"""The mark that descendants inherit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures import birthmark
from fixtures.engine.process_tree import Family, look


@pytest.fixture(autouse=True)
def _unmarked() -> Iterator[None]:
    yield
    birthmark.unmark()


def born(argv: list[str], name: str) -> bool:
    """Whether the process that prints its pid and waits for its stdin to close bears the mark."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        answer = birthmark.bears(pid, name)
        child.stdin.close()
    return answer


SPAWNED = """
import multiprocessing, os, sys
def work():
    print(os.getpid(), flush=True)
    os.read(0, 1)
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    child = multiprocessing.Process(target=work)
    child.start()
    child.join()
"""


def test_a_child_bears_the_mark_and_its_marker_does_not() -> None:
    birthmark.mark("feed")
    assert born(["sh", "-c", "echo $$; read x"], "feed")
    assert not birthmark.bears(os.getpid(), "feed")


def test_a_mark_is_one_names_alone() -> None:
    birthmark.mark("feed")
    assert not born(["sh", "-c", "echo $$; read x"], "fee")
    assert 0 <= birthmark.number("feed") < 2**62


def test_a_process_of_multiprocessing_bears_it_as_sglangs_do(tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    birthmark.mark("feed")
    assert born([sys.executable, str(tmp_path / "spawned.py")], "feed")


def test_a_child_born_after_the_mark_was_taken_off_bears_none() -> None:
    birthmark.mark("feed")
    birthmark.unmark()
    assert not born(["sh", "-c", "echo $$; read x"], "feed")


def test_a_process_that_is_gone_bears_none() -> None:
    birthmark.mark("feed")
    child = subprocess.Popen(["true"])
    child.wait()
    assert not birthmark.bears(child.pid, "feed")


ORPHAN = "import os, signal; os.fork() and os._exit(0); os.setsid(); os.execve('/bin/sleep', ['innocent', '60'], {})"


def test_a_server_finds_an_orphan_that_was_never_seen_beside_its_parent() -> None:
    birthmark.mark("feed")
    child = subprocess.Popen([sys.executable, "-c", ORPHAN])
    leader = look(child.pid)
    assert leader is not None
    child.wait()
    family = Family(leader, "feed")
    deadline = time.monotonic() + 10.0
    while [p.name for p in family.living()] != ["sleep"] and time.monotonic() < deadline:
        family.watch(thoroughly=True)  # the orphan is Python until it has become another program
    (orphan,) = family.living()
    family.signal(signal.SIGKILL)
    assert (orphan.name, orphan.pid != child.pid) == ("sleep", True)
