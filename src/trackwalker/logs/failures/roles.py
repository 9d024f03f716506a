"""Which of many error lines is the cause: tiers, order in time, cascades (spec 2.4, 2.9 and 2.13)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from trackwalker.job.causes import about
from trackwalker.logs.failures.findings import Finding, Role, Stopped, hang
from trackwalker.logs.failures.groups import SLOWS, Group, groups_of, having, only, when
from trackwalker.logs.failures.kinds import kind_of, kind_of_cause, kind_of_end, kind_of_signature
from trackwalker.logs.failures.line_hosts import host_of_hit, hosts_told
from trackwalker.logs.failures.reactions import VICTIMS, reacts
from trackwalker.logs.failures.refine import CANCELS, KILLED, refine, survived
from trackwalker.logs.failures.structure import ERROR, read
from trackwalker.logs.failures.understood import carried
from trackwalker.logs.failures.unnamed import sort_errors, sort_raised, weigh
from trackwalker.logs.scanning.index import Hit, LogIndex
from trackwalker.logs.scanning.lines import Body

UNCLASSIFIED = "unclassified"  # the cause of what is located and not named
_SAME = 20  # lines: what a rank says so close together is about one thing
_FEW = 4
_TIMED_OUT = frozenset({124})  # the launcher's own limit
_ENDS = 5  # the tier of who ended a run
_CLEAR = 2.0  # the weight of words
_BLOCK = 3  # lines
_PERSONS = re.compile(
    r"^[A-Z][a-z]* (?:[\w'\"`,;()%/-]+ ){3,}[\w'\"`()%/-]+\.\s*(?:$|[A-Z])"
)  # sentences, without a label
_MEANT = 3.0  # the weight of a word that hardly means anything else
_PLACES = frozenset({"memory", "storage", "network", "device", "rendezvous", "scheduler"})
_OF_VALUES = frozenset({"KeyError", "ValueError", "TypeError", "IndexError"})
_NO_CODE = re.compile(r"(?i)\bnon-?zero (?:exit )?(?:status|code)|\bexited with an? (?:error|non)")
_SACCT = re.compile(
    r"^\s*\d+(?:_\d+)?(?:\.\w+|\+\d+)?\s.*\b[A-Z_]{4,}\b\+?.*?\s(?P<code>\d{1,3}):(?P<signal>\d{1,2})(?:\s|$)"
)


@dataclass
class Roles:
    """All findings, the primary first, and the rank that failed first."""

    findings: list[Finding] = field(default_factory=list)
    first_rank: int | None = None
    first_host: str | None = None
    first_says: str = ""

    @property
    def primary(self) -> Finding | None:
        """The cause, as far as the log alone can say."""
        return next((f for f in self.findings if f.role == "primary"), None)


def assign(index: LogIndex, stall: Stopped | None, completed: bool, overruled: dict[str, str] | None = None) -> Roles:
    """Give every failure class its role; `overruled` classes (with why) are contradicted by the scheduler."""
    groups = groups_of(index)
    survived(groups, index, completed)
    for group in groups:
        if group.id in (overruled or {}):
            group.tier, group.why = 8, (overruled or {})[group.id]
    for group in groups:
        if group.first.signature.unnamed:
            sort_errors(group, index)
        elif group.has("exception"):
            sort_raised(group, index)
    refine(groups, index)
    weigh(groups, index)
    carried(groups, index)
    first_rank, first_host, says = _first_failure(groups, index)
    ordered = sorted(groups, key=lambda g: (g.tier, -g.first.signature.priority, when(g.first, index)))
    primary = ordered[0] if ordered and ordered[0].tier <= 5 and not completed else None
    if primary is not None and primary.tier == 4:
        primary = _specific_or_first(ordered, first_rank) or primary
    if primary is not None and primary.tier in (3, 4):
        primary = _ended_from_outside(groups, primary, index) or primary
    # Somebody shows a log in which nothing failed: what slows the run is the answer.
    if primary is None and not completed and stall is None and not index.facts.launched:
        primary = next((g for g in ordered if g.tier == g.first.signature.order == SLOWS), None)
    if primary is None and completed and not index.facts.launched:
        primary = _ended_late(groups)
    if primary is not None:
        primary = _own_line(groups, primary, first_rank, index) or primary
        _owned_by_the_first(primary, index)
        if primary.has("kill") and len({host_of_hit(index, h) for h in primary.hits} - {None}) == 1:
            primary.local = True  # where a launcher tells of a kill, and nobody elsewhere, it happened
        _without_a_name(primary, index)
    roles = Roles(first_rank=first_rank, first_host=first_host, first_says=says)
    if completed and not index.facts.exits:
        roles = Roles()  # nobody failed: what was outlived accuses no rank
    takes_over = False
    if stall is not None and (primary is None or primary.tier >= 3) and not completed:
        said = primary is not None and _said_before_silence(primary, index)
        roles.findings.append(replace(hang(index, stall), role="mechanism") if said else hang(index, stall))
        primary, takes_over = (primary, False) if said else (None, True)
    if primary is not None:
        roles.findings.append(_finding(primary, "primary", index))
        if roles.first_rank is None:
            roles.first_rank, roles.first_host = primary.first.rank, host_of_hit(index, primary.first)
            roles.first_says = "its error is the first in the log"
    if primary is not None and (
        (primary.has("heartbeat") and primary.cause == primary.first.signature.cause) or primary.tier == 5
    ):
        # Everyone was killed at once: the order of the exits says nothing about a culprit.
        roles.first_rank, roles.first_host, roles.first_says = None, None, ""
    for group in sorted(groups, key=lambda g: (g.tier, when(g.first, index))):
        if group is not primary:
            roles.findings.append(_finding(group, _other_role(group, primary, takes_over, completed, index), index))
    _class_by_the_others(roles)
    return roles


def _ended_late(groups: list[Group]) -> Group | None:
    """A program that said it had reached its end, and was ended by others or by itself only after it."""
    end = only(groups, "at-the-end")
    ends = having(groups, "own-end", "end-of-process", "request-to-end") if end else []
    if end is None or not any(g.first.signature.order <= _ENDS and g.first.line > end.first.line for g in ends):
        return None
    end.tier, end.why = 3, "every step was done; it was ended after that"
    return end


def _class_by_the_others(roles: Roles) -> None:
    """Where the words of what failed lean nowhere, its class is that of what followed from it and is known."""
    first = roles.primary
    if first is None or first.kind:
        return
    known = next((f.kind for f in roles.findings if f.role == "consequence" and f.kind and not f.unnamed), "")
    # What does not get on and says nothing, or in words that lean nowhere: its program is asked first.
    known = known or ("program" if first.cause == UNCLASSIFIED else "")
    roles.findings[roles.findings.index(first)] = replace(first, kind=known)


def _said_before_silence(primary: Group, index: LogIndex) -> bool:
    """An error in unknown words behind the last step: why nothing came after it, or at least where."""
    told, last = primary.first.told, int(index.steps.line.max()) if len(index.steps) else 0
    return told is not None and told.severity >= ERROR and primary.first.line > last


def _own_line(groups: list[Group], primary: Group, first_rank: int | None, index: LogIndex) -> Group | None:
    """A lost peer is told best by its own line, or its launcher's: that it was killed, not that others missed it."""
    first = index.places.ended_first if first_rank is None else first_rank
    if not primary.has("lost-peer") or first is None:
        return None
    for group in having(groups, "kill"):
        hit = group.first
        if hit.rank == first or (hit.rank is None and first == index.places.ended_first and group.tier <= 4):
            group.hits[0] = replace(hit, rank=first, host=index.rank_hosts.get(first, hit.host))
            group.local = True  # it is told of a process that is named
            return group
    return None


def _owned_by_the_first(primary: Group, index: LogIndex) -> None:
    """Words that nobody's label stands before are those of the rank that the launcher says ended first."""
    first, hit = index.places.ended_first, primary.first
    nobodys = hit.rank is None and hit.task is None and hit.file == index.path.name
    if first is None or not nobodys or (primary.cause != UNCLASSIFIED and not primary.has("exception")):
        return
    if hit.host in ("", index.rank_hosts.get(first, hit.host)):
        primary.hits[0] = replace(hit, rank=first, host=index.rank_hosts.get(first, hit.host))


def _without_a_name(primary: Group, index: LogIndex) -> None:
    """That somebody is gone is no cause where only those who lost it say so: its place is told, its reason is not."""
    told, places = about(primary.cause), index.places
    launcher = index.facts.exits or index.facts.header  # our own tells how each process ended
    if told is None or not told.symptom or launcher or not having([primary], *VICTIMS):
        return
    primary.was, primary.cause = primary.cause, UNCLASSIFIED
    primary.why = primary.why or "others tell that somebody is gone; nothing tells why"
    if places.first is not None:
        gone = replace(primary.first, rank=places.first, task=None, host=index.rank_hosts.get(places.first, ""))
        primary.hits.insert(0, gone)


def _first_failure(groups: list[Group], index: LogIndex) -> tuple[int | None, str | None, str]:
    facts = index.facts
    if facts.first_failure is not None:
        return facts.first_failure.rank, facts.first_failure.host, "the agent's FIRST_FAILURE line"
    real = [e for e in facts.exits if e.code not in (0, *CANCELS)]
    killed = [e for e in real if e.code in KILLED]
    # 134 (abort) and 1 follow when a peer is gone; a rank that was killed or crashed went first.
    chosen = (killed or real)[:1] if len({e.code for e in real}) > 1 else real[:1]
    specific = [h for g in groups if g.tier <= 2 for h in g.hits if h.rank is not None]
    if specific:
        hit = min(specific, key=lambda h: (h.signature.order, when(h, index)))
        return hit.rank, host_of_hit(index, hit), "its error is the first in the log"
    if chosen:
        rank = chosen[0].rank
        return rank, chosen[0].host, f"its exit code {chosen[0].told} comes first"
    return None, None, ""


def _specific_or_first(ordered: list[Group], first_rank: int | None) -> Group | None:
    """Among wrappers, the one of the rank that failed first; a traceback says more than an exit code."""
    wrappers = [g for g in ordered if g.tier == 4 and g.first.signature.says]
    for group in sorted(wrappers, key=lambda g: -g.first.signature.says):
        if first_rank is None or any(h.rank in (first_rank, None) for h in group.hits):
            return group
    return None


def _ended_from_outside(groups: list[Group], primary: Group, index: LogIndex) -> Group | None:
    """Of a run whose summary calls it cancelled: the cancel, when it stands before the lost peers and wrappers.

    Ranks that are told to end drop their connections and complain about each other: that is how a cancel sounds.
    """
    summary = index.facts.summary
    if summary is None or summary.exit not in CANCELS | _TIMED_OUT:
        return None
    # A rank that loses its peers while it was asked to end may exit with an error or an abort; where the cancel has its
    # own line, that line stands before them.
    excused = {0, *CANCELS} | ({1, 134} if index.facts.cancel is not None else set())
    if any(e.code not in excused for e in index.facts.exits):
        return None
    before = [g for g in groups if g.tier == 5 and when(g.first, index) < when(primary.first, index)]
    return min(before, key=lambda g: (-g.first.signature.priority, when(g.first, index)), default=None)


def _other_role(group: Group, primary: Group | None, hang: bool, completed: bool, index: LogIndex) -> Role:
    if group.tier >= 8 or (completed and group.tier <= 7):
        return "note"
    if group.tier == 7:
        return "contributing"
    if group.tier == 5 or (hang and group.tier == 3):
        return "mechanism"
    if primary is None:
        return "consequence" if hang else "note"
    if group.tier <= 2 and when(group.first, index) <= when(primary.first, index):
        return "contributing"
    return "consequence"


def _finding(group: Group, role: Role, index: LogIndex) -> Finding:
    hit = group.first
    signature = hit.signature
    ranks = tuple(sorted({h.rank for h in group.hits if h.rank is not None}))
    known = index.facts.hosts
    # Only the launcher's and the scheduler's own lines speak of other hosts: what a rank prints does not.
    own = [h for h in group.hits if h.rank is None and h.task is None]
    told = (
        ()
        if signature.unnamed and hit.rank is not None
        else group.hosts
        or tuple(dict.fromkeys(host for h in own for said in (h.text, *h.more) for host in hosts_told(said, known)))
    )
    wrote = sorted(group.hits, key=lambda h: -1 if h.rank is None else h.rank)
    hosts = told or tuple(dict.fromkeys(host for h in wrote if (host := host_of_hit(index, h))))
    return Finding(
        id=signature.id, cause=group.cause, role=role, tier=group.tier, rank=hit.rank,
        host=told[0] if told else host_of_hit(index, hit),
        line=hit.line, file=hit.file, text=hit.text, count=sum(h.count for h in group.hits),
        ranks=ranks, hosts=hosts, why=group.why, fc=signature.fc,
        proves_not=signature.proves_not, next=tuple(signature.next), local=group.local,
        kind=_kind(group, {*index.rank_hosts.values(), *known}), subject=_subject(hit), unnamed=hit.signature.unnamed,
    )  # fmt: skip


def _kind(group: Group, hosts: set[str]) -> str:
    """The generic class: the cause's own, or of words that name no cause what they are about."""
    hit = group.first
    if hit.kind:
        return hit.kind
    if group.cause in (UNCLASSIFIED, hit.signature.cause) and (own := kind_of_signature(hit.signature.id)):
        return own
    vague = hit.signature.unnamed or group.has("exception") or group.has("traceback")
    cause = (
        (group.was or hit.signature.cause) if group.cause == UNCLASSIFIED else group.cause
    )  # a class is what a symptom still tells
    turned = group.has("meeting") and cause != hit.signature.cause
    if turned and (found := kind_of([hit.text], least=_MEANT, but="time")):
        return found  # what it turned out to tell says less of it than its own words
    if not vague and (known := kind_of_cause(cause, hit.text) or kind_of_cause(cause, hit.last_text)):
        return known
    told = hit.told or read(Body(hit.text, hit.rank, None, False, None))
    said = [h.text for h in group.hits if h.rank == hit.rank and abs(h.line - hit.line) <= _SAME][:_FEW]
    if told is None:
        return kind_of([hit.text], hosts=hosts)
    # What a rank says line upon line is one message; what stands further away tells more only where that is not clear.
    block = [h for h in group.hits if h.rank == hit.rank and h.file == hit.file and abs(h.line - hit.line) <= _BLOCK]
    if told.severity < ERROR and _PERSONS.match(hit.text) and not (told.signal or told.code):
        return kind if (kind := kind_of([hit.text], least=_MEANT)) in _PLACES else "program"
    texts = [hit.text, *(h.text for h in block if h is not hit and not reacts(h.text))][:_FEW]
    least = _CLEAR if group.has("exception") else 1.0  # what a program raises is its own where hardly a word leans
    found = kind_of(texts, told.about, told.exception, told.errno, hosts, least)
    found = found or kind_of(said or [hit.text], told.about, told.exception, told.errno, hosts, least)
    if found == "configuration" and hit.of_data and told.exception in _OF_VALUES:
        return "data"  # a key or a value of a sample
    signal, code = (told.signal, told.code) if told.is_end else _slurms(hit.text)
    if (signal or code or _NO_CODE.search(hit.text)) and found in ("", "scheduler", "data"):
        found = kind_of_end(signal, code or 1)  # who tells of an end says nothing of what it was about
    found = found or (kind_of_cause(group.cause) if group.cause != UNCLASSIFIED else "")
    if found == "time" and group.has("exception"):  # when is no place to search: where else its words lean
        return kind_of(texts, told.about, told.exception, told.errno, hosts, _CLEAR, but="time") or found
    return "program" if found == "time" else found


def _slurms(text: str) -> tuple[int | None, int | None]:
    """Signal and code of a row of sacct, which writes them as one column."""
    row = _SACCT.match(text)
    return (int(row["signal"]) or None, int(row["code"])) if row else (None, None)


def _subject(hit: Hit) -> str:
    """What failed, in the line's own words; and where in the job's code."""
    about = hit.told.about if hit.told is not None else ""
    return "; ".join(filter(None, (about, f"raised at {hit.frame}" if hit.frame else "")))
