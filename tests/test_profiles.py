"""Profiles: what is read, and the exact words in which everything else is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from fixtures import profiles
from fixtures.profiles.__main__ import markdown

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "fixtures" / "pairs" / "tiny-eagle3"
FILE = Path("/profiles/mine.toml")

GOOD = """
description = "A pair on a host"
depths = [1, 2]
[pair]
target = "../models/target"
draft = "owner/draft"
[launch]
engine = "sglang"
accelerators = 1
[launch.flags]
max-running-requests = 4
dtype = "bfloat16"
[launch.environment]
OMP_NUM_THREADS = "1"
[nccl]
settings = { NCCL_PROTO = "LL" }
[workload]
prompts = "prompts.jsonl"
max_tokens = 64
passes = 2
[floors.throughput]
1 = 0.8
2 = 0.9
[floors.accept_length]
1 = 1.5
2 = 1.9
"""


def parsed(*changes: tuple[str, str]) -> profiles.Profile:
    """The good profile with some of its text replaced."""
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is in the text {text.count(old)} times"
        text = text.replace(old, new)
    return profiles.parse(text, FILE)


def refusals(*changes: tuple[str, str]) -> list[str]:
    """The lines that refuse the changed profile, each without the file in front."""
    with pytest.raises(profiles.ProfileError) as error:
        parsed(*changes)
    lines = str(error.value).splitlines()
    assert all(line.startswith(f"{FILE}: ") for line in lines)
    return [line.removeprefix(f"{FILE}: ") for line in lines]


def test_a_profile_is_named_after_its_file_and_paths_start_from_its_folder() -> None:
    profile = parsed()
    assert (profile.name, profile.file) == ("mine", FILE)
    assert profile.pair.target == Path("/models/target")
    assert profile.pair.draft == "owner/draft"
    assert profile.workload.prompts == Path("/profiles/prompts.jsonl")


def test_lists_become_tuples_and_depths_numbers() -> None:
    profile = parsed(('dtype = "bfloat16"', 'dtype = "bfloat16"\ncuda-graph-bs = [1, 2]'))
    assert profile.depths == (1, 2)
    assert profile.launch.flags["cuda-graph-bs"] == (1, 2)
    assert profile.floors.accept_length == {1: 1.5, 2: 1.9}


def test_what_is_left_out_has_the_documented_default() -> None:
    profile = parsed()
    assert (profile.launch.host, profile.launch.port, profile.launch.python) == ("127.0.0.1", 0, "")
    assert profile.launch.interpreter == sys.executable
    assert profile.workload.oracle is None
    assert profile.pair.aux_layer_ids is None


def test_a_linked_interpreter_stays_a_link_since_a_virtual_environment_hangs_on_it() -> None:
    profile = parsed(('engine = "sglang"', f"python = '{sys.executable}'"))
    assert profile.launch.interpreter == sys.executable


def test_a_gpu_profile_without_accelerators_is_refused_since_it_would_run_without_their_lease() -> None:
    (line,) = refusals(("accelerators = 1", ""))
    assert line.startswith("launch.accelerators = 0: launch.flags ask for 1 ")


def test_sglang_on_a_cpu_needs_no_accelerator() -> None:
    profile = parsed(("accelerators = 1", ""), ('dtype = "bfloat16"', 'device = "cpu"'))
    assert profile.launch.accelerators == 0


def test_a_profile_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parsed().depths = (1,)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        pytest.param(
            'engine = "sglang"',
            'hots = "::1"',
            'launch.hots = "::1": unknown key; did you mean launch.host?',
            id="unknown key",
        ),
        pytest.param(
            "depths = [1, 2]",
            "depths = [1, 2]\npasses = 3",
            "passes = 3: unknown key; did you mean workload.passes?",
            id="known key in the wrong table",
        ),
        pytest.param(
            'settings = { NCCL_PROTO = "LL" }',
            "zzz = 1",
            "nccl.zzz = 1: unknown key; known here: nccl.settings, nccl.required, nccl.ab",
            id="unknown key like no other",
        ),
        pytest.param(
            'settings = { NCCL_PROTO = "LL" }',
            "ab = true",
            "nccl.ab = true: compares a server with nccl.settings and one without; write settings, or remove it",
            id="comparison without NCCL settings",
        ),
        pytest.param(
            "passes = 2",
            'passes = "2"',
            'workload.passes = "2": must be a whole number; it is: passes over the prompts, >= 1',
            id="text for a number",
        ),
        pytest.param(
            'engine = "sglang"',
            "trust_remote_code = 1",
            "launch.trust_remote_code = 1: must be true or false; "
            "it is: whether the server may run code out of model folders",
            id="number for a switch",
        ),
        pytest.param(
            'engine = "sglang"',
            "boot_limit_s = -1.0",
            "launch.boot_limit_s = -1.0: must be > 0; it is: seconds from start to ready, > 0",
            id="out of range",
        ),
        pytest.param(
            'engine = "sglang"',
            'engine = "vllm"',
            "launch.engine = \"vllm\": must be 'cpu' or 'sglang'; "
            'it is: "cpu": SGLang with the pure-PyTorch kernels; "sglang": SGLang as installed',
            id="unknown engine",
        ),
        pytest.param(
            "max_tokens = 64",
            "",
            "workload.max_tokens: is missing; add it: tokens of each completion, >= 2",
            id="missing key",
        ),
        pytest.param(
            "depths = [1, 2]",
            "depths = [0, 1, 2]",
            "depths = [0, 1, 2]: a depth is a number of draft steps, >= 1; the plain server is always measured as "
            "well; it is: speculation depths (draft steps) to measure: whole numbers >= 1, ascending, each once",
            id="depth below 1",
        ),
        pytest.param(
            "depths = [1, 2]",
            "depths = [1, 2, 2]",
            "depths = [1, 2, 2]: depths must ascend, each once; write [1, 2]; it is: speculation depths (draft "
            "steps) to measure: whole numbers >= 1, ascending, each once",
            id="depth twice",
        ),
        pytest.param(
            "depths = [1, 2]",
            "depths = []",
            "depths = []: is empty; write at least one depth, as in [1, 2, 3, 5, 10]; it is: speculation depths "
            "(draft steps) to measure: whole numbers >= 1, ascending, each once",
            id="no depth",
        ),
        pytest.param(
            "1 = 0.8",
            "1 = 0",
            "floors.throughput.1 = 0.0: a floor is > 0; write 0.8 for 0.8 × the baseline's",
            id="throughput floor 0",
        ),
        pytest.param(
            "1 = 0.8",
            "1 = 2.5",
            "floors.throughput.1 = 2.5: can never hold, since 2 tokens per verify are the most that depth 1 can give; "
            "lower it",
            id="throughput floor that can't hold",
        ),
        pytest.param(
            "1 = 0.8",
            "1 = nan",
            "floors.throughput.1 = NaN: must be a finite number; it is: least throughput per depth, × the "
            'baseline\'s; > 0, at most depth + 1; or "97 % of reference"',
            id="throughput floor that isn't a number",
        ),
        pytest.param(
            "1 = 0.8",
            '1 = "a lot"',
            'floors.throughput.1 = "a lot": must be a number, or a rule like "97 % of reference"; it is: least '
            'throughput per depth, × the baseline\'s; > 0, at most depth + 1; or "97 % of reference"',
            id="throughput floor by no rule",
        ),
        pytest.param(
            "[floors.accept_length]",
            '[floors.cycle_cost]\n3 = "103 % of reference"\n[floors.accept_length]',
            'floors.cycle_cost.3 = "103 % of reference": 3 is not in depths; add it there or remove this',
            id="ceiling without its depth",
        ),
        pytest.param(
            "[floors.accept_length]",
            "[floors.cycle_cost]\n1 = 0\n[floors.accept_length]",
            "floors.cycle_cost.1 = 0.0: a cycle costs something; write 1.4 for 1.4 plain tokens",
            id="ceiling 0",
        ),
        pytest.param(
            "1 = 1.5",
            "1 = 2.01",
            "floors.accept_length.1 = 2.01: accept length lies between 1 and depth + 1 = 2 tokens per verify; write a "
            "floor within",
            id="accept length floor too high",
        ),
        pytest.param(
            "1 = 1.5",
            "1 = 0.6",
            "floors.accept_length.1 = 0.6: accept length lies between 1 and depth + 1 = 2 tokens per verify; write a "
            "floor within",
            id="accept length floor too low",
        ),
        pytest.param(
            "1 = 0.8",
            "1 = 0.8\n3 = 0.8",
            "floors.throughput.3 = 0.8: 3 is not in depths; add it there or remove this",
            id="floor without its depth",
        ),
        pytest.param(
            "2 = 1.9",
            "",
            "floors.accept_length.2: is missing: 2 is in depths, and without a floor it can't fail; add one",
            id="depth without its floor",
        ),
        pytest.param(
            "1 = 1.5",
            "1 = 1.5\ntwo = 1.9",
            "floors.accept_length.two: is no depth; keys of this table are whole numbers >= 1",
            id="floor of a word",
        ),
        pytest.param(
            "max-running-requests = 4",
            "",
            "launch.flags.max-running-requests: is missing; pin it, as in max-running-requests = 4 (a speculative "
            "server takes 48 by default and a plain one more, so they wouldn't be comparable)",
            id="max-running-requests not pinned",
        ),
        pytest.param(
            "max-running-requests = 4",
            "max-running-requests = true",
            "launch.flags.max-running-requests = true: must be a whole number >= 1",
            id="max-running-requests no number",
        ),
        pytest.param(
            'dtype = "bfloat16"',
            "mem_fraction_static = 0.8",
            "launch.flags.mem_fraction_static = 0.8: flags have no dashes in front, and dashes inside; "
            "write mem-fraction-static",
            id="flag with underscores",
        ),
        pytest.param(
            'dtype = "bfloat16"',
            "speculative-num-steps = 3",
            "launch.flags.speculative-num-steps = 3: the suite sets the speculative flags, from pair.draft and "
            "depths; remove it",
            id="speculative flag",
        ),
        pytest.param(
            'dtype = "bfloat16"',
            "dtype = { a = 1 }",
            'launch.flags.dtype = {"a": 1}: must be true, false, a number, text, or a list of numbers and texts; it '
            "is: SGLang flags without dashes in front: true is a bare switch, false leaves it out, a list is several "
            "words; max-running-requests must be pinned",
            id="flag that is a table",
        ),
        pytest.param(
            'OMP_NUM_THREADS = "1"',
            'NCCL_ALGO = "Ring"',
            "launch.environment.NCCL_ALGO = (not shown): NCCL's variables are checked inside the server; "
            "move it to nccl.settings, or to nccl.required if the host needs it",
            id="NCCL variable in the environment",
        ),
        pytest.param(
            "NCCL_PROTO",
            "PROTO",
            'nccl.settings.PROTO = "LL": is not one of NCCL\'s variables (NCCL_…); move it to launch.environment',
            id="no NCCL variable",
        ),
        pytest.param(
            'settings = { NCCL_PROTO = "LL"',
            'required = { NCCL_PROTO = "Simple" }\nsettings = { NCCL_PROTO = "LL"',
            'nccl.required.NCCL_PROTO = "Simple": stands in nccl.settings as well; keep it in one of them',
            id="NCCL variable in both tables",
        ),
        pytest.param(
            'draft = "owner/draft"',
            'draft = "draft"',
            'pair.draft = "draft": is neither a path (starts with ./, ../, / or ~) nor a hub id (owner/name); it is: '
            "the EAGLE-3 draft's folder or hub id, written like the target's",
            id="neither path nor hub id",
        ),
        pytest.param(
            'dtype = "bfloat16"',
            "tp-size = 4\npp-size = 2",
            "launch.accelerators = 1: launch.flags ask for 8 (tensor × pipeline parallel); write accelerators = 8",
            id="fewer accelerators than parallel ranks",
        ),
        pytest.param(
            'engine = "sglang"',
            'engine = "cpu"',
            'launch.accelerators = 1: engine = "cpu" uses none; write 0, or engine = "sglang"',
            id="accelerators for the CPU engine",
        ),
        pytest.param(
            "passes = 2",
            "concurrency = [1, 8]",
            "workload.concurrency = [1, 8]: launch.flags.max-running-requests = 4 covers 4 streams, not 8; raise it to "
            "8, or leave 8 out here",
            id="more streams than the server admits",
        ),
        pytest.param(
            "passes = 2",
            "concurrency = [4, 2]",
            "workload.concurrency = [4, 2]: numbers of streams >= 1 ascend, each once; write as in [1, 8, 32]",
            id="numbers of streams out of order",
        ),
        pytest.param(
            "passes = 2",
            "concurrency = []",
            "workload.concurrency = []: numbers of streams >= 1 ascend, each once; write as in [1, 8, 32]",
            id="no number of streams",
        ),
        pytest.param(
            "passes = 2",
            "temperature = 0.7",
            "workload.temperature = 0.7: repeats of a prompt differ then, and passes = 1 shows none; write passes = 2 "
            "or more",
            id="sampling without repeats",
        ),
        pytest.param(
            "passes = 2",
            'passes = 2\ntemperature = 0.7\noracle = "x.json"',
            "workload.temperature = 0.7: the oracle's counts are of greedy decoding; remove workload.oracle, or "
            "write 0",
            id="sampling beside an oracle",
        ),
        pytest.param(
            "2 = 1.9",
            "2 = 1.9\n[floors.ttft]\n1 = 0",
            "floors.ttft.1 = 0.0: is the most × the baseline's, > 0; write 1.5 for half as long again",
            id="limit of the first token that can't hold",
        ),
    ],
)
def test_a_wrong_profile_is_refused_in_these_words(old: str, new: str, line: str) -> None:
    assert refusals((old, new)) == [line]


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("model-path", "write pair.target"),
        ("host", "write launch.host"),
        ("port", "write launch.port"),
        ("enable-metrics", "the suite always sets it"),
        ("trust-remote-code", "write launch.trust_remote_code"),
        ("config", "a file of flags could set any of them unseen; write them in launch.flags"),
    ],
)
def test_a_flag_that_the_suite_sets_is_refused(flag: str, instead: str) -> None:
    (line,) = refusals(('dtype = "bfloat16"', f"{flag} = 1"))
    assert line == f"launch.flags.{flag} = 1: the suite sets this flag; remove it ({instead})"


@pytest.mark.parametrize("tokens", [64, 65])
def test_completions_that_leave_the_prompt_no_context_are_refused(tokens: int) -> None:
    changes = (("max_tokens = 64", f"max_tokens = {tokens}"), ('dtype = "bfloat16"', "context-length = 64"))
    with pytest.raises(profiles.ProfileError) as error:
        parsed(*changes)
    assert str(error.value) == (
        f"{FILE}: workload.max_tokens = {tokens}: launch.flags.context-length = 64 has to hold the prompt as well; "
        "lower this, or raise the flag"
    )


def test_completions_within_the_context_are_taken() -> None:
    assert parsed(('dtype = "bfloat16"', "context-length = 65")).workload.max_tokens == 64


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        ("cuda-graph-max-bs = 2", "cuda-graph-max-bs = 2"),
        ("cuda-graph-bs = [1, 2]", "cuda-graph-bs = [1, 2]"),
        ("cuda-graph-max-bs-decode = 2", "cuda-graph-max-bs-decode = 2"),
        ("cuda-graph-bs-decode = 2", "cuda-graph-bs-decode = 2"),
    ],
)
def test_captured_graphs_that_do_not_cover_the_streams_are_refused(flag: str, shown: str) -> None:
    wrong = (("passes = 2", "concurrency = [1, 4]"), ('dtype = "bfloat16"', flag))
    assert refusals(*wrong) == [
        (
            "workload.concurrency = [1, 4]: "
            f"launch.flags.{shown} covers 2 streams, not 4; raise it to 4, or leave 4 out here"
        )
    ]


@pytest.mark.parametrize(
    "flags",
    [
        "cuda-graph-max-bs-decode = 4",
        "cuda-graph-max-bs-prefill = 2",
        "disable-cuda-graph = true\ncuda-graph-max-bs = 2",
        'cuda-graph-backend-decode = "disabled"\ncuda-graph-max-bs-decode = 2',
    ],
)
def test_flags_that_cover_the_streams_or_capture_nothing_are_none_of_their_business(flags: str) -> None:
    profile = parsed(("passes = 2", "concurrency = [1, 2, 4]"), ('dtype = "bfloat16"', flags))
    assert profile.workload.levels == (2, 4)


def test_the_cpu_engine_samples_nothing() -> None:
    cpu = (('engine = "sglang"', 'engine = "cpu"'), ("accelerators = 1", "accelerators = 0"))
    (told,) = refusals(*cpu, ("passes = 2", "passes = 2\ntemperature = 1.0"))
    assert told.startswith('workload.temperature = 1.0: engine = "cpu" verifies greedily whatever is asked, so nothing')


def test_all_problems_are_reported_at_once() -> None:
    keys = [
        line.partition(" = ")[0].partition(":")[0]
        for line in refusals(
            ("passes = 2", "passes = 0\npases = 1"),
            ('engine = "sglang"', "port = 99999"),
            ("1 = 0.8", "1 = -0.8"),
            ("2 = 1.9", "3 = 1.9"),
            ("max-running-requests = 4", ""),
        )
    ]
    assert keys == [
        "launch.port",
        "launch.flags.max-running-requests",
        "workload.passes",
        "workload.pases",
        "floors.throughput.1",
        "floors.accept_length.3",
        "floors.accept_length.2",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('OMP_NUM_THREADS = "1"', 'HF_TOKEN = ["hf_s3cret"]'),
        ('OMP_NUM_THREADS = "1"', '"BAD NAME" = "hf_s3cret"'),
        ('dtype = "bfloat16"', 'api-key = "hf_s3cret"'),
        ('dtype = "bfloat16"', 'admin_api_key = "hf_s3cret"'),
        ('engine = "sglang"', 'api_key = "hf_s3cret"'),
    ],
)
def test_a_secret_is_never_in_a_message(old: str, new: str) -> None:
    (line,) = refusals((old, new))
    assert "s3cret" not in line
    assert " = (not shown): " in line


def test_a_secret_in_the_environment_is_allowed_and_never_printed() -> None:
    profile = parsed(("OMP_NUM_THREADS", "HF_TOKEN"), ('"1"', '"hf_s3cret"'))
    assert profile.launch.environment == {"HF_TOKEN": "hf_s3cret"}
    assert "s3cret" not in repr(profile) + str(profile)


@pytest.mark.parametrize("name", ["HF_TOKEN", "api-key", "OPENAI_API_KEY", "apikey", "AWS_SECRET_ACCESS_KEY", "token"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert profiles.is_secret(name)


@pytest.mark.parametrize("name", ["token_limit_s", "max-total-tokens", "TOKENIZERS_PARALLELISM", "MONKEY", "keyboard"])
def test_names_that_only_look_like_secrets_are_not_hidden(name: str) -> None:
    assert not profiles.is_secret(name)


def test_a_syntax_error_names_file_and_line() -> None:
    with pytest.raises(profiles.ProfileError) as error:
        profiles.parse("description = 'a'\ndepths = [1, 2\n[pair]", FILE)
    assert str(error.value) == f"{FILE}: not TOML: Unclosed array (at line 3, column 1)"


def test_an_unknown_name_lists_the_profiles_there_are() -> None:
    with pytest.raises(profiles.ProfileError) as error:
        profiles.load("cpu-tny")
    there = ", ".join(profiles.names())
    assert str(error.value) == (
        f"profile 'cpu-tny': not in {profiles.FOLDER}; there are: {there}. Did you mean cpu-tiny? A path ends in .toml."
    )
    assert "cpu-tiny, " in there


def test_a_path_that_is_not_there_is_named_whole(tmp_path: Path) -> None:
    with pytest.raises(profiles.ProfileError, match=f"^{tmp_path}/no.toml: no such profile$"):
        profiles.load(f"{tmp_path}/no.toml")


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (("b.toml", "a.toml", "notes.md"), "name a profile in it: a.toml, b.toml"),
        (("notes.md",), "there is no profile in it; name a .toml file"),
    ],
)
def test_a_folder_in_a_profiles_place_is_said_to_be_one(tmp_path: Path, there: tuple[str, ...], told: str) -> None:
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(profiles.ProfileError, match=f"^{tmp_path}: is a folder; {told}$"):
        profiles.load(f"{tmp_path}/")


def test_a_profile_is_loaded_by_its_path_too(tmp_path: Path) -> None:
    (tmp_path / "my.v2.toml").write_text(GOOD)
    assert profiles.load(f"{tmp_path}/my.v2.toml").name == "my.v2"


def test_a_profile_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes("description = 'Größe'".encode("latin-1"))
    with pytest.raises(profiles.ProfileError, match=r"latin.toml: can't be read: 'utf-8' codec"):
        profiles.load(f"{tmp_path}/latin.toml")


def test_fewer_depths_keep_their_floors() -> None:
    assert parsed().narrowed([2]).depths == (2,)
    assert parsed().narrowed([2]).name == "mine"


def test_a_depth_that_the_profile_lacks_is_refused_since_it_has_no_floor() -> None:
    with pytest.raises(profiles.ProfileError) as error:
        parsed().narrowed([1, 4])
    assert str(error.value) == f"{FILE}: depths asked for: 4; the profile has depths (and floors) for 1, 2"


@pytest.mark.parametrize("name", profiles.names())
def test_every_profile_that_comes_along_loads_with_its_prompts(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    assert len(profiles.read_prompts(profile.workload.prompts)) >= 2


def test_the_tiny_pairs_oracle_covers_its_profile_and_its_floors_lie_just_below() -> None:
    profile = profiles.load("cpu-tiny")
    assert profile.workload.oracle is not None
    prompts = profiles.read_prompts(profile.workload.prompts)
    oracle = profiles.read_oracle(profile.workload.oracle)
    assert profiles.oracle_problems(profile, prompts, oracle) == ()
    for depth in profile.depths:
        exact = oracle.accept_length(depth, [prompt.id for prompt in prompts])
        assert exact is not None
        assert 0.02 <= exact - profile.floors.accept_length[depth] < 0.035


def test_the_throughput_floors_of_the_tiny_pair_leave_a_noisy_host_a_fifth() -> None:
    measured = {1: 1.05, 2: 1.03, 3: 0.95, 5: 0.83, 10: 0.64}
    floors = profiles.load("cpu-tiny").floors.throughput
    assert all(floors[depth] <= 0.8 * ratio for depth, ratio in measured.items())


def test_the_floors_of_kimi_follow_from_the_published_figures() -> None:
    floors = profiles.load("kimi-k2.5-int4").floors
    published = {1: (85.1, 0.01882), 2: (94.0, 0.01985), 5: (86.7, 0.02268)}
    for depth, (rate, cycle_s) in published.items():
        assert floors.throughput[depth] == pytest.approx(0.9 * rate / 88.8, abs=0.006)
        assert floors.accept_length[depth] == pytest.approx(0.9 * rate * cycle_s, abs=0.006)
    assert set(floors.provisional) == {3, 10}


def test_a_floor_by_rule_is_a_share_of_the_accepted_figure_where_there_is_one() -> None:
    floors = parsed(("1 = 0.8", '1 = "97.5% of reference"'), ("1 = 1.5", '1 = "99 % of reference"')).floors
    given = floors.given({"throughput": {1: 1.2, 2: 9.9}})
    assert given.throughput == {1: pytest.approx(1.17), 2: 0.9}
    assert profiles.numbers(given.accept_length) == {2: 1.9}
    assert str(given.accept_length[1]) == "99 % of reference"


SEVERAL = """
[[drafts]]
name = "production"
path = "owner/draft"
[[drafts]]
name = "new"
path = "../drafts/new"
aux_layer_ids = [1, 2, 4]
oracle = "new.json"
[pair]
"""
PAIR = ('[pair]\ntarget = "../models/target"\ndraft = "owner/draft"', f'{SEVERAL}target = "../models/target"')


def test_of_several_drafts_the_first_is_measured_unless_another_is_named() -> None:
    profile = parsed(PAIR)
    assert (profile.draft, profile.label, profile.pair.draft) == ("production", "mine-production", "owner/draft")
    new = profile.narrowed([2]).with_draft("new")
    assert (new.draft, new.label, new.pair.draft) == ("new", "mine-new", Path("/drafts/new"))
    assert (new.pair.aux_layer_ids, new.workload.oracle) == ((1, 2, 4), Path("/profiles/new.json"))
    assert new.with_draft("production").workload.oracle is None
    assert (parsed().draft, parsed().label) == ("", "mine")


def test_an_oracle_of_a_draft_is_refused_above_temperature_0_when_that_draft_is_named() -> None:
    sampled = parsed(PAIR, ("passes = 2", "passes = 2\ntemperature = 0.7"))
    assert sampled.draft == "production"
    with pytest.raises(profiles.ProfileError, match=r"drafts\.oracle of new: its counts are of greedy decoding"):
        sampled.with_draft("new")


def test_a_draft_that_the_profile_has_not_got_is_refused_with_those_it_has() -> None:
    with pytest.raises(profiles.ProfileError, match=r"draft asked for: old; \[\[drafts\]\] has production, new$"):
        parsed(PAIR).with_draft("old")
    with pytest.raises(profiles.ProfileError, match=r"has none: it has pair\.draft alone"):
        parsed().with_draft("old")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('name = "new"', 'name = "production"', "is there twice; give each draft a name of its own"),
        ('name = "new"', 'name = "a draft"', "is part of names of tests; use letters, digits, dots, _ and -"),
    ],
)
def test_names_of_drafts_can_be_told_apart_and_typed(old: str, new: str, line: str) -> None:
    (said, *more) = refusals((PAIR[0], PAIR[1].replace(old, new)))
    assert said.startswith("drafts.")
    assert said.endswith(line)
    assert len(more) == line.startswith("is there")


def test_what_is_of_one_draft_is_refused_beside_several() -> None:
    changed = PAIR[1].replace("[pair]\n", '[pair]\ndraft = "owner/other"\n')
    assert refusals((PAIR[0], changed)) == [
        'pair.draft = "owner/other": is of one draft; with [[drafts]] write path in each draft\'s table'
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("passes = 2", "passes = 2\nalternate = true", "tells nothing where completions alternate"),
        ("accelerators = 1", "accelerators = 1\nport = 30000", "needs two ports; write launch.port = 0"),
    ],
)
def test_the_baseline_is_looked_at_only_where_that_can_be_and_tells_something(old: str, new: str, told: str) -> None:
    asks = ("[nccl]", "[checks]\nbaseline_before_each = true\n[nccl]")
    assert parsed(asks).keeps_plain
    (line,) = refusals(asks, (old, new))
    assert line.startswith("checks.baseline_before_each = true: ")
    assert told in line


def test_the_general_prompts_are_six_of_each_kind() -> None:
    prompts = profiles.read_prompts(profiles.load("kimi-k2.5-int4").workload.prompts)
    ids = [f"{source}-{n:02d}" for source in ("code", "math", "chat", "summary") for n in range(1, 7)]
    assert [prompt.id for prompt in prompts] == ids
    assert all(prompt.id.startswith(f"{prompt.source}-") for prompt in prompts)
    assert len({prompt.text for prompt in prompts}) == 24


def prompt_refusals(tmp_path: Path, *lines: str) -> list[str]:
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(lines))
    with pytest.raises(profiles.ProfileError) as error:
        profiles.read_prompts(file)
    return [line.removeprefix(f"{file}:") for line in str(error.value).splitlines()]


def prompt_line(**keys: object) -> str:
    return json.dumps({"id": "a", "source": "test", "text": "Say something.", **keys})


def test_prompts_keep_the_order_of_the_file_and_blank_lines_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(f"{prompt_line(id='b')}\n\n{prompt_line(text='Grüße')}\n")
    prompts = profiles.read_prompts(tmp_path / "p.jsonl")
    assert [prompt.id for prompt in prompts] == ["b", "a"]
    assert prompts[1] == profiles.Prompt(id="a", source="test", text="Grüße")


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (prompt_line(id="b/c"), "id = \"b/c\": must be letters, digits, '.', '_' and '-' only"),
        (prompt_line(text=" \n"), 'text = " \\n": is empty; write some text, or remove the prompt'),
        (prompt_line(text=3), "text = 3: must be text"),
        (prompt_line(kind="x"), "kind: unknown key; a prompt has id, source and text"),
        ('{"id": "b", "text": "x"}', "source: is missing; add it"),
        ("[1]", 'must be an object {"id", "source", "text"}'),
        ('{"id": "b"', "not JSON: Expecting ',' delimiter at column 11"),
        ('{"id": "b', "not JSON: Unterminated string starting at column 8"),
        (prompt_line(), 'id = "a": is there twice; give each prompt an id of its own'),
    ],
)
def test_a_wrong_prompt_is_refused_with_its_line(tmp_path: Path, line: str, refusal: str) -> None:
    assert prompt_refusals(tmp_path, prompt_line(), line) == [f"2: {refusal}"]


def test_all_wrong_prompts_are_reported_at_once(tmp_path: Path) -> None:
    lines = prompt_refusals(tmp_path, prompt_line(text=""), prompt_line(), prompt_line())
    assert [line[:2] for line in lines] == ["1:", "3:"]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    assert prompt_refusals(tmp_path, "") == [' holds no prompt; write one {"id", "source", "text"} a line']


def test_missing_prompts_name_the_key_to_correct(tmp_path: Path) -> None:
    with pytest.raises(profiles.ProfileError) as error:
        profiles.read_prompts(tmp_path / "no.jsonl")
    assert str(error.value) == f'workload.prompts = "{tmp_path}/no.jsonl": there is no such file; correct it'


def test_a_missing_oracle_is_said_to_be_missing_with_the_profile_and_the_key_that_names_it() -> None:
    for profile, key in (
        (parsed(("max_tokens = 64", 'max_tokens = 64\noracle = "no.json"')), "workload.oracle"),
        (parsed(PAIR, ('"new.json"', '"no.json"')).with_draft("new"), "drafts.oracle of new"),
    ):
        with pytest.raises(profiles.ProfileError) as error:
            profiles.oracle_of(profile)
        assert str(error.value) == f'{FILE}: {key} = "/profiles/no.json": there is no such file; correct it'


def oracle_text(**changes: object) -> str:
    """Two prompts at depth 1, 3 tokens each: one verify that accepted its draft, and two that accepted none."""
    prompts = {
        "a": {"verifies": {"1": 1}, "accepted_drafts_histogram": {"1": [0, 1]}, "text_sha256": "aa"},
        "b": {"verifies": {"1": 2}, "accepted_drafts_histogram": {"1": [2, 0]}, "text_sha256": "bb"},
    }
    return json.dumps({"max_tokens": 3, "ignore_eos": True, "dtype": "float32", "prompts": prompts, **changes})


@pytest.fixture
def oracle(tmp_path: Path) -> profiles.Oracle:
    (tmp_path / "o.json").write_text(oracle_text())
    return profiles.read_oracle(tmp_path / "o.json")


def test_an_oracle_tells_counts_and_digests(oracle: profiles.Oracle) -> None:
    assert (oracle.verifies("a", 1), oracle.verifies("b", 1)) == (1, 2)
    assert oracle.histogram("b", 1) == (2, 0)
    assert oracle.text_sha256("a") == "aa"


def test_an_oracle_has_verifies_of_the_prompts_and_depths_that_it_knows(oracle: profiles.Oracle) -> None:
    assert oracle.known_verifies(1, ["a", "b", "c"]) == {"a": 1, "b": 2}
    assert oracle.known_verifies(2, ["a", "b"]) == {}


def test_an_oracles_accept_length_is_all_tokens_over_all_verifies(oracle: profiles.Oracle) -> None:
    assert oracle.accept_length(1, ["a"]) == 2.0
    assert oracle.accept_length(1, ["a", "b"]) == pytest.approx(4 / 3)


def test_an_oracle_that_lacks_a_prompt_or_depth_has_no_accept_length(oracle: profiles.Oracle) -> None:
    assert oracle.accept_length(1, ["a", "c"]) is None
    assert oracle.accept_length(2, ["a"]) is None
    assert oracle.accept_length(1, []) is None


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('{"max_tokens": 3', ":1: not JSON: Expecting ',' delimiter at column 17"),
        ('{"prompts": {}}', ": max_tokens: is missing; make the oracle anew"),
        (oracle_text(prompts=[1]), ": not an oracle: 'list' object has no attribute 'items'; make it anew"),
        (
            oracle_text(
                prompts={"a": {"verifies": {"1": 3}, "accepted_drafts_histogram": {"1": [1, 1]}, "text_sha256": ""}}
            ),
            ": prompts.a.verifies.1 = 3: contradicts its histogram [1, 1]; make the oracle anew",
        ),
    ],
)
def test_a_wrong_oracle_is_refused(tmp_path: Path, text: str, refusal: str) -> None:
    file = tmp_path / "o.json"
    file.write_text(text)
    with pytest.raises(profiles.ProfileError) as error:
        profiles.read_oracle(file)
    assert str(error.value) == f"{file}{refusal}"


def test_an_oracle_that_does_not_go_with_the_profile_is_refused(oracle: profiles.Oracle) -> None:
    prompts = [profiles.Prompt(name, "test", "x") for name in "abcd"]
    remedy = f"in {FILE}; make them equal, or remove workload.oracle"
    assert profiles.oracle_problems(parsed(), prompts, oracle) == (
        f"{oracle.file}: max_tokens = 3: workload.max_tokens is 64 {remedy}",
        f'{oracle.file}: dtype = "float32": launch.flags.dtype is "bfloat16" {remedy}',
        f"{oracle.file}: prompts: lacks c, d; make it anew, or remove workload.oracle",
        f"{oracle.file}: prompts.*.verifies: lacks depth 2; make it anew, or remove 2 from depths",
    )


def test_an_oracle_that_goes_with_the_profile_has_no_problems(oracle: profiles.Oracle) -> None:
    profile = parsed(("max_tokens = 64", "max_tokens = 3"), ('"bfloat16"', '"float32"')).narrowed([1])
    prompts = [profiles.Prompt(name, "test", "x") for name in "ab"]
    assert profiles.oracle_problems(profile, prompts, oracle) == ()
    assert len(profiles.oracle_problems(profile, prompts, replace(oracle, ignore_eos=False))) == 1


def test_the_documentation_has_every_key_as_the_model_has_it() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text()
    assert page.endswith(f"\n{markdown()}"), "write docs/profiles.md anew from `python -m fixtures.profiles`"


def test_the_command_prints_what_the_documentation_has() -> None:
    printed = subprocess.run([sys.executable, "-m", "fixtures.profiles"], cwd=ROOT, capture_output=True, check=True)
    assert printed.stdout.decode() == markdown()


def test_the_example_in_the_documentation_is_a_good_profile_and_its_messages_are_real() -> None:
    page = (ROOT / "docs" / "profiles.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    file = Path("my.toml")
    assert profiles.parse(example, file).depths == (1, 2)
    wrong = example.replace("accelerators = 1", 'accelerators = 1\nhots = "127.0.0.1"')
    wrong = wrong.replace("max_tokens = 256", 'max_tokens = 256\npasses = "2"').replace("2 = 1.9", "")
    with pytest.raises(profiles.ProfileError) as error:
        profiles.parse(wrong, file)
    assert f"```text\n{error.value}\n```" in page


def test_the_worked_example_of_accept_length_agrees_with_the_oracle() -> None:
    oracle = profiles.read_oracle(ROOT / "perf" / "oracles" / "tiny-eagle3.json")
    page = (ROOT / "docs" / "accept-length.md").read_text()
    tokens, verifies, histogram = oracle.max_tokens, oracle.verifies("kjv-01", 2), oracle.histogram("kjv-01", 2)
    accepted = sum(drafts * count for drafts, count in enumerate(histogram))
    assert f"{tokens} tokens, {verifies} verifies, of which {histogram[0]} accepted no draft" in page
    for numerator, text in [
        (tokens - 1, f"{tokens - 1} / {verifies} = **{(tokens - 1) / verifies:.3f}**"),
        (tokens, f"{tokens} / {verifies} = {tokens / verifies:.3f}"),
        (verifies + accepted, f"1 + {accepted} / {verifies} = {1 + accepted / verifies:.3f}"),
        (accepted, f"{accepted} / {verifies} = {accepted / verifies:.3f}"),
    ]:
        assert numerator > 0
        assert text in page
