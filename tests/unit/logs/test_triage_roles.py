"""Which of many errors is the cause: cascades, precedence, and the upstream defects that concern logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import CANCEL, HEARTBEAT, NCCL, ending, header, role, steps, triage_text


@pytest.mark.parametrize(
    ("middle", "cause", "rank"),
    [
        pytest.param(
            "2: kernel: Out of memory: Killed process 4242 (python3)\n" + NCCL.format(rank=0) + HEARTBEAT,
            "oom-host", 2, id="CR-1",
        ),
        pytest.param(
            "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" + NCCL.format(rank=1) + HEARTBEAT,  # noqa: E501
            "oom-gpu", 3, id="CR-1-gpu",
        ),
        pytest.param(
            "1: kernel: mlx5_core ens3: Link is Down\n0: Watchdog caught collective operation timeout: x\n"
            "== Training TIMEOUT (7201s/7200s) ==\n",
            "network-link-down", 1, id="CR-2",
        ),
        pytest.param("srun: error: Node failure on node003\n" + HEARTBEAT + CANCEL, "node-death", None, id="CR-3"),
        pytest.param(
            "2: INTERNAL: Failed to compile module jit_step\n2: Traceback (most recent call last):\n"
            "2: RuntimeError: boom\n2: NODE_EXIT host=node003 exit=1\n",
            "xla-compile-fail", 2, id="CR-4",
        ),
        pytest.param(
            "1: LustreError: 11-0: scratch-OST0012: operation ost_write failed: rc = -107\n" + HEARTBEAT,
            "storage-error", 1, id="CR-6",
        ),
        pytest.param(
            "3: Traceback (most recent call last):\n3: KeyError: 'x'\n3: NODE_EXIT host=node004 exit=1\n" + CANCEL
            + "".join(f"{r}: NODE_EXIT host=node00{r + 1} exit=143\n" for r in range(3)),
            "python-exception", 3, id="CR-7",
        ),
        pytest.param(
            "1: rocdevice.cpp:3020: HSA_STATUS_ERROR_OUT_OF_RESOURCES Available Free mem : 9 MB\n"
            "1: Queue aborting with error : HSA_STATUS_ERROR_EXCEPTION\n"
            "1: [Node 1 @ node002] Training subprocess killed by SIGABRT (signal 6)\n1: NODE_EXIT host=node002 exit=134\n",  # noqa: E501
            "collective-alloc-fail", 1, id="CR-9",
        ),
    ],
)  # fmt: skip
def test_a_cascade_is_traced_to_its_root(tmp_path: Path, middle: str, cause: str, rank: int | None) -> None:
    found = triage_text(tmp_path, header() + steps(20) + middle + ending(wall="0h 6m 0s"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank) == (cause, rank)
    assert found.status == "failed"
    assert all(f.role != "primary" for f in found.roles.findings if f is not found.primary)
    if rank is not None:
        assert found.roles.first_rank == rank
        assert found.roles.first_host == f"node{rank + 1:03d}"


@pytest.mark.parametrize("killer", [HEARTBEAT, CANCEL, "== Training TIMEOUT (7201s/7200s) ==\n"])
def test_a_hang_wears_three_disguises(tmp_path: Path, killer: str) -> None:
    """CR-5: wall time that no step accounts for makes the hang primary and its killer the mechanism."""
    code = 143 if killer is CANCEL else 1
    found = triage_text(tmp_path, header() + steps(20) + killer + ending(code, "x", "1h 30m 0s"))
    assert found.primary is not None
    assert (found.primary.id, found.primary.cause) == ("hang", "collective-hang")
    assert "mechanism" in [f.role for f in found.roles.findings]
    assert found.progress.gap_s == pytest.approx(5400 - 210 - 12)


def test_the_same_cancel_without_a_gap_is_just_a_cancel(tmp_path: Path) -> None:
    found = triage_text(
        tmp_path, header() + steps(20) + CANCEL + ending(143, "CANCELLED (scancel / SIGTERM)", "0h 5m 0s")
    )
    assert found.status == "cancelled"
    assert found.primary is not None
    assert found.primary.cause == "user-cancel"
    assert "preemption" in found.primary.proves_not  # D-33: the log alone cannot tell


def test_a_driver_fault_that_training_outlived_is_a_note(tmp_path: Path) -> None:
    """CR-8."""
    text = (
        header(steps=40)
        + steps(20)
        + "kernel: NVRM: Xid (PCI:0000:3b:00): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!\n"
    )
    found = triage_text(tmp_path, text + steps(39, first=21) + ending(0, wall="0h 8m 0s"))
    assert found.status == "completed"
    assert found.primary is None
    assert role(found, "gpu-driver-fault") == "note"


def test_complaints_before_the_first_step_did_not_stop_the_run(tmp_path: Path) -> None:
    noise = "2: ImportError: libfoo.so: cannot open shared object file: No such file or directory\n"
    found = triage_text(tmp_path, header() + noise + steps(20) + "3: CUDA out of memory\n" + ending(wall="0h 5m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "oom-gpu"
    assert role(found, "missing-library") == "note"


def test_an_init_kill_is_told_from_a_false_alarm(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header() + HEARTBEAT + ending(wall="0h 5m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "heartbeat-init-timeout"
    found = triage_text(tmp_path, header() + steps(20) + HEARTBEAT + ending(wall="0h 5m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "heartbeat-false-positive"
    dead = HEARTBEAT + "3: NODE_EXIT host=node004 exit=137\n"
    found = triage_text(tmp_path, header() + steps(20) + dead + ending(wall="0h 5m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "peer-died"


def test_soft_success(tmp_path: Path) -> None:
    text = header(steps=21) + steps(20) + "".join(f"{r}: NODE_EXIT host=n exit=143\n" for r in range(4))
    found = triage_text(tmp_path, text + ending(143, "CANCELLED (scancel / SIGTERM)"))
    assert found.status == "soft-success"
    assert found.primary is None


def test_who_never_joined_the_collective(tmp_path: Path) -> None:
    line = "[rank{r}]: [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1) ran\n"  # noqa: E501
    some = "".join(line.format(r=r) for r in (0, 1, 3))
    found = triage_text(tmp_path, some)
    assert found.primary is not None
    assert found.primary.cause == "collective-hang"  # who is silent in an excerpt may have spoken elsewhere
    assert "rank 2 never joined" in found.primary.why
    everyone = "".join(line.format(r=r) for r in range(4))
    found = triage_text(tmp_path, everyone)
    assert found.primary is not None
    assert found.primary.cause == "collective-hang"


LOST = "{rank}: E1115 05:02:33.2 28825 coordination_service_agent.cc:289] Polled an error from coordination service.\n"


def test_ranks_that_are_told_to_end_complain_about_each_other(tmp_path: Path) -> None:
    """What stands behind a cancel is its sound, not its cause; what stands before it can be."""
    end = ending(143, "CANCELLED (scancel / SIGTERM)", "0h 5m 0s")
    found = triage_text(tmp_path, header() + steps(20) + CANCEL + LOST.format(rank=3) + NCCL.format(rank=1) + end)
    assert found.primary is not None
    assert (found.primary.cause, found.roles.first_rank) == ("user-cancel", None)
    found = triage_text(tmp_path, header() + steps(20) + NCCL.format(rank=1) + CANCEL + LOST.format(rank=3) + end)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank) == ("nccl-error", 1)
    crash = "2: NODE_EXIT host=node003 exit=139\n"
    found = triage_text(tmp_path, header() + steps(20) + CANCEL + crash + LOST.format(rank=3) + end)
    assert found.primary is not None
    assert found.primary.cause != "user-cancel"


def test_nobody_failed_in_a_run_that_went_well(tmp_path: Path) -> None:
    text = header(steps=41) + steps(20) + NCCL.format(rank=1) + steps(40, first=21) + ending(0)
    found = triage_text(tmp_path, text)
    assert (found.status, found.primary, found.roles.first_rank) == ("completed", None, None)


def test_a_lost_peer_is_told_by_its_own_line(tmp_path: Path) -> None:
    """Rank 0 only missed it; the rank that was killed says so itself, a few lines later."""
    text = (
        "0: jax.errors.JaxRuntimeError: FAILED_PRECONDITION: Gloo all-reduce failed: Connection closed by peer\n"
        "1: Killed\n1: NODE_EXIT host=node002 exit=137\n0: NODE_EXIT host=node001 exit=1\n"
        "FIRST_FAILURE rank=1 host=node002 exit=137 cause=killed by SIGKILL\n"
    )
    found = triage_text(tmp_path, header() + steps(20) + text + ending(137, "Training FAILED (exit=137)", "0h 1m 0s"))
    assert found.primary is not None
    assert (found.primary.id, found.primary.cause, found.primary.rank) == ("sigkill", "peer-died", 1)


def test_the_schedulers_line_names_the_host_that_could_not_be_ended(tmp_path: Path) -> None:
    said = (
        "slurmstepd: error: *** STEP 77.3 STEPD TERMINATED ON node003 AT 2026-02-24T20:41:09 "
        "DUE TO JOB NOT ENDING WITH SIGNALS ***\n"
    )
    found = triage_text(tmp_path, header() + steps(20) + CANCEL + said + ending(143, "CANCELLED", "0h 5m 0s"))
    mine = [f for f in found.failures if f.cause == "unkillable-step"]
    assert [f.hosts for f in mine] == [("node003",)]


def test_a_bus_error_in_the_trainers_own_report_is_a_crash(tmp_path: Path) -> None:
    said = "2: Fatal Python error: Bus error\n2: [Node 2 @ node003] Training subprocess killed by SIGBUS (signal 7)\n"
    found = triage_text(tmp_path, header() + steps(20) + said + "2: NODE_EXIT host=node003 exit=135\n" + ending())
    assert found.primary is not None
    assert found.primary.cause == "segfault"


@pytest.mark.parametrize(
    "said", ["2: NODE_EXIT host=node003 exit=135\n", "srun: error: node003: task 2: Exited with exit code 135\n"]
)
def test_the_number_of_a_signal_is_no_reason_whoever_prints_it(tmp_path: Path, said: str) -> None:
    found = triage_text(tmp_path, header() + steps(20) + said + ending())
    assert found.primary is not None
    assert found.primary.cause == "segfault"


COMPLETION = "{rank}: node00{rank}:1:2 [5] NCCL WARN NET/IB: Got completion from peer 10.0.0.9<1> with status=12\n"


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ("3: NVRM: Xid (PCI:0000:9b:00): 95, pid=4118, name=python3, Uncontained\n", "gpu-hardware-fault"),
        ("3: kernel: Out of memory: Killed process 4242 (python3)\n", "oom-host"),
    ],
)
def test_the_lost_ranks_own_word_counts_more_than_its_witnesses(tmp_path: Path, own: str, cause: str) -> None:
    witnesses = "".join(COMPLETION.format(rank=r) for r in range(3))
    found = triage_text(tmp_path, header() + steps(20) + witnesses + own + ending(wall="0h 6m 0s"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.roles.first_rank) == (cause, 3, 3)


def test_a_rank_that_also_lost_its_peers_is_no_better_witness(tmp_path: Path) -> None:
    witnesses = "".join(COMPLETION.format(rank=r) for r in range(4))
    fault = "3: NVRM: Xid (PCI:0000:9b:00): 95, pid=4118, name=python3, Uncontained\n"
    found = triage_text(tmp_path, header() + steps(20) + witnesses + fault + ending(wall="0h 6m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "rdma-link-failure"


EXITS = "2: NODE_EXIT host=node003 exit=1\n" + "".join(
    f"{r}: NODE_EXIT host=node00{r + 1} exit=143\n" for r in (0, 1, 3)
)


def test_an_image_stage_that_failed_in_unknown_words_is_the_image_on_who_failed(tmp_path: Path) -> None:
    stage = "== Docker pull BEGIN (timeout=900s) ==\n2: the daemon says no\n== Docker pull FAILED (exit=1, 3s) ==\n"
    found = triage_text(tmp_path, header() + stage + EXITS + ending(reason="Docker pull FAILED (exit=1, 3s)"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("container-pull-fail", ("node003",))


def test_a_disk_without_room_for_the_image_is_that_hosts_own(tmp_path: Path) -> None:
    stage = (
        "== Docker pull BEGIN (timeout=900s) ==\n"
        "2: failed to register layer: write /usr/lib/libx.so: no space left on device\n"
        "== Docker pull FAILED (exit=1, 3s) ==\n"
    )
    found = triage_text(tmp_path, header() + stage + EXITS + ending(reason="Docker pull FAILED (exit=1, 3s)"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host, found.primary.local) == ("storage-full", "node003", True)


def test_ranks_that_all_end_alike_without_a_word_accuse_nobody(tmp_path: Path) -> None:
    exits = "".join(f"{r}: NODE_EXIT host=node00{r + 1} exit=1\n" for r in range(4))
    found = triage_text(tmp_path, header() + steps(20) + exits + ending(wall="0h 6m 0s"))
    assert found.primary is None
    assert role(found, "node-exit") == "note"


def test_a_reclaimed_node_is_the_cause_and_lost_transfers_are_not(tmp_path: Path) -> None:
    reclaimed = "3: [Node 3 @ node004] received SIGTERM, the instance is being reclaimed (spot preemption)\n"
    witnesses = "".join(COMPLETION.format(rank=r) for r in range(3))
    found = triage_text(tmp_path, header() + steps(20) + witnesses + reclaimed + ending(wall="0h 6m 0s"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("preempted", ("node004",))


def test_an_oom_kill_without_a_rank_is_on_the_host_whose_rank_was_killed(tmp_path: Path) -> None:
    middle = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=5.3. Some of the step tasks have been OOM Killed.\n"
    )
    middle += "1: NODE_EXIT host=node002 exit=137\n" + "".join(
        f"{r}: NODE_EXIT host=node00{r + 1} exit=143\n" for r in (0, 2, 3)
    )
    found = triage_text(tmp_path, header() + middle + ending(wall="0h 6m 0s"))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("oom-host", ("node002",))


def test_ranks_that_cannot_meet_after_training_began_look_for_one_that_is_gone(tmp_path: Path) -> None:
    lost = "".join(
        f"{r}: jax.errors.JaxRuntimeError: INTERNAL: socketPollConnect: connect returned Connection refused\n"
        for r in range(3)
    )
    watchdog = "3: [E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(x)\n"
    found = triage_text(tmp_path, header() + steps(20) + lost + watchdog + ending(wall="0h 20m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "collective-hang"


def test_codes_that_the_scheduler_repeats_say_no_more_than_the_codes(tmp_path: Path) -> None:
    exits = "".join(f"{r}: NODE_EXIT host=node00{r + 1} exit=1\n" for r in range(4))
    echo = "".join(f"srun: error: node00{r + 1}: task {r}: Exited with exit code 1\n" for r in range(4))
    found = triage_text(tmp_path, header() + steps(20) + exits + echo + ending(wall="0h 20m 0s"))
    assert found.primary is None
