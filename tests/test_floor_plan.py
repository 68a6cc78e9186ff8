"""The arrows between rooms: every import of the suite is read, those inside functions too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

EVERYONE = {"profiles", "analysis"}
"""Rooms that any other may ask."""

ARROWS = {
    "plugin": {"checkout"},
    "session": {"checkout", "choosing", "day", "plugin", "report", "sweep"},
    "watching": {"benchmark_storage", "choosing", "day", "endings", "opening", "session"},
    "against": {"day", "replay", "session", "sweep"},
    "choosing": {"accelerators", "alone", "drilling", "engine.addresses", "engine.drill"},
    "announcing": {
        "accelerators",
        "alone",
        "benchmark_storage",
        "checkout",
        "choosing",
        "endings",
        "engine.attached",
        "host",
        "opening",
        "plan",
        "preflight",
        "references",
    },
    "opening": {
        "accelerators",
        "alone",
        "checkout",
        "choosing",
        "day",
        "drilling",
        "engine.drill",
        "host",
        "judging",
        "kept",
        "plan",
        "preflight",
        "references",
        "results",
        "resume",
    },
    "kept": {"choosing", "day", "identity", "results"},
    "day": {
        "alone",
        "checkout",
        "engine.command",
        "engine.drill",
        "host",
        "identity",
        "judging",
        "references",
        "report",
        "results",
        "resume",
        "sweep",
    },
    "measuring": {
        "accelerators",
        "checkout",
        "choosing",
        "day",
        "engine.interrupts",
        "engine.process",
        "host",
        "identity",
        "leftovers",
        "plan",
        "report",
        "sweep",
    },
    "sweep": {"accelerators", "booting", "engine", "evidence", "report", "results", "stopwatch", "taking", "workload"},
    "booting": {"checkout", "engine", "evidence", "results"},
    "stopwatch": set(),
    "rehearsal": {
        "checkout",
        "choosing",
        "day",
        "drill_nights",
        "drilling",
        "engine.drill",
        "identity",
        "opening",
        "report",
        "results",
        "sweep",
    },
    "taking": {"engine", "evidence", "levels", "workload"},
    "evidence": {"engine"},
    "alone": {"engine.command"},
    "drafts": {"checkout", "report", "results"},
    "judging": {"alone", "nights", "references", "results"},
    "workload": {"engine.client", "engine.acceptance", "engine.counting", "engine.transcript"},
    "levels": {"engine.client", "engine.acceptance", "engine.counting", "engine.transcript", "workload"},
    "preflight": {"accelerators", "checkout", "engine.ports", "host", "nccl", "pairs", "results"},
    "nccl": set(),
    "leftovers": {"birthmark", "engine.process_tree", "host"},
    "host": {"accelerators", "engine.process_tree"},
    "birthmark": set(),
    "checkout": set(),
    "accelerators": set(),
    "identity": set(),
    "drilling": {"engine.drill", "pairs", "results"},
    "drill_nights": {"choosing", "engine.drill", "report", "results"},
    "replay": set(),
    "benchmark_storage": {"replay"},
    "endings": {"benchmark_storage", "checkout", "results"},
    "references": {"results"},
    "nights": {"results"},
    "results": set(),
    "plan": {"results"},
    "resume": set(),
    "report": set(),
    "reporting": {"checkout", "day", "report", "session", "watching"},
    "pairs": set(),
    "engine": {"birthmark"},
    "profiles": set(),
    "analysis": set(),
}
"""Room → the rooms it may import besides itself, profiles and analysis."""

KNOW_NOTHING = {"profiles", "analysis", "engine/inside"}
"""Rooms that import nothing of ours but themselves."""

ENGINE_ARROWS = {
    "client": {"arrivals", "interrupts", "stream", "transcript"},
    "arrivals": set(),
    "interrupts": set(),
    "transcript": {"stream"},
    "counting": {"client", "acceptance", "transcript"},
    "acceptance": set(),
    "stream": set(),
    "server_log": set(),
    "server_info": {"command"},
    "command": {"drill"},
    "drill": set(),
}
"""Inside the engine: the pure parts know each other no more than this."""


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, `from a import b` as a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    return {name.removeprefix("fixtures.") for name in imports(path) if name.startswith("fixtures.")}


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT / "fixtures").parts[0]
    return first.removesuffix(".py")


FILES = sorted(p for p in (ROOT / "fixtures").rglob("*.py") if p.name != "__init__.py" or p.read_text().strip())


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_what_the_plan_allows(path: Path) -> None:
    room = room_of(path)
    assert room in ARROWS, f"{path}: a room that the floor plan doesn't have"
    inside = path.is_relative_to(ROOT / "fixtures/engine/inside")
    allowed = {"engine.inside"} if inside else ARROWS[room] | {room}
    if not inside and room not in KNOW_NOTHING:
        allowed |= EVERYONE
    wrong = {n for n in ours(path) if not any(n == a or n.startswith(f"{a}.") for a in allowed)}
    assert not wrong, f"{path.relative_to(ROOT)} may import {sorted(allowed)}, not {sorted(wrong)}"


@pytest.mark.parametrize("name", sorted(ENGINE_ARROWS))
def test_the_engines_pure_parts_stay_apart(name: str) -> None:
    reached = {n.split(".")[1] for n in ours(ROOT / f"fixtures/engine/{name}.py") if n.startswith("engine.")}
    assert reached <= ENGINE_ARROWS[name]


def test_the_engine_does_not_know_what_happens_inside_the_server() -> None:
    outside = list((ROOT / "fixtures/engine").glob("*.py"))
    assert outside
    assert not [p for p in outside if any(n.startswith("engine.inside") for n in ours(p))]


def test_perf_asks_analysis_and_profiles_only() -> None:
    files = sorted((ROOT / "perf").glob("*.py"))
    assert files
    wrong = {p.name: n for p in files for n in ours(p) if n.split(".")[0] not in EVERYONE}
    assert not wrong


def test_sglang_and_torch_are_imported_by_the_servers_interpreter_only() -> None:
    heavy = {"sglang", "torch", "sgl_kernel", "transformers"}
    wrong = {
        str(p.relative_to(ROOT)): found
        for p in FILES
        if not p.is_relative_to(ROOT / "fixtures/engine/inside")
        and not p.is_relative_to(ROOT / "fixtures/pairs")
        and (found := {n.split(".")[0] for n in imports(p)} & heavy)
    }
    assert not wrong


def test_fixtures_init_stays_empty_since_the_servers_interpreter_passes_through_it() -> None:
    for name in ("fixtures/__init__.py", "fixtures/engine/__init__.py", "fixtures/engine/inside/__init__.py"):
        assert (ROOT / name).read_text() == ""


def test_files_in_perf_and_tests_have_names_of_their_own() -> None:
    perf = {p.name for p in (ROOT / "perf").glob("test_*.py")}
    assert all(name.startswith("test_eagle3_") for name in perf)
    assert not [p.name for p in (ROOT / "tests").glob("test_eagle3_*.py")]


def test_no_file_grows_beyond_a_sitting() -> None:
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
