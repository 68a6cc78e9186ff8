"""Where a sweep stands, told to a terminal and to a CI log."""

from __future__ import annotations

import io

from fixtures.report.progress import Teller, booting, measuring


def teller(lines: list[str], now: list[float], terminal: io.StringIO | None = None) -> Teller:
    return Teller(lines.append, terminal=terminal, clock=lambda: now[0])


def test_a_ci_log_gets_a_line_every_half_minute() -> None:
    lines: list[str] = []
    now = [0.0]
    telling = teller(lines, now)
    for now[0] in range(100):
        telling.now(f"at {now[0]}")
    assert lines == ["at 30", "at 60", "at 90"]


def test_a_line_that_stays_puts_off_the_next_of_the_passing_ones() -> None:
    lines: list[str] = []
    now = [0.0]
    telling = teller(lines, now)
    now[0] = 29.0
    telling.say("booted")
    now[0] = 31.0
    telling.now("measuring")
    assert lines == ["booted"]


def test_a_terminal_gets_a_live_line_that_goes_away() -> None:
    lines: list[str] = []
    terminal = io.StringIO()
    telling = teller(lines, [0.0], terminal)
    telling.now("weights 40 %")
    telling.now("weights 80 %")
    telling.say("booted")
    assert lines == ["booted"]
    drawn = terminal.getvalue()
    assert "weights 40 %" in drawn
    assert "weights 80 %" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is erased before the one that stays is written


def test_a_boot_is_told_with_the_time_that_the_last_one_took() -> None:
    assert booting("2 steps", "weights", "40 %", 12.4, 62.0) == "2 steps: boot, weights 40 %, 12 of about 62 s"
    assert booting("baseline", "start", "", 3.0, None) == "baseline: boot, start, 3 s"


def test_a_measurement_is_told_by_its_completions() -> None:
    assert measuring("2 steps", 3, 24) == "2 steps: 3 of 24 completions"
