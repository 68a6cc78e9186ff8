"""What schedulers say of their environment, and how it is held against the profile."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures import profiles
from fixtures.analysis.checks import Check
from fixtures.analysis.witnesses import Taken, nccl_findings
from fixtures.engine import command, process
from fixtures.engine.inside import witness
from fixtures.engine.witness_records import WitnessError, load, nccl_version, taken
from fixtures.profiles import is_secret
from tests.kit.little_engine import served

ROOT = Path(__file__).resolve().parent.parent


# Inside a process


@pytest.fixture
def behind_python() -> Iterator[str]:
    """A variable that C code has set: os.environ doesn't know of it."""
    name = "NCCL_SET_BY_C_CODE"
    os.putenv(name, "1")
    yield name
    os.unsetenv(name)


def test_libc_knows_variables_that_python_does_not(behind_python: str) -> None:
    seen = witness.record()
    assert behind_python not in seen["environment"]
    assert seen["libc"][behind_python] == "1"


def test_libcs_table_is_what_getenv_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL,=LL128")
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    assert dict(witness.libc_environment())["NCCL_PROTO"] == "LL,=LL128" == libc.getenv(b"NCCL_PROTO").decode()


def test_only_what_matters_is_told_and_no_secret() -> None:
    told = witness.shown(
        {"NCCL_ALGO": "Ring", "HOME": "/root", "SGLANG_API_KEY": "k", "CUDA_X": "1", "NCCL_IB_PKEY": "7"}
    )
    assert told == {"CUDA_X": "1", "NCCL_ALGO": "Ring", "NCCL_IB_PKEY": "7", "SGLANG_API_KEY": "[hidden]"}


@pytest.mark.parametrize(
    "name", ["SGLANG_API_KEY", "SGLANG_HF_TOKEN", "NCCL_IB_PKEY", "SGLANG_TOKENIZER", "CUDA_AUTH", "NCCL_PASSWORD"]
)
def test_both_sides_agree_on_what_is_a_secret(name: str) -> None:
    assert bool(witness.SECRET.search(name)) == is_secret(name)


# Through the launcher


def test_every_rank_says_what_it_has_after_the_engines_own_changes(tmp_path: Path) -> None:
    settings = {"NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "0"}
    served({"EAGLE3_INSIDE_FOLDER": str(tmp_path), "LITTLE_RANKS": "2", **settings}, "--enable-nccl-nvls")
    first, second = load(tmp_path)
    assert [(w["rank"], w["world"], w["nccl"]) for w in (first, second)] == [(0, 2, "2.27.3"), (1, 2, "2.27.3")]
    assert first["pid"] != second["pid"]
    expected = {"NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "1", "NCCL_CUMEM_ENABLE": "0"}
    assert {k: v for k, v in second["environment"].items() if k.startswith("NCCL_")} == expected
    (finding,) = nccl_findings(settings, (first, second))
    assert finding.seen == "NCCL_NVLS_ENABLE = '0' was asked for; every rank has '1'."


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    served({})
    assert load(tmp_path) == ()


def test_a_folder_that_cannot_be_written_leaves_the_server_serving(tmp_path: Path) -> None:
    (tmp_path / "witness-0-0.part").mkdir()
    printed = served({"EAGLE3_INSIDE_FOLDER": str(tmp_path)})
    assert "IsADirectoryError" in printed
    assert "verify is wrapped: False" in printed
    assert load(tmp_path) == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"rank": 0}'])
def test_what_is_no_witness_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "witness-0-0.json"
    file.write_text(text)
    with pytest.raises(WitnessError, match=f"^{file}: "):
        load(tmp_path)


# Against the profile

TUNED = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}


def ranks(*environments: dict[str, str], world: int = 0, **facts: Any) -> list[dict[str, Any]]:
    common = {"world": world or len(environments), "replica": 0, "replicas": 1, **facts}
    return [{"rank": n, "environment": e, "libc": e, **common} for n, e in enumerate(environments)]


def seen(*environments: dict[str, str], world: int = 0) -> list[str]:
    return [f.seen for f in nccl_findings(TUNED, ranks(*environments, world=world))]


def test_nothing_is_found_where_every_rank_has_what_was_asked_for() -> None:
    assert seen(TUNED | {"NCCL_DEBUG": "INFO"}, TUNED) == []


def test_nothing_is_found_where_nothing_was_asked_for() -> None:
    assert nccl_findings({}, ()) == ()


def test_a_value_on_one_rank_is_named_with_both_values() -> None:
    assert seen(TUNED, TUNED | {"NCCL_PROTO": "Simple"}) == ["NCCL_PROTO = 'LL' was asked for; rank 1 has 'Simple'."]


def test_a_lost_variable_is_named_where_it_was_lost() -> None:
    lost = {"NCCL_PROTO": "LL"}
    assert seen(TUNED, lost, lost) == ["NCCL_ALGO = 'Ring' was asked for; rank 1, rank 2 lack it."]
    assert seen(lost, lost) == ["NCCL_ALGO = 'Ring' was asked for; every rank lacks it."]


def test_different_values_are_all_named() -> None:
    said = seen(TUNED | {"NCCL_ALGO": "Tree"}, {"NCCL_PROTO": "LL"})
    assert said == ["NCCL_ALGO = 'Ring' was asked for; rank 0 has 'Tree'; rank 1 lacks it."]


def test_a_rank_that_says_nothing_is_named() -> None:
    assert seen(TUNED, TUNED, world=4) == ["Of 4 ranks rank 2, rank 3 said nothing."]


def test_a_replica_that_says_nothing_is_named() -> None:
    found = nccl_findings(TUNED, ranks(TUNED, replicas=2))
    assert [f.seen for f in found] == ["Of 2 ranks rank 0 of replica 1 said nothing."]


def test_a_server_that_says_nothing_is_named() -> None:
    (finding,) = nccl_findings(TUNED, ())
    assert finding.check is Check.NCCL
    assert finding.seen == "No scheduler has said what it has of NCCL_PROTO, NCCL_ALGO."


def test_what_c_code_sees_counts_since_nccl_is_c_code() -> None:
    (witness_,) = ranks(TUNED)
    behind = {**witness_, "libc": TUNED | {"NCCL_PROTO": "Simple"}}
    assert [f.seen for f in nccl_findings(TUNED, [behind])] == ["NCCL_PROTO = 'LL' was asked for; rank 0 has 'Simple'."]


# What NCCL says

DEBUG = """\
node7:1801:1801 [0] NCCL INFO cudaDriverVersion 12090
NCCL version 2.27.3+cuda12.9
node7:1801:2383 [0] NCCL INFO NCCL_PROTO set by environment to LL
[2026-01-07 03:12:55] node7:1802:2384 [1] NCCL INFO NCCL_ALGO set by environment to ring,tree
node7:1801:2383 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
node7:1801:2390 [0] NCCL INFO NCCL_PROTO set by environment to LL
"""


def test_nccl_says_what_it_took_from_the_environment() -> None:
    assert taken(DEBUG) == (
        Taken(1801, "NCCL_PROTO", "LL"),
        Taken(1802, "NCCL_ALGO", "ring,tree"),
        Taken(1801, "NCCL_NVLS_ENABLE", "0"),
    )
    assert nccl_version(DEBUG) == "2.27.3"
    assert (taken("NCCL_PROTO set by environment to LL"), nccl_version("")) == ((), None)


def test_what_nccl_took_counts_more_than_what_stands_in_the_environment() -> None:
    found = nccl_findings(TUNED, ranks(TUNED, TUNED), taken(DEBUG))
    assert [f.seen for f in found] == [
        "NCCL_ALGO = 'Ring' was asked for, and NCCL says that it took 'ring,tree' (process 1802)."
    ]


# A real engine


@pytest.mark.engine
def test_a_real_scheduler_says_what_it_has_after_sglangs_changes(tmp_path: Path) -> None:
    tiny = profiles.load("cpu-tiny")
    settings = {"NCCL_PROTO": "LL", "NCCL_NVLS_ENABLE": "0"}
    profile = tiny.model_copy(update={"nccl": tiny.nccl.model_copy(update={"settings": settings})})
    server = process.boot(
        lambda port: command.launch(profile, 1, port=port, api_key="key-of-a-test", root=ROOT, inside=tmp_path),
        log=tmp_path / "server.log",
    )
    server.stop()
    (told,) = load(tmp_path)
    assert (told["rank"], told["world"], told["nccl"]) == (0, 1, None)
    assert told["sglang"] == "0.5.23"
    assert told["libc"] == told["environment"]
    # Not asked for by anybody: SGLang's launcher sets it in its own process, and the scheduler inherits it.
    assert told["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert "EAGLE3" not in json.dumps(told)
    assert nccl_findings(settings, [told]) == ()
    assert [f.seen for f in nccl_findings({"NCCL_ALGO": "Ring"}, [told])] == [
        "NCCL_ALGO = 'Ring' was asked for; rank 0 lacks it."
    ]
