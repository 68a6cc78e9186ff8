"""Runs the launcher that is inside servers, for real, around a little SGLang that needs neither torch nor a model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(__file__).with_name("little_packages")


def served(environment: Mapping[str, str], *flags: str) -> str:
    """What the launcher printed; the server has run its three completions on every rank, and ended."""
    done = subprocess.run(
        [sys.executable, "-m", "fixtures.engine.inside.serve", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(PACKAGES), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr
