"""Who is missing, whose mount is away, and what only sounds like a failure: told from who speaks and who does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import CANCEL, ending, header, steps, triage_text

BARRIER = (
    "{rank}: jaxlib._jax.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks::0.\n"
    "{rank}: # of tasks that reached the barrier: 7/8.\n"
)
C10D = "{rank}: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 joined.\n"
EXIT = "{rank}: NODE_EXIT host=node00{number} exit=1\n"


def spoken(text: str, ranks: list[int]) -> str:
    return "".join(text.format(rank=r, number=r + 1) for r in ranks)


@pytest.mark.parametrize("text", [BARRIER, C10D], ids=["jax", "torch"])
def test_the_one_who_never_came_is_the_one_who_says_nothing(tmp_path: Path, text: str) -> None:
    came = [0, 1, 2, 3, 4, 6, 7]
    found = triage_text(tmp_path, header(nodes=8) + spoken(text, came) + spoken(EXIT, came) + ending(1))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("rendezvous-incomplete", ("node006",))


def test_nobody_is_missing_where_all_speak_or_most_are_silent(tmp_path: Path) -> None:
    for ranks in ([0, 1, 2, 3, 4, 5, 6, 7], [0], [0, 1, 2]):
        found = triage_text(tmp_path, header(nodes=8) + spoken(BARRIER, ranks) + ending(1))
        assert found.primary is not None
        assert not found.primary.local, ranks


LOST = "{rank}: Feb 11 12:00:0{rank} node00{number} kernel: nfs: server 10.0.3.21 not responding, still trying\n"


def test_a_mount_that_one_host_lost_is_its_own_and_one_that_many_lost_is_the_servers(tmp_path: Path) -> None:
    run = header() + steps(20)
    alone = triage_text(tmp_path, run + spoken(LOST, [2])).primary
    assert alone is not None
    assert (alone.cause, alone.hosts, alone.local) == ("storage-error", ("node003",), True)
    many = triage_text(tmp_path, run + spoken(LOST, [1, 2, 3])).primary
    assert many is not None
    assert (many.cause, many.local) == ("storage-error", False)


@pytest.mark.parametrize(
    "asked",
    [
        "slurmstepd: error: *** JOB 77 ON node001 CANCELLED AT 2026-03-25T10:34:07 DUE TO PREEMPTION ***\n",
        "slurmstepd: error: *** JOB 77 ON node001 CANCELLED AT 2026-03-25T10:34:07 DUE TO TIME LIMIT ***\n",
        CANCEL,
    ],
    ids=["preempted", "time limit", "cancelled"],
)
def test_a_traceback_after_the_request_to_end_is_not_the_cause(tmp_path: Path, asked: str) -> None:
    caught = (
        "--- Logging error ---\nTraceback (most recent call last):\n"
        '  File "elastic/agent/server/api.py", line 731, in run\n    result = self._invoke_run(role)\n'
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 99 got signal: 15\n"
    )
    found = triage_text(tmp_path, header() + steps(20) + asked + caught)
    assert found.primary is not None
    assert found.primary.tier == 5, [(f.id, f.role) for f in found.roles.findings]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ValueError: Key per_device_batchsize was passed at the command line but isn't in config.", "config-error"),
        ("ValueError: 2 keys were passed at the command line but are not in base.yml: {'a', 'b'}", "config-error"),
        ("failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized", "fabric-manager-down"),
        ("INTERNAL: CUDA error: Failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY: x", "fabric-manager-down"),
        ("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 11004, Fatal, Link 08 ingress invalid ACL", "gpu-hardware-fault"),
        ("NVSwitch initialization failed: the devices are not ready", "fabric-manager-down"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "missing-library"),
        ("RuntimeError: this PyTorch does not have MPI built in", "missing-library"),
        ("OSError: [Errno 5] Input/output error: '/mnt/ckpt/120'", "storage-error"),
        ("dd: error reading '/lustre/a': Input/output error", "storage-error"),
    ],
)  # fmt: skip
def test_these_words_name_their_cause(tmp_path: Path, line: str, cause: str) -> None:
    found = triage_text(tmp_path, f"starting\n{line}\n")
    assert found.primary is not None
    assert found.primary.cause == cause


@pytest.mark.parametrize("line", ["tcsetattr: Input/output error", "bash: ioctl /dev/pts/3: Input/output error"])
def test_a_terminal_that_was_closed_is_no_storage_error(tmp_path: Path, line: str) -> None:
    assert triage_text(tmp_path, f"starting\n{line}\n").primary is None


RAISED = "1: Traceback (most recent call last):\n1: ValueError: could not convert string to float: 'n/a'\n"
LOST_HER = "3: n4:81:90 [1] net_ib.cc:1912 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4021> with status=12\n"


def test_an_exception_that_came_first_is_the_cause_of_what_its_peers_lose(tmp_path: Path) -> None:
    first = triage_text(tmp_path, header() + steps(20) + RAISED + LOST_HER + ending(1)).primary
    assert first is not None
    assert (first.cause, first.rank) == ("python-exception", 1)
    later = triage_text(tmp_path, header() + steps(20) + LOST_HER + RAISED + ending(1)).primary
    assert later is not None
    assert later.cause == "python-exception"  # no lost peer makes such an error
    repeats = RAISED.replace("ValueError: could", "RuntimeError: could")
    other = triage_text(tmp_path, header() + steps(20) + LOST_HER + repeats + ending(1)).primary
    assert other is not None
    assert other.cause == "rdma-link-failure"


def test_a_rank_that_was_killed_did_not_die_of_its_exception(tmp_path: Path) -> None:
    killed = "1: [Node 1 @ node002] Training subprocess killed by SIGKILL (signal 9)\n"
    found = triage_text(tmp_path, header() + steps(20) + RAISED + killed + LOST_HER + ending(1)).primary
    assert found is not None
    assert (found.cause, found.rank) == ("peer-died", 1)


def test_how_a_process_ended_is_no_error_of_its_own_beside_its_crash(tmp_path: Path) -> None:
    crashed = "1: (MaxTextTrainerActor pid=7060) Fatal Python error: Segmentation fault\n"
    told = "1: (MaxTextTrainerActor pid=7060) [Node 1 @ node002] Training subprocess killed by SIGSEGV (signal 11)\n"
    exits = "".join(f"{n}: NODE_EXIT host=node{n + 1:03d} exit={139 if n == 1 else 143}\n" for n in (1, 0, 2, 3))
    exits += "srun: error: node002: task 1: Exited with exit code 139\n"
    found = triage_text(tmp_path, header() + steps(20) + crashed + told + exits + ending(1)).primary
    assert found is not None
    assert (found.cause, found.rank) == ("segfault", 1)


def test_no_gpu_is_a_consequence_where_a_library_of_the_image_did_not_load(tmp_path: Path) -> None:
    blind = "{rank}: WARNING:jax._src.xla_bridge: Unable to initialize backend 'cuda': it is not in the list\n"
    lacks = "{rank}: ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory\n"
    ranks = [0, 1, 2, 3]

    def cause(text: str) -> str:
        found = triage_text(tmp_path, header() + text + spoken(EXIT, ranks) + ending(1)).primary
        assert found is not None
        return found.cause

    assert cause(spoken(blind, [2]) + spoken(lacks, ranks)) == "missing-library"
    # The driver's library comes with the GPU; a rank of its own without a GPU has another reason.
    assert cause(spoken(blind, [2]) + spoken(lacks.replace("libcudnn.so.9", "libcuda.so.1"), ranks)) == "no-gpu"
    assert cause(spoken(blind, [2]) + spoken(lacks, [0])) == "no-gpu"
    driver = "{rank}: RuntimeError: no CUDA-capable device is detected\n"
    assert cause(spoken(driver, [2]) + spoken(lacks, ranks)) == "no-gpu"
