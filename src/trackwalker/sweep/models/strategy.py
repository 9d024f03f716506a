"""The model sweep: every model at its node counts, commit by commit, always on the same nodes.

First every model runs once on every commit, in the order of the commits. Then whatever is too close to call is run
again, both sides, round by round. A commit on which two models newly fail is broken enough: the sweep ends there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.sweep.model import Conclusion, Done, Template, Trial
from trackwalker.sweep.models.cells import Size
from trackwalker.sweep.models.compare import Column, Run, judge, noise_between_runs
from trackwalker.sweep.models.report import Findings, conclude

MOST_RUNS = 3  # of one model on one commit
_BROKEN = 2  # models that newly fail: enough to call a commit broken


@dataclass(frozen=True)
class Code:
    """What one column runs."""

    name: str
    sha: str
    subject: str
    folder: str  # empty: as the sweep was started


def build(request: Mapping[str, Any]) -> ModelSweep:
    """The strategy of a request."""
    try:
        cells = {Size(str(c["model"]), int(c["count"])): tuple(map(str, c["nodes"])) for c in request["cells"]}
        codes = [Code(c["name"], c.get("sha", ""), c.get("subject", ""), c.get("code", "")) for c in request["codes"]]
        base = Template.read(request)
        history = [Column.from_dict(column) for column in request.get("history", [])]
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UsageError(f"this is no request of a model sweep: {type(e).__name__}: {e}") from e
    if not cells or not codes:
        raise UsageError("a model sweep needs at least one model and one commit")
    for size, nodes in cells.items():
        if nodes and len(set(nodes)) != size.count:
            raise UsageError(f"{size.name} has {len(set(nodes))} different nodes, {size.count} are needed")
    if len({code.name for code in codes}) < len(codes):
        raise UsageError("two commits of a sweep have one name")
    return ModelSweep(cells, codes, base, history)


class ModelSweep:
    """See the top of this file; pure, as every strategy."""

    kind = "models"

    def __init__(
        self,
        cells: Mapping[Size, tuple[str, ...]],
        codes: Sequence[Code],
        base: Template,
        history: Sequence[Column] = (),
    ) -> None:
        self.places, self.base = cells, base
        self._codes, self._history = codes, list(history)

    def next_trials(self, done: Done) -> list[Trial]:
        """The first run of each model that is due, earlier commits first; then the repetitions of one round."""
        due = [found for size in self.places if (found := self._next_of(size, done))]
        if due:
            return [trial for _, trial in sorted(due, key=lambda found: found[0])]
        for round_ in range(2, MOST_RUNS + 1):
            wanted = self._too_close(done, round_)
            missing = [trial for trial in wanted if trial.key not in done]
            if missing:
                return missing
            if not wanted:
                break
        return []

    def stop(self, done: Done) -> str:
        """A commit on which nothing runs, or on which two models fail that ran before."""
        columns = self._columns(done, 1)
        noise = noise_between_runs(columns)
        for at, code in enumerate(self._codes, len(self._history)):
            passed = [columns[at].passed(size.name) for size in self.places]
            if all(p is False for p in passed):
                return f"every model fails on {code.name}: {self._first_failure(columns[at])}"
            verdicts = [judge(columns, at, size.name, noise, last_word=False) for size in self.places]
            broken = list(dict.fromkeys(v.model for v in verdicts if v.word == "breakage"))
            if len(broken) >= _BROKEN:
                return f"{code.name} is broken: {' and '.join(broken)} ran before and fail on it"
        return ""

    def at_most(self) -> int:
        """Every model on every commit, each as often as noise may ask for."""
        return len(self.places) * len(self._codes) * MOST_RUNS

    def at_most_node_hours(self) -> float:
        """Its jobs differ in size, so the largest would be a poor measure."""
        return sum(size.count for size in self.places) * len(self._codes) * MOST_RUNS * self.base.minutes / 60.0

    def own_columns(self, done: Done) -> list[Column]:
        """The commits of this sweep with all their runs."""
        return self._columns(done, MOST_RUNS)[len(self._history) :]

    def conclude(self, done: Done) -> Conclusion:
        """Tables of every commit, what changed between neighbours, and what broke."""
        columns = self._columns(done, MOST_RUNS)
        noise = noise_between_runs(columns)
        stopped = self.stop(done)
        final = bool(stopped) or not self.next_trials(done)
        verdicts = [
            judge(columns, at, size.name, noise, last_word=final)
            for at in range(len(self._history), len(columns))
            for size in self.places
        ]
        nodes = {size.name: place for size, place in self.places.items()}
        own = len(self._history)
        return conclude(Findings(columns, own, nodes, verdicts, noise, stopped, final))

    def _next_of(self, size: Size, done: Done) -> tuple[int, Trial] | None:
        trials = ((at, self._trial(code, size, 1)) for at, code in enumerate(self._codes))
        return next(((at, trial) for at, trial in trials if trial.key not in done), None)

    def _too_close(self, done: Done, round_: int) -> list[Trial]:
        """Both sides of every comparison that the rounds before this one left open."""
        columns = self._columns(done, round_ - 1)
        noise = noise_between_runs(columns)
        names = {code.name: code for code in self._codes}
        wanted: dict[str, Trial] = {}
        for at in range(len(self._history), len(columns)):
            for size in self.places:
                verdict = judge(columns, at, size.name, noise, last_word=False)
                if verdict.word == "undecided":
                    # An earlier sweep's code is not run again: its folder may be gone, and its runs are there.
                    own = [names[name] for name in (verdict.before, verdict.column) if name in names]
                    trials = [self._trial(code, size, round_) for code in own]
                    wanted |= {trial.key: trial for trial in trials}
        return list(wanted.values())

    def _columns(self, done: Done, rounds: int) -> list[Column]:
        """Earlier sweeps, then our own commits with their runs up to a round."""
        own = []
        for code in self._codes:
            cells: dict[str, tuple[Run, ...]] = {}
            for size in self.places:
                keys = [self._trial(code, size, k).key for k in range(1, rounds + 1)]
                if runs := tuple(Run.of(done[key]) for key in keys if key in done):
                    cells[size.name] = runs
            own.append(Column(code.name, code.sha, code.subject, "", cells))
        return [*self._history, *own]

    def _trial(self, code: Code, size: Size, run: int) -> Trial:
        why = f"{size.model} on {size.count} node{'s' if size.count > 1 else ''} with {code.name}"
        why = why if run == 1 else f"{why}, once more: the change is too close to call"
        where = {"model": size.model, "nodes": self.places[size], "code": code.folder}
        return self.base.trial(f"{code.name}/{size.name}#{run}", why, **where)

    @staticmethod
    def _first_failure(column: Column) -> str:
        runs = [run for runs in column.cells.values() for run in runs if run.failed]
        return next((run.why for run in runs if run.why), runs[0].status if runs else "no reason known")
