"""An interrupted sweep is gone on with only if what is there is what would be measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.analysis.measurement import Measurement, Refusal
from fixtures.resume import Asked, obstacles, without_port
from tests.kit.builders import measurement, sample

HOST = {"cpu": "some CPU", "gpu_count": 1}
IDENTITY = {"target": "t", "workload": {"max_tokens": 128}}


def stored() -> Measurement:
    first = measurement(2, samples=(sample("a"), sample("b")))
    server = replace(first.server, version="0.5.23", arguments=("python", "--port", "1", "--x"), environment={"A": "1"})
    return replace(first, profile="p", server=server, host={**HOST, "load_1min": 3.0}, identity=IDENTITY)


def asked(**changes: object) -> Asked:
    same = Asked(
        profile="p",
        arguments=("python", "--port", "2", "--x"),
        environment={"A": "1"},
        version="0.5.23",
        host=HOST,
        identity=IDENTITY,
        completions=frozenset({("a", 0), ("b", 0)}),
    )
    return replace(same, **changes)  # type: ignore[arg-type]


def test_the_same_measurement_is_taken_whatever_its_port_and_load() -> None:
    assert obstacles(stored(), asked()) == ()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"profile": "q"}, "profile: 'p' → 'q'"),
        ({"mark": "the engine alone"}, "mark: '' → 'the engine alone'"),
        ({"arguments": ("python", "--port", "2", "--y")}, "arguments: 'python --x' → 'python --y'"),
        ({"environment": {"A": "2"}}, "environment.A: '1' → '2'"),
        ({"version": "0.5.24"}, "SGLang: '0.5.23' → '0.5.24'"),
        ({"host": {"cpu": "some CPU", "gpu_count": 2}}, "host.gpu_count: 1 → 2"),
        (
            {"identity": {"target": "t", "workload": {"max_tokens": 64}}},
            "identity.workload.max_tokens: 128 → 64",
        ),
        ({"completions": frozenset({("a", 0), ("b", 0), ("a", 1)})}, "completions: 2 of 3 are there"),
    ],
)
def test_what_differs_is_named(changes: dict[str, object], line: str) -> None:
    assert obstacles(stored(), asked(**changes)) == (line,)


def test_a_version_that_is_not_told_beforehand_is_not_compared() -> None:
    assert obstacles(stored(), asked(version="unknown")) == ()


def test_a_refused_completion_counts_as_done() -> None:
    one = replace(stored(), samples=(sample("a"),), refusals=(Refusal("b", 0, "HTTP 500"),))
    assert obstacles(one, asked()) == ()


def test_the_port_is_another_at_every_boot() -> None:
    assert without_port(("x", "--port", "30000", "--tp", "8")) == ("x", "--tp", "8")
    assert without_port(("x", "--tp", "8")) == ("x", "--tp", "8")
