"""The server's own account of itself, from recordings and over real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fixtures.engine.server_info import InfoError, fetch, reported

RECORDINGS = Path(__file__).resolve().parent / "recordings"
KEY = "0123456789abcdef"
Answer = tuple[int, bytes]


def recorded(path: str) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((RECORDINGS / path).read_text(encoding="utf-8"))
    return info


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("cpu-sglang-0.5.23/d2.info.json", {"version": "0.5.23", "dtype": "float32", "disable_overlap_schedule": True}),
        ("h200-sglang-0.5.17/d2.info.json", {"version": "0.5.17", "dtype": "auto", "disable_overlap_schedule": False}),
    ],
)
def test_a_recorded_account_is_reduced_to_what_matters(path: str, expected: dict[str, Any]) -> None:
    speculation = {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 2,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 3,
        "speculative_adaptive": False,
        "tp_size": 1,
    }
    told = reported(recorded(path))
    assert {key: told[key] for key in {**expected, **speculation}} == {**expected, **speculation}
    assert told["max_running_requests"] == told["effective_max_running_requests_per_dp"]


def test_the_baseline_reports_that_it_does_not_speculate() -> None:
    told = reported(recorded("h200-sglang-0.5.17/base.info.json"))
    assert told["speculative_algorithm"] is None
    assert told["speculative_num_steps"] is None


def test_no_secret_is_among_what_matters() -> None:
    info = recorded("cpu-sglang-0.5.23/d2.info.json")
    info |= {"api_key": KEY, "admin_api_key": KEY, "launch_command": f"--api-key {KEY}"}
    info["internal_states"][0] |= {"api_key": KEY, "admin_api_key": KEY}
    assert KEY not in json.dumps(reported(info))


def test_the_live_depth_stands_above_the_one_asked_for() -> None:
    told = reported({"speculative_num_steps": 3, "internal_states": [{"speculative_num_steps": 1}]})
    assert told == {"speculative_num_steps": 1}


def test_schedulers_that_differ_are_all_told() -> None:
    told = reported({"internal_states": [{"speculative_num_steps": 3}, {"speculative_num_steps": 1}]})
    assert told == {"speculative_num_steps": [3, 1]}


def test_what_a_version_does_not_tell_is_left_out() -> None:
    # 0.4.0: srt/server.py:155 has no internal_states
    assert reported({"version": "0.4.0", "tp_size": 1}) == {"version": "0.4.0", "tp_size": 1}


# --- over a socket


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Answer]], str]]:
    """The URL of a server that gives these answers, and 404 to anything else."""
    running: list[HTTPServer] = []

    def start(answers: dict[str, Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, b""))
                if status == 200 and self.headers["Authorization"] != f"Bearer {KEY}":
                    status, body = 401, b'{"error":"Unauthorized"}'
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_the_account_is_fetched_with_the_key(serve: Callable[[dict[str, Answer]], str]) -> None:
    assert fetch(serve({"/server_info": (200, b'{"version": "0.5.23"}')}), KEY) == {"version": "0.5.23"}


def test_an_old_server_is_asked_under_its_old_name(serve: Callable[[dict[str, Answer]], str]) -> None:
    assert fetch(serve({"/get_server_info": (200, b'{"version": "0.5.2"}')}), KEY) == {"version": "0.5.2"}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, "knows neither /server_info nor /get_server_info"),
        ({"/server_info": (500, b"")}, "answered HTTP 500"),
        ({"/server_info": (200, b"<html>")}, "isn't JSON: b'<html>'"),
        ({"/server_info": (200, b"[]")}, r"isn't an object: b'\[\]'"),
    ],
)
def test_a_server_that_tells_nothing_is_a_clear_error(
    serve: Callable[[dict[str, Answer]], str], answers: dict[str, Answer], told: str
) -> None:
    with pytest.raises(InfoError, match=told):
        fetch(serve(answers), KEY)


def test_a_wrong_key_is_said(serve: Callable[[dict[str, Answer]], str]) -> None:
    with pytest.raises(InfoError, match=r"refuses the key \(HTTP 401\)"):
        fetch(serve({"/server_info": (200, b"{}")}), "another")


def test_a_server_that_is_gone_is_said() -> None:
    with pytest.raises(InfoError, match=r"doesn't answer: .*Connection refused"):
        fetch("http://127.0.0.1:1", KEY)
