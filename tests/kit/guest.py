"""A small project that gates measurements with the real replay and storage: pytest runs it as a guest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures.analysis.measurement import Measurement, to_json
from tests.kit import builders

CONFTEST = """
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import benchmark_storage

SETTINGS = json.loads(Path(__file__).with_name("settings.json").read_text())


def pytest_configure(config):
    if problem := benchmark_storage.compare_problem(config):
        raise pytest.UsageError(problem)
    gate = benchmark_storage.Gate(config, **SETTINGS["gate"])
    config.pluginmanager.register(gate)


def pytest_benchmark_generate_machine_info():
    return SETTINGS["machine"]
"""

PERF = """
from pathlib import Path

import pytest

from fixtures import replay
from fixtures.analysis.measurement import from_json

MEASURED = {m.depth: m for m in (from_json(p.read_text()) for p in sorted(Path("measured").iterdir()))}


@pytest.fixture(scope="session", autouse=True)
def boots():
    print("A server boots")


@pytest.fixture
def replayed(benchmark):
    return lambda measurement: replay.replay(
        benchmark, measurement, baseline=MEASURED[0], throughput_floor=1.5, accept_length_floor=1.8
    )


@pytest.mark.parametrize("depth", MEASURED)
def test_throughput(depth, replayed):
    replayed(MEASURED[depth])
    assert depth == 0 or MEASURED[depth].throughput / MEASURED[0].throughput >= 1.5, "falls short"
"""

MACHINE = {
    "node": "night-1",
    "release": "6.1.0-1",
    "system": "Linux",
    "machine": "x86_64",
    "python_version": "3.11.7",
    "cpu": {"brand_raw": "AMD EPYC", "count": 2, "hz_actual": [2445428000, 0], "flags": ["avx"]},
}


class Guest:
    """The project, and what its next run finds: measurements, machine, profile."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        # A guest is no worker, where the tests themselves are shared among several: there pytest-benchmark is off.
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        self.pytester = pytester
        self.settings: dict[str, Any] = {
            "machine": dict(MACHINE),
            "gate": {"profile": "cpu-tiny", "host_facts": {"accelerators": ["H200"]}, "depths_left_out": []},
        }
        self.measure(builders.measurement(0), builders.measurement(2))
        self.write("conftest.py", CONFTEST)
        self.write("perf/test_eagle3.py", PERF)

    def write(self, path: str, text: str) -> None:
        file = self.pytester.path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def measure(self, *measurements: Measurement) -> None:
        """What the next run replays; earlier measurements of other depths stay."""
        for measurement in measurements:
            self.write(f"measured/{measurement.depth:02}.json", to_json(measurement))

    def run(self, *options: str, paths: tuple[str, ...] = ("perf",)) -> pytest.RunResult:
        self.write("settings.json", json.dumps(self.settings))
        plugins = ("-p", "pytest_benchmark.plugin", "-p", "no:cacheprovider")
        return self.pytester.runpytest_inprocess(*paths, *plugins, *options, no_reraise_ctrlc=True)

    def shell(self, line: str) -> int:
        """Exit status of a line of shell, run in the project with this Python and its tools first in the path."""
        self.write("settings.json", json.dumps(self.settings))
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        root = str(builders.RECORDINGS.parent.parent)
        environment = {**os.environ, "PATH": path, "PYTHONPATH": root, "PYTEST_PLUGINS": "pytest_benchmark.plugin"}
        done = subprocess.run(["sh", "-c", line], cwd=self.pytester.path, env=environment, timeout=60, check=False)
        return done.returncode

    def saved(self) -> list[Path]:
        """Files of the storage, oldest first."""
        return sorted((self.pytester.path / ".benchmarks").glob("*/*.json"))
