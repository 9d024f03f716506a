"""What one node does in each stage, and what the first node makes of everybody's answers."""

from __future__ import annotations

import errno
import socket
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from trackwalker.job.processes import read_bytes
from trackwalker.node.checks.compare import NodeReport, compare
from trackwalker.node.checks.result import FAIL, Check, Context, Result, lines
from trackwalker.node.checks.runner import CHECKS, PLANNED, gating, run_checks
from trackwalker.node.network.plan import NetworkPlan, NodeNet, NoNetwork, Wishes, plan_network, this_node
from trackwalker.node.network.rdma_env import UnsafeDmabuf, fabric_ports, rdma_env
from trackwalker.node.network.rdma_ports import Port, ports
from trackwalker.node.runtimes import gpu_vendor
from trackwalker.node.runtimes.container import OrderError
from trackwalker.node.runtimes.containers import Containers
from trackwalker.node.stages.order import Order, Seat
from trackwalker.node.stages.rendezvous import Note

_HEALTH = ("ecc",)
_PUBLIC = "TRACKWALKER_ALLOW_PUBLIC"
Say = Callable[..., None]


# Which layers of the environment hold on this node: that of its GPUs, that of its network.
_DRIVERS = ("ionic", "mlx5", "bnxt", "efa")
SOCKETS = "tcp"


# The coordinator's port, held by binding it until the rank that needs it starts.
KNOWN = frozenset((6006, 8265, 9190, 9400, 55080))  # TensorBoard, Ray's dashboard, Prometheus, exporter, Ray's metrics
_FIRST, _LAST = 20000, 65535  # above those that Ray gives to its workers, whoever else may want them


class NoPort(Exception):
    """Every port is taken."""


def hold_port(name: str, job_id: str = "", avoid: Collection[int] = (), proc: str = "/proc") -> socket.socket:
    """A free port, bound on all addresses, because the service may bind them all, and not listening, so that nobody can
    connect; another job that looks for ports on this host finds it taken."""
    held = next(filter(None, map(_bound, _candidates(job_id, avoid, proc))), None)
    if held is None:
        raise NoPort(f"Could not find a free port for {name}")
    return held


def _candidates(job_id: str, avoid: Collection[int], proc: str) -> Iterator[int]:
    """Ports outside the ephemeral range first: one inside it may become somebody's outgoing connection at any time.

    Each job starts at another place, so that two jobs on one host seldom reach for the same port.
    """
    first, last = ephemeral_range(proc)
    good = [p for p in range(_FIRST, _LAST + 1) if p not in KNOWN and p not in avoid]
    for group in ([p for p in good if not first <= p <= last], [p for p in good if first <= p <= last]):
        start = zlib.crc32(job_id.encode()) % len(group) if group else 0
        yield from group[start:] + group[:start]


def ephemeral_range(proc: str = "/proc") -> tuple[int, int]:
    """Where the kernel takes the ports of outgoing connections from."""
    fields = (read_bytes(f"{proc}/sys/net/ipv4/ip_local_port_range") or b"32768 60999").split()
    return int(fields[0]), int(fields[1])


def _bound(port: int) -> socket.socket | None:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - it never listens
        try:
            held = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without IPv6
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 too
            held.bind((address, port))
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                return None
        else:
            return held
    return None


def fabric_of(ports: Iterable[Port]) -> str:
    """The fabric that these ports belong to; sockets where there is none that we know."""
    names = [port.driver or port.device for port in ports]
    return next((known for known in _DRIVERS if any(name.startswith(known) for name in names)), SOCKETS)


def choose(layers: Mapping[str, Mapping[str, str]], vendor: str, fabric: str) -> tuple[dict[str, str], str]:
    """The environment for a vendor and a fabric, and its name; nothing where the order has none for them."""
    for name in (f"{vendor}/{fabric}", f"{vendor}/{SOCKETS}"):
        if name in layers:
            return dict(layers[name]), name
    return {}, ""


class Unfit(Exception):
    """The job cannot go on here; the message is a line for the log."""


class Parts:
    """This node's part of the stages before training."""

    def __init__(self, order: Order, seat: Seat, job_dir: Path, own: Path) -> None:
        self._order, self._seat, self._job_dir = order, seat, job_dir
        self._context = Context(seat.host, order.nodes, order.expected_gpus, str(job_dir))
        self._containers = Containers(order, seat, job_dir, own) if order.container else None
        self._held: socket.socket | None = None
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
        note["results"], note["lines"] = [asdict(result) for result in results], lines(results)
        if stage == "preflight":
            note["net"] = asdict(this_node(self._seat.host))
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
            self._held = hold_port("JAX coordinator", self._seat.job_id)
        except (NoNetwork, NoPort) as e:
            raise Unfit(f"FATAL: {e}") from e
        say(*plan.lines)
        port = given.get("JAX_COORDINATOR_PORT") or str(self._held.getsockname()[1])
        return {**asdict(plan), "port": port}

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
