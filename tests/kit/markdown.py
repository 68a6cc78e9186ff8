"""Markdown as far as the documents need it: fenced blocks with the comment above them, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHELL = ("bash", "console", "sh", "shell")
PROGRAMS = ("docker", "git", "kubectl", "pip", "pytest", "python", "python3", "sbatch", "srun", "tox")
"""A block that says no language and begins with one of these is taken as commands."""
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of commands."""

    file: Path
    line: int
    mark: str
    """What the comment right above it says; empty without one."""
    commands: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}"


def blocks(file: Path) -> Iterator[Block]:
    """The blocks of commands in a file; in a console's, those after $."""
    text = file.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        language, body = found["language"], found["text"]
        first = (body.split() or [""])[0]
        if language == "console":
            body = "".join(f"{line[2:]}\n" for line in body.splitlines() if line.startswith("$ "))
        if language in SHELL or (not language and first in PROGRAMS):
            yield Block(file, text[: found.start()].count("\n") + 1, found["mark"] or "", body)


def texts(file: Path, language: str) -> list[str]:
    """The fenced blocks of a language in a file."""
    found = FENCE.finditer(file.read_text(encoding="utf-8"))
    return [block["text"] for block in found if block["language"] == language]


def links(file: Path) -> list[str]:
    """Where a file's links and pictures lead, other sites left out."""
    found = LINK.findall(prose(file.read_text(encoding="utf-8")))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(file: Path) -> set[str]:
    """What a link into the file may name after #, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return FENCE.sub("", text)
