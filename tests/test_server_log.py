"""A server's log → facts, on recordings and on lines that released formatting code printed."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.engine import server_log

RECORDINGS = Path(__file__).resolve().parent / "recordings"
CPU, H200 = RECORDINGS / "cpu-sglang-0.5.23", RECORDINGS / "h200-sglang-0.5.17"
BY_VERSION: list[dict[str, Any]] = json.loads((RECORDINGS / "decode_lines_by_version.json").read_text())["lines"]
HEAD = "[2026-11-29 15:50:31] "
SPECULATIVE = next(r["printed"] for r in BY_VERSION if (r["version"], r["case"]) == ("0.5.23", "speculative"))
PREFILL = "Prefill batch, #new-seq: 1, #new-token: 32, #cached-token: 0, token usage: 0.00, #running-req: 0"


def read(path: Path) -> str:
    return path.read_bytes().decode()


def one(line: str) -> server_log.DecodeLine:
    (found,) = server_log.decode_lines(line)
    return found


# --- decode lines


@pytest.mark.parametrize("printed", BY_VERSION, ids=lambda r: f"{r['version']}-{r['case']}".replace(" ", "-"))
def test_the_decode_line_of_every_version_is_read(printed: dict[str, Any]) -> None:
    line = one(HEAD + printed["printed"])
    assert line.at == datetime(2026, 11, 29, 15, 50, 31)
    assert line.batch_size == 1
    assert line.throughput == 361.53
    assert line.accept_length == (None if "accept len" not in printed["printed"] else 2.27)
    assert line.graph is (None if "graph" not in printed["printed"] else "graph: True" in printed["printed"])
    assert line.values.get("#token", line.values.get("#full token")) == 42
    assert line.values["#queue-req"] == 0


def test_keys_of_later_versions_are_kept_as_printed() -> None:
    line = one(
        f"{HEAD}{SPECULATIVE}, est. decode TFLOPS/s (per GPU): 2.50, fwd occupancy: 87.50%, mode: lazy, new: True"
    )
    assert line.values["est. decode TFLOPS/s (per GPU)"] == 2.5
    assert line.values["fwd occupancy"] == 87.5
    assert line.values["mode"] == "lazy"
    assert line.values["new"] is True
    assert line.accept_length == 2.27


@pytest.mark.parametrize(
    ("head", "source"),
    [
        ("[2026-11-29 15:50:31] ", ""),
        ("[2026-11-29 15:50:31.123] ", ""),
        ("[2026-11-29 15:50:31 TP0] ", "TP0"),
        ("[2026-11-29 15:50:31 DP1 PP0 TP3 EP3] ", "DP1 PP0 TP3 EP3"),
        ("[2026-11-29 15:50:31 ATTN_CP0 MOE_DP1 TP0] ", "ATTN_CP0 MOE_DP1 TP0"),
        ("(SchedulerActor pid=417, ip=10.0.0.7) [2026-11-29 15:50:31 TP0] ", "SchedulerActor pid=417, ip=10.0.0.7 TP0"),
        ("\x1b[36m(SchedulerActor pid=417)\x1b[0m [2026-11-29 15:50:31] ", "SchedulerActor pid=417"),
    ],
)
def test_ranks_ray_and_colours_are_told_apart_from_the_message(head: str, source: str) -> None:
    line = one(head + SPECULATIVE)
    assert (line.source, line.accept_length) == (source, 2.27)


def test_two_records_that_share_a_line_are_two() -> None:
    first, second = server_log.decode_lines(
        f"[2026-11-29 15:50:31 TP0] {SPECULATIVE}[2026-11-29 15:50:32 TP1] {SPECULATIVE}\n"
    )
    assert (first.source, first.values["#queue-req"]) == ("TP0", 0)
    assert (second.source, second.values["#queue-req"]) == ("TP1", 0)


def test_a_line_after_a_prefill_says_that_its_throughput_means_nothing() -> None:
    text = "\n".join(HEAD + message for message in (SPECULATIVE, SPECULATIVE, PREFILL, SPECULATIVE, SPECULATIVE))
    assert [line.after_prefill for line in server_log.decode_lines(text)] == [True, False, True, False]


def test_the_prefill_of_one_server_does_not_concern_another() -> None:
    ranks = ("[2026-11-29 15:50:31 DP0] ", "[2026-11-29 15:50:31 DP1] ")
    text = "\n".join(head + message for message in (SPECULATIVE, PREFILL, SPECULATIVE) for head in ranks[:1])
    text = f"{ranks[1]}{SPECULATIVE}\n{text}\n{ranks[1]}{SPECULATIVE}"
    told = [(line.source, line.after_prefill) for line in server_log.decode_lines(text)]
    assert told == [("DP1", True), ("DP0", True), ("DP0", True), ("DP1", False)]


def test_a_recorded_server_gives_its_decode_lines() -> None:
    lines = server_log.decode_lines(read(H200 / "d2.log"))
    assert lines[0].after_prefill
    assert lines[0].throughput == 12.61
    assert [line.accept_length for line in lines[:4]] == [2.02, 2.27, 1.90, 2.00]
    assert all(line.graph for line in lines)


def test_text_that_is_no_decode_line_gives_none() -> None:
    assert server_log.decode_lines("Decode batch\nnonsense: 1\n[not a time] Decode batch, #running-req: 1\n") == ()


# --- boot phases


def test_the_phases_of_a_gpu_boot_are_those_the_server_told() -> None:
    assert server_log.boot_phases(read(H200 / "d2.log")) == {
        "load_weight": 2.03,
        "kv_cache": 1.48,
        "scheduler": 28.91,
        "cuda_graph": 21.9,
        "cuda_graph.target_verify": 3.51,
        "cuda_graph.draft_decode": 15.51,
        "cuda_graph.draft_extend": 2.88,
        "imports": 28.0,
        "warm_up": 6.0,
        "total": 65.0,
    }


def test_the_phases_of_a_cpu_boot_have_no_graphs() -> None:
    phases = server_log.boot_phases(read(CPU / "d2.log"))
    assert phases == {
        "load_weight": 0.03,
        "kv_cache": 0.48,
        "scheduler": 1.15,
        "cuda_graph": 0.0,
        "imports": 5.0,
        "warm_up": 2.0,
        "total": 9.0,
    }


def test_a_log_without_timings_gives_them_from_begin_and_end() -> None:
    text = "\n".join(line for line in read(H200 / "d2.log").split("\n") if "startup timings" not in line)
    phases = server_log.boot_phases(text)
    assert phases["load_weight"] == pytest.approx(1.90 + 0.13)
    assert phases["cuda_graph"] == pytest.approx(3.51 + 15.51 + 2.88)


# 0.4.9.post6: srt/model_executor/model_runner.py:595, 678, 1477, 1483 and cuda_graph_runner.py:238
OLD = """\
[2025-08-01 10:00:00 TP0] Load weight begin. avail mem=79.10 GB
[2025-08-01 10:00:01 TP1] Load weight begin. avail mem=79.10 GB
[2025-08-01 10:00:20 TP0] Load weight end. type=Llama, dtype=bfloat16, avail mem=64.00 GB, mem usage=15.10 GB.
[2025-08-01 10:00:31 TP1] Load weight end. type=Llama, dtype=bfloat16, avail mem=64.00 GB, mem usage=15.10 GB.
[2025-08-01 10:00:32 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=20.00 GB
[2025-08-01 10:00:32 TP0] Capture cuda graph bs [1, 2, 4, 8]
[2025-08-01 10:00:41 TP0] Capture cuda graph end. Time elapsed: 8.75 s. mem usage=1.00 GB. avail mem=19.00 GB.
"""


def test_with_several_ranks_the_slowest_counts() -> None:
    phases = server_log.boot_phases(OLD)
    assert phases == {"load_weight": 30.0, "cuda_graph": 8.75}


def test_a_clock_that_was_set_back_gives_no_negative_phase() -> None:
    phases = server_log.boot_phases(OLD.replace("10:00:31 TP1", "09:00:00 TP1"))
    assert phases["load_weight"] == 20.0
    assert min(phases.values()) >= 0


def test_an_empty_log_has_no_phases() -> None:
    assert server_log.boot_phases("") == {}


# --- graphs


def test_the_share_of_decode_lines_that_ran_in_a_graph_is_told() -> None:
    assert server_log.graph_state(read(H200 / "d2.log")).share == 1.0
    line = "[2026-11-29 15:50:03] Decode batch, #running-req: 1, #token: 9, token usage: 0.01, cuda graph: {}"
    text = "\n".join(line.format(graph) for graph in ("True", "False", "True", "True"))
    assert server_log.graph_state(text).share == 0.75
    assert server_log.graph_state("nothing").share is None


def test_captured_batch_sizes_are_told_by_graph() -> None:
    assert server_log.graph_state(read(H200 / "d2.log")).captured == {
        "target verify": (1, 2, 3, 4),
        "draft decode": (1, 2, 3, 4),
        "draft extend": (1, 2, 3, 4),
    }


def test_old_logs_name_the_batch_sizes_on_a_line_of_their_own() -> None:
    assert server_log.graph_state(OLD).captured == {"": (1, 2, 4, 8)}


# 0.5.23: srt/model_executor/model_runner_components/cuda_graph_setup.py:759, 788
NEW = (
    "[2026-11-29 15:50:03] Capture target verify cuda graph begin. backend=full, num_tokens_per_req=3, "
    "avail mem=65.11 GB\n"
    "[2026-11-29 15:50:06] Capture target verify cuda graph end. bs=[1, 2, 4], elapsed=3.51 s, mem usage=0.04 GB, "
    "avail mem=65.07 GB.\n"
)


def test_new_logs_name_the_batch_sizes_at_the_end() -> None:
    assert server_log.graph_state(NEW).captured == {"target verify": (1, 2, 4)}


def test_a_capture_that_failed_captured_nothing() -> None:
    assert server_log.graph_state(read(H200 / "boot_failure_float32.log")).captured == {}


def test_a_server_in_graphs_never_fell_back() -> None:
    state = server_log.graph_state(read(H200 / "d2.log"))
    assert list(state.in_graph) == [1]
    assert state.fell_back(1) is None


def test_a_fall_back_at_batch_size_1_is_told_with_its_line() -> None:
    fallen = SPECULATIVE.replace("cuda graph: True", "cuda graph: False")
    state = server_log.graph_state(NEW + HEAD + SPECULATIVE + "\n" + HEAD + fallen)
    assert state.fell_back(1) == fallen
    assert state.fell_back(2) is None


def test_a_server_that_never_captured_has_not_fallen_back() -> None:
    state = server_log.graph_state(read(CPU / "d2.log"))
    assert state.captured == {}
    assert list(state.without) == [1]
    assert state.fell_back(1) is None


# --- progress


def test_a_gpu_boot_is_told_step_by_step() -> None:
    steps: list[tuple[str, str]] = []
    for line in server_log.clean(read(H200 / "d2.log")).split("\n"):
        step = server_log.progress(line)
        if step and step not in steps[-1:]:
            steps.append(step)
    assert [step for step in steps if step[0] not in ("weights", "graphs")] == [
        ("imports", ""),
        ("distributed", ""),
        ("distributed", ""),
        ("kv cache", ""),
        ("warm-up", ""),
        ("ready", ""),
    ]
    assert ("weights", "100 %, 1/1") in steps
    assert ("weights", "LlamaForCausalLMEagle3") in steps
    assert [step for step in steps if step[0] == "graphs" and "%" not in step[1]] == [
        ("graphs", "target verify"),
        ("graphs", "draft decode"),
        ("graphs", "draft extend"),
    ]
    assert ("graphs", "25 %, 1/4") in steps


@pytest.mark.parametrize(
    "line", ["", "warnings.warn(", HEAD + SPECULATIVE, '[2026-11-29 15:50:31] "GET / HTTP/1.1" 200']
)
def test_other_lines_are_no_progress(line: str) -> None:
    assert server_log.progress(line) is None


# --- ports


def test_a_port_that_was_taken_is_recognised_in_the_servers_own_words() -> None:
    line = server_log.port_taken(read(CPU / "boot_failure_port_taken.log"))
    assert line is not None
    assert line.endswith("error while attempting to bind on address ('127.0.0.1', 31991): address already in use")


@pytest.mark.parametrize(
    "line",
    [
        # 0.5.8: srt/server_args.py:5374
        "Port is already in use. dist_init_port=31223 port_base=31224 detokenizer_port=31225 nccl_port=30500",
        # 0.5.23: srt/utils/network.py:102
        "ValueError: dist_init_port at 31223 is not available in 30 seconds. dist_init_port at 31223 is not available",
        # torch 2.13, in libtorch_cpu.so: "… port: {}, useIpv6: {}, code: {}, name: {}, message: {}"
        "port: 30500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ],
)
def test_derived_ports_that_were_taken_are_recognised(line: str) -> None:
    assert server_log.port_taken(f"before\n{line}\nafter") == line


def test_a_port_that_sglang_stepped_over_is_no_failure() -> None:
    # 0.5.23: srt/utils/network.py:33
    assert server_log.port_taken("[2026-11-29 15:50:31] Port 30500 is already in use, trying port 30501") is None


def test_healthy_logs_say_that_they_are_ready_and_that_no_port_was_taken() -> None:
    for path in (CPU / "base.log", CPU / "d2.log", H200 / "base.log", H200 / "d1.log", H200 / "d2.log"):
        assert server_log.is_ready(read(path)), path
        assert server_log.port_taken(read(path)) is None, path
