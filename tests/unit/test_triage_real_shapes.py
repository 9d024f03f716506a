"""Shapes that real logs have: the cause among its floods, and what looks like a cause and is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from triage_logs import header, steps, triage_text

FLOOD = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a"
    " network error\nn2:81:90 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n1<4021>\n"
)
AGENT = (
    "W0901 10:00:02.000000 71 api.py:897] Sending process 812 closing signal SIGTERM\n"
    "E0901 10:00:03.000000 71 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 811) of binary: /usr/bin/python3\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause (first observed failure):\n"
)
TRACEBACK = (
    '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/app/train.py", line 9, in main\n[rank0]:     {}\n'
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        # An exception of the program comes before the ranks that miss their peer, whatever they print.
        pytest.param(
            TRACEBACK.format("loss = step(batch)") + "[rank0]: IndexError: index 9 is out of range\n" + FLOOD + AGENT,
            "python-exception", id="exception-before-flood",
        ),
        pytest.param(
            FLOOD + TRACEBACK.format("sync()") + "[rank0]: RuntimeError: aborted\n" + AGENT,
            "peer-died", id="flood-before-exception",
        ),
        pytest.param(
            TRACEBACK.format("build(cfg)") + "[rank0]: AssertionError: num_heads (30) must be divisible by tp degree 8\n"
            + AGENT,
            "config-error", id="exception-about-a-setting",
        ),
        pytest.param(
            "kernel: Memory cgroup out of memory: Killed process 991 (pt_data_worker)\n"
            "[E socket.cpp:957] [c10d] The client socket has timed out after 300s while trying to connect to (n1, 29500).\n",
            "oom-host", id="rendezvous-after-a-death",
        ),
        pytest.param(
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
            "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2."
            " There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory"
            " usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV.\n",
            "peer-died", id="a-list-of-possible-reasons",
        ),
        pytest.param(
            "slurmstepd: error: pyxis: child 77 failed with error code: 1\n"
            "slurmstepd: error: pyxis: failed to import docker image\n"
            "slurmstepd: error: pyxis: couldn't start container\nsrun: error: n1: task 0: Exited with exit code 1\n",
            "container-pull-fail", id="pull-before-start",
        ),
        pytest.param(
            "n3:5:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.2.3<0>\n"
            "n3:5:9 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
            "n7:5:9 [4] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n3<37948> with error 12\n",
            "network-link-down", id="port-before-completion",
        ),
    ],
)  # fmt: skip
def test_the_cause_comes_before_its_flood(tmp_path: Path, text: str, cause: str) -> None:
    found = triage_text(tmp_path, text)
    assert found.primary is not None
    assert found.primary.cause == cause, [(f.id, f.role) for f in found.roles.findings]


@pytest.mark.parametrize(
    "line",
    [
        "Remapping Failure Occurred                     : No",
        "Double Bit ECC                                 : 0",
        "HW Thermal Slowdown                            : Not Active",
        "SW Thermal Slowdown                            : 0 us",
        "W0901 preemption_sync_manager.cc:147] Failed to retrieve preemption notice from coordination service",
        "step 40: no NaN detected in gradients",
        "Unrecognized keys in `rope_scaling` for 'rope_type'='linear': {'original_max'}",
        "UserWarning: FooWarning: ValueError: ignored",
        "torch.load reads optimizer state, see https://example.org/errors/OutOfMemory for help",
        "[W1012 09:00:00.1 socket.cpp:697] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 97)",
    ],
)
def test_what_only_sounds_bad_is_no_failure(tmp_path: Path, line: str) -> None:
    found = triage_text(tmp_path, f"starting\n{line}\n")
    assert found.primary is None, [(f.id, f.text) for f in found.roles.findings]


def test_ranks_that_meet_no_more_after_training_began_are_victims(tmp_path: Path) -> None:
    late = "1: torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"  # noqa: E501
    found = triage_text(tmp_path, header() + steps(9) + "0: kernel: NVRM: Xid (PCI:0000:1a:00): 79, GPU lost\n" + late)
    assert found.primary is not None
    assert found.primary.cause == "gpu-hardware-fault"
    early = triage_text(tmp_path, header() + late)
    assert early.primary is not None
    assert early.primary.cause == "rendezvous-incomplete"
