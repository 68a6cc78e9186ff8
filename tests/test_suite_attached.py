"""The whole suite on servers that someone else runs: measured, never booted nor stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from fixtures import profiles
from fixtures.engine import command, process
from tests.kit.suite import Suite
from tests.kit.warm import ROOT

pytestmark = pytest.mark.faults

KEY = "the-key-of-their-servers"


@contextmanager
def theirs(suite: Suite, *depths: int, key: str = KEY) -> Iterator[dict[int, process.Server]]:
    """Servers of these depths, started by somebody."""
    profile = profiles.load(str(suite.profile(1, 2)))
    with ExitStack() as running:
        servers = {}
        for depth in depths:
            servers[depth] = process.boot(
                lambda port, depth=depth: command.launch(profile, depth, port=port, api_key=key, root=ROOT),
                log=suite.folder / f"theirs-{depth}.log",
            )
            running.callback(servers[depth].stop)
        yield servers


def addresses(servers: dict[int, process.Server]) -> list[str]:
    return [f"--perf-server={depth}={server.url}" for depth, server in servers.items()]


@pytest.fixture
def profile(suite: Suite) -> str:
    return str(suite.folder / "small.toml")


def test_attached_servers_are_measured_by_the_same_tests_and_live_on(suite: Suite, profile: str) -> None:
    with theirs(suite, 0, 2) as servers:
        before = len(suite.record())
        run = suite.run("-k", "eagle3", *addresses(servers), "--perf-profile", profile, EAGLE3_PERF_API_KEY=KEY)
        assert all(server.alive() for server in servers.values())
        assert [line for line in suite.record()[before:] if line["event"] == "booting"] == []
    assert run.status == 0, run.output
    assert run.lines("10 passed")
    assert suite.finished() == [0, 2]
    assert suite.measured(2)["host"].keys() == {"client"}
    assert KEY not in run.output + "".join(p.read_text() for p in suite.results.glob("depth-*.json"))


def test_a_depth_that_is_another_fails_the_launch_test(suite: Suite, profile: str) -> None:
    with theirs(suite, 0, 1) as servers:
        swapped = {0: servers[0], 2: servers[1]}
        run = suite.run("-k", "eagle3", *addresses(swapped), "--perf-profile", profile, EAGLE3_PERF_API_KEY=KEY)
    assert run.status == 1
    assert "server_is_what_was_asked[steps02]" in run.failed()


def test_a_wrong_key_is_told_and_gives_no_measurement(suite: Suite, profile: str) -> None:
    with theirs(suite, 0, 2) as servers:
        run = suite.run("-k", "eagle3", *addresses(servers), "--perf-profile", profile, EAGLE3_PERF_API_KEY="wrong")
    assert run.status == 1
    assert run.lines("baseline gave no measurement", "401")
    assert suite.finished() == []


def test_speculating_servers_without_a_plain_one_are_refused(suite: Suite, profile: str) -> None:
    suite.profile(1, 2)
    run = suite.run("--perf-server=2=http://127.0.0.1:9", "--perf-profile", profile)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.lines("every figure is relative to a plain server; add 0=URL")
