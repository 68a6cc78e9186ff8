"""An HTTP server that does as it is told: scripted answers over real sockets, for faults that no real server makes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Pause:
    """Send nothing for so many seconds."""

    seconds: float


class Read:
    """Send nothing until the client has read what there is, for some seconds at most."""


class Stall:
    """Send nothing more until the client goes away."""


class Reset:
    """Break the connection off: the client sees a reset, not an end."""


class Cut:
    """Close the connection in the middle of the answer."""


Step = bytes | Pause | Read | Stall | Reset | Cut | Callable[[], None]
"""Bytes are sent as one chunk; a function is called."""


@dataclass(frozen=True)
class Answer:
    """One scripted answer: a status line, headers, and a body sent step by step as chunks."""

    steps: Iterable[Step] = ()
    status: int = 200
    content_type: str = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Request], Answer]
"""Decides what to answer; runs in the server's thread."""


class _BrokenOff(Exception):
    pass


@dataclass
class ScriptedServer:
    """A running server; `url` is its root."""

    script: Script
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    most_connections: int = 0
    """At one time."""
    _open: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def let_go(self, limit_s: float = 5.0) -> bool:
        """Whether every client has closed its connections, waiting a little for the last to show."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, limit_s)

    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [request.path for request in self.requests]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        self._count(1)
        try:
            while request := await _read_request(reader):
                self.requests.append(request)
                await _send(writer, reader, self.script(request))
        except (ConnectionError, asyncio.IncompleteReadError, _BrokenOff):
            pass
        finally:
            writer.close()
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._open += change
            self.most_connections = max(self.most_connections, self._open)
            self._changed.notify_all()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split(" ", 2)
    return Request(method, path, headers, body)


async def _send(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, answer: Answer) -> None:
    head = f"HTTP/1.1 {answer.status} X\r\ncontent-type: {answer.content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    for step in answer.steps:
        await _do(writer, reader, step)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _do(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, step: Step) -> None:
    match step:
        case bytes():
            writer.write(b"%x\r\n%b\r\n" % (len(step), step))
            await writer.drain()
        case Pause():
            await asyncio.sleep(step.seconds)
        case Read():
            await _until_read(writer)
        case Stall():
            await reader.read()
            raise _BrokenOff
        case Reset():
            writer.transport.abort()
            raise _BrokenOff
        case Cut():
            raise _BrokenOff
        case _:
            step()


READ_LIMIT_S = 5.0
_TCP = Path("/proc/net/tcp")


async def _until_read(writer: asyncio.StreamWriter) -> None:
    """Returns when the kernel holds nothing more on its way to the client."""
    here, there = (f"0100007F:{writer.get_extra_info(name)[1]:04X}" for name in ("sockname", "peername"))
    end = time.monotonic() + READ_LIMIT_S
    while _unread(_TCP.read_text(), here, there) and time.monotonic() < end:
        await asyncio.sleep(0.001)


def _unread(table: str, here: str, there: str) -> bool:
    """Whether anything from one address to another, as the kernel's table writes them, isn't sent or isn't read."""
    return _waiting(table, here, there)[0] > 0 or _waiting(table, there, here)[1] > 0


def _waiting(table: str, local: str, remote: str) -> tuple[int, int]:
    """Bytes that one end has to send, and those that it has to read; none where there is no such end."""
    _, _, line = table.partition(f" {local} {remote} ")
    sending, reading = line.split(maxsplit=2)[1].split(":") if line else ("0", "0")
    return int(sending, 16), int(reading, 16)


@contextmanager
def serving(script: Script | Answer, port: int = 0) -> Iterator[ScriptedServer]:
    """A server in a thread of its own on this port of the loopback (0: a free one), until the block ends.

    Raises OSError if the port is taken.
    """
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, chunks arrive in lumps.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = ScriptedServer(script if callable(script) else lambda _request: script, url)
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(_serve(server, listening, ready, stop)), daemon=True
    )
    thread.start()
    assert ready.wait(10), "the scripted server didn't start"
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


async def _serve(server: ScriptedServer, listening: socket.socket, ready: threading.Event, stop: asyncio.Event) -> None:
    accepting = await asyncio.start_server(server.handle, sock=listening, limit=1 << 24)
    ready.set()
    await stop.wait()
    accepting.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
