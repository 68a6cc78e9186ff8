"""Samples and measurements for tests: round numbers by default, or what a recording holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.analysis.measurement import Measurement, Sample, ServerFacts

RECORDINGS = Path(__file__).resolve().parent.parent / "recordings"


def sample(
    prompt: str = "p0",
    *,
    repeat: int = 0,
    tokens: int = 101,
    decode_s: float = 0.5,
    verifies: int = 50,
    ttft_s: float = 0.02,
) -> Sample:
    """200 tok/s, accept length 2, 10 ms per cycle."""
    return Sample(
        prompt=prompt,
        source="test",
        repeat=repeat,
        tokens=tokens,
        verifies=verifies,
        accepted_histogram=None,
        ttft_s=ttft_s,
        decode_s=decode_s,
        text_sha256="",
        text="",
        finish_reason="length",
    )


def measurement(depth: int = 2, samples: tuple[Sample, ...] | None = None, **facts: Any) -> Measurement:
    """Four samples of 200 tok/s, accept length 2, or for depth 0 of 100 tok/s; `facts` replaces any other field."""
    server = ServerFacts(
        version="0.5.23",
        arguments=("python", "-m", "sglang.launch_server"),
        environment={},
        log="depth.log",
        reported={},
    )
    like = sample() if depth else sample(decode_s=1.0, verifies=100)
    samples = samples or tuple(replace(like, prompt=f"p{n}") for n in range(4))
    built = Measurement(profile="cpu-tiny", depth=depth, server=server, accept_source="test", samples=samples)
    return replace(built, **facts)


def slowed(fast: Measurement, factor: float) -> Measurement:
    """The same measurement with every decode `factor` times as long."""
    return replace(fast, samples=tuple(replace(s, decode_s=s.decode_s * factor) for s in fast.samples))


def from_noise_recording(path: Path, depth: int) -> Measurement:
    """The measurement that a recording `noise_*.json` holds.

    The H200's has no verify counts; there every chunk after the first is one verify.
    """
    raw = json.loads(path.read_text(encoding="utf-8"))
    return measurement(depth, tuple(_recorded(r, depth) for r in raw))


def _recorded(raw: dict[str, Any], depth: int) -> Sample:
    counted = raw.get("verifies") or raw["chunks"] - 1
    return sample(
        str(raw["prompt"] if "prompt" in raw else raw["seed"]),
        repeat=raw["rep"],
        tokens=raw["tokens"],
        decode_s=raw["decode"],
        verifies=counted if depth else raw["tokens"] - 1,
        ttft_s=raw["ttft"],
    )
