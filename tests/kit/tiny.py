"""The profile cpu-tiny with changes, in a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.kit.warm import ROOT


def changed(file: Path, changes: Mapping[str, str]) -> Path:
    """Writes cpu-tiny to this file, with each pattern replaced where it matches, which it must once."""
    text = (ROOT / "perf" / "profiles" / "cpu-tiny.toml").read_text(encoding="utf-8")
    for pattern, put in changes.items():
        text, count = re.subn(pattern, put, text, flags=re.MULTILINE)
        assert count == 1, pattern
    file.write_text(text.replace('"../../', f'"{ROOT}/').replace('"../', f'"{ROOT}/perf/'), encoding="utf-8")
    return file


def floors(table: str, stated: Mapping[int, float]) -> dict[str, str]:
    """The change that puts these floors in place of a table's."""
    lines = "".join(f"{depth} = {least}\n" for depth, least in stated.items())
    return {rf"^(\[floors\.{table}\])\n(?:\d+ = .*\n)*": rf"\1\n{lines}"}
