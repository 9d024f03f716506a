"""What one node does in each stage, and what the first node makes of everybody's answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trackwalker.node.checks.compare import NodeReport, compare
from trackwalker.node.checks.result import FAIL, Check, Context, Result
from trackwalker.node.checks.runner import CHECKS, PLANNED, gating, run_checks
from trackwalker.node.checks.table import lines
from trackwalker.node.containers import Containers
from trackwalker.node.held_ports import HeldPorts, NoPort
from trackwalker.node.layer_choice import choose, fabric_of
from trackwalker.node.network_plan import NetworkPlan, NodeNet, NoNetwork, Wishes, plan_network, this_node
from trackwalker.node.order import Order, Seat
from trackwalker.node.rdma_env import UnsafeDmabuf, fabric_ports, rdma_env
from trackwalker.node.rdma_ports import ports
from trackwalker.node.rendezvous import Note
from trackwalker.node.runtimes import gpu_vendor
from trackwalker.node.runtimes.container import OrderError

_HEALTH = ("ecc",)
_PUBLIC = "TRACKWALKER_ALLOW_PUBLIC"
Say = Callable[..., None]


class Unfit(Exception):
    """The job cannot go on here; the message is a line for the log."""


class Parts:
    """This node's part of the stages before training."""

    def __init__(self, order: Order, seat: Seat, job_dir: Path, own: Path) -> None:
        self._order, self._seat, self._job_dir = order, seat, job_dir
        self._context = Context(seat.host, order.nodes, order.expected_gpus, str(job_dir))
        self._containers = Containers(order, seat, job_dir, own) if order.container else None
        self._held: HeldPorts | None = None
        self.image_digest = ""  # the same on all nodes, known to the first one once all have the image

    def stages(self) -> list[str]:
        """The stages in which there is something to do."""
        return ["preflight", "pull", "health"] if self._containers else ["preflight", "health"]

    def do(self, stage: str, deadline: float | None) -> Note:
        """Do this node's part; `ok` says whether the job may go on as far as this node is concerned."""
        if stage == "pull" and self._containers is not None:
            return {"host": self._seat.host, **self._containers.fetch(deadline)}
        wanted = [check for check in CHECKS if (check.id in _HEALTH) == (stage == "health")]
        results = run_checks(self._context, self._policy(wanted), wanted)
        note: Note = {"host": self._seat.host, "written_at": time.time(), "ok": not gating(results)}
        note["results"], note["lines"] = [result.record() for result in results], lines(results)
        if stage == "preflight":
            note["net"] = this_node(self._seat.host).record()
        return note

    def judge(self, stage: str, notes: dict[int, Note], say: Say) -> Note:
        """Whether the job goes on: no node failed, and they are alike where they must be."""
        exits = {str(rank): 1 for rank, note in sorted(notes.items()) if not note["ok"]}
        if stage == "preflight":
            reports = [
                NodeReport(
                    note["host"],
                    [Result(**r) for r in note["results"]],
                    written_at=note["written_at"],
                    seen_at=note["seen_at"],
                )
                for _, note in sorted(notes.items())
            ]
            known = {name: what for name, what in self._order.policy.items() if name.startswith("uniform_")}
            odd = compare(reports, known)
            say(*lines(odd, "all nodes"))
            if any(result.status == FAIL for result in odd):
                return {"ok": False, "exit": 1, "exits": exits}
        digests = {note["digest"]: note["host"] for note in notes.values()} if stage == "pull" else {}
        if len(digests) > 1 and not exits:
            say("[ERROR] the image is not the same everywhere: " + ", ".join(f"{d} on {h}" for d, h in digests.items()))
            return {"ok": False, "exit": 1, "exits": {}}
        self.image_digest = next(iter(digests), self.image_digest)
        return {"ok": not exits, "exit": 1 if exits else 0, "exits": exits}

    def network(self, notes: dict[int, Note], say: Say) -> Note:
        """Where the ranks meet: one plan for coordinator, collectives and metrics; raises Unfit when there is none."""
        given = self._order.overrides
        wishes = Wishes(
            socket_ifname=given.get("NCCL_SOCKET_IFNAME", ""),
            coordinator=given.get("JAX_COORDINATOR_IP", ""),
            network=self._order.listen,
            public=given.get(_PUBLIC, "") in ("1", "true"),
        )
        try:
            nets = [NodeNet.from_record(notes[rank]["net"]) for rank in range(self._order.nodes)]
            plan = plan_network(nets, wishes)
            self._held = HeldPorts(["JAX coordinator"], self._seat.job_id)
        except (NoNetwork, NoPort) as e:
            raise Unfit(f"FATAL: {e}") from e
        say(*plan.lines)
        port = given.get("JAX_COORDINATOR_PORT") or str(self._held.ports["JAX coordinator"])
        return {**plan.record(), "port": port}

    def release(self) -> None:
        """The ranks are about to bind what was held for them."""
        if self._held is not None:
            self._held.close()

    def rank_commands(self, plan: Note, say: Say) -> list[tuple[int, list[str], dict[str, str]]]:
        """Rank, words and environment of every rank of this node; raises Unfit."""
        order, seat = self._order, self._seat
        place = NetworkPlan.from_record({k: v for k, v in plan.items() if k not in ("port", "hosts")})
        shared = {
            **(self._layers(say) or order.env),
            "JOB_ID": seat.job_id,
            "JOB_NAME": order.name,
            "JOB_WORKSPACE": str(order.workspace),
            "JOB_DIR": self._job_dir.name,
            "NNODES": str(order.nodes),
            "NODE_RANK": str(seat.node_rank),
            "NODELIST_EXPANDED": ",".join(plan["hosts"]),
            "TRACKWALKER_HOST": seat.host,
        }
        if order.world > 1:
            shared["JAX_COORDINATOR_IP"], shared["JAX_COORDINATOR_PORT"] = plan["coordinator"], str(plan["port"])
        if order.nodes > 1 and place.places[seat.node_rank].socket_ifname:
            shared["NCCL_SOCKET_IFNAME"] = place.places[seat.node_rank].socket_ifname
        shared |= order.overrides
        shared |= self._fabric(shared, say)
        self._reach(plan, say)
        where = [] if order.output is None else [f"base_output_directory={order.output or self._job_dir}"]
        words = [*order.argv, *where, *order.settings]
        found = []
        for local in range(order.procs):
            rank = seat.node_rank * order.procs + local
            env = {**shared, **_process(order, rank, local)}
            try:
                argv, env = (words, env) if self._containers is None else self._containers.wrap(rank, words, env)
            except OrderError as e:
                raise Unfit(f"[ERROR] {seat.host}: {e}") from e
            found.append((rank, argv, env))
        return found

    def close(self) -> None:
        """Leave nothing of this job behind on the node."""
        self.release()
        if self._containers is not None:
            self._containers.close()

    def _layers(self, say: Say) -> dict[str, str]:
        if not self._order.layers:
            return {}
        env, name = choose(self._order.layers, gpu_vendor(), fabric_of(fabric_ports(ports())))
        if name:
            say(f"[INFO] {self._seat.host}: environment of {name.replace('/', ' GPUs on ')}")
        return env

    def _fabric(self, shared: Mapping[str, str], say: Say) -> dict[str, str]:
        try:
            found = rdma_env(self._seat.host, shared, set(self._order.overrides))
        except UnsafeDmabuf as e:
            raise Unfit(str(e)) from e
        say(*found.lines)
        return found.variables

    def _reach(self, plan: Note, say: Say) -> None:
        """Whether this node can get to where the ranks meet."""
        if self._order.nodes == 1 or self._seat.is_head:
            return
        context = replace(self._context, meeting=(plan["coordinator"], int(plan["port"])))
        results = run_checks(context, self._policy(PLANNED), PLANNED)
        say(*lines(results))
        if gating(results):
            raise Unfit(f"FATAL: {self._seat.host} does not reach the coordinator")

    def _policy(self, checks: Sequence[Check]) -> dict[str, str]:
        known = {check.id for check in checks}
        return {name: decision for name, decision in self._order.policy.items() if name in known}


def _process(order: Order, rank: int, local: int) -> dict[str, str]:
    """What tells the processes of one node apart; with one process a node the node's rank is enough."""
    if order.procs == 1:
        return {}
    return {
        "LOCAL_RANK": str(local),
        "GLOBAL_RANK": str(rank),
        "NPROCS": str(order.world),
        "LOCAL_WORLD_SIZE": str(order.procs),
    }
