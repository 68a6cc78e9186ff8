"""A stand-in for a whole interpreter with SGLang: boots in a moment, speculates by arithmetic, fails as it is told.

`standin -m sglang.launch_server FLAGS` is a server with a scheduler process; through the suite's own launcher it does
what a drill asks. A draft that states other layers than LAYERS is accepted less. The folder in the variable STANDIN
holds `faults.json`, by depth the fields of `Faults` ("2.untuned": where NCCL_PROTO isn't set), and gets `record.jsonl`,
one line per thing that happened. Log lines are quoted from recordings/cpu-sglang-0.5.23/d2.log. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.kit import standin_model as model
from tests.kit.answers import DONE, RECORDINGS, as_json, error, event
from tests.kit.scripted_server import Answer, Pause, Request, Step, serving
from tests.kit.server_program import FIRED_UP, Program

CYCLE_S = 0.002
SPECULATIVE_CYCLE_S = 0.003
LAYERS = [1, 2, 4]
"""What every draft was trained on."""
OPEN = ("/health", "/health_generate", "/metrics")
"""Answered without a key: recordings/cpu-sglang-0.5.23/endpoints_with_api_key.txt."""

Script = Sequence[Sequence[Any]]
"""Steps of `Standin`, each [name, argument, …]."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong at one depth."""

    booting: Script = ()
    """Played before anything is served."""
    ready: Script = ()
    """Played once the server has said that it is ready."""
    streaming: Script = ()
    """Played inside a completion: the one with this number, after so many chunks."""
    at: tuple[int, int] = (3, 2)
    status: int = 200
    """What completions are answered with, otherwise than well."""
    asked: Mapping[str, Script] = field(default_factory=dict)
    """Played before an answer, by its path."""
    stopping: Script = ()
    """Played on SIGTERM."""
    silent: bool = False
    """Whether the server prints nothing at all."""
    cycle_factor: float = 1.0
    slows: tuple[int, float] = (0, 1.0)
    """Another cycle_factor, from the completion of this number on; 0: never."""
    committed: Sequence[int] = ()
    """What verifies commit instead of what they ought to."""
    miscounted: int = 0
    """Verifies that are counted too many."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Words of each completion, by number, that aren't the ones of the other servers."""
    reported: Mapping[str, Any] = field(default_factory=dict)
    """What /server_info says otherwise."""


@dataclass(frozen=True)
class Folder:
    """The folder in the variable STANDIN."""

    path: Path

    def faults(self, depth: int) -> Faults:
        try:
            told = json.loads((self.path / "faults.json").read_text())
        except FileNotFoundError:
            return Faults()
        untuned = told.get(f"{depth}.untuned") if "NCCL_PROTO" not in os.environ else None
        return Faults(**(untuned or told.get(str(depth), {})))

    def record(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "at": time.time(), **facts}) + "\n"
        with (self.path / "record.jsonl").open("a") as file:
            file.write(line)

    def results(self) -> list[str]:
        """What lies in the folder of measurements now."""
        folder = self.path.parent / "results"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def rehearsed(arguments: Mapping[str, Any], faults: Faults) -> Faults:
    """With what a drill asks of this server."""
    order = json.loads(os.environ.get("EAGLE3_INSIDE_DRILL", "{}"))
    if "slow" in order:
        faults = replace(faults, cycle_factor=faults.cycle_factor * (1 + order.get("share", 0.0)))
    if draft := arguments.get("speculative_draft_model_path"):
        config = json.loads((Path(draft) / "config.json").read_text())
        if config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", LAYERS) != LAYERS:
            faults = replace(faults, committed=(1, 1, 1, 2))
    return faults


def flags(words: Sequence[str]) -> dict[str, Any]:
    """SGLang's flags as server arguments: `--tp-size 2` → {"tp_size": 2}; a bare switch is true."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            found[name[2:].replace("-", "_")] = [value] if equals else []
        else:
            next(reversed(found.values())).append(word)
    return {name: _value(given) for name, given in found.items()}


def _value(words: list[str]) -> Any:
    if len(words) != 1:
        return words or True
    if re.fullmatch(r"\d+", words[0]):
        return int(words[0])
    return float(words[0]) if re.fullmatch(r"\d+\.\d+", words[0]) else words[0]


class Standin(Program):
    """One server; its methods beside those of Program are steps of a script too."""

    def __init__(self, arguments: Mapping[str, Any], folder: Folder) -> None:
        super().__init__("127.0.0.1", int(arguments["port"]), str(arguments["api_key"]))
        self.port = int(arguments["port"])
        self.arguments = arguments
        self.depth = int(arguments.get("speculative_num_steps", 0))
        self.folder = folder
        self.faults = rehearsed(arguments, folder.faults(self.depth))
        self.scheduler = 0
        self.completions = 0
        self.generated = 0
        self.verified = 0

    def run(self) -> None:
        self.record("booting", results=self.folder.results(), key=self._key, nccl=nccl())
        if told := os.environ.get("EAGLE3_INSIDE_FOLDER"):
            witness(Path(told), int(self.arguments.get("tp_size", 1)))
        if self.faults.silent:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        self.scheduler = scheduler()
        self.say(*boot_lines(self.arguments))
        self.play(self.faults.booting)
        try:
            with serving(self.answer, self.port):
                self.stay()
        except OSError as error:
            # uvicorn's words; SGLang's leader then waits for its warm-up to give up.
            what = f"error while attempting to bind on address ('127.0.0.1', {self.port}): address already in use"
            self.say(f"ERROR:    [Errno {error.errno}] {what}")
            self.hang()

    def stay(self) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda *_: self.stop())
        self.say(f"INFO:     Uvicorn running on http://127.0.0.1:{self.port} (Press CTRL+C to quit)")
        print(FIRED_UP, flush=True)
        self.record("ready")
        self.play(self.faults.ready)
        self.hang()

    def stop(self) -> None:
        """As SGLang does on SIGTERM."""
        self.record("stopping")
        self.play(self.faults.stopping)
        self.say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.kill_scheduler()
        self.say("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
        self.record("stopped")
        os._exit(0)

    def record(self, event: str, **facts: Any) -> None:
        self.folder.record(event, depth=self.depth, pid=os.getpid(), port=self.port, **facts)

    def say(self, *lines: str) -> None:
        """Log lines with the time in front."""
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
        with suppress(BrokenPipeError):  # nobody reads on: as with SGLang's logging, that ends nothing
            print(*(f"{stamp} {line}" for line in lines), sep="\n", flush=True)

    # Steps that Program hasn't got

    def kill_scheduler(self) -> None:
        if self.scheduler:
            os.kill(self.scheduler, signal.SIGKILL)
            os.waitpid(self.scheduler, 0)
        self.scheduler = 0

    def wait_for(self, name: str) -> None:
        """Returns when there is a file of this name in the folder."""
        self.record("waiting", name=name)
        while not (self.folder.path / name).exists():
            time.sleep(0.005)

    def leak(self, *names: str) -> None:
        """Prints variables of the environment, as a library in trouble might."""
        self.say(*(f"{name}={os.environ.get(name)}" for name in names))

    # Answers

    def answer(self, request: Request) -> Answer:
        """Runs in the server's thread."""
        path = request.path.partition("?")[0]
        if path not in OPEN and request.headers.get("authorization") != f"Bearer {self._key}":
            return as_json({"error": "Unauthorized"}, 401)
        answers: dict[str, Callable[[], Answer]] = {
            "/health": lambda: Answer([b" "]),
            "/health_generate": lambda: Answer([b" "]),
            "/flush_cache": lambda: Answer([b"Cache flushed."]),
            "/freeze_gc": self.freeze,
            "/metrics": lambda: Answer([self.metrics().encode()], content_type="text/plain"),
            "/server_info": lambda: as_json(self.info()),
            "/generate": lambda: as_json(self.generate(request.json)),
            "/v1/completions": lambda: self.complete(request),
        }
        self.play(self.faults.asked.get(path, ()))
        return answers.get(path, lambda: error(404, "Not Found"))()

    def freeze(self) -> Answer:
        self.record("frozen")
        return Answer([b"Garbage collection frozen.\n"])

    def info(self) -> dict[str, Any]:
        """The recorded account, with this server's arguments, the key among them."""
        like = "d2" if self.depth else "base"
        info: dict[str, Any] = json.loads(
            (RECORDINGS / f"cpu-sglang-{model.VERSION}" / f"{like}.info.json").read_text()
        )
        ours = {**self.arguments, "launch_command": " ".join(sys.argv)}
        (state,) = info["internal_states"]
        for record in (info, state):
            record.update(ours)
        state["effective_max_running_requests_per_dp"] = self.arguments.get("max_running_requests")
        state.update(self.faults.reported)
        return info

    def metrics(self) -> str:
        """Two of the recorded counters; speculation's appears with its first use, as Prometheus has it."""
        labels = f'engine_type="unified",model_name="{self.arguments["model_path"]}"'
        lines = [f'sglang:generation_tokens_total{{{labels},is_streaming="true"}} {float(self.generated)}']
        lines += [f"sglang:spec_verify_calls_total{{{labels}}} {float(self.verified)}"] if self.verified else []
        return "\n".join(lines) + "\n"

    def complete(self, request: Request) -> Answer:
        if self.faults.status != 200:
            return error(self.faults.status, f"no completion for {request.headers['authorization']}")
        return Answer(list(self.stream(request.json)))

    def stream(self, asked: Mapping[str, Any]) -> Iterator[Step]:
        """A completion as recorded: one chunk a verify, then the counts, the usage and the end."""
        self.completions += 1
        tokens, prompt = int(asked["max_tokens"]), str(asked["prompt"])
        made = self.committed(tokens)
        texts = self.words(prompt, tokens)
        self.record("completion", number=self.completions)
        for number, count in enumerate(model.chunks(self.depth, tokens, self.pattern)):
            if number:
                yield Pause(self.cycle_s)
            finish = None if texts[count:] else "length"
            text = "".join(texts[:count])
            yield chunk({"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "matched_stop": None})
            del texts[:count]
            if [self.completions, number + 1] == list(self.faults.at):
                yield lambda: self.play(self.faults.streaming)
        self.count(tokens, made)
        if self.depth:
            yield chunk(sglext={"spec_tokens_details": model.details(self.depth, made)})
        usage = {"prompt_tokens": 8, "total_tokens": 8 + tokens, "completion_tokens": tokens, "reasoning_tokens": 0}
        yield chunk(usage=usage)
        yield DONE

    def generate(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The same, not streamed."""
        tokens, prompt = int(asked["sampling_params"]["max_new_tokens"]), str(asked["text"])
        made = self.committed(tokens)
        self.count(tokens, made)
        counts = model.details(self.depth, made) if self.depth else {}
        meta = {"finish_reason": {"type": "length", "length": tokens}, "completion_tokens": tokens, **counts}
        return {"text": "".join(self.words(prompt, tokens)), "meta_info": meta}

    @property
    def cycle_s(self) -> float:
        first, factor = self.faults.slows
        slower = factor if first and self.completions >= first else self.faults.cycle_factor
        return (SPECULATIVE_CYCLE_S if self.depth else CYCLE_S) * slower

    def committed(self, tokens: int) -> list[int]:
        """What each verify commits, as it is counted."""
        made = model.verifies(self.depth, tokens, self.pattern)
        # Miscounted verifies are taken from others, so that the counts don't contradict each other.
        for _ in range(self.faults.miscounted):
            made[made.index(max(made))] -= 1
            made.append(1)
        return made

    @property
    def pattern(self) -> Sequence[int]:
        """What verifies commit: as told, or as simulated where SGLang's variable says so, else the model's own."""
        simulated = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "-1"))
        return self.faults.committed or ([round(simulated)] if self.depth and simulated > 0 else self.drafts_own())

    def drafts_own(self) -> Sequence[int]:
        """What its config.json says that verifies of this draft commit, if it says anything."""
        config = Path(str(self.arguments.get("speculative_draft_model_path", "nowhere"))) / "config.json"
        told: Sequence[int] = json.loads(config.read_text()).get("committed", ()) if config.exists() else ()
        return told

    def words(self, prompt: str, tokens: int) -> list[str]:
        return model.words(prompt, tokens, {int(number): word for number, word in self.faults.words.items()})

    def count(self, tokens: int, made: Sequence[int]) -> None:
        """What /metrics and the log tell."""
        self.generated += tokens
        self.verified += len(made) if self.depth else 0
        length = f"accept len: {sum(made) / len(made):.2f}, accept rate: 0.55, " if self.depth else ""
        self.say(
            f"Decode batch, #running-req: 1, #token: {tokens}, token usage: 0.01, {length}cpu graph: False, "
            f"gen throughput (token/s): {tokens / len(made) / self.cycle_s:.2f}, #queue-req: 0"
        )


def chunk(*choices: Mapping[str, Any], usage: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    """As in recordings/cpu-sglang-0.5.23/completions_stream.txt."""
    head = {"id": "50c109bdd3a94d2bba4c7c8f8b3bba2a", "object": "text_completion", "created": 1795969932, "model": "m"}
    return event({**head, "choices": choices, "usage": usage, **more})


def boot_lines(arguments: Mapping[str, Any]) -> Iterator[str]:
    """What SGLang prints before it serves; the key is in the first line, as it is in SGLang's."""
    yield f"server_args={dict(arguments)!r}"
    yield "Init parallel begin."
    yield "Load weight begin. avail mem=21.99 GB"
    yield "Load weight end. elapsed=0.03 s, type=LlamaForCausalLM, avail mem=21.97 GB, mem usage=0.01 GB."
    yield "KV Cache is allocated. dtype: torch.float32, #tokens: 8192, K size: 0.02 GB, V size: 0.02 GB"
    yield "max_total_num_tokens=8192, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=4"


def nccl() -> dict[str, str]:
    """NCCL's variables, but for one that a drill takes away."""
    lost = json.loads(os.environ.get("EAGLE3_INSIDE_DRILL", "{}")).get("unset", ())
    return {name: value for name, value in os.environ.items() if name.startswith("NCCL_") and name not in lost}


def witness(folder: Path, world: int) -> None:
    """What each rank says of itself, as the suite's own witness has it."""
    for rank in range(world):
        said = {"rank": rank, "world": world, "replica": 0, "replicas": 1, "pid": os.getpid()}
        told = {**said, "nccl": None, "libraries": [], "environment": nccl(), "libc": nccl()}
        (folder / f"witness-0-{rank}.json").write_text(json.dumps(told))


def scheduler() -> int:
    """A child that renames itself and survives its parent, as SGLang's schedulers were seen to."""
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(15, b"sglang::scheduler", 0, 0, 0)  # PR_SET_NAME
    while True:
        signal.pause()


def serve(words: Sequence[str]) -> None:
    arguments = flags(words)
    if unknown := [name for name in arguments if name.startswith("no_such")]:
        # argparse's words, in which SGLang refuses a flag that its version hasn't got.
        sys.exit(f"launch_server.py: error: unrecognized arguments: --{unknown[0].replace('_', '-')}")
    Standin(arguments, Folder(Path(os.environ["STANDIN"]))).run()


def main() -> None:
    match sys.argv[1:]:
        case ["-m", "sglang.launch_server" | "fixtures.engine.inside.serve", *words]:
            serve(words)
        case words:
            sys.exit(f"the stand-in knows nothing of {words}")


if __name__ == "__main__":
    main()
