"""The job directory as a node opens it: whoever comes first makes it, and nothing depends on who that was."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trackwalker.job.trust import make_folder
from trackwalker.job.whole import write_whole
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.stages.order import Order, Seat


def job_dir_of(order: Order, seat: Seat) -> Path:
    """Where the job is: the same on all nodes."""
    return order.workspace / f"{seat.job_id}-{order.name}"


def log_of(order: Order, seat: Seat) -> Path | None:
    """Slurm collects what every node prints; pods have no such friend and write files of their own."""
    if order.scheduler == "slurm":
        return None
    job_dir = job_dir_of(order, seat)
    return order.workspace / f"{job_dir.name}.log" if seat.is_head else job_dir / f"rank-{seat.node_rank}.log"


def share_of(order: Order, seat: Seat, ranks: Sequence[RankSpec] = (), **more: Any) -> AgentSpec:
    """A node's share of an order; `more` is what only the node itself knows."""
    return AgentSpec(
        seat.job_id, order.name, order.model, seat.host, job_dir_of(order, seat), log_of(order, seat), list(ranks),
        order.world, nodes=order.nodes, attempt=seat.attempt, **more,
    )  # fmt: skip


def open_job(order: Order, seat: Seat, submission: Path) -> None:
    """Make the job directory with its links and its record, where the submitter has not yet.

    One that somebody else put there raises PermissionError: what lies in it would be run and believed.
    """
    job_dir = job_dir_of(order, seat)
    job_dir.parent.mkdir(parents=True, exist_ok=True)
    make_folder(job_dir, submission.stat().st_uid)  # in a pod we may be root, and the submitter is not
    (job_dir / "agent" / f"attempt-{seat.attempt}").mkdir(parents=True, exist_ok=True)
    if not seat.is_head:
        return
    with contextlib.suppress(OSError):
        (submission / "job").symlink_to(Path("../..") / job_dir.name)
    with contextlib.suppress(FileExistsError):
        (job_dir / "log").symlink_to(Path("..") / f"{job_dir.name}.log")
    with contextlib.suppress(OSError):  # there already, or none was kept
        os.link(submission / "provenance.json", job_dir / "provenance.json")
    with contextlib.suppress(OSError, ValueError):
        if not (job_dir / "run.json").exists():
            record: dict[str, Any] = json.loads((submission / "run.json").read_text())
            write_whole(job_dir / "run.json", json.dumps({**record, "id": seat.job_id}, indent=1) + "\n")
        artifact = json.loads((job_dir / "run.json").read_text()).get("snapshot")
        if artifact and not (job_dir / "artifact").is_symlink():
            os.symlink(f"../.artifacts/{artifact}", job_dir / "artifact")


def place_ranks(job_dir: Path, hosts: list[str], procs: int, image_digest: str = "") -> None:
    """Write down which rank runs where and in which image, now that it is known."""
    places = [(n * procs + local, host, host) for n, host in enumerate(hosts) for local in range(procs)]
    write_places(job_dir, places, image_digest=image_digest)


def write_places(job_dir: Path, places: Iterable[tuple[int, str, str]], **more: str) -> None:
    """Which rank runs as which host on which machine, into the record of the run."""
    path = job_dir / "run.json"
    with contextlib.suppress(OSError, ValueError):
        record: dict[str, Any] = {**json.loads(path.read_text()), **more}
        record["ranks"] = [{"rank": rank, "host": host, "node": node} for rank, host, node in sorted(places)]
        write_whole(path, json.dumps(record, indent=1) + "\n")
