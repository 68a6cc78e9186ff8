"""Addresses of servers that someone else runs."""

from __future__ import annotations

import pytest

from fixtures.engine.addresses import KEY_VARIABLE, AddressError, addresses
from fixtures.engine.attached import Attached, account, attach
from tests.kit.answers import as_json
from tests.kit.scripted_server import Answer, serving

A, B = "http://127.0.0.1:30000", "http://127.0.0.1:30002"


def test_each_depth_has_its_address() -> None:
    assert addresses([f"0={A}", f"2={B}/"]) == {0: A, 2: B}


def test_no_address_means_that_servers_are_booted() -> None:
    assert addresses([]) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"2={A}"], "add 0=URL"),
        ([f"0={A}"], "add DEPTH=URL"),
        ([f"0={A}", f"0={B}"], "depth 0 was given before"),
        (["0=127.0.0.1:30000"], "give DEPTH=URL"),
        (["two=" + A], "give DEPTH=URL"),
        (["0=http://"], "give DEPTH=URL"),
        (["0=http://me:secret@127.0.0.1:1"], KEY_VARIABLE),
        (["0=http://secret@127.0.0.1:1"], KEY_VARIABLE),
        ([f"0={A}?api_key=secret"], KEY_VARIABLE),
        ([f"0={A}#secret"], KEY_VARIABLE),
        (["0=me:secret@127.0.0.1:1"], "--perf-server 0=…: give DEPTH=URL"),
        (["me:secret@127.0.0.1:1"], "--perf-server …=…: give DEPTH=URL"),
        (["0=http://[secret@"], "--perf-server 0=…: give DEPTH=URL"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_remedy(words: list[str], message: str) -> None:
    with pytest.raises(AddressError, match="--perf-server") as refused:
        addresses(words)
    assert message in str(refused.value)
    assert "secret@" not in str(refused.value)
    assert "=secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "problem", "unusable"),
    [
        (as_json({"version": "0.5.23", "api_key": "secret"}), "", False),
        (as_json({}, 401), "refuses the key (HTTP 401)", True),
        (as_json({}, 404), "knows neither /server_info nor", False),
        (as_json({}, 500), "answered HTTP 500", False),
        (as_json([]), "answered JSON that isn't an object", False),
    ],
    ids=["told", "refused", "unknown", "broken", "strange"],
)
def test_what_a_server_says_beforehand_tells_whether_it_could_be_measured(
    answer: Answer, problem: str, unusable: bool
) -> None:
    with serving(lambda _: answer) as server:
        told = account(Attached(server.url, "k"))
    assert problem in told.problem
    assert bool(told.problem) is bool(problem)
    assert told.unusable is unusable
    assert dict(told.reported) == ({} if problem else {"version": "0.5.23"})


def test_a_server_that_does_not_answer_could_not_be_measured() -> None:
    told = account(Attached("http://127.0.0.1:9", "k"))
    assert told.unusable
    assert "doesn't answer" in told.problem


def test_the_key_comes_from_the_environment() -> None:
    assert attach({2: B}, 2, {KEY_VARIABLE: "k"}) == Attached(B, "k")
    assert attach({2: B}, 2, {}) == Attached(B, "")
