"""Questions about machines that a job shares with others (who else uses the CPUs?) and about where its ranks stand."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.diagnose.accounts.accounts import Account
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts.log_facts import FACTS, Answer, Fact, add_facts
from trackwalker.logs.formats.stacks import place
from trackwalker.record.capsules import Capsule, read_capsules
from trackwalker.record.clock import utc

_NODE, _FOREIGN, _OWN = "hw_node_cpu_seconds_total", "hw_foreign_cpu_seconds_total", "hw_cpu_seconds_total"
_NOTICED = 0.1  # of a CPU: less is the housekeeping of any machine
_TOLD = 3  # programs in one sentence


@dataclass(frozen=True)
class ForeignLoad:
    """CPUs in use by processes that are not the job's, on the machine where that is most."""

    machine: str
    cpus: float
    before: float | None
    query: str
    values: dict[str, float]
    programs: dict[str, float]  # CPUs by program, as far as the recorder saw their names
    since: float


def foreign_load(case: Case, symptoms: Symptoms) -> ForeignLoad | None:
    """Who uses the CPUs that is not ours, in the episode that lost most time to waiting for one."""
    account = _contended(symptoms)
    if case.telemetry is None or account is None or not {_NODE, _OWN} <= case.telemetry.metrics():
        return None
    phases = [symptoms.slow[i] for i in sorted(account.slow)]
    span = Span(phases[0].start, phases[-1].end) if phases else None
    if span is None:
        return None
    query = _query(span)
    found = case.telemetry.by_host(query, span.end)
    if not found:
        return None
    machine = max(found, key=lambda m: (found[m], m))
    fast = symptoms.windows.get("fast")
    then = case.telemetry.by_host(_query(fast[0]), fast[0].end) if fast else {}
    if machine in then and fast:
        query = f'{query} or label_replace({_query(fast[0])}, "window", "fast", "", "")'
        found |= {f"{machine}/fast": then[machine]}
    programs = _programs(case, machine, span)
    return ForeignLoad(machine, found[machine], then.get(machine), query, found, programs, account.since)


def _contended(symptoms: Symptoms) -> Account | None:
    waited = [(b.share * a.lost_s, a) for a in symptoms.accounts if (b := a.booked("cpu")) is not None and b.share > 0]
    return max(waited, key=lambda w: w[0])[1] if waited else None


def _query(span: Span) -> str:
    """Busy CPUs of a machine less those of the job's own ranks there; a lane's machine is in its identity."""
    window = f"[{max(1, round(span.seconds))}s] @ {span.end:.3f}"
    where = f"max by (host, node) (max_over_time(hw_rank_info{window}))"
    own = f"sum by (node) (sum by (host) (rate({_OWN}{window})) * on (host) group_left (node) {where})"
    own = f'sum by (host) (label_replace({own}, "host", "$1", "node", "(.*)"))'
    return f'(sum by (host) (rate({_NODE}{{mode="busy"}}{window})) - {own})'


def _programs(case: Case, machine: str, span: Span) -> dict[str, float]:
    if case.telemetry is None or _FOREIGN not in case.telemetry.metrics():
        return {}
    window = f"[{max(1, round(span.seconds))}s] @ {span.end:.3f}"
    query = f'sum by (process) (rate({_FOREIGN}{{host="{machine}"}}{window}))'
    used = case.telemetry.by(query, span.end, "process")
    return dict(sorted(used.items(), key=lambda p: (-p[1], p[0]))[:_TOLD])


def others_use_the_cpus(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Processes that are not the job's use CPUs of its machine while its ranks wait for one."""
    load = foreign_load(case, symptoms)
    if load is None:
        return Answer(None)
    then = "" if load.before is None else f", {load.before:.2f} at full speed"
    says = f"{load.machine}: processes that are not the job's use {load.cpus:.2f} CPUs while it is slow{then}"
    ids = [book.add("metric", load.query, says, load.values)]
    return Answer(load.cpus >= _NOTICED, tuple(ids), (), load.since)


def words(case: Case, symptoms: Symptoms) -> str:
    """Who they are, for a sentence; empty where nobody else was seen."""
    load = foreign_load(case, symptoms)
    if load is None or load.cpus < _NOTICED:
        return ""
    named = ", ".join(f"{name} {cpus:.2f}" for name, cpus in load.programs.items() if cpus >= _NOTICED)
    who = f" ({named})" if named else ""
    return f"; processes that are not the job's use {load.cpus:.2f} CPUs of {load.machine}{who}"


add_facts(others_use_the_cpus)


def capsule_of(case: Case, symptoms: Symptoms) -> Capsule | None:
    """The newest capsule taken during the silence; an earlier one tells of another incident."""
    stall = symptoms.stall
    if stall is None or stall.since is None or stall.until is None:
        return None
    taken = [c for c in read_capsules(case.job.dir) if c.stacks and stall.since <= c.time <= stall.until + 60.0]
    return taken[-1] if taken else None


def stands_elsewhere(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """One or few ranks are stopped, hang in the kernel, or stand outside the collective that the others wait in."""
    capsule = capsule_of(case, symptoms)
    if capsule is None:
        return Answer(None)
    ids = [
        book.add("event", f"stacks/{one.source or capsule.incident}", f"rank {one.rank} on {one.host}: {one.why}")
        for one in capsule.odd
    ]
    hosts = tuple(one.host for one in capsule.odd if one.host)
    return Answer(bool(ids), tuple(ids), hosts, capsule.time if ids else None)


def stacks_wait(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The stacks of all ranks, but for those that hold them up, stand in a wait for other ranks."""
    capsule = capsule_of(case, symptoms)
    if capsule is None or capsule.everybody_waits is None:
        return Answer(None)
    says = f"stacks of {len(capsule.stacks)} ranks at {utc(capsule.time)}: {capsule.summary()}"
    if not capsule.everybody_waits:
        return Answer(None)  # a stack that we do not know as a wait proves nothing against one
    return Answer(True, (book.add("event", f"stacks/{capsule.incident}", says),), (), None)


def odd_rank_in_data(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The rank that holds the others up stands in the code that brings its next batch."""
    capsule = capsule_of(case, symptoms)
    odd = {one.rank for one in capsule.odd} if capsule is not None else set()
    stacks = [s for s in capsule.stacks if s.rank in odd and s.frames] if capsule is not None else []
    if not stacks:
        return Answer(None)
    mine = [s for s in stacks if s.in_data and not s.stopped]
    ids = [
        book.add("event", f"stacks/{s.source}", f"rank {s.rank} on {s.host} waits for its next batch{place(s)}")
        for s in mine
    ]
    return Answer(bool(mine), tuple(ids), tuple(s.host for s in mine))


STACKS: dict[str, Fact] = {
    "stands-elsewhere": stands_elsewhere,
    "stacks-wait": stacks_wait,
    "odd-rank-in-data": odd_rank_in_data,
}
FACTS.update(STACKS)
