"""A plugin for pytest (`-p tests.kit.soak`): what the process holds after each test, one JSON line each in $SOAK."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "teardown":
        return
    process = psutil.Process()
    held = {
        "test": report.nodeid,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "children": len(process.children(recursive=True)),
        "memory": process.memory_info().rss,
    }
    with Path(os.environ["SOAK"]).open("a") as file:
        file.write(json.dumps(held) + "\n")
