"""What changed in a job: the deviation table on demand, for the job's own trouble or for any window and hosts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.deviations.log_changes import LogChanges, log_changes
from trackwalker.diagnose.deviations.sweep import sweep
from trackwalker.diagnose.deviations.table import rows
from trackwalker.diagnose.episodes.episodes import Episode, episodes_of, masked_spans
from trackwalker.diagnose.episodes.symptoms import Span, find_symptoms
from trackwalker.diagnose.verdict import Deviation, Evidence
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.record.clock import utc
from trackwalker.record.masks import WARM_UP_STEPS

SCHEMA = "trackwalker.changed/1"
MOST_ROWS = 40
_NAMED = 4  # metrics in a sentence


@dataclass(frozen=True)
class Changed:
    """What was compared, how much of it, and what deviates."""

    job: str
    episodes: list[Episode]
    hosts: list[str]
    against: list[str]
    metrics: int
    tests: int
    deviations: list[Deviation]
    evidence: list[Evidence]
    damage: list[str]
    log: LogChanges
    says: str = ""  # why nothing could be compared, where that is so
    unseen: tuple[str, ...] = ()  # hosts that report old values, or lack metrics that the others have

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "schema": SCHEMA,
            "job": self.job,
            "compared": [
                {"name": e.name, "kind": e.kind, "window": _spans(e.window), "reference": _spans(e.reference)}
                for e in self.episodes
            ],
            "hosts": self.hosts,
            "against": self.against,
            "metrics": self.metrics,
            "tests": self.tests,
            "deviations": [d.model_dump(by_alias=True) for d in self.deviations],
            "evidence": [e.model_dump() for e in self.evidence],
            "log": {
                "lines": self.log.lines,
                "says": self.log.says,
                "changes": [row.to_dict() for row in self.log.rows[:MOST_ROWS]],
                "shown": f"{min(MOST_ROWS, len(self.log.rows))} of {len(self.log.rows)}",
            },
            "says": self.says or None,
            "not_compared": list(self.unseen),
            "damage": self.damage,
        }


def changed(
    case: Case,
    begin: str | None = None,
    end: str | None = None,
    hosts: list[str] | None = None,
    against: list[str] | None = None,
) -> Changed:
    """Compare every series and kind of log line in a job's slow, stalled or failed stretches, or in a window.

    `begin` and `end` are steps or UTC times, also behind the last step; what lies outside of them is the reference.
    `hosts` limits the table to some hosts, `against` says whose changes theirs are measured by. Without metrics only
    the log is compared.
    """
    telemetry = case.telemetry
    known = set(case.hosts)
    for name in [*(hosts or []), *(against or [])]:
        if known and name not in known:
            raise UsageError(f"no host '{name}' in this job; it has {', '.join(case.hosts[:8])}")
    if against and not hosts:
        raise UsageError("--against needs --hosts: whose changes are to be measured by theirs?")
    if begin is None and end is None:
        episodes = episodes_of(case, find_symptoms(case)) or _halves(case)
    else:
        episodes = [_asked(case, begin, end)]
    swept = sweep(case, episodes, frozenset(hosts or ()), frozenset(against or ()))
    book = EvidenceBook()
    table = rows(swept.deviations, telemetry, book, lambda _: None, MOST_ROWS) if telemetry is not None else []
    ranks = {i for i, name in enumerate(case.hosts) if name in hosts} if hosts else None
    window = [s for e in episodes for s in e.window]
    log = log_changes(case, window, [s for e in episodes for s in e.reference], ranks)
    return Changed(
        *(case.job.id, episodes, hosts or [], against or [], swept.metrics, swept.tests, table, book.items),
        case.damage,
        log,
        _why_nothing(case, window) if telemetry is not None and not swept.tests else "",
        tuple(_unseen(case, hosts or case.hosts)),
    )


def _unseen(case: Case, hosts: list[str]) -> list[str]:
    """Whom an empty table does not clear: exporters that are not to be trusted, metrics that only they never had."""
    out = [c.says for c in case.checks if not c.ok and set(c.hosts) & set(hosts)]
    begin, end = case.telemetry.range() if case.telemetry is not None else (0.0, 0.0)
    who: dict[str, set[str]] = {}
    for share in (0.25, 0.5, 0.75):  # at no time: who was there once and went is in the table
        query, at = 'count by (__name__, host) ({host!=""})', begin + share * (end - begin)
        for s in case.telemetry.instant(query, at) if case.telemetry is not None else ():
            who.setdefault(s.labels["__name__"], set()).add(s.labels["host"])
    usual = [m for m, there in sorted(who.items()) if 2 * len(there.intersection(case.hosts)) > len(case.hosts)]
    for host in hosts:
        lacks = [m for m in usual if host not in who[m]]
        more = f" and {len(lacks) - _NAMED} more" if len(lacks) > _NAMED else ""
        out += [f"{host} never reported {', '.join(lacks[:_NAMED])}{more}, which most hosts did"] if lacks else []
    return out


def _why_nothing(case: Case, window: list[Span]) -> str:
    """Nothing deviates where nothing was compared: too few samples lie in the window, or outside of it."""
    begin, end = case.telemetry.range() if case.telemetry is not None else (0.0, 0.0)
    asked = ", ".join(f"{utc(s.start)} to {utc(s.end)}" for s in window)
    return (
        f"no metric could be compared: too few samples lie in {asked} or outside of it; the recording goes from "
        f"{utc(begin)} to {utc(end)}: choose a longer window inside it"
    )


def _whole(case: Case) -> Span:
    """The run without its start-up."""
    timeline = case.timeline
    if timeline is not None and len(timeline) > 2 * WARM_UP_STEPS and timeline.last_end is not None:
        return Span(float(timeline.ends[WARM_UP_STEPS]), timeline.last_end)
    if case.telemetry is None:
        raise EvidenceError(
            f"{case.job.label} has neither metrics nor steps with a time: nothing can be compared; read its log"
        )
    return Span(*case.telemetry.range())


def _halves(case: Case) -> list[Episode]:
    """A run without trouble: its second half against its first."""
    whole = _whole(case)
    middle = 0.5 * (whole.start + whole.end)
    window, reference = (Span(middle, whole.end),), (Span(whole.start, middle),)
    return [Episode("second-half", "asked", window, reference, middle, masked_spans(case))]


def _asked(case: Case, begin: str | None, end: str | None) -> Episode:
    steps = _whole(case)
    whole = Span(steps.start, max(steps.end, _silence_ends(case) or steps.end))
    first = _moment(case, begin, False) if begin is not None else whole.start
    last = _moment(case, end, True) if end is not None else whole.end
    first, last = max(first, whole.start), min(last, whole.end)
    if last <= first:
        span = f"{utc(whole.start)} to {utc(whole.end)}, its steps end at {utc(steps.end)}"
        raise UsageError(f"nothing lies between --from and --to: the evidence of this job goes from {span}")
    parts = (Span(whole.start, first), Span(last, whole.end))
    rest = tuple(s for s in parts if s.seconds > 0)
    if not rest:
        raise UsageError("--from and --to span the whole run: nothing is left to compare it with")
    return Episode("asked", "asked", (Span(first, last),), rest, first, masked_spans(case))


def _silence_ends(case: Case) -> float | None:
    """Where the evidence ends behind the last step: of a run that hangs, what follows is what one wants to see."""
    recorded = case.telemetry.range()[1] if case.telemetry is not None else None
    known = [t for t in (case.end_of_work, recorded) if t is not None]
    return min(known, default=None)


def _moment(case: Case, text: str, at_end: bool) -> float:
    """A step's beginning (or end), or a UTC time."""
    if text.isdigit():
        timeline = case.timeline
        if timeline is None or not timeline.between(int(text), int(text)).any():
            last = f"; the last is {int(timeline.steps[-1])}" if timeline is not None and len(timeline) else ""
            raise UsageError(f"no step {text} in this job{last}")
        i = int(timeline.between(int(text), int(text)).argmax())
        return float(timeline.ends[i] - (0.0 if at_end else timeline.seconds[i]))
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as e:
        raise UsageError(f"'{text}' is neither a step nor a UTC time like 2026-02-24T19:10:20Z") from e
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _spans(spans: tuple[Span, ...]) -> list[list[str | None]]:
    return [[utc(s.start), utc(s.end)] for s in spans]
