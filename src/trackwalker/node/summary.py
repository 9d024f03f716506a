"""Upstream's closing block of a job log, which other tools parse."""

from __future__ import annotations

from trackwalker.node.spec import AgentSpec


def summary_block(spec: AgentSpec, seconds: int, code: int, reason: str) -> str:
    """JOB SUMMARY with job, model, nodes, wall time and status."""
    status = "SUCCESS (exit 0)" if code == 0 else f"FAILED (exit {code})" + (f" — {reason}" if reason else "")
    rows = [
        f"  Job:    {spec.job_id} ({spec.job_name})",
        f"  Model:  {spec.model}",
        f"  Nodes:  {spec.nodes}",
        f"  Wall:   {wall(seconds)}",
        f"  Status: {status}",
    ]
    return "\n".join([" JOB SUMMARY ".center(65, "="), *rows, "=" * 65]) + "\n"


def wall(seconds: int) -> str:
    """A duration as the summary prints it: 7s, 3m 4s, 1h 2m 3s."""
    hours, rest = divmod(seconds, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h {minutes}m {secs}s"
    return f"{minutes}m {secs}s" if minutes else f"{secs}s"
