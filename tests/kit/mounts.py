"""Small file systems of a test's own, for disks that are full or can't be written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """The folder, made, with a tmpfs on it; skips the test where this process may not mount."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"can't mount a tmpfs here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: whoever still writes there mustn't keep the mount.
        subprocess.run(["umount", "--lazy", folder], check=True)
