"""Logs that decide no cause, in our own wording: which class is asked about, and that none is named."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.triage_logs import triage_text

from trackwalker.errors import NotAJobError
from trackwalker.logs.failures.kinds import kind_of, kind_of_cause, kind_of_end, kind_of_signature

STEP = "step {} loss 2.1 0.41 s\n"
STEPS = "".join(STEP.format(i) for i in (10, 20, 30))
SMI = "$ nvidia-smi --query-gpu=index,utilization.gpu,power.draw,memory.used --format=csv,noheader\n"
BUSY = SMI + "".join(f"{i}, 100 %, 71.2 W, 3118 MiB\n" for i in range(4))
IDLE = SMI + "".join(f"{i}, 0 %, 60.2 W, 1911 MiB\n" for i in range(8))
SACCT = "$ sacct -j 8812\nJobID           State ExitCode    Elapsed\n8812             FAILED      {}   03:12:11\n"
RATE = '{{"step": {}, "tokens_per_sec": {}, "loss": 2.3}}\n'
LOSS = "iteration {} | lm loss: {} | grad norm: 0.4\n"
EPOCH = "2026-04-02 08:{}:11: Epoch time: {} s\n"
GROUPS = "# one group at a time\n# group  ranks  algbw(GB/s)  busbw(GB/s)\n" + "".join(
    f"dp{i}  {i},{i + 8}  {speed}  {1.5 * speed}\n" for i, speed in enumerate((22.4, 44.0, 43.9, 44.1, 44.0))
)
TWO_NODES = "# 1 node\niter 100: 8 gpus, 412 samples/s\n# 2 nodes\niter 100: 16 gpus, 121 samples/s\niter 200: 16 gpus, 119 samples/s\n"  # noqa: E501
LAUNCH = "[ERROR] [launch.py:324:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', '--local_rank=1', '--dataset', '/data/corpus', '--save', '/ckpt/a'] exits with return code = {}\n"  # noqa: E501
RAISED = 'Traceback (most recent call last):\n  File "/work/{}.py", line 88, in {}\n    run()\n{}\n'
ANCDATA = "RuntimeError: received 0 items of ancdata"
CASES = {
    # Who stands still: what it did last, and who takes part.
    "all GPUs busy, no word": (STEPS + BUSY, "network"),
    "a freeze that somebody noticed by the clock": (
        "n:44:44 [0] NCCL INFO Connected all rings\n-- second terminal, 25 minutes later, no new line in run.log --\n",
        "network",
    ),
    "below the configuration, GPUs idle": (f"Config:\nnum_gpus_per_node: 8\n{STEPS}{IDLE}", "program"),
    "one process": (f"{STEPS}(freezes here, no error)\n", "program"),
    "ranks that wait for one another": (
        "rank 0: entering barrier 'epoch_end'\nrank 5: entering barrier 'epoch_end'\n(no more lines since 02:11)\n",
        "network",
    ),
    "while saving": (f"{STEPS}saving checkpoint to /ckpt/step_30 ...\n(hangs here, GPU utilization 0)\n", "storage"),
    "while restoring": ("restoring checkpoint shard 2 from /mnt/fs/it_100\nno progress since 40 minutes\n", "storage"),
    "while mapping": ("Map (num_proc=32):  98%|####8| 980000/1000000 [10:11<00:12, 1604.1 examples/s]\n^C\n", "data"),
    "at the start": (
        "[comm.py:668:init_distributed] Initializing TorchBackend with backend nccl\n^C\n", "rendezvous",
    ),
    "waiting for the others as last word": ("init_method tcp\nwaiting until the other nodes are there\n", "rendezvous"),
    # Numbers alone.
    "epochs now slow, now not": (
        "".join(EPOCH.format(i + 10, s) for i, s in enumerate((98.7, 98.6, 273.9, 278.5, 98.8, 98.7, 277.4, 98.7))),
        "program",
    ),
    "a rate that falls": (
        "".join(RATE.format(i, 182000 if i < 4 else 130000) for i in range(8)), "program",
    ),
    "a rate that falls little by little": ("".join(RATE.format(i, 15200 - 1100 * i) for i in range(6)), "program"),
    "an assertion on the device": (RAISED.format("train", "main", "RuntimeError: CUDA error: device-side assert triggered"), "program"),  # noqa: E501
    "an extension": (RAISED.format("train", "main", "RuntimeError: fused_adam_cuda extension is not available"), "program"),  # noqa: E501
    "one rank's rate": ("".join(f"rank {i}: {1205 if i == 2 else 3120} tokens/s\n" for i in range(5)), "program"),
    "two nodes beside one": (TWO_NODES, "network"),
    "groups of less bandwidth": (GROUPS, "network"),
    "a loss that climbs": (
        "".join(LOSS.format(i, x) for i, x in enumerate((1.92, 1.91, 2.01, 2.15, 2.33, 2.6, 2.9))), "program",
    ),
    "memory that climbs": ("".join(f"step {i} mem {41 + 4 * i}.0GB\n" for i in range(6)), "memory"),
    # Ends without words.
    "an exit code in sacct": (SACCT.format("1:0"), "program"),
    "a kill in sacct": (SACCT.format("0:9"), "memory"),
    "a request in sacct": (SACCT.format("0:15"), "scheduler"),
    "a kill behind a long command": (LAUNCH.format(-9), "memory"),
    "a launcher that counts": (
        "mpirun detected that one or more processes exited with non-zero status, thus causing the job to be terminated\n",  # noqa: E501
        "program",
    ),
    "nobody says why": ("Process rank 3 exited with exit code 1\nall workers failed, giving up\n", "program"),
    # Objects of a scheduler.
    "a job that waits": (
        "$ squeue -u me\n JOBID PARTITION  NAME  USER ST TIME NODES NODELIST(REASON)\n 9911 gpu train me PD 0:00 8 (Resources)\n",  # noqa: E501
        "scheduler",
    ),
    "pods that wait": (
        "$ kubectl get pods\nNAME       READY   STATUS    RESTARTS   AGE\ntrain-0    0/1     Pending   0          44m\n",  # noqa: E501
        "scheduler",
    ),
    "no pods at all": (
        "$ kubectl create -f job.yaml\npytorchjob.kubeflow.org/a created\n$ kubectl get pods -n ml\nNo resources found in ml namespace.\n",  # noqa: E501
        "scheduler",
    ),
    "a container again and again": (
        "Warning  BackOff  2m (x21 over 7m)  kubelet  Back-off restarting failed container in pod t-0\n", "program",
    ),
    # What a program raises.
    "a limit of open files": (RAISED.format("train", "main", "OSError: [Errno 24] Too many open files: '/data/1.npy'"), "configuration"),  # noqa: E501
    "descriptors that did not come": (RAISED.format("train", "main", ANCDATA), "configuration"),
    "a key of a sample": (RAISED.format("data_loader", "__getitem__", "KeyError: 'input_ids'"), "data"),
    "a value of no class": (RAISED.format("train", "main", "ValueError: signal only works in main thread of the main interpreter"), "program"),  # noqa: E501
    "a pipe that ended": (RAISED.format("pool", "recv", "EOFError"), "program"),
    "hardly a word": (RAISED.format("serve", "main", "RuntimeError: Engine core initialization failed. See root cause above."), "program"),  # noqa: E501
    "no room for a group": (RAISED.format("tune", "main", "TimeoutError: Placement group creation timed out. Make sure your cluster has enough resources."), "scheduler"),  # noqa: E501
    "a certificate": ("ERROR: cannot verify data.samples.org's certificate, issued by X\n", "network"),
    "an address": ("error: failed to fetch some objects from 'https://git.samples.org/dataset.git/info/lfs'\n", "network"),  # noqa: E501
    "an option of Rust": (
        "thread 'main' panicked at src/lib.rs:44:9:\ncalled `Option::unwrap()` on a `None` value\n", "program",
    ),
}  # fmt: skip
NOTHING = {
    "even steps": STEPS + STEP.format(40),
    "slow while it saves": "".join(f"step {i} took {1.9 if i % 4 == 3 else 0.4} s loss 2.0\n" for i in range(12)),
    "the first steps compile": "".join(RATE.format(i, 1022 if i < 2 else 82000 + i) for i in range(8)),
    "a loss before a rate": "".join(f"step {i} loss {9 - i}.5 tokens/s {82000 + i}\n" for i in range(7)),
    "the time so far": "".join(f"step {i}00 elapsed {60 * i + 1}.0s loss {9 - i}.1\n" for i in range(1, 8)),
    "a loss that wavers": "".join(LOSS.format(i, x) for i, x in enumerate((2.11, 2.31, 2.05, 2.25, 2.35, 2.01))),
    "bandwidth by size": "# size  count  type  busbw(GB/s)\n8  2  float  0.1\n1024  256  float  2.2\n65536  9  float  33.0\n131072  9  float  193.5\n",  # noqa: E501
}


@pytest.mark.parametrize("name", CASES)
def test_an_abstention_has_a_class(tmp_path: Path, name: str) -> None:
    text, kind = CASES[name]
    primary = triage_text(tmp_path, text, "log.log").primary
    assert primary is not None
    assert primary.cause in ("unclassified", "unknown-death", "python-exception")
    assert (primary.kind or "program") == kind


@pytest.mark.parametrize("name", NOTHING)
def test_a_run_that_gets_on_is_not_spoken_of(tmp_path: Path, name: str) -> None:
    with suppress(NotAJobError):  # where nothing in it is a run's word
        assert triage_text(tmp_path, NOTHING[name], "log.log").primary is None


def test_a_slower_run_is_about_time(tmp_path: Path) -> None:
    text = "".join(f"epoch {i} took {seconds} s\n" for i, seconds in enumerate((8, 8, 8, 8, 20, 21, 20, 20)))
    primary = triage_text(tmp_path, text, "log.log").primary
    assert primary is not None
    assert (primary.cause, primary.kind) == ("tgs-degradation", "time")


def test_one_echoed_variable_is_no_header(tmp_path: Path) -> None:
    echoed = "SLURM_JOB_NODELIST=n[1-2]  SLURM_NTASKS=8\n"
    primary = triage_text(tmp_path, f"{echoed}{STEPS}on the new partition it is 3x slower\n", "log.log").primary
    assert primary is not None
    assert primary.kind == "program"


def test_classes_without_words() -> None:
    assert [kind_of_end(signal, None) for signal in (9, 11, 15)] == ["memory", "program", "scheduler"]
    assert (kind_of_end(None, 1), kind_of_end(None, 0), kind_of_end(64, None)) == ("program", "", "")
    assert kind_of_signature("pod-not-started") == "scheduler"
    assert not kind_of_signature("unnamed-error")
    assert kind_of_cause("cpu-contention") == "configuration"
    assert kind_of_cause("collective-hang", "Heartbeat monitor timed out!") == "network"


def test_exceptions_that_any_code_raises_only_lean() -> None:
    assert kind_of(["ValueError: the shape of the tensor"], exception="ValueError") == "program"
    assert kind_of(["ValueError: it"], exception="ValueError") == "configuration"
    assert kind_of(["no more"], exception="IsADirectoryError") == "storage"
