"""A scripted server as a process of its own, which kills itself in the middle of the n-th completion.

`python -m tests.kit.mortal_server N` prints its address on the first line.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading

from tests.kit.answers import GAP, chunk, completion, error
from tests.kit.scripted_server import Answer, Request, serving


def main(last: int) -> None:
    numbers = itertools.count(1)

    def script(request: Request) -> Answer:
        if request.path != "/v1/completions":
            return error(404, "Not Found")
        if next(numbers) < last:
            return completion("a", "b", "c", tokens=3)
        return Answer([chunk("a"), GAP, lambda: os.kill(os.getpid(), signal.SIGKILL)])

    with serving(script) as server:
        print(server.url, flush=True)
        threading.Event().wait(60)


if __name__ == "__main__":
    main(int(sys.argv[1]))
