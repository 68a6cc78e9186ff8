"""Starts the schedulers, each in a process of its own, and waits for them."""

from __future__ import annotations

import multiprocessing
import os
import sys

from sglang.srt.managers.scheduler import run_scheduler_process


def main() -> None:
    os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
    if "--enable-nccl-nvls" in sys.argv:
        os.environ["NCCL_NVLS_ENABLE"] = "1"
    context = multiprocessing.get_context(os.environ.get("LITTLE_START", "spawn"))
    world = int(os.environ.get("LITTLE_RANKS", "1"))
    ranks = [context.Process(target=run_scheduler_process, args=(rank, world)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    print("launcher:", os.environ.get("NCCL_PROTO"), sum(process.exitcode or 0 for process in ranks))


if __name__ == "__main__":
    main()
