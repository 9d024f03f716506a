"""What a text tells by its form: columns of a loss, times side by side, whose line goes on. Our own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.triage_logs import cause_of, left_open

from trackwalker.logs.failures.reactions import reacts

ROWS = "".join(f"{n}  {2.9 - 0.2 * n:.3f}  {2.8 - 0.2 * n:.3f}  3e-4\n" for n in range(1, 5))
LOST = "".join(f"{n}  nan  nan  3e-4\n" for n in range(5, 9))
JUMPED = "".join(f"{n}  9.{n}01  8.{n}71  3e-4\n" for n in range(5, 9))
WAITS = "".join(f"upd {n} | Fetch (t): {w} | Batch (t): {w + 0.4:.3f} | nll 3.{n}\n" for n, w in enumerate([3.1] * 5))
BLOCKS = "".join(
    f"[batch={n}/900]:\n\t time/data_wait: 8.{n}01\n\t lr: 3e-4\n\t time/step: 9.{n}44\n" for n in range(1, 6)
)
BARRIER = (
    "E0611 svc.cc:88] Barrier 'all_here::0' failed: DEADLINE_EXCEEDED\n"
    "Original error: DEADLINE_EXCEEDED: Barrier timed out. Id: all_here::0.\n"
    "# of tasks that reached the barrier: 6/8.\n"
)
CONNECTS = (
    "TimeoutError: The client socket has failed to connect to any network address of (n4.lab, 29400).\n"
    "Error: failed to run torchrun --nproc_per_node=4 fit.py on 10.0.0.4\n"
)
STALLS = (
    "[1,0]<stderr>: stall.cc:105] One or more tensors were submitted to be reduced, gathered or broadcasted by subset"
    " of ranks and are waiting for remainder of ranks for more than {} seconds.\n"
    "[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:3: [allreduce.enc.w1, allreduce.enc.w2, allreduce.dec.w9 ...]\n"
)
LIMIT = "max locked memory           (kbytes, -l) 65536\n"
OFI = (
    "+ srun python fit.py\nLibfabric EFA provider has encountered an internal error:\n\n"
    "Libfabric error: (-12) Cannot allocate memory\nYour application will now abort().\nFatal Python error: Aborted\n"
)
DONE = "{'train_runtime': 812.4, 'train_loss': 0.61, 'epoch': 3.0}\n"
CRASH = "Fatal Python error: PyGILState_Release: no thread-state\nAborted (core dumped)\n"
CALM = "".join(f"update {n} of 900, loss 2.{n}\n" for n in range(1, 6))
NAMED = {
    # Columns and times.
    "a column of a loss that is no number any more": (
        f"# upd  rmse_trn  rmse_val  lr\n{ROWS}{LOST}",
        "loss-divergence",
    ),
    "a loss of no number between blanks": (
        "".join(f"| {n}00 batches | nll  {4 - n}.11 | ppl  9{n}\n" for n in range(1, 4))
        + "".join(f"| {n}00 batches | nll   nan | ppl   nan\n" for n in range(4, 8)),
        "loss-divergence",
    ),
    "a loss by another name": (
        "".join(f"it {n} | nll 3.{9 - n} | 0.88 s\n" for n in range(1, 5))
        + "".join(f"it {n} | nll 7.{9 - n} | 0.88 s\n" for n in range(5, 9)),
        "loss-divergence",
    ),
    "costs": ("".join(f"Epoch [0] [{n}/9] batch_cost: 4.8{n} data_cost: 4.3{n}\n" for n in range(5)), "input-stall"),
    "a column that jumps": (f"# upd  train_loss  val_loss  lr\n{ROWS}{JUMPED}", "loss-divergence"),
    "the scale of the gradients": ("RuntimeError: grad_scale is too small, exiting: 3e-26\n", "loss-divergence"),
    "data time beside a unit": (WAITS, "input-stall"),
    "a wait and a step below each other": (BLOCKS, "input-stall"),
    # One report in several lines.
    "a barrier at the start, told three times": (BARRIER, "rendezvous-incomplete"),
    "a launcher's echo": (CONNECTS, "rendezvous-incomplete"),
    "a list of names": (CALM + STALLS.format(60) + STALLS.format(120), "collective-hang"),
    "a limit that is shown, and a transport without memory": (LIMIT + OFI, "memlock-limit"),
    "the second line of what was raised": (
        "RuntimeError: HCCL error in: group.cpp:64\n[ERROR] 11:02 (PID:81) ERR02 call of the api failed.\n",
        "nccl-error",
    ),
    # The end of all work, and who ended it.
    "a crash behind the trainer's summary": (CALM + DONE + CRASH, "teardown-crash"),
    "no capacity": (CALM + "Run failed with error code INTERRUPTED_BY_NO_CAPACITY.\n", "preempted"),
    "a machine that will be taken": (
        CALM + "WARNING: SIGTERM received: this VM will be preempted in 30 seconds\n",
        "preempted",
    ),
    "a platform's own limit": (CALM + "USER::task execution timeout [24h0m0s] expired\n", "walltime"),
    "a job that is timed-out": (
        CALM
        + "grid WARNING - Caught signal SIGUSR2 on n3: this job is timed-out.\nTraceback (most recent call last):\n"
        '  File "/v/grid/env.py", line 95, in requeue\n    raise Left(message)\n'
        "grid.core.LeftError: Job not requeued because: timed-out and not checkpointable.\n",
        "walltime",
    ),
}
OPEN = {
    "a node that missed its heartbeats": (
        CALM + "(raylet) The node with node id: 5d has been marked dead because it has missed too many heartbeats.\n"
        "\t(2) raylet has lagging heartbeats due to slow network or busy workload.\n"
        "Training errored after 0 iterations at 2025-06-24 10:03:41. Total running time: 51min\n",
        "network",
    ),
    "a queue's own state": (
        "ID  NAME  GPUS  STATUS\n4   fit   8     FAILED_CONTROLLER\n3   fit   8     SUCCEEDED\n",
        "scheduler",
    ),
    "a download that somebody ended": (
        "part-1.bin:  12%|#2        | 598M/4.98G [01:22<10:11, 7.2MB/s]\n^C\nKeyboardInterrupt\n",
        "network",
    ),
    "resources": ("ERROR 08:31:02 service Resources are insufficient in this region.\n", "scheduler"),
}
NOT = {
    "a loss measured elsewhere that is never a number": f"# upd  train_loss  test_loss\n{ROWS}".replace(
        "  3e-4", "  nan"
    ),
    "a warning, and the end of all work": CALM
    + f"WARNING: upload failed (503), retrying in 2 s\n{CALM}Training complete.\n",
    "a watchdog's limit": CALM + "the job's heartbeat timeout of 600 s was reached on the store\n" + CALM,
    "a loss that is a number again": "".join(
        f"| {n}00 batches | nll   {'nan' if n in (3, 4, 5) else 2.5}\n" for n in range(1, 9)
    ),
    "columns of other runs": "run  loss  lr\n7  2.1  3e-4\n8  2.2  3e-4\n"
    + "".join(f"{n}  9.{n}1  1e-2\n" for n in (4, 2, 1, 9)),
    "data that come at once": WAITS.replace("3.1 |", "0.1 |"),
}


@pytest.mark.parametrize(("text", "cause"), NAMED.values(), ids=NAMED)
def test_a_form_that_names_a_cause(tmp_path: Path, text: str, cause: str) -> None:
    assert cause_of(tmp_path, text) == cause


@pytest.mark.parametrize(("text", "kind"), OPEN.values(), ids=OPEN)
def test_a_form_that_tells_a_class(tmp_path: Path, text: str, kind: str) -> None:
    assert left_open(tmp_path, text) == kind


@pytest.mark.parametrize("text", NOT.values(), ids=NOT)
def test_a_form_that_names_nothing(tmp_path: Path, text: str) -> None:
    assert cause_of(tmp_path, text) in (None, "unclassified")


@pytest.mark.parametrize(
    "line",
    [
        "\tname: hk2Shard_1:3",
        "Error executing job with overrides: ['a=b']",
        "-- Process 2 terminated with the following error:",
        "Training errored after 12 iterations at 2025-06-24 10:03:41",
        "Collective call returned error",
    ],
)
def test_what_only_repeats_that_something_failed(line: str) -> None:
    assert reacts(line)
