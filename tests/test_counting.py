"""Which source of counts is chosen, and that it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from fixtures.engine import counting
from fixtures.engine.acceptance import AcceptanceError, Source
from fixtures.engine.client import Client, Settings
from fixtures.engine.counting import Counting, DecodeLines, Probe
from fixtures.engine.transcript import Refused
from tests.kit.answers import Sglang, error, recorded
from tests.kit.scripted_server import Answer, Request, serving

T = TypeVar("T")

ASKED = Settings(max_tokens=9, request_limit_s=5.0)
META: dict[str, Mapping[str, Any]] = {
    record["version"]: {**record["meta_info"], "spec_verify_ct": 4}
    for record in json.loads(recorded("meta_info_by_version.json"))
    if record["version"] in ("0.4.5", "0.5.3.post3")
}
"""/generate's account of 9 tokens in 4 verifies, as two versions give it that count nothing but verifies."""


def with_client(script: Sglang, work: Callable[[Client], Awaitable[T]], settings: Settings = ASKED) -> T:
    async def run(url: str) -> T:
        async with Client(url, "k", settings) as client:
            return await work(client)

    with serving(script) as server:
        return asyncio.run(run(server.url))


def probe(
    script: Sglang, depth: int = 3, *, alone: bool = True, decode_lines: DecodeLines | None = None, **asked: Any
) -> Probe:
    settings = Settings(**{"max_tokens": 9, "request_limit_s": 5.0, **asked})
    return with_client(
        script, lambda c: counting.probe(c, "p", depth, alone=alone, decode_lines=decode_lines), settings
    )


def log_of(*lengths: float) -> DecodeLines:
    return lambda: [{"accept len": length} for length in lengths]


# --- the choice

CHOICES: dict[str, tuple[Sglang, Source]] = {
    "0.5.20 and later": (Sglang(in_stream=True, has_metrics=True, counts_verifies=True), Source.STREAM),
    "the same without metrics": (Sglang(in_stream=True), Source.STREAM),
    "0.5.13 to 0.5.17": (Sglang(has_metrics=True, counts_verifies=True, meta_info=META["0.4.5"]), Source.METRICS),
    "0.5.3": (Sglang(has_metrics=True, meta_info=META["0.5.3.post3"]), Source.META_INFO),
    "0.4.5": (Sglang(meta_info=META["0.4.5"]), Source.META_INFO),
    "/server_info only": (Sglang(average=2.0), Source.AVERAGE),
    "nothing but the stream": (Sglang(), Source.CHUNKS),
}


@pytest.mark.parametrize(("script", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_the_most_trusted_source_that_answers_is_chosen(script: Sglang, expected: Source) -> None:
    assert probe(script) == Probe(expected)


def test_a_log_is_chosen_before_chunks_but_after_the_servers_average() -> None:
    assert probe(Sglang(), decode_lines=log_of(2.0)).source is Source.LOG
    assert probe(Sglang(), decode_lines=lambda: [{"#running-req": 1}]).source is Source.CHUNKS
    assert probe(Sglang(average=2.0), decode_lines=log_of(2.0)).source is Source.AVERAGE


def test_counters_are_not_used_where_several_streams_run() -> None:
    script = Sglang(has_metrics=True, counts_verifies=True, meta_info=META["0.4.5"])
    assert probe(script, alone=False).source is Source.META_INFO


def test_generate_is_not_used_for_a_chat_whose_template_it_does_not_know() -> None:
    script = Sglang(meta_info=META["0.4.5"])
    script.spoil = lambda request: script.stream_chat() if request.path == "/v1/chat/completions" else None
    assert probe(script, endpoint="chat").source is Source.CHUNKS


def test_a_counter_that_lags_behind_the_stream_is_waited_for() -> None:
    assert probe(Sglang(has_metrics=True, counts_verifies=True, lag=3)) == Probe(Source.METRICS)


def test_sources_that_disagree_are_noted_and_the_more_trusted_is_used() -> None:
    script = Sglang(in_stream=True, has_metrics=True, counts_verifies=True, miscount=1)
    assert probe(script) == Probe(Source.STREAM, ("stream counts 4 verifies, metrics 5",))


def test_chunks_that_disagree_by_more_than_a_joined_pair_are_noted() -> None:
    assert probe(Sglang(in_stream=True, chunks=4)).notes == ()
    assert probe(Sglang(in_stream=True, chunks=3)).notes == ("stream counts 4 verifies, chunks 2",)


def test_impossible_counts_are_noted_and_not_used() -> None:
    script = Sglang(in_stream=True, verifies=2, chunks=5)  # 2 verifies at 3 steps commit 8 tokens: possible
    assert probe(script, depth=3).source is Source.STREAM
    refused = probe(script, depth=2)
    assert refused.source is Source.CHUNKS
    assert refused.notes[0] == "stream: 2 verifies can't commit 8 tokens at 2 steps"


def test_a_server_that_says_nothing_usable_is_an_error_that_lists_what_was_tried() -> None:
    with pytest.raises(AcceptanceError, match=r"^no source counts .*: meta_info: HTTP 404 .*; chunks: 12 chunks for 9"):
        probe(Sglang(chunks=12))


def test_a_refused_completion_is_no_probe() -> None:
    with pytest.raises(Refused, match="HTTP 500"):
        probe(Sglang(spoil=lambda r: error(500, "boom") if r.path == "/v1/completions" else None))


# --- the baseline


@pytest.mark.parametrize("has_metrics", [False, True])
def test_a_baseline_is_plain(has_metrics: bool) -> None:
    assert probe(Sglang(has_metrics=has_metrics), depth=0) == Probe(Source.PLAIN)


@pytest.mark.parametrize(
    ("script", "source"),
    [(Sglang(in_stream=True), "stream"), (Sglang(has_metrics=True, counts_verifies=True), "metrics")],
    ids=["stream", "metrics"],
)
def test_a_baseline_that_speculates_is_found_out(script: Sglang, source: str) -> None:
    with pytest.raises(AcceptanceError, match=rf"^this server was to be the baseline, .*: {source} counts 4 verifies"):
        probe(script, depth=0)


# --- counting


def counted(script: Sglang, source: Source, prompts: Sequence[str] = ("p", "q", "p")) -> list[int]:
    async def work(client: Client) -> list[int]:
        one = Counting(client, source)
        await one.begin()
        return [(await one.complete(prompt))[1].verifies for prompt in prompts]

    return with_client(script, work)


@pytest.mark.parametrize(
    ("script", "source"),
    [
        (Sglang(), Source.CHUNKS),
        (Sglang(in_stream=True), Source.STREAM),
        (Sglang(has_metrics=True, counts_verifies=True, lag=2), Source.METRICS),
        (Sglang(meta_info=META["0.4.5"]), Source.META_INFO),
    ],
    ids=lambda value: str(value) if isinstance(value, Source) else "",
)
def test_each_completion_has_the_counts_of_its_source(script: Sglang, source: Source) -> None:
    assert counted(script, source) == [4, 4, 4]


def test_a_plain_server_is_counted_by_its_tokens() -> None:
    assert counted(Sglang(), Source.PLAIN) == [8, 8, 8]


def test_generate_is_asked_once_a_prompt() -> None:
    script = Sglang(meta_info=META["0.4.5"])
    asked: list[str] = []

    def note(request: Request) -> Answer | None:
        if request.path == "/generate":
            asked.append(request.json["text"])
        return None

    script.spoil = note
    counted(script, Source.META_INFO, prompts=("p", "q", "p", "q"))
    assert asked == ["p", "q"]


def test_counts_of_another_text_are_not_this_completions() -> None:
    script = Sglang(meta_info=META["0.4.5"], chunks=6)  # streams six x, /generate gives five
    with pytest.raises(AcceptanceError, match=r"^/generate gave another text"):
        counted(script, Source.META_INFO)


def test_a_stream_that_loses_its_counts_is_refused_and_not_counted_otherwise() -> None:
    with pytest.raises(AcceptanceError, match="carries no spec_tokens_details, though others"):
        counted(Sglang(), Source.STREAM)


def test_tokens_of_somebody_else_spoil_a_counted_completion() -> None:
    script = Sglang(has_metrics=True, counts_verifies=True, strangers=1)
    with pytest.raises(AcceptanceError, match=r"^/metrics counted 18 tokens around a completion of 9: did other"):
        counted(script, Source.METRICS)


# --- averages


def averaged(script: Sglang, source: Source, decode_lines: DecodeLines | None = None) -> float | None:
    async def work(client: Client) -> float | None:
        one = Counting(client, source, decode_lines)
        await one.begin()
        await one.complete("p")
        return await one.average()

    return with_client(script, work)


def test_the_servers_average_is_started_anew_before_the_measurement() -> None:
    script = Sglang(average=2.25)
    assert averaged(script, Source.AVERAGE) == 2.25
    assert script.flushed == 1


def test_an_average_that_vanishes_is_an_error() -> None:
    with pytest.raises(AcceptanceError, match="no avg_spec_accept_length for this measurement"):
        averaged(Sglang(), Source.AVERAGE)


def test_the_log_counts_from_the_beginning_of_the_measurement() -> None:
    seen = [{"accept len": 9.0}, {"accept len": 9.0}]

    def lines() -> list[dict[str, float]]:
        now = list(seen)
        seen.extend([{"accept len": 5.0}, {"accept len": 2.0}, {"accept len": 3.0}])  # written before the next reading
        return now

    assert averaged(Sglang(), Source.LOG, lines) == 2.5, "the first line since is left out"


def test_exact_sources_need_no_average() -> None:
    assert averaged(Sglang(in_stream=True), Source.STREAM) is None


@pytest.mark.parametrize(("logged", "noted"), [(1.91, False), (2.0, False), (2.19, False), (1.89, True), (2.21, True)])
def test_a_log_that_says_otherwise_is_noted(logged: float, noted: bool) -> None:
    async def work(client: Client) -> tuple[str, ...]:
        return Counting(client, Source.STREAM, log_of(9.0, *[logged] * 9)).against_log(2.0, cut=0.1)

    notes = with_client(Sglang(), work)
    assert notes == ((f"stream gives an accept length of 2.000, the server's log {logged:.3f}",) if noted else ())


def test_a_log_of_a_few_lines_says_too_little_to_be_noted() -> None:
    async def work(client: Client) -> tuple[str, ...]:
        return Counting(client, Source.STREAM, log_of(*[9.0] * 9)).against_log(2.0, cut=0.1)

    assert with_client(Sglang(), work) == ()
