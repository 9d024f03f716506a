"""What people who report a run show and say, and what is raised where a run saves or after it had ended: our own words."""  # noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.triage_logs import cause_of, left_open

STEPS = "".join(f"iter {i} loss 2.{i} 0.51 s\n" for i in range(3))
TIMED = "".join(f"10:00:0{i} step {100 + i} loss 2.{i}\n" for i in range(1, 8, 2))
SPY = 'Thread {pid} ({state}): "MainThread"\n    {top}\n    train (run.py:88)\n'
WAITS = "_value (jax/_src/array.py:12)"
BOX = "|  {i}  Card X   On | 00000000:1{i}:00.0 Off |  0 |\n| 30%  50C  P2   {draw}W / 350W |  9000MiB / 49140MiB |  {busy}%  Default |\n"  # noqa: E501
SAVE = 'Traceback (most recent call last):\n  File "/w/run.py", line 8, in main\n    keep()\n  File "/v/site-packages/lib/store.py", line 9, in save_checkpoint\n    put()\n{}\n'  # noqa: E501
OWN_SAVE = 'Traceback (most recent call last):\n  File "/w/ckpt_tools.py", line 8, in tidy\n    rmtree(d)\n{}\n'
FULL = "step {} CPU Virtual Memory: used = {} GB, percent = {}%\n"
COMPILED = "jit: Compiling {} with global shapes and types [f32[8]].\n"
ROUND = COMPILED.format("project") + COMPILED.format("recover") + "iteration {}: 0.9 s\n"
DONE = " iteration        2/       2 | consumed samples: 8 | elapsed time per iteration (ms): 10.0 | lm loss: 7.3E+00 |\n[after training is done] datetime: x\n"  # noqa: E501
ENDS = "iter 9 loss 2.0\nTraining complete. Saved last.pt\n"
PODS = "NAME    READY  STATUS   RESTARTS      AGE\ntr-0    1/1    Running  {}  2d\ntr-1    1/1    Running  {}  2d\n"
CASES = {
    "stacks of ranks that wait for each other": (
        "# no new line since noon\n" + SPY.format(pid=4, state="idle", top=WAITS) + SPY.format(pid=5, state="idle", top=WAITS),  # noqa: E501
        "collective-hang",
    ),
    "one of them stands in its loader": (
        "# no new line since noon\n" + SPY.format(pid=4, state="idle", top=WAITS)
        + SPY.format(pid=5, state="idle", top="_next_data (torch/utils/data/dataloader.py:9)"),
        "dataloader-hang",
    ),
    "one of them saves": (
        "# no new line since noon\n" + SPY.format(pid=4, state="idle", top=WAITS)
        + SPY.format(pid=5, state="idle", top="save_state (run.py:9)"),
        "unclassified",
    ),
    "one process alone": ("# no new line since noon\n" + SPY.format(pid=4, state="idle", top=WAITS) * 2, "unclassified"),  # noqa: E501
    "GPUs that are busy and draw little": (BOX.format(i=0, draw=90, busy=100) + BOX.format(i=1, draw=92, busy=100), "unclassified"),  # noqa: E501
    "GPUs that work": (BOX.format(i=0, draw=290, busy=100) + BOX.format(i=1, draw=292, busy=100), None),
    "memory that was full before the kill": (FULL.format(1, 41, 60.2) + FULL.format(2, 66, 97.1) + "run.sh: line 3:   812 Killed    python a.py\n", "oom-host"),  # noqa: E501
    "memory that was not full": (FULL.format(1, 41, 60.2) + FULL.format(2, 44, 63.0) + "run.sh: line 3:   812 Killed    python a.py\n", "unknown-death"),  # noqa: E501
    "a remark above a piece of a log": (f"# the file ends here, the pods are gone\n{STEPS}", "unclassified"),
    "how to use it": (f"# Run it with a config; the first steps may take long, then it is faster\n{STEPS}", None),
    "a run that was well": (f"# this run was fine and ended at noon\n{STEPS}", None),
    "the same functions in each round": ("".join(ROUND.format(i) for i in range(5)), "recompilation"),
    "many ranks that compile once": ((COMPILED.format("project") * 4 + COMPILED.format("recover") * 4) + STEPS, None),
    "pods that began anew": (PODS.format("9 (3m ago)", "9 (3m ago)"), "unclassified"),
    "pods that began once": (PODS.format("0         ", "1 (2d ago)"), None),
    # A place is no cause.
    "the program's own error where it saves": (SAVE.format("AttributeError: 'Net' object has no attribute 'ema'"), "python-exception"),  # noqa: E501
    "a refusal where it saves": (SAVE.format("OSError: [Errno 38] Function not implemented: 'a' -> 'b'"), "checkpoint-fs-error"),  # noqa: E501
    "a refusal in one's own code about checkpoints": (OWN_SAVE.format("OSError: [Errno 39] Directory not empty: 'x'"), "checkpoint-fs-error"),  # noqa: E501
    "a wait for others where it saves": (SAVE.format("RuntimeError: [2] is setting up: store->get('0') got error: Connection reset by peer"), "unclassified"),  # noqa: E501
    # After the end.
    "ended by the limit after its end": (f"{DONE}slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***\n", "teardown-crash"),  # noqa: E501
    "an abort after its end": (
        f"{ENDS}E0 x torch/distributed/elastic/multiprocessing/api.py:8] failed (exitcode: -6) local_rank: 0 (pid: 5) of binary: /p\n"  # noqa: E501
        "Traceback (most recent call last):\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n/w/run.py FAILED\n",  # noqa: E501
        "teardown-crash",
    ),
    # Who is called dead and says so himself.
    "declared dead by mistake": (
        "(gcs) The node with id 5d has been marked dead because the detector has missed too many heartbeats\n"
        "(raylet) [C] Exiting because this node manager has mistakenly been marked as dead by the GCS\n",
        "heartbeat-false-positive",
    ),
    "counters that did not move": ("step 4 loss 2.0\npacket_seq_err / out_of_sequence: unchanged over 60 s\n", None),
    "a loss scale that is looked for": (f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096, reducing to 2048\n{STEPS}", None),  # noqa: E501
    "a receiver that is gone": ("NCCL WARN NET/OFI Request 0x1 completed with error. RC: 2. Error: 15 (Unresponsive receiver)\n", "nccl-error"),  # noqa: E501
    "shares of the processors that were used up": ("nr_periods 4100\nnr_throttled 3911\nthrottled_usec 91882\nstep 4 loss 2.0\n", "cpu-contention"),  # noqa: E501
    "shares that sufficed": ("nr_periods 4100\nnr_throttled 12\nthrottled_usec 9188\nstep 4 loss 2.0\n", None),
    "a brake that lowers the clock": (
        "    Clocks Event Reasons\n        Idle                              : Not Active\n        HW Slowdown                       : Active\n"  # noqa: E501
        "            HW Thermal Slowdown           : Not Active\n            HW Power Brake Slowdown       : Active\n",
        "gpu-power-cap",
    ),
    "GPUs that hold a program and rest": (STEPS + BOX.format(i=0, draw=60, busy=0) + BOX.format(i=1, draw=61, busy=0), "unclassified"),  # noqa: E501
    "somebody looks into it afterwards": (f"{STEPS}$ kubectl get pods -l job=a\nNAME  READY  STATUS   RESTARTS  AGE\na-0   1/1    Running  0         5h\n", "unclassified"),  # noqa: E501
    "somebody starts it": (f"$ date\nMon Mar  2 14:01:00 UTC 2026\n$ python a.py\n{STEPS}", None),
    "no step for long": (TIMED + "".join(f"10:{m:02d}:00 alive\n" for m in range(5, 40, 5)), "unclassified"),
    "a save after the last step": (f"{TIMED}10:00:09 saving\n10:02:07 saved\n", None),
    "a wait in each step whose time has no name": ("".join(f"it {i}: 1.9{i} s (data 1.6{i} s)\n" for i in range(5)), "input-stall"),  # noqa: E501
    "a warning of what is done instead": (f"NCCL WARN Could not find a path for pattern 4, falling back to simple order\n{STEPS}", None),  # noqa: E501
    "a letter about something else": ("Dear all,\nthere is no news from the vendor, so the plan is still at step 2.\n", None),  # noqa: E501
    "a word of the program between its steps": (f"{STEPS}No improvement in the last 3 evaluations, the rate is halved\n{STEPS}", None),  # noqa: E501
    "a one-line report": ("job exited with code 137\n", "unknown-death"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_report_says(tmp_path: Path, name: str) -> None:
    text, cause = CASES[name]
    assert cause_of(tmp_path, text) == cause


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"# nothing came after this for three hours\n{STEPS}Started saving checkpoint to /mnt/a/1000\n", "storage"),
        (f"# a step needs 14 s, it was 9 s before the update\n{STEPS}", "program"),
        (f"# what the last host does, no new line for 2 h\n{STEPS}$ ps -eo pid,stat,wchan:20,cmd\n 41 Dl   nfs_wait_bit   python a.py\n", "storage"),  # noqa: E501
        (BOX.format(i=0, draw=90, busy=100) + BOX.format(i=1, draw=92, busy=100), "network"),
        # A heartbeat that others miss is of the class of who is gone, not of the clock.
        ("step 8 loss 2\nE coordination_service.cc:9] UNAVAILABLE: Task /job:jax_worker/replica:0/task:7 heartbeat timeout.\n", "scheduler"),  # noqa: E501
        ("error: commlib error: got read error (closing \"n8/shepherd_ijs/1\")\n", "network"),
        ("INFO [shm.py:4] No available shared memory broadcast block found in 60 second.\nrank 1 waits\n", "network"),
        (
            "GPU 00000000:17:00.0\n    Clocks Event Reasons\n        Idle                              : Not Active\n        HW Slowdown                       : Active\n",  # noqa: E501
            "device",
        ),
        (f"# no progress for 40 minutes\n{SPY.format(pid=4, state='idle', top='save (torch/serialization.py:12)')}", "storage"),  # noqa: E501
        ("MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n", "program"),
        ("Warning  ReachedMaxRestarts 2m  jobset  jobset failed due to reaching max number of restarts\n", "program"),
    ],
)  # fmt: skip
def test_the_class_of_what_is_reported(tmp_path: Path, text: str, kind: str) -> None:
    assert left_open(tmp_path, text) == kind
