"""How well and in how many jobs the network sweep finds bad nodes and links, against bisection, on simulated clusters.

Usage: python bench/sweep_network.py [--seeds 100] [--first 0] [--nodes 8,16,…] [--out FILE]

Clusters of 8 to 512 nodes, each with none to four faults (a node or a link slower by 5 to 40 %), noise between runs of
0.5 to 1 %, noise within runs, and one run in a hundred disturbed by something else. The strategy's constants were
chosen on seeds from 1000 on; seeds 0 to 99 are the figures that are reported. Exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trackwalker.sweep.model import Result, Template
from trackwalker.sweep.network.strategy import NetworkSweep

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from bisection import bisect
from fabric_simulated import Fabric, random_fabric, switch_fabric
from sweep_simulated import disjoint

NODES = (8, 16, 32, 64, 128, 256, 512)
MOST_FALSE = 0.01


@dataclass(frozen=True)
class Played:
    """One sweep of one cluster."""

    jobs: int
    waves: int
    exact: bool
    false: int
    shared: bool
    healthy: bool


class Bisection(NetworkSweep):
    """The same sweep by bisection, without a bound on its jobs."""

    def __init__(self, asked: Template) -> None:
        super().__init__(asked, search=bisect)

    def at_most(self) -> int:
        """As many as it takes."""
        return 10_000


def play(fabric: Fabric, kind: type[NetworkSweep]) -> Played:
    """Run a sweep to its end."""
    sweep = kind(Template("tiny", tuple(fabric.names)))
    done: dict[str, Result] = {}
    waves = 0
    while wave := disjoint(sweep.next_trials(done)):
        waves += 1
        done |= {trial.key: fabric(trial, 0) for trial in wave}
    faults = sweep.faults(done)
    nodes = {fabric.names[n] for n in faults.nodes}
    links = {frozenset((fabric.names[a], fabric.names[b])) for a, b in faults.links}
    exact = nodes == set(fabric.nodes) and links == set(fabric.links) and not faults.shared
    false = len(nodes - set(fabric.nodes)) + len(links - set(fabric.links))
    healthy = not fabric.nodes and not fabric.links
    return Played(len(done), waves, exact, false, bool(faults.shared), healthy)


def mean(values: list[int]) -> float:
    """Of none: 0."""
    return sum(values) / max(len(values), 1)


def main() -> int:
    """Play all clusters and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", default=",".join(map(str, NODES)))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    lines = [
        f"seeds {seeds[0]} to {seeds[-1]}; jobs and waves are means; exact: all faults and nothing else named",
        "nodes   exact  jobs  waves | bisection: exact  jobs  waves | fewer jobs in | no fault: jobs  bisection | "
        "falsely accused | switch: told",
    ]
    missed = []
    falsely = sweeps = 0
    for count in map(int, asked.nodes.split(",")):
        begin = time.perf_counter()
        ours = [play(random_fabric(count, seed), NetworkSweep) for seed in seeds]
        theirs = [play(random_fabric(count, seed), Bisection) for seed in seeds]
        switch = (
            [play(switch_fabric(count, seed), NetworkSweep) for seed in seeds[: max(len(seeds) // 5, 1)]]
            if count > 8
            else []
        )
        fewer = sum(a.jobs < b.jobs for a, b in zip(ours, theirs, strict=True))
        wrong = [p for p in [*ours, *switch] if p.false]
        falsely += len(wrong)
        sweeps += len(ours) + len(switch)
        quiet = [at for at, p in enumerate(ours) if p.healthy]
        lines.append(
            f"{count:5d}  {sum(p.exact for p in ours):3d}/{len(ours)}  {mean([p.jobs for p in ours]):4.1f}  "
            f"{mean([p.waves for p in ours]):5.1f} | {sum(p.exact for p in theirs):13d}/{len(theirs)}  "
            f"{mean([p.jobs for p in theirs]):4.1f}  {mean([p.waves for p in theirs]):5.1f} | {fewer:9d}/{len(ours)} | "
            f"{mean([ours[at].jobs for at in quiet]):14.1f}  {mean([theirs[at].jobs for at in quiet]):9.1f} | "
            f"{len(wrong):10d}/{len(ours) + len(switch)} | {sum(p.shared for p in switch):2d}/{len(switch)} "
            f"({time.perf_counter() - begin:.0f} s)"
        )
        print("\n".join(lines[-1:] if len(lines) > 3 else lines), flush=True)
        if mean([p.jobs for p in ours]) >= mean([p.jobs for p in theirs]):
            missed.append(f"{count} nodes: not fewer jobs than bisection")
    lines.append(f"false accusations: {falsely} of {sweeps} sweeps ({100 * falsely / sweeps:.2f} %)")
    print(lines[-1])
    if falsely >= MOST_FALSE * sweeps:
        missed.append("false accusations")
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"missed: {'; '.join(missed)}" if missed else "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
