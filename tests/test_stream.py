"""Bytes → events, cut anywhere."""

from __future__ import annotations

import time

import pytest

from fixtures.engine.stream import Decoder, Event
from tests.kit.answers import recorded

STREAMS = (
    "cpu-sglang-0.5.23/completions_stream.txt",
    "cpu-sglang-0.5.23/chat_stream.txt",
    "cpu-sglang-0.5.23/stream_return_meta_info.txt",
    "h200-sglang-0.5.17/completions_stream_head.txt",
)


def events(*chunks: bytes) -> list[Event]:
    decoder = Decoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.flush()


def slow_events(stream: bytes) -> list[Event]:
    """The rule read aloud, on a whole stream with LF only: blocks between empty lines, their data lines joined."""
    blocks = [block.split(b"\n") for block in stream.strip(b"\n").split(b"\n\n")]
    datas = [[line.removeprefix(b"data: ") for line in block if line.startswith(b"data: ")] for block in blocks]
    return [Event(b"\n".join(data)) for data in datas if data]


@pytest.mark.parametrize("path", STREAMS)
def test_a_recorded_stream_cut_at_any_byte_gives_the_same_events(path: str) -> None:
    stream = recorded(path)
    whole = slow_events(stream)
    assert len(whole) >= 5
    for cut in range(len(stream) + 1):
        assert events(stream[:cut], stream[cut:]) == whole, f"cut at byte {cut}"


@pytest.mark.parametrize("path", STREAMS)
def test_a_recorded_stream_read_byte_by_byte_gives_the_same_events(path: str) -> None:
    stream = recorded(path)
    assert events(*(stream[n : n + 1] for n in range(len(stream)))) == slow_events(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_any_line_ending_cut_at_any_byte_gives_the_same_events(end: bytes) -> None:
    lines = (b"data: one", b"", b": keep-alive", b"", b"data: two", b"data: lines", b"", b"data: [DONE]", b"")
    stream = b"".join(line + end for line in lines)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            parts = stream[:first], stream[first:second], stream[second:]
            assert events(*parts) == [Event(b"one"), Event(b"two\nlines"), Event(b"[DONE]")], parts


def test_a_character_cut_in_two_comes_out_whole() -> None:
    stream = 'data: {"text": "é 🦅"}\n\n'.encode()
    for cut in range(len(stream)):
        assert events(stream[:cut], stream[cut:]) == [Event('{"text": "é 🦅"}'.encode())]


def test_bytes_that_are_no_utf8_come_through_untouched() -> None:
    assert events(b"data: \xff\xfe\x80\n\n") == [Event(b"\xff\xfe\x80")]


def test_an_event_comes_with_the_chunk_that_holds_its_empty_line_and_only_once() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\n") == [Event(b"one")]
    assert decoder.feed(b"") == []
    assert decoder.flush() == []


def test_an_event_ended_by_carriage_returns_does_not_wait_for_the_next_byte() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: one\r\n\r") == [Event(b"one")]
    assert decoder.feed(b"\ndata: two\r\r") == [Event(b"two")]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b": comment\n\n:\n\n", []),
        (b"\n\n\n", []),
        (b"data:tight\n\n", [Event(b"tight")]),
        (b"data:  two spaces\n\n", [Event(b" two spaces")]),
        (b"data\n\n", [Event(b"")]),
        (b"event: sglext_ids\ndata: {}\n\ndata: 1\n\n", [Event(b"{}", "sglext_ids"), Event(b"1")]),
        (b"event: alone\n\ndata: 1\n\n", [Event(b"1")]),
        (b"id: 7\nretry: 10\nnonsense\ndata: x\n\n", [Event(b"x")]),
        (b"data: a:b\n\n", [Event(b"a:b")]),
    ],
    ids=["comments", "empty lines", "no space", "one space goes", "no colon", "name", "name alone", "others", "colon"],
)
def test_fields_are_read_as_the_standard_says(stream: bytes, expected: list[Event]) -> None:
    assert events(stream) == expected


@pytest.mark.parametrize("rest", [b"data: cut", b"data: cut\n", b"event: x\ndata: cut"], ids=["line", "end", "named"])
def test_what_the_end_of_the_stream_cuts_off_is_left_to_flush(rest: bytes) -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: one\n\n" + rest) == [Event(b"one")]
    assert [event.data for event in decoder.flush()] == [b"cut"]
    assert decoder.flush() == []


def test_a_line_of_five_megabytes_in_small_pieces_takes_no_time_to_speak_of() -> None:
    line = b"x" * 5_000_000
    stream = b"data: " + line + b"\n\n"
    started = time.perf_counter()
    assert events(*(stream[n : n + 1000] for n in range(0, len(stream), 1000))) == [Event(line)]
    assert time.perf_counter() - started < 2, "5,000 pieces: quadratic work would take minutes"
