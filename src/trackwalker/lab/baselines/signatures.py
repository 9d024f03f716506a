"""Upstream's failure classes in the order of its table: the first class with a match anywhere in the log wins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.lab.baselines.verdict import Claim, verdict

# (class, the cause id that says the same, signatures); order is meaning, and so are its known mistakes: "Out of memory"
# stands for the host's before the GPU's, wrappers come before what they wrap.
TABLE: list[tuple[str, str, str]] = [
    ("container-pull-fail", "container-pull-fail", r"\[ERROR\] (?:Pull failed for|Authenticated pull failed|Login to)"),
    ("container-load-fail", "container-load-fail", r"\[ERROR\] Unable to determine image name or ID"),
    ("no-gpu", "no-gpu", r"WARNING: No GPU devices detected"),
    ("nccl-nic-fail", "nccl-nic-fail", r"NCCL FATAL|Failed to auto-detect NCCL_SOCKET_IFNAME"),
    ("port-fail", "port-fail", r"FATAL: Could not find a free port for"),
    ("model-not-found", "model-not-found", r"!!! Unknown model:|!!! Model name resolution failed"),
    ("patch-branch-fail", "patch-branch-fail", r"\[FAIL\] Failed to check out"),
    ("preflight-timeout", "preflight-timeout", r"== Preflight TIMEOUT"),
    ("pull-timeout", "pull-timeout", r"== Docker pull TIMEOUT"),
    ("ecc-timeout", "ecc-timeout", r"== ECC check TIMEOUT"),
    ("train-timeout", "train-timeout", r"== Training TIMEOUT"),
    ("heartbeat-timeout", "heartbeat-false-positive", r"stopped sending heartbeats|The tasks have crashed"),
    ("oom-host", "oom-host", r"\bKilled\b|oom-kill|Out of memory"),
    ("oom-gpu", "oom-gpu", r"RESOURCE_EXHAUSTED|ResourceExhausted|OUT_OF_MEMORY|out of memory|XLA_ERROR"),
    (
        "nccl-timeout",
        "nccl-error",
        r"NCCL WARN Timeout|NCCL error|ncclSystemError|Timeout waiting for|NCCL WARN (?!MSCCL|LL cutoff)",
    ),
    ("xla-compile-fail", "xla-compile-fail", r"INTERNAL: Failed to compile|XLA compilation failed|HloModule.*error"),
    ("python-exception", "python-exception", r"Traceback \(most recent call last\):"),
    ("signal-kill", "segfault", r"Training subprocess killed by"),
    ("subprocess-fail", "python-exception", r"Training subprocess exited with code"),
    ("actor-fail", "python-exception", r"Actor failed:"),
    ("checkpoint-fs-error", "checkpoint-fs-error", r"Checkpointing failed|manifest\.ocdbt\.__lock"),
    ("cancelled", "user-cancel", r"CANCELLED \(scancel / SIGTERM\)"),
    ("node-fail", "node-death", r"NODE_EXIT host=\S+ exit=(?!143\b|0\b)\d+"),
    ("stage-fail", "config-error", r"== .* FAILED \(exit="),
]
_COMPILED = [(name, cause, re.compile(pattern)) for name, cause, pattern in TABLE]
_STATUS = re.compile(r"^\s*Status:\s*(\S+)(?: \(exit (\d+)\))?", re.MULTILINE)


@dataclass(frozen=True)
class Hit:
    """The first match of the first class that has one."""

    name: str
    cause: str
    line: int
    text: str


def read_log(job: Path) -> str:
    """The merged log of a job."""
    return (job / "log").read_text(errors="replace")


def first_class(text: str) -> Hit | None:
    """Table order, first match wins."""
    for name, cause, pattern in _COMPILED:
        match = pattern.search(text)
        if match:
            line = text.count("\n", 0, match.start())
            return Hit(name, cause, line + 1, text.splitlines()[line])
    return None


def status_of(text: str) -> str:
    """What the summary says; without one the job is taken for running."""
    match = _STATUS.search(text)
    if match is None:
        return "running"
    if match[1] == "SUCCESS":
        return "completed"
    return "cancelled" if match[2] in ("130", "143") else "failed"


def grep_first(job: Path) -> dict[str, Any]:
    """The log alone: a class, or healthy."""
    text = read_log(job)
    hit = first_class(text)
    if hit is None:
        return verdict(status_of(text), "healthy")
    return verdict(status_of(text), "incident", [Claim(hit.cause, f"{job.name}.log:{hit.line}", hit.text)])
