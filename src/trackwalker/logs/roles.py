"""Which of many error lines is the cause: tiers, order in time, cascades (spec 2.4, 2.9 and 2.13)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from trackwalker.logs.findings import Finding, Role, Stopped, hang
from trackwalker.logs.groups import Group, groups_of, when
from trackwalker.logs.hearsay import coordinator_mute, demote_hearsay, told_by_the_missing
from trackwalker.logs.index import LogIndex
from trackwalker.logs.told import (
    absent_hosts,
    host_of_hit,
    hosts_told,
    local_disk_hosts,
    never_joined,
    refused_at,
    unloaded,
    waited_for,
)

_STEPS_AFTER = 3  # a run that completes this many further steps did not die of what came before
_FATAL_ANYWAY = frozenset({"loss-divergence", "xid-hardware", "silent-data-corruption", "host-kernel-fault"})
_MEETING = frozenset({"rendezvous-incomplete", "k8s-rendezvous", "nccl-nic-fail"})
_TRACEBACK = 60  # lines of a traceback, interleaved with those of other ranks
_KILLED = frozenset({137})
_CANCELS = frozenset({130, 143})
_FIRST_TRANSFER = re.compile(r"NET/IB.*Got completion.*(?:error|status)[ =]*12\b")
_ASKED_TO_END = re.compile(r"(?i)signal:? 15|SIGTERM|CANCELLED|preempt|time limit|death signal")
_IMAGE_STAGE = re.compile(r"== (?:Docker|Image|Container) pull FAILED")
_SEQ = re.compile(r"SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?")


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
    _demote_survived(groups, index, completed)
    for group in groups:
        if group.id in (overruled or {}):
            group.tier, group.why = 8, (overruled or {})[group.id]
    _refine(groups, index)
    first_rank, first_host, says = _first_failure(groups, index)
    ordered = sorted(groups, key=lambda g: (g.tier, -g.first.signature.priority, when(g.first, index)))
    primary = ordered[0] if ordered and ordered[0].tier <= 5 and not completed else None
    if primary is not None and primary.tier == 4:
        primary = _specific_or_first(ordered, first_rank) or primary
    if primary is not None and primary.tier in (3, 4):
        primary = _ended_from_outside(groups, primary, index) or primary
    if primary is not None:
        primary = _own_line(groups, primary, first_rank) or primary
    roles = Roles(first_rank=first_rank, first_host=first_host, first_says=says)
    if completed and not index.facts.exits:
        roles = Roles()  # nobody failed: what was outlived accuses no rank
    if stall is not None and (primary is None or primary.tier >= 3) and not completed:
        roles.findings.append(hang(index, stall))
        primary = None
        takes_over = True
    else:
        takes_over = False
    if primary is not None:
        roles.findings.append(_finding(primary, "primary", index))
        if roles.first_rank is None:
            roles.first_rank, roles.first_host = primary.first.rank, host_of_hit(index, primary.first)
            roles.first_says = f"first line of {primary.id}"
    if primary is not None and (primary.cause == "heartbeat-false-positive" or primary.tier == 5):
        # Everyone was killed at once: the order of the exits says nothing about a culprit.
        roles.first_rank, roles.first_host, roles.first_says = None, None, ""
    for group in sorted(groups, key=lambda g: (g.tier, when(g.first, index))):
        if group is not primary:
            roles.findings.append(_finding(group, _other_role(group, primary, takes_over, completed, index), index))
    return roles


def _own_line(groups: list[Group], primary: Group, first_rank: int | None) -> Group | None:
    """A lost peer is told best by its own line: that it was killed, not that another rank missed it."""
    if primary.id != "peer-died" or first_rank is None:
        return None
    return next((g for g in groups if g.id == "sigkill" and g.first.rank == first_rank), None)


def _demote_survived(groups: list[Group], index: LogIndex, completed: bool) -> None:
    """What the run outlived did not kill it: complaints before the first step, errors with steps after them."""
    steps = index.steps
    for group in groups:
        if group.tier > 4 or group.id in _FATAL_ANYWAY:
            continue
        if any(h.file != index.path.name and h.file not in index.earlier for h in group.hits):
            continue  # another rank's file: its line numbers do not compare with the main log's
        last = max(h.last_line - index.earlier.get(h.file, 0) for h in group.hits)
        after = int((steps.line > last).sum()) if len(steps) else 0
        if completed or after >= _STEPS_AFTER:
            group.tier, group.why = 8, "the run went on after it"
            continue
        if len(steps) >= _STEPS_AFTER:  # nor did what comes before the last few steps
            fatal = np.sort(steps.line)[-_STEPS_AFTER]
            group.hits = [h for h in group.hits if h.last_line - index.earlier.get(h.file, 0) >= fatal]


def _demote_late_start(groups: list[Group], index: LogIndex) -> None:
    """Ranks that cannot meet after training began, or after another failure, look for one that is gone."""
    # A step needs all ranks: where one was made they had met, whichever rank's file the line stands in.
    begun = bool(len(index.steps))
    failed = [when(g.first, index) for g in groups if g.tier == 2 and not g.first.signature.first_only]
    for group in groups:
        if group.tier == 1 and group.cause in _MEETING:
            first = when(group.first, index)
            if begun:
                group.tier, group.cause, group.why = 4, "peer-died", "training had begun: it looks for one that is gone"
            elif any(at < first for at in failed):
                group.tier = 3


def _refine(groups: list[Group], index: LogIndex) -> None:
    _demote_late_start(groups, index)
    by_id = {g.id: g for g in groups}
    if group := by_id.get("watchdog-timeout"):
        _who_is_missing(group, groups, index)
    if (group := by_id.get("sigkill")) and group.tier <= 4:
        peers = {"peer-died", "coordination-lost", "heartbeat-timeout", "abort", "watchdog-timeout"} & by_id.keys()
        if peers or index.facts.exits or index.facts.header:
            group.cause = "peer-died"
            group.why = "a rank was killed from outside; nothing in the log says by whom"
    if group := by_id.get("heartbeat-timeout"):
        _heartbeat(group, index)
    claimed = "heartbeat-timeout" in by_id  # then the coordinator speaks, and accuses others
    if (group := by_id.get("jax-coord-timeout")) and not claimed and coordinator_mute(group, index):
        group.cause, group.why = "coordinator-overload", "the coordinator lived and did not answer the tasks in time"
        group.hosts = tuple(filter(None, (_host(index, 0),)))
    _demote_followers(by_id, index)
    demote_hearsay(groups, by_id, index)
    _name_hosts(by_id, index)
    if (group := by_id.get("stage-fail")) and _IMAGE_STAGE.match(group.first.text):
        _image_stage(group, index)
    if (group := by_id.get("node-exit")) and not any(g.tier <= 3 for g in groups):
        codes = [e.code for e in index.facts.exits if e.code not in _CANCELS]
        if codes and codes[0] in (139, 135):
            group.cause, group.why = "segfault", f"exit code {codes[0]}"
    never_worked = not len(index.steps) and not index.facts.header
    # Links that fail do so in the middle of a run; those that never worked have the wrong GID, VLAN or route.
    transfers = by_id.get("rdma-completion-error") if never_worked else None
    if (group := transfers) and any(_FIRST_TRANSFER.search(h.text) for h in group.hits):
        group.cause, group.why = "rdma-misconfigured", "the first transfers failed: no step was made before"
    if (group := by_id.get("python-traceback")) and "python-exception" not in by_id:
        ends = [h for i in ("preempted", "walltime", "cancelled") if i in by_id for h in by_id[i].hits]
        asked = [h for h in ends if _ASKED_TO_END.search(h.text)]
        if any("KeyboardInterrupt" in h.text for h in ends) or any(
            when(h, index) < when(group.first, index) for h in asked
        ):
            group.tier, group.why = 8, "it shows where the interrupt met the program"
    if (group := by_id.get("nccl-nic-fail")) and group.tier == 1:
        # Loopback among the interfaces is only wrong when connecting failed afterwards.
        texts = [h.text for h in group.hits]
        failed = {"nccl-error", "nccl-warn", "peer-died", "watchdog-timeout", "rendezvous-incomplete"} & by_id.keys()
        if all("lo:" in t for t in texts) and not failed:
            group.tier = 8


def _demote_followers(by_id: dict[str, Group], index: LogIndex) -> None:
    """What another finding explains: a kill after a request to end, an image that a full disk could not take."""
    asked = [by_id[i].first for i in ("preempted", "walltime", "cancelled") if i in by_id]
    asked = [h for h in asked if _ASKED_TO_END.search(h.text)]
    for end in (by_id[i] for i in ("sigkill", "elastic-teardown") if i in by_id):
        if end.tier <= 4 and any(when(h, index) < when(end.first, index) for h in asked):
            end.tier, end.why = 6, "it came after the request to end"
    error = by_id.get("python-exception")
    frames = [by_id[i] for i in ("checkpoint-load-frame", "checkpoint-save-frame") if i in by_id]
    if error is not None and error.tier == 3 and any(_near(error, frame) for frame in frames):
        error.tier, error.why = 4, "it was raised while a checkpoint was read or written"
    blind, library = by_id.get("no-gpu"), by_id.get("missing-library")
    if blind and library and library.tier == 1 and unloaded(blind.hits, library.hits):
        blind.tier, blind.why = 3, "the library by which it would use its GPU could not be loaded"
    if (wait := by_id.get("barrier-wait")) and len(index.steps):
        wait.tier, wait.why = 8, "training began after it"
    if "storage-full" in by_id and by_id["storage-full"].tier == 2:
        for name in ("container-pull-fail", "container-load-fail"):
            if name in by_id and by_id[name].tier == 1:
                by_id[name].tier, by_id[name].why = 3, "the image had no room on the disk"
                by_id["storage-full"].local = True


def _name_hosts(by_id: dict[str, Group], index: LogIndex) -> None:
    """Where it happened, for lines that tell of a host without naming it; and who cannot be told from the others."""
    exits = index.facts.exits
    killed = {e.host for e in exits if e.code in _KILLED and e.host}
    if (group := by_id.get("oom-host")) and len(killed) == 1 and all(h.rank is None for h in group.hits):
        group.hosts = tuple(killed)
    for group in filter(None, map(by_id.get, ("storage-error", "mount-silent"))):
        if own := local_disk_hosts(index, group.hits):
            group.hosts, group.local = own, True
    if group := by_id.get("clock-skew"):
        group.hosts = refused_at(index, group.hits)
    spoke = [h for g in by_id.values() if g.tier <= 4 and g.id != "node-exit" for h in g.hits]
    group = by_id.get("rendezvous-incomplete")
    if group and group.tier == 1 and (absent := absent_hosts(index, group.hits, spoke)):
        group.hosts, group.local = absent, True
        group.why = f"all others tell that somebody did not come; {', '.join(absent)} alone does not"
    if (group := by_id.get("missing-library")) and group.tier == 1 and waited_for(group.hits, spoke):
        group.local = True
    if (group := by_id.get("evicted-disk")) and any(hosts_told(h.text) for h in group.hits):
        group.local = True
    others = [g for g in by_id.values() if g.tier <= 4 and g.id not in ("node-exit", "stage-fail", "abort")]
    alike = len({e.code for e in exits}) == 1 and exits[0].code < 128 and len(exits) >= max(2, _world(index) or 0)
    if (group := by_id.get("node-exit")) and alike and not others:
        group.tier, group.why = 8, "all ranks ended alike and none says why"


def _image_stage(group: Group, index: LogIndex) -> None:
    """The stage that fetches the image failed in words that nobody knows: still it was the image, on who failed."""
    group.cause, group.why = "container-pull-fail", "the stage that fetches and loads the image failed"
    failed = {e.host for e in index.facts.exits if e.host and e.code not in (0, *_CANCELS)}
    if failed and len(failed) < len({e.host for e in index.facts.exits}):
        group.hosts = tuple(sorted(failed))


def _near(error: Group, frame: Group) -> bool:
    """Whether an error line and a frame belong to one traceback, or to those of ranks that failed together."""
    return any(e.file == f.file and abs(e.line - f.line) <= _TRACEBACK for e in error.hits for f in frame.hits)


def _who_is_missing(group: Group, groups: list[Group], index: LogIndex) -> None:
    asked = {m.groups() for h in group.hits if (m := _SEQ.search(h.text))}
    if len(asked) > 1 and len({a[0] for a in asked}) < len(asked):
        group.cause, group.why = "collective-mismatch", "ranks wait in different collectives of the same number"
        group.tier = 2
        return
    if group.tier == 3 and (own := told_by_the_missing(group, groups, index)):
        group.tier, group.why = 4, f"rank {own.first.rank}, which does not wait with them, reports {own.cause} itself"
        return
    spoke = [h for g in groups if g is not group and g.tier <= 4 for h in g.hits]
    if missing := never_joined(index, group.hits, spoke):
        group.cause = "collective-mismatch"
        group.why = f"{missing} never joined the collective the others wait in, and reported no error"


def _world(index: LogIndex) -> int | None:
    return len(index.facts.hosts) or None


def _heartbeat(group: Group, index: LogIndex) -> None:
    """Init kill, real death or false alarm (2.9)."""
    beat = index.facts.heartbeat
    accused = beat.accused if beat else set()
    exits = {e.rank: e.code for e in index.facts.exits if e.rank is not None}
    dead = {r for r in accused if exits.get(r) in (137, 139, 135, 136)}
    if dead:
        group.cause = "peer-died"
        group.why = f"suspect rank {', '.join(map(str, sorted(dead)))} really ended by a signal"
        group.hosts = tuple(h for r in sorted(dead) if (h := _host(index, r)))
    elif not len(index.steps) and index.facts.header:
        group.cause, group.why = "heartbeat-init-timeout", "no step was completed: the timeout is shorter than start-up"
    elif beat and accused and not accused & beat.own_death.keys() and beat.own_death:
        group.cause = "peer-died"
        group.why = "the suspect logged nothing afterwards while the other ranks did"
        group.hosts = tuple(h for r in sorted(accused) if (h := _host(index, r)))


def _first_failure(groups: list[Group], index: LogIndex) -> tuple[int | None, str | None, str]:
    facts = index.facts
    if facts.first_failure is not None:
        return facts.first_failure.rank, facts.first_failure.host, "the agent's FIRST_FAILURE line"
    real = [e for e in facts.exits if e.code not in (0, *_CANCELS)]
    killed = [e for e in real if e.code in _KILLED]
    # 134 (abort) and 1 follow when a peer is gone; a rank that was killed or crashed went first.
    chosen = (killed or real)[:1] if len({e.code for e in real}) > 1 else real[:1]
    specific = [h for g in groups if g.tier <= 2 for h in g.hits if h.rank is not None]
    if specific:
        hit = min(specific, key=lambda h: (h.signature.order, when(h, index)))
        return hit.rank, host_of_hit(index, hit), f"its {hit.signature.id} line comes first"
    if chosen:
        rank = chosen[0].rank
        return rank, chosen[0].host, f"its exit code {chosen[0].told} comes first"
    return None, None, ""


def _host(index: LogIndex, rank: int | None) -> str | None:
    return index.facts.host_of(rank) if rank is not None else None


def _specific_or_first(ordered: list[Group], first_rank: int | None) -> Group | None:
    """Among wrappers, the one of the rank that failed first; a traceback says more than an exit code."""
    wrappers = [g for g in ordered if g.tier == 4]
    preferred = (
        "sigkill", "segfault", "xid-teardown", "python-exception", "abort", "nccl-warn", "python-traceback",
        "coordination-lost",
    )  # fmt: skip
    for name in preferred:
        for group in wrappers:
            if group.id == name and (first_rank is None or any(h.rank in (first_rank, None) for h in group.hits)):
                return group
    return None


def _ended_from_outside(groups: list[Group], primary: Group, index: LogIndex) -> Group | None:
    """Of a run whose summary says "cancelled": the cancel, when it stands before the lost peers and wrappers.

    Ranks that are told to end drop their connections and complain about each other: that is how a cancel sounds.
    """
    summary = index.facts.summary
    if summary is None or summary.exit not in _CANCELS:
        return None
    # A rank that loses its peers while it was asked to end may exit with an error or an abort; where the cancel has its
    # own line, that line stands before them.
    excused = {0, *_CANCELS} | ({1, 134} if index.facts.cancel is not None else set())
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
    told = group.hosts or tuple(dict.fromkeys(host for h in group.hits for host in hosts_told(h.text, known)))
    wrote = sorted(group.hits, key=lambda h: -1 if h.rank is None else h.rank)
    hosts = told or tuple(dict.fromkeys(host for h in wrote if (host := host_of_hit(index, h))))
    return Finding(
        id=signature.id, cause=group.cause, role=role, tier=group.tier, rank=hit.rank,
        host=told[0] if told else host_of_hit(index, hit),
        line=hit.line, file=hit.file, text=hit.text, count=sum(h.count for h in group.hits),
        ranks=ranks, hosts=hosts, why=group.why, fc=signature.fc,
        proves_not=signature.proves_not, next=tuple(signature.next), local=group.local,
    )  # fmt: skip
