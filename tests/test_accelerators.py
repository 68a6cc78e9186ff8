"""The host's accelerators. Where these tests run there is no GPU, so pynvml, and nothing else, has a stand-in."""

from __future__ import annotations

import os

import pynvml
import pytest

from fixtures import accelerators
from fixtures.accelerators import AcceleratorError, GpuProcess
from tests.kit.clock import Time
from tests.kit.nvml import GIB, FakeNvml, Gpu

A, B, C = "GPU-aaaa1111", "GPU-bbbb2222", "GPU-bbbb3333"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param(None, (0, 1, 2), id="unset-all"),
        pytest.param("", (), id="empty-none"),
        pytest.param("-1", (), id="minus-one-none"),
        pytest.param("2,0", (2, 0), id="in-the-order-named"),
        pytest.param(" 1 , 2 ", (1, 2), id="blanks"),
        pytest.param("0,7,1", (0,), id="nothing-after-an-invalid-one"),
        pytest.param("0,-1,1", (0,), id="nothing-after-minus-one"),
        pytest.param(B, (1,), id="uuid"),
        pytest.param("GPU-a", (0,), id="abbreviated-uuid"),
        pytest.param("GPU-bbbb", (), id="ambiguous-uuid"),
        pytest.param("GPU-cccc", (), id="unknown-uuid"),
        pytest.param("NoDevFiles", (), id="nonsense"),
    ],
)
def test_cuda_visible_devices_chooses_as_cuda_does(setting: str | None, expected: tuple[int, ...]) -> None:
    assert accelerators.visible((A, B, C), setting) == expected


def test_accelerators_are_told_with_what_identifies_them() -> None:
    nvml = FakeNvml([Gpu(A), Gpu(B, serial=None, free=7 * GIB)])
    first, second = accelerators.accelerators({}, nvml)
    assert (first.index, first.uuid, first.serial, first.driver) == (0, A, "1650000000001", "580.159.04")
    assert (second.index, second.serial, second.memory_free) == (1, None, 7 * GIB)
    assert nvml.sessions == 0


def test_only_visible_accelerators_are_told() -> None:
    nvml = FakeNvml([Gpu(A), Gpu(B)])
    assert [a.uuid for a in accelerators.accelerators({"CUDA_VISIBLE_DEVICES": "1"}, nvml)] == [B]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_host_without_driver_has_none(code: int) -> None:
    assert accelerators.accelerators({}, FakeNvml(init_error=code)) == ()


def test_a_broken_driver_is_an_error_and_not_a_host_without_accelerators() -> None:
    nvml = FakeNvml(init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(AcceleratorError, match=r"driver doesn't answer.*nvidia-smi"):
        accelerators.accelerators({}, nvml)


def test_mig_slices_are_refused() -> None:
    with pytest.raises(AcceleratorError, match="MIG-1234"):
        accelerators.accelerators({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, FakeNvml([Gpu(A)]))


def test_a_server_takes_the_first_accelerators() -> None:
    there = accelerators.accelerators({}, FakeNvml([Gpu(A), Gpu(B), Gpu(C)]))
    assert [a.uuid for a in accelerators.needed(there, 2)] == [A, B]
    assert accelerators.needed(there, 0) == ()


def test_too_few_accelerators_are_an_error_with_both_numbers() -> None:
    there = accelerators.accelerators({}, FakeNvml([Gpu(A)]))
    with pytest.raises(AcceleratorError, match=r"needs 8 accelerators, 1 are visible \(0: NVIDIA H200\)"):
        accelerators.needed(there, 8)


def test_the_state_has_units_and_names_and_none_for_what_the_board_does_not_tell() -> None:
    nvml = FakeNvml([Gpu(A, throttle=0x4 | 0x40)])
    (state,) = accelerators.gpu_state(accelerators.accelerators({}, nvml), nvml)
    assert (state.sm_clock_mhz, state.sm_clock_max_mhz, state.temperature_c) == (1755, 1980, 61)
    assert (state.power_w, state.power_limit_w) == (412.5, None)
    assert state.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")


def test_a_lost_gpu_is_an_error_that_says_where_to_look() -> None:
    nvml = FakeNvml([Gpu(A)])
    before = accelerators.accelerators({}, nvml)
    nvml.gpus.clear()
    with pytest.raises(AcceleratorError, match="GPU doesn't answer"):
        accelerators.gpu_state(before, nvml)
    assert nvml.sessions == 0


def test_foreign_processes_are_told_with_pid_name_and_memory_and_ours_are_not() -> None:
    me, parent = os.getpid(), os.getppid()
    nvml = FakeNvml([Gpu(A, processes={me: 2 * GIB, parent: None})])
    there = accelerators.accelerators({}, nvml)
    (foreign,) = accelerators.foreign_processes(there, {parent}, nvml)
    assert (foreign.uuid, foreign.pid, foreign.memory) == (A, me, 2 * GIB)
    assert str(foreign) == f"pid {me} ({foreign.name}, 2048 MiB) on {A}"


def test_a_foreign_process_of_unknown_memory_and_name_is_told_too() -> None:
    nvml = FakeNvml([Gpu(A, processes={2**22 + 1: None})])
    (foreign,) = accelerators.foreign_processes(accelerators.accelerators({}, nvml), nvml=nvml)
    assert foreign == GpuProcess(A, 2**22 + 1, "name unknown", None)


def test_released_memory_is_waited_for() -> None:
    nvml = FakeNvml([Gpu(A)])
    before = accelerators.accelerators({}, nvml)
    nvml.gpus[0].free = 63 * GIB
    time = Time()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if time.now >= 2:
            nvml.gpus[0].free = 139 * GIB - 100 * accelerators.MIB  # within the tolerance

    accelerators.wait_released(before, limit_s=30, clock=time.clock, sleep=sleep, nvml=nvml)
    assert time.now == 2


def test_memory_that_does_not_come_back_is_an_error_that_says_who_has_it() -> None:
    nvml = FakeNvml([Gpu(A), Gpu(B)])
    before = accelerators.accelerators({}, nvml)
    nvml.gpus[1].free -= 76 * GIB
    nvml.gpus[1].processes[os.getpid()] = 76 * GIB
    time = Time()
    with pytest.raises(AcceleratorError) as error:
        accelerators.wait_released(before, limit_s=30, clock=time.clock, sleep=time.sleep, nvml=nvml)
    assert time.now == 30
    assert "within 30 s" in str(error.value)
    assert f"77824 MiB on GPU 1 ({B})" in str(error.value)
    assert f"pid {os.getpid()}" in str(error.value)
    assert A not in str(error.value)


def test_a_host_without_accelerators_waits_for_nothing() -> None:
    accelerators.wait_released((), limit_s=0, nvml=None)


def test_a_real_gpu_tells_all_that_is_asked_of_it() -> None:
    there = accelerators.accelerators(os.environ)
    if not there:
        pytest.skip("no GPU here")
    assert len(accelerators.gpu_state(there)) == len(there)
    for gpu, state in zip(there, accelerators.gpu_state(there), strict=True):
        assert gpu.uuid.startswith("GPU-")
        assert 0 < gpu.memory_free <= gpu.memory_total
        assert (state.sm_clock_mhz or 0) > 0
    assert os.getpid() not in [p.pid for p in accelerators.foreign_processes(there)]
    accelerators.wait_released(there, limit_s=5)
