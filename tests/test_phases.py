"""Phases of a cycle: hooks → file → figures → text, and blocks that others print."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fixtures import profiles, workload
from fixtures.analysis.phases import CyclePhases, phases_from
from fixtures.engine import command, process
from fixtures.engine.client import Settings
from fixtures.engine.drill import WELL, Drill
from fixtures.engine.inside import phases as inside
from fixtures.engine.inside.marks import ClockMarks
from fixtures.engine.inside.started import Rank
from fixtures.engine.phase_blocks import blocks
from fixtures.engine.phase_records import PhasesError, load, parse, phases, slowest
from fixtures.report.phases import block
from fixtures.workload import Window
from tests.kit.little_engine import served

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = {"draft": 1.07, "verify": 17.44, "extend": 0.32, "unexplained": -0.01, "total": 18.82}
"""One step of a published tuning log: 1.07, 17.44 and 0.32 ms of 18.82, each rounded; 0.62 accepted in 400 cycles."""


# Cycles → lines


class Stream:
    """A device whose points are milliseconds; it is past those before `past`."""

    source = "stream"

    def __init__(self) -> None:
        self.at = 0.0
        self.past = math.inf

    def mark(self) -> float:
        return self.at

    def passed(self, mark: float) -> bool:
        return mark < self.past

    def ms(self, first: float, second: float) -> float:
        assert max(first, second) < self.past, "a real event raises here"
        return second - first


class Played:
    """Cycles on a stream: draft 1 ms, verify 10 ms, extend 2 ms, and 3 ms until the next."""

    def __init__(self, every: int = 4) -> None:
        self.stream = Stream()
        self.lines: list[Mapping[str, Any]] = []
        self.cycles = inside.Cycles(self.stream, self.lines.append, every, now=lambda: self.stream.at / 1e3)

    def play(self, count: int, **ms: float) -> None:
        for _ in range(count):
            for phase, usual in (("draft", 1), ("verify", 10), ("extend", 2)):
                self.cycles.enter(phase)
                self.stream.at += ms.get(phase, usual)
                self.cycles.leave(phase)
            self.stream.at += 3
            self.cycles.count([1])


def test_a_cycle_runs_from_one_draft_to_the_next_and_its_parts_add_up() -> None:
    played = Played()
    played.play(5)
    (line,) = played.lines
    assert line["cycles"] == 4
    assert line["ms"] == {
        "draft": [4, 4],
        "verify": [40, 400],
        "extend": [8, 16],
        "unexplained": [12, 36],
        "total": [64, 1024],
    }
    assert (line["from_s"], line["to_s"]) == (0, 0.064)


def test_the_last_cycle_before_a_prefill_is_left_out_and_no_idle_time_is_in_any() -> None:
    played = Played(every=20)
    played.play(10)
    played.stream.at += 60_000
    played.cycles.interrupt()
    played.play(10)
    played.cycles.interrupt()
    assert [(line["cycles"], line["cut"], line["ms"]["total"][0]) for line in played.lines] == [(9, 1, 144)] * 2


def test_a_few_cycles_wait_for_more_before_they_make_a_line() -> None:
    played = Played(every=32)
    for _ in range(3):
        played.play(4)
        played.cycles.interrupt()
    assert [(line["cycles"], line["cut"]) for line in played.lines] == [(9, 3)]


def test_drafts_are_counted_with_the_verifies_that_accepted_them() -> None:
    played = Played()
    played.play(4)
    played.cycles.count([0, 2, 3])
    played.play(1)
    assert (played.lines[0]["verifies"], played.lines[0]["accepted"]) == (7, 9)


def test_cycles_are_told_only_once_the_device_is_past_them() -> None:
    played = Played(every=1)
    played.stream.past = 40
    played.play(5)
    assert [line["cycles"] for line in played.lines] == [1, 1]
    played.stream.past = math.inf
    played.cycles.interrupt()
    played.play(5)
    assert sum(line["cycles"] for line in played.lines) == 8


def test_a_cycle_that_lacks_a_phase_is_no_cycle() -> None:
    played = Played(every=1)
    played.cycles.leave("extend")  # the hooks came in the middle of one
    played.cycles.enter("draft")
    played.cycles.leave("draft")
    played.play(2)
    assert [(line["cycles"], line["cut"]) for line in played.lines] == [(1, 1)]


def test_a_long_life_makes_a_short_file() -> None:
    played = Played(every=1)
    played.play(inside.LINES * (1 + 2 + 4 + 8) + 1)
    assert len(played.lines) == 4 * inside.LINES
    assert played.lines[-1]["cycles"] == 8


def test_short_completions_make_a_short_file_too() -> None:
    played = Played(every=4)
    for _ in range(20 * inside.LINES):
        played.play(3)
        played.cycles.interrupt()
    # 256 lines each of 2, 2, 4, 8 and 16 cycles, and 64 of 32: 2 of each completion's 3 cycles have a successor.
    assert len(played.lines) == 5 * inside.LINES + 64


# Hooks


def nothing(*_: object) -> None:
    """A method that takes no time."""


def worker_module() -> ModuleType:
    """SGLang's names."""
    module = ModuleType(inside.WORKERS)
    for path in (*inside.METHODS.values(), inside.PREFILL, inside.COUNTS):
        owner, _, name = path.partition(".")
        vars(module).setdefault(owner, type(owner, (), {"device": "cpu"}))
        setattr(getattr(module, owner), name, nothing)
    return module


def microseconds_per_cycle(module: ModuleType, count: int) -> float:
    draft, worker = module.EagleDraftWorker(), module.EAGLEWorkerV2()
    start = time.perf_counter()
    for _ in range(count):
        draft.draft()
        worker.verify()
        draft._draft_extend_for_decode()
        worker.on_verify_complete_cpu([1])
    return (time.perf_counter() - start) / count * 1e6


def test_the_hooks_cost_at_most_fifty_microseconds_per_cycle(tmp_path: Path) -> None:
    module = worker_module()
    bare = min(microseconds_per_cycle(module, 500) for _ in range(5))
    probe = inside.Probe(tmp_path)
    probe.install(module)
    probe.started(Rank(0, 1, 0, 1), SimpleNamespace(draft_worker=module.EAGLEWorkerV2()))
    # The best of several: what others do on the machine isn't the hooks' cost. Lines are written, too.
    hooked = min(microseconds_per_cycle(module, 500) for _ in range(9))
    (recording,) = load(tmp_path)
    assert len(recording.lines) > 100
    assert hooked - bare <= 50, f"{hooked:.1f} µs with hooks, {bare:.1f} µs without"


def test_a_file_that_cannot_be_written_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = inside.Lines(Path("/dev/full"))
    lines.write({"cycles": 1})
    lines.write({"cycles": 2})
    assert capsys.readouterr().err.count("no more phases are kept: [Errno 28]") == 1


def test_every_rank_of_a_server_leaves_a_file(tmp_path: Path) -> None:
    served({"EAGLE3_INSIDE_FOLDER": str(tmp_path), "EAGLE3_INSIDE_PHASES": "1", "LITTLE_RANKS": "2"})
    recordings = load(tmp_path)
    assert [recording.rank for recording in recordings] == ["0-0", "0-1"]
    for recording in recordings:
        seen = phases(recording)
        # Three completions of 20 cycles: the last of each is cut, and so is the third, which no prefill follows.
        assert (seen.cycles, seen.cut, seen.accept_length) == (38, 2, 2.0)
        assert math.isclose(sum(seen.mean_ms.values()), 2 * seen.mean_ms["total"])


def test_without_the_order_nothing_is_wrapped_and_nothing_kept(tmp_path: Path) -> None:
    assert "verify is wrapped: False" in served({"EAGLE3_INSIDE_FOLDER": str(tmp_path)})
    with pytest.raises(PhasesError, match="no scheduler has left phases; see the server's log"):
        load(tmp_path)


def test_a_version_without_these_methods_serves_and_says_so(tmp_path: Path) -> None:
    served({"EAGLE3_INSIDE_FOLDER": str(tmp_path), "EAGLE3_INSIDE_PHASES": "1", "LITTLE_VERSION": "old"})
    (recording,) = load(tmp_path)
    with pytest.raises(PhasesError) as error:
        phases(recording)
    assert str(error.value) == (
        "not available on this version of SGLang (0.0.little): its EAGLEWorkerV2 lacks EAGLEWorkerV2.verify"
    )


# Files → figures

HEADER = {"rank": 0, "world": 1, "replica": 0, "replicas": 1, "source": "clock", "worker": "EAGLEWorkerV2"}


def line(from_s: float, cycles: int = 2, verify: tuple[float, float] = (20, 200), **more: Any) -> dict[str, Any]:
    """Two cycles of 1 + 10 + 2 + 3 ms, in the second that begins there."""
    ms = {"draft": (2, 2), "verify": verify, "extend": (4, 8), "unexplained": (6, 18), "total": (12 + verify[0], 512)}
    return {
        "cycles": cycles,
        "cut": 1,
        "from_s": from_s,
        "to_s": from_s + 1,
        "ms": ms,
        "verifies": 4,
        "accepted": 3,
    } | more


def file(*lines: Mapping[str, Any], **header: Any) -> str:
    told = {**HEADER, "sglang": "0.5.23", "missing": [], **header}
    return "".join(json.dumps(each) + "\n" for each in (told, *lines))


def test_lines_add_up_to_means_and_deviations() -> None:
    seen = phases(parse(file(line(0), line(1, verify=(24, 288)))))
    assert (seen.cycles, seen.cut, seen.source, seen.rank) == (4, 2, "clock", "0-0")
    assert seen.mean_ms == {"draft": 1, "verify": 11, "extend": 2, "unexplained": 3, "total": 17}
    # Verifies of 10, 10, 12 and 12 ms.
    assert seen.sd_ms["verify"] == pytest.approx(math.sqrt(4 / 3))
    assert seen.standard_error_ms("verify") == pytest.approx(math.sqrt(4 / 3) / 2)
    assert seen.accept_length == 1 + 6 / 8
    assert phases_from(json.loads(json.dumps(asdict(seen)))) == seen


def test_neighbours_that_are_alike_make_the_error_wider() -> None:
    """Two cycles of 10 ms, two of 12, and so on: sixteen independent ones would know their mean better."""
    verifies = [(20.0, 200.0), (24.0, 288.0)] * 4
    seen = phases(parse(file(*(line(n, verify=v) for n, v in enumerate(verifies)))))
    alone = seen.sd_ms["verify"] / math.sqrt(16)
    assert alone == pytest.approx(math.sqrt(16 / 15) / 4)
    # Eight means that lie 1 ms off: √(8/7 · 8) / 8.
    assert seen.standard_error_ms("verify") == pytest.approx(math.sqrt(8 / 7 * 8) / 8)
    few = phases(parse(file(*(line(n, verify=v) for n, v in enumerate(verifies[:4])))))
    assert few.error_ms == {}


def test_only_lines_within_the_time_asked_for_count() -> None:
    recording = parse(file(line(0, verify=(90, 8100)), line(2), line(4, verify=(90, 8100))))
    assert phases(recording, from_s=2, to_s=3).mean_ms["verify"] == 10
    with pytest.raises(PhasesError, match=r"^no cycle was recorded in the time asked for \(3 lines in all; worker EAG"):
        phases(recording, from_s=2.5, to_s=3)


def test_a_line_that_is_being_written_is_left_out() -> None:
    whole = file(line(0), line(1))
    assert [len(parse(whole[:-cut]).lines) for cut in (1, 50)] == [1, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file is empty"),
        (file()[:20], "the file is empty"),
        ("nonsense\n", "not a file of phases"),
    ],
)
def test_what_is_no_file_of_phases_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "phases-0-0.jsonl"
    path.write_text(text)
    with pytest.raises(PhasesError, match=f"^{path}: {why}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"worker": None, "source": None, "missing": ["never imported"]}, "the server doesn't speculate"),
        ({"source": None}, "not available on the device of its EAGLEWorkerV2"),
    ],
)
def test_a_server_without_phases_says_why(header: dict[str, Any], why: str) -> None:
    with pytest.raises(PhasesError, match=f"^{why}$"):
        phases(parse(file(**header)))


def test_the_slowest_rank_is_the_one_that_the_others_wait_for() -> None:
    ranks = [phases(parse(file(line(0, verify=(v, 400)), rank=n))) for n, v in enumerate((20, 26, 22))]
    assert slowest(ranks).rank == "0-1"


# Figures ↔ text


def figures(**facts: Any) -> CyclePhases:
    return CyclePhases("cuda events", "0-0", 400, REFERENCE, {}, 1.62, **facts)


def test_the_block_has_the_form_that_teams_know() -> None:
    assert block(figures(), 1) == "\n".join(
        (
            "EAGLE3_PROF 1 step, 400 cycles, cuda events, rank 0-0",
            "phase            ms/cycle    share",
            "draft steps         1.070    5.7 %",
            "target verify      17.440   92.7 %",
            "draft re-extend     0.320    1.7 %",
            "unexplained        -0.010   -0.1 %",
            "TOTAL              18.820  100.0 %",
            "accept len          1.620   bonus token included",
        )
    )


def test_the_measurements_accept_length_stands_in_the_block_where_there_is_one() -> None:
    assert block(figures(), 1, accept_length=1.602).endswith("accept len          1.602   bonus token included")


ONE_LINE = (
    "[2026-01-07 03:12:55 TP0] EAGLE3_PROF cycles=400 | draft steps: 1.07 ms (5.7%) | target verify: 17.44 ms (92.7%) "
    "| draft re-extend: 0.32 ms (1.7%) | other: -0.01 ms (-0.1%) | TOTAL: 18.82 ms/cyc | accept len: 0.62"
)
EVERY_LINE = """
[2026-01-07 03:12:55 TP0] EAGLE3_PROF (400 cycles)
[2026-01-07 03:12:55 TP0] EAGLE3_PROF   draft steps      = 1.07 ms/cyc
[2026-01-07 03:12:55 TP0] EAGLE3_PROF   target verify    = 17.44 ms/cyc
[2026-01-07 03:12:55 TP0] EAGLE3_PROF   draft re-extend  = 0.32 ms/cyc
[2026-01-07 03:12:55 TP0] EAGLE3_PROF   other            = -0.01 ms/cyc
[2026-01-07 03:12:55 TP0] EAGLE3_PROF   TOTAL ms/cyc     = 18.82
[2026-01-07 03:12:55 TP0] EAGLE3_PROF   accept len       = 1.62
"""
TABLE = """
=== EAGLE3_PROF ===
draft steps        5.7%    1.07
target verify     92.7%   17.44
draft re-extend    1.7%    0.32
other             -0.1%   -0.01
TOTAL ms/cyc              18.82
accept len                 1.62
cycles                      400
[2026-01-07 03:12:56 TP0] Decode batch, #running-req: 1, accept len: 2.17, cuda graph: True
"""
KEYS = "EAGLE3_PROF draft=1.07ms verify=17.44ms extend=0.32ms other=-0.01ms total=18.82ms accept_len=0.62 cycles=400"


@pytest.mark.parametrize("log", [ONE_LINE, EVERY_LINE, TABLE, KEYS, block(figures(), 1)], ids=lambda log: log[:30])
def test_a_block_is_read_in_any_form(log: str) -> None:
    (seen,) = blocks(f"something before: draft steps 9\n{log}\n")
    assert seen.mean_ms == {name: pytest.approx(value) for name, value in REFERENCE.items()}
    assert (seen.cycles, seen.source) == (400, "log")
    assert seen.accept_length == pytest.approx(1.62)


def test_blocks_are_read_one_by_one() -> None:
    slower = EVERY_LINE.replace("17.44", "28.70").replace("18.82", "30.08")
    assert [seen.mean_ms["verify"] for seen in blocks(EVERY_LINE + slower + ONE_LINE)] == [17.44, 28.7, 17.44]


def test_a_block_without_extend_leaves_more_unexplained() -> None:
    # As published for two steps: draft 0.89, verify 18.67, total 19.85 ms.
    (seen,) = blocks("EAGLE3_PROF draft steps 0.89 target verify 18.67 TOTAL 19.85 ms/cyc")
    assert seen.mean_ms["unexplained"] == pytest.approx(0.29)
    assert "extend" not in seen.mean_ms
    assert (seen.cycles, seen.accept_length, seen.standard_error_ms("verify")) == (0, None, None)


@pytest.mark.parametrize(
    "log", ["", "EAGLE3_PROF enabled", "EAGLE3_PROF draft steps 1.07 TOTAL 18.82", "verify 3 total 4"]
)
def test_what_is_no_block_gives_nothing(log: str) -> None:
    assert blocks(log) == ()


# A real engine

DEPTH = 2
TINY = profiles.load("cpu-tiny")
INSTRUMENTED = TINY.model_copy(update={"launch": TINY.launch.model_copy(update={"instrument": True})})
PROMPTS = profiles.read_prompts(TINY.workload.prompts)[:6]


def measured(folder: Path, drill: Drill = WELL) -> tuple[Window, float]:
    """A window of six prompts at two steps, and when it ended."""
    server = process.boot(
        lambda port: command.launch(
            INSTRUMENTED, DEPTH, port=port, api_key="key-of-a-test", root=ROOT, inside=folder, drill=drill
        ),
        log=folder / "server.log",
    )
    try:
        window = asyncio.run(
            workload.run(
                PROMPTS,
                url=server.url,
                api_key=server.api_key,
                settings=Settings(max_tokens=128),
                depth=DEPTH,
                check_alive=server.check_alive,
                passes=2,
            )
        )
        return window, time.monotonic()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Window, float]:
    folder = tmp_path_factory.mktemp("untouched")
    return folder, *measured(folder)


def against_the_rest(folder: Path, phase: str) -> float:
    """A phase over the other two, line by line, in the middle: what else runs on the machine slows them alike."""
    others = [name for name in inside.METHODS if name != phase]
    lines = [line["ms"] for line in load(folder)[0].lines]
    return median(ms[phase][0] / sum(ms[name][0] for name in others) for ms in lines)


@pytest.mark.engine
def test_on_a_real_server_the_phases_explain_the_cycle_that_the_client_sees(
    untouched: tuple[Path, Window, float],
) -> None:
    folder, window, ended = untouched
    seen = phases(load(folder)[0], from_s=window.began_s, to_s=ended)
    assert seen.source == "clock"
    # Twelve completions of some 60 cycles, none of the warm-up; the last of each is cut, and the last line not full.
    verifies = sum(s.verifies for s in window.samples)
    assert 0.85 * verifies < seen.cycles <= verifies - len(window.samples)
    client_ms = 1e3 * sum(s.decode_s for s in window.samples) / verifies
    assert seen.mean_ms["total"] == pytest.approx(client_ms, rel=0.08)
    assert sum(seen.mean_ms.values()) == pytest.approx(2 * seen.mean_ms["total"])
    assert 0 < seen.share("unexplained") < 0.25
    assert seen.accept_length == pytest.approx(2.12, abs=0.1)


def ratios(folder: Path) -> Mapping[str, float]:
    return {phase: against_the_rest(folder, phase) for phase in inside.METHODS}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(("phase", "share"), [("verify", 0.15), ("draft", 0.4)])
def test_a_phase_that_a_drill_makes_slower_is_the_one_that_shows(
    untouched: tuple[Path, Window, float], tmp_path: Path, phase: str, share: float
) -> None:
    measured(tmp_path, Drill(f"slow-{phase}", f"{100 * share:g}%"))
    before, after = ratios(untouched[0]), ratios(tmp_path)
    gains = {name: after[name] / before[name] for name in inside.METHODS}
    # Between boots on a shared machine these ratios scatter by 3 %, and by more for the short phases.
    assert gains[phase] == pytest.approx(1 + share, rel=0.08), gains
    assert max(gains, key=lambda name: gains[name]) == phase, gains
    assert all(gain < 1.04 for name, gain in gains.items() if name != phase), gains


def test_the_clock_of_the_marks_is_in_milliseconds() -> None:
    marks = ClockMarks()
    first = marks.mark()
    time.sleep(0.002)
    assert 2 <= marks.ms(first, marks.mark()) < 200
