"""What a model sweep found out, in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from trackwalker.sweep.model import Conclusion, Plot, Table
from trackwalker.sweep.models.compare import Column, Noise, Verdict

_NEWS = ("breakage", "regression", "faster", "fixed")
_SHOWN = 5  # names in a headline


@dataclass(frozen=True)
class Findings:
    """Everything there is to say."""

    columns: Sequence[Column]  # earlier sweeps first
    own: int  # index of the first column of this sweep
    nodes: Mapping[str, Sequence[str]]  # by size
    verdicts: Sequence[Verdict]  # of this sweep's columns
    noise: Noise
    stopped: str
    final: bool

    def of(self, *words: str) -> list[Verdict]:
        """The verdicts with one of these words."""
        return [verdict for verdict in self.verdicts if verdict.word in words]


def conclude(found: Findings) -> Conclusion:
    """The answer, its evidence, one table for each commit and one across them."""
    return Conclusion(
        headline=_headline(found),
        final=found.final,
        evidence=tuple(_evidence(found)),
        caveats=tuple(_caveats(found)),
        tables=(*(_of_commit(found, column) for column in found.columns[found.own :]), _across(found)),
        plots=_plot(found),
        details={
            "verdicts": [verdict.to_dict() for verdict in found.verdicts],
            "columns": [asdict(column) for column in found.columns],
            "nodes": {size: list(nodes) for size, nodes in found.nodes.items()},
            "noise": found.noise.to_dict(),
            "stopped": found.stopped,
        },
    )


def _headline(found: Findings) -> str:
    parts = []
    for column in found.columns[found.own :]:
        mine = [verdict for verdict in found.verdicts if verdict.column == column.name]
        said = []
        if broken := [v.size for v in mine if v.word == "breakage"]:
            said.append(f"breaks {_names(broken)}")
        if slower := [f"{v.size} ({_change(v)})" for v in mine if v.word == "regression"]:
            said.append(f"makes {_names(slower)} slower")
        if faster := [f"{v.size} ({_change(v)})" for v in mine if v.word == "faster"]:
            said.append(f"makes {_names(faster)} faster")
        if fixed := [v.size for v in mine if v.word == "fixed"]:
            said.append(f"makes {_names(fixed)} run again")
        if said:
            parts.append(f"{column.name} {' and '.join(said)}")
    if found.stopped:
        parts.append(f"stopped early: {found.stopped}")
    if parts:
        return "; ".join(parts)
    still = sorted({v.size for v in found.of("open", "undecided")})
    if still and not found.final:
        return f"nothing broke and nothing became slower so far; {_names(still)} not decided yet"
    compared = found.of("no change", "within noise", "pre-existing")
    if not compared:
        ran = sorted({v.size for v in found.of("new")})
        return f"{_names(ran) or 'nothing'} measured; there is nothing earlier to compare with"
    return f"no regression: nothing broke and nothing became slower in {len(compared)} comparisons"


def _evidence(found: Findings) -> list[str]:
    lines = []
    after = {column.label: column for column in found.columns}
    for verdict in found.of(*_NEWS):
        name, before, now = verdict.size, after[verdict.before], after[verdict.column]
        if verdict.difference is not None:
            lines.append(
                f"{name}: {_mean(now, name)} tokens/s/device on {now.name}, {_mean(before, name)} on {before.label}: "
                f"{verdict.percent()}, {_runs(now, name)} against {_runs(before, name)} (jobs {_jobs(now, name)} and "
                f"{_jobs(before, name)})"
            )
        elif verdict.word == "breakage":
            failed = next(run for run in now.runs(name) if run.failed)
            why = failed.why or failed.status
            lines.append(f"{name}: fails on {now.name} (job {failed.job}: {why}) and ran on {before.label}")
        else:
            lines.append(f"{name}: runs on {now.name} and failed on {before.label}")
    for verdict in found.of("pre-existing"):
        lines.append(f"{verdict.size}: fails on {verdict.column} as on {verdict.before}: not this commit's doing")
    return lines


def _caveats(found: Findings) -> list[str]:
    lines = []
    for verdict in found.of("within noise"):
        seen = verdict.difference.detectable if verdict.difference else 0.0
        lines.append(f"{verdict.size}: {verdict.percent()} is within the noise; {seen:.1%} would have been seen")
    for verdict in found.of("open"):
        if found.final:
            lines.append(f"{verdict.size} was not run on {verdict.column}")
    flaky = [
        f"{size} on {column.name}"
        for column in found.columns[found.own :]
        for size, runs in column.cells.items()
        if column.scores(size) and any(run.failed for run in runs)
    ]
    lines += [f"{name}: one of its runs failed, the others are what is compared" for name in flaky]
    noise = found.noise
    if found.final and found.of("no change", "regression", "faster", "within noise"):
        lines.append(
            f"runs of the same code differ by {noise.sigma:.1%} (standard deviation of {noise.repeats} repeats)"
            if noise.repeats
            else "nothing was repeated: how far runs of the same code differ here was not measured"
        )
    return lines


def _of_commit(found: Findings, column: Column) -> Table:
    by_size = {verdict.size: verdict for verdict in found.verdicts if verdict.column == column.name}
    rows = []
    for size, nodes in found.nodes.items():
        verdict, runs = by_size[size], column.runs(size)
        mfus = [run.mfu for run in runs if run.mfu is not None]
        rows.append(
            (
                size.rpartition("/")[0],
                size.rpartition("/")[2],
                ",".join(nodes),
                _jobs(column, size),
                _mean(column, size) if column.scores(size) else "",
                f"{fmean(mfus):.1%}" if mfus else "",
                _state(column, size),
                verdict.percent(),
                verdict.word if verdict.before else "",
            )
        )
    title = f"Commit {column.name}" + (f": {column.subject}" if column.subject else "")
    header = ("model", "size", "nodes", "jobs", "tokens/s/device", "MFU", "status", "against before", "verdict")
    return Table(title, header, tuple(rows))


def _across(found: Findings) -> Table:
    """Every model as one row, every sweep and commit as a column, each with the change to its neighbour."""
    names = [column.label for column in found.columns]
    rows = []
    for size in found.nodes:
        cells, last = [size], None
        for column in found.columns:
            if column.scores(size):
                mean = fmean(column.scores(size))
                cells.append(f"{mean:,.0f}" + (f" ({mean / last - 1:+.1%})" if last else ""))
                last = mean
            else:
                cells.append("FAIL" if column.passed(size) is False else "")
        rows.append(tuple(cells))
    return Table("Across commits and sweeps, tokens/s/device", ("model", *names), tuple(rows))


def _plot(found: Findings) -> tuple[Plot, ...]:
    """What the last commit changed; nothing when there is nothing to compare."""
    known = [(verdict, verdict.difference) for verdict in found.verdicts if verdict.difference is not None]
    if not known:
        return ()
    last = known[-1][0].column
    mine = [(verdict, apart) for verdict, apart in known if verdict.column == last]
    bounds = [apart.interval() for _, apart in mine]
    return (
        Plot(
            f"Change on {last}",
            "model",
            "change of tokens/s/device, %",
            tuple(verdict.size for verdict, _ in mine),
            tuple(100 * apart.change for _, apart in mine),
            tuple(100 * low for low, _ in bounds),
            tuple(100 * high for _, high in bounds),
            tuple(i for i, (verdict, _) in enumerate(mine) if verdict.word == "regression"),
        ),
    )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _change(verdict: Verdict) -> str:
    return "" if verdict.difference is None else f"{verdict.difference.change:+.1%}"


def _mean(column: Column, size: str) -> str:
    return f"{fmean(column.scores(size)):,.0f}"


def _runs(column: Column, size: str) -> str:
    count = len(column.scores(size))
    return f"{count} run{'s' if count > 1 else ''}"


def _jobs(column: Column, size: str) -> str:
    return ", ".join(run.job for run in column.runs(size) if run.job)


def _state(column: Column, size: str) -> str:
    passed = column.passed(size)
    if passed is None:
        return "not run"
    if passed:
        return "PASS"
    failed = next(run for run in column.runs(size) if run.failed)
    return f"FAIL {failed.status}" + (f": {failed.why}" if failed.why else "")
