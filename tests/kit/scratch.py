"""Where the project's own commands are tried: a copy of the checkout, and an environment without these tests in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".*", "*.egg-info", "results", "build", "report")
"""What git ignores, and git itself; what begins with a dot and is part of the project comes back by DOTTED."""
DOTTED = (".github", ".ci", ".gitignore")


def copied(into: Path) -> Path:
    """`into`, with the checkout's files as they are now, committed or not.

    What is compiled goes along, or each copy would be compiled anew.
    """
    top = shutil.ignore_patterns(*LEFT_OUT)
    below = shutil.ignore_patterns(".*", "*.pyc.*")
    shutil.copytree(ROOT, into, ignore=lambda folder, names: (top if Path(folder) == ROOT else below)(folder, names))
    for name in DOTTED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, into / name)
    return into


def plain(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what pytest says there of the tests that run now."""
    return {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}
