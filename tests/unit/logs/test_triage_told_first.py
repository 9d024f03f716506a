"""What comes before unknown words, and what unknown words are no failure at all."""
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import steps, triage_text

from trackwalker.logs.failures.structure import counted_none

WAITS = (
    "[rank{rank}]:[E112 10:20:0{rank}.100 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=77, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600040 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    "said", ["epoch 3 is over after 912 batches here", "sizes differ: rank 0 has 12, rank 2 has 13"]
)
def test_ranks_that_wait_in_different_collectives_need_nobodys_own_words(tmp_path: Path, said: str) -> None:
    waiting = "".join(WAITS.format(rank=r, op="ALLREDUCE", size=12 if r < 2 else 13) for r in range(4))
    found = triage_text(tmp_path, f"training ...\n[rank3]: {said}\n{waiting}[rank0]: ERROR: {said}\n").primary
    assert found is not None
    assert (found.cause, found.kind) == ("collective-mismatch", "program")


def test_what_a_late_task_was_doing_is_no_reason_that_not_all_came(tmp_path: Path) -> None:
    text = (
        "[task 0] start jax.distributed.initialize(num_processes=4, process_id=0)\n"
        "[task 2] setup: fetched 40/99 packages\n"
        "[task 0] Traceback (most recent call last):\n"
        '[task 0]   File "/app/run.py", line 9, in main\n'
        "[task 0] jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.\n"
        "[task 0] # of tasks that reached the barrier: 3/4.\n"
        "[task 1] jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.cause == "rendezvous-incomplete"


def test_a_line_that_announces_what_was_not_caught_stands_behind_it(tmp_path: Path) -> None:
    text = (
        "[step=4/900]\n    loss=3.2\n[2026-01-02 03:04:05] CRITICAL [app.util:7, rank=5] Uncaught FeederError: thread 2 of the feeder failed\n"
        'Traceback (most recent call last):\n  File "/job/feed.py", line 71, in read\n    assert len(got) == want\n'
        "AssertionError: wanted 4096 bytes, got 77\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.text[:15]) == ("python-exception", "AssertionError:")


def test_a_limit_comes_before_what_would_not_end_at_it(tmp_path: Path) -> None:
    text = (
        "slurmstepd: error: *** STEP 9.0 ON cn-21 CANCELLED AT 2026-02-16T09:04:11 DUE TO TIME LIMIT ***\n"
        "slurmstepd: error: *** JOB 9 STEPD TERMINATED ON cn-21 AT 2026-02-16T09:05:12 DUE TO JOB NOT ENDING WITH SIGNALS ***\n"
    )
    limit = triage_text(tmp_path, text).primary
    assert limit is not None
    assert limit.cause == "walltime"
    alone = triage_text(tmp_path, text.splitlines()[1] + "\n").primary
    assert alone is not None
    assert alone.cause == "unkillable-step"


def test_a_row_of_counts_that_counts_none_is_no_event(tmp_path: Path) -> None:
    row = "tasks: 64   RUNNING 64   FAILED 0   PREEMPTED 0   attempts: 0"
    assert counted_none(row, row.index("PREEMPTED") + len("PREEMPTED"))
    assert not counted_none(row.replace("PREEMPTED 0", "PREEMPTED 2"), row.index("PREEMPTED") + len("PREEMPTED"))
    assert not counted_none("lost worker 0", len("lost worker"))
    failed = triage_text(tmp_path, "ValueError: no such shard\n" + row + "\n").primary
    assert failed is not None
    assert failed.cause != "preempted"


def test_a_class_that_the_words_do_not_tell_is_that_of_what_followed(tmp_path: Path) -> None:
    text = (
        "WARNING worker.py:1829 -- A worker died or was killed while executing a task by an unexpected system error. "
        "Worker ID: e238e3b1 Node ID: 017cdf83 Worker IP address: 10.8.3.19 Worker port: 10008 Worker PID: 1390\n"
        "ERROR runner.py:980 -- Trial T_1: Error processing event.\n"
        "ray.exceptions.RayTaskError: ray::_Inner.train() (pid=1206, ip=10.8.3.19, repr=T)\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.kind) == ("unclassified", "program")


def test_what_is_raised_of_a_request_to_end_is_no_cause(tmp_path: Path) -> None:
    text = (
        "n19:0 WARNING Received SIGTERM\nTraceback (most recent call last):\n"
        "RuntimeError: DataLoader worker (pid 5522) is killed by signal: Terminated.\n"
        '"canceledFor": "Job was preempted by a higher priority workload."\n'
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.cause == "preempted"


def test_a_library_that_is_not_there_is_no_driver_that_failed(tmp_path: Path) -> None:
    found = triage_text(tmp_path, "ERROR: Failed to initialize NVML: could not load NVML library.\n").primary
    assert found is not None
    assert (found.cause, found.kind) == ("unclassified", "device")
    found = triage_text(tmp_path, "ERROR: Failed to initialize NVML: Driver/library version mismatch\n").primary
    assert found is not None
    assert found.cause == "gpu-driver-fault"


def test_a_launcher_that_tells_who_was_killed_stands_before_those_who_lost_him(tmp_path: Path) -> None:
    lost = "".join(
        f"[rank{r}]:[E101 22:01:08.6 ProcessGroupNCCL.cpp:1895] [Rank {r}] NCCL error: remote process exited or there was a network error\n"
        for r in (3, 4, 5)
    )
    text = (
        f"step: 9 loss: 2.0\n{lost}"
        "E1012 22:01:14.667 9120 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 9203) of binary: python\n"
        "train.py FAILED\nRoot Cause (first observed failure):\n[0]:\n  host      : h100-113\n  rank      : 7 (local_rank: 3)\n"
        "  exitcode  : -9 (pid: 9203)\n  traceback : Signal 9 (SIGKILL) received by PID 9203\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.id, found.rank) == ("sigkill", 7)


def test_a_launch_that_failed_tells_no_lost_node(tmp_path: Path) -> None:
    line = "srun: error: Task launch for StepId=9.0 failed on node n21: {}\n"
    found = triage_text(tmp_path, line.format("Unable to satisfy cpu bind request")).primary
    assert found is not None
    assert (found.cause, found.kind) == ("unclassified", "scheduler")
    found = triage_text(tmp_path, line.format("Communication connection failure")).primary
    assert found is not None
    assert found.cause == "node-death"


def test_who_ends_by_hand_what_never_made_a_step_saw_it_stand_still(tmp_path: Path) -> None:
    text = "n1:3:4 [0] NCCL INFO Init COMPLETE\n[rank0] before all_reduce\n^CW0621 18:19:40.1 api.py:723] Received 2 death signal, shutting down workers\n"
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.cause == "unclassified"
    found = triage_text(tmp_path, steps(6) + text.splitlines()[-1] + "\n").primary
    assert found is not None
    assert found.cause == "user-cancel"


def test_what_a_program_says_of_its_start_is_no_last_word(tmp_path: Path) -> None:
    text = (
        "[rank3]: > initialized pipeline model parallel with size 1\n"
        "[rank1]:[E624 02:14:50.7 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600040 milliseconds before timing out.\n"
        "[rank2]:[E624 02:14:51.7 ProcessGroupNCCL.cpp:683] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600041 milliseconds before timing out.\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert "initialized" not in found.text


STEPPING = "".join(f"iter {i}: loss 2.5089, time 547.93ms, mfu 41.37%\n" for i in range(500, 560, 5))
EVENT = "40s   Normal    Preempted   pod/w-2   Preempted by pod 5c0e4f4e on node spot-h100-2\n"
ASKED = {
    "an exception that the signal raised": (
        "[pod/w-2/trainer] [rank: 16] Received SIGTERM: 15\n"
        "[pod/w-2/trainer] lightning.pytorch.utilities.exceptions.SIGTERMException\n" + EVENT,
        "preempted",
    ),
    "a raylet that was asked to end": (
        "(raylet, ip=10.3.9.12) The node with node id: 00019 and address: 10.3.9.12 has been marked dead because the raylet received SIGTERM (expected termination)\n"
        "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed.\n" + EVENT,
        "preempted",
    ),
    "a session that ended": (
        "W1205 18:45:00.000000 7710 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGHUP death signal, shutting down workers\n"
        'Traceback (most recent call last):\n  File "/home/pk/.venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7710 got signal: 1\n",
        "user-cancel",
    ),
    "a node that its cluster does not hear": (
        "[rank0]:[E0215 23:43:01.000000 ProcessGroupNCCL.cpp:1895] [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: NCCL error: unhandled system error\n"
        "$ kubectl get nodes\nNAME         STATUS     ROLES    AGE   VERSION\nip-10-2-40   Ready      <none>   61d   v1.30.4\n"
        "ip-10-2-41   NotReady   <none>   61d   v1.30.4\n",
        "node-death",
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_who_ends_a_run_comes_before_what_the_ended_say(tmp_path: Path, case: str) -> None:
    text, cause = ASKED[case]
    primary = triage_text(tmp_path, STEPPING + text).primary
    assert primary is not None
    assert primary.cause == cause


def test_the_launchers_own_limit_is_why_its_stage_failed(tmp_path: Path) -> None:
    steps = "".join(f"0: completed step: {i}, seconds: 3.300, loss: 4.2\n" for i in range(20))
    text = (
        "== Training BEGIN (timeout=60s) ==\n" + steps + "== Training TIMEOUT after 60s: sending SIGTERM ==\n"
        "0: NODE_EXIT host=sv05 exit=143\n== Training FAILED (exit=124, 60s) ==\n"
        "===== JOB SUMMARY =====\n  Status: FAILED (exit 124) — Training TIMEOUT (60s)\n"
    )
    primary = triage_text(tmp_path, "JOB_ID=7\nNNODES=1\n" + text).primary
    assert primary is not None
    assert primary.cause == "train-timeout"


def test_where_a_crashed_rank_stood_is_no_error_before_its_crash(tmp_path: Path) -> None:
    text = (
        "[rank21]:Fatal Python error: Segmentation fault\n[rank21]:\n"
        "[rank21]:Current thread 0x00007f3c1bfff640 (most recent call first):\n"
        '[rank21]:  File "/usr/lib/python3.11/site-packages/datasets/table.py", line 127 in _memory_mapped\n'
        "E0411 18:47:27.311000 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 5 (pid: 812) of binary: /usr/bin/python3\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-07-02_00:34:10\n  host      : e03\n"
        "  rank      : 21 (local_rank: 5)\n  exitcode  : -11 (pid: 812)\n  traceback : Signal 11 (SIGSEGV) received by PID 812\n"
        "[rank0]: torch.distributed.DistBackendError: [0] is setting up NCCL communicator: Connection reset by peer\n"
    )
    primary = triage_text(tmp_path, STEPPING.replace("iter", "[rank0]:iter") + text).primary
    assert primary is not None
    assert (primary.cause, primary.rank) == ("segfault", 21)
