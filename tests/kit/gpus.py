"""A plugin for pytest (`-p tests.kit.gpus`): this host has two H200, by all that NVML says."""

from __future__ import annotations

import os

import pynvml

from tests.kit.nvml import FakeNvml, Gpu

os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # whoever runs the tests may show them one GPU, or none
FAKE = FakeNvml([Gpu("GPU-1"), Gpu("GPU-2")])

for name in dir(FAKE):
    if name.startswith("nvml"):
        setattr(pynvml, name, getattr(FAKE, name))
