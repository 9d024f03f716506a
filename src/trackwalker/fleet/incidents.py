"""The inbox: one incident for every job that is or was in trouble, from its verdict, its log and the watcher.

An incident has the id of its job: the link stays good when a later look knows the cause better. What people decided
about it (`marks`) is theirs; all else is worked out anew from the evidence. `markdown` is one as text,
for a chat or a ticket.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from trackwalker.fleet.marks import Mark, Marks
from trackwalker.fleet.rows import JobRow, Tone
from trackwalker.fleet.signs import Sign
from trackwalker.report.text import one_line
from trackwalker.report.words import amount, utc

Order = Literal["cost", "new", "job"]


@dataclass(frozen=True)
class Alike:
    """Another job with the same cause on the same host."""

    job: str
    host: str


@dataclass(frozen=True)
class Incident:
    """One job in trouble; what is not known is None, never zero."""

    row: JobRow
    mark: Mark
    signs: tuple[Sign, ...] = ()
    alike: tuple[Alike, ...] = ()  # the newest first

    @property
    def id(self) -> str:
        """Its permanent name."""
        return self.row.id

    @property
    def title(self) -> str:
        """The cause in two words, or what the watcher called it."""
        return self.row.badge or next((sign.title for sign in self.signs if sign.is_trouble), self.row.status)

    @property
    def says(self) -> str:
        """One sentence."""
        return self.row.says or next((sign.says for sign in self.signs if sign.says), "")

    @property
    def tone(self) -> Tone:
        """How bad it looks."""
        return self.row.badge_tone or self.row.tone

    @property
    def live(self) -> bool:
        """Whether the job goes on."""
        return not self.row.settled

    @property
    def first(self) -> float | None:
        """When it was first seen: the onset, the watcher's first sign, else the beginning of the run."""
        known = [t for t in (self.row.onset, *(sign.since for sign in self.signs if sign.is_trouble)) if t]
        return min(known) if known else self.row.started or self.row.changed

    @property
    def last(self) -> float | None:
        """When it was last seen: now, for one that goes on."""
        if self.live:
            return time.time()
        return self.row.ended or self.row.changed

    @property
    def lost(self) -> float | None:
        """GPU-hours so far."""
        return self.row.lost_gpu_hours

    @property
    def lost_s(self) -> float | None:
        """The same as time of the whole job: what it lost is that long on each of its GPUs."""
        return None if self.lost is None or not self.row.gpus else 3600.0 * self.lost / self.row.gpus

    def money(self, price: float | None) -> float | None:
        """What that is."""
        return None if price is None or self.lost is None else price * self.lost

    @property
    def burning(self) -> float:
        """GPUs that bring nothing at this moment."""
        return (self.row.burning or 0.0) if self.live else 0.0


@dataclass(frozen=True)
class Returning:
    """A host that several incidents name, those that cost most first."""

    host: str
    jobs: tuple[str, ...]
    lost: float | None  # its share of what they lost, in GPU-hours
    accused: bool  # by a verdict; else only logs name it


@dataclass(frozen=True)
class Inbox:
    """The incidents of a state, how many there are of each, what is too old to be brought up, and who is in many."""

    shown: list[Incident]
    counts: dict[str, int]
    older: list[Incident]
    returning: list[Returning]


def inbox(
    rows: Iterable[JobRow],
    signs: Mapping[str, list[Sign]],
    marks: Marks,
    state: str = "open",
    since: float = 0.0,
    order: Order = "cost",
) -> Inbox:
    """The incidents of a state, what burns first.

    What nobody touched and ended before `since` is not brought up again; what somebody marked stays where it was put.
    """
    found = []
    for row in rows:
        mine = tuple(sorted(signs.get(row.id, ()), key=lambda sign: sign.since))
        if is_incident(row, mine):
            found.append(Incident(row, marks.of(row.id), mine))
    counts = {"open": 0, "acknowledged": 0, "resolved": 0, "all": len(found)}
    shown, older = list[Incident](), list[Incident]()
    for each in found:
        if not each.mark.changed and not each.live and (each.last or 0.0) < since:
            older.append(each)
        else:
            counts[each.mark.state] += 1
            if state == each.mark.state:
                shown.append(each)
    if state == "all":
        shown, older = list(found), []
    shown = _with_alike(shown, found)
    if order == "new":
        shown.sort(key=lambda each: -(each.first or 0.0))
    elif order == "cost":
        shown.sort(key=_cost)
    return Inbox(shown, counts, older, _returning(found))


def lost_by(found: Iterable[Incident]) -> float | None:
    """What incidents lost together in GPU-hours; None where none of them knows."""
    known = [each.lost for each in found if each.lost is not None]
    return sum(known) if known else None


def _cost(each: Incident) -> tuple[float, bool, float, float]:
    return -each.burning, each.lost is None, -(each.lost or 0.0), -(each.last or 0.0)


def _returning(found: Iterable[Incident]) -> list[Returning]:
    """Hosts that a verdict or a log names in two incidents or more, in whatever state those are; the most first."""
    named: dict[str, list[Incident]] = {}
    for each in sorted(found, key=_cost):
        for host in each.row.hosts:
            named.setdefault(host, []).append(each)
    told = []
    for host, mine in named.items():
        shares = [each.lost / len(each.row.hosts) for each in mine if each.lost is not None]
        if len(mine) > 1:
            accused = any(each.row.badge_from == "verdict" for each in mine)
            told.append(Returning(host, tuple(each.id for each in mine), sum(shares) if shares else None, accused))
    return sorted(told, key=lambda each: (-len(each.jobs), -(each.lost or 0.0), each.host))


def is_incident(row: JobRow, signs: Iterable[Sign] = ()) -> bool:
    """Whether a job belongs into the inbox: something is wrong with it, or the watcher said so and was not refuted."""
    if row.pending:
        return False
    if row.troubled:
        return True
    refuted = row.badge_from == "verdict" and row.outcome in ("healthy", "expected")
    return not refuted and any(sign.is_trouble for sign in signs)


def one(row: JobRow, rows: Iterable[JobRow], signs: Mapping[str, list[Sign]], marks: Marks) -> Incident:
    """A single incident, with its likes among all jobs."""
    mine = tuple(sorted(signs.get(row.id, ()), key=lambda sign: sign.since))
    made = Incident(row, marks.of(row.id), mine)
    others = [Incident(other, Mark()) for other in rows if other.cause and other.cause == row.cause]
    [found] = _with_alike([made], [*others, made])
    return found


def _with_alike(shown: list[Incident], among: list[Incident]) -> list[Incident]:
    """Each with the other jobs that have its cause on one of its hosts."""
    by_place: dict[tuple[str, str], list[Incident]] = {}
    for each in among:
        for host in each.row.hosts if each.row.cause else ():
            by_place.setdefault((each.row.cause, host), []).append(each)
    out = []
    for each in shown:
        likes: dict[str, tuple[float, str]] = {}
        for host in each.row.hosts:
            for other in by_place.get((each.row.cause, host), []):
                if other.id != each.id:
                    likes.setdefault(other.id, (other.row.when, host))
        order = sorted(likes, key=lambda name: (-likes[name][0], name))
        alike = tuple(Alike(name, likes[name][1]) for name in order[:20])
        out.append(Incident(each.row, each.mark, each.signs, alike))
    return out


_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#~@"})
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def markdown(incident: Incident, link: str, price: float | None) -> str:
    """A dozen lines; names and sentences of jobs are text in it and nothing else."""
    row, mark = incident.row, incident.mark
    lines = [f"**{_plain(incident.title)}**: job {_plain(row.id)} ({_plain(row.model)}), {_plain(row.status)}", ""]
    lines += [f"{_plain(incident.says)}", ""] if incident.says else []
    if row.hosts:
        lines.append(f"- hosts: {_plain(', '.join(row.hosts))}")
    first, last = incident.first, incident.last
    seen = f"since {utc(first)} UTC" if first else "since when is not known"
    lines.append(f"- {seen}, {'still going on' if incident.live else f'last seen {utc(last)} UTC' if last else 'over'}")
    lost = "not known" if incident.lost is None else f"{amount(incident.lost)} GPU-hours"
    money = incident.money(price)
    lines.append(f"- lost: {lost}" + (f" ({amount(money)})" if money is not None else ""))
    if incident.burning:
        lines.append(f"- burning now: {amount(incident.burning)} GPUs")
    if incident.alike:
        shown = ", ".join(f"{_plain(each.job)} ({_plain(each.host)})" for each in incident.alike[:5])
        lines.append(f"- the same cause on the same host: {shown}")
    lines.append(f"- {mark.state}" + (f", {_plain(mark.owner)}" if mark.owner else ""))
    if mark.note:
        lines.append(f"- note: {_plain(mark.note)}")
    return "\n".join([*lines, "", _link(link), ""])


def drain_commands(host: str) -> list[tuple[str, str]]:
    """How a host is taken out, by scheduler; a name that no shell command can hold gives none."""
    if not _HOST.fullmatch(host):
        return []
    name = shlex.quote(host)
    return [
        ("Slurm", f"scontrol update nodename={name} state=drain reason=trackwalker"),
        ("Kubernetes", f"kubectl cordon {name}"),
        ("the next submission", f"trackwalker submit MODEL --exclude={name}"),
    ]


def _link(link: str) -> str:
    return "<" + re.sub(r"[<>\s]", "", link) + ">"


def _plain(text: str) -> str:
    return one_line(text).translate(_SPECIAL)
