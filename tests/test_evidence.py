"""What is seen of a server's processes from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest

from fixtures import evidence, taking
from fixtures.engine.attached import Attached
from fixtures.evidence import waited_s
from fixtures.workload import Window
from tests.kit.builders import sample

SHARES = "import os; os.sched_setaffinity(0, {%d}); print(flush=True); exec('while True: pass')"
SLEEPS = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def _nothing_stolen(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's hypervisor may take what it likes meanwhile."""
    monkeypatch.setattr(evidence.psutil, "cpu_times", lambda: SimpleNamespace(steal=0.0))


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


def test_what_the_hypervisor_took_counts_by_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    before = waited_s(os.getpid())
    monkeypatch.setattr(evidence.psutil, "cpu_times", lambda: SimpleNamespace(steal=1000.0))
    monkeypatch.setattr(evidence.psutil, "cpu_count", lambda: 4)
    after = waited_s(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(250.0, abs=5)


def seconds_of(then: dict[str, float], now: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> Mapping[str, float]:
    """Of a window of three completions, of which the first ended before the first look."""
    told = iter([then, now])
    monkeypatch.setattr(taking, "scheduler_seconds", lambda _: next(told))
    server = Attached("http://127.0.0.1:1", "")
    one = taking.Taking(
        profile="p", depth=2, server=server, info={}, facts=dict, identity={}, clock=lambda: 0.0, instrumented=False
    )
    one.see_scheduler()
    samples = tuple(sample(f"p{n}", ttft_s=0.5, decode_s=2.0) for n in range(3))
    return one.measurement(Window(samples=samples, accept_source="stream")).scheduler


@pytest.mark.parametrize(
    ("then", "now", "passed"),
    [
        (
            {"pid": 7, "cpu": 3.0, "waited": 9.0},
            {"pid": 7, "cpu": 7.5, "waited": 9.5},
            {"wall": 5.0, "cpu": 4.5, "waited": 0.5},
        ),
        ({"pid": 7, "cpu": 3.0}, {"pid": 7, "cpu": 7.5, "waited": 9.5}, {"wall": 5.0, "cpu": 4.5}),
        ({"pid": 7, "cpu": 3.0, "waited": 9.0}, {"pid": 8, "cpu": 7.5, "waited": 1.0}, {}),
        ({"pid": 7, "cpu": 3.0}, {}, {}),
    ],
    ids=["all", "no account at first", "another process", "gone"],
)
def test_a_measurement_keeps_what_passed_between_the_first_completion_and_the_last(
    then: dict[str, float], now: dict[str, float], passed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seconds_of(then, now, monkeypatch) == pytest.approx(passed)
