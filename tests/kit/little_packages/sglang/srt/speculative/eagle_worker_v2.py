"""Workers whose phases take no time; one draft of two is accepted in each verify."""

from __future__ import annotations

import os


class EagleDraftWorker:
    device = "cpu"

    def draft(self) -> None:
        pass

    def _draft_extend_for_decode(self) -> None:
        pass

    def _draft_extend_for_prefill(self) -> None:
        pass


class EAGLEWorkerV2:
    device = "cpu"

    def __init__(self) -> None:
        self.inner = EagleDraftWorker()

    def verify(self) -> list[int]:
        return [1]

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        pass

    def prefill(self) -> None:
        self.inner._draft_extend_for_prefill()

    def decode(self) -> None:
        self.inner.draft()
        accepted = self.verify()
        self.inner._draft_extend_for_decode()
        self.on_verify_complete_cpu(accepted, batch_size=1)


if os.environ.get("LITTLE_VERSION") == "old":
    EAGLEWorkerV2.decode = EAGLEWorkerV2.prefill  # type: ignore[method-assign]
    del EAGLEWorkerV2.verify
