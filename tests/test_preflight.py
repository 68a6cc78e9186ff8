"""Preflight: facts of host and files → findings, and which of them refuse the run."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures import nccl, preflight, profiles
from fixtures.accelerators import Accelerator
from fixtures.pairs import checkpoint
from fixtures.pairs.checkpoint import Weights
from fixtures.pairs.configs import Config
from fixtures.preflight import GIB, Facts, Finding, Interpreter, Level
from fixtures.profiles import Profile

TINY = Path(__file__).resolve().parent.parent / "fixtures" / "pairs" / "tiny-eagle3"


@pytest.fixture
def tiny() -> Profile:
    return profiles.load("cpu-tiny")


@pytest.fixture
def kimi() -> Profile:
    return profiles.load("kimi-k2.5-int4")


def gpu(index: int, free: int = 140) -> Accelerator:
    """An H200 with 140 GiB, of which `free` GiB are free."""
    return Accelerator(
        index=index,
        uuid=f"GPU-{index}",
        serial=None,
        name="NVIDIA H200",
        memory_total=140 * GIB,
        memory_free=free * GIB,
        driver="580.1",
    )


def facts(profile: Profile, **changes: Any) -> Facts:
    """A host and files on which everything is as the tiny profile wants it."""
    fine = Facts(
        accelerators=tuple(map(gpu, range(profile.launch.accelerators))),
        interpreter=Interpreter("/venv/bin/python", python="3.11.7", sglang="0.5.23"),
        nccl_names=nccl.DOCUMENTED,
        target=config("target"),
        draft=config("draft"),
        weights={"target": Weights(), "draft": checkpoint.read(TINY / "draft")},
        prompts=profiles.read_prompts(profile.workload.prompts),
        oracle=None if profile.workload.oracle is None else profiles.read_oracle(profile.workload.oracle),
        root=Path("/suite"),
        results=Path("/results"),
        unwritable="",
        disk_free=100 * GIB,
        ports_taken=(),
    )
    return replace(fine, **changes)


def config(role: str) -> Config:
    file = TINY / role / "config.json"
    return Config(str(file), json.loads(file.read_text()))


def changed(profile: Profile, table: str, **changes: Any) -> Profile:
    """The profile with some keys of a table changed, unchecked."""
    inner = getattr(profile, table).model_copy(update=changes)
    return profile.model_copy(update={table: inner})


def not_fine(profile: Profile, seen: Facts) -> list[Finding]:
    return [finding for finding in preflight.findings(profile, seen) if finding.level is not Level.FINE]


def test_a_host_on_which_all_is_well_has_something_fine_to_say_of_each_check(tiny: Profile) -> None:
    found = preflight.findings(tiny, facts(tiny))
    assert {finding.level for finding in found} == {Level.FINE}
    checks = [
        "accelerators",
        "interpreter",
        "sglang",
        "target",
        "draft",
        "pair",
        "prompts",
        "oracle",
        "disk",
        "address",
    ]
    assert [finding.check for finding in found] == checks
    assert preflight.refusal(found) is None


def test_a_host_without_the_gpus_is_refused_in_one_paragraph_and_nothing_else_is_said(kimi: Profile) -> None:
    found = preflight.findings(kimi, facts(kimi, accelerators=(), target="/models/x: there is no such folder"))
    others = ", ".join(name for name in profiles.names() if name != kimi.name)
    assert preflight.refusal(found) == (
        f"kimi-k2.5-int4 needs 8 GPUs (launch.accelerators in {kimi.file}); this host has 0 (none). Run it where there "
        "are 8; if this should be such a host, look at nvidia-smi and CUDA_VISIBLE_DEVICES; or name another profile "
        f"with --perf-profile ({others}, or a path)."
    )


def test_too_few_gpus_are_named(kimi: Profile) -> None:
    message = preflight.refusal(preflight.findings(kimi, facts(kimi, accelerators=(gpu(0), gpu(3)))))
    assert message is not None
    assert "this host has 2 (0: NVIDIA H200, 3: NVIDIA H200)." in message


def test_more_gpus_than_needed_are_fine(kimi: Profile) -> None:
    found = preflight.findings(kimi, facts(kimi, accelerators=tuple(map(gpu, range(9)))))
    assert found[0].level is Level.FINE


def test_a_gpu_whose_memory_is_taken_is_warned_of(kimi: Profile) -> None:
    gpus = (*map(gpu, range(7)), gpu(7, free=12))
    (warning,) = (f for f in not_fine(kimi, facts(kimi, accelerators=gpus)) if f.check == "memory")
    assert warning == Finding(
        "memory",
        Level.WARNING,
        "GPU 7 has 12 of 140 GiB free, less than mem-fraction-static = 0.88 asks for; end what holds it, "
        "see nvidia-smi",
    )


@pytest.mark.parametrize(
    ("engine", "interpreter", "level", "end"),
    [
        ("cpu", Interpreter("py", problem="no"), Level.REFUSED, '"py": no; name the server\'s interpreter'),
        ("cpu", Interpreter("py"), Level.REFUSED, "SGLang isn't installed there; install it, or name another"),
        (
            "cpu",
            Interpreter("py", sglang="0.5.17"),
            Level.REFUSED,
            'has SGLang 0.5.17, and engine = "cpu" needs 0.5.23; install the CPU engine\'s pins',
        ),
        ("sglang", Interpreter("py", sglang="0.4.4"), Level.REFUSED, "no EAGLE-3; install 0.5.17 or later"),
        ("sglang", Interpreter("py", sglang="unknown"), Level.WARNING, "doesn't tell its version beforehand"),
    ],
)
def test_an_interpreter_that_cannot_serve_is_found_out(
    tiny: Profile, engine: str, interpreter: Interpreter, level: Level, end: str
) -> None:
    profile = changed(tiny, "launch", engine=engine)
    (finding,) = not_fine(profile, facts(profile, interpreter=interpreter))
    assert finding.level is level
    assert finding.text.startswith(f'{tiny.file}: launch.python = "py": ')
    assert finding.text.endswith(end)


@pytest.mark.parametrize("version", ["0.4.5", "0.5.17", "0.5.23", "0.5.24rc1", "0.6"])
def test_any_sglang_with_eagle3_will_do_on_gpus(tiny: Profile, version: str) -> None:
    profile = changed(tiny, "launch", engine="sglang")
    assert not_fine(profile, facts(profile, interpreter=Interpreter("py", sglang=version))) == []


def test_a_hub_id_is_allowed_and_said_to_be_unchecked(tiny: Profile) -> None:
    profile = changed(tiny, "pair", target="owner/target")
    (finding,) = not_fine(profile, facts(profile, target=None))
    assert finding == Finding(
        "target",
        Level.WARNING,
        "owner/target is a hub id, so its files are not checked beforehand; a folder's path starts with ./ or /",
    )


def test_a_pair_that_does_not_fit_is_refused_line_by_line(tiny: Profile) -> None:
    wide = Config("draft/config.json", {**config("draft").keys, "hidden_size": 512, "vocab_size": 99})
    found = not_fine(tiny, facts(tiny, draft=wide))
    assert [(f.check, f.level) for f in found] == [("pair", Level.REFUSED)] * 2
    assert preflight.refusal(found) == "\n".join(finding.text for finding in found)
    assert found[0].text.startswith("draft/config.json: hidden_size = 512: ")


def test_layer_ids_other_than_the_profiles_are_refused(tiny: Profile) -> None:
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    pinned = tiny.model_copy(update={"pair": tiny.pair.model_copy(update={"aux_layer_ids": (1, 2, 4)})})
    (finding,) = not_fine(pinned, facts(tiny, draft=Config("d", {**config("draft").keys, **ids})))
    assert "pair.aux_layer_ids expects [1, 2, 4]" in finding.text


def test_layer_ids_for_which_the_drafts_weights_are_not_made_are_refused(tiny: Profile) -> None:
    ids = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}
    (finding,) = not_fine(tiny, facts(tiny, draft=Config("d", {**config("draft").keys, **ids})))
    assert (finding.check, finding.level) == ("pair", Level.REFUSED)
    assert "[1, 2]: names 2 layers, and fc.weight in " in finding.text


def test_weights_that_cannot_be_loaded_are_refused_instead_of_called_fine(tiny: Profile) -> None:
    seen = facts(tiny, weights={"target": Weights(("a: cut off", "b: cut off"))})
    found = [f for f in preflight.findings(tiny, seen) if f.check in ("target", "draft")]
    assert [(f.check, f.level, f.text) for f in found[:2]] == [
        ("target", Level.REFUSED, "a: cut off"),
        ("target", Level.REFUSED, "b: cut off"),
    ]
    assert [(f.check, f.level) for f in found[2:]] == [("draft", Level.FINE)]


def test_an_oracle_that_lacks_a_prompt_is_refused(tiny: Profile) -> None:
    prompts = (*profiles.read_prompts(tiny.workload.prompts), profiles.Prompt("new-01", "new", "x"))
    (finding,) = not_fine(tiny, facts(tiny, prompts=prompts))
    assert finding.level is Level.REFUSED
    assert finding.text == f"{tiny.workload.oracle}: prompts: lacks new-01; make it anew, or remove workload.oracle"


def test_files_that_cannot_be_read_are_refused_with_each_of_their_lines(tiny: Profile) -> None:
    found = not_fine(tiny, facts(tiny, prompts="p:1: a\np:2: b", oracle="o: c", draft="d: e"))
    assert [(f.check, f.text) for f in found] == [
        ("draft", "d: e"),
        ("prompts", "p:1: a"),
        ("prompts", "p:2: b"),
        ("oracle", "o: c"),
    ]


def test_an_unknown_nccl_variable_is_warned_of_with_the_nearest_one(tiny: Profile) -> None:
    profile = changed(tiny, "nccl", settings={"NCCL_PROTOS": "LL", "NCCL_ALGO": "Ring", "NCCL_QQQ": "1"})
    interpreter = Interpreter("py", sglang="0.5.23", nccl="/lib/libnccl.so.2")
    found = not_fine(profile, facts(profile, interpreter=interpreter))
    assert {finding.level for finding in found} == {Level.WARNING}
    doubt = "NCCL doesn't know it (according to /lib/libnccl.so.2)"
    assert [finding.text for finding in found] == [
        f"{tiny.file}: nccl.settings.NCCL_PROTOS: {doubt}; did you mean NCCL_PROTO?",
        f"{tiny.file}: nccl.settings.NCCL_QQQ: {doubt}; correct or remove it",
    ]


def test_the_reference_settings_are_known_to_nccl(kimi: Profile) -> None:
    (finding,) = (f for f in preflight.findings(kimi, facts(kimi)) if f.check == "nccl")
    assert finding.text == (
        "NCCL_PROTO, NCCL_ALGO, NCCL_P2P_LEVEL: known to the documentation, as no library was found"
    )


@pytest.mark.parametrize(
    ("free", "level"), [(GIB, Level.FINE), (GIB - 1, Level.WARNING), (GIB // 10 - 1, Level.REFUSED)]
)
def test_a_full_disk_is_refused_and_a_small_one_warned_of(tiny: Profile, free: int, level: Level) -> None:
    (finding,) = (f for f in preflight.findings(tiny, facts(tiny, disk_free=free)) if f.check == "disk")
    assert finding.level is level
    assert "GiB free for logs and measurements in /results" in finding.text


def test_a_folder_that_cannot_be_written_is_refused_for_that_and_not_for_its_room(tiny: Profile) -> None:
    (finding,) = not_fine(tiny, facts(tiny, unwritable="Read-only file system", disk_free=0))
    assert finding == Finding(
        "disk",
        Level.REFUSED,
        "/results: Read-only file system; measurements and logs are kept there, so name another folder with "
        "--perf-results",
    )


@pytest.mark.parametrize(("engine", "refused"), [("cpu", True), ("sglang", False)])
def test_a_checkout_that_pythonpath_would_cut_is_refused_for_the_cpu_engine(
    tiny: Profile, engine: str, refused: bool
) -> None:
    profile = changed(tiny, "launch", engine=engine)
    told = Finding(
        "checkout",
        Level.REFUSED,
        '/tmp/a:b/clone: engine = "cpu" puts this checkout into PYTHONPATH, where ":" parts two paths; move it to '
        "a path without one",
    )
    assert not_fine(profile, facts(profile, root=Path("/tmp/a:b/clone"))) == ([told] if refused else [])


def test_a_fixed_port_that_is_taken_is_refused(tiny: Profile) -> None:
    profile = changed(tiny, "launch", port=30000)
    (finding,) = not_fine(profile, facts(profile, ports_taken=(30000, 30233)))
    assert finding == Finding(
        "address",
        Level.REFUSED,
        f"{tiny.file}: launch.port = 30000: on 127.0.0.1, 30000, 30233 can't be bound now (SGLang derives ports from "
        "it); write 0 for a free one",
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_fine(tiny: Profile, host: str) -> None:
    assert not_fine(changed(tiny, "launch", host=host), facts(tiny)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "gpu-host.example"])
def test_an_open_address_is_warned_of(tiny: Profile, host: str) -> None:
    (finding,) = not_fine(changed(tiny, "launch", host=host), facts(tiny))
    assert finding.level is Level.WARNING
    assert finding.text == (
        f'{tiny.file}: launch.host = "{host}": the server is open to the network, with nothing but its key before '
        'it; "127.0.0.1" keeps it in'
    )


def test_remote_code_is_warned_of(tiny: Profile) -> None:
    (finding,) = not_fine(changed(tiny, "launch", trust_remote_code=True), facts(tiny))
    assert (finding.check, finding.level) == ("remote code", Level.WARNING)
    assert "launch.trust_remote_code = true: code in " in finding.text


def test_no_finding_shows_a_secret(tiny: Profile) -> None:
    profile = changed(tiny, "launch", environment={"HF_TOKEN": "hf_s3cret"})
    assert "s3cret" not in repr(preflight.findings(profile, facts(profile)))


def test_warnings_refuse_nothing() -> None:
    assert preflight.refusal([Finding("nccl", Level.WARNING, "x"), Finding("disk", Level.FINE, "y")]) is None


# From here on, looking: real files, real interpreters, real ports.


def test_looking_at_this_checkout_finds_its_own_files(tiny: Profile, tmp_path: Path) -> None:
    seen = preflight.look(tiny, tmp_path / "not" / "yet", ())
    assert isinstance(seen.target, Config)
    assert isinstance(seen.draft, Config)
    assert len(seen.prompts) == 24
    assert isinstance(seen.oracle, profiles.Oracle)
    assert seen.disk_free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert (seen.interpreter.path, seen.ports_taken) == (sys.executable, ())
    assert (seen.root, seen.unwritable) == (TINY.parents[2], "")


def test_what_is_not_there_is_said_where_it_is_missing(tiny: Profile, tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    profile = changed(tiny, "pair", target=tmp_path / "no", draft=tmp_path / "draft")
    profile = changed(profile, "workload", prompts=tmp_path / "no.jsonl")
    seen = preflight.look(profile, tmp_path, ())
    toml = tiny.file
    assert (
        seen.target == f'{toml}: pair.target = "{tmp_path}/no": there is no such folder; correct it, or fetch the model'
    )
    assert seen.draft == f'{toml}: pair.draft = "{tmp_path}/draft": has no config.json; name a model\'s folder'
    assert seen.prompts == f'{toml}: workload.prompts = "{tmp_path}/no.jsonl": there is no such file; correct it'


@pytest.mark.parametrize(
    ("load_format", "found"),
    [(None, {"target", "draft"}), ("auto", {"target", "draft"}), ("dummy", set()), ("gguf", set())],
)
def test_weights_are_looked_at_where_a_server_reads_them(
    tiny: Profile, tmp_path: Path, load_format: str | None, found: set[str]
) -> None:
    flags = {**tiny.launch.flags, **({"load-format": load_format} if load_format else {})}
    assert set(preflight.look(changed(tiny, "launch", flags=flags), tmp_path, ()).weights) == found


@pytest.mark.parametrize(("content", "end"), [("[1]", "must be a JSON object"), ("{", "(char 1)"), ("", "(char 0)")])
def test_a_broken_config_is_said_to_be_broken(tiny: Profile, tmp_path: Path, content: str, end: str) -> None:
    (tmp_path / "config.json").write_text(content)
    seen = preflight.look(changed(tiny, "pair", draft=tmp_path), tmp_path, ())
    assert isinstance(seen.draft, str)
    assert seen.draft.startswith(f"{tmp_path}/config.json: ")
    assert seen.draft.endswith(end)


def test_an_interpreter_describes_itself() -> None:
    seen = preflight.probe(sys.executable, {})
    assert seen.problem == ""
    assert seen.python == ".".join(map(str, sys.version_info[:3]))


def test_an_interpreter_finds_what_the_profiles_environment_adds(tmp_path: Path) -> None:
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    info = tmp_path / "sglang-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 9.9.9\n")
    seen = preflight.probe(sys.executable, {"PYTHONPATH": str(tmp_path)})
    assert (seen.sglang, seen.nccl) == ("9.9.9", str(library))


def test_an_interpreter_with_sglangs_files_alone_has_an_unknown_version(tmp_path: Path) -> None:
    # Outside of the virtual environment, where SGLang may be installed.
    outside = str(Path(sys.executable).resolve())
    assert preflight.probe(outside, {}).sglang is None
    (tmp_path / "sglang").mkdir()
    assert preflight.probe(outside, {"PYTHONPATH": str(tmp_path)}).sglang == "unknown"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo nothing here", "is no Python interpreter: "),
        ("echo torn >&2; exit 3", "exit status 3: torn"),
        ("exit 4", "exit status 4: no output"),
        ("exec sleep 30", "is no Python interpreter: "),
    ],
)
def test_a_program_that_is_no_interpreter_is_found_out(tmp_path: Path, script: str, problem: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    seen = preflight.probe(str(program), {}, limit_s=0.5)
    assert seen.problem.startswith(problem)


def test_an_interpreter_that_is_not_there_is_found_out(tmp_path: Path) -> None:
    seen = preflight.probe(f"{tmp_path}/python", {})
    assert seen.problem == "there is no such program, or it may not be executed"


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_fixed_port_that_something_listens_on_is_seen(tiny: Profile, tmp_path: Path, listening: int) -> None:
    seen = preflight.look(changed(tiny, "launch", port=listening), tmp_path, ())
    assert listening in seen.ports_taken


def test_a_library_tells_which_variables_it_reads(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"\x7fELF\0\0NCCL_PROTO\0set NCCL_ALGO to x\0\xffNCCL_P2P_LEVEL\0NCCL_")
    assert nccl.in_library(library) == {"NCCL_PROTO", "NCCL_P2P_LEVEL"}


def test_the_nearest_variable_is_offered_where_one_is_near() -> None:
    known = {"NCCL_PROTO", "NCCL_ALGO"}
    assert nccl.unknown(["NCCL_ALGO", "NCCL_PROT0", "XYZ"], known) == (("NCCL_PROT0", "NCCL_PROTO"), ("XYZ", None))


def test_the_profiles_settings_are_looked_up_in_the_interpreters_library(kimi: Profile, tmp_path: Path) -> None:
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"NCCL_PROTO\0")
    profile = changed(kimi, "launch", environment={"PYTHONPATH": str(tmp_path)})
    assert preflight.look(profile, tmp_path, ()).nccl_names == {"NCCL_PROTO"}
