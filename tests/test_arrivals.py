"""Bodies as they come: every part once, with the time at which the connection had it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp
import httpx
import pytest

from fixtures.engine.arrivals import AT_ONCE, BODY, Body, Queue, Transport
from tests.kit.answers import GAP
from tests.kit.scripted_server import Answer, Cut, serving

Parts = list[tuple[bytes, float]]


def having(answer: Answer, work: Callable[[httpx.AsyncClient, str], Coroutine[Any, Any, Any]]) -> Any:
    """What the work gives with a client, whose clock moves by 1 whenever bytes come, of a server with this answer."""
    readings = itertools.count(1.0)

    async def with_client(url: str) -> Any:
        transport = Transport(lambda: next(readings), aiohttp.TCPConnector)
        async with httpx.AsyncClient(transport=transport) as client:
            return await work(client, url)

    with serving(answer) as server:
        result = asyncio.run(with_client(server.url))
        assert server.most_connections == 1
        return result


async def parts(client: httpx.AsyncClient, url: str, *, late_s: float = 0.0) -> Parts:
    """The parts of one answer's body, of which nobody asked before so many seconds."""
    came: Parts = []
    async with client.stream("GET", url) as response:
        body: Body = response.extensions[BODY]
        await asyncio.sleep(late_s)
        await body.hand_on(lambda part, at: came.append((part, at)))
    return came


def test_each_part_has_its_own_time_on_a_connection_that_served_before_too() -> None:
    async def twice(client: httpx.AsyncClient, url: str) -> list[Parts]:
        return [await parts(client, url), await parts(client, url)]

    for came in having(Answer([b"a", GAP, b"b", GAP, b"c", GAP]), twice):
        assert [part for part, _ in came] == [b"a", b"b", b"c"]
        first = came[0][1]
        assert [at for _, at in came] == [first, first + 1, first + 2]


def test_what_came_before_anyone_asked_has_the_time_at_which_it_came() -> None:
    ((part, at),) = having(Answer([b"a", b"b"]), lambda client, url: parts(client, url, late_s=0.1))
    assert part == b"ab"
    assert at <= 4.0, "head, two parts and the end, of which several may be read at once"


def test_times_are_taken_before_the_work_of_which_a_little_is_done_at_once() -> None:
    readings = itertools.count(1.0)
    delivered: list[float] = []

    def deliver(_data: bytes, at: float) -> None:
        next(readings)  # the work takes a second
        delivered.append(at)

    async def six_at_once() -> list[int]:
        queue = Queue(lambda: next(readings))
        for _ in range(6):
            queue.put(deliver, b"x")
        done = []
        while len(delivered) < 6:
            await asyncio.sleep(0)
            done.append(len(delivered))
        return done

    assert asyncio.run(six_at_once()) == [AT_ONCE, 6]
    assert delivered == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_body_larger_than_what_is_held_unread_comes_whole() -> None:
    large = b"x" * (1 << 22)
    came: Parts = having(Answer([large]), lambda client, url: parts(client, url, late_s=0.2))
    assert b"".join(part for part, _ in came) == large


def test_whoever_refuses_a_part_gets_no_other() -> None:
    taken: list[bytes] = []

    def refuse(part: bytes, _at: float) -> None:
        taken.append(part)
        raise ValueError("enough")

    async def refusing(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("GET", url) as response:
            await response.extensions[BODY].hand_on(refuse)

    with pytest.raises(ValueError, match="enough"):
        having(Answer([b"a", GAP, b"b", GAP, b"c"]), refusing)
    assert taken == [b"a"]


def test_a_body_that_breaks_off_is_the_connections_failure() -> None:
    with pytest.raises(aiohttp.ClientPayloadError):
        having(Answer([b"a", GAP, Cut()]), parts)


def test_a_body_is_read_in_the_usual_way_as_well() -> None:
    async def read(client: httpx.AsyncClient, url: str) -> str:
        return (await client.get(url)).text

    assert having(Answer([b"a", GAP, b"b"]), read) == "ab"
