"""A scripted server as a process of its own that sends at a steady pace and remembers when.

`python -m tests.kit.paced_server CHUNKS TOKENS GAP_S` prints its address on the first line. Each completion has so many
chunks with so many tokens together; `/times` gives the seconds from its first chunk to its last, as they were sent.
Usage comes only if it is asked for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

from tests.kit.answers import DONE, as_json, chunk, error, usage
from tests.kit.scripted_server import Answer, Pause, Request, Step, serving


def main(chunks: int, tokens: int, gap_s: float) -> None:
    sent: list[float] = []

    def steps(asks_usage: bool) -> Iterator[Step]:
        sent.clear()
        for n in range(chunks):
            yield lambda: sent.append(time.perf_counter())
            yield chunk("several words", "stop" if n == chunks - 1 else None)
            if n < chunks - 1:
                yield Pause(gap_s)
        if asks_usage:
            yield usage(tokens)
        yield DONE

    def script(request: Request) -> Answer:
        if request.path == "/v1/completions":
            return Answer(steps(bool(request.json.get("stream_options"))))
        if request.path == "/times":
            return as_json({"chunks": len(sent), "decode_s": sent[-1] - sent[0]})
        return error(404, "Not Found")

    with serving(script) as server:
        print(server.url, flush=True)
        threading.Event().wait(120)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
