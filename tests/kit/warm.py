"""A Python that has imported what pytest and the suite need of others, and forks a real pytest on demand.

Imports of SciPy and the openai SDK are two of the three seconds that a short run takes. Each run is a process of its
own, in a session of its own, with nothing of `fixtures` or of any plugin imported before it starts.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "anyio._backends._asyncio",
    "filelock",
    "h11",
    "httpcore",
    "openai.resources.chat",
    "openai.resources.completions",
    "psutil",
    "pydantic",
    "rich.progress",
    "scipy.optimize",
    "scipy.stats",
    "tabulate",
)
MOST = 1 << 20
"""Bytes of a request."""


class Warm:
    """Starts runs. The process that uses it must be a subreaper (PR_SET_CHILD_SUBREAPER) to become their parent."""

    def __init__(self, channel: socket.socket, bytecode: str) -> None:
        self._channel = channel
        self._bytecode = bytecode

    def start(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], output: int, folder: Path = ROOT
    ) -> int:
        """The pid of a run of pytest in the folder, a checkout; stdout and stderr go to the file descriptor."""
        kept = without_bytecode(environment)
        if folder == ROOT:  # a copy has what is compiled beside it
            kept["PYTHONPYCACHEPREFIX"] = self._bytecode
        request = json.dumps({"arguments": list(arguments), "environment": kept, "folder": str(folder)})
        socket.send_fds(self._channel, [request.encode()], [output])
        return int(self._channel.recv(32))


@contextmanager
def warmed() -> Iterator[Warm]:
    """Ends with its last user."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
    program = [sys.executable, "-m", "tests.kit.warm", str(theirs.fileno())]
    with ours, TemporaryDirectory(prefix="bytecode-") as bytecode:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a fork keeps no threads
        process = subprocess.Popen(program, pass_fds=[theirs.fileno()], cwd=ROOT, env=environment)
        theirs.close()
        yield Warm(ours, bytecode)
        ours.close()
        process.wait(10)


def without_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the wish that nothing compiled be kept: pytest's rewriting takes a second without."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def serve(channel: socket.socket) -> None:
    """Returns in a process that is to run pytest, its arguments in sys.argv; never returns in this one."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, MOST, 1)
        if not request:
            os._exit(0)
        told, tell = os.pipe()
        if middle := os.fork():
            os.close(tell)
            os.close(descriptors[0])
            os.waitpid(middle, 0)
            channel.send(os.read(told, 32))
            os.close(told)
        elif pid := os.fork():
            os.write(tell, str(pid).encode())
            os._exit(0)  # so that the run has no parent but the subreaper
        else:
            channel.close()
            os.close(told)
            os.close(tell)
            become(json.loads(request), descriptors[0])
            return


def become(request: Mapping[str, Any], output: int) -> None:
    """This process, as if it had been started so."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, output, output)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    sys.path[1:1] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.argv = ["pytest", *request["arguments"]]


def main() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(pytest.main())


if __name__ == "__main__":
    main()
