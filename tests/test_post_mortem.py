"""What is told first of a server that died, on logs of servers that did."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fixtures.engine import post_mortem
from fixtures.engine.command import Launch

RECORDINGS = Path(__file__).resolve().parent / "recordings"
CPU, H200 = RECORDINGS / "cpu-sglang-0.5.23", RECORDINGS / "h200-sglang-0.5.17"
DEATHS = CPU / "deaths"
LAUNCH = Launch(("/no/such/python",), {}, Path("/"), "127.0.0.1", 20001, "key")
FROM_OUTSIDE = "killed by SIGKILL, which the suite didn't send: a person, or the kernel when memory ran out (see dmesg)"

UNREADABLE = (
    "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not "
    "fully covered"
)
WIDE = (
    "The draft doesn't fit the target: AssertionError: Attempted to load weight (torch.Size([256, 768])) into "
    "parameter (torch.Size([320, 960]))"
)


def death(path: Path, code: int | None = -signal.SIGKILL, how: str = FROM_OUTSIDE) -> tuple[str, list[str]]:
    why, rest = post_mortem.death(path.read_bytes().decode(), LAUNCH, how=how, code=code)
    return why, rest.split("\n")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (DEATHS / "draft_cut_off.log", UNREADABLE),
        (CPU / "boot_failure_draft_wide.log", WIDE),
        (
            H200 / "boot_failure_missing_module.log",
            "A kernel is missing: ModuleNotFoundError: No module named 'deep_gemm'",
        ),
        (DEATHS / "scheduler_killed.log", f"scheduler_0 crashed with exit code -9: {FROM_OUTSIDE}"),
        (DEATHS / "scheduler_out_of_memory.log", f"scheduler_0 crashed with exit code -9: {FROM_OUTSIDE}"),
        (H200 / "base.log", "scheduler_0 crashed with exit code -15: killed by SIGTERM"),
    ],
    ids=lambda value: f"{value.parent.name}-{value.stem}" if isinstance(value, Path) else "",
)
@pytest.mark.parametrize("code", [-signal.SIGKILL, None], ids=["leader-killed", "leader-lives-on"])
def test_a_server_that_ended_itself_is_told_by_what_it_ended_over(path: Path, why: str, code: int | None) -> None:
    assert death(path, code)[0] == f"{why}; SGLang then ended itself"


@pytest.mark.parametrize("name", ["leader_killed.log", "leader_out_of_memory.log"])
def test_a_server_killed_from_outside_is_told_by_its_signal(name: str) -> None:
    why, rest = death(DEATHS / name)
    assert why == FROM_OUTSIDE
    assert not [line for line in rest if "Error" in line and "openai_harmony" not in line]


def test_a_server_that_the_suite_told_to_stop_has_not_ended_itself() -> None:
    assert death(CPU / "d2.log")[0] == FROM_OUTSIDE


def test_a_failed_freeze_is_no_part_of_what_is_told() -> None:
    _, (line,) = death(DEATHS / "scheduler_killed.log")
    assert "Subprocess scheduler_0 (pid=24635) crashed with exit code -9" in line


def test_what_the_first_line_says_is_not_said_again() -> None:
    why, rest = death(CPU / "boot_failure_draft_wide.log")
    assert why.startswith("The draft doesn't fit the target: ")
    assert rest[0].startswith("Compare the config.json of both")


def test_an_exit_of_its_own_is_told_by_its_cause_and_code() -> None:
    why, rest = death(CPU / "boot_failure_unknown_flag.log", 2, "exit code 2")
    assert why == "This version of SGLang doesn't know the flag --no-such-flag; exit code 2"
    assert rest[0].startswith("Remove it from the profile's launch.flags")


def test_a_worker_that_is_gone_without_a_word_is_told_by_what_was_seen() -> None:
    gone = "its process sglang::schedul (pid 7) is gone, while its leader lives on"
    assert death(DEATHS / "leader_killed.log", None, gone)[0] == gone


def test_children_killed_on_the_way_out_are_not_what_it_ended_over() -> None:
    # 0.5.23: srt/utils/watchdog.py:216 may see a child that srt/utils/common.py:2507 has just killed
    killed = "\n[2026-11-30 09:01:06] Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT"
    text = (DEATHS / "draft_cut_off.log").read_text() + killed
    assert "SafetensorError" in post_mortem.death(text, LAUNCH, how=FROM_OUTSIDE, code=-signal.SIGKILL)[0]


def test_a_server_that_ends_itself_without_a_reason_says_so() -> None:
    # 0.5.23: srt/managers/tokenizer_manager.py:4074, as `kill -QUIT` brings about
    text = "[2026-11-30 09:04:04] SIGQUIT received. signum=3, frame=None. It usually means one child failed.\n"
    why, _ = post_mortem.death(text, LAUNCH, how=FROM_OUTSIDE, code=-signal.SIGKILL)
    assert why == "SGLang ended itself, and its log doesn't say why"


def test_a_leader_ended_by_another_signal_is_told_by_it() -> None:
    assert death(DEATHS / "draft_cut_off.log", -signal.SIGSEGV, "killed by SIGSEGV")[0] == "killed by SIGSEGV"
