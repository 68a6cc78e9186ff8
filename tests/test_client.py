"""One streamed completion: what it is when all is well, and what is said when it is not."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from fixtures.engine.client import Client, Completion, Settings, Unreachable
from fixtures.engine.transcript import Refused
from tests.kit.answers import (
    DONE,
    GAP,
    as_json,
    chat_chunk,
    chunk,
    completion,
    error,
    event,
    recorded,
    stream,
    usage,
)
from tests.kit.scripted_server import Answer, Cut, Pause, Request, Reset, Script, ScriptedServer, Stall, serving

T = TypeVar("T")

ASKED = Settings(max_tokens=3, request_limit_s=5.0, token_limit_s=5.0)
SHORT = replace(ASKED, request_limit_s=0.3, token_limit_s=0.3)
GOOD = completion("a", "b", "c", tokens=3)


def ask(
    script: Script | Answer, settings: Settings = ASKED, *, clock: Callable[[], float] = time.perf_counter
) -> Completion:
    """One completion from a server with this script; nothing may be left of it, and it may not take long."""
    with serving(script) as server:
        return ask_server(server, settings, clock=clock)


def ask_server(
    server: ScriptedServer, settings: Settings = ASKED, *, clock: Callable[[], float] = time.perf_counter
) -> Completion:
    started = time.perf_counter()
    try:
        return asyncio.run(alone(one_completion(server.url, settings, clock)))
    finally:
        assert server.let_go(), "a connection was left open"
        assert time.perf_counter() - started < 5


async def one_completion(url: str, settings: Settings, clock: Callable[[], float]) -> Completion:
    async with Client(url, "secret", settings, clock=clock) as client:
        return await client.complete("hello")


async def alone(work: Coroutine[Any, Any, T]) -> T:
    """The work's result; no task of it may be left."""
    try:
        return await work
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks were left: {left}"


def with_gaps(stream_text: bytes) -> Answer:
    return stream(*(part + b"\n\n" for part in stream_text.split(b"\n\n") if part.strip()))


# --- when all is well


def test_a_recorded_completion_is_read_whole() -> None:
    seen = ask(with_gaps(recorded("cpu-sglang-0.5.23/completions_stream.txt")), replace(ASKED, max_tokens=24))
    assert (seen.tokens, seen.tokens_source, seen.chunks, seen.finish_reason) == (24, "usage", 9, "length")
    assert seen.text == " the LORD had made a covenant with the LORD, and said unto them, Thou art the LORD thy God"
    assert seen.spec is not None
    assert seen.spec["spec_verify_ct"] == 8
    assert 0 < seen.ttft_s < 5
    assert len({*seen.arrivals}) > 1
    assert [*seen.arrivals] == sorted(seen.arrivals)
    assert seen.decode_s == seen.arrivals[-1] - seen.arrivals[0]
    assert 0.04 <= seen.ttft_s + seen.decode_s < 5, "eight gaps of 5 ms lie before the last of nine chunks"


def test_a_recorded_chat_is_read_whole() -> None:
    asked = Settings(max_tokens=24, endpoint="chat")
    seen = ask(with_gaps(recorded("cpu-sglang-0.5.23/chat_stream.txt")), asked)
    assert (seen.tokens, seen.chunks, seen.finish_reason) == (24, 17, "length")
    assert seen.text.startswith(" when the people saw that they had heard the")


def test_the_request_is_greedy_streamed_and_asks_for_usage_and_counts() -> None:
    with serving(GOOD) as server:
        ask_server(server)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/completions")
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["accept-encoding"] == "identity"
    assert request.json == {
        "model": "default",
        "prompt": "hello",
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "return_spec_tokens_details": True,
    }


def test_a_chat_sends_the_prompt_as_the_user() -> None:
    answer = stream(
        chat_chunk(role="assistant", content=""), chat_chunk(content="hi"), chat_chunk("length"), usage(3), DONE
    )
    with serving(answer) as server:
        ask_server(server, replace(ASKED, endpoint="chat", ignore_eos=False))
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.json["messages"] == [{"role": "user", "content": "hello"}]
    assert request.json["ignore_eos"] is False


def test_tokens_come_from_usage_and_never_from_chunks() -> None:
    seen = ask(completion("several tokens", " in each", tokens=40), replace(ASKED, max_tokens=40))
    assert (seen.tokens, seen.chunks) == (40, 2)


def test_the_last_usage_counts_where_every_chunk_has_one() -> None:
    parts = [
        event({"choices": [{"text": t, "finish_reason": f}], "usage": {"completion_tokens": n}})
        for t, f, n in (("a", None, 1), ("b", None, 2), ("c", "length", 3))
    ]
    assert ask(stream(*parts, DONE)).tokens == 3


def test_reasoning_counts_as_text_and_its_first_token_as_the_first() -> None:
    answer = Answer(
        [
            chat_chunk(role="assistant", content=""),
            GAP,
            chat_chunk(reasoning_content="hm", content=None),
            Pause(0.05),
            chat_chunk(reasoning_content=None, content="yes"),
            chat_chunk("length"),
            usage(3),
            DONE,
        ]
    )
    seen = ask(answer, replace(ASKED, endpoint="chat"))
    assert (seen.text, seen.chunks) == ("hmyes", 2)
    assert seen.decode_s >= 0.05


def test_a_chunk_whose_text_is_held_back_is_the_first_token_all_the_same() -> None:
    held = Answer([chunk(""), Pause(0.05), chunk("é"), GAP, chunk("b", "length"), usage(3), DONE])
    seen = ask(held)
    assert (seen.text, seen.chunks) == ("éb", 3)
    assert seen.decode_s >= 0.05


def test_the_time_of_a_token_is_when_its_bytes_were_read() -> None:
    readings = itertools.count(100.0)  # a second passes at each reading: sending, then whenever bytes come
    seen = ask(completion("a", "b", "c", tokens=3), clock=lambda: next(readings))
    assert seen.sent_at == 100.0
    assert 1.0 <= seen.ttft_s <= 2.0, "the first chunk comes with the head or right after it"
    assert seen.decode_s == 2.0


def test_stop_tokens_end_a_completion_early_where_the_profile_lets_them() -> None:
    answer = stream(chunk("a"), chunk("", "stop"), usage(2), DONE)
    seen = ask(answer, replace(ASKED, ignore_eos=False))
    assert (seen.tokens, seen.finish_reason, seen.text) == (2, "stop", "a")


def test_comments_keep_alives_and_other_line_endings_are_no_fault() -> None:
    parts = [chunk("a"), b": keep-alive\n\n", chunk("b"), b":\n\n", chunk("c", "length"), usage(3), DONE]
    assert ask(stream(*(part.replace(b"\n", b"\r\n") for part in parts))).text == "abc"


def test_an_event_in_many_pieces_is_one_event() -> None:
    pieces = [bytes([byte]) for part in (chunk("é"), chunk("🦅")) for byte in part]
    assert ask(Answer([*pieces, GAP, chunk("c", "length"), usage(3), DONE])).text == "é🦅c"


def test_an_end_without_its_empty_line_is_still_an_end() -> None:
    assert ask(stream(chunk("a"), chunk("b"), chunk("c", "length"), usage(3), b"data: [DONE]")).tokens == 3


def test_a_line_of_five_megabytes_is_read() -> None:
    long = "x" * 5_000_000
    assert len(ask(completion("a", long, "c", tokens=3)).text) == 5_000_002


def test_the_digest_of_a_text_is_that_of_its_utf8() -> None:
    text = ask(completion("é", "🦅", tokens=3)).text
    assert hashlib.sha256(text.encode()).hexdigest() == hashlib.sha256("é🦅".encode()).hexdigest()


def test_a_proxy_in_the_environment_is_not_in_the_measured_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(GOOD).tokens == 3


# --- tokens without usage


def without_usage(request: Request) -> Answer:
    if request.path == "/v1/tokenize":
        assert request.json == {"prompt": "abc", "add_special_tokens": False}
        return as_json({"tokens": [7, 8, 9], "count": 3, "max_model_len": 2048})
    return stream(chunk("a"), chunk("b"), chunk("c", "length"), event({"choices": [], "usage": None}), DONE)


def test_without_usage_the_servers_tokenizer_counts_and_it_is_marked() -> None:
    seen = ask(without_usage)
    assert (seen.tokens, seen.tokens_source) == (3, "tokenize")


def test_a_recorded_stream_without_usage_is_refused_where_there_is_no_tokenizer() -> None:
    text = recorded("cpu-sglang-0.5.23/stream_return_meta_info.txt").split(b"\n\nHTTP")[0]

    def script(request: Request) -> Answer:
        return error(404, "Not Found") if request.path == "/v1/tokenize" else with_gaps(text)

    with pytest.raises(
        Refused, match=r"^the stream carried no usage, and .* can't count .*\(HTTP 404 to POST /v1/tokenize"
    ):
        ask(script)


# --- when it is not

END = (usage(3), DONE)

REFUSED: dict[str, tuple[Answer, str]] = {
    "recorded 401": (
        Answer([recorded("cpu-sglang-0.5.23/error_401.txt").split(b"\n")[0]], 401),
        r"^HTTP 401 to POST /v1/completions: Unauthorized \(the API key sent is not the server's\)$",
    ),
    "recorded prompt too long": (
        Answer([recorded("cpu-sglang-0.5.23/error_prompt_too_long.txt").split(b"\n")[0]], 400),
        r"^HTTP 400 .*The input \(6006 tokens\) is longer than the model's context length \(2048 tokens\)\.$",
    ),
    "403": (error(403, "no"), r"^HTTP 403 .*: no \(the API key sent may not"),
    "404": (as_json({"detail": "Not Found"}, 404), r"^HTTP 404 .*: Not Found \(the server doesn't serve this"),
    "429": (error(429, "slow down"), r"^HTTP 429 .*: slow down \(the server is overloaded"),
    "500": (
        Answer([b"Internal Server Error"], 500, "text/plain"),
        r"^HTTP 500 .*: Internal Server Error \(the server's",
    ),
    "500 without a word": (Answer([], 500), r"^HTTP 500 to POST /v1/completions \(the server's log"),
    "502 with a page": (Answer([b"<html>\n\x1b[31mBad\x00 Gateway"], 502), r"^HTTP 502 .*: <html>  \[31mBad  Gateway$"),
    "503": (error(503, "The request queue is full."), r"^HTTP 503 .*: The request queue is full\. \(the server is not"),
    "error first": (stream(event({"error": {"message": "bad", "code": 400}}), DONE), r"error after 0 chunks: bad$"),
    "error in the middle": (
        stream(chunk("a"), event({"error": {"object": "error", "message": "CUDA error", "code": 500}}), DONE),
        r"^the server reported an error after 1 chunks: CUDA error$",
    ),
    "error as a bare object": (stream(chunk("a"), event({"object": "error", "message": "oops"})), r"1 chunks: oops$"),
    "error as a word": (stream(chunk("a"), event({"error": "oops"})), r"1 chunks: oops$"),
    "abort": (stream(chunk("a"), chunk("", "abort"), *END), r"^the server aborted the completion after 2 chunks; the"),
    "no end": (
        stream(chunk("a"), chunk("b", "length"), usage(3)),
        r"^the stream ended without \[DONE\] after 2 chunks",
    ),
    "no finish reason": (stream(chunk("a"), chunk("b"), *END), r"^the stream ended without a finish reason after 2"),
    "nothing at all": (stream(), r"^the stream carried no token: is this an SGLang server's streaming endpoint"),
    "only the end": (stream(*END), r"^the stream carried no token"),
    "a page": (Answer([b"<html><body>Welcome</body></html>"], 200, "text/html"), r"^the stream carried no token"),
    "ends inside an event": (
        stream(chunk("a"), b'data: {"choices": [{"te'),
        r"^the stream ended inside an event, after 1 chunks: an event is not JSON .*\{\"choices\": \[\{\"te$",
    ),
    "not UTF-8": (
        stream(chunk("a"), b'data: {"text": "\xff\xfe"}\n\n'),
        r"^an event is not JSON \(str is not valid UTF-8",
    ),
    "not JSON": (stream(chunk("a"), b"data: \n\n"), r"^an event is not JSON"),
    "not an object": (stream(event([1, 2])), r"^an event is not an object: \[1, 2\]$"),
    "another shape": (stream(event({"choices": [7]})), r"^an event has not the shape of a completion's: .*\[7\]"),
    "usage of another shape": (stream(event({"choices": [], "usage": "3"})), r"^an event has not the shape"),
    "too few tokens": (
        stream(chunk("a"), chunk("b", "stop"), usage(2), DONE),
        r"^asked for 3 tokens, got 2 \(finish reason stop\): do prompt and completion fit",
    ),
    "too many tokens": (completion("a", "b", tokens=4), r"^asked for 3 tokens, got 4 \(finish reason length\)$"),
    "all in one chunk": (
        Answer([chunk("a") + chunk("b") + chunk("c", "length") + usage(3) + DONE]),
        r"^the clock did not move forward between the first chunk and the last",
    ),
    "one chunk": (completion("abc", tokens=3), r"^all tokens came in one chunk.*is the stream buffered\?$"),
}


@pytest.mark.parametrize(("answer", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_answer_is_refused_with_what_happened(answer: Answer, reason: str) -> None:
    with serving(answer) as server, pytest.raises(Refused, match=reason) as refused:
        ask_server(server)
    assert not isinstance(refused.value, Unreachable)
    assert server.paths() == ["/v1/completions"], "a refused completion is never asked for again"
    assert str(refused.value).isprintable()
    assert "secret" not in str(refused.value)


def test_a_key_that_the_server_repeats_in_its_error_is_hidden() -> None:
    async def one(url: str) -> None:
        async with Client(url, "0123456789abcdef", ASKED) as client:
            await client.complete("x")

    refused = pytest.raises(Refused, match=r"^HTTP 403 to POST /v1/completions: no Bearer \[hidden\] ")
    with serving(lambda request: error(403, f"no {request.headers['authorization']}")) as server, refused:
        asyncio.run(one(server.url))


def test_one_token_gives_no_rate() -> None:
    with pytest.raises(Refused, match=r"^got 1 token\(s\) \(finish reason stop\); a decode rate needs 2 or more$"):
        ask(stream(chunk("a"), chunk("", "stop"), usage(1), DONE), replace(ASKED, ignore_eos=False))


BROKEN: dict[str, tuple[Answer, str]] = {
    "cut before a token": (
        Answer([b": hello\n\n", Cut()]),
        r"^the connection failed before the first token: TransferEncodingError: 400, message:",
    ),
    "cut in the middle": (
        stream(chunk("a"), chunk("b"), Cut()),
        r"^the connection failed after 2 chunks: .* Not enough data to satisfy transfer length",
    ),
    "cut inside an event": (
        stream(chunk("a"), b'data: {"cho', Cut()),
        r"^the connection failed after 1 chunks: .* Not enough data to satisfy transfer length",
    ),
    "reset": (stream(chunk("a"), Reset()), r"^the connection failed after 1 chunks: (Conn|Transf|Client)\w+Error: "),
}


@pytest.mark.parametrize(("answer", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_connection_is_told_from_a_bad_answer(answer: Answer, reason: str) -> None:
    with pytest.raises(Unreachable, match=reason):
        ask(answer)


def test_a_server_that_is_not_there_is_named_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match=r"^the connection failed before the first token: ConnectionRef"):
        asyncio.run(alone(one_completion(f"http://127.0.0.1:{port}", ASKED, time.perf_counter)))


@pytest.mark.parametrize("ask", [lambda c: c.complete("x"), lambda c: c.metrics()], ids=["a stream", "an answer"])
def test_what_is_no_http_is_a_broken_connection(ask: Callable[[Client], Coroutine[Any, Any, object]]) -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()

    async def asked() -> None:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        async with server, Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "k", ASKED) as client:
            await ask(client)

    with pytest.raises(Unreachable):
        asyncio.run(asked())


def test_more_streams_than_a_hundred_are_open_at_once() -> None:
    async def all_at_once(url: str) -> None:
        async with Client(url, "k", ASKED) as client:
            await asyncio.gather(*(client.complete("x") for _ in range(110)))

    apart = [Pause(0.01) if step is GAP else step for step in GOOD.steps]
    with serving(Answer([Pause(1.0), *apart])) as server:
        asyncio.run(all_at_once(server.url))
        assert server.most_connections == 110


# --- waiting


STALLED: dict[str, tuple[Answer, str]] = {
    "no first token": (Answer([Stall()]), r"^no token within 0\.3 s \(workload\.request_limit_s\)$"),
    "keep-alives and no token": (
        Answer([step for _ in range(200) for step in (b": keep-alive\n\n", Pause(0.02))]),
        r"^no token within 0\.3 s",
    ),
    "stall in the middle": (
        stream(chunk("a"), chunk("b"), Stall()),
        r"^stopped waiting after 2 chunks: .*token_limit_s",
    ),
    "keep-alives in the middle": (
        Answer([chunk("a"), *(step for _ in range(200) for step in (b": keep-alive\n\n", Pause(0.02)))]),
        r"^stopped waiting after 1 chunks",
    ),
    "stall inside an event": (stream(chunk("a"), b"data: {", Stall()), r"^stopped waiting after 1 chunks"),
    "stall after the end": (
        stream(chunk("a"), chunk("b", "length"), *END, Stall()),
        r"^stopped waiting after 2 chunks",
    ),
    "stall inside an error": (Answer([b'{"message": "', Stall()], 500), r"^no token within 0\.3 s"),
}


@pytest.mark.parametrize(("answer", "reason"), STALLED.values(), ids=STALLED.keys())
def test_a_server_that_stalls_is_waited_for_no_longer_than_the_limit(answer: Answer, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        ask(answer, SHORT)


def test_a_slow_trickle_ends_at_the_limit_of_the_whole() -> None:
    trickle = Answer([step for _ in range(100) for step in (chunk("a"), Pause(0.05))])
    with pytest.raises(Refused, match=r"^stopped waiting after \d chunks: the limits are 5 s .* and 0\.3 s in all"):
        ask(trickle, replace(ASKED, request_limit_s=0.3))


def test_a_slow_first_token_may_take_longer_than_the_time_between_two() -> None:
    slow = Answer([Pause(0.3), chunk("a"), GAP, chunk("b"), GAP, chunk("c", "length"), *END])
    seen = ask(slow, replace(ASKED, token_limit_s=0.15))
    assert seen.ttft_s >= 0.3


def test_a_connection_that_is_accepted_and_never_answered_ends_at_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Refused, match=r"^no token within 0\.3 s"):
            asyncio.run(alone(one_completion(url, SHORT, time.perf_counter)))


@pytest.mark.parametrize("step", [-1.0, 0.0], ids=["backwards", "standing still"])
def test_a_clock_that_does_not_go_forward_gives_no_rate(step: float) -> None:
    readings = itertools.count(100.0, step)
    with pytest.raises(Refused, match=r"^the clock did not move forward"):
        ask(GOOD, clock=lambda: next(readings))


def test_a_completion_that_is_cancelled_leaves_nothing() -> None:
    async def cancelled(url: str) -> None:
        work = asyncio.create_task(one_completion(url, ASKED, time.perf_counter))
        await asyncio.sleep(0.1)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    with serving(stream(chunk("a"), Stall())) as server:
        asyncio.run(alone(cancelled(server.url)))
        assert server.let_go()


# --- what else a server says


def test_generate_gives_the_text_and_the_counts() -> None:
    async def generated(url: str) -> tuple[str, Any]:
        async with Client(url, "secret", replace(ASKED, max_tokens=24)) as client:
            return await client.generate("hello")

    with serving(Answer([recorded("cpu-sglang-0.5.23/generate.json")], 200, "application/json")) as server:
        text, meta = asyncio.run(alone(generated(server.url)))
    assert text.endswith("Thou art the LORD thy God")
    assert (meta["completion_tokens"], meta["spec_verify_ct"]) == (24, 8)
    assert server.requests[0].json == {
        "text": "hello",
        "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
    }


@pytest.mark.parametrize("old", [False, True], ids=["/server_info", "/get_server_info"])
def test_the_average_is_found_under_both_names_of_server_info(old: bool) -> None:
    async def average(url: str) -> float | None:
        async with Client(url, "secret", ASKED) as client:
            return await client.average_accept_length()

    def script(request: Request) -> Answer:
        if request.path == ("/get_server_info" if old else "/server_info"):
            return as_json({"internal_states": [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}]})
        return error(404, "Not Found")

    with serving(script) as server:
        assert asyncio.run(alone(average(server.url))) == 2.5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer([b"no JSON"], 200), r"^/generate answered something else than a completion: no JSON$"),
        (as_json({"text": "x"}), r"^/generate answered something else"),
        (error(500, "boom"), r"^HTTP 500 to POST /generate: boom"),
        (Answer([Stall()]), r"^POST /generate: no answer within 0\.3 s$"),
        (Answer([b"{", Reset()]), r"^POST /generate: (Read|RemoteProtocol)Error"),
    ],
    ids=["no JSON", "no counts", "500", "stall", "reset"],
)
def test_other_answers_fail_as_clearly_and_as_soon(answer: Answer, expected: str) -> None:
    async def generated(url: str) -> None:
        async with Client(url, "secret", SHORT) as client:
            await client.generate("hello")

    with serving(answer) as server:
        with pytest.raises(Refused, match=expected):
            asyncio.run(alone(generated(server.url)))
        assert server.let_go()
