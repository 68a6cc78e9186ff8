"""A new draft beside the one in production: by depth, by source of prompts, by position; and how it is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import drafts, results
from fixtures.analysis.drafts import IncomparableError, compare
from fixtures.analysis.measurement import Measurement
from fixtures.report.drafts import lines
from tests.kit.builders import measurement, sample
from tests.kit.suite import TEXTS, Suite

OLD = (20, 10, 20)
"""100 tokens in 50 verifies: 20 × 1 + 10 × 2 + 20 × 3."""
NEW = (8, 4, 28)
"""In 40."""


def night(histogram: tuple[int, ...], *, depth: int = 2, worse_on: int = 0, count: int = 12) -> Measurement:
    """Prompts that are all alike; on the last few the draft does as badly as OLD turned round."""

    def of(n: int) -> tuple[int, ...]:
        return (40, 15, 10) if n >= count - worse_on else histogram  # 65 verifies of 100 tokens

    samples = (
        replace(
            sample(f"p{n}", verifies=sum(of(n))), source="code" if n >= count // 2 else "chat", accepted_histogram=of(n)
        )
        for n in range(count)
    )
    return measurement(depth, tuple(samples))


def test_a_better_draft_is_named_with_its_interval() -> None:
    seen = compare({2: night(OLD)}, {2: night(NEW)})
    (two,) = seen.depths
    assert (two.old, two.new, two.prompts) == (pytest.approx(2.0), pytest.approx(2.5), 12)
    assert two.seen.centre == pytest.approx(1.25)
    assert seen.sentence("production", "new").startswith("new is better than production: accept length +25.0 % (99 %")
    assert [(p.of, p.old, p.new) for p in seen.positions] == [
        ("position 1", pytest.approx(0.6), pytest.approx(0.8)),
        ("position 2", pytest.approx(2 / 3), pytest.approx(0.875)),
    ]
    assert all(change.certain for change in (*seen.positions, *seen.sources))


def test_the_other_way_round_it_is_worse() -> None:
    assert compare({2: night(NEW)}, {2: night(OLD)}).sentence("b", "a").startswith("a is worse than b: ")


def test_a_draft_that_loses_on_one_source_alone_is_told_so() -> None:
    # Better on the six of chat, worse on all six of code.
    seen = compare({2: night(OLD)}, {2: night(NEW, worse_on=6)})
    chat, code = seen.sources
    assert (chat.of, code.of) == ("chat", "code")
    assert (chat.seen.centre, code.seen.centre) == (pytest.approx(1.25), pytest.approx(50 / 65))
    assert not seen.overall.certain
    assert seen.sentence("old", "new").startswith("new can't be told from old: ")
    mixed = compare({2: night(OLD, count=40)}, {2: night(NEW, worse_on=8, count=40)})
    assert mixed.overall.certain


def test_a_source_whose_prompts_one_draft_has_no_samples_of_is_left_out() -> None:
    whole, part = night(OLD), night(NEW)
    chat = replace(part, samples=tuple(s for s in part.samples if s.source == "chat"))
    assert [change.of for change in compare({2: whole}, {2: chat}).sources] == ["chat"]
    code = replace(night(NEW, depth=3), samples=tuple(s for s in part.samples if s.source == "code"))
    with pytest.raises(IncomparableError, match="they have no prompt in common"):
        compare({2: whole, 3: night(OLD, depth=3)}, {2: chat, 3: code})


def test_the_same_draft_twice_can_not_be_told_apart() -> None:
    seen = compare({2: night(OLD)}, {2: night(OLD)})
    assert not seen.overall.certain
    assert seen.overall.seen.centre == 1.0


def test_one_prompt_says_nothing_for_certain() -> None:
    assert not compare({2: night(OLD, count=1)}, {2: night(NEW, count=1)}).overall.certain


def test_depths_that_only_one_sweep_has_are_left_out_and_all_the_others_count() -> None:
    old = {1: night((50, 25), depth=1), 2: night(OLD)}
    new = {1: night((50, 25), depth=1), 2: night(NEW), 3: night(NEW, depth=3)}
    seen = compare(old, new)
    assert [change.of for change in seen.depths] == ["1 step", "2 steps"]
    assert seen.overall.seen.centre == pytest.approx(1.25**0.5)


def test_without_histograms_positions_are_not_known_and_that_is_said() -> None:
    blind = replace(night(NEW), samples=tuple(replace(s, accepted_histogram=None) for s in night(NEW).samples))
    seen = compare({2: night(OLD)}, {2: blind})
    assert seen.positions == ()
    assert [*lines(seen, "a", "b")][-1] == "Acceptance by position isn't known: this SGLang tells no histograms."


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"identity": {"prompts": "x"}}, "they mean different things: prompts: None → 'x'"),
        ({"simulated": 2.0}, "acceptance was simulated"),
        ({"samples": (sample("q"),)}, "no prompt in common"),
    ],
)
def test_what_can_not_be_compared_is_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(IncomparableError, match=told):
        compare({2: night(OLD)}, {2: replace(night(NEW), **changed)})  # type: ignore[arg-type]


def test_another_draft_or_other_gpus_are_no_obstacle() -> None:
    other = replace(night(NEW), identity={"draft": "b", "accelerators": 8})
    assert compare({2: replace(night(OLD), identity={"draft": "a"})}, {2: other}).overall.certain


def test_two_folders_are_compared_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, histogram in (("production", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        results.write(tmp_path / name, replace(night(histogram), draft=name))
    assert drafts.main(["compare", str(tmp_path / "production"), str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("new is better than production: accept length +25.0 %")
    assert [line.split() for line in said if line.strip().startswith("position 1")] == [
        ["position", "1", "0.600", "0.800", "+20.0", "points", "+20.0", "to", "+20.0", "12"]
    ]


def test_folders_without_a_common_depth_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, depth in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        results.write(tmp_path / name, night(OLD, depth=depth))
    assert drafts.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == pytest.ExitCode.USAGE_ERROR
    assert "they have no depth in common; sweep the same depths with either draft." in capsys.readouterr().err


def test_a_profile_with_one_draft_has_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drafts.main(["sweep", "cpu-tiny", str(tmp_path)]) == pytest.ExitCode.USAGE_ERROR
    assert "[[drafts]] names fewer than two drafts to compare" in capsys.readouterr().err


@pytest.mark.faults
def test_every_draft_of_a_profile_is_swept_and_compared_by_one_command(
    suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new draft's verifies commit 3 tokens and 2 by turns, the old one's 3 and 1."""
    new = suite.folder / "new"
    new.mkdir()
    config = (suite.folder / "draft" / "config.json").read_text()
    (new / "config.json").write_text(config.replace("{", '{"committed": [3, 2], ', 1))
    several = '[[drafts]]\nname = "production"\npath = "./draft"\n[[drafts]]\nname = "new"\npath = "./new"\n[pair]'
    profile = suite.profile(
        2,
        changed=lambda text: (
            text.replace("[pair]", several).replace('draft = "./draft"\n', "").replace('oracle = "./oracle.json"\n', "")
        ),
    )
    ran: list[str] = []

    def run(words: list[str]) -> int:
        made = suite.run(*words[1:], "-v", paths=words[:1])
        ran.append(made.output)
        return made.status

    words = ["sweep", str(profile), str(suite.folder / "swept"), "--", "--perf-draft-only"]
    assert drafts.main(words, run) == 0, ran
    assert "accept_length_holds_its_floor[steps02-production] PASSED" in ran[0]
    assert "accept_length_holds_its_floor[steps02-new] PASSED" in ran[1]
    said = capsys.readouterr().out.splitlines()
    # 32 tokens take 16 verifies and 13.
    assert said[0].startswith("new is better than production: accept length +23.1 %")
    assert f"over {len(TEXTS)} prompts at 2 steps." in said[0]
