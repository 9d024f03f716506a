"""The line shapes of a MaxText job: upstream's launcher, MaxText, JAX's coordination service, Slurm."""

from __future__ import annotations

import re

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|\x1b\(B")
TASK_LABEL = re.compile(r"^\s*0*(\d+): ")
RAY_LABEL = re.compile(r"^\((?:[\w.]+ )?pid=\d+(?:, ip=[^)]*)?\) ?")
GLOG = re.compile(r"^[IWEF](\d{2})(\d{2}) (\d{2}):(\d{2}):(\d{2}(?:\.\d+)?) +\d+ [\w.+-]+:\d+\] ?")

HEADER = re.compile(
    r"^(?:SLURM_)?(JOB_ID|JOB_NAME|NNODES|JOB_NODELIST|NODELIST_EXPANDED|JAX_COORDINATOR_PORT|RAY_PORT|PASSTHROUGH_ARGS"
    r"|MODEL_NAME|MODEL_NAME_ALIAS|EXP_TAG)=(.*)$"
)
CONFIG = re.compile(r"Config param (\w+): (.*)$")
STAGE = re.compile(
    r"^== (?P<name>[A-Za-z ]+?) (?P<what>BEGIN|END|TIMEOUT|FAILED)(?: \((?:exit=(?P<exit>\d+), )?(?P<seconds>\d+)s)?"
)
SAVED = re.compile(  # MaxText's, Megatron's, DeepSpeed's, Hugging Face's, NeMo's
    r"(?:Saved a checkpoint at step +|successfully saved checkpoint from iteration +|Checkpoint global_step(?=\d+ is ready now)"
    r"|Saving model checkpoint to \S*checkpoint-|checkpoint save for step +(?=\d+ .*finalized successfully))(\d+)"
)
# A profiler's own words for its beginning and, asked first, its end: trainers say it in many ways.
_PROFILER = r"(?:torch |cuda |xla |jax |pytorch )?(?:profiler|profiling)\b"
PROFILES = re.compile(
    rf"(?i)^.{{0,120}}?\b(?:(?:activat|start|begin|enabl)\w* (?:the )?{_PROFILER}|{_PROFILER} (?:is )?(?:now )?(?:active|activated|started|enabled|on)\b)"
)
PROFILED = re.compile(
    rf"(?i)^.{{0,120}}?\b(?:(?:deactivat|stop|end|finish|dump|disabl)\w* (?:of )?(?:the )?(?:dumping )?{_PROFILER}"
    rf"|{_PROFILER} (?:is |has )?(?:deactivated|stopped|ended|finished|done)\b)"
)
SAVED_NOW = "Finished saving the checkpoint"  # torchtitan's, which names no step
COMPILING = re.compile(
    r"Compiling module|[Cc]ompilation of |[Rr]ecompiling function |Compiling .{1,120} with global shapes|TRACING CACHE MISS|torch\._dynamo hit config\.(?:recompile|cache_size)_limit"
)
MEMORY = re.compile(r"Using \(GB\) (\d{1,9}\.?\d*) / (\d{1,9}\.?\d*) .{0,40}?on (\w{1,20}):(\d{1,6})$")
GPU_KINDS = frozenset({"rocm", "cuda", "gpu"})
COMPILED = re.compile(r"Temp size: (\d{1,9}\.?\d*) ?GB")
TFLOPS = re.compile(r"Total TFLOPs: *(\d+\.?\d*)")
SPLIT = re.compile(r"split as [\d.]+% learnable weight flops and (\d+\.?\d*)% attention flops")
PEAK = re.compile(r"\[MFU\].{0,200}?peak=(\d+\.?\d*)")
MEM_FRACTION = re.compile(r"^XLA_PYTHON_CLIENT_MEM_FRACTION=(0?\.\d+)$")
COREDUMP = re.compile(
    r"\[coredump\] (?:Writing\.\.\. .*\(|Write complete: .* after |WARNING: Timeout after )(\d{1,6})s"
)
# Of the environment only what reaches the GPUs and the network; the rest holds names, places and secrets.
STEERS = (
    r"(?:(?:XLA|NCCL|RCCL|HSA|HIP|ROCR?|JAX|LIBTPU|NVTE|CUDA|TF|OMP|UCX|FI|MIOPEN|MSCCLPP|GPU|AMD|IBV|RDMAV)_[A-Z0-9_]+"
    r"|(?:DOCKER_)?IMAGE|LD_PRELOAD|RAY)"
)
VARIABLE = re.compile(rb"\s*(?:0*(\d{1,6}): )?(?:\([^)]*\) )?(%b)=(.*)" % STEERS.encode())
COMMUNICATORS = ("NCCL WARN MSCCL++", "Init COMPLETE")
BROADCAST = ("SingleReplicaArrayHandler", "broadcast_one_replica_to_all")
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
# How many steps torchtitan and Hugging Face say at the start that they will do.
PLANNED = re.compile(r"(?:Training starts at step .*, total steps |Total optimization steps = )(\d[\d,]{0,14})")
RESTORED = re.compile(r"restoring from this run's directory step (\d+)")
NODE_EXIT = re.compile(r"NODE_EXIT host=(\S+) exit=(\d+)")
FIRST_FAILURE = re.compile(r"^FIRST_FAILURE rank=(\d+) host=(\S+) exit=(\d+) cause=(.*)$")
KILLED_BY = re.compile(r"\[Node (\d+) @ ([^\]\s]+)\] Training subprocess killed by (SIG\w+)")
SLURM_CANCEL = re.compile(
    r"\*\*\* (?:JOB|STEP) (\S+) ON (\S+) CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(.*?)\*\*\*"
)
# How srun tells that a task ended by itself: not by the SIGTERM (143) or the interrupt (130) that end all of them.
TASK_FAILED = re.compile(
    r"^srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code (?!(?:0|130|143)\b)\d+|Killed|Aborted|Bus error"
    r"|Segmentation fault|Illegal instruction|Floating point exception|Out Of Memory)"
)
# What torchtitan and Hugging Face, Lightning, and Megatron print when no step is left; and scripts, in plain words.
FINISHED = re.compile(
    r"(?:^|[\]:|-] )(?:Training completed\b|`?Trainer\.fit`? stopped: |\[?after training is done\b"
    r"|[Tt]raining (?:has |is )?(?:finished|complete|done)\W*$)"
)
ACCUSED = re.compile(r"/job:jax_worker/replica:\d+/task:(\d+)")
SUMMARY = re.compile(r"^=+ JOB SUMMARY =+")
STATUS = re.compile(r"Status:\s*(SUCCESS|FAILED)\s*\(exit\s+(\d+)\)(?:\s*—\s*(.*))?")
WALL = re.compile(r"Wall:\s*(?:(\d+)h )?(?:(\d+)m )?(\d+)s")

HEARTBEAT = "stopped sending heartbeats"
OWN_DEATH = (
    "Polled error from coordination service",
    "Polled an error from coordination service",
    "Terminating process because",
)
TRACEBACK = "Traceback (most recent call last):"

# One pass over the bytes looks for these words; only lines that hold one are decoded and matched.
NEEDLES = (
    b"Config param ", b"== ", b"NODE_EXIT ", b"FIRST_FAILURE ", b"killed by SIG", b"CANCELLED AT",
    b"srun: error: ", b"Training completed", b"Trainer.fit` stopped", b"after training is done",
    b"raining finished", b"raining has finished", b"raining is finished", b"raining complete", b"raining is complete", b"raining done",
    b"/task:", b"JOB SUMMARY", b"Status:", b"Wall:", b"Saved a checkpoint", b"restoring from this run", b", total steps ", b"Total optimization steps", HEARTBEAT.encode(),
    b"successfully saved checkpoint", b" is ready now", b"Saving model checkpoint", b"checkpoint save for step", SAVED_NOW.encode(), b"rofiler", b"rofiling",
    b"from coordination service", b"Terminating process because", b"Traceback (most recent", b"JOB_ID=", b"JOB_NAME=",
    b"NNODES=", b"JOB_NODELIST=", b"NODELIST_EXPANDED=", b"JAX_COORDINATOR_PORT=", b"RAY_PORT=", b"PASSTHROUGH_ARGS=", b"MODEL_NAME", b"EXP_TAG=",
    b"Synchronizing hosts before training loop", b"Memstats: After params", b"Compiling module", b"ompilation of ",
    b"ecompiling function ", b" with global shapes", b"TRACING CACHE MISS", b"torch._dynamo hit config.",
    *(word.encode() for word in (*COMMUNICATORS, *BROADCAST)),
    b"Using (GB) ", b"Temp size: ", b"Total TFLOPs:", b"% attention flops", b"[MFU] MFU tracking", b"[coredump] ", b"XLA_PYTHON_CLIENT_MEM_FRACTION=",
)  # fmt: skip
