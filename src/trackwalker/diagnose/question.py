"""A question in plain words: the verdict stays the same, its summary begins with what was asked."""

from __future__ import annotations

import re

from trackwalker.diagnose.verdict import Verdict

# A topic's words, the causes that answer it, and what to say when none was found.
TOPICS: dict[str, tuple[str, frozenset[str], str]] = {
    "speed": (
        r"slow|tgs|mfu|throughput|tokens|speed|step time|perf",
        frozenset(
            [
                "rdma-degradation",
                "rdma-link-failure",
                "fabric-congestion",
                "congestion-control-misconfigured",
                "gpu-thermal-throttle",
                "gpu-power-cap",
                "gpu-clock-degraded",
                "cpu-contention",
                "restore-thread-leak",
                "input-stall",
                "storage-degradation",
                "moe-routing-shift",
                "recompilation",
                "config-difference",
                "expected-checkpoint",
                "expected-profiler",
                "transient-blip",
            ]
        ),
        "no cause for a slowdown was found",
    ),
    "stop": (
        r"hang|hung|stuck|stall|freeze|frozen|stop|progress",
        frozenset(
            [
                "collective-hang",
                "dataloader-hang",
                "collective-mismatch",
                "node-death",
                "silent-compile-oom",
                "expected-compile",
                "heartbeat-init-timeout",
                "unkillable-step",
                "walltime",
                "preempted",
                "user-cancel",
            ]
        ),
        "the run is not known to have hung",
    ),
    "memory": (
        r"memory|oom|leak",
        frozenset(
            ["oom-gpu", "oom-host", "host-memory-leak", "silent-compile-oom", "collective-alloc-fail", "shm-too-small"]
        ),
        "no trouble with memory was found",
    ),
    "network": (
        r"network|nic|rdma|nccl|rccl|fabric|link|congest",
        frozenset(
            [
                "rdma-degradation",
                "rdma-link-failure",
                "fabric-congestion",
                "congestion-control-misconfigured",
                "nccl-error",
                "network-link-down",
                "rdma-misconfigured",
                "nccl-nic-fail",
                "storage-tcp-noise",
            ]
        ),
        "no trouble with the network was found",
    ),
    "loss": (
        r"loss|nan|diverg|gradient",
        frozenset({"loss-divergence", "silent-data-corruption"}),
        "the loss shows nothing unusual",
    ),
}


def answer(question: str, verdict: Verdict) -> Verdict:
    """The verdict with a summary that answers the question first; it says so when the answer lies elsewhere."""
    roots = {c.cause for c in verdict.causes if c.role == "root"}
    for words, causes, nothing in TOPICS.values():
        if re.search(words, question, re.IGNORECASE):
            if roots & causes:
                return verdict
            found = verdict.outcome == "incident"
            link = " What was found instead: " if found else " "
            return verdict.model_copy(
                update={"summary": f"Asked \u201c{_quoted(question)}\u201d: {nothing}.{link}{verdict.summary}"}
            )
    return verdict


def _quoted(question: str) -> str:
    return " ".join(question.split())[:80]
