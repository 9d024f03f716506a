"""Words that stand in a cause's lines and, in these, mean something else: a setting, a table, a warning, another place."""
# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import steps, triage_text

TRACE = 'Traceback (most recent call last):\n  File "/app/train.py", line 40, in main\n    step()\n'
ERROR = TRACE + "ValueError: no such shard\n"
# What the log says, and the specific cause that it does not tell.
OTHERWISE = {
    "a setting that preemption would need": (
        "signal handler for SIGUSR1 registered (checkpoint and requeue)\n" + ERROR,
        "preempted",
    ),
    "states that a script looks for": ('retry_on = ["NODE_FAIL", "PREEMPTED", "TIMEOUT"]\n' + ERROR, "node-death"),
    "states that a script looks for, preempted": ("requeue when: PREEMPTED|NODE_FAIL|TIMEOUT\n" + ERROR, "preempted"),
    "memory that is given back": ("cached blocks are being reclaimed by the allocator\n" + ERROR, "preempted"),
    "a limit that is told": ("walltime limit: 24:00:00\n" + ERROR, "walltime"),
    "what nodes are checked for": ("node failure detection is on (interval 30 s)\n" + ERROR, "node-death"),
    "what would happen": ("snapshots are kept in case of node failure\n" + ERROR, "node-death"),
    "an eviction without its reason": ("Status:   Failed\nReason: Evicted\n", "oom-host"),
    "a file system's tool that is not there": (
        "INFO: squashfuse is missing, squashfs images are not mounted\n" + ERROR,
        "container-load-fail",
    ),
    "a plugin of something else": (
        "ERROR tokenizer.plugins: Plugin initialization failed: no vocabulary\n",
        "container-load-fail",
    ),
    "an exception with such a name": (
        TRACE + "ServerStartError: the dashboard did not come up\n",
        "container-load-fail",
    ),
    "one operator on the host": ("WARNING: aten::foo has no kernel here. Falling back to CPU\n" + ERROR, "no-gpu"),
    "an interface that is told": ("NCCL_SOCKET_IFNAME=eth0 fail_fast=1\n" + ERROR, "nccl-nic-fail"),
    "a client without a reverse name": (
        "[W129 16:20:14.2 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n"
        + ERROR,
        "rendezvous-incomplete",
    ),
    "a site outside": (
        TRACE
        + "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='data.example.org', port=443): Max retries exceeded with url: /a (Caused by NameResolutionError(\"Temporary failure in name resolution\"))\n",
        "rendezvous-incomplete",
    ),
    "a controller that does not answer": (
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
        "config-error",
    ),
    "a file of a checkpoint": (
        TRACE + "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/step_400/trainer_state.json'\n",
        "config-error",
    ),
    "a child whose parent is gone": (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 126, in _main\n    self = reduction.pickle.load(from_parent)\nEOFError: Ran out of input\n'
        + ERROR,
        "checkpoint-corrupt",
    ),
    "steps that went apart": ("ERROR: replicas 3 and 4 are out of sync at this time step\n", "clock-skew"),
    "a module of the program": (
        TRACE + "ImportError: attempted relative import with no known parent package\n",
        "missing-library",
    ),
    "a key that differs": (
        "srun: error: Task launch for StepId=7.0 failed on node cn-3: Invalid job credential\n",
        "clock-skew",
    ),
    "a matrix product": (
        TRACE + "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`\n",
        "missing-library",
    ),
    "another mosaic": ("ERROR Mosaic streaming: dataset error in shard 7\n", "xla-compile-fail"),
    "a file that is damaged": (TRACE + "OSError: '/data/index' is not a valid JSON file\n", "config-error"),
}


@pytest.mark.parametrize(("text", "cause"), OTHERWISE.values(), ids=OTHERWISE)
def test_the_same_words_say_something_else(tmp_path: Path, text: str, cause: str) -> None:
    found = triage_text(tmp_path, steps(20) + text).primary
    assert found is not None
    assert found.cause != cause


# And what the words do tell.
TOLD = {
    "a machine's own notice": (
        "GCP metadata instance/preempted changed to TRUE, the machine will be reclaimed\n",
        "preempted",
    ),
    "a signal that came": ("Received SIGUSR1: saving a checkpoint, then requeue\n", "preempted"),
    "a row of a table": ("tpu-w3  us-central2-b  v4-32  PREEMPTED\n", "preempted"),
    "an event": ("Warning  Preempted  3m  default-scheduler  Preempted by pod 77 on node gk-3\n", "preempted"),
    "a node": ("srun: error: Force Terminated StepId=7.0 DUE TO NODE FAILURE on cn-4\n", "node-death"),
    "a state": ("slurm: job 7 NODE_FAIL\n", "node-death"),
    "an eviction for memory": (
        "Reason: Evicted\nMessage: The node was low on resource: memory. Container train was using 90Gi\n",
        "oom-host",
    ),
    "an eviction for disk": (
        "Reason: Evicted\nMessage: Pod ephemeral local storage usage exceeds the total limit of containers 20Gi.\n",
        "storage-full",
    ),
    "a driver that is not there": (
        "WARNING: An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.\n"
        + ERROR,
        "no-gpu",
    ),
    "a coordinator without an address": (
        TRACE + "socket.gaierror: [Errno -3] Temporary failure in name resolution\n",
        "rendezvous-incomplete",
    ),
    "a setting that is not there": (
        TRACE + "FileNotFoundError: [Errno 2] No such file or directory: 'configs/ds_config.json'\n",
        "config-error",
    ),
}


@pytest.mark.parametrize(("text", "cause"), TOLD.values(), ids=TOLD)
def test_the_words_tell_it(tmp_path: Path, text: str, cause: str) -> None:
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.cause == cause
