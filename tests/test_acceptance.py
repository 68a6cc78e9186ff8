"""Verify counts under every name and number they have had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.engine import acceptance
from fixtures.engine.acceptance import Acceptance, AcceptanceError, Source
from tests.kit.answers import recorded

BY_VERSION: list[dict[str, Any]] = json.loads(recorded("meta_info_by_version.json"))
"""What each version's own formatting code (`source`, in its wheel) makes of one completion: 24 tokens at 3 steps in
8 verifies, which accepted 0, 1, 2, 2, 2, 3, 3 and 3 drafts."""

# Which counts a version gives, from the code cited in the recording:
ONLY_VERIFIES = {"0.4.5", "0.4.6.post5", "0.4.9.post6", "0.5.2", "0.5.3.post3"}
NO_HISTOGRAM = ONLY_VERIFIES | {"0.5.6", "0.5.8"}


@pytest.mark.parametrize("record", BY_VERSION, ids=lambda r: r["version"])
def test_meta_info_of_every_version_gives_the_same_counts(record: dict[str, Any]) -> None:
    counts = acceptance.from_meta_info(record["meta_info"])
    version = record["version"]
    assert counts == Acceptance(
        verifies=8,
        source=Source.META_INFO,
        accepted=None if version in ONLY_VERIFIES else 16,
        proposed=None if version in ONLY_VERIFIES else 24,
        histogram=None if version in NO_HISTOGRAM else (1, 1, 3, 3),
    )
    assert acceptance.contradiction(counts, tokens=24, depth=3) is None


def test_the_recorded_versions_reach_from_the_first_with_eagle3_to_the_newest() -> None:
    versions = [record["version"] for record in BY_VERSION]
    assert (versions[0], versions[-1], len(versions)) == ("0.4.5", "0.5.23", 15)


def test_generate_of_a_real_server_gives_exact_counts() -> None:
    counts = acceptance.from_meta_info(json.loads(recorded("cpu-sglang-0.5.23/generate.json"))["meta_info"])
    assert counts == Acceptance(verifies=8, source=Source.META_INFO, accepted=16, proposed=24, histogram=(1, 1, 3, 3))


@pytest.mark.parametrize(
    ("path", "verifies", "accepted", "histogram"),
    [
        # 0.5.23 srt/entrypoints/openai/serving_completions.py:473 and serving_chat.py:2729, since 0.5.20 (:466, :2014)
        ("cpu-sglang-0.5.23/completions_stream.txt", 8, 16, (1, 1, 3, 3)),
        ("cpu-sglang-0.5.23/chat_stream.txt", 16, 7, (11, 4, 0, 1)),
    ],
)
def test_the_stream_of_a_real_server_gives_exact_counts(
    path: str, verifies: int, accepted: int, histogram: tuple[int, ...]
) -> None:
    line = next(line for line in recorded(path).splitlines() if b"sglext" in line)
    details = json.loads(line.removeprefix(b"data: "))["sglext"]["spec_tokens_details"]
    counts = acceptance.from_stream_details(details)
    assert counts == Acceptance(
        verifies=verifies, source=Source.STREAM, accepted=accepted, proposed=3 * verifies, histogram=histogram
    )


@pytest.mark.parametrize("verifies", [None, 0, -1, "8", 2.5])
def test_details_without_a_verify_count_are_refused(verifies: object) -> None:
    with pytest.raises(AcceptanceError, match=r"^the stream's spec_tokens_details counts no verify"):
        acceptance.from_stream_details({"spec_verify_ct": verifies, "spec_accept_length": 3.0, "spec_accept_rate": 0.6})


def test_a_plain_server_needs_one_forward_for_every_token_after_the_first() -> None:
    assert acceptance.plain(tokens=128) == Acceptance(verifies=127, source=Source.PLAIN)


# --- /metrics: 0.5.13 srt/observability/metrics_collector.py:1439 and :1634, 0.5.17 :1492 and :1708, 0.5.23 :1866


@pytest.mark.parametrize(
    ("path", "tokens", "verifies"),
    [
        ("h200-sglang-0.5.17/d2.metrics", 520 + 3200, 1781),
        ("cpu-sglang-0.5.23/d2.metrics", 8 + 9600, 4290),
    ],
)
def test_the_counter_of_a_real_server_is_read_over_all_its_labels(path: str, tokens: int, verifies: int) -> None:
    counts = acceptance.from_metrics("", recorded(path).decode(), tokens)
    assert counts == Acceptance(verifies=verifies, source=Source.METRICS)


def test_a_counter_is_the_growth_between_two_readings() -> None:
    before = recorded("h200-sglang-0.5.17/d2.metrics").decode()
    after = before.replace("} 3200.0", "} 3584.0").replace("} 1781.0", "} 1966.0")
    assert acceptance.from_metrics(before, after, tokens=384).verifies == 185


@pytest.mark.parametrize("counted", [0, 383, 385, 768])
def test_tokens_of_other_requests_spoil_the_counter(counted: int) -> None:
    before = recorded("h200-sglang-0.5.17/d2.metrics").decode()
    after = before.replace("} 3200.0", f"}} {3200 + counted}.0").replace("} 1781.0", "} 1966.0")
    with pytest.raises(AcceptanceError, match=rf"^/metrics counted {counted} tokens around a completion of 384"):
        acceptance.from_metrics(before, after, tokens=384)


def test_a_server_that_does_not_speculate_has_no_counter() -> None:
    with pytest.raises(AcceptanceError, match="counted no verify"):
        acceptance.from_metrics("", recorded("cpu-sglang-0.5.23/base.metrics").decode(), tokens=9608)


# --- averages


def test_an_average_gives_an_estimate() -> None:
    assert acceptance.from_average(2.0, tokens=101) == Acceptance(verifies=50, source=Source.AVERAGE)
    assert acceptance.from_average(3.0, tokens=2, source=Source.LOG).verifies == 1


@pytest.mark.parametrize("average", [0.99, 0.0, -1.0, float("nan")])
def test_an_average_below_one_token_a_verify_is_impossible(average: float) -> None:
    with pytest.raises(AcceptanceError, match="impossible"):
        acceptance.from_average(average, tokens=101)


def test_the_log_is_averaged_without_its_first_line() -> None:
    lines = [{"accept len": "1.00"}, {"accept len": "2.00"}, {"#queue-req": "0"}, {"accept len": 3.0}]
    assert acceptance.log_average(lines) == 2.5


@pytest.mark.parametrize("lines", [[], [{"accept len": 2.0}], [{"accept len": 2.0}, {"#running-req": 1}]])
def test_a_log_whose_first_line_alone_has_an_accept_length_gives_none(lines: list[dict[str, float]]) -> None:
    with pytest.raises(AcceptanceError, match=f"^{len(lines)} decode lines"):
        acceptance.log_average(lines)


# --- chunks


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 10])
def test_a_recorded_stream_has_a_chunk_for_each_verify(depth: int) -> None:
    samples = json.loads(recorded(f"cpu-sglang-0.5.23/noise_cpu_d{depth}.json"))
    off = [acceptance.from_chunks(s["chunks"], s["tokens"]).verifies - s["verifies"] for s in samples]
    assert set(off) <= {-1, 0}
    assert off.count(-1) <= 1, "two chunks were joined once in 360 completions"


@pytest.mark.parametrize(("chunks", "tokens"), [(0, 9), (1, 9), (10, 9)])
def test_chunks_that_cannot_be_verifies_are_refused(chunks: int, tokens: int) -> None:
    with pytest.raises(AcceptanceError, match=f"^{chunks} chunks for {tokens} tokens"):
        acceptance.from_chunks(chunks, tokens)


# --- what can't be


def counts(verifies: int, accepted: int | None = None, histogram: tuple[int, ...] | None = None) -> Acceptance:
    return Acceptance(verifies=verifies, source=Source.STREAM, accepted=accepted, histogram=histogram)


@pytest.mark.parametrize(
    "possible",
    [
        counts(4),  # 12 tokens in 4 verifies of 3: just possible
        counts(12),  # no draft ever accepted
        counts(8, accepted=4),
        counts(8, accepted=6),  # the end cut off two accepted drafts
        counts(8, accepted=4, histogram=(5, 2, 1)),
    ],
)
def test_counts_that_fit_thirteen_tokens_at_two_steps_are_believed(possible: Acceptance) -> None:
    assert acceptance.contradiction(possible, tokens=13, depth=2) is None


@pytest.mark.parametrize(
    "impossible",
    [
        counts(3),  # at most 9 tokens
        counts(13),  # more than a verify a token
        counts(8, accepted=3),
        counts(8, accepted=7),
        counts(8, accepted=4, histogram=(5, 2)),  # 7 verifies
        counts(8, accepted=4, histogram=(5, 2, 0, 1)),  # three drafts accepted of two
    ],
)
def test_counts_that_cannot_be_those_of_thirteen_tokens_at_two_steps_are_not(impossible: Acceptance) -> None:
    assert acceptance.contradiction(impossible, tokens=13, depth=2) is not None


def test_two_exact_sources_must_agree_and_chunks_may_be_one_off() -> None:
    stream, metrics = counts(8), Acceptance(verifies=8, source=Source.METRICS)
    assert acceptance.disagreement(stream, metrics) is None
    assert acceptance.disagreement(counts(9), metrics) == "stream counts 9 verifies, metrics 8"
    chunks = acceptance.from_chunks(8, tokens=20)
    assert acceptance.disagreement(stream, chunks) is None
    assert acceptance.disagreement(counts(9), chunks) == "stream counts 9 verifies, chunks 7"
