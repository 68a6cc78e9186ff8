"""Drills one after another: what counts as right, and the table of what was concluded."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import drill_nights, rehearsal
from fixtures.engine.drill import DrillError
from fixtures.report.rehearsed import (
    BEGIN,
    END,
    Concluded,
    Record,
    RecordError,
    Rehearsed,
    from_json,
    markdown,
    placed,
    to_json,
)
from fixtures.results import ResultsError
from tests.kit.suite import Suite

ROOT = Path(__file__).resolve().parent.parent
RECORDED = {
    "docs/attribution.md": "perf/recordings/cpu/drills.json",
    "docs/h200.md": "perf/recordings/h200/2026-11-30-drills/record.json",
    "docs/h200-one-percent.md": "perf/recordings/h200/2026-11-30-one-percent/record.json",
    "docs/h200x2.md": "perf/recordings/h200x2/2026-11-30-drills/record.json",
}
"""Document → the record whose table is in it."""
DRILLS = "slow-verify=50% slow-draft=5ms none slow-extend=5ms wrong-layers=0,1,2 none wrong-depth=1 slow-baseline=60%"
HOW = "--profile cpu-tiny --depth 2 --prompts 16 --max-tokens 64 --passes 2 --alternate"


def night(injected: str, **causes: tuple[str, ...]) -> Rehearsed:
    """Alarms by depth, as in d2=("verify",)."""
    seen = ("nccl",) if injected.startswith("lost-nccl") else ("cycle time",)
    alarms = {int(d[1:]): Concluded(seen, c, f"{injected} it was.") for d, c in causes.items()}
    return Rehearsed(injected, alarms)


@pytest.mark.parametrize(
    ("seen", "right"),
    [
        (night("none"), True),
        (night("none", d0=("plain server",)), False),
        (night("slow-verify=15%", d2=("verify",)), True),
        (night("slow-verify=15%"), False),
        (night("slow-verify=15%", d2=("cycle",)), False),
        (night("slow-verify=15%", d2=("verify", "unexplained")), True),
        (night("slow-verify=15%", d2=("unexplained", "verify")), False),
        (night("slow-verify=15%", d2=("verify",), d0=("plain server",)), False),
        (night("slow-baseline=50%", d0=("plain server",)), True),
        (night("wrong-layers=0,1,2", d3=("wrong layers",)), True),
        (night("wrong-depth=1", d2=("another depth runs",)), True),
        (night("lost-nccl=NCCL_PROTO", d2=()), True),
        (night("lost-nccl=NCCL_PROTO", d2=("verify", "draft")), True),
        (night("lost-nccl=NCCL_PROTO", d2=("draft",)), False),
        (night("lost-nccl=NCCL_PROTO"), False),
        (Rehearsed("lost-nccl=NCCL_PROTO", {2: Concluded(("cycle time",), (), "slower, and no more is known")}), False),
        (night("no-graphs", d2=("draft", "verify")), True),
        (night("no-graphs", d2=("unexplained", "verify")), False),
        (night("no-graphs", d0=("draft",)), False),
    ],
)
def test_right_is_an_alarm_of_the_right_server_alone_with_its_cause_first(seen: Rehearsed, right: bool) -> None:
    assert seen.right is right


RECORD = Record(
    host="2 cores of a CPU",
    date="2026-11-29",
    sglang="0.5.23",
    profile="cpu-tiny",
    depth=2,
    prompts=20,
    max_tokens=64,
    passes=2,
    alternated=True,
    nights=(
        night("none"),
        night("slow-draft=5ms", d2=("draft",)),
        night("slow-baseline=9%", d0=("draft", "cycle")),
        Rehearsed("slow-verify=1%", {}, {2: ("cycle time",)}),
        night("slow-verify=0.1%"),
    ),
)


def test_the_record_is_read_as_it_was_written() -> None:
    assert from_json(to_json(RECORD)) == RECORD


def test_the_table_has_a_row_for_each_night_and_its_sentences_below() -> None:
    head, *table = markdown(RECORD).splitlines()
    assert head.startswith(
        "cpu-tiny at 2 steps on 2 cores of a CPU, SGLang 0.5.23, 2026-11-29: 20 prompts of 64 tokens,"
    )
    assert head.endswith(" 2 × each, taking turns with a plain server.")
    assert table == [
        "",
        "| injected | alarm of | left open | concluded | besides | |",
        "|---|---|---|---|---|---|",
        "| none | nothing | nothing | nothing | nothing | right |",
        "| slow-draft=5ms | 2 steps: cycle time | nothing | 2 steps: draft | nothing | right |",
        "| slow-baseline=9% | plain server: cycle time | nothing | plain server: draft | plain server: cycle | wrong |",
        "| slow-verify=1% | nothing | 2 steps: cycle time | nothing | nothing | undecided |",
        "| slow-verify=0.1% | nothing | nothing | nothing | nothing | missed |",
        "",
        "- slow-draft=5ms: “slow-draft=5ms it was.”",
        "- slow-baseline=9%: “slow-baseline=9% it was.”",
    ]


def test_the_table_takes_its_place_in_a_document_and_again() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = placed(text, RECORD)
    assert once == f"before\n{BEGIN}\n{markdown(RECORD)}\n{END}\nafter\n"
    assert placed(once, RECORD) == once
    with pytest.raises(RecordError, match="the document needs the lines"):
        placed("no marks", RECORD)


@pytest.mark.parametrize("document", RECORDED)
def test_the_documents_table_is_the_recorded_one(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert placed(text, from_json((ROOT / RECORDED[document]).read_text(encoding="utf-8"))) == text


@pytest.mark.parametrize("document", [each for each in RECORDED if "h200" in each])
def test_nights_of_drills_judged_again_give_the_record_that_was_made_of_them(document: str, tmp_path: Path) -> None:
    record, into = ROOT / RECORDED[document], tmp_path / "record.json"
    profile = from_json(record.read_text(encoding="utf-8")).profile
    rehearsal.main(["--again", str(record.parent), "--profile", profile, "--into", str(into)])
    assert into.read_text(encoding="utf-8") == record.read_text(encoding="utf-8")


def test_the_table_says_how_many_nights_were_the_reference() -> None:
    head = markdown(replace(RECORD, quiet=3)).splitlines()[0]
    assert head.endswith(" 2 × each, taking turns with a plain server, against 3 nights without a fault.")


def test_more_nights_without_a_fault_than_there_are_or_none_at_all_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = (ROOT / RECORDED["docs/h200.md"]).parent
    words = ["--again", str(folder), "--profile", "h200-llama8b-shape", "--into", str(tmp_path / "record.json")]
    with pytest.raises(SystemExit, match=r"4 nights .* were asked for \(--quiet\), and there are 3"):
        rehearsal.main([*words, "--quiet", "4"])
    with pytest.raises(SystemExit):
        rehearsal.main([*words, "--quiet", "0"])
    assert "'0' isn't a number of nights, 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("injected", "undecided", "worth"),
    [
        ("slow-verify=1%", {2: ("cycle time",)}, "undecided"),
        ("slow-verify=1%", {0: ("cycle time",)}, "missed"),
        ("slow-baseline=9%", {0: ("cycle time",)}, "undecided"),
        ("slow-baseline=9%", {2: ("cycle time",)}, "missed"),
        ("none", {0: ("cycle time",)}, "right"),
    ],
)
def test_a_fault_without_an_alarm_is_missed_unless_the_server_to_blame_is_left_open(
    injected: str, undecided: dict[int, tuple[str, ...]], worth: str
) -> None:
    assert Rehearsed(injected, {}, undecided).worth == worth


def nights_of(document: str) -> list[drill_nights.Night]:
    return list(drill_nights.kept((ROOT / RECORDED[document]).parent, 2))


def test_nights_that_differ_are_no_reference_together() -> None:
    nights = nights_of("docs/h200.md")
    wrong = next(night for night in nights if night.injected.startswith("wrong-layers"))
    with pytest.raises(DrillError, match=r"verify counts \(2 steps\) aren't in number 2 what they were before"):
        drill_nights.together([nights[0], wrong])


def test_a_plain_server_that_stayed_up_is_one_boot_of_the_reference() -> None:
    quiet = [night for night in nights_of("docs/h200-one-percent.md") if night.injected == "none"]
    assert {d: len(depth.boots) for d, depth in drill_nights.together(quiet).depths.items()} == {0: 1, 2: 4}


def test_the_nights_without_a_fault_come_first_and_a_copy_of_one_is_still_a_night() -> None:
    nights = nights_of("docs/h200-one-percent.md")
    nights[2] = nights[0]
    order = [night.injected for night in drill_nights.quiet_first(nights, 3)]
    assert (order[:3], len(order)) == (["none"] * 3, len(nights))
    assert order[3:] == ["slow-verify=1%", "slow-verify=3%", "slow-verify=1%", "none", "slow-verify=1%"]


def test_a_reference_of_all_nights_leaves_nothing_to_judge_and_is_refused() -> None:
    with pytest.raises(ResultsError, match="no night is left to be judged"):
        drill_nights.quiet_first(nights_of("docs/h200.md")[:1], 1)


def test_a_larger_reference_without_drills_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--quiet makes a reference for drills"):
        rehearsal.main(["--quiet", "2", "--into", str(tmp_path / "record.json")])


@pytest.mark.parametrize("text", ["", "[]", '{"nights": [{"injected": "none", "alarms": {}}]}'], ids=len)
def test_a_record_that_is_none_of_this_version_says_what_to_do(tmp_path: Path, text: str) -> None:
    record, document = tmp_path / "record.json", tmp_path / "page.md"
    record.write_text(text, encoding="utf-8")
    document.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="isn't one of this version's: judge its nights again"):
        rehearsal.main(["--into", str(record), "--document", str(document)])
    assert document.read_text(encoding="utf-8") == f"{BEGIN}\n{END}\n"


def test_a_document_without_the_marks_is_refused_before_anything_is_judged(tmp_path: Path) -> None:
    (document := tmp_path / "page.md").write_text("no marks", encoding="utf-8")
    folder, into = (ROOT / RECORDED["docs/h200.md"]).parent, tmp_path / "record.json"
    words = ["--again", str(folder), "--profile", "h200-llama8b-shape", "--into", str(into)]
    with pytest.raises(SystemExit, match="the document needs the lines"):
        rehearsal.main([*words, "--document", str(document)])
    assert not into.exists()


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    (document := tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"missing\.json: No such file"):
        rehearsal.main(["--into", str(tmp_path / "missing.json"), "--document", str(document)])


def test_judging_again_makes_the_folder_of_the_record_and_says_of_each_night_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, into = (ROOT / RECORDED["docs/h200-one-percent.md"]).parent, tmp_path / "new/record.json"
    rehearsal.main(["--again", str(folder), "--profile", "h200-llama8b-shape", "--into", str(into)])
    assert into.exists()
    said = capsys.readouterr().out.splitlines()
    assert said[4] == "slow-verify=1%: undecided; alarm of nothing; left open: 2 steps: cycle time; concluded: nothing"
    assert said[5] == "none: right; alarm of nothing; left open: nothing; concluded: nothing"


def judged_again(folder: Path, *words: str) -> None:
    into = str(folder.parent / "again.json")
    rehearsal.main(["--again", str(folder), "--profile", "h200-llama8b-shape", "--into", into, *words])


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A rehearsal's nights, to be spoilt."""
    return Path(shutil.copytree((ROOT / RECORDED["docs/h200-one-percent.md"]).parent, tmp_path / "nights"))


def test_a_night_of_no_rehearsal_among_the_others_is_named(copied: Path) -> None:
    shutil.copy(ROOT / "perf/recordings/h200/2026-11-30-engine-only/depth-2.json", copied / "04-slow-verify")
    with pytest.raises(
        SystemExit, match=r"04-slow-verify: no night of a rehearsal, but the engine alone, acceptance is"
    ):
        judged_again(copied)
    shutil.copy(ROOT / "perf/recordings/h200/2026-11-30-fourth-gpu/depth-2.json", copied / "04-slow-verify")
    with pytest.raises(
        SystemExit, match=r"04-slow-verify: no night of a rehearsal, but a night's; judge it with --perf-"
    ):
        judged_again(copied)


def test_nights_of_several_profiles_are_refused(copied: Path) -> None:
    night = copied / "04-slow-verify/depth-2.json"
    text = night.read_text(encoding="utf-8").replace('"profile": "h200-llama8b-shape"', '"profile": "another"')
    night.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"measured with the profile another; name that one \(--profile\)"):
        judged_again(copied)


def test_a_broken_night_is_to_be_fetched_again_and_not_to_be_removed(copied: Path) -> None:
    (copied / "03-none/depth-2.json").write_text('{"schema": 1', encoding="utf-8")
    with pytest.raises(SystemExit) as refused:
        judged_again(copied)
    assert "03-none/depth-2.json: not a measurement" in str(refused.value)
    assert str(refused.value).endswith("Fetch the file again from where the rehearsal was made.")


def test_another_depth_than_the_nights_have_is_refused_with_those_that_are_there(copied: Path) -> None:
    with pytest.raises(SystemExit, match=r"has depth-3\.json \(--depth 3\), .* there is of depth: 0, 2"):
        judged_again(copied, "--depth", "3")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--again", "there", "none"], "--again judges the nights that lie there, so name no drills"),
        (["--again", "there", "--passes", "1", "--alternate"], "leave --passes, --alternate out"),
        (["--again", "there"], "there: there is no such folder; give the results folder"),
        ([], "nothing is asked for: name drills"),
        (["none", "--into", "page.md"], r"--into page\.md: the record is JSON"),
        (["none", "--into", "folder.json"], r"--into folder\.json: is a folder; name a file"),
        (["none", "--into", "file/record.json"], r"--into file/record\.json: no folder for it: File exists"),
        (["none", "--document", "binary"], "binary: isn't text: .*decode"),
        (["none", "--document", "file"], "file: the document needs the lines"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_can_not_be_is_refused_in_a_sentence_before_anything_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").write_text("no marks", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(SystemExit, match=told):
        rehearsal.main(["--profile", "cpu-tiny", "--into", "record.json", *words])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["binary", "file", "folder.json"]


def test_what_is_no_rehearsals_folder_is_refused(tmp_path: Path) -> None:
    for name in ("01-none", "02-none"):
        (tmp_path / name).mkdir()
    with pytest.raises(SystemExit, match=r"01-none: a night of a rehearsal has depth-2\.json"):
        rehearsal.main(["--again", str(tmp_path), "--profile", "cpu-tiny", "--into", str(tmp_path / "record.json")])


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="a rehearsal has a first night and others"):
        rehearsal.main(["--again", str(tmp_path), "--profile", "cpu-tiny", "--into", str(tmp_path / "record.json")])


def test_what_is_no_drill_boots_nothing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no drill is called 'slow'"):
        rehearsal.main(["slow", "--into", str(tmp_path / "record.json")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.faults
def test_drills_in_a_row_on_the_stand_in_are_held_against_the_first_two_nights(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = "\n[reference]\ndelta = 0.9\nplain_delta = 0.9\nbeta = 0.05\n"
    file = suite.profile(2, alternate=True, changed=lambda text: text + wide)
    monkeypatch.setenv("EAGLE3_PERF_LOCKS", str(suite.locks))
    into = suite.folder / "drills.json"
    where = ["--profile", str(file), "--results", str(suite.results), "--into", str(into)]
    rehearsal.main(["wrong-layers=0,1,2", "slow-baseline=400%", "--passes", "2", "--quiet", "2", *where])
    record = from_json(into.read_text(encoding="utf-8"))
    layers, plain = record.nights
    assert record.quiet == 2
    # Other work on the machine may move a time besides.
    assert layers.alarms[2].causes[0] == "wrong layers"
    assert {*layers.alarms[2].detected} >= {"accept length kept", "first acceptance"}
    assert layers.alarms[2].sentence.startswith("2 steps lost ")
    assert (plain.alarms[0].detected, plain.alarms[0].causes) == (("cycle time",), ("plain server",))
    booted = [line["depth"] for line in suite.record() if line["event"] == "booting"]
    assert booted == [0, 2, 2, 2, 0, 2], "the plain server stays up until it is the one with the fault"
    assert suite.left(suite.record()) == []
    folders = ["01-none", "02-none", "03-wrong-layers", "04-slow-baseline"]
    assert sorted(path.name for path in suite.results.iterdir() if path.is_dir()) == folders


def test_the_documents_command_is_the_one_that_is_tested() -> None:
    words = rehearsal.DOCUMENT.read_text(encoding="utf-8").replace("\\\n", " ").split()
    whole = f"python -m fixtures.rehearsal {DRILLS} {HOW} --into perf/recordings/cpu/drills.json --document"
    assert f" {whole} " in f" {' '.join(words)} "


@pytest.mark.engine
@pytest.mark.slow
def test_every_drill_on_the_real_engine_is_concluded_to_be_itself(tmp_path: Path) -> None:
    """On a quiet machine: times are taken for what they are."""
    into = tmp_path / "drills.json"
    rehearsal.main([*DRILLS.split(), *HOW.split(), "--into", str(into), "--results", str(tmp_path / "results")])
    seen = from_json(into.read_text(encoding="utf-8"))
    assert [night.injected for night in seen.nights] == DRILLS.split()
    assert [night for night in seen.nights if not night.right] == []
