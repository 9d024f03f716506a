"""The node sweep: the same job alone on every node, all at once; who is slower than the others, and by which signal.

Who looks slow is run again before it is called slow: the slowest of many equal nodes looks 2 % slow by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from trackwalker.errors import UsageError
from trackwalker.stats.groups import between_runs
from trackwalker.sweep.model import Conclusion, Done, Result, Template, Trial
from trackwalker.sweep.policy import Explains, load_policy

MARGINAL, DEGRADED = math.log(0.98), math.log(0.95)
MOST_RUNS = 3  # of one node
_SUSPICIOUS = math.log(0.984)  # short of the line by less than the noise: run it again
_SURE = 3.0  # standard errors by which a node must be below the others

State = Literal["healthy", "marginal", "degraded", "unhealthy", "open"]


# Which recorded signal explains a slow node: out of line with the other nodes, and in the direction that slows.
Signals = Mapping[str, Mapping[str, float]]  # host -> metric -> steady mean

_SIGMAS = 4.0  # off the spread of the other nodes


def read_nodes(request: Mapping[str, Any]) -> Template:
    """What node and network sweeps are asked for: a model, and every node once; what is wrong is said beforehand."""
    base = Template.read(request, usual={}, few="; the first ones measure the compiler")
    if not base.nodes or not all(base.nodes):
        raise UsageError("which nodes? give the list, as n[1-8] or n1,n2")
    twice = sorted({node for node in base.nodes if base.nodes.count(node) > 1})
    if twice:
        raise UsageError(f"{', '.join(twice)} is in the node list twice: every node must be there once")
    if bad := [node for node in base.nodes if any(c in node for c in "[]+# \t")]:
        raise UsageError(f"'{bad[0]}' is no node name; lists look like n[1-8] or n1,n2")
    if not base.model:
        raise UsageError("which model? as --model 70b")
    return base


class Explanation(NamedTuple):
    """The signal that is out of line."""

    metric: str
    value: float
    others: float
    words: str


def explain(host: str, signals: Signals) -> Explanation | None:
    """The first cause, in the order above, by which a node differs from the others; None where nothing is recorded."""
    mine = signals.get(host, {})
    for kind in load_policy().explains:
        for metric in sorted(mine):
            if kind.part not in metric:
                continue
            others = [values[metric] for other, values in signals.items() if other != host and metric in values]
            if others and _stands_out(mine[metric], others, kind):
                middle = median(others)
                unit = f" {kind.unit}" if kind.unit and not kind.unit.startswith("/") else kind.unit
                words = f"{kind.words} {mine[metric]:.4g}{unit}, others {middle:.4g}{unit}"
                return Explanation(metric, mine[metric], middle, words)
    return None


def _stands_out(value: float, others: list[float], kind: Explains) -> bool:
    middle = median(others)
    spread = 1.4826 * median(abs(other - middle) for other in others)
    beyond = kind.slows * (value - middle)
    return beyond > max(_SIGMAS * spread, kind.share * abs(middle), kind.least)


def build(request: Mapping[str, Any]) -> NodeSweep:
    """The strategy of a request; two nodes at least, since a node is judged by the others."""
    asked = read_nodes(request)
    if len(asked.nodes) < 2:
        raise UsageError("a node sweep needs at least two nodes: a node is judged by the others")
    return NodeSweep(asked)


@dataclass(frozen=True)
class Standing:
    """How one node compares."""

    node: str
    state: State
    runs: Sequence[Result]
    against: float | None  # log of its score over the reference
    error: float = 0.0  # standard error of that
    explanation: Explanation | None = None
    why: str = ""

    @property
    def score(self) -> float | None:
        """Its tokens/s/device over all runs."""
        logs = _logs(self.runs)
        return math.exp(_level(logs)) if logs else None


class NodeSweep:
    """One job on each node, repeats where one looks slow; pure, as every strategy."""

    kind = "nodes"

    def __init__(self, asked: Template) -> None:
        self._asked = asked

    def next_trials(self, done: Done) -> list[Trial]:
        """Every node once; then round by round those that look slow or failed."""
        for number in range(1, MOST_RUNS + 1):
            again = self._asked.nodes if number == 1 else self._again(done, number)
            missing = [node for node in again if self._key(node, number) not in done]
            if missing:
                why = "alone on one node" if number == 1 else "looks slow or failed: once more before anybody says so"
                return [self._asked.trial(self._key(node, number), why, nodes=(node,)) for node in missing]
        return []

    def stop(self, done: Done) -> str:
        """Nodes that all fail the same way have no fault of their own."""
        ended = [result for result in done.values() if result.status != "cancelled"]
        if len(ended) >= len(self._asked.nodes) and not any(result.ok for result in ended):
            first = ended[0]
            return f"the job runs on no node ({first.why or first.cause or first.status}): it is the job, not the nodes"
        return ""

    def at_most(self) -> int:
        """Every node, and repeats of at most half of them: when more look slow, the median is slow too."""
        nodes = len(self._asked.nodes)
        return nodes + (MOST_RUNS - 1) * max(nodes // 2, 2)

    def conclude(self, done: Done) -> Conclusion:
        """Every node's standing, with what explains the slow ones."""
        from trackwalker.sweep.nodes.report import conclude

        final = bool(self.stop(done)) or not self.next_trials(done)
        standings = self.standings(done, MOST_RUNS, last_word=final)
        return conclude(standings, reference(standings), noise(standings), final, self.stop(done))

    def standings(self, done: Done, rounds: int, last_word: bool = True) -> list[Standing]:
        """Each node by its runs up to a round."""
        runs = {
            node: [done[key] for number in range(1, rounds + 1) if (key := self._key(node, number)) in done]
            for node in self._asked.nodes
        }
        plain = [Standing(node, "open", of, None) for node, of in runs.items()]
        level, sigma = reference(plain), noise(plain)
        signals = {host: values for of in runs.values() for result in of for host, values in result.signals.items()}
        return [_judge(standing, level, sigma, signals, last_word) for standing in plain]

    def _again(self, done: Done, number: int) -> list[str]:
        """Who is to run for the number-th time, by the rounds before."""
        found = self.standings(done, number - 1, last_word=False)
        wanted = [s for s in found if s.runs and _undecided(s, number)]
        wanted.sort(key=lambda s: s.against if s.against is not None else -math.inf)
        return [s.node for s in wanted[: max(len(self._asked.nodes) // 2, 2)]]

    @staticmethod
    def _key(node: str, number: int) -> str:
        return f"{node}#{number}"


def reference(standings: Sequence[Standing]) -> float | None:
    """Log score that nodes are compared with: the median of all; of two nodes the faster one."""
    levels = [_level(logs) for s in standings if (logs := _logs(s.runs))]
    if not levels:
        return None
    return max(levels) if len(levels) == 2 else median(levels)


def noise(standings: Sequence[Standing]) -> float:
    """Noise: how repeats of a node scatter, or the nodes above the reference where that is more.

    A fault only slows, so what lies above the reference lies there by chance, and below it as much is chance too.
    """
    logs, level = [of for s in standings if (of := _logs(s.runs))], reference(standings) or 0.0
    above = [by for of in logs if (by := _level(of) - level) > 0]
    return max(between_runs(logs), between_runs([[*above, *(-by for by in above)]]))


def _judge(
    s: Standing, level: float | None, sigma: float, signals: Mapping[str, Mapping[str, float]], last: bool
) -> Standing:
    logs = _logs(s.runs)
    failed = [r for r in s.runs if r.status not in ("ok", "cancelled")]
    if not logs or level is None or len(failed) > len(logs):
        why = failed[-1].why or failed[-1].cause or failed[-1].status if failed else ""
        return Standing(s.node, "unhealthy" if failed else "open", s.runs, None, why=why)
    against, error = _level(logs) - level, sigma / math.sqrt(len(logs))
    # The first run chose the node because it looked slow: the repeats have to show it by themselves.
    repeats = sum(logs[1:]) / max(len(logs) - 1, 1) - level
    proven = len(logs) > 1 and max(against / error, repeats / sigma * math.sqrt(len(logs) - 1)) < -_SURE
    state: State = "healthy"
    if against <= MARGINAL and not proven and not last:
        state = "open"
    elif against <= MARGINAL and proven:
        state = "degraded" if against <= DEGRADED else "marginal"
    why = f"failed once ({failed[0].why or failed[0].cause or failed[0].status})" if failed else ""
    if state == "healthy" and against <= MARGINAL:
        why = f"{100 * math.expm1(against):+.1f} %, which is within the noise of this sweep"
    slow = state in ("marginal", "degraded", "open")
    return Standing(s.node, state, s.runs, against, error, explain(s.node, signals) if slow else None, why)


def _undecided(s: Standing, number: int) -> bool:
    """Whether another run of the node can change what is said of it."""
    if s.against is None:  # failed or cancelled: once more, a node is not unhealthy by one job that a user cancelled
        return number == 2
    if number == 2:
        return s.against <= _SUSPICIOUS or bool(s.why)
    logs = _logs(s.runs)
    if len(logs) < 2:
        return s.against <= _SUSPICIOUS
    apart = abs(logs[0] - logs[1]) > 3.0 * s.error * math.sqrt(2.0)
    close = min(abs(s.against - MARGINAL), abs(s.against - DEGRADED)) < s.error
    return s.against <= _SUSPICIOUS and (apart or close)


def _logs(runs: Sequence[Result]) -> list[float]:
    return [math.log(r.score) for r in runs if r.ok and r.score and r.score > 0]


def _level(logs: Sequence[float]) -> float:
    return median(logs)
