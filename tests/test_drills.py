"""Drills: what can be asked for, what the launcher is told, and what it does."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fixtures.analysis.witnesses import nccl_findings
from fixtures.engine.drill import VALUES, Drill, DrillError, parse
from fixtures.engine.inside import drills, on_import
from fixtures.engine.inside.phases import METHODS, WORKERS
from fixtures.engine.phase_records import load as load_phases
from fixtures.engine.phase_records import phases
from fixtures.engine.witness_records import load
from tests.kit.little_engine import served

ROOT = Path(__file__).resolve().parent.parent

# Names


@pytest.mark.parametrize(
    ("text", "drill"),
    [
        ("slow-verify", Drill("slow-verify", "15%")),
        ("slow-verify=20%", Drill("slow-verify", "20%")),
        ("slow-draft=2.5ms", Drill("slow-draft", "2.5ms")),
        ("slow-extend=7 %", Drill("slow-extend", "7%")),
        ("slow-baseline", Drill("slow-baseline", "15%")),
        ("lost-nccl=NCCL_PROTO", Drill("lost-nccl", "NCCL_PROTO")),
        ("wrong-layers=-1,2,4", Drill("wrong-layers", "-1,2,4")),
        ("wrong-depth=1", Drill("wrong-depth", "1")),
    ],
)
def test_a_drill_has_a_name_and_a_value(text: str, drill: Drill) -> None:
    assert parse(text) == drill
    assert parse(str(drill)) == drill


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            "slow-verfy",
            (
                "no drill is called 'slow-verfy'; there are: slow-draft, slow-verify, slow-extend, slow-baseline, "
                "lost-nccl, no-graphs, wrong-layers, wrong-depth"
            ),
        ),
        (
            "slow-verify=15",
            (
                "drill 'slow-verify=15': slow-verify takes how much slower: a share of the phase's time, as in 15%, "
                "or time, as in 2.5ms"
            ),
        ),
        ("slow-draft=0%", "drill 'slow-draft=0%': slow-draft takes how much slower: a share"),
        ("slow-draft=", "drill 'slow-draft=': slow-draft takes how much slower: a share"),
        ("lost-nccl", "drill 'lost-nccl': lost-nccl takes the NCCL variable to be lost, as in NCCL_PROTO"),
        ("lost-nccl=PATH", "drill 'lost-nccl=PATH': lost-nccl takes the NCCL variable to be lost"),
        ("wrong-layers=1,2", "drill 'wrong-layers=1,2': wrong-layers takes three layer ids, as in 0,2,4"),
        ("wrong-depth=0", "drill 'wrong-depth=0': wrong-depth takes the draft steps to run instead"),
    ],
)
def test_what_is_no_drill_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(DrillError) as error:
        parse(text)
    assert str(error.value).startswith(refusal)


def test_the_document_has_a_row_for_each_drill_as_it_is_taken() -> None:
    rows = [
        line for line in (ROOT / "docs/drills.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    assert sorted(parse(row.split("`")[1]).name for row in rows) == sorted(VALUES)


@pytest.mark.parametrize(
    ("text", "plain", "speculative"),
    [
        ("slow-verify=20%", "", {"slow": "verify", "share": 0.2}),
        ("slow-extend=2.5ms", "", {"slow": "extend", "ms": 2.5}),
        ("slow-baseline", {"slow": "plain", "share": 0.15}, ""),
        ("lost-nccl=NCCL_PROTO", "", {"unset": ["NCCL_PROTO"]}),
        ("wrong-depth=1", "", ""),
    ],
)
def test_only_the_servers_that_a_drill_is_about_are_told(text: str, plain: Any, speculative: Any) -> None:
    orders = [parse(text).order(depth) for depth in (0, 2)]
    assert [json.loads(order) if order else "" for order in orders] == [plain, speculative]


# Inside


def naps() -> str:
    time.sleep(0.004)
    return "done"


def test_a_share_of_the_time_is_added_on_the_cpu() -> None:
    start = time.perf_counter()
    assert drills.ClockDelay(share=1.0, ms=0)(naps, (), {}) == "done"
    assert time.perf_counter() - start >= 0.008


def test_milliseconds_are_added_on_the_cpu() -> None:
    start = time.perf_counter()
    drills.ClockDelay(share=0, ms=5)(naps, (), {})
    assert time.perf_counter() - start >= 0.009


class Gpu:
    """A stream that lags behind: work is queued now and known `lag` calls later. Time in ms, a kernel that spins."""

    source = "a stream"

    def __init__(self, ticks_per_ms: float) -> None:
        self.ticks_per_ms = ticks_per_ms
        self.queued = 0.0
        self.done = 0.0
        self.waits = 0

    def mark(self) -> float:
        return self.queued

    def passed(self, mark: float) -> bool:
        return mark <= self.done

    def ms(self, first: float, second: float) -> float:
        return second - first

    def sleep(self, ticks: int) -> None:
        self.queued += ticks / self.ticks_per_ms

    def wait(self) -> None:
        self.waits += 1
        self.done = self.queued

    def verify(self, ms: float) -> None:
        self.queued += ms


def durations(gpu: Gpu, delay: drills.EventDelay, calls: int) -> list[float]:
    """Of the phase, with what the delay adds; the GPU is one call behind."""
    seen = []
    for _ in range(calls):
        start = gpu.queued
        delay(gpu.verify, (10.0,), {})
        seen.append(gpu.queued - start)
        gpu.done = start
    return seen


def test_a_share_of_the_time_is_added_on_a_gpu_as_soon_as_it_is_known() -> None:
    gpu = Gpu(ticks_per_ms=2e6)
    delay = drills.EventDelay(0.15, 0.0, gpu, gpu.sleep, gpu.wait)
    assert durations(gpu, delay, 5) == pytest.approx([10, 10, 11.5, 11.5, 11.5])
    assert gpu.waits == 1, "only the trial waits"


def test_milliseconds_stay_milliseconds_when_the_gpus_clock_moves() -> None:
    gpu = Gpu(ticks_per_ms=2e6)
    delay = drills.EventDelay(0.0, 3.0, gpu, gpu.sleep, gpu.wait)
    assert durations(gpu, delay, 2) == pytest.approx([13, 13])
    gpu.ticks_per_ms = 1e6
    slow = durations(gpu, delay, 80)
    assert slow[0] == pytest.approx(16)
    assert slow[-1] == pytest.approx(13, abs=0.01)


def test_only_the_phase_that_was_named_is_slowed() -> None:
    module = ModuleType(WORKERS)
    for path in METHODS.values():
        owner, _, name = path.partition(".")
        vars(module).setdefault(owner, type(owner, (), {"device": "cpu"}))
        setattr(getattr(module, owner), name, lambda self: self)
    assert on_import.wrap(module, METHODS["extend"], drills.slowed(0.0, 5.0))
    draft = module.EagleDraftWorker()
    start = time.perf_counter()
    assert draft._draft_extend_for_decode() is draft
    assert time.perf_counter() - start >= 0.005
    assert [hasattr(m, "__wrapped__") for m in (draft.draft, module.EAGLEWorkerV2().verify)] == [False, False]


# Through the launcher


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_a_lost_variable_is_lost_in_the_schedulers_and_nowhere_else(tmp_path: Path, start: str) -> None:
    order = parse("lost-nccl=NCCL_PROTO").order(2)
    printed = served(
        {
            "LITTLE_START": start,
            "EAGLE3_INSIDE_FOLDER": str(tmp_path),
            "EAGLE3_INSIDE_DRILL": order,
            "LITTLE_RANKS": "2",
            "NCCL_PROTO": "LL",
            "NCCL_ALGO": "Ring",
        }
    )
    assert "launcher: LL" in printed
    asked = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert [f.seen for f in nccl_findings(asked, load(tmp_path))] == [
        "NCCL_PROTO = 'LL' was asked for; every rank lacks it."
    ]


@pytest.mark.parametrize("phase", METHODS)
def test_a_slower_phase_shows_in_that_phase_alone(tmp_path: Path, phase: str) -> None:
    order = parse(f"slow-{phase}=1ms").order(2)
    served({"EAGLE3_INSIDE_FOLDER": str(tmp_path), "EAGLE3_INSIDE_PHASES": "1", "EAGLE3_INSIDE_DRILL": order})
    seen = phases(load_phases(tmp_path)[0])
    assert seen.mean_ms[phase] >= 1
    assert all(seen.mean_ms[other] < 0.5 for other in METHODS if other != phase)


def test_a_drill_that_this_version_cannot_do_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, WORKERS, ModuleType(WORKERS))
    with pytest.raises(RuntimeError, match=r"needs sglang\.srt\.speculative\.eagle_worker_v2\.EAGLEWorkerV2\.verify"):
        drills.install(parse("slow-verify").order(2))
