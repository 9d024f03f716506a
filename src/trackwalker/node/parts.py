"""What one node does in each stage, and what the first node makes of everybody's answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.node.checks.compare import compare
from trackwalker.node.checks.result import FAIL, Context, Result
from trackwalker.node.checks.runner import CHECKS, gating, run_checks
from trackwalker.node.checks.table import lines
from trackwalker.node.containers import Container
from trackwalker.node.interfaces import Nic, nics
from trackwalker.node.network_plan import plan_network
from trackwalker.node.order import Order, Seat
from trackwalker.node.rendezvous import Note

_HEALTH = ("ecc",)
Say = Callable[..., None]


class Parts:
    """This node's part of the stages before training."""

    def __init__(self, order: Order, seat: Seat, job_dir: Path) -> None:
        self._order, self._seat, self._job_dir = order, seat, job_dir
        self._container = Container(order.container, seat, job_dir) if order.container else None
        self._context = Context(seat.host, order.nodes, order.expected_gpus, str(job_dir))

    def stages(self) -> list[str]:
        """The stages in which there is something to do."""
        return ["preflight", "pull", "health"] if self._container else ["preflight", "health"]

    def do(self, stage: str, deadline: float | None) -> Note:
        """Do this node's part; `ok` says whether the job may go on as far as this node is concerned."""
        if stage == "pull" and self._container is not None:
            return {"host": self._seat.host, **self._container.pull(deadline)}
        wanted = [check for check in CHECKS if (check.id in _HEALTH) == (stage == "health")]
        policy = {name: what for name, what in self._order.policy.items() if name in {c.id for c in wanted}}
        results = run_checks(self._context, policy, wanted)
        bad = gating(results)
        note: Note = {
            "host": self._seat.host,
            "t": time.time(),
            "ok": not bad,
            "results": [result.record() for result in results],
            "lines": lines(results),
        }
        if stage == "preflight":
            note["nics"] = [nic.record() for nic in nics()]
        return note

    def judge(self, stage: str, notes: dict[int, Note], say: Say) -> Note:
        """Whether the job goes on: no node failed, and they are alike where they must be."""
        exits = {str(rank): 1 for rank, note in sorted(notes.items()) if not note["ok"]}
        if stage == "preflight" and not exits:
            odd = compare([[Result(**r) for r in note["results"]] for _, note in sorted(notes.items())])
            say(*lines(odd))
            if any(result.status == FAIL for result in odd):
                return {"ok": False, "exit": 1, "exits": {}}
        return {"ok": not exits, "exit": 1 if exits else 0, "exits": exits}

    def network(self, notes: dict[int, Note], say: Say) -> Note:
        """Where the ranks meet: one plan for coordinator, collectives and metrics."""
        plan = plan_network([[Nic(**nic) for nic in notes[rank]["nics"]] for rank in range(self._order.nodes)], env)
        say(*plan.lines)
        return plan.record()

    def rank_command(self, rank: int, local: int, plan: Note) -> tuple[list[str], dict[str, str]]:
        """What one rank executes, and its environment."""
        order, seat = self._order, self._seat
        env: dict[str, str] = {
            "JOB_ID": seat.job_id,
            "JOB_NAME": order.name,
            "JOB_WORKSPACE": str(order.workspace),
            "JOB_DIR": self._job_dir.name,
            "NNODES": str(order.nodes),
            "NODE_RANK": str(seat.node_rank),
            "NODELIST_EXPANDED": ",".join(plan["hosts"]),
            "TRACKWALKER_HOST": seat.host,
            **order.env,
            **plan["env"],
        }
        if order.world > 1:
            env["JAX_COORDINATOR_IP"], env["JAX_COORDINATOR_PORT"] = plan["coordinator"], str(plan["port"])
        if order.procs > 1:
            env |= {"LOCAL_RANK": str(local), "GLOBAL_RANK": str(rank), "NPROCS": str(order.world)}
            env["LOCAL_WORLD_SIZE"] = str(order.procs)
        env |= order.overrides
        place = [] if order.output is None else [f"base_output_directory={order.output or self._job_dir}"]
        argv = [*order.argv, *place, *order.settings]
        return self._container.wrap(rank, argv, env) if self._container else (argv, env)
