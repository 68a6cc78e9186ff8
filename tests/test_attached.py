"""Addresses of servers that someone else runs."""

from __future__ import annotations

import pytest

from fixtures.engine.attached import KEY_VARIABLE, AddressError, Attached, addresses, attach

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
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_remedy(words: list[str], message: str) -> None:
    with pytest.raises(AddressError, match="--perf-server") as refused:
        addresses(words)
    assert message in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_the_key_comes_from_the_environment() -> None:
    assert attach({2: B}, 2, {KEY_VARIABLE: "k"}) == Attached(B, "k")
    assert attach({2: B}, 2, {}) == Attached(B, "")
