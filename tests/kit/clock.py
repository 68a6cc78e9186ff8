"""Time that only sleeping moves."""

from __future__ import annotations


class Time:
    """`clock` and `sleep` for code that takes both; starts at 0."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
