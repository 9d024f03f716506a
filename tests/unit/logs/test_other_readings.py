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
    "a record of the data": (
        TRACE + "tensorflow.python.framework.errors_impl.DataLossError: corrupted record at 12\n",
        "checkpoint-corrupt",
    ),
    "a checkpoint for which there is no room": (
        TRACE
        + "tensorflow.python.framework.errors_impl.InternalError: Error writing (tmp) checkpoint file: /home/u/model.ckpt-8: Resource exhausted: \n",
        "oom-gpu",
    ),
    "a person's end of what kept failing": (
        "(raylet, ip=10.8.0.6) [2026-09-12 15:44:31,354 E 6 6] core_worker.cc:137: Failed to register worker b52 to Raylet: no available ports\n... (repeats every 60 s, cancelled by hand 17:20)\n",
        "user-cancel",
    ),
    "a handle that could not be made": (
        TRACE + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n",
        "oom-gpu",
    ),
    "a limit that was passed at some point": (
        "slurmstepd: error: Exceeded job memory limit at some point. Job may have been partially swapped out to disk.\n"
        + ERROR,
        "oom-host",
    ),
    "a GPU that is not seen any more": (
        "Warning  NvidiaDeviceCountMismatch  6m  agent  The number of GPUs visible through NVML (7) does not match the number of devices on the filesystem\n"
        + ERROR,
        "config-error",
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
    "a notice in other words": (
        "metadata poll: instance/preempted -> TRUE\nThis instance is being preempted; stopping\n",
        "preempted",
    ),
    "a container's bridge": (
        "NCCL WARN Net : Connect to 172.19.0.1<51733> failed : Connection refused\n"
        + TRACE
        + "RuntimeError: NCCL error: unhandled system error\n",
        "nccl-nic-fail",
    ),
    "a main thread in its loader": (
        'save model: models/a_1.pth\n*** nothing printed for 5 h ***\n$ py-spy dump --pid 7\nThread 7 (idle): "MainThread"\n    wait (threading.py:295)\n    _get_batch (torch/utils/data/dataloader.py:259)\n',
        "dataloader-hang",
    ),
    "a warning that nvidia-smi confirms": (
        "/opt/torch/cuda/__init__.py:88: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non supported HW\nAssertionError: no GPU visible\n$ nvidia-smi\nFailed to initialize NVML: Driver/library version mismatch\n",
        "gpu-driver-fault",
    ),
    "who goes and who says why": (
        "RPC agent for t3 encountered error: transport retry counter exceeded (this error originated at tensorpipe/transport/ibv/c.cc:4)\n[2026-06-18 14:02:41] ERROR pipeline: exiting rank 3\n",
        "rdma-link-failure",
    ),
    "a loss that does not come back": (
        "".join(f"step {i} loss={3.2 - 0.01 * i if i < 8 else 10.1 - 0.01 * i:.3f}\n" for i in range(14)),
        "loss-divergence",
    ),
    "rows of a step and its loss": (
        "Step  Loss\n"
        + "".join(f"{n} 2.{n}\n" for n in range(10, 50, 10))
        + "".join(f"{n} nan\n" for n in range(50, 90, 10))
        + "^C\n",
        "loss-divergence",
    ),
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


def test_an_end_by_hand_is_no_cause_where_the_run_had_not_got_on(tmp_path: Path) -> None:
    text = (
        "[rank0] start: total_steps=90\nNCCL version 2.21.5\nrank=0: before forward (step=0)\n\n   --- 9 min, no further line from any rank ---\n\n"
        "^C\nTraceback (most recent call last):\nKeyboardInterrupt\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.kind) == ("unclassified", "network")


def test_what_is_written_above_a_part_of_an_excerpt_is_no_error_of_it(tmp_path: Path) -> None:
    text = (
        "== rank log (2 nodes, stuck since 16:20:31) ==\n16:20:30 [r00] connection setup done\n\nnode-a$ ibstat\n"
        "CA 'mlx5_0'\n\t\tState: Active\n\t\tPhysical state: LinkUp\nCA 'mlx5_3'\n\t\tState: Down\n\t\tPhysical state: Disabled\n"
    )
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.cause == "network-link-down"


def test_more_that_runs_than_processors(tmp_path: Path) -> None:
    text = "epoch 3 took 2611 s\n$ nproc; cat /proc/loadavg\n28\n{load} 168.90 160.37 183/2510 771902\n"
    found = triage_text(tmp_path, text.format(load="171.22")).primary
    assert found is not None
    assert found.cause == "cpu-contention"
    calm = triage_text(tmp_path, text.format(load="21.22")).primary
    assert calm is None or calm.cause != "cpu-contention"


def test_a_loss_that_jumps_and_a_run_beside_another(tmp_path: Path) -> None:
    jumps = "".join(
        f"{{'loss': {-0.6 - 0.004 * i + (0.2 if i in (6, 11) else 0):.3f}, 'epoch': {i}}}\n" for i in range(15)
    )
    found = triage_text(tmp_path, jumps).primary
    assert found is not None
    assert (found.cause, found.kind) == ("unclassified", "program")
    smooth = triage_text(tmp_path, "".join(f"{{'loss': {-0.6 - 0.004 * i:.3f}, 'epoch': {i}}}\n" for i in range(15)))
    assert smooth.primary is None
    beside = "Epoch 1: 100%|###| 625/625 [21:09<00:00,  2.03s/it]\n" * 2 + "\nfor comparison, last week:\n"
    beside += "Epoch 1: 100%|###| 625/625 [02:17<00:00,  4.55it/s]\n" * 2
    found = triage_text(tmp_path, beside).primary
    assert found is not None
    assert (found.cause, found.kind) == ("unclassified", "program")
