"""A scheduler that runs three completions of twenty cycles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import distributed

from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

COMPLETIONS = 3
CYCLES = 20


class Scheduler:
    def __init__(self, server_args: Any) -> None:
        self.server_args = server_args
        self.draft_worker = EAGLEWorkerV2()

    def run_event_loop(self) -> None:
        print("verify is wrapped:", hasattr(getattr(EAGLEWorkerV2, "verify", None), "__wrapped__"))
        for _ in range(COMPLETIONS):
            self.draft_worker.prefill()
            for _ in range(CYCLES):
                self.draft_worker.decode()


def run_scheduler_process(rank: int, world: int) -> None:
    distributed.join(rank, world)
    Scheduler(SimpleNamespace(dp_size=1)).run_event_loop()
