"""What is seen of a server's processes from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from fixtures.evidence import waited_s

SHARES = "import os; os.sched_setaffinity(0, {%d}); print(flush=True); exec('while True: pass')"
SLEEPS = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def rivals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two programs that want the same core."""
    core = min(os.sched_getaffinity(0))
    both = [subprocess.Popen([sys.executable, "-c", SHARES % core], stdout=subprocess.PIPE) for _ in range(2)]
    yield both
    for each in both:
        each.kill()
        each.communicate()


def computed_s(pid: int) -> float:
    """Of the process's main thread."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9


def test_who_shares_a_core_has_waited_for_it(rivals: list[subprocess.Popen[bytes]]) -> None:
    one = rivals[0]
    assert one.stdout
    for each in rivals:
        assert each.stdout
        each.stdout.readline()
    before, ran = waited_s(one.pid), computed_s(one.pid)
    while computed_s(one.pid) - ran < 0.2:
        pass
    after = waited_s(one.pid)
    assert before is not None
    assert after is not None
    assert after - before > 0.1, "of two that share a core each waits as long as it computes"


def test_who_sleeps_has_waited_for_no_core() -> None:
    words = [sys.executable, "-c", SLEEPS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdout
        sleeper.stdout.readline()
        before, began = waited_s(sleeper.pid), time.process_time()
        while time.process_time() - began < 0.2:
            pass
        after = waited_s(sleeper.pid)
        sleeper.communicate(b"")
    assert before is not None
    assert after is not None
    assert after - before < 0.1


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert waited_s(gone.pid) is None
