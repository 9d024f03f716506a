"""What was not collected, in words: metrics have names, the engine's own questions have ids that say little."""

from __future__ import annotations

# What the engine asks besides metrics, as the data that would answer it.
_DATA = {
    "accused-kept-stepping": "steps of the ranks that were called dead",
    "accused-were-alive": "process states of the ranks that were called dead",
    "all-steps-done": "the number of steps",
    "balance-loss-shifted": "the load-balancing loss of every step",
    "bursts-slow-steps": "step times beside RDMA counters",
    "cancelled": "how the job ended",
    "constant-speed": "enough step times",
    "disk-fills": "free disk space over time",
    "finished-or-advancing": "how the job ended",
    "flaps-slow-steps": "step times beside the state of RDMA links",
    "foreign-database": "recorded metrics",
    "frozen-exporter": "recorded metrics",
    "growing-saves": "durations of several checkpoints",
    "heartbeat-claim": "lines about heartbeats in the log",
    "idle-in-slow-steps": "GPU use within slow steps",
    "isolated-spikes": "enough step times",
    "long-saves": "durations of checkpoints",
    "loss-went-wrong": "the loss of every step",
    "lossy-receiver": "RDMA counters of both ends",
    "lost-to-compile": "time spent in compilation",
    "lost-to-cpu": "time that ranks waited for a CPU",
    "lost-to-data": "time that ranks waited for data",
    "lost-to-idle": "GPU use within slow steps",
    "lost-to-save": "time spent in checkpoints",
    "memory-grows": "host memory over time",
    "no-step-completed": "steps",
    "odd-rank-in-data": "what each rank was doing",
    "params-initialised": "lines about the start in the log",
    "profiler-steps": "when the profiler ran",
    "rank-crashed": "how each rank ended",
    "rank-killed": "how each rank ended",
    "recompiled": "time spent in compilation",
    "scrape-gap": "recorded metrics",
    "single-replica-restored": "how the checkpoint was restored",
    "stacks-wait": "stacks of the ranks",
    "stalled": "times of the last steps",
    "start-overdue": "when the start-up began",
    "starting-up": "how far the start-up came",
    "stopped-together": "the last step of every rank",
    "storage-stalled": "waiting times of storage",
    "traceback": "tracebacks in the log",
}


def lacking(missing: list[str]) -> list[str]:
    """What was not collected: metrics by their names, everything else in words."""
    return list(dict.fromkeys(_DATA.get(name, name) for name in missing))
