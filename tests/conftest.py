"""Fixtures that more than one room uses: the suite as a guest."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.suite import Suite, suite_in
from tests.kit.warm import Warm, warmed


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C and a lost terminal work in what the tests start, though a shell that starts this in the background, or
    nohup, has them ignored. What has a handler here is the default in a program that starts from here."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, lambda *_: None),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts runs of pytest in a moment."""
    with warmed() as warm:
        yield warm


@pytest.fixture
def suite(tmp_path: Path, warm: Warm) -> Iterator[Suite]:
    """A suite in a folder of its own; nothing that it started lives on."""
    with suite_in(tmp_path, warm) as suite:
        yield suite
