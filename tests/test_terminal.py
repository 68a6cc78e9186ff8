"""The table that a sweep ends with, and the lines around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fixtures import profiles
from fixtures.analysis.measurement import Measurement, Refusal
from fixtures.report import terminal
from tests.kit.builders import measurement, sample, slowed

PROFILE = profiles.load("cpu-tiny")
SWEEP = {0: measurement(0), 2: measurement(2), 5: measurement(5)}
"""100 tok/s plain, 200 tok/s with accept length 2 at the other depths."""


def test_a_row_has_the_figures_of_its_depth_with_their_floors() -> None:
    row = terminal.row(SWEEP[2], SWEEP[0], PROFILE, "holds")
    floors = (f"{PROFILE.floors.throughput[2]:.3f}", f"{PROFILE.floors.accept_length[2]:.3f}")
    assert row == ("2", "3", "200.0", "2.000", floors[0], "2.000", floors[1], "10.00", "holds")


def test_the_baseline_has_no_floors_and_no_ratio() -> None:
    assert terminal.row(SWEEP[0], SWEEP[0], PROFILE, "baseline") == (
        *("0", "–", "100.0", "–", "–", "1.000", "–", "10.00", "baseline"),
    )


def test_the_table_has_a_line_per_server() -> None:
    lines = terminal.table(SWEEP, PROFILE, {0: "baseline", 2: "holds"}).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "2", "5"]
    assert lines[-1].endswith("not judged")


def test_an_accept_length_that_is_simulated_is_told_from_the_drafts_own() -> None:
    row = terminal.row(measurement(2, simulated=2.0), SWEEP[0], PROFILE, "holds")
    assert (row[3], row[5]) == ("–", "2.000 (set)")
    assert terminal.best({0: SWEEP[0], 2: measurement(2, simulated=2.0)}) == "No best depth: acceptance was simulated."


def test_a_provisional_floor_is_marked_and_says_from_what_it_was_derived() -> None:
    kimi = profiles.load("kimi-k2.5-int4")
    assert terminal.row(measurement(3), SWEEP[0], kimi, "holds")[4].endswith("*")
    assert any(note.startswith("* provisional floor at depth 3: Not published.") for note in terminal.notes(kimi))


def test_the_smaller_depth_wins_a_tie() -> None:
    assert terminal.best(SWEEP) == "Best: 2 steps, 2.000 × the plain server."


def test_no_speculation_is_a_legal_answer() -> None:
    assert terminal.best({0: SWEEP[0], 2: slowed(SWEEP[2], 2.1)}).startswith("Best: no speculation.")


def test_one_server_alone_names_no_best_depth() -> None:
    assert terminal.best({0: SWEEP[0]}).startswith("No best depth")


def test_servers_without_a_common_prompt_name_no_best_depth_and_raise_nothing() -> None:
    """Two prompts, of which either server refused another one."""
    apart = {0: measurement(0, (sample("a", decode_s=1.0, verifies=100),)), 2: measurement(2, (sample("b"),))}
    assert terminal.best(apart) == (
        "No best depth: nothing could be compared, since no prompt has a sample everywhere. Look at the refusals."
    )
    assert terminal.row(apart[2], apart[0], PROFILE, "undecided")[3] == "–"
    floors = PROFILE.floors.model_copy(update={"cycle_cost": {2: 1.5}})
    assert terminal.ceilings(apart, PROFILE.model_copy(update={"floors": floors})) == [
        "2 steps: a cycle's cost could not be told, since no prompt has a sample on both servers; ceiling 1.500."
    ]


def test_plain_completions_that_alternated_and_lack_the_prompt_name_no_best_depth_either() -> None:
    lacking = {2: measurement(0, (sample("another", decode_s=1.0, verifies=100),))}
    assert terminal.best(SWEEP, lacking).startswith("No best depth: nothing could be compared")


def test_the_time_adds_up_with_what_no_part_accounts_for() -> None:
    assert terminal.time_spent({"boot": 60.0, "measure": 30.0, "stop": 6.0}, 100.0) == (
        "Time 100 s: boot 60 s (60.0%), measure 30 s (30.0%), stop 6 s (6.0%), other 4 s (4.0%)"
    )


def test_the_source_of_the_counts_and_every_note_is_told() -> None:
    noted = {0: SWEEP[0], 2: measurement(2, notes=("metrics say 51, the stream 50",))}
    assert terminal.remarks(noted) == ["Verify counts from: test.", "depth 2: metrics say 51, the stream 50"]


def test_refused_completions_are_told_with_the_first_ones_reason() -> None:
    refused = (Refusal("p3", 0, "connection failed after 13 chunks"), Refusal("p4", 0, "HTTP 503"))
    told = terminal.remarks({2: measurement(2, refusals=refused)})
    assert told[1:] == [
        "depth 2: 2 completions refused, and in no figure; the first: p3 (pass 0): connection failed after 13 chunks"
    ]


def test_what_no_test_looked_at_is_said_once_for_depths_alike() -> None:
    left = {2: ["text", "throughput"], 1: ["text", "throughput"], 5: ["text"]}
    assert list(terminal.not_judged(left)) == [
        "Not judged, since no test of it ran: text, throughput at 1 step, 2 steps.",
        "Not judged, since no test of it ran: text at 5 steps.",
    ]


def logged(depth: int, log: str) -> Measurement:
    m = measurement(depth)
    return replace(m, server=replace(m.server, log=log))


def evidence(measured: Measurement, *logs: str) -> str:
    """What is said of where one depth's evidence lies, beside these logs."""
    depth = measured.depth
    return terminal.paths(Path("/r"), {depth: measured}, [], {depth: [Path(log) for log in logs]}).splitlines()[-1]


def test_the_log_that_is_named_is_the_measurements_own() -> None:
    assert evidence(logged(2, "/r/depth-2.log"), "/r/depth-2.log") == "  depth 2: depth-2.json, depth-2.log"


def test_the_log_of_a_sweep_in_another_folder_is_named_with_that_folder() -> None:
    assert evidence(logged(2, "/before/depth-2.log")) == "  depth 2: depth-2.json, /before/depth-2.log"


def test_of_an_attached_server_the_address_is_named_as_it_was_given() -> None:
    line = evidence(logged(2, "http://127.0.0.1:30000 (not ours)"))
    assert line == "  depth 2: depth-2.json, http://127.0.0.1:30000 (not ours)"


def test_the_logs_of_other_boots_of_the_depth_are_named_after_its_own() -> None:
    line = evidence(logged(2, "/r/depth-2.boot-2.log"), "/r/depth-2.log", "/r/depth-2.boot-2.log")
    assert line == "  depth 2: depth-2.json, depth-2.boot-2.log, depth-2.log"


def test_the_evidence_of_a_depth_without_a_measurement_is_its_newest_log() -> None:
    logs = {2: [Path("/r/depth-2.log"), Path("/r/depth-2.boot-2.log")]}
    assert terminal.paths(Path("/r"), {0: SWEEP[0]}, [2], logs).splitlines()[-1] == (
        "  depth 2: no measurement; see depth-2.boot-2.log, depth-2.log"
    )


def test_a_depth_that_never_booted_has_no_log() -> None:
    assert terminal.paths(Path("/r"), {}, [2], {}).splitlines()[-1] == "  depth 2: no measurement; it has no log"
