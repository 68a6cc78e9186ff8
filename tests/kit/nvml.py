"""A stand-in for the module pynvml on a host without GPUs: real constants and errors, GPUs made of plain values."""

# ruff: noqa: N802 — the names are NVML's

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml

GIB = 1024**3


@dataclass
class Gpu:
    """One GPU; tests change its values while code under test reads them."""

    uuid: str
    name: str = "NVIDIA H200"
    serial: str | None = "1650000000001"
    total: int = 140 * GIB
    free: int = 139 * GIB
    processes: dict[int, int | None] = field(default_factory=dict)
    """pid → bytes of GPU memory."""
    throttle: int = 0


class FakeNvml:
    """Answers as pynvml does for `gpus`; `init_error` is the NVML code that nvmlInit fails with."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
    NVML_ERROR_NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, gpus: Sequence[Gpu] = (), init_error: int | None = None) -> None:
        self.gpus = list(gpus)
        self.init_error = init_error
        self.sessions = 0
        """Inits that no shutdown has followed yet."""

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetSerial(self, gpu: Gpu) -> str:
        if gpu.serial is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu.serial

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.total, free=gpu.free, used=gpu.total - gpu.free)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetClockInfo(self, _gpu: Gpu, _clock: int) -> int:
        return 1755

    def nvmlDeviceGetMaxClockInfo(self, _gpu: Gpu, _clock: int) -> int:
        return 1980

    def nvmlDeviceGetPowerUsage(self, _gpu: Gpu) -> int:
        return 412_500

    def nvmlDeviceGetEnforcedPowerLimit(self, _gpu: Gpu) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetTemperature(self, _gpu: Gpu, _sensor: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Gpu) -> int:
        return gpu.throttle

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu.processes.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _gpu: Gpu) -> list[SimpleNamespace]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
