"""A stand-in for SGLang's server: a program that takes its flags and plays a script of faults.

`python server_program.py --script JSON --host H --port P …`; the script is a list of [step, argument, …].
`script_launch` gives the launch of one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

FIRED_UP = "[2026-11-29 15:50:31] The server is fired up and ready to roll!"
GOOD = [["serve"], ["print", FIRED_UP], ["hang"]]
"""Boots, answers, and ends well on SIGTERM."""


def script_launch(script: Sequence[Sequence[Any]], *extra: str, **environment: str) -> Callable[[int], Any]:
    """The launch of a scripted server on a port."""
    from fixtures.engine.command import Launch  # noqa: PLC0415 - the program itself runs without the suite

    def on(port: int) -> Launch:
        flags = ("--host", "127.0.0.1", "--port", str(port), "--api-key", KEY, *extra)
        argv = (sys.executable, str(Path(__file__)), "--script", json.dumps(script), *flags)
        return Launch(argv, environment, Path(__file__).parents[2], "127.0.0.1", port, KEY)

    return on


KEY = "0123456789abcdef0123456789abcdef"


class _Health(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        status, body = self.server.answer(self.path, self.headers.get("Authorization", ""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        print(f"[2026-11-29 15:50:31] INFO:     {format % args}", flush=True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], key: str, statuses: list[int], info: dict[str, Any]) -> None:
        super().__init__(address, _Health)
        self._key, self._statuses, self._info = key, statuses, info

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if path.startswith("/health"):
            status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
            return status, b""
        if path == "/server_info" and authorization == f"Bearer {self._key}":
            return 200, json.dumps(self._info).encode()
        return (401, b'{"error":"Unauthorized"}') if path == "/server_info" else (404, b"")


def _forever() -> None:
    while True:
        time.sleep(60)


class Program:
    """One method per step."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._address, self._key = (host, port), key

    def play(self, script: Sequence[Sequence[Any]]) -> None:
        for step, *arguments in script:
            getattr(self, step)(*arguments)

    def print(self, text: str) -> None:
        print(text.format(host=self._address[0], port=self._address[1], key=self._key), flush=True)

    def print_file(self, path: str) -> None:
        sys.stdout.buffer.write(Path(path).read_bytes())
        sys.stdout.flush()

    def print_bytes(self, hexadecimal: str) -> None:
        sys.stdout.buffer.write(bytes.fromhex(hexadecimal))
        sys.stdout.flush()

    def flood(self, megabytes: int) -> None:
        block = (b"x" * 99 + b"\n") * 10_000
        for _ in range(megabytes):
            sys.stdout.buffer.write(block)
        sys.stdout.flush()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hang(self) -> None:
        _forever()

    def exit(self, code: int) -> None:
        sys.exit(code)

    def kill_self(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, text: str) -> None:
        raise RuntimeError(text)

    def ignore_sigterm(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def serve(self, statuses: Sequence[int] = (200,), info: dict[str, Any] | None = None) -> None:
        """Binds as uvicorn does and says so in its words if it can't."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            server = _Server(self._address, self._key, list(statuses), info or {})
        except OSError as error:
            what = f"error while attempting to bind on address {self._address!r}: {(error.strerror or '').lower()}"
            self.print(f"[2026-11-29 15:50:31] ERROR:    [Errno {error.errno}] {what}")
            # SGLang's leader then waits for its warm-up to give up.
            _forever()
        Thread(target=server.serve_forever, daemon=True).start()

    def worker(self) -> None:
        """A child as SGLang's schedulers are: spawned by multiprocessing. Prints its pid."""
        child = multiprocessing.get_context("spawn").Process(target=_forever)
        child.start()
        self.print(f"worker {child.pid}")

    def grandchild(self, *, ignoring_sigterm: bool = False) -> None:
        """A child in a session of its own that outlives us. Prints its pid."""
        ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " if ignoring_sigterm else ""
        code = f"{ignore}import time; print('ready', flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        child.stdout.readline()
        self.print(f"grandchild {child.pid}")

    def orphan(self) -> None:
        """A grandchild whose parent is gone at once: it was never seen as anybody's descendant. Prints its pid."""
        code = (
            "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
            "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(p.pid)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.print(f"orphan {done.stdout.strip()}")

    def orphan_at_the_end(self) -> None:
        """On SIGTERM, an orphan and the end."""

        def end(*_: object) -> None:
            self.orphan()
            os._exit(0)

        signal.signal(signal.SIGTERM, end)


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("script", "host", "port", "api-key"):
        parser.add_argument(f"--{flag}")
    known, _ = parser.parse_known_args()
    Program(known.host, int(known.port), known.api_key).play(json.loads(known.script))


if __name__ == "__main__":
    main()
