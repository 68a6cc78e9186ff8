"""What collecting costs: whoever only lists tests, or runs others, doesn't wait for what measuring takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("filelock", "httpx", "matplotlib", "numpy", "openai", "rich", "scipy", "sglang", "tabulate", "torch")
"""Some of what measuring, judging and reporting take."""
LISTS = "import sys, pytest; code = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', *sys.argv[1:]])"
TELLS = f"{LISTS}; print('imported:', *(m for m in sys.modules if m.startswith(%r))); sys.exit(code)"


def imported(names: str | tuple[str, ...], *arguments: str) -> tuple[str, list[str]]:
    """What listing tests prints, and which modules that begin like this it imports."""
    words = [sys.executable, "-c", TELLS % (names,), *arguments]
    seen = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return seen, seen.splitlines()[-1].split()[1:]


def test_collecting_perf_imports_nothing_that_only_measuring_takes() -> None:
    listed, there = imported(HEAVY, "perf")
    assert "test_eagle3_throughput_holds_its_floor[steps02]" in listed
    assert not there


def test_collecting_other_tests_imports_nothing_of_what_perf_takes() -> None:
    taken = ("fixtures.analysis", "fixtures.day", "fixtures.profiles", "fixtures.session", "pydantic", "pynvml")
    listed, there = imported(taken, "tests/test_collecting.py")
    assert "test_collecting_other_tests" in listed
    assert not there


@pytest.mark.parametrize("option", ["--collect-only", "--perf-preflight"])
def test_a_python_without_the_suites_needs_is_told_what_to_install(option: str, tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text("raise ModuleNotFoundError(\"No module named 'psutil'\", name='psutil')")
    words = [sys.executable, "-m", "pytest", "perf", option, "-p", "no:cacheprovider"]
    seen = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert seen.returncode == pytest.ExitCode.USAGE_ERROR
    assert seen.stderr.strip() == (
        f"ERROR: No module named 'psutil' in {sys.executable}; install the suite's needs: pip install -e {ROOT}"
    )


def cpu_s(bytecode: Path, *arguments: str) -> float:
    """Seconds of CPU that listing takes, with bytecode kept in this folder as elsewhere beside the sources."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, "-c", f"{LISTS}; sys.exit(code)", *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPYCACHEPREFIX": str(bytecode)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == pytest.ExitCode.OK
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_the_plugin_adds_at_most_0_3_seconds_of_cpu_to_collecting_perf(tmp_path: Path) -> None:
    """Beside the same files without it, by turns, each at its best."""
    pairs = [(cpu_s(tmp_path, "--noconftest", "perf"), cpu_s(tmp_path, "perf")) for _ in range(8)]
    without, beside = map(min, zip(*pairs, strict=True))
    print(f"{without:.3f} s without the plugin, {beside:.3f} s with it")
    assert beside - without <= 0.3
