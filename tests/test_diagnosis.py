"""Why a server died, on logs of servers that did."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.engine.diagnosis import decisive_lines, diagnose

RECORDINGS = Path(__file__).resolve().parent / "recordings"
CPU, H200 = RECORDINGS / "cpu-sglang-0.5.23", RECORDINGS / "h200-sglang-0.5.17"


def read(path: Path) -> str:
    return path.read_bytes().decode()


def kind(text: str) -> str | None:
    found = diagnose(text)
    return found.kind if found else None


# --- decisive lines


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (
            CPU / "boot_failure_layer_ids_out_of_range.log",
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (12x512 and 768x256)",
        ),
        (H200 / "boot_failure_missing_module.log", "ModuleNotFoundError: No module named 'deep_gemm'"),
        (CPU / "boot_failure_unknown_flag.log", "sglang serve: error: unrecognized arguments: --no-such-flag 3"),
        (
            CPU / "boot_failure_draft_wide.log",
            "AssertionError: Attempted to load weight (torch.Size([256, 768])) into parameter (torch.Size([320, 960]))",
        ),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_the_last_decisive_line_is_the_exception(path: Path, last: str) -> None:
    lines = decisive_lines(read(path))
    assert lines[-1] == last
    assert len(lines) <= 3


def test_the_cause_of_an_exception_is_told_before_it() -> None:
    lines = decisive_lines(read(H200 / "boot_failure_float32.log"))
    told = [line.split("(")[0] for line in lines if "rmsnorm" in line]
    assert told == ["RuntimeError: rmsnorm", "Exception: Capture cuda graph failed: rmsnorm"]


def test_sglangs_own_innermost_frame_is_shown() -> None:
    lines = decisive_lines(read(CPU / "boot_failure_no_such_folder.log"))
    assert any("/sglang/srt/" in line for line in lines)


def test_the_bind_that_failed_comes_before_what_followed_from_it() -> None:
    assert "address already in use" in decisive_lines(read(CPU / "boot_failure_port_taken.log"))[0]


def test_ranks_that_say_the_same_count_once() -> None:
    # 0.5.23: srt/managers/scheduler.py:6372, and a traceback of Python's
    said = (
        'Scheduler hit an exception: Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyError: 3\n\n'
    )
    text = "".join(f"[2026-11-29 15:50:31 TP{rank}] {said}" for rank in range(8))
    assert decisive_lines(text) == ('File "x.py", line 1, in f', "KeyError: 3")


def test_a_log_without_anything_loud_gives_its_last_lines() -> None:
    lines = decisive_lines(read(CPU / "base.log"), limit=3)
    assert len(lines) == 3
    assert not any("Decode batch" in line or "warnings.warn" in line for line in lines)


def test_a_traceback_that_says_nothing_hides_nothing() -> None:
    interrupted = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\nKeyboardInterrupt\n'
    assert decisive_lines(f"ValueError: the cause\n{interrupted}") == ("ValueError: the cause",)


def test_a_long_line_is_cut() -> None:
    (line,) = decisive_lines("ValueError: " + "x" * 10_000)
    assert len(line) < 310


def test_no_line_can_garble_a_terminal() -> None:
    (line,) = decisive_lines("ValueError: \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J bell\x07\n")
    assert line == "ValueError: red \ufffd]0;title\ufffd \ufffd2J bell\ufffd"


def test_no_log_has_no_decisive_lines() -> None:
    assert decisive_lines("") == ()


# --- known kinds

PREFIX = "[2026-11-29 15:49:59 TP0] "
WEIGHTS = f"{PREFIX}Load weight begin. avail mem=79.10 GB\n"
LOADED = f"{PREFIX}Load weight end. elapsed=1.90 s, type=LlamaForCausalLM, avail mem=10.00 GB, mem usage=69.00 GB.\n"
CAPTURE = f"{PREFIX}Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=3, avail mem=1.00 GB\n"
# torch, c10/cuda/CUDACachingAllocator.cpp; seen in sgl-project/sglang#5285
OUT = (
    'Traceback (most recent call last):\n  File "x.py", line 1, in f\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (OUT, "the start"),
        (WEIGHTS + OUT, "weights"),
        # 0.5.23: srt/model_executor/pool_configurator.py:96
        (
            WEIGHTS + LOADED + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
            "Current value: mem_fraction_static=0.5",
            "the KV cache",
        ),
        (WEIGHTS + LOADED + CAPTURE + OUT, "graph capture"),
        # 0.5.23: srt/model_executor/runner/decode_cuda_graph_runner.py:603
        (
            WEIGHTS + LOADED + CAPTURE + "Exception: Capture cuda graph failed: CUDA out of memory. Tried",
            "graph capture",
        ),
    ],
)
def test_memory_that_ran_out_is_told_with_the_moment(text: str, moment: str) -> None:
    found = diagnose(text)
    assert found is not None
    assert found.kind == f"out of memory at {moment}"
    assert found.remedy


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CPU / "boot_failure_port_taken.log", "port in use"),
        (CPU / "boot_failure_unknown_flag.log", "unsupported flag"),
        (CPU / "boot_failure_no_such_folder.log", "no such model"),
        (CPU / "boot_failure_no_such_hub_id.log", "no such model"),
        (CPU / "boot_failure_layer_ids_out_of_range.log", "draft that doesn't fit"),
        (CPU / "boot_failure_draft_wide.log", "draft that doesn't fit"),
        (CPU / "boot_failure_draft_vocab.log", "draft that doesn't fit"),
        (H200 / "boot_failure_float32.log", "missing kernel"),
        (H200 / "boot_failure_missing_module.log", "missing kernel"),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else "",
)
def test_recorded_failures_are_known(path: Path, expected: str) -> None:
    assert kind(read(path)) == expected


def test_a_flag_that_is_not_there_is_named_with_the_version() -> None:
    found = diagnose(read(CPU / "boot_failure_unknown_flag.log"), "0.5.23")
    assert found is not None
    assert found.what == "SGLang 0.5.23 doesn't know the flag --no-such-flag."


def test_the_line_that_a_port_was_taken_ends_before_the_remedy_begins() -> None:
    told = str(diagnose(read(CPU / "boot_failure_port_taken.log")))
    assert told.startswith("A port was taken: ")
    assert told.endswith("address already in use. Set launch.port = 0, or end who holds it.")


def test_a_missing_folder_is_named() -> None:
    assert "The model /models/absent can't be found." in str(diagnose(read(CPU / "boot_failure_no_such_folder.log")))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 0.5.23: srt/distributed/device_communicators/pynccl_wrapper.py:474, with NCCL's own words
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "NCCL"),
        # sgl-kernel, load_utils.py; seen in sgl-project/sglang#13948
        ("[sgl_kernel] CRITICAL: Could not load any common_ops library!", "missing kernel"),
        # CUDA's error 209, as torch raises it; seen in sgl-project/sglang#38515
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "missing kernel"),
        ("OSError: [Errno 28] No space left on device", "no disk space"),
        ("launch_server.py: error: argument --tp-size: invalid int value: 'two'", "unsupported value"),
    ],
)
def test_other_known_kinds(line: str, expected: str) -> None:
    assert kind(f"something before\n{line}\n") == expected


@pytest.mark.parametrize("path", [CPU / "base.log", CPU / "d2.log", H200 / "base.log", H200 / "d2.log"])
def test_a_healthy_log_has_no_diagnosis(path: Path) -> None:
    assert diagnose(read(path)) is None
