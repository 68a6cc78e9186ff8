"""Answers in SGLang's forms, for the scripted server; the forms are those of tests/recordings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.scripted_server import Answer, Read, Request, Script, Step

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"

GAP = Read()
"""Between two chunks, so that they are read one by one however busy the machine is, and some time passes."""

DONE = b"data: [DONE]\n\n"


def recorded(path: str) -> bytes:
    """A recording, by its path under tests/recordings."""
    return (RECORDINGS / path).read_bytes()


def event(payload: object) -> bytes:
    """An event with this payload as JSON."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    """A chunk of /v1/completions."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}], "usage": None})


def chat_chunk(finish_reason: str | None = None, **delta: str | None) -> bytes:
    """A chunk of /v1/chat/completions."""
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})


def spec(verifies: int, accepted: int, histogram: Sequence[int] = ()) -> bytes:
    """The chunk that `return_spec_tokens_details` asks for."""
    details = {
        "spec_verify_ct": verifies,
        "spec_num_correct_drafts": accepted,
        "spec_num_proposed_drafts": 3 * verifies,
        "spec_correct_drafts_histogram": list(histogram),
    }
    return event({"choices": [], "usage": None, "sglext": {"spec_tokens_details": details}})


def stream(*steps: Step) -> Answer:
    """An answer with a gap after each step."""
    return Answer([part for step in steps for part in (step, GAP)])


def completion(*texts: str, tokens: int, before_usage: Sequence[bytes] = ()) -> Answer:
    """A good completion: one chunk a text, then what speculation says, usage and the end."""
    chunks = [chunk(text) for text in texts[:-1]] + [chunk(texts[-1], "length")]
    return stream(*chunks, *before_usage, usage(tokens), DONE)


def as_json(payload: object, status: int = 200) -> Answer:
    return Answer([json.dumps(payload).encode()], status, "application/json")


def error(status: int, message: str) -> Answer:
    """An error as SGLang words it before a stream begins."""
    return as_json({"object": "error", "message": message, "type": "X", "param": None, "code": status}, status)


@dataclass
class Sglang:
    """A script that answers like a server which speculates, with the surfaces that a version has.

    Every prompt gets `tokens` tokens in `verifies` verifies at 3 steps.
    """

    tokens: int = 9
    verifies: int = 4
    in_stream: bool = False
    has_metrics: bool = False
    counts_verifies: bool = False
    """Whether `/metrics` has `spec_verify_calls_total`."""
    meta_info: Mapping[str, Any] | None = None
    """What `/generate` says; None: it is not served."""
    average: float | None = None
    lag: int = 0
    """How many readings of `/metrics` miss the latest completion."""
    chunks: int | None = None
    """Chunks of a stream; None: one a verify and the prefill's."""
    miscount: int = 0
    """Verifies that `/metrics` counts too many for each completion."""
    strangers: int = 0
    """Completions of somebody else that run beside each of ours."""
    spoil: Callable[[Request], Answer | None] = lambda _request: None
    """Another answer for some requests."""
    generated: int = 0
    flushed: int = 0
    _late: list[int] = field(default_factory=list)

    def __call__(self, request: Request) -> Answer:
        if spoiled := self.spoil(request):
            return spoiled
        routes: dict[str, Script] = {
            "/v1/completions": self._stream,
            "/metrics": self._metrics,
            "/generate": self._generate,
            "/server_info": self._server_info,
            "/flush_cache": self._flush,
        }
        return routes.get(request.path, lambda _request: error(404, "Not Found"))(request)

    def stream_chat(self) -> Answer:
        """The same completion as a chat."""
        texts = ["x"] * (self.verifies + 1)
        return stream(
            chat_chunk(role="assistant", content=""),
            *(chat_chunk(content=text) for text in texts),
            chat_chunk("length"),
            usage(self.tokens),
            DONE,
        )

    def _stream(self, _request: Request) -> Answer:
        self.generated += 1 + self.strangers
        self._late = [self.lag]
        texts = ["x"] * (self.chunks or self.verifies + 1)
        counts = [spec(self.verifies, self.tokens - 1 - self.verifies)] if self.in_stream else []
        return completion(*texts, tokens=self.tokens, before_usage=counts)

    def _metrics(self, _request: Request) -> Answer:
        if not self.has_metrics:
            return error(404, "Not Found")
        seen = self.generated
        if self._late and self._late[0] > 0:
            self._late[0] -= 1
            seen -= 1
        lines = [f'sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} {seen * self.tokens}.0']
        if self.counts_verifies and seen:
            lines.append(f'sglang:spec_verify_calls_total{{model_name="m"}} {seen * (self.verifies + self.miscount)}.0')
        return Answer(["\n".join(lines).encode() + b"\n"], 200, "text/plain")

    def _generate(self, _request: Request) -> Answer:
        if self.meta_info is None:
            return error(404, "Not Found")
        return as_json({"text": "x" * (self.verifies + 1), "meta_info": dict(self.meta_info)})

    def _server_info(self, _request: Request) -> Answer:
        state = {} if self.average is None else {"avg_spec_accept_length": self.average}
        return as_json({"internal_states": [state]})

    def _flush(self, _request: Request) -> Answer:
        self.flushed += 1
        return Answer([b"Cache flushed."], 200, "text/plain")
