"""A closed loop of several streams: what is asked and in which order, what is counted, and a server that goes away."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

import pytest

from fixtures import levels, profiles
from fixtures.analysis.concurrency import figures, steady
from fixtures.analysis.streams import Level
from fixtures.engine import command, process
from fixtures.engine.acceptance import Source
from fixtures.engine.client import Settings, Unreachable, on_uvloop
from fixtures.profiles import Prompt
from tests.kit.answers import Sglang, chunk, completion, error, stream
from tests.kit.scripted_server import Answer, Pause, Request, Reset, ScriptedServer, Stall, serving
from tests.test_workload import ROOT, Died, dying_after, spoiled

PROMPTS = tuple(Prompt(f"p{n}", "kjv", f"prompt {n}") for n in range(3))
GOOD = completion("a", "b", "c", tokens=3)


def alive() -> None:
    """The server lives."""


def measure(server: ScriptedServer, at_once: int = 2, **how: Any) -> Level:
    usual = {
        "settings": Settings(max_tokens=3, request_limit_s=5.0),
        "depth": 0,
        "source": Source.PLAIN,
        "good_streams": 0.9,
        "check_alive": alive,
    }
    try:
        return on_uvloop(levels.run(PROMPTS, url=server.url, api_key="k", at_once=at_once, **{**usual, **how}))
    finally:
        assert server.let_go(), "a connection was left open"


def asked(server: ScriptedServer) -> list[str]:
    return [request.json["prompt"] for request in server.requests if request.path == "/v1/completions"]


def flushing(request: Request) -> Answer | None:
    return Answer([b"flushed"], content_type="text/plain") if request.path == "/flush_cache" else None


def slow(request: Request) -> Answer:
    return flushing(request) or Answer([Pause(0.05), *GOOD.steps])


def test_whole_passes_are_asked_until_every_lane_had_two_streams() -> None:
    asked_for = [(prompt.id, repeat) for prompt, repeat in levels.plan(PROMPTS, 2)]
    assert asked_for == [(f"p{n}", repeat) for repeat in (0, 1) for n in range(3)]
    assert len(levels.plan(PROMPTS, 1)) == 3
    assert len(levels.plan(PROMPTS, 8)) == 18


def test_so_many_streams_are_kept_going_in_a_fixed_order_once_the_prefix_cache_is_empty() -> None:
    told: list[tuple[int, int]] = []
    with serving(slow) as server:
        level = measure(server, tell=lambda done, of: told.append((done, of)))
        assert server.most_connections == 2
    assert server.paths()[0] == "/flush_cache"
    assert sorted(asked(server)[:2]) == ["prompt 0", "prompt 1"]
    assert sorted(asked(server)[-2:]) == ["prompt 1", "prompt 2"]
    assert len(level.streams) == 6
    assert {s.lane for s in level.streams} == {0, 1}
    assert told == [(n, 6) for n in range(1, 7)]
    assert (level.refused, level.notes) == ((), ())


def test_a_stream_keeps_when_each_of_its_chunks_came() -> None:
    with serving(slow) as server:
        level = measure(server)
    first = min(level.streams, key=lambda s: s.sent_s)
    assert first.sent_s < 0.05
    assert len(first.arrivals_s) == 3
    assert first.arrivals_s[0] - first.sent_s >= 0.05
    assert first.text_sha256 == hashlib.sha256(b"abc").hexdigest()


def test_verifies_are_those_of_the_stream_itself_and_none_where_only_the_server_counts() -> None:
    script = Sglang(tokens=9, verifies=4, in_stream=True)
    with serving(script) as server:
        told = measure(server, depth=3, source=Source.STREAM, settings=Settings(max_tokens=9))
        silent = measure(server, depth=3, source=Source.METRICS, settings=Settings(max_tokens=9))
    assert {s.verifies for s in told.streams} == {4}
    assert {s.verifies for s in silent.streams} == {None}
    assert "/metrics" not in server.paths()


def test_counts_that_can_not_be_are_refused() -> None:
    with serving(Sglang(tokens=9, verifies=4, in_stream=True)) as server:
        level = measure(server, depth=0, source=Source.STREAM, settings=Settings(max_tokens=9), good_streams=0.1)
    assert not level.streams
    assert "p0 (pass 0): stream: 4 verifies can't commit 8 tokens at 0 steps" in level.refused


def test_a_cache_that_can_not_be_emptied_is_noted() -> None:
    with serving(spoiled({})) as server:
        level = measure(server)
    assert len(level.streams) == 6
    assert level.notes[0].startswith("times to the first token may be of prompts in the prefix cache, which could not")


def test_refused_completions_are_kept_and_end_the_level_once_too_few_can_be_good() -> None:
    script = spoiled(dict.fromkeys(range(2, 100), error(500, "boom")))
    with serving(lambda request: flushing(request) or script(request)) as server:
        level = measure(server)
    assert len(level.streams) == 1
    assert 1 <= len(level.refused) <= 3
    assert "boom" in level.refused[0]


def test_a_server_that_dies_ends_the_level_at_once() -> None:
    with serving(lambda request: flushing(request) or stream(chunk("a"), Stall())) as server:
        started = time.monotonic()
        with pytest.raises(Died):
            measure(server, check_alive=dying_after(0.1))
        assert time.monotonic() - started < 2


def test_a_server_of_somebody_else_that_goes_away_ends_the_level() -> None:
    with serving(lambda request: flushing(request) or Answer([Reset()])) as server, pytest.raises(Unreachable):
        measure(server, at_once=4, good_streams=0.1)


def test_connections_lost_on_a_few_of_many_lanes_end_no_level() -> None:
    lost = iter(range(3))

    def fickle(request: Request) -> Answer:
        return flushing(request) or (Answer([Reset()]) if next(lost, None) is not None else slow(request))

    with serving(fickle) as server:
        level = measure(server, at_once=8, good_streams=0.8)
    assert (len(level.streams), len(level.refused)) == (15, 3)


def test_what_runs_on_uvloop_runs_on_uvloop() -> None:
    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert on_uvloop(loop()) == "uvloop"


# --- the real engine

TINY = profiles.load("cpu-tiny")
AT_ONCE = 4


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "two steps"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Level]:
    """The tiny pair's prompts, four at a time, on the CPU engine."""
    depth, folder = request.param, tmp_path_factory.mktemp("tiny")
    server = process.boot(
        lambda port: command.launch(TINY, depth, port=port, api_key="key-of-a-test", root=ROOT, inside=folder),
        log=folder / "server.log",
    )
    try:
        level = levels.run(
            profiles.read_prompts(TINY.workload.prompts),
            url=server.url,
            api_key=server.api_key,
            settings=Settings.of(TINY.workload),
            depth=depth,
            source=Source.STREAM if depth else Source.PLAIN,
            at_once=AT_ONCE,
            good_streams=1.0,
            check_alive=server.check_alive,
        )
        return depth, on_uvloop(level)
    finally:
        server.stop()


@pytest.mark.engine
@pytest.mark.slow
def test_on_the_real_engine_four_streams_have_the_oracles_counts_and_texts(tiny: tuple[int, Level]) -> None:
    depth, level = tiny
    assert TINY.workload.oracle
    oracle = profiles.read_oracle(TINY.workload.oracle)
    assert (level.refused, level.notes) == ((), ())
    assert len(level.streams) == 24
    for one in level.streams:
        assert one.text_sha256 == oracle.text_sha256(one.prompt), one.prompt
        assert one.verifies == (oracle.verifies(one.prompt, depth) if depth else 127), one.prompt
        assert len(one.gaps_us.split()) <= one.verifies + 1


@pytest.mark.engine
@pytest.mark.slow
def test_on_the_real_engine_all_four_were_going_most_of_the_time(tiny: tuple[int, Level]) -> None:
    level = tiny[1]
    seen, window = figures(level), steady(level)
    assert window
    assert window.to_s - window.from_s > 0.5 * max(s.arrivals_s[-1] for s in level.streams)
    assert seen.per_stream < seen.aggregate < AT_ONCE * 1.05 * seen.per_stream
