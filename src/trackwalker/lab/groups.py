"""Which group a case belongs to: the groups of the verdict's cause table, or the outcome where nothing is wrong."""

from __future__ import annotations

from trackwalker.lab.scenario import Truth

_GROUPS = {
    "before training": """rendezvous-incomplete missing-library gpu-arch-mismatch shm-too-small memlock-limit
        fabric-manager-down p2p-unavailable rdma-misconfigured clock-skew prolog-kill container-pull-fail
        container-load-fail no-gpu nccl-nic-fail port-fail model-not-found patch-branch-fail preflight-timeout
        pull-timeout ecc-timeout preflight-ipv6-rules preflight-gpu-busy dmabuf-guard xla-unknown-flag k8s-rendezvous
        config-error""",
    "crash": """peer-died host-kernel-fault storage-full storage-error storage-rate-limit checkpoint-restore-mismatch
        oom-gpu oom-host host-memory-leak collective-alloc-fail xla-compile-fail python-exception segfault
        gpu-hardware-fault gpu-driver-fault node-death nccl-error network-link-down checkpoint-fs-error
        checkpoint-corrupt coordinator-overload""",
    "stop": """collective-mismatch compile-divergence dataloader-hang unkillable-step collective-hang silent-compile-oom
        heartbeat-false-positive heartbeat-init-timeout train-timeout walltime preempted user-cancel unknown-death""",
    "slow": """rdma-degradation rdma-link-failure fabric-congestion congestion-control-misconfigured
        gpu-thermal-throttle gpu-power-cap gpu-clock-degraded gpu-shared cpu-contention restore-thread-leak input-stall
        storage-degradation storage-filling moe-routing-shift recompilation config-difference""",
    "training": "loss-divergence silent-data-corruption",
    "observer": "telemetry-ghost telemetry-gap wrong-tsdb",
}
_OF_CAUSE = {cause: group for group, causes in _GROUPS.items() for cause in causes.split()}
ORDER = [*_GROUPS, "other", "several causes", "expected", "healthy", "insufficient-evidence"]


def group_of(truth: Truth) -> str:
    """The row of the scoreboard that a truth counts in."""
    if truth.outcome != "incident":
        return truth.outcome
    if len(truth.roots) > 1:
        return "several causes"
    return _OF_CAUSE.get(truth.roots[0].cause, "other") if truth.roots else "other"
