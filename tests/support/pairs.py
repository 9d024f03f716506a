"""Two jobs with a known difference between them, for `compare`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trackwalker.lab.faults import FAULTS
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.scenario import TrueCause, Truth
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.simulate import write_job
from trackwalker.lab.world import EPOCH, Run, WorldSpec, make_hosts

Rng = np.random.Generator
_STEP_S = 98_304.0 / 3_295.0  # 3,295 tokens/s/device
_BETWEEN_RUNS = 0.0003  # what two runs of one job on one set of nodes differ by, nothing being wrong


@dataclass
class Side:
    """One of the two jobs before it is played."""

    world: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    losses: Callable[[np.ndarray[Any, np.dtype[np.float64]]], None] | None = None


@dataclass
class Pair:
    """Both jobs, whether they run on the same hosts, and what a right comparison says."""

    truth: Truth
    a: Side = field(default_factory=Side)
    b: Side = field(default_factory=Side)
    shared: float = 1.0  # share of B's hosts that A had, too
    same_seed: bool = True
    swapped: bool = False  # each has the other's database


@dataclass(frozen=True)
class Written:
    """Where the two lie."""

    workspace: Path
    a: str
    b: str
    truth: Truth


def write_pair(name: str, out: Path, seed: int = 1, nodes: int = 4, gpus: int = 2, steps: int = 100) -> Written:
    """Write both jobs of a pair under `out/outputs`."""
    rng = np.random.default_rng([seed, sum(name.encode())])
    hosts = make_hosts(2 * nodes, rng)
    first = sorted(str(h) for h in rng.choice(hosts, nodes, replace=False))
    pair = PAIRS[name](first, rng)
    fresh = [h for h in hosts if h not in first]
    keep = round(pair.shared * nodes)
    second = sorted([*first[nodes - keep :], *fresh[: nodes - keep]])
    batches = rng.normal(0, 0.02, 4 * steps)  # what the data of a step add to its loss
    number, start = int(rng.integers(4000, 9000)), float(EPOCH + int(rng.integers(0, 200)) * 86_400)
    base = {"nodes": nodes, "gpus": gpus, "steps": steps, "step_s": _STEP_S, "checkpoint_period": 40}
    ids = []
    for place, (side, names) in enumerate(((pair.a, first), (pair.b, second))):
        own = np.random.default_rng([seed, place, number])
        spec = WorldSpec(**{**base, **side.world})
        run = Run(spec, names, str(number + 3 * place), start + 90_000.0 * place, own)
        run.factor *= 1.0 + float(own.normal(0, _BETWEEN_RUNS))
        data = batches if pair.same_seed or not place else own.normal(0, 0.02, 4 * steps)
        run.loss += data[run.first : run.first + spec.steps] + own.normal(0, 0.0004, spec.steps)
        if side.losses is not None:
            side.losses(run.loss)
        shows = []
        for entry in side.faults:
            fault = dict(entry)
            shows.append(FAULTS[fault.pop("kind")](run, **fault))
        run.play()
        sheet, log = Sheet(run), JobLog(run)
        for show in shows:
            show(sheet, log)
        written = write_job(run, sheet, log, out, pair.truth)
        ids.append(run.job_id)
    workspace = written.workspace
    if pair.swapped:
        _swap(workspace, *ids)
    return Written(workspace, ids[0], ids[1], pair.truth)


def _swap(workspace: Path, a: str, b: str) -> None:
    one, two = (next(workspace.glob(f"{i}-*/prometheus")) for i in (a, b))
    aside = one.with_name("aside")
    os.rename(one, aside)
    os.rename(two, one)
    os.rename(aside, two)


def _incident(cause: str, hosts: list[str] | None = None, must_not: tuple[str, ...] = ()) -> Truth:
    return Truth(outcome="incident", roots=[TrueCause(cause=cause, hosts=hosts or [])], must_not=list(must_not))


_NO_FAULT = ("restore-thread-leak", "rdma-degradation", "cpu-contention", "silent-data-corruption", "host-memory-leak")
_RESTORED = {"first_step": 20, "single_replica_restore": True}


def _identical(hosts: list[str], rng: Rng) -> Pair:
    """SC-60: nothing differs but noise of 1 %, in 40 steps."""
    side = {"noise": 0.0085, "steps": 52}
    return Pair(Truth(outcome="healthy", must_not=[*_NO_FAULT, "config-difference"]), Side(side), Side(side))


def _leak(hosts: list[str], rng: Rng) -> Pair:
    """F-4, SC-09: restored, 17 more runnable tasks on all hosts, 1 % slower; half of the nodes are others."""
    truth = _incident("restore-thread-leak", must_not=("rdma-degradation", "host-memory-leak", "cpu-contention"))
    noisy = {"noise": 0.0035}
    return Pair(truth, Side(noisy), Side(noisy | _RESTORED, [{"kind": "thread-leak"}]), shared=0.5)


def _leak_same_nodes(hosts: list[str], rng: Rng) -> Pair:
    """F-4 as it was: the same nodes."""
    pair = _leak(hosts, rng)
    pair.shared = 1.0
    return pair


def _restored(hosts: list[str], rng: Rng) -> Pair:
    """F-4, job C: restored without the leak."""
    return Pair(Truth(outcome="healthy", must_not=list(_NO_FAULT)), Side(), Side(dict(_RESTORED)))


def _remat(hosts: list[str], rng: Rng) -> Pair:
    """SC-61: another rematerialisation policy, on other nodes."""
    truth = Truth(outcome="expected", roots=[TrueCause(cause="config-difference")], must_not=list(_NO_FAULT))
    b = Side({"config": {"remat_policy": "full"}, "step_s": _STEP_S * 1.11})
    return Pair(truth, Side({"config": {"remat_policy": "minimal_flash"}}), b, shared=0.5)


def _nic(hosts: list[str], rng: Rng) -> Pair:
    """A NIC of B retransmits from its first step on, so that B alone has no faster phase to show."""
    bad = str(rng.choice(hosts[1:]))
    truth = _incident("rdma-degradation", [bad], ("restore-thread-leak", "config-difference"))
    return Pair(truth, Side(), Side(faults=[{"kind": "nic", "hosts": bad, "factor": 1.06}]))


def _phased(hosts: list[str], rng: Rng) -> Pair:
    """The NIC is bad for a while only."""
    bad = str(rng.choice(hosts[1:]))
    truth = _incident("rdma-degradation", [bad], ("restore-thread-leak", "config-difference"))
    return Pair(truth, Side(), Side(faults=[{"kind": "nic", "hosts": bad, "factor": 1.2, "begin": 0.4, "end": 0.7}]))


def _more_tasks(hosts: list[str], rng: Rng) -> Pair:
    """As many more tasks as the leak makes, but nothing was restored."""
    truth = Truth(outcome="healthy", or_abstain=True, must_not=list(_NO_FAULT))
    return Pair(truth, Side(), Side(faults=[{"kind": "thread-leak"}]))


def _both_restored(hosts: list[str], rng: Rng) -> Pair:
    """Both were restored and both leak: nothing differs."""
    truth = Truth(outcome="healthy", must_not=list(_NO_FAULT))
    leaking = Side(dict(_RESTORED), [{"kind": "thread-leak"}])
    return Pair(truth, leaking, Side(dict(_RESTORED), [{"kind": "thread-leak"}]))


def _died(hosts: list[str], rng: Rng) -> Pair:
    """B's memory ran out on one host; until then both were equally fast."""
    bad = str(rng.choice(hosts[1:]))
    truth = _incident("oom-host", [bad], ("restore-thread-leak", "config-difference"))
    return Pair(truth, Side(), Side({"ending": "crash"}, [{"kind": "host-oom", "host": bad, "at": 0.8}]))


def _hog(hosts: list[str], rng: Rng) -> Pair:
    """SC-10: another program on one host, and B was restored, too."""
    bad = str(rng.choice(hosts[1:]))
    truth = _incident("cpu-contention", [bad], ("restore-thread-leak", "config-difference"))
    return Pair(truth, Side(), Side(dict(_RESTORED), [{"kind": "cpu-hog", "hosts": bad, "factor": 1.03, "begin": 0}]))


def _corrupted(hosts: list[str], rng: Rng) -> Pair:
    """SC-68: the losses part at a step, and no counter moves."""
    at = int(rng.integers(45, 60))

    def part(loss: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        loss[at:] += 0.3 * (1 - np.exp(-np.arange(len(loss) - at) / 10.0))

    truth = _incident("silent-data-corruption", must_not=("restore-thread-leak", "rdma-degradation"))
    truth.onset_step = at
    return Pair(truth, Side(), Side(losses=part))


def _other_seed(hosts: list[str], rng: Rng) -> Pair:
    """Another seed: the losses differ, and that is no corruption."""
    truth = Truth(outcome="healthy", must_not=[*_NO_FAULT, "loss-divergence"])
    shift = float(rng.uniform(0.1, 0.3))

    def other(loss: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        loss += shift

    a, b = Side({"config": {"data_shuffle_seed": "0"}}), Side({"config": {"data_shuffle_seed": "7"}}, losses=other)
    return Pair(truth, a, b, same_seed=False)


def _swapped(hosts: list[str], rng: Rng) -> Pair:
    """SC-65: each of two twins has the other's database."""
    truth = _incident("wrong-tsdb", must_not=("rdma-degradation", "restore-thread-leak", "config-difference"))
    slow = Side(faults=[{"kind": "nic", "hosts": hosts[1], "factor": 1.05}])
    return Pair(truth, Side(), slow, swapped=True)


def _other_nodes(hosts: list[str], rng: Rng) -> Pair:
    """B is 4 % slower on other nodes, and nothing that was measured says why."""
    truth = Truth(outcome="insufficient-evidence", must_not=[*_NO_FAULT, "config-difference"])
    return Pair(truth, Side(), Side({"step_s": _STEP_S * 1.04}), shared=0.5)


def _logs_only(hosts: list[str], rng: Rng) -> Pair:
    """Slower after a restore, nothing recorded: no cause can be told."""
    truth = Truth(outcome="insufficient-evidence", must_not=list(_NO_FAULT))
    b = {**_RESTORED, "ray": False, "step_s": _STEP_S * 1.03}
    return Pair(truth, Side({"ray": False}), Side(b))


PAIRS: dict[str, Callable[[list[str], Rng], Pair]] = {
    "identical": _identical,
    "restore-leak": _leak,
    "restore-leak-same-nodes": _leak_same_nodes,
    "restored-without-leak": _restored,
    "remat": _remat,
    "nic": _nic,
    "nic-phased": _phased,
    "cpu-hog": _hog,
    "more-tasks-but-fresh": _more_tasks,
    "both-restored": _both_restored,
    "died": _died,
    "corrupted": _corrupted,
    "other-seed": _other_seed,
    "swapped": _swapped,
    "other-nodes": _other_nodes,
    "logs-only": _logs_only,
}
