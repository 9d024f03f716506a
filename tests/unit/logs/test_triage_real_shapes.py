"""Shapes that real logs have: the cause among its floods, and what looks like a cause and is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps, triage_text

FLOOD = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a"
    " network error\nn2:81:90 [1] misc/socket.cc:49 NCCL WARN Net : Connection closed by remote peer n1<4021>\n"
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
            "unclassified", id="flood-before-exception",
        ),
        pytest.param(
            "[rank3]: KeyError: 'exp_avg'\n" + TRACEBACK.format("resume()")
            + '[rank0]:   File "/app/ckpt.py", line 81, in load_checkpoint\n[rank0]:     opt.take(state)\n',
            "checkpoint-restore-mismatch", id="exception-while-a-checkpoint-is-read",
        ),
        pytest.param(
            "W0901 10:00:01.000000 71 api.py:688] Received Signals.SIGTERM death signal, shutting down workers\n"
            "W0901 10:00:02.000000 71 api.py:857] Sending process 812 closing signal SIGTERM\n"
            + TRACEBACK.format("launch()"),
            "unclassified", id="traceback-of-a-request-to-end",
        ),
        pytest.param(
            "E0901 10:00:01 9 coord.cc:41] UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats): task:3."
            " Look for an earlier error, or scheduler events (e.g. preemption, eviction) to debug further.\n",
            "unclassified", id="advice-that-names-preemption",
        ),
        pytest.param(
            TRACEBACK.format("build(cfg)") + "[rank0]: AssertionError: num_heads (30) must be divisible by tp 8\n"
            + AGENT,
            "config-error", id="exception-about-a-setting",
        ),
        pytest.param(
            "kernel: Memory cgroup out of memory: Killed process 991 (pt_data_worker)\n"
            "[E socket.cpp:957] [c10d] The client socket has timed out after 300s while trying to connect to (n1, 9)\n",
            "oom-host", id="rendezvous-after-a-death",
        ),
        pytest.param(
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
            "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error 2."
            " There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to memory"
            " usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV.\n",
            "unclassified", id="a-list-of-possible-reasons",
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
    late = "1: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n"
    found = triage_text(tmp_path, header() + steps(9) + "0: kernel: NVRM: Xid (PCI:0000:1a:00): 79, GPU lost\n" + late)
    assert found.primary is not None
    assert found.primary.cause == "gpu-hardware-fault"
    early = triage_text(tmp_path, header() + late)
    assert early.primary is not None
    assert early.primary.cause == "rendezvous-incomplete"


def test_who_lost_the_store_it_had_joined_names_no_meeting_that_failed(tmp_path: Path) -> None:
    found = triage_text(
        tmp_path,
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'c3_91_0' has failed to shutdown the "
        "rendezvous '77' due to an error of type RendezvousConnectionError.\n"
        "RuntimeError: Broken pipe\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store "
        "has failed.\n",
    )
    assert found.primary is not None
    assert found.primary.cause in {"unclassified", "python-exception"}


def test_that_somebody_is_gone_is_a_cause_only_by_the_word_of_who_started_it(tmp_path: Path) -> None:
    lost = "{}: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.1.27]:4368\n"
    peers = "".join(lost.format(rank) for rank in (0, 1, 3))
    heard = triage_text(tmp_path, peers).primary
    assert heard is not None
    assert (heard.id, heard.cause) == ("peer-died", "unclassified")
    told = triage_text(tmp_path, header() + peers + ending(1)).primary
    assert told is not None
    assert told.cause == "peer-died"


WAITING = (
    "0: [rank0]:[E901 10:31:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=91, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600011 milliseconds\n"
)


@pytest.mark.parametrize(
    ("middle", "cause", "rank"),
    [
        pytest.param(
            "2: slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some tasks were OOM Killed.\n"
            + WAITING, "oom-host", 2, id="CR-1",
        ),
        pytest.param(
            "1: n2:5:5 [3] NCCL WARN NET/IB : Got completion from peer n4<405> with status=12 opcode=0 vendor err 129\n"
            + WAITING, "rdma-link-failure", 1, id="CR-2",
        ),
        pytest.param(
            WAITING + "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11 DUE TO NODE FAILURE ***\n",
            "node-death", None, id="CR-3",
        ),
        pytest.param(
            "2: F external/xla/nvptx_compiler.cc:619] ptxas returned an error during compilation of ptx to sass\n"
            "2: Fatal Python error: Aborted\n2: NODE_EXIT host=node003 exit=134\n", "xla-compile-fail", 2, id="CR-4",
        ),
        pytest.param("1: nfs: server 10.9.0.4 not responding, timed out\n" + WAITING, "storage-error", 1, id="CR-6"),
        pytest.param(
            "3: Traceback (most recent call last):\n3: ValueError: too many dimensions 'str'\n"
            "3: NODE_EXIT host=node004 exit=1\n0: NODE_EXIT host=node001 exit=143\n", "python-exception", 3, id="CR-7",
        ),
        pytest.param(
            "1: n1:1:1 [0] include/alloc.h:80 NCCL WARN Cuda failure 2 'out of memory'\n1: Aborted (core dumped)\n"
            "1: NODE_EXIT host=node002 exit=134\n", "collective-alloc-fail", 1, id="CR-9",
        ),
    ],
)  # fmt: skip
def test_the_cascades_in_other_words(tmp_path: Path, middle: str, cause: str, rank: int | None) -> None:
    found = triage_text(tmp_path, header() + steps(20) + middle + ending(wall="0h 6m 0s"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank) == (cause, rank), [(f.id, f.role) for f in found.roles.findings]


def test_a_driver_complaint_that_training_outlived_is_a_note(tmp_path: Path) -> None:
    """CR-8 on another vendor's driver."""
    fault = "kernel: amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE\n"
    found = triage_text(tmp_path, header(steps=30) + steps(20) + fault + steps(29, first=21) + ending(0))
    assert found.primary is None
    assert [f.role for f in found.roles.findings if f.cause == "gpu-driver-fault"] == ["note"]
