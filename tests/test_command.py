"""A profile and a depth → argv and environment; and what of it may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import profiles
from fixtures.engine import command
from fixtures.engine.drill import WELL, Drill, parse
from fixtures.profiles import Profile

KEY = "0123456789abcdef"
ROOT = Path("/suite")


def profile(tmp_path: Path, engine: str = "cpu", more: str = "") -> Profile:
    text = f"""
        description = "for tests"
        depths = [2]
        pair = {{ target = "/models/target", draft = "/models/draft" }}
        workload = {{ prompts = "prompts.jsonl", max_tokens = 8 }}
        floors = {{ throughput = {{ 2 = 1.0 }}, accept_length = {{ 2 = 1.0 }} }}
        nccl = {{ settings = {{ NCCL_PROTO = "LL" }} }}
        [launch]
        engine = "{engine}"
        accelerators = {0 if engine == "cpu" else 1}
        python = "/opt/engine/bin/python"
        {more}
    """
    return profiles.parse("\n".join(line.strip() for line in text.splitlines()), tmp_path / "test.toml")


FLAGS = """
        [launch.flags]
        max-running-requests = 4
        disable-radix-cache = true
        enable-torch-compile = false
        cuda-graph-bs = [1, 2, 4]
        mem-fraction-static = 0.5
        json-model-override-args = "--odd"
        [launch.environment]
        OMP_NUM_THREADS = "1"
        HF_TOKEN = "hf_abcdefgh"
"""


def launch(profile: Profile, depth: int, key: str = KEY) -> command.Launch:
    return command.launch(profile, depth, port=30000, api_key=key, root=ROOT)


def test_the_plain_server_has_no_speculative_flag(tmp_path: Path) -> None:
    argv = launch(profile(tmp_path, more=FLAGS), 0).argv
    assert argv[:3] == ("/opt/engine/bin/python", "-m", "fixtures.engine.inside.serve")
    assert not [word for word in argv if "speculative" in word]


def test_a_depth_adds_only_the_speculative_flags(tmp_path: Path) -> None:
    tested = profile(tmp_path, more=FLAGS)
    added = [word for word in launch(tested, 3).argv if word not in launch(tested, 0).argv]
    assert " ".join(added) == (
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path /models/draft --speculative-num-steps 3 "
        "--speculative-eagle-topk --speculative-num-draft-tokens"
    )
    pairs = dict(zip(launch(tested, 3).argv, launch(tested, 3).argv[1:], strict=False))
    assert pairs["--speculative-eagle-topk"] == "1"
    assert pairs["--speculative-num-draft-tokens"] == "4"


def test_flags_become_words(tmp_path: Path) -> None:
    argv = " ".join(launch(profile(tmp_path, more=FLAGS), 0).argv[3:])
    assert argv == (
        "--model-path /models/target --host 127.0.0.1 --port 30000 --api-key 0123456789abcdef --enable-metrics "
        "--max-running-requests 4 --disable-radix-cache --cuda-graph-bs 1 2 4 --mem-fraction-static 0.5 "
        "--json-model-override-args=--odd"
    )


def test_remote_code_is_trusted_only_if_the_profile_says_so(tmp_path: Path) -> None:
    assert "--trust-remote-code" not in launch(profile(tmp_path, more=FLAGS), 0).argv
    trusting = profile(tmp_path, more="trust_remote_code = true\n" + FLAGS)
    assert "--trust-remote-code" in launch(trusting, 0).argv


def test_a_key_that_begins_with_a_dash_is_still_a_value(tmp_path: Path) -> None:
    started = launch(profile(tmp_path, more=FLAGS), 0, key="-Ab3")
    assert "--api-key=-Ab3" in started.argv
    assert "--api-key=[hidden]" in started.public_argv


def test_sglang_as_installed_starts_its_own_launcher_without_our_kernels(tmp_path: Path) -> None:
    started = launch(profile(tmp_path, engine="sglang", more=FLAGS), 2)
    assert started.argv[1:3] == ("-m", "sglang.launch_server")
    assert started.environment == {"NCCL_PROTO": "LL", "OMP_NUM_THREADS": "1", "HF_TOKEN": "hf_abcdefgh"}


def test_the_cpu_engine_gets_its_kernels_by_a_path_entry_of_their_own(tmp_path: Path) -> None:
    environment = launch(profile(tmp_path, more=FLAGS), 2).environment
    assert environment["PYTHONPATH"] == "/suite:/suite/fixtures/engine/inside/cpu"
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert environment["NCCL_PROTO"] == "LL"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:30000"),
        ("0.0.0.0", "http://127.0.0.1:30000"),
        ("::", "http://[::1]:30000"),
        ("fe80::1", "http://[fe80::1]:30000"),
        ("node7", "http://node7:30000"),
    ],
)
def test_the_url_is_where_this_host_reaches_the_server(host: str, url: str) -> None:
    assert command.Launch((), {}, ROOT, host, 30000, KEY).url == url


def test_nothing_shown_of_a_launch_holds_a_secret(tmp_path: Path) -> None:
    started = launch(profile(tmp_path, more=FLAGS), 2)
    shown = f"{started!r} {started.public_argv} {started.public_environment}"
    assert KEY not in shown
    assert "hf_abcdefgh" not in shown
    assert started.public_argv[started.argv.index(KEY)] == "[hidden]"
    assert started.public_environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("--api-key", "k"), ("--api-key", "[hidden]")),
        (("--hf-token=k", "x"), ("--hf-token=[hidden]", "x")),
        (("--ssl-keyfile-password", "k"), ("--ssl-keyfile-password", "[hidden]")),
        (("--max-total-tokens", "8192"), ("--max-total-tokens", "8192")),
        (("--skip-tokenizer-init", "--api-key", "k"), ("--skip-tokenizer-init", "--api-key", "[hidden]")),
        (("--model-path", "/models/my-token", "--tp", "2"), ("--model-path", "/models/my-token", "--tp", "2")),
    ],
)
def test_the_values_of_secret_flags_are_hidden(argv: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert command.public_arguments(argv) == shown


def test_secrets_are_values_of_secret_variables_long_enough_to_be_one() -> None:
    environment = {"HF_TOKEN": "hf_abc123", "WANDB_API_KEY": "longer_secret", "A_PASSWORD": "1", "HOME": "/home/me12"}
    assert command.secret_values(environment) == ("longer_secret", "hf_abc123")


def test_a_secret_within_another_leaves_no_rest() -> None:
    assert command.redact("key=abcdef123 other=abcdef", ["abcdef", "abcdef123"]) == "key=[hidden] other=[hidden]"


INSIDE = Path("/results/depth-2.inside")


def looking_inside(profile: Profile, depth: int = 2, drill: Drill = WELL) -> command.Launch:
    return command.launch(profile, depth, port=30000, api_key=KEY, root=ROOT, inside=INSIDE, drill=drill)


def orders(started: command.Launch) -> dict[str, str]:
    return {k.removeprefix("EAGLE3_INSIDE_"): v for k, v in started.environment.items() if k.startswith(command.INSIDE)}


def test_nccl_settings_are_witnessed_and_nothing_else_is_told(tmp_path: Path) -> None:
    started = looking_inside(profile(tmp_path, engine="sglang", more=FLAGS))
    assert started.argv[1:3] == ("-m", "fixtures.engine.inside.serve")
    assert orders(started) == {"FOLDER": str(INSIDE)}
    assert "PYTHONPATH" not in started.environment


def test_an_instrumented_server_tells_phases(tmp_path: Path) -> None:
    more = "instrument = true\n" + FLAGS
    assert orders(looking_inside(profile(tmp_path, engine="sglang", more=more))) == {
        "FOLDER": str(INSIDE),
        "PHASES": "1",
    }


def test_what_the_host_requires_is_kept_where_the_settings_are_left_out(tmp_path: Path) -> None:
    of = profile(tmp_path, engine="sglang", more=FLAGS)
    of = of.model_copy(update={"nccl": of.nccl.model_copy(update={"required": {"NCCL_NVLS_ENABLE": "0"}})})
    tuned, untuned = (
        command.launch(of, 2, port=1, api_key=KEY, root=ROOT, inside=INSIDE, tuned=tuned) for tuned in (True, False)
    )
    assert tuned.environment == {**untuned.environment, **of.nccl.settings}
    assert untuned.environment["NCCL_NVLS_ENABLE"] == "0"
    assert untuned.without == of.nccl.settings.keys()


def test_a_server_with_nothing_to_see_is_started_as_sglang_starts_it(tmp_path: Path) -> None:
    without = profile(tmp_path, engine="sglang", more=FLAGS)
    without = without.model_copy(update={"nccl": without.nccl.model_copy(update={"settings": {}})})
    started = looking_inside(without)
    assert started.argv[1:3] == ("-m", "sglang.launch_server")
    assert orders(started) == {}
    lossy = parse("lost-nccl=NCCL_PROTO")
    assert orders(looking_inside(without, drill=lossy)) == {"FOLDER": str(INSIDE), "DRILL": lossy.order(2)}


def test_a_drill_without_graphs_is_a_flag_of_the_speculative_servers_alone(tmp_path: Path) -> None:
    without = profile(tmp_path, engine="sglang", more=FLAGS)
    with_flag = [d for d in (0, 2) if "--disable-cuda-graph" in looking_inside(without, d, parse("no-graphs")).argv]
    assert with_flag == [2]


def test_a_drill_of_another_depth_runs_that_one_at_every_depth(tmp_path: Path) -> None:
    argv = looking_inside(profile(tmp_path, more=FLAGS), 2, parse("wrong-depth=3")).argv
    assert [argv[argv.index(f"--speculative-num-{what}") + 1] for what in ("steps", "draft-tokens")] == ["3", "4"]


def test_what_only_the_launcher_reads_is_never_shown(tmp_path: Path) -> None:
    started = looking_inside(profile(tmp_path, more=FLAGS), drill=parse("slow-verify"))
    assert orders(started)["DRILL"]
    assert not [name for name in started.public_environment if name.startswith("EAGLE3")]
    assert "slow" not in repr(started)
