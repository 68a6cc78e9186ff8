"""The documents: every command in them is tried, every option and path that they name exists, every link leads on."""

from __future__ import annotations

import re
import shlex
import time
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from fixtures import announcing, opening
from tests.kit import markdown
from tests.kit.markdown import Block
from tests.kit.recorders import OTHERS, Recorders, recorders
from tests.kit.scratch import ROOT, copied, plain
from tests.kit.suite import Going, Run, Suite, suite_in
from tests.kit.warm import Warm

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, *sorted((ROOT / "fixtures").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in markdown.blocks(page)]
GPU = "needs a GPU"
THE_HOSTS = {"accelerators", "draft", "interpreter", "pair", "sglang", "target"}
"""What a preflight may refuse here and grant on a GPU host: hardware, SGLang, models."""
NOT_RUN = re.compile(r"not run: \w.+")
FILE = re.compile(r"(?<![\w/.~<])(?<!--into )(?:\.github|docs|fixtures|perf|tests)/[\w./-]*\w(?![\w<*{])")
"""A file of the checkout; what a command writes is another matter."""
LATER = ("perf/references", "perf/profiles/NAME")
"""What is there once somebody accepts a reference or writes a profile."""
BY_CI = ("sweep", "tests")
"""Marks of the README's commands that .ci/run takes from there."""


def tried(block: Block) -> bool:
    """Whether the block's commands are executed here."""
    return not block.mark


# --- links, options, paths


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in markdown.links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in markdown.anchors(target), f"{page.name}: {link}"


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in markdown.links(ROOT / "README.md")}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_is_named_exists(page: Path, pytestconfig: pytest.Config) -> None:
    parser = pytestconfig._parser
    groups = [parser._anonymous, *parser._groups]
    known = {name for group in groups for option in group.options for name in option.names()}
    named = set(re.findall(r"--(?:perf|benchmark|junit)[\w-]*\w", page.read_text(encoding="utf-8")))
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_checkout_that_is_named_exists(page: Path) -> None:
    named = FILE.findall(page.read_text(encoding="utf-8"))
    missing = {name for name in named if not (ROOT / name).exists() and not name.startswith(LATER)}
    assert not missing


@pytest.mark.parametrize(("language", "read"), [("toml", tomllib.loads), ("yaml", yaml.safe_load)])
def test_what_is_to_be_copied_can_be_read(language: str, read: Callable[[str], object]) -> None:
    found = [text for page in PAGES for text in markdown.texts(page, language)]
    assert len(found) >= 2
    assert all(read(text) for text in found)


# --- commands


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Recorders:
    """What a shell makes of a block's commands, in a folder that has the checkout's .venv/bin and nothing else."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "checkout").mkdir()
    for name in ("fixtures", "perf"):
        (folder / "checkout" / name).symlink_to(ROOT / name)
    return recorders(folder / "bin", folder / "checkout")


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_there_are_commands_to_try() -> None:
    assert len([block for block in BLOCKS if tried(block)]) >= 3
    assert len(BLOCKS) >= 10


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_tried_or_says_why_not(block: Block) -> None:
    assert tried(block) or block.mark in (GPU, *BY_CI) or NOT_RUN.fullmatch(block.mark), (
        f"{block}: <!-- {block.mark} --> is neither <!-- {GPU} --> nor <!-- not run: REASON -->"
    )


@pytest.mark.parametrize("name", BY_CI)
def test_ci_runs_the_readmes_two_commands_word_for_word(name: str) -> None:
    (block,) = (block for block in BLOCKS if block.mark == name)
    assert block.file.name == "README.md"
    script = (ROOT / ".ci/run").read_text()
    assert f"for name in {' '.join(BY_CI)}; do" in script
    assert 'bash -euo pipefail -c "$command"' in script


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_shell_takes_a_blocks_commands_and_each_could_be_done(
    block: Block, calls: Recorders, pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's run; pytest's are opened as a day is, and what needs a GPU is looked at as before booting."""
    (tmp_path / "perf").symlink_to(ROOT / "perf")
    monkeypatch.chdir(tmp_path)  # an option may open its file
    for program, words in called(block, calls):
        assert not (tried(block) and program in ("pip", "tox")), f"{block}: {program} isn't tried: say why"
        match program:
            case "pytest":
                check_pytest(pytestconfig._parser.parse(words), words, gpu=block.mark == GPU)
            case "python" | "python3":
                check_python(words)
            case "pip":
                check_pip(words)
            case "tox":
                check_tox(words)


def called(block: Block, calls: Recorders) -> Iterator[tuple[str, list[str]]]:
    """Programs and their words; of other people's programs the suite's part in what they are to run."""
    for program, *words in calls.calls(block.commands, record_only=not tried(block)):
        if program not in OTHERS:
            yield program, words
            continue
        assert not tried(block), f"{block}: {program} isn't tried: say why"
        for text in (word for word in words if "pytest perf/" in word):
            yield from ((program, words) for program, *words in calls.calls(text, record_only=True))


def check_pytest(options: Namespace, words: Sequence[str], *, gpu: bool) -> None:
    """Paths that there are, and a day that could begin on a host that has what it takes."""
    assert [path for path in options.file_or_dir if not (ROOT / path.partition("::")[0]).exists()] == []
    if gpu:
        ready, lines = announcing.report(options, comparison=None)
        refused = {line.split()[1].rstrip(":") for line in lines if line.startswith("refused")}
        assert ready or refused <= THE_HOSTS, f"{shlex.join(words)}: {lines}"
    elif any(path.startswith("perf") for path in options.file_or_dir):
        opening.open_day(options, boots=False)


def check_python(words: Sequence[str]) -> None:
    """A module that there is, and its options."""
    if words[0] == "-m" and words[1].startswith("fixtures"):
        module = ROOT / words[1].replace(".", "/")
        text = (module / "__main__.py" if module.is_dir() else module.with_suffix(".py")).read_text()
        # What follows -- goes to pytest.
        asked = {word.removeprefix("--") for word in " ".join(words).partition(" -- ")[0].split() if word[:2] == "--"}
        assert asked <= set(re.findall(r'"(?:--)?([\w-]+)"', text))


def check_pip(words: Sequence[str]) -> None:
    """Extras that there are."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {name for word in words for found in re.findall(r"^\.\[(.+)\]$", word) for name in found.split(",")}
    assert asked <= set(extras)


def check_tox(words: Sequence[str]) -> None:
    """Environments that there are."""
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    assert [f"testenv:{words[place + 1]}" in tox for place, word in enumerate(words) if word == "-e"] == [True]


# --- commands, all the way


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[tuple[Suite, Recorders]]:
    """A copy of the checkout whose profile cpu-tiny is the stand-in's."""
    with suite_in(tmp_path_factory.mktemp("desk"), warm) as suite:
        checkout = copied(suite.folder / "checkout")
        suite.profile(1, 2, 3)
        text = (suite.folder / "small.toml").read_text().replace('"./', f'"{suite.folder}/')
        (checkout / "perf/profiles/cpu-tiny.toml").write_text(text)
        yield suite, recorders(suite.folder / "bin", checkout)


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in BLOCKS if tried(block) or block.mark == GPU], ids=str)
def test_a_blocks_commands_do_what_they_say(block: Block, desk: tuple[Suite, Recorders]) -> None:
    """A sweep measures the stand-in; where a GPU is needed, the preflight says what is missing here."""
    suite, calls = desk
    for program, words in called(block, calls):
        if program == "pytest" and block.mark == GPU:
            run = ran(suite, [*words, "--perf-preflight"], calls.checkout)
            assert run.output.splitlines()[-1] in ("ready", "not ready: nothing would boot"), run.output
        elif program == "pytest":
            run = ran(suite, words, calls.checkout)
            assert run.status == 0, f"{shlex.join(words)}\n{run.output}"
            assert run.left == []


def ran(suite: Suite, words: Sequence[str], checkout: Path) -> Run:
    """A run of pytest in the checkout, with these words and no others that matter."""
    suite.runs += 1
    output = suite.folder / f"output-{suite.runs}.txt"
    environment = {**plain(), "EAGLE3_PERF_LOCKS": str(suite.locks), "HOME": str(suite.folder)}
    quiet = ("-p", "no:cacheprovider", "-p", "no:anyio", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    began, recorded = time.monotonic(), len(suite.record())
    with output.open("wb") as file:
        pid = suite.warm.start([*words, *quiet], environment=environment, output=file.fileno(), folder=checkout)
    return Going(suite, pid, began, output, recorded).wait()
