"""A headless Chromium, driven over the pipe of its own protocol (CDP): no port, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
REQUIRED = os.environ.get("EAGLE3_BROWSER") == "required"
"""Whether tests fail where there is none, instead of being skipped."""
OPTIONS = (
    "--headless",
    "--no-sandbox",  # root in a container has no other way
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TAKE_PIPES = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
"""The protocol's pipes are descriptors 3 and 4."""


class Page:
    """One tab, and all that happened in it."""

    def __init__(self, ask: int, answers: int) -> None:
        self._ask = ask
        self._answers = os.fdopen(answers, "rb", closefd=False)
        self._count = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The protocol's answer; events that come meanwhile are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._ask, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._answers.read(1)) not in {b"\0", b""}:
            text += byte
        assert text, "Chromium closed its pipe"
        answer: dict[str, Any] = json.loads(text)
        return answer

    def show(self, width: int, height: int, *, scheme: str) -> None:
        """A window of this size, for somebody who prefers "light" or "dark"."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Returns when the page has loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, script: str) -> Any:
        """What a JavaScript expression evaluates to."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}[key])

    def seen(self, *methods: str) -> list[dict[str, Any]]:
        """Events of these kinds since the page was opened."""
        return [e["params"] for e in self.events if e.get("method") in methods]

    def screenshot(self, path: Path) -> None:
        """What the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A tab of a browser of its own, whose profile lies in `folder`; nothing of it is left afterwards."""
    assert PROGRAM, "no Chromium here, though EAGLE3_BROWSER=required"
    (for_browser, ask), (answers, for_us) = os.pipe(), os.pipe()
    command = [PROGRAM, *OPTIONS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_PIPES, str(for_browser), str(for_us), *command],
        pass_fds=(for_browser, for_us),
        stderr=subprocess.DEVNULL,
    )
    os.close(for_browser)
    os.close(for_us)
    try:
        yield Page(ask, answers)
    finally:
        _end(process)
        os.close(ask)
        os.close(answers)


def _end(process: subprocess.Popen[bytes]) -> None:
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        if member.is_running():
            member.kill()
    process.wait()
    psutil.wait_procs(family, timeout=10)
