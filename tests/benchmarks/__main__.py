"""What reading streams costs, and how far the times of chunks are off: `python -m tests.benchmarks`.

A stub in a process of its own sends a chunk every 5 ms to each stream and remembers when. Three clients read them, one
after the other, each in a process of its own: this suite's, the openai SDK's ordinary loop, and the function of
`sglang.bench_serving`. On a machine that does something else meanwhile the figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median

from tabulate import tabulate

from tests.benchmarks.clients import CLIENTS
from tests.benchmarks.stub import GAP_S
from tests.kit.programs import serving_program

ROOT = Path(__file__).resolve().parent.parent.parent
STREAMS = (1, 16, 64)
HEADERS = ("client", "streams", "CPU µs per chunk", "time error ms, p50", "p99", "worst", "of first chunks, p50")
Row = tuple[float, float, float, float, float]
"""CPU µs per chunk; milliseconds between sending and reading: median, 99th percentile, most; median of first chunks."""


def stub() -> AbstractContextManager[str]:
    """The address of a stub."""
    return serving_program("tests.benchmarks.stub")


def read(name: str, url: str, streams: int, chunks: int) -> Row:
    """One client on so many streams."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "fixtures/engine/inside/cpu")])
    cpu = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    words = [sys.executable, "-m", "tests.benchmarks.clients", name, url, str(streams), str(chunks)]
    environment = {**os.environ, **(cpu if name == "bench_serving" else {})}
    printed = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    seen = json.loads(printed.splitlines()[-1])
    with urllib.request.urlopen(f"{url}/times") as answer:
        sent = json.load(answer)
    return row(seen["cpu_s"], {n: sent[n] for n in seen["came"]}, seen["came"])


def row(cpu_s: float, sent: dict[str, list[float]], came: dict[str, list[float]]) -> Row:
    """The figures; ValueError where chunks got lost or were counted twice."""
    late = sorted(1e3 * (b - a) for n in came for a, b in zip(sent[n], came[n], strict=True))
    first = median(1e3 * (came[n][0] - sent[n][0]) for n in came)
    return 1e6 * cpu_s / len(late), median(late), late[int(0.99 * (len(late) - 1))], late[-1], first


def table(rounds: int, chunks: int, streams: tuple[int, ...]) -> str:
    """Medians over the rounds, in each of which the clients take turns; the worst is of all rounds."""
    names = [n for n in CLIENTS if n != "bench_serving" or importlib.util.find_spec("sglang")]
    rows: dict[tuple[int, str], list[Row]] = {}
    with stub() as url:
        for _ in range(rounds):
            for n in streams:
                for name in names:
                    rows.setdefault((n, name), []).append(read(name, url, n, chunks))
    lines = [(name, n, *_told(seen)) for (n, name), seen in rows.items()]
    return tabulate(lines, headers=HEADERS, disable_numparse=True, colalign=("left", *["right"] * 6))


def _told(rows: list[Row]) -> tuple[str, ...]:
    cpu, middle, high, worst, first = zip(*rows, strict=True)
    usual = (f"{median(cpu):.1f}", f"{median(middle):.2f}", f"{median(high):.2f}")
    return (*usual, f"{max(worst):.1f}", f"{median(first):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=400, help="of each stream")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    asked = parser.parse_args()
    print(
        f"{asked.chunks} chunks a stream, one every {1e3 * GAP_S:g} ms, {asked.rounds} rounds; load before: "
        f"{os.getloadavg()[0]:.2f} on {os.cpu_count()} cores",
        flush=True,
    )
    print(table(asked.rounds, asked.chunks, tuple(asked.streams)))
    print(f"Load after: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
