"""This suite's client and the function of `sglang.bench_serving` on one server, prompt by prompt in turns.

`python -m tests.benchmarks.beside --profile NAME --depth 2 --into DIR` boots the profile's server of that depth, asks
each prompt of both, and says at which rate each of them saw the tokens after the first come. Both count the asked
tokens, so that the comparison holds for completions that run to the limit, as these do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tabulate import tabulate

from fixtures import host, profiles
from fixtures.checkout import ROOT
from fixtures.engine import command, process
from fixtures.engine.client import Client, Settings
from tests.kit import bench_serving

KEY = "key-of-a-benchmark"
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """One prompt, asked of both: tokens per second after the first token."""

    prompt: str
    suite: float
    bench_serving: float

    @property
    def ratio(self) -> float:
        return self.suite / self.bench_serving


@contextmanager
def serving(profile: profiles.Profile, depth: int, log: Path) -> Iterator[str]:
    """The address of the profile's server of this depth."""
    server = process.boot(
        lambda port: command.launch(profile, depth, port=port, api_key=KEY, root=ROOT),
        log=log,
        limits=process.Limits(profile.launch.boot_limit_s, profile.launch.stop_limit_s),
    )
    try:
        yield server.url
    finally:
        server.stop()


async def both(url: str, prompts: Sequence[profiles.Prompt], settings: Settings, theirs: Any) -> list[Seen]:
    """Each prompt of both, first the one and then the other; the first prompts are asked twice, to warm up."""
    tokens, body = settings.max_tokens, {"ignore_eos": True, "temperature": 0.0}
    async with Client(url, KEY, settings) as client:

        async def suite(text: str) -> float:
            seen = await client.complete(text)
            return (seen.tokens - 1) / seen.decode_s

        async def other(text: str) -> float:
            seen = await bench_serving.ask(theirs, url, text, tokens, body)
            assert seen.success, seen.error
            return float((tokens - 1) / (seen.latency - seen.ttft))

        kept = []
        for n, prompt in enumerate([*prompts[:WARM_UP], *prompts]):
            rates = {}
            for name, ask in [("suite", suite), ("bench_serving", other)][:: 1 if n % 2 else -1]:
                rates[name] = await ask(prompt.text)
            kept.append(Seen(prompt.id, **rates))
        return kept[WARM_UP:]


def table(seen: Sequence[Seen]) -> str:
    """The rates by prompt, and the ratios' median."""
    rows = [(s.prompt, f"{s.suite:.2f}", f"{s.bench_serving:.2f}", f"{s.ratio:.4f}") for s in seen]
    return tabulate(
        [*rows, ("median", "", "", f"{median(s.ratio for s in seen):.4f}")],
        headers=("prompt", "this suite tok/s", "bench_serving tok/s", "ratio"),
        disable_numparse=True,
        colalign=("left", "right", "right", "right"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.beside", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--profile", required=True)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--into", type=Path, required=True, help="folder for beside.json and the server's log")
    asked = parser.parse_args()
    profile = profiles.load(asked.profile)
    os.environ["OPENAI_API_KEY"] = KEY  # where theirs looks for it
    theirs = bench_serving.loaded()
    asked.into.mkdir(parents=True, exist_ok=True)
    with serving(profile, asked.depth, asked.into / "beside.log") as url:
        prompts = profiles.read_prompts(profile.workload.prompts)
        seen = asyncio.run(both(url, prompts, Settings.of(profile.workload), theirs))
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "profile": profile.name,
        "depth": asked.depth,
        "host": host.facts(os.environ),
        "seen": [asdict(each) for each in seen],
    }
    (asked.into / "beside.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(seen))


if __name__ == "__main__":
    main()
