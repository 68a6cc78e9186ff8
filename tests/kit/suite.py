"""The suite as a guest: a small profile of the stand-in, real runs of `pytest perf/`, and what they leave behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import psutil

from fixtures.engine import ports
from tests.kit import standin_model as model
from tests.kit.scratch import plain
from tests.kit.warm import ROOT, Warm

DEPTHS = (1, 2, 3, 5, 10)
PROMPTS = 8
"""With fewer pairs no throughput is told from its floor."""
TEXTS = {f"p{n}": f"This is prompt {n}." for n in range(PROMPTS)}
PATIENCE_S = 180.0
"""For one run, on a busy machine; a test whose subject is time gives its own."""
SUBREAPER = 36

PROFILE = """
description = "A stand-in for SGLang: thirty-three tokens of eight prompts"
depths = {depths}
[pair]
target = "./target"
draft = "./draft"
[launch]
engine = "sglang"
python = "{root}/tests/kit/standin"
boot_limit_s = {boot_limit_s}
stop_limit_s = {stop_limit_s}
[launch.flags]
device = "cpu"
dtype = "float32"
max-running-requests = 4
disable-overlap-schedule = true
[launch.environment]
STANDIN = "{folder}/standin"
STANDIN_PYTHON = "{python}"
{environment}
[workload]
prompts = "./prompts.jsonl"
oracle = "./oracle.json"
max_tokens = {tokens}
passes = {passes}
looks_until = {looks_until}
alternate = {alternate}
warmup = 1
request_limit_s = 20.0
token_limit_s = 10.0
[checks]
silenced = ["prompts-too-short"]
[floors.throughput]
{throughput}
[floors.accept_length]
{accept_length}
"""
"""Floors stand far below what the stand-in shows: other work on the machine must not fail a run."""

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "vocab_size": 512,
    "num_hidden_layers": 6,
}
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 64,
    "vocab_size": 512,
    "draft_vocab_size": 128,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
}


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    pid: int
    status: int
    """Exit status; negative: the signal that ended it."""
    output: str
    seconds: float
    record: list[dict[str, Any]]
    """What the stand-ins of this run did, in order."""
    left: list[str]
    """Processes, listening ports, locks and records that outlived it, one line each."""

    @property
    def booted(self) -> list[int]:
        """Depths, in the order of their boots."""
        return [line["depth"] for line in self.record if line["event"] == "booting"]

    def lines(self, *parts: str) -> list[str]:
        """The lines of the output that have all these parts."""
        return [line for line in self.output.splitlines() if all(part in line for part in parts)]

    def failed(self) -> set[str]:
        """The tests that failed, without file and the word they share: "throughput_holds_its_floor[steps02]"."""
        words = (line.split() for line in self.lines("::test_eagle3_") if line.startswith(("FAILED", "ERROR")))
        return {name[1].partition("::test_eagle3_")[2] for name in words}


@dataclass
class Going:
    """A run under way."""

    suite: Suite
    pid: int
    began: float
    output: Path
    recorded: int

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def until(self, event: str, **facts: Any) -> dict[str, Any]:
        """What a stand-in recorded, as soon as it has."""
        return self._soon(lambda: self._found({"event": event, **facts}), f"no {event} {facts}")

    def _found(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        record = self.suite.record()[self.recorded :]
        return next((line for line in record if wanted.items() <= line.items()), None)

    def says(self, text: str) -> str:
        """The output, as soon as it has this text."""
        return self._soon(lambda: self._said(text), f"never said {text!r}")

    def _said(self, text: str) -> str:
        said = self.output.read_text(errors="replace")
        return said if text in said else ""

    def _soon(self, ask: Callable[[], Any], else_: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (answer := ask()):
            if time.monotonic() > deadline or self._ended():
                raise AssertionError(f"{else_}; {self._said('')}")
            time.sleep(0.005)
        return answer

    def _ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self, limit_s: float = PATIENCE_S) -> Run:
        """The run once it has ended; killed, and a failure of the test, if it takes longer."""
        while not self._ended():
            if time.monotonic() - self.began > limit_s:
                self.signal(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"the run took more than {limit_s:g} s; {self._said('')}")
            time.sleep(0.01)
        _, status = os.waitpid(self.pid, 0)
        seconds = time.monotonic() - self.began
        record = self.suite.record()[self.recorded :]
        said = self._said("")
        return Run(self.pid, os.waitstatus_to_exitcode(status), said, seconds, record, self.suite.left(record))


@dataclass
class Suite:
    """A profile in a folder, and runs of it."""

    warm: Warm
    folder: Path
    """Holds the profile, `results/`, `locks/` and `standin/`, the stand-in's own folder."""
    bystanders: set[int]
    """Children that this process had before."""
    runs: int = 0

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def locks(self) -> Path:
        return self.folder / "locks"

    def profile(
        self,
        *depths: int,
        boot_limit_s: float = 60.0,
        stop_limit_s: float = 30.0,
        tokens: int = model.MAX_TOKENS,
        passes: int = 1,
        looks_until: int = 1,
        alternate: bool = False,
        environment: Mapping[str, str] = {},
        changed: Callable[[str], str] = lambda text: text,
        name: str = "small",
    ) -> Path:
        """Writes the profile and an oracle that is right; `changed` gives the profile's text another form."""
        depths = depths or DEPTHS
        self._write_oracle(depths)
        text = PROFILE.format(
            depths=list(depths),
            root=ROOT,
            folder=self.folder,
            python=sys.executable,
            boot_limit_s=boot_limit_s,
            stop_limit_s=stop_limit_s,
            tokens=tokens,
            passes=passes,
            looks_until=looks_until,
            alternate=json.dumps(alternate),
            environment="\n".join(f"{key} = {json.dumps(value)}" for key, value in environment.items()),
            throughput="\n".join(f"{depth} = 0.2" for depth in depths),
            accept_length="\n".join(f"{depth} = 1.5" for depth in depths),
        )
        file = self.folder / f"{name}.toml"
        file.write_text(changed(text))
        return file

    def _write_oracle(self, depths: Sequence[int]) -> None:
        oracle = {
            "max_tokens": model.MAX_TOKENS,
            "ignore_eos": True,
            "dtype": "float32",
            "prompts": {name: model.expected(text, depths, model.MAX_TOKENS) for name, text in TEXTS.items()},
        }
        (self.folder / "oracle.json").write_text(json.dumps(oracle))

    def faults(self, **of_depth: Mapping[str, Any]) -> None:
        """What goes wrong from the next boot on: `d2={"cycle_factor": 6}`; see standin_sglang.Faults."""
        faults = {depth.removeprefix("d"): told for depth, told in of_depth.items()}
        (self.folder / "standin" / "faults.json").write_text(json.dumps(faults))

    def go(self, name: str) -> None:
        """Lets a stand-in that waits for this go on."""
        (self.folder / "standin" / name).touch()

    def start(
        self,
        *arguments: str,
        paths: Sequence[str] = ("perf/",),
        names_profile: bool = True,
        storage: bool = True,
        **environment: str,
    ) -> Going:
        """A run of `pytest perf/` on the profile "small", unless the arguments name another or it is to name none."""
        self.runs += 1
        output = self.folder / f"output-{self.runs}.txt"
        words = [*paths, "-p", "no:cacheprovider", "-p", "no:anyio", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        given = [word.partition("=")[0] for word in arguments]
        if names_profile and not {"--perf-profile", "--perf-server"} & set(given):
            words += ["--perf-profile", str(self.folder / "small.toml")]
        if not {"--perf-results", "--perf-resume", "--perf-kept"} & set(given):
            words += ["--perf-results", str(self.results)]
        if storage and "--benchmark-storage" not in given:
            words.append(f"--benchmark-storage=file://{self.folder}/benchmarks")
        ours = {"EAGLE3_PERF_LOCKS": str(self.locks), "COLUMNS": "120", "HOME": str(self.folder)}
        recorded = len(self.record())
        began = time.monotonic()
        with output.open("wb") as file:
            pid = self.warm.start(
                [*words, *arguments],
                environment={**plain(), **ours, **environment},
                output=file.fileno(),
            )
        return Going(self, pid, began, output, recorded)

    def run(self, *arguments: str, limit_s: float = PATIENCE_S, **options: Any) -> Run:
        """A run, from its start to its end."""
        return self.start(*arguments, **options).wait(limit_s)

    def record(self) -> list[dict[str, Any]]:
        """What the stand-ins did until now."""
        with suppress(FileNotFoundError):
            lines = (self.folder / "standin" / "record.jsonl").read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def measured(self, depth: int) -> dict[str, Any]:
        """A measurement's file, as it is on disk."""
        told: dict[str, Any] = json.loads((self.results / f"depth-{depth}.json").read_text())
        return told

    def finished(self) -> list[int]:
        """Depths whose measurements are on disk."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.results.glob("depth-*[0-9].json"))

    def left(self, record: Sequence[Mapping[str, Any]]) -> list[str]:
        """What is still there of everything that was started, recorded, bound or locked."""
        bound = {line["port"] for line in record if line["event"] == "booting"}
        return [
            *(f"process {process}" for process in self.processes()),
            *(f"port {port}: {ports.holder(port)}" for port in sorted(bound) if not ports.is_free("127.0.0.1", port)),
            *(f"record {path.name}" for path in sorted(self.locks.glob("*.json"))),
            *(f"lock {path.name}" for path in sorted(self.locks.glob("*.lock")) if held(path)),
        ]

    def processes(self) -> list[psutil.Process]:
        """Every living process that a run of this suite started, whoever its parent is by now."""
        present = psutil.Process().children(recursive=True)
        for process in present:
            with suppress(ChildProcessError, psutil.NoSuchProcess):
                if process.pid not in self.bystanders and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)
        return [p for p in present if p.pid not in self.bystanders and alive(p)]

    def end(self) -> None:
        """Kills what is left."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def held(lock: Path) -> bool:
    """Whether some process holds the lock."""
    try:
        with filelock.FileLock(lock, timeout=0):
            return False
    except filelock.Timeout:
        return True


@contextmanager
def suite_in(folder: Path, warm: Warm) -> Iterator[Suite]:
    """A suite with prompts and a pair; whatever its runs started is gone after the block.

    Orphans of the runs become children of this process meanwhile, so none can hide.
    """
    prctl = ctypes.CDLL(None).prctl
    assert prctl(SUBREAPER, 1, 0, 0, 0) == 0
    suite = Suite(warm, folder, {p.pid for p in psutil.Process().children(recursive=True)})
    write_workload(folder)
    try:
        yield suite
    finally:
        suite.end()
        prctl(SUBREAPER, 0, 0, 0, 0)


def write_workload(folder: Path) -> None:
    """Prompts and the pair's configurations."""
    (folder / "standin").mkdir()
    for role, config in (("target", TARGET), ("draft", DRAFT)):
        (folder / role).mkdir()
        (folder / role / "config.json").write_text(json.dumps(config))
    lines = (json.dumps({"id": name, "source": "test", "text": text}) for name, text in TEXTS.items())
    (folder / "prompts.jsonl").write_text("".join(f"{line}\n" for line in lines))
