"""Prompts → samples: the order, what is thrown away, what is refused, and a server that dies meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import workload
from fixtures.analysis.measurement import Refusal, Sample
from fixtures.engine.client import Settings
from fixtures.profiles import Prompt
from fixtures.workload import CutShort, Window, WorkloadError
from tests.kit.answers import Sglang, as_json, chunk, completion, error, event, stream
from tests.kit.scripted_server import Answer, Request, Reset, Script, ScriptedServer, Stall, serving

PROMPTS = (Prompt("p1", "kjv", "one"), Prompt("p2", "code", "two"), Prompt("p3", "kjv", "three"))
ASKED = Settings(max_tokens=3, request_limit_s=5.0, token_limit_s=5.0)
GOOD = completion("a", "b", "c", tokens=3)
ROOT = Path(__file__).resolve().parent.parent


def alive() -> None:
    """The server lives."""


def measure(script: Script | Answer, prompts: tuple[Prompt, ...] = PROMPTS, **how: Any) -> Window:
    """A window from a server with this script; no connection may be left open."""
    with serving(script) as server:
        try:
            return measure_server(server.url, prompts, **how)
        finally:
            assert server.let_go(), "a connection was left open"


def measure_server(url: str, prompts: tuple[Prompt, ...] = PROMPTS, **how: Any) -> Window:
    usual = {"settings": ASKED, "depth": 0, "check_alive": alive, "warmup": 1, "grace_s": 0.05}
    return asyncio.run(workload.run(prompts, url=url, api_key="k", **{**usual, **how}))


def asked(server: ScriptedServer) -> list[str]:
    """The prompts of its completions, in order."""
    return [request.json["prompt"] for request in server.requests if request.path == "/v1/completions"]


def spoiled(bad: dict[int, Answer], good: Answer = GOOD) -> Script:
    """A plain server that answers the n-th completion, from 1 and warm-up included, badly."""
    seen: list[Request] = []

    def script(request: Request) -> Answer:
        if request.path != "/v1/completions":
            return error(404, "Not Found")
        seen.append(request)
        return bad.get(len(seen), good)

    return script


# --- the order of things


def test_every_prompt_is_asked_in_order_in_each_pass_after_the_warm_up() -> None:
    with serving(spoiled({})) as server:
        window = measure_server(server.url, passes=2, warmup=2)
    assert asked(server) == ["one", "two", "one", "two", "three", "one", "two", "three"]
    assert [(s.prompt, s.source, s.repeat) for s in window.samples] == [
        ("p1", "kjv", 0),
        ("p2", "code", 0),
        ("p3", "kjv", 0),
        ("p1", "kjv", 1),
        ("p2", "code", 1),
        ("p3", "kjv", 1),
    ]
    assert (window.discarded, window.accept_source, window.refusals, window.notes) == (2, "plain", (), ())


def test_a_warm_up_longer_than_the_prompts_begins_again() -> None:
    with serving(spoiled({})) as server:
        measure_server(server.url, warmup=4)
    assert asked(server)[:4] == ["one", "two", "three", "one"]


def test_without_a_warm_up_one_completion_still_shows_where_counts_come_from() -> None:
    with serving(spoiled({})) as server:
        window = measure_server(server.url, warmup=0)
    assert len(asked(server)) == 4
    assert (window.discarded, len(window.samples)) == (1, 3)


def test_a_sample_says_what_was_seen() -> None:
    script = Sglang(tokens=9, verifies=4, in_stream=True)
    (one,) = measure(script, PROMPTS[:1], depth=3, settings=Settings(max_tokens=9)).samples
    assert (one.tokens, one.verifies, one.accepted_histogram) == (9, 4, None)
    assert (one.text, one.finish_reason) == ("xxxxx", "length")
    assert one.text_sha256 == hashlib.sha256(b"xxxxx").hexdigest()
    assert one.ttft_s > 0
    assert one.decode_s >= 0.015, "four gaps of 5 ms"


def test_the_text_of_a_sample_is_digested_as_utf8() -> None:
    window = measure(spoiled({}, completion("é", "🦅", "c", tokens=3)), PROMPTS[:1])
    assert window.samples[0].text_sha256 == hashlib.sha256("é🦅c".encode()).hexdigest()


def test_a_window_begins_when_warming_up_has_ended() -> None:
    """Phases of the cycle are those of the measurement alone."""
    asked_at: list[float] = []
    good = spoiled({})

    def script(request: Request) -> Answer:
        asked_at.append(time.monotonic())
        return good(request)

    window = measure(script, warmup=2, passes=1)
    completions = asked_at[-5:]
    assert completions[1] < window.began_s < completions[2]


def test_where_first_tokens_count_each_pass_begins_with_an_empty_prefix_cache() -> None:
    with serving(Sglang(tokens=3, verifies=1)) as server:
        window = measure_server(server.url, passes=2, flush=True)
    paths = [path for path in server.paths() if path in ("/flush_cache", "/v1/completions")]
    assert paths == ["/v1/completions", *(["/flush_cache"] + 3 * ["/v1/completions"]) * 2]
    assert window.notes == ()


def test_a_prefix_cache_that_can_not_be_emptied_is_noted_once() -> None:
    window = measure(spoiled({}), passes=2, flush=True)
    assert len(window.notes) == 1
    assert window.notes[0].endswith(
        "which could not be emptied: HTTP 404 to POST /flush_cache: Not Found (the server "
        "doesn't serve this: is the address right, and is it SGLang?)"
    )


def test_progress_is_told_after_each_completion_that_counts() -> None:
    told: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, outcome: Sample | Refusal) -> None:
        told.append((done, total, type(outcome).__name__))

    measure(spoiled({3: error(500, "boom")}), progress=progress)
    assert told == [(1, 3, "Sample"), (2, 3, "Refusal"), (3, 3, "Sample")]


# --- refusals


def test_a_refused_completion_is_kept_with_its_reason_and_never_tried_again() -> None:
    with serving(spoiled({3: error(500, "boom"), 7: stream(chunk("a"), event({"error": "oops"}))})) as server:
        window = measure_server(server.url, passes=2)
    assert len(asked(server)) == 7
    assert [(s.prompt, s.repeat) for s in window.samples] == [("p1", 0), ("p3", 0), ("p1", 1), ("p2", 1)]
    assert [(r.prompt, r.repeat) for r in window.refusals] == [("p2", 0), ("p3", 1)]
    assert window.refusals[0].reason == ("HTTP 500 to POST /v1/completions: boom (the server's log has the traceback)")


def test_asking_ends_once_enough_good_samples_are_out_of_reach() -> None:
    """Each refused completion may take its whole limit, which is minutes for a big model."""
    with serving(spoiled(dict.fromkeys((3, 4), error(500, "boom")))) as server:
        window = measure_server(server.url, passes=4, good_samples=0.9)
    assert len(asked(server)) == 4, "one warm-up, and 3 of 12 completions: 2 refused are more than a tenth"
    assert (len(window.samples), len(window.refusals)) == (1, 2)
    assert workload.too_few(window, 0.9)


def test_refusals_that_can_be_afforded_end_nothing() -> None:
    with serving(spoiled({3: error(500, "boom")})) as server:
        window = measure_server(server.url, passes=4, good_samples=0.9)
    assert (len(window.samples), len(window.refusals)) == (11, 1)


def test_a_broken_connection_of_a_living_server_is_one_refusal() -> None:
    window = measure(spoiled({2: stream(chunk("a"), Reset())}))
    assert [r.prompt for r in window.refusals] == ["p1"]
    assert window.refusals[0].reason.startswith("the connection failed after 1 chunks")
    assert [s.prompt for s in window.samples] == ["p2", "p3"]


def test_counts_that_cannot_be_are_a_refusal() -> None:
    script = Sglang(tokens=9, verifies=4, in_stream=True)
    script.spoil = lambda _: setattr(script, "verifies", 2 if script.generated == 2 else 4)
    window = measure(script, depth=2, settings=Settings(max_tokens=9))
    assert [(r.prompt, r.reason) for r in window.refusals] == [
        ("p2", "stream: 2 verifies can't commit 8 tokens at 2 steps")
    ]


def test_a_bad_warm_up_is_forgiven_if_another_is_good() -> None:
    window = measure(spoiled({1: error(503, "not yet")}), warmup=2)
    assert len(window.samples) == 3


def test_a_server_without_one_good_warm_up_is_not_measured() -> None:
    with serving(lambda _: as_json({"error": "Unauthorized"}, 401)) as server:
        with pytest.raises(
            WorkloadError, match=r"^no warm-up completion was good, so nothing was measured\. The last: HT"
        ):
            measure_server(server.url, warmup=2)
        assert len(asked(server)) == 2


def test_a_baseline_that_speculates_is_not_measured() -> None:
    with pytest.raises(WorkloadError, match="this server was to be the baseline, but it speculates"):
        measure(Sglang(tokens=9, verifies=4, in_stream=True), settings=Settings(max_tokens=9))


def test_tokens_that_were_counted_again_are_noted_once() -> None:
    def script(request: Request) -> Answer:
        if request.path == "/v1/tokenize":
            return as_json({"count": 3})
        if request.path != "/v1/completions":
            return error(404, "Not Found")
        return stream(chunk("a"), chunk("b"), chunk("c", "length"), b"data: [DONE]\n\n")

    window = measure(script)
    assert len(window.samples) == 3
    assert window.notes == ("the server sent no usage: tokens were counted by tokenising the text again",)


def test_an_averaging_source_gives_estimates_and_says_so() -> None:
    window = measure(Sglang(tokens=9, verifies=4, average=2.0), depth=3, settings=Settings(max_tokens=9))
    assert [s.verifies for s in window.samples] == [4, 4, 4]
    assert window.accept_source == "average"
    assert window.notes == ("verify counts are estimates: average gives 2.000 tokens a verify on average",)


def test_a_log_that_says_otherwise_is_noted() -> None:
    logged: list[list[dict[str, float]]] = [[], [{"accept len": 4.0}] * 10]  # before the measurement, and after
    window = measure(
        Sglang(tokens=9, verifies=4, in_stream=True),
        depth=3,
        settings=Settings(max_tokens=9),
        decode_lines=lambda: logged.pop(0) if len(logged) > 1 else logged[0],
    )
    assert window.notes == ("stream gives an accept length of 2.000, the server's log 4.000",)


# --- a server that dies


class Died(Exception):
    """What a process says of itself."""


def dying_after(seconds: float) -> Callable[[], None]:
    end = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end:
            raise Died("exit status -9; log: server.log")

    return check


def test_a_dead_server_ends_the_measurement_at_once_with_what_was_complete() -> None:
    started = time.monotonic()
    with pytest.raises(CutShort, match=r"^exit status -9; log: server\.log$") as cut:
        measure(spoiled({4: stream(chunk("a"), Stall())}), check_alive=dying_after(0.4))
    assert time.monotonic() - started < 2, "the stalled stream itself would have been waited for 5 s"
    assert isinstance(cut.value.__cause__, Died)
    assert [s.prompt for s in cut.value.window.samples] == ["p1", "p2"]
    assert cut.value.window.refusals == ()
    assert cut.value.window.accept_source == "plain"


def test_a_server_that_dies_during_the_warm_up_is_seen_too() -> None:
    with pytest.raises(CutShort) as cut:
        measure(Answer([Stall()]), check_alive=dying_after(0.2))
    assert cut.value.window == Window(discarded=1)


def test_a_server_of_somebody_else_that_goes_away_is_not_asked_to_the_end() -> None:
    gone = {n: Answer([Reset()]) for n in range(3, 100)}
    with pytest.raises(CutShort, match=r"^the connection failed before the first token") as cut:
        measure(spoiled(gone), passes=30, grace_s=0.3)
    assert [s.prompt for s in cut.value.window.samples] == ["p1"]
    assert len(cut.value.window.refusals) <= 3


def test_a_server_that_is_gone_before_the_warm_up_dies_of_its_own_reason() -> None:
    with pytest.raises(CutShort, match=r"^exit status -9"):
        measure(Answer([Reset()]), check_alive=dying_after(0), grace_s=1.0)


def test_a_server_that_cannot_start_its_average_anew_is_not_measured() -> None:
    script = Sglang(tokens=9, verifies=4, average=2.0)
    script.spoil = lambda request: error(400, "busy") if request.path == "/flush_cache" else None
    with pytest.raises(WorkloadError, match=r"^average can't be started anew for the measurement: HTTP 400 .*: busy"):
        measure(script, depth=3, settings=Settings(max_tokens=9))


def test_a_server_killed_in_the_middle_of_a_stream_is_no_refusal() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.kit.mortal_server", "4"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:

        def check_alive() -> None:
            if process.poll() is not None:
                raise Died(f"exit status {process.returncode}")

        assert process.stdout is not None
        url = process.stdout.readline().strip()
        started = time.monotonic()
        with pytest.raises(CutShort, match=r"^exit status -9$") as cut:
            measure_server(url, check_alive=check_alive, grace_s=5.0)
        assert time.monotonic() - started < 3
    assert [s.prompt for s in cut.value.window.samples] == ["p1", "p2"]
    assert cut.value.window.refusals == ()


def test_an_interrupted_measurement_leaves_nothing_behind() -> None:
    async def interrupted(url: str) -> None:
        work = asyncio.create_task(
            workload.run(PROMPTS, url=url, api_key="k", settings=ASKED, depth=0, check_alive=alive, warmup=1)
        )
        await asyncio.sleep(0.2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with serving(spoiled({2: stream(chunk("a"), Stall())})) as server:
        asyncio.run(interrupted(server.url))
        assert server.let_go()


# --- enough


def window(good: int, refused: int) -> Window:
    sample = Sample("p", "s", 0, 3, 2, None, 0.1, 0.1, "", "", "length")
    return Window(samples=(sample,) * good, refusals=tuple(Refusal(f"p{n}", 0, f"why {n}") for n in range(refused)))


@pytest.mark.parametrize(("good", "refused", "share"), [(9, 1, 0.9), (10, 0, 1.0), (1, 0, 0.9), (1, 9, 0.1)])
def test_a_window_with_enough_good_samples_gives_a_figure(good: int, refused: int, share: float) -> None:
    assert workload.too_few(window(good, refused), share) is None


@pytest.mark.parametrize(
    ("good", "refused", "share", "message"),
    [
        (8, 2, 0.9, "8 good samples of 10, at least 90% are needed. p0 (pass 0): why 0; p1 (pass 0): why 1."),
        (0, 1, 0.1, "0 good samples of 1, at least 10% are needed. p0 (pass 0): why 0."),
        (
            0,
            5,
            0.9,
            (
                "0 good samples of 5, at least 90% are needed. "
                "p0 (pass 0): why 0; p1 (pass 0): why 1; p2 (pass 0): why 2; and 2 more."
            ),
        ),
    ],
)
def test_a_window_with_too_few_says_how_many_and_why(good: int, refused: int, share: float, message: str) -> None:
    assert workload.too_few(window(good, refused), share) == message


def test_a_reason_that_is_a_question_gets_no_second_end() -> None:
    asked = Window(refusals=(Refusal("p0", 0, "do they fit into the server's context length?"),))
    told = workload.too_few(asked, 0.9)
    assert told is not None
    assert told.endswith("context length?")
