"""From a server's output to its log: secrets hidden wherever the stream is cut, and a log that can't be written."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.engine.log_pump import KEPT, LogPump, Redactor, create

RECORDINGS = Path(__file__).resolve().parent / "recordings"
SECRET = "0123456789abcdef0123456789abcdef"


def through(redactor: Redactor, *chunks: bytes) -> bytes:
    return b"".join(map(redactor.feed, chunks)) + redactor.flush()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_secret_is_hidden_wherever_the_stream_is_cut() -> None:
    text = f"a key '{SECRET}', again {SECRET}{SECRET}.".encode()
    for cut in range(len(text) + 1):
        assert through(Redactor([SECRET]), text[:cut], text[cut:]) == b"a key '[hidden]', again [hidden][hidden]."


def test_a_secret_that_comes_byte_by_byte_is_hidden() -> None:
    text = f"x{SECRET}y".encode()
    assert through(Redactor([SECRET]), *(text[i : i + 1] for i in range(len(text)))) == b"x[hidden]y"


def test_text_that_only_begins_like_a_secret_is_shown() -> None:
    assert through(Redactor([SECRET]), b"0123", b"4567 and 0123") == b"01234567 and 0123"


def test_what_can_be_shown_is_shown_at_once() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"a whole line\n") == b"a whole line\n"
    assert redactor.feed(b"its beginning: 012") == b"its beginning: "


def test_of_two_secrets_the_longer_one_goes_first() -> None:
    assert through(Redactor(["abcdef", "abcdef123"]), b"abcdef123 abcdef") == b"[hidden] [hidden]"


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    assert through(Redactor([SECRET]), b"\xff\xfe\x00\xc3") == b"\xff\xfe\x00\xc3"


def test_sglangs_own_line_with_the_key_in_it_is_hidden() -> None:
    recorded = (RECORDINGS / "cpu-sglang-0.5.23" / "boot_failure_port_taken.log").read_bytes()
    assert recorded.count(SECRET.encode()) == 1
    shown = through(Redactor([SECRET]), recorded)
    assert b"'api_key': '[hidden]'" in shown
    assert SECRET.encode() not in shown


def test_the_log_can_be_read_while_the_server_writes(tmp_path: Path) -> None:
    source, output = os.pipe()
    pump = LogPump(source, create(tmp_path / "log"), [])
    os.write(output, b"first\n")
    assert eventually(lambda: (tmp_path / "log").read_bytes() == b"first\n")
    assert pump.since(0) == ("first\n", 6)
    os.write(output, b"second\n")
    assert eventually(lambda: pump.since(6) == ("second\n", 13))
    os.close(output)
    pump.finish(5)


def test_of_a_flood_the_newest_is_kept_in_memory(tmp_path: Path) -> None:
    source, output = os.pipe()
    pump = LogPump(source, create(tmp_path / "log"), [])
    for _ in range(5 * KEPT // 65536):
        os.write(output, b"x" * 65535 + b"\n")
    os.write(output, b"the end")
    os.close(output)
    pump.finish(5)
    text, position = pump.since(0)
    assert position == (tmp_path / "log").stat().st_size
    assert KEPT <= len(text) <= 2 * KEPT
    assert text.endswith("the end")


def test_what_a_full_disk_lost_is_said_once_there_is_room(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: it fails as one does, and can be lifted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    source, output = os.pipe()
    pump = LogPump(source, create(tmp_path / "log"), [])
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        os.write(output, b"0123456789lost")
        assert eventually(lambda: pump.lost_bytes == 4)
        assert pump.lost_reason == os.strerror(errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    os.write(output, b"kept")
    os.close(output)
    pump.finish(5)
    assert (tmp_path / "log").read_text() == "0123456789\n[4 bytes of this log were lost: File too large]\nkept"


def test_a_new_log_is_empty_and_its_owners_own(tmp_path: Path) -> None:
    log = tmp_path / "run" / "log"
    log.parent.mkdir(mode=0o755)
    log.write_text("of an earlier run")
    log.chmod(0o644)
    os.close(create(log))
    assert log.read_text() == ""
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        create(tmp_path)
