"""What a session says of its failures."""

from __future__ import annotations

import pytest

from fixtures.watching import told_again


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("2 steps gave no measurement. The disk is full.", "2 steps gave no measurement. The disk is full."),
        ("2 steps gave no measurement.\nWhy: …", "2 steps gave no measurement. (told in full above)"),
        ("x" * 116, "x" * 116),
        ("x" * 117, "x" * 93 + " … (told in full above)"),
        ("x" * 117 + "\nWhy: …", "x" * 93 + " … (told in full above)"),
    ],
    ids=["whole", "several-lines", "a-line", "longer", "both"],
)
def test_what_was_told_before_takes_a_line_and_says_so_only_where_something_is_cut(text: str, again: str) -> None:
    assert told_again(text) == again
