"""Alarms that ring while an event loop runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from fixtures.engine.client import on_uvloop


class RangError(Exception):
    """What the alarm's own handler raises."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """An alarm in a moment, whose handler raises as pytest-timeout's does."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise RangError

    before, left = signal.signal(signal.SIGALRM, ring), signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.setitimer(signal.ITIMER_REAL, *left)
    signal.signal(signal.SIGALRM, before)


async def waits(ended: list[str]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    finally:
        ended.append("in its own way")


@pytest.mark.usefixtures("alarm")
def test_an_alarm_ends_the_loop_in_its_own_way_and_is_answered_after_that() -> None:
    ended: list[str] = []
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(RangError):
        on_uvloop(waits(ended))
    assert ended == ["in its own way"]
    assert signal.getsignal(signal.SIGALRM) is handler


@pytest.mark.usefixtures("alarm")
def test_ctrl_c_stays_ctrl_c() -> None:
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        on_uvloop(interrupted())


@pytest.mark.usefixtures("alarm")
def test_an_alarm_whose_handler_returns_ends_nothing() -> None:
    rung: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))

    async def goes_on() -> str:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while not rung:
            await asyncio.sleep(0)
        return "ended well"

    assert on_uvloop(goes_on()) == "ended well"


@pytest.mark.usefixtures("alarm")
def test_elsewhere_than_in_the_main_thread_the_handler_is_left_alone() -> None:
    handler = signal.getsignal(signal.SIGALRM)

    async def seen() -> object:
        return signal.getsignal(signal.SIGALRM)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(lambda: on_uvloop(seen())).result(5) is handler
