"""Fixtures that more than one room uses: the suite as a guest."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.suite import Suite, suite_in
from tests.kit.warm import Warm, warmed

SURROUNDINGS = re.compile(
    r"CI|BUILD_NUMBER|COLUMNS|LINES|(no|force|py)_colors?|\w+_proxy|(NCCL|SGLANG|GITHUB|EAGLE3_PERF|EAGLE3_INSIDE)_\w+",
    re.IGNORECASE,
)
"""What a CI job, a terminal, an office's network or a tuned host has in its environment."""


@pytest.fixture(scope="session", autouse=True)
def alone() -> Iterator[None]:
    """Tests read the same wherever they run: pytest words its summary another way in CI, NCCL's variables are
    inherited, a proxy can't reach loopback. A test of any of these sets it itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in filter(SURROUNDINGS.fullmatch, list(os.environ)):
            patch.delenv(name)
        yield


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
