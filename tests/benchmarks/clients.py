"""One client reading streams, in an interpreter of its own.

`python -m tests.benchmarks.clients NAME URL STREAMS CHUNKS` prints a line of JSON: the seconds of CPU that the streams
cost, and when each chunk came, by prompt, on the clock of the stub. One stream more goes before, so that nothing is
loaded while it is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from itertools import accumulate
from typing import Any

from openai import AsyncOpenAI

from fixtures.engine.client import Client, Settings, on_uvloop
from tests.kit import bench_serving

Ask = Callable[[str, int], Awaitable[list[float]]]
"""Prompt and chunks → when each came."""

WARM_UP = 20
"""Chunks."""


async def ours(url: str, chunks: int, held: AsyncExitStack) -> Ask:
    """The suite's."""
    client = await held.enter_async_context(Client(url, "", Settings(max_tokens=chunks)))
    warm = await held.enter_async_context(Client(url, "", Settings(max_tokens=WARM_UP)))

    async def ask(prompt: str, asked: int) -> list[float]:
        return list((await (client if asked == chunks else warm).complete(prompt)).arrivals)

    return ask


async def sdk(url: str, _chunks: int, held: AsyncExitStack) -> Ask:
    """The openai SDK's ordinary loop."""
    client = await held.enter_async_context(AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))

    async def ask(prompt: str, asked: int) -> list[float]:
        stream = await client.completions.create(model="m", prompt=prompt, max_tokens=asked, temperature=0, stream=True)
        return [time.perf_counter() async for chunk in stream if chunk.choices]

    return ask


async def serving(url: str, _chunks: int, _held: AsyncExitStack) -> Ask:
    """The function of `sglang.bench_serving`."""
    module = bench_serving.loaded()

    async def ask(prompt: str, asked: int) -> list[float]:
        seen = await bench_serving.ask(module, url, prompt, asked)
        assert seen.success, seen.error
        return list(accumulate((seen.start_time + seen.ttft, *seen.itl)))

    return ask


async def measure(make: Callable[..., Awaitable[Ask]], url: str, streams: int, chunks: int) -> dict[str, Any]:
    """All streams at once."""
    async with AsyncExitStack() as held:
        ask = await make(url, chunks, held)
        await ask("warm-up", WARM_UP)
        before = time.process_time()
        came = await asyncio.gather(*(ask(str(n), chunks) for n in range(streams)))
        return {"cpu_s": time.process_time() - before, "came": dict(enumerate(came))}


def plainly(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    return asyncio.run(work)


CLIENTS = {"this suite": (ours, on_uvloop), "openai SDK": (sdk, plainly), "bench_serving": (serving, plainly)}
"""How each asks, and on which loop it runs when it is left to itself."""


def main(name: str, url: str, streams: int, chunks: int) -> None:
    make, run = CLIENTS[name]
    print(json.dumps(run(measure(make, url, streams, chunks))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
