"""A cancel from outside ends a sweep as Ctrl-C does."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from fixtures.engine.client import on_uvloop
from fixtures.measuring import interrupted_by_others

OTHERS = [signal.SIGTERM, signal.SIGHUP]


async def waiting(number: signal.Signals, seen: list[str]) -> None:
    """Gets the signal in a callback of the loop, where an exception would be taken for the connection's."""
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


@pytest.mark.parametrize("number", OTHERS)
def test_what_streams_is_cancelled_and_the_session_interrupted(number: signal.Signals) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupted_by_others():
        on_uvloop(waiting(number, seen))
    assert seen == ["cancelled"]


@pytest.mark.parametrize("number", OTHERS)
def test_without_a_loop_it_interrupts_at_once_even_where_sigint_is_ignored(number: signal.Signals) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_by_others():
            os.kill(os.getpid(), number)
    finally:
        signal.signal(signal.SIGINT, before)
