"""The suite's options: what is refused while they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures import plugin


class Options:
    """Stands where pytest's parser does, and keeps what is added."""

    def __init__(self) -> None:
        self.added: dict[str, dict[str, Any]] = {}

    def getgroup(self, *_: str) -> Options:
        return self

    def addoption(self, name: str, **how: Any) -> None:
        self.added[name] = how


@pytest.fixture
def taking_values() -> dict[str, dict[str, Any]]:
    options = Options()
    plugin.pytest_addoption(options)  # type: ignore[arg-type]
    return {name: how for name, how in options.added.items() if how.get("action") != "store_true"}


@pytest.mark.parametrize("word", ["", " "])
def test_an_empty_value_is_refused_whatever_the_option(taking_values: dict[str, dict[str, Any]], word: str) -> None:
    assert {"--perf-profile", "--perf-results", "--perf-server", "--perf-wait"} < taking_values.keys()
    for name, how in taking_values.items():
        with pytest.raises(pytest.UsageError, match=f"^{name}: the value is empty, .*; give .*, or leave {name} out"):
            how["type"](word)


@pytest.mark.parametrize("word", ["-5", "-0.1", "nan", "soon"])
def test_what_is_no_time_to_wait_is_refused(taking_values: dict[str, dict[str, Any]], word: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"^--perf-wait {word}: give seconds, 0 or more, .*Nothing was booted"):
        taking_values["--perf-wait"]["type"](word)
    assert taking_values["--perf-wait"]["type"]("0") == 0.0


def test_a_value_is_read_as_what_the_option_takes(taking_values: dict[str, dict[str, Any]]) -> None:
    assert taking_values["--perf-results"]["type"]("here") == Path.cwd() / "here"
    assert taking_values["--perf-wait"]["type"]("2.5") == 2.5
    assert taking_values["--perf-accept"]["type"]("a new draft") == "a new draft"
