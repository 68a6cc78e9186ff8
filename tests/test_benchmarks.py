"""The benchmark of clients: its stub keeps its pace, and nothing is lost between it and its table."""

from __future__ import annotations

import json
import urllib.request
from itertools import islice, pairwise
from statistics import median

import pytest

from tests.benchmarks.__main__ import row, stub, table
from tests.benchmarks.stub import GAP_S, SPREAD, places


def test_places_in_a_gap_are_taken_each_once_the_first_far_apart() -> None:
    taken = list(islice(places(), SPREAD + 2))
    assert taken[:4] == [0, 32, 16, 48]
    assert sorted(taken[:SPREAD]) == list(range(SPREAD))
    assert taken[SPREAD:] == [0, 32]


def test_figures_follow_from_when_chunks_were_sent_and_when_they_came() -> None:
    sent = {"0": [1.0, 2.0], "1": [1.5, 2.5]}
    came = {"0": [1.001, 2.002], "1": [1.503, 2.504]}
    assert row(0.0004, sent, came) == pytest.approx((100.0, 2.5, 3.0, 4.0, 2.0))


def test_a_chunk_that_got_lost_is_no_figure() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        row(1.0, {"0": [1.0, 2.0]}, {"0": [1.0]})


def test_the_stub_sends_at_its_pace_and_says_when() -> None:
    with stub() as url:
        asked = json.dumps({"prompt": "p", "max_tokens": 40, "stream_options": {}}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", asked)) as answer:
            events = answer.read().split(b"\n\n")
        with urllib.request.urlopen(f"{url}/times") as answer:
            sent = json.load(answer)["p"]
    assert len(sent) == 40
    assert len(events) == 40 + 2, "the end, and the nothing behind it"
    assert median(b - a for a, b in pairwise(sent)) == pytest.approx(GAP_S, rel=0.2)


@pytest.mark.slow
def test_every_client_reads_every_chunk() -> None:
    lines = table(rounds=1, chunks=20, streams=(1, 4)).splitlines()
    assert [line.split()[-6] for line in lines[2:]] == ["1", "1", "1", "4", "4", "4"]
