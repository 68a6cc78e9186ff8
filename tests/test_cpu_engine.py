"""The CPU engine itself: the stand-ins it imports, and the real SGLang on it against the oracle."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from fixtures import profiles
from fixtures.engine import command, process
from fixtures.engine.inside import cpu_engine
from fixtures.engine.inside.stand_ins import triton

ROOT = Path(__file__).resolve().parent.parent
KEY = "key-of-a-test"
PROFILE = profiles.load("cpu-tiny")
assert PROFILE.workload.oracle is not None
ORACLE = profiles.read_oracle(PROFILE.workload.oracle)
PROMPTS = [prompt for prompt in profiles.read_prompts(PROFILE.workload.prompts) if prompt.id.endswith(("-04", "-09"))]


# --- the same addresses at every boot

PLACED = """
from pathlib import Path
from fixtures.engine.inside.cpu_engine import fix_addresses
fix_addresses()
print(Path("/proc/self/personality").read_text().strip(), Path("/proc/self/maps").read_text().split("-")[0])
"""


def test_two_boots_have_their_addresses_in_common_where_the_kernel_grants_it() -> None:
    words = [sys.executable, "-S", "-c", PLACED]
    first, second = (subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(2))
    flags = int(first.stdout.split()[0], 16)
    assert (first.stdout == second.stdout) == bool(flags & cpu_engine.ADDR_NO_RANDOMIZE)


# --- stand-ins


def test_a_stand_in_is_found_for_what_is_absent_and_nothing_else() -> None:
    finder = cpu_engine.StandIns()
    assert [finder.find_spec(name, None) for name in ("torch", "triton.language", "tritonx")] == [None] * 3
    found = [finder.find_spec(name, None) for name in ("IPython", "triton", "torchvision")]
    assert [Path(str(spec and spec.origin)).parent.parent.name for spec in found] == ["stand_ins"] * 3


def test_a_package_that_is_there_wins_over_its_stand_in(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("where = 'installed'\n")
    script = "import sys; from fixtures.engine.inside.cpu_engine import StandIns; sys.meta_path.append(StandIns())\n"
    for path, where in ((f"{tmp_path}:{ROOT}", "installed"), (str(ROOT), "absent")):
        asked = script + "import triton; print(getattr(triton, 'where', 'absent'))"
        words = [sys.executable, "-S", "-c", asked]
        told = subprocess.run(words, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
        assert told.stdout.strip() == where


@triton.jit
def plainly_decorated(x: triton.language.constexpr) -> None: ...


@triton.autotune(configs=[triton.Config({"BLOCK": 16}, num_warps=4)], key=["n"])
@triton.jit(do_not_specialize=["n"])
def richly_decorated(n: int) -> None: ...


@pytest.mark.parametrize("kernel", [plainly_decorated, richly_decorated], ids=["plain", "rich"])
def test_launching_a_kernel_of_another_device_fails_by_name(kernel: triton.runtime.JITFunction) -> None:
    with pytest.raises(RuntimeError, match=rf"^Triton kernel tests\.test_cpu_engine\.{kernel.__name__} launched.*GPU"):
        kernel[(1,)](3)


def test_processes_are_forked_after_sglang_has_asked_for_spawning(tmp_path: Path) -> None:
    folder = tmp_path / "sglang/srt/entrypoints"
    folder.mkdir(parents=True)
    (folder / "engine.py").write_text(
        "import multiprocessing\n"
        "def _set_envs_and_config(arguments):\n"
        "    multiprocessing.set_start_method('spawn', force=True)\n"
        "    print(arguments)\n"
    )
    script = (
        "import multiprocessing\n"
        "from fixtures.engine.inside import cpu_engine, on_import\n"
        "on_import.on_import(cpu_engine.ENGINE, cpu_engine._fork_children)\n"
        "import sglang.srt.entrypoints.engine as engine\n"
        "engine._set_envs_and_config('asked')\n"
        "print(multiprocessing.get_start_method())"
    )
    words = [sys.executable, "-S", "-c", script]
    told = subprocess.run(words, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["asked", "fork"]


def test_a_server_that_is_told_to_stop_looks_sooner_than_sglang_does(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    class TokenizerManager:
        gracefully_exit = False

        async def sigterm_watchdog(self) -> str:
            while not self.gracefully_exit:
                await asyncio.sleep(5)
            return f"drained after {len(slept)} looks"

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        manager.gracefully_exit = len(slept) == 3

    front = ModuleType(cpu_engine.FRONT)
    vars(front)["TokenizerManager"] = TokenizerManager
    cpu_engine.listen_closely(front)
    manager = TokenizerManager()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(manager.sigterm_watchdog()) == "drained after 3 looks"
    assert slept == [cpu_engine.LISTENING_S] * 3


# --- the real engine


@contextmanager
def served(log: Path, depth: int, **flags: int) -> Iterator[httpx.Client]:
    """A client of the tiny pair's server; `flags` take the place of the speculative ones."""

    def launch(port: int) -> command.Launch:
        made = command.launch(PROFILE, depth, port=port, api_key=KEY, root=ROOT)
        changes = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        return dataclasses.replace(made, argv=(*made.argv, *changes))

    server = process.boot(launch, log=log)
    try:
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as client:
            yield client
    finally:
        server.stop()
    # Of the server's own clock, to the second: SGLang by itself would look after five.
    told, ending = (stamped(server.log_text(), words) for words in ("SIGTERM received", "Gracefully exiting"))
    assert (ending - told).total_seconds() <= 1


def stamped(log: str, words: str) -> datetime:
    """When the log's only line with these words was written."""
    (line,) = (line for line in log.splitlines() if words in line)
    return datetime.fromisoformat(line[1:20])


def generated(client: httpx.Client, text: str) -> tuple[str, Mapping[str, Any]]:
    """Text and meta_info of /generate."""
    parameters = {"temperature": 0, "max_new_tokens": 128, "ignore_eos": True}
    told = client.post("/generate", json={"text": text, "sampling_params": parameters}).raise_for_status().json()
    return told["text"], told["meta_info"]


def streamed(client: httpx.Client, text: str) -> tuple[str, Mapping[str, Any]]:
    """Text and spec_tokens_details of a streamed /v1/completions, read by hand."""
    asked = {"model": "m", "prompt": text, "temperature": 0, "max_tokens": 128, "ignore_eos": True, "stream": True}
    answer = client.post("/v1/completions", json={**asked, "return_spec_tokens_details": True}).raise_for_status()
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    details = [event["sglext"]["spec_tokens_details"] for event in events if event.get("sglext")]
    return "".join(choice["text"] for event in events for choice in event["choices"]), details[0] if details else {}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.engine
@pytest.mark.slow
def test_the_plain_server_writes_the_oracles_text(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with served(log, 0) as client:
        for prompt in PROMPTS:
            text, meta = generated(client, prompt.text)
            assert digest(text) == ORACLE.text_sha256(prompt.id)
            assert "spec_verify_ct" not in meta
            assert streamed(client, prompt.text) == (text, {})
    # Of SGLang's models only the pair's are imported; importing them all ignores two dozen that can't be here.
    assert "Ignore import error" not in log.read_text()


@pytest.mark.engine
def test_two_steps_give_the_oracles_text_and_verifies_in_either_protocol(tmp_path: Path) -> None:
    with served(tmp_path / "server.log", 2) as client:
        for prompt in PROMPTS:
            text, meta = generated(client, prompt.text)
            again, details = streamed(client, prompt.text)
            assert digest(text) == ORACLE.text_sha256(prompt.id)
            assert again == text
            right = ORACLE.verifies(prompt.id, 2)
            assert (meta["spec_verify_ct"], details["spec_verify_ct"]) == (right, right)
            assert sum(details["spec_correct_drafts_histogram"]) == right


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(("topk", "tokens"), [(2, 6), (4, 12)])
def test_a_branching_tree_gives_the_oracles_text_in_fewer_verifies(tmp_path: Path, topk: int, tokens: int) -> None:
    with served(tmp_path / "server.log", 3, speculative_eagle_topk=topk, speculative_num_draft_tokens=tokens) as client:
        for prompt in PROMPTS:
            text, meta = generated(client, prompt.text)
            assert digest(text) == ORACLE.text_sha256(prompt.id)
            assert meta["spec_verify_ct"] <= ORACLE.verifies(prompt.id, 3)
