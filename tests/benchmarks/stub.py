"""A server that sends at a steady pace and remembers when, as a process of its own: `python -m tests.benchmarks.stub`.

Its address is the first line that it prints. A completion gets `max_tokens` chunks, one every GAP_S, in SGLang's form.
Streams that begin together are spread evenly over a gap: a real server writes one after another, too. `GET /times`
gives the seconds at which each chunk was handed to the kernel, by prompt, on the clock that all processes of a host
share (`time.perf_counter`); reading them forgets them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

GAP_S = 0.005
LEAD_S = 0.25
"""From a request to its first chunk, so that all requests are there before the first."""
SPREAD = 64
"""Places in a gap that streams take by turns."""

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
END = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
    """One event of SGLang 0.5.23, field for field."""
    payload = {"id": "f3c9a1d2b4e5", "object": "text_completion", "created": 1764000000, "choices": choices}
    return b"data: " + json.dumps({**payload, "model": "default", "usage": usage}).encode() + b"\n\n"


def chunk(finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": " and the", "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
    return framed(event([choice]))


CHUNK, LAST = chunk(None), chunk("length")


class Connection(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self, times: dict[str, list[float]], places: Iterator[int]) -> None:
        self._times = times
        self._places = places
        self._read = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, ended, body = self._read.partition(b"\r\n\r\n")
        length = next((int(n) for k, _, n in _fields(head) if k.lower() == b"content-length"), 0)
        if not ended or len(body) < length:
            return
        self._read = body[length:]
        if head.startswith(b"GET"):
            told = json.dumps(self._times).encode()
            self._times.clear()
            self._transport.write(JSON % len(told) + told)
        else:
            self._stream(json.loads(body[:length]))

    def _stream(self, asked: dict[str, Any]) -> None:
        self._transport.write(SSE)
        sent = self._times[asked["prompt"]] = []
        # All streams keep to one grid, whenever their requests came.
        begins = (self._loop.time() + LEAD_S) // GAP_S * GAP_S + next(self._places) % SPREAD / SPREAD * GAP_S
        self._next(sent, begins, asked["max_tokens"], bool(asked.get("stream_options")))

    def _next(self, sent: list[float], begins: float, left: int, usage: bool) -> None:
        self._loop.call_at(begins + len(sent) * GAP_S, self._send, sent, begins, left, usage)

    def _send(self, sent: list[float], begins: float, left: int, usage: bool) -> None:
        if self._transport.is_closing():
            return
        sent.append(time.perf_counter())
        self._transport.write(CHUNK if left > 1 else LAST)
        if left > 1:
            self._next(sent, begins, left - 1, usage)
            return
        if usage:
            counted = {"prompt_tokens": 5, "completion_tokens": len(sent), "total_tokens": 5 + len(sent)}
            self._transport.write(framed(event([], counted)))
        self._transport.write(framed(b"data: [DONE]\n\n") + END)


def _fields(head: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    return (line.partition(b":") for line in head.split(b"\r\n")[1:])


def places() -> Iterator[int]:
    """0, 1, … below SPREAD in an order in which the first few are far from each other, again and again."""
    while True:
        yield from (int(f"{n:06b}"[::-1], 2) for n in range(SPREAD))


async def main() -> None:
    times: dict[str, list[float]] = {}
    order = places()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(times, order), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
