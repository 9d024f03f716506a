"""Small logs for triage tests, in upstream's shape."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.errors import NotAJobError
from trackwalker.job.layout import Job

HEARTBEAT = (
    "0: E0212 19:58:10.0 99 coordination_service.cc:1146] UNAVAILABLE: The following tasks are unhealthy "
    "(stopped sending heartbeats):\n0: /job:jax_worker/replica:0/task:3\n0: The tasks have crashed.\n"
)
CANCEL = "slurmstepd: error: *** STEP 77.0 ON node001 CANCELLED AT 2026-02-11T16:00:49 ***\n"
NCCL = "{rank}: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, ncclSystemError\n"


def triage_text(folder: Path, text: str | bytes, name: str = "77-JAX-toy.log") -> Triage:
    """Triage of a log with this text."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return triage(Job("77", path, None))


def cause_of(folder: Path, text: str) -> str | None:
    """The cause that triage names; None where it takes the text for no log, or for one in which nothing failed."""
    with suppress(NotAJobError):
        primary = triage_text(folder, text).primary
        return primary.cause if primary else None
    return None


def left_open(folder: Path, text: str) -> str:
    """The class of a failure that triage leaves without a name."""
    primary = triage_text(folder, text).primary
    assert primary is not None
    assert primary.cause == "unclassified"
    return primary.kind


def header(nodes: int = 4, steps: int = 100, **config: object) -> str:
    """The first lines of a job of several nodes."""
    lines = [f"JOB_ID=77\nJOB_NAME=JAX-toy\nNNODES={nodes}\nJOB_NODELIST=node[001-{nodes:03d}]"]
    lines += ["== Preflight BEGIN (timeout=900s) ==", "== Preflight END (12s) ==", "== Training BEGIN (no timeout) =="]
    lines += [f"0: Config param {k}: {v}" for k, v in {"steps": steps, **config}.items()]
    return "\n".join(lines) + "\n"


def steps(last: int, nodes: int = 4, first: int = 0, seconds: float = 10.0, label: str = "{rank}: ") -> str:
    """Step lines of every rank."""
    return "".join(
        f"{label.format(rank=rank)}completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: 400.0, "
        f"Tokens/s/device: {40960 / seconds:.3f}, total_weights: 1024, loss: {10 - step / 100:.3f}\n"
        for step in range(first, last + 1)
        for rank in range(nodes)
    )


def ending(code: int = 1, reason: str = "Training FAILED (exit=1)", wall: str = "0h 20m 0s") -> str:
    """The closing block."""
    rule = "=" * 26
    status = "SUCCESS (exit 0)" if code == 0 else f"FAILED (exit {code}) — {reason}"
    return f"{rule} JOB SUMMARY {rule}\n  Job:    77 (JAX-toy)\n  Nodes:  4\n  Wall:   {wall}\n  Status: {status}\n{rule}\n"  # noqa: E501


def role(found: Triage, name: str) -> str:
    """The role that triage gave a finding."""
    return next(f.role for f in found.roles.findings if f.id == name)
