"""GitHub's part in a workflow: a job's `run:` blocks executed as a runner does, in the environment that they get there.

Of the actions it has those that the suite's workflow uses, as far as files go: checkout, cache, upload-artifact.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kit.scratch import copied

BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
"""What `shell: bash` means there."""
FILES = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ENV")

LIMIT_S = 1200.0

Contexts = Mapping[str, Mapping[str, Any]]
Cancel = Callable[[subprocess.Popen[str]], None]


def read(path: Path) -> dict[str, Any]:
    """The workflow's file; its key `on` is True in YAML 1.1, and "on" here."""
    told: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in told.items()}


def evaluated(text: object, contexts: Contexts) -> str:
    """The text with every `${{ … }}` in it replaced by its value."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda found: _shown(value(found[1], contexts)), _shown(text))


def _shown(it: object) -> str:
    if isinstance(it, bool):
        return str(it).lower()
    return "" if it is None else str(it)


def value(expression: str, contexts: Contexts) -> Any:
    """What GitHub makes of names, 'texts', ==, !=, && and ||; a name that isn't there is None."""
    expression = expression.strip()
    for sign, last in (("||", bool), ("&&", lambda it: not it)):
        first, found, rest = expression.partition(sign)
        if found:
            here = value(first, contexts)
            return here if last(here) else value(rest, contexts)
    if compared := re.fullmatch(r"(.+?)(==|!=)(.+)", expression):
        # To GitHub nothing and an empty text are equal.
        one, other = ((value(side, contexts) or "") for side in (compared[1], compared[3]))
        return (one == other) is (compared[2] == "==")
    if expression.startswith("'"):
        return expression.strip("'")
    context, _, name = expression.partition(".")
    return contexts[context].get(name)


@dataclass(frozen=True)
class Done:
    """A step that was executed."""

    status: int
    output: str


@dataclass
class Night:
    """A job that has ended."""

    checkout: Path
    files: Path
    """Folder of what GITHUB_STEP_SUMMARY and its like name."""
    artifact: Path
    """Folder of what was uploaded."""
    steps: dict[str, Done] = field(default_factory=dict)
    """By name; those that were passed over are not there."""

    @property
    def summary(self) -> str:
        file = self.files / "GITHUB_STEP_SUMMARY"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    @property
    def green(self) -> bool:
        return all(step.status == 0 for step in self.steps.values())


@dataclass
class Runner:
    """A self-hosted runner and the cache of its repository."""

    folder: Path
    """For checkouts and artifacts, one of each night, and the cache."""
    workflow: Path
    job: str
    environment: Mapping[str, str]
    """What the host's steps get besides what the workflow gives them."""
    nights: int = 0

    def night(self, *, cancel: tuple[str, Cancel] | None = None, **contexts: Mapping[str, Any]) -> Night:
        """The job, from its first step to its last; `cancel` is a step's name, and what is done while it runs."""
        self.nights += 1
        job = read(self.workflow)["jobs"][self.job]
        run_ = {"run_id": str(self.nights), "run_attempt": "1", **contexts.get("github", {})}
        matrix = job["strategy"]["matrix"]["include"][0]
        given = {"inputs": {}, "vars": {}, "matrix": matrix, **contexts, "github": run_}
        home = self.folder / f"night-{self.nights}"
        (home / "files").mkdir(parents=True)
        night = Night(home / "checkout", home / "files", home / "artifact")
        cancelled = dict([cancel] if cancel else [])
        for step in job["steps"]:
            if night.green or step.get("if") == "always()":
                name = step.get("name", step.get("uses"))
                environment = {**job.get("env", {}), **step.get("env", {})}
                told = {**self.environment, **{k: evaluated(v, given) for k, v in environment.items()}}
                night.steps[name] = self._step(night, step, given, told, cancelled.get(name))
        return night

    def _step(
        self,
        night: Night,
        step: Mapping[str, Any],
        contexts: Contexts,
        environment: Mapping[str, str],
        cancel: Cancel | None,
    ) -> Done:
        if "run" in step:
            return run(step["run"], night, environment, cancel)
        action = step["uses"].partition("@")[0].removeprefix("actions/")
        ACTIONS[action](self, night, {key: evaluated(it, contexts) for key, it in step.get("with", {}).items()})
        return Done(0, "")


def run(block: str, night: Night, environment: Mapping[str, str], cancel: Cancel | None) -> Done:
    """A `run:` block, executed; it ends when its output does, as a runner sees it."""
    script = night.files / "script.sh"
    script.write_text(block, encoding="utf-8")
    files = {name: str(night.files / name) for name in FILES}
    with subprocess.Popen(
        [*BASH, str(script)],
        cwd=night.checkout,
        env={**environment, **files, "GITHUB_ACTIONS": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        if cancel:
            cancel(process)
        output, _ = process.communicate(timeout=LIMIT_S)
        return Done(process.returncode, output)


# --- Actions


def checkout(_: Runner, night: Night, __: Mapping[str, str]) -> None:
    copied(night.checkout)


def restore(runner: Runner, night: Night, given: Mapping[str, str]) -> None:
    """The last folder whose name begins with one of the keys."""
    wanted = tuple(given[name] for name in ("key", "restore-keys"))
    kept = sorted((runner.folder / "cache").glob("*"), key=lambda path: path.stat().st_mtime_ns)
    for found in [path for path in kept if path.name.startswith(wanted)][-1:]:
        shutil.copytree(found, night.checkout, dirs_exist_ok=True)


def save(runner: Runner, night: Night, given: Mapping[str, str]) -> None:
    into = runner.folder / "cache" / given["key"]
    assert not into.exists(), "a key is taken once"
    into.mkdir(parents=True)
    gather(night.checkout, given["path"], into)


def upload(_: Runner, night: Night, given: Mapping[str, str]) -> None:
    """Hidden files stay behind, as they do there."""
    night.artifact.mkdir()
    gather(night.checkout, given["path"], night.artifact)


def gather(source: Path, patterns: str, into: Path) -> None:
    """Copies what the lines of `patterns` match to the same places below `into`."""
    for pattern in patterns.split():
        for path in source.glob(pattern.rstrip("/")):
            place = into / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, place)


ACTIONS: Mapping[str, Callable[[Runner, Night, Mapping[str, str]], None]] = {
    "checkout": checkout,
    "cache/restore": restore,
    "cache/save": save,
    "upload-artifact": upload,
}


# --- The host's Python


def interpreter(folder: Path, python: str) -> Path:
    """A python3 whose `-m venv DIR` makes an environment of what `python` has, since a test downloads nothing.

    What its pip was asked for stands in DIR/asked.txt.
    """
    program = folder / "python3"
    program.write_text(VENV.replace("PYTHON", python))
    program.chmod(0o755)
    return program


VENV = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec PYTHON "$@"
mkdir -p "$3/bin"
printf '#!/bin/sh\\nexec PYTHON "$@"\\n' > "$3/bin/python"
printf '#!/bin/sh\\nexec PYTHON -m pytest "$@"\\n' > "$3/bin/pytest"
printf '#!/bin/sh\\necho "$@" >> %s/asked.txt\\n' "$3" > "$3/bin/pip"
chmod +x "$3/bin/"*
"""
