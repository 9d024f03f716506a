"""The cascades of spec 2.13 in other words than test_triage_roles.py has: other stacks, other labels, other order."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps, triage_text

UNHEALTHY = (
    "{0}: E0224 23:48:08.664860 27562 coordination_service.cc:1146] Stopping coordination service after fatal error: "
    "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n"
    "{0}: /job:jax_worker/replica:0/task:{1}\n{0}: The tasks have crashed. Check the task logs for an earlier error.\n"
)
WATCHDOG = (
    "[rank{0}]:[E1115 01:37:20.683 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4231, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds\n"
)


@pytest.mark.parametrize(
    ("middle", "cause", "rank"),
    [
        pytest.param(
            "2: [ 8123.4] Memory cgroup out of memory: Killed process 31337 (python3) total-vm:1510123kB\n"
            "2: NODE_EXIT host=node003 exit=137\n" + WATCHDOG.format(0) + UNHEALTHY.format(0, 2),
            "oom-host", 2, id="CR-1",
        ),
        pytest.param(
            "3: jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
            "221.71GiB. [replica 0 and partition 40]\n0: node001:11:22 [3] NCCL WARN Timeout waiting for connection\n"
            + UNHEALTHY.format(1, 3),
            "oom-gpu", 3, id="CR-1-gpu",
        ),
        pytest.param(
            "1: [ 9000.1] bnxt_en 0000:81:00.0 ens81np0: NIC Link is Down\n"
            + WATCHDOG.format(3) + UNHEALTHY.format(0, 1),
            "network-link-down", 1, id="CR-2",
        ),
        pytest.param(
            WATCHDOG.format(0) + "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11T16:00:49 "
            "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
            "node-death", None, id="CR-3",
        ),
        pytest.param(
            "1: Traceback (most recent call last):\n"
            "1: jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to compile: LLVM pass ended\n"
            "1: [Node 1 @ node002] Training subprocess exited with code 1\n1: NODE_EXIT host=node002 exit=1\n",
            "xla-compile-fail", 1, id="CR-4",
        ),
        pytest.param(
            "0: OSError: [Errno 116] Stale file handle: '/mnt/ckpt/400/manifest.ocdbt'\n" + UNHEALTHY.format(2, 0),
            "storage-error", 0, id="CR-6",
        ),
        pytest.param(
            "2: Traceback (most recent call last):\n2: AssertionError: batch does not divide\n"
            "2: NODE_EXIT host=node003 exit=1\nsrun: error: node003: task 2: Exited with exit code 1\n"
            "srun: Terminating StepId=77.0\nsrun: error: node001: task 0: Exited with exit code 143\n"
            "0: NODE_EXIT host=node001 exit=143\n",
            "python-exception", 2, id="CR-7",
        ),
        pytest.param(
            "1: node002:4:5 [2] misc/alloc.h:110 NCCL WARN Failed to CUDA calloc 6291456 bytes\n"
            "1: jaxlib.xla_extension.XlaRuntimeError: INTERNAL: ncclGroupEnd() failed: unhandled cuda error\n"
            "1: rocdevice.cpp:3020: Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES\n"
            "1: NODE_EXIT host=node002 exit=134\n",
            "collective-alloc-fail", 1, id="CR-9",
        ),
    ],
)  # fmt: skip
def test_a_cascade_in_other_words(tmp_path: Path, middle: str, cause: str, rank: int | None) -> None:
    found = triage_text(tmp_path, header() + steps(33) + middle + ending(wall="0h 8m 0s"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank) == (cause, rank)
    assert all(f.role != "primary" for f in found.failures if f is not found.primary)
    if rank is not None:
        assert found.roles.first_rank == rank


def test_a_hang_that_the_heartbeat_ended(tmp_path: Path) -> None:
    """CR-5: an hour between the last step and the kill."""
    killed = UNHEALTHY.format(0, 2) + "".join(f"{r}: NODE_EXIT host=node00{r + 1} exit=134\n" for r in range(4))
    found = triage_text(tmp_path, header() + steps(50) + killed + ending(wall="1h 30m 0s"))
    assert found.primary is not None
    assert (found.primary.id, found.primary.cause) == ("hang", "collective-hang")
    assert "heartbeat-timeout" in [f.id for f in found.roles.findings if f.role == "mechanism"]


def test_a_driver_complaint_that_training_outlived(tmp_path: Path) -> None:
    """CR-8."""
    text = header(steps=60) + steps(20)
    text += "3: [ 812.3] amdgpu 0000:c5:00.0: amdgpu: failed to write reg 1a6fa wait reg 1a70c\n"
    text += "3: [ 812.9] amdgpu 0000:c5:00.0: amdgpu: SMU: response:0xFFFFFFFF for index:18 param:0x00000005\n"
    found = triage_text(tmp_path, text + steps(59, first=21) + ending(0, wall="0h 12m 0s"))
    assert (found.status, found.primary) == ("completed", None)


def test_the_rank_that_does_not_wait_and_reports_its_gpu_is_the_one_waited_for(tmp_path: Path) -> None:
    waits = "".join(WATCHDOG.format(rank) for rank in (0, 2, 5))
    own = "[rank3]: RuntimeError: CUDA error: unspecified launch failure\n"
    down = "[rank0]:[E1115 01:37:21 ProcessGroupNCCL.cpp:695] To avoid data inconsistency, we are taking the entire process down.\n"  # noqa: E501
    found = triage_text(tmp_path, header(8) + steps(20, 8) + waits + own + down + ending(1)).primary
    assert found is not None
    # The words name a GPU and no cause: who and where is certain, what it was is asked.
    assert (found.cause, found.kind, found.hosts) == ("unclassified", "device", ("node004",))
    # What fails once ranks are taken down, and what a waiting rank says, tells of no other cause.
    for text in (waits + down + own, waits + own.replace("rank3", "rank2") + down):
        late = triage_text(tmp_path, header(8) + steps(20, 8) + text + ending(1)).primary
        assert late is not None
        assert late.id == "watchdog-timeout"


def test_a_coordinator_that_lived_and_did_not_answer_is_no_rendezvous(tmp_path: Path) -> None:
    mute = (
        "{0}: F0224 23:48:08.1 27562 client.h:77] Terminating process because the JAX distributed service detected "
        "fatal errors. absl::Status: DEADLINE_EXCEEDED: {1}\n"
    )

    def cause(callers: list[int], leader: int, begun: bool = True, why: str = "Deadline Exceeded") -> str:
        lines = "".join(mute.format(rank, why) for rank in callers)
        exits = "".join(f"{rank}: NODE_EXIT host=node00{rank + 1} exit=134\n" for rank in callers)
        exits += f"0: NODE_EXIT host=node001 exit={leader}\n"
        found = triage_text(tmp_path, header(8) + (steps(20, 8) if begun else "") + lines + exits + ending(1)).primary
        assert found is not None
        return found.cause

    assert cause([2, 5, 6], 143) == "coordinator-overload"
    # The leader ended by itself; one caller may be ill itself; before the first step they may never have met.
    assert "coordinator-overload" not in {cause([2, 5, 6], 137), cause([2], 143), cause([2, 5, 6], 143, begun=False)}
    assert cause([2, 5, 6], 143, why="Barrier timed out. Id: save::7") != "coordinator-overload"
