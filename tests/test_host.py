"""The lease, who a process is, facts of the host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pynvml
import pytest

from fixtures import accelerators, host
from fixtures.host import Holder, Identity, Lease, LeaseError
from tests.kit.clock import Time
from tests.kit.nvml import FakeNvml, Gpu

ROOT = Path(__file__).resolve().parent.parent

HOLD = """
import os, sys
from pathlib import Path
from fixtures.host import Lease
user, folder, *names = sys.argv[1:]
os.setuid(int(user))
with Lease(names, folder=Path(folder), run="kimi", results="/r/7", limit_s=5, say=print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holding(folder: Path, *names: str, user: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds these names until its stdin closes; reaped whatever happens."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(os.getuid() if user is None else user), str(folder), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        umask=0o077,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def lease(
    folder: Path, *names: str, said: list[str] | None = None, limit_s: float = 10, at: Time | None = None
) -> Lease:
    at = at or Time()
    say = (said if said is not None else []).append
    return Lease(names, folder=folder, run="cpu-tiny", limit_s=limit_s, say=say, clock=at.clock, sleep=at.sleep)


# --- the lease ---


def test_a_free_lease_is_taken_without_a_word_and_leaves_no_record(tmp_path: Path) -> None:
    said: list[str] = []
    with lease(tmp_path, "cpu", said=said):
        holder = host.parse_holder((tmp_path / "cpu.holder.json").read_text())
        assert holder is not None
        assert (holder.process, holder.run) == (host.identity(), "cpu-tiny")
    assert said == []
    assert not list(tmp_path.glob("*.json"))


def test_a_wait_says_who_holds_it_since_when_and_for_which_run(tmp_path: Path) -> None:
    said: list[str] = []
    with holding(tmp_path, "GPU-1") as other, pytest.raises(LeaseError):
        lease(tmp_path, "GPU-1", said=said).take()
    assert len(said) == 1
    assert said[0].startswith(f"waiting for GPU-1, held by pid {other.pid} ({host.user_name()} on ")
    assert said[0].endswith("for kimi, results in /r/7; up to 10 s more")
    assert "since 20" in said[0]


def test_a_long_wait_is_spoken_of_once_a_minute(tmp_path: Path) -> None:
    said: list[str] = []
    with holding(tmp_path, "cpu"), pytest.raises(LeaseError):
        lease(tmp_path, "cpu", said=said, limit_s=150).take()
    assert [line.rpartition("; ")[2] for line in said] == [f"up to {s} s more" for s in (150, 90, 30)]


def test_a_lease_held_by_a_live_process_is_an_error_at_the_limit(tmp_path: Path) -> None:
    at = Time()
    with holding(tmp_path, "cpu") as other, pytest.raises(LeaseError) as error:
        lease(tmp_path, "cpu", limit_s=7, at=at).take()
    assert at.now == 7
    assert f"cpu was not free within 7 s: it is held by pid {other.pid}" in str(error.value)
    assert str(tmp_path / "cpu.holder.json") in str(error.value)


def test_a_lease_is_had_once_its_holder_gives_it_back(tmp_path: Path) -> None:
    at = Time()
    with holding(tmp_path, "cpu") as other:

        def sleep(seconds: float) -> None:
            at.sleep(seconds)
            if at.now == 1:
                other.communicate("", timeout=5)

        waiting = Lease(["cpu"], folder=tmp_path, run="", limit_s=9, say=print, clock=at.clock, sleep=sleep)
        with waiting:
            assert at.now == 1


def test_a_killed_holder_does_not_block(tmp_path: Path) -> None:
    with holding(tmp_path, "GPU-1", "GPU-2") as other:
        other.kill()
        other.wait()
        assert (tmp_path / "GPU-1.holder.json").exists()
        said: list[str] = []
        with lease(tmp_path, "GPU-1", "GPU-2", said=said, limit_s=0):
            assert said == []


def test_a_stale_lock_file_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "cpu.lock").write_text("4711\n")
    (tmp_path / "cpu.holder.json").write_text("{")
    with lease(tmp_path, "cpu", limit_s=0):
        pass


def test_a_record_whose_writer_is_gone_is_not_blamed(tmp_path: Path) -> None:
    said: list[str] = []
    with holding(tmp_path, "cpu"):
        record = tmp_path / "cpu.holder.json"
        holder = host.parse_holder(record.read_text())
        assert holder is not None
        stale = replace(holder, process=replace(holder.process, start=1))
        record.write_text(host.encode_holder(stale))
        with pytest.raises(LeaseError, match="held by a process that left no record"):
            lease(tmp_path, "cpu", said=said, limit_s=0).take()


def test_leases_on_disjoint_accelerators_stand_side_by_side(tmp_path: Path) -> None:
    with holding(tmp_path, "GPU-1", "GPU-2"), lease(tmp_path, "GPU-3", "GPU-4", limit_s=0):
        pass


def test_a_lease_that_fails_gives_back_what_it_had(tmp_path: Path) -> None:
    with holding(tmp_path, "GPU-2"):
        with pytest.raises(LeaseError, match="GPU-2 was not free"):
            lease(tmp_path, "GPU-1", "GPU-2", limit_s=0).take()
        with lease(tmp_path, "GPU-1", limit_s=0):
            pass


def test_an_interrupted_wait_gives_back_what_it_had(tmp_path: Path) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with holding(tmp_path, "GPU-2"):
        waiting = Lease(["GPU-1", "GPU-2"], folder=tmp_path, run="", limit_s=9, say=print, sleep=interrupt)
        with pytest.raises(KeyboardInterrupt):
            waiting.take()
        with lease(tmp_path, "GPU-1", limit_s=0):
            pass


def test_names_are_taken_in_one_order_whatever_order_they_are_given_in(tmp_path: Path) -> None:
    assert lease(tmp_path, "GPU-2", "GPU-1", "GPU-2").names == ("GPU-1", "GPU-2")


def test_a_server_does_not_inherit_the_lease(tmp_path: Path) -> None:
    with lease(tmp_path, "cpu"):
        server = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with lease(tmp_path, "cpu", limit_s=0):
            pass
    finally:
        server.kill()
        server.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_lock_file_of_another_user_can_be_leased() -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = host.lock_folder({"EAGLE3_PERF_LOCKS": f"{parent}/locks"})
        with lease(folder, "cpu"):
            pass
        with holding(folder, "cpu", "GPU-1", user=65534):
            assert (folder / "cpu.lock").stat().st_uid == 0
            assert (folder / "GPU-1.lock").stat().st_uid == 65534
            with pytest.raises(LeaseError, match="held by pid"):
                lease(folder, "GPU-1", limit_s=0).take()
        with lease(folder, "GPU-1", limit_s=0):
            pass


def test_lock_files_are_for_everyone_whatever_the_umask(tmp_path: Path) -> None:
    with holding(tmp_path, "cpu"):
        assert stat.S_IMODE((tmp_path / "cpu.lock").stat().st_mode) == 0o666
        assert stat.S_IMODE((tmp_path / "cpu.holder.json").stat().st_mode) == 0o644


# --- the folder ---


def test_the_lock_folder_is_made_for_everyone(tmp_path: Path) -> None:
    folder = host.lock_folder({"EAGLE3_PERF_LOCKS": str(tmp_path / "a" / "b")})
    assert folder == tmp_path / "a" / "b"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    assert host.lock_folder({"EAGLE3_PERF_LOCKS": str(folder)}) == folder


@pytest.mark.parametrize("folder", ["/dev/null", "/dev/null/locks", "/proc/locks", "/proc"])
def test_a_lock_folder_that_can_not_be_is_an_error_that_names_the_way_out(folder: str) -> None:
    with pytest.raises(host.LockFolderError, match=rf"{folder} can't be used: [A-Z][a-z ]+\. .*EAGLE3_PERF_LOCKS"):
        host.lock_folder({"EAGLE3_PERF_LOCKS": folder})


def test_a_lock_folder_that_became_something_else_is_an_error_that_names_it() -> None:
    with pytest.raises(LeaseError, match="/dev/null can't be used"):
        lease(Path("/dev/null"), "cpu").take()


def test_a_host_without_accelerators_leases_the_cpu() -> None:
    assert host.lease_names(()) == ("cpu",)
    there = accelerators.accelerators({}, FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")]))
    assert host.lease_names(there) == ("GPU-a", "GPU-b")


# --- records ---

ANN = Holder(Identity(4711, 99, "boot", "pid:[1]"), "h200-a", "ann", "2026-11-29T17:50:00Z", "kimi", "/r")


def test_a_holder_survives_its_record() -> None:
    assert host.parse_holder(host.encode_holder(ANN)) == ANN


def test_a_record_of_a_later_version_is_read() -> None:
    raw = json.loads(host.encode_holder(ANN)) | {"schema": 9, "mood": "good"}
    raw["process"]["cgroup"] = "/x"
    assert host.parse_holder(json.dumps(raw)) == ANN


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut-off"),
        pytest.param("[]", id="list"),
        pytest.param("7", id="number"),
        pytest.param('{"process": null}', id="no-words"),
        pytest.param(json.dumps(asdict(ANN) | {"process": None}), id="no-process"),
        pytest.param(json.dumps(asdict(ANN) | {"process": {"pid": 1}}), id="half-a-process"),
        pytest.param(json.dumps(asdict(replace(ANN, process=Identity(0, 1, "b", "n")))), id="pid-below-range"),
        pytest.param(json.dumps(asdict(ANN)).replace("4711", '"4711"'), id="pid-as-text"),
    ],
)
def test_a_broken_record_is_no_holder(text: str) -> None:
    assert host.parse_holder(text) is None


def test_a_record_can_not_garble_the_terminal() -> None:
    holder = host.parse_holder(host.encode_holder(replace(ANN, run="\x1b[2Jkimi\n")))
    assert holder is not None
    assert holder.run == "?[2Jkimi?"


# --- who a process is ---


def test_a_living_process_is_not_gone() -> None:
    me = host.identity()
    assert me is not None
    assert me.pid == os.getpid()
    assert not host.gone(me)


def test_another_process_with_the_same_pid_does_not_make_it_alive() -> None:
    me = host.identity()
    assert me is not None
    assert host.gone(replace(me, start=me.start - 1))


def test_a_process_from_before_the_last_boot_is_gone() -> None:
    me = host.identity()
    assert me is not None
    assert host.gone(replace(me, boot="00000000-0000-0000-0000-000000000000"))


def test_a_process_of_another_container_is_never_proven_gone() -> None:
    me = host.identity()
    assert me is not None
    assert not host.gone(replace(me, start=1, namespace="pid:[1]"))


def test_a_killed_process_is_gone_even_before_it_is_reaped() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = host.identity(child.pid)
    assert process is not None
    assert not host.gone(process)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.gone(process)
    child.wait()
    assert host.gone(process)
    assert host.identity(child.pid) is None


# --- facts ---


def test_facts_of_this_host_are_told_fast_and_as_json() -> None:
    start = time.perf_counter()
    facts = host.facts(os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert time.perf_counter() - start < 0.5
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cores"] >= 1
    assert facts["cpu"]
    assert facts["kernel"] == os.uname().release
    assert facts["gpu_count"] == 0


def test_facts_name_the_accelerators_and_their_state() -> None:
    facts = host.facts({}, FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")]))
    assert (facts["gpu"], facts["gpu_count"], facts["driver"]) == ("NVIDIA H200", 2, "580.159.04")
    assert [a["uuid"] for a in facts["accelerators"]] == ["GPU-a", "GPU-b"]
    assert facts["accelerators"][0]["state"]["sm_clock_mhz"] == 1755


def test_gpus_that_a_server_does_not_take_are_no_facts_of_its_host() -> None:
    both = FakeNvml([Gpu("GPU-a"), Gpu("GPU-b")])
    assert [a["uuid"] for a in host.facts({}, both, taken=1)["accelerators"]] == ["GPU-a"]
    facts = host.facts({}, both, taken=0)
    assert (facts["gpu"], facts["gpu_count"], facts["accelerators"]) == ("", 0, [])


def test_facts_survive_a_broken_driver_and_say_so() -> None:
    facts = host.facts({}, FakeNvml(init_error=pynvml.NVML_ERROR_UNKNOWN))
    assert "driver doesn't answer" in facts["accelerators_error"]
    assert "gpu_count" not in facts


def test_a_processor_without_a_model_name_is_told_by_its_architecture() -> None:
    assert host.cpu_model("processor : 0\nmodel name\t: AMD EPYC\n") == "AMD EPYC"
    assert host.cpu_model("processor : 0\nCPU implementer : 0x41\n") == os.uname().machine
