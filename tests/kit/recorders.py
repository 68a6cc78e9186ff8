"""Programs that only write down how they were called: a document's commands go through a real shell to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OURS = ("pip", "pytest", "python", "python3", "tox")
OTHERS = ("docker", "git", "kubectl", "sbatch", "srun")
RECORDER = """#!/bin/sh
# The name, the words and the variable that says what is recorded only, one JSON array a line.
"{python}" -S -c 'import json, os, sys; print(json.dumps([os.path.basename(sys.argv[1]), *sys.argv[2:]]))' \\
    "$0" "$@" >> "$CALLS"
case "$(basename "$0") $RECORD_ONLY" in "python "|"python3 ") exec "{python}" "$@" ;; esac
"""
"""python itself runs, unless RECORD_ONLY is set: what it prints may be part of a command."""


@dataclass(frozen=True)
class Recorders:
    """A folder for PATH, and a checkout's .venv/bin too."""

    folder: Path
    checkout: Path

    def calls(self, commands: str, *, record_only: bool) -> list[list[str]]:
        """The program and the words of each call that bash makes for these commands, which end well."""
        calls = self.folder.parent / "calls.jsonl"
        calls.write_text("")
        told = {"PATH": f"{self.folder}:/usr/bin:/bin", "CALLS": str(calls), "RECORD_ONLY": "1" if record_only else ""}
        words = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(
            words,
            cwd=self.checkout,
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{commands}{done.stdout}{done.stderr}"
        return [json.loads(line) for line in calls.read_text().splitlines()]


def recorders(folder: Path, checkout: Path, programs: Sequence[str] = (*OURS, *OTHERS)) -> Recorders:
    """Recorders of these programs, in the folder and as the checkout's environment."""
    folder.mkdir()
    for name in programs:
        program = folder / name
        program.write_text(RECORDER.format(python=sys.executable))
        program.chmod(0o755)
    environment = checkout / ".venv/bin"
    environment.mkdir(parents=True, exist_ok=True)
    for name in OURS:
        shutil.copy(folder / name, environment / name)
    return Recorders(folder, checkout)
