"""Servers of the tests as processes of their own, which print their address."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kit.warm import ROOT


@contextmanager
def serving_program(module: str, *arguments: str) -> Iterator[str]:
    """The address that `python -m MODULE ARGUMENTS` prints on its first line; it is killed at the end."""
    words = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
