"""SGLang's own serving benchmark on one completion, in an interpreter of its own.

`python -m tests.kit.bench_serving URL ASKED_TOKENS` prints a line of JSON: the tokens that it believes came, and its
seconds from the first token to the end.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fixtures.engine.inside import cpu_engine


def loaded() -> Any:
    """The benchmark's module, told what its command line would tell it."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        cpu_engine.install()
    if importlib.util.find_spec("datasets") is None:  # asked for by a data set that isn't used here
        sys.modules["datasets"] = ModuleType("datasets")
        sys.modules["datasets"].load_dataset = None  # type: ignore[attr-defined]
    from sglang.benchmark import serving  # noqa: PLC0415 - needs the stand-ins where there is no GPU

    serving.set_global_args(
        Namespace(disable_stream=False, disable_ignore_eos=True, return_logprob=False, top_logprobs_num=0)
    )
    return serving


async def ask(serving: Any, url: str, prompt: str, asked: int, body: Mapping[str, Any] | None = None) -> Any:
    """What it says of one completion, for which `body` is asked as well."""
    request = serving.RequestFuncInput(
        prompt=prompt,
        api_url=f"{url}/v1/completions",
        prompt_len=1,
        output_len=asked,
        model="m",
        lora_name="",
        image_data=None,
        extra_request_body=dict(body or {}),
    )
    return await serving.async_request_openai_completions(request)


def main(url: str, asked: int) -> None:
    seen = asyncio.run(ask(loaded(), url, "hello", asked))
    print(json.dumps({"error": seen.error, "tokens": seen.output_len, "decode_s": seen.latency - seen.ttft}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
