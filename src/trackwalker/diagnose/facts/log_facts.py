"""Questions that the log and the journals answer, by name, for playbooks."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.causes.playbook import state_of
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.job.dialects import read_step
from trackwalker.job.run import ours
from trackwalker.logs.facts import LogFacts, Quote
from trackwalker.logs.failures.lastwords import lost_somebody
from trackwalker.record.clock import utc
from trackwalker.record.masks import WARM_UP_STEPS
from trackwalker.record.phases import PLAIN
from trackwalker.stats.segments import smallest_visible

# Codes that say "something outside killed or broke this process", as against a cascade's TERM or a tidy exit.
_FEWEST_STEPS = 3
_MOST_TOLD = 4  # hosts whose end is told, before one whose end is not stands out
_ALIKE = 1.3  # longest against shortest of a few steps
_PEER = re.compile(r"(?i)\b(?:peer|rank|task)[ =#:]*(\d+)\b(?!\]?:)")
_SELF = re.compile(r"(?i)\[rank ?(\d+)\]")  # who speaks, by the number that his own library gives him
_CRASH_CODES = {128 + s for s in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)}
_KILL_CODES = {128 + signal.SIGKILL} | _CRASH_CODES


@dataclass(frozen=True)
class Answer:
    """Yes, no or unknown (None), with the hosts it concerns, the evidence, and when it happened."""

    fired: bool | None
    evidence: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    time: float | None = None
    spans: frozenset[int] | None = None  # which slow phases it speaks for; None: not about phases


Fact = Callable[[Case, Symptoms, EvidenceBook], Answer]


def quote(case: Case, line: Quote, book: EvidenceBook) -> str:
    """Cite a log line verbatim with its place."""
    return book.add("log", f"{case.log.path.name}:{line.line}", line.text)


def stalled(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """No step completed for far longer than the job's own step times explain."""
    stall = symptoms.stall
    if stall is None:
        return Answer(False, _kept_going(case, book))
    if stall.step is None:
        return Answer(True, (book.add("progress", f"{case.log.path.name}: completed steps", stall.says),))
    at = f" at {utc(stall.since)}" if stall.since is not None else ""
    says = (
        f"last completed step {stall.step}{at}, then none for {stall.seconds:.0f} s "
        f"(limit {stall.limit_s:.0f} s from the job's own step times)"
    )
    values = {"step": stall.step, "silent_s": stall.seconds, "limit_s": stall.limit_s}
    source = case.timeline.source if case.timeline else case.log.path.name
    ids = [book.add("progress", f"{source}: last completed step", says, values)]
    line = _last_step_line(case)
    if line is not None:
        ids.append(quote(case, line, book))
    return Answer(True, tuple(ids), (), stall.since)


def _kept_going(case: Case, book: EvidenceBook) -> tuple[str, ...]:
    timeline, until = case.timeline, case.end_of_work
    if timeline is None or timeline.last_end is None or until is None or not timeline.exact:
        return ()
    after = max(0.0, until - timeline.last_end)
    says = f"step {int(timeline.steps[-1])} was completed at {utc(timeline.last_end)}, {after:.0f} s before the end"
    return (book.add("progress", f"{timeline.source}: last completed step", says, {"before_end_s": after}),)


def rank_killed(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """One rank was killed by a signal before any other ended; the exits after it are its consequences."""
    answer = _ended_by(_KILL_CODES, case, book)
    return answer if answer.fired else Answer(False, _nobody_killed(case, book))


def _nobody_killed(case: Case, book: EvidenceBook) -> tuple[str, ...]:
    codes = sorted({e.code for e in case.log.exits})
    if not case.hosts or {e.host for e in case.log.exits} < set(case.hosts) or set(codes) & _KILL_CODES:
        return ()
    told = ", ".join(str(c) for c in codes)
    says = f"all {len(case.hosts)} ranks ended with exit {told}: none was killed before the others"
    return (book.add("log", f"{case.log.path.name}: NODE_EXIT lines", says),)


def named_by_peers(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The coordinator misses ranks that said nothing any more while all others did."""
    beats = [f for f in case.triage.failures if f.id == "heartbeat-timeout" and state_of(f.cause) == "rank-gone"]
    found = beats[0] if beats else None
    if found is None or found.role != "primary" or 2 * len(found.hosts) > len(case.hosts):
        return Answer(False)
    says = f"{', '.join(found.hosts)}: missed by the coordinator; {found.why}"
    return Answer(bool(found.hosts), (book.add("log", f"{found.file}:{found.line}", says),), found.hosts)


def nobody_says_why(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The log tells first what comes of a rank that is gone, or nothing; who raised an error by itself said why."""
    primary = case.triage.primary
    if primary is None or not primary.text or lost_somebody(primary.text):
        return Answer(True)
    state, gone = state_of(primary.cause), "rank-gone"
    return Answer(state != "error-raised" and state in states().reaches(gone) | states().unanswered(gone) | {gone})


def lost_by_peers(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Ranks of several hosts say that they lost one and the same host, which says of nobody that it lost it.

    What one rank says of another may be its own fault; where two agree it is the one they have in common. All talk to
    the first host, which coordinates, and lose it whatever happened. Whatever else the log tells first knows more.
    """
    primary = case.triage.primary
    if primary is not None and not lost_somebody(primary.text):
        return Answer(False)
    names = {h.partition(".")[0]: h for h in case.hosts}
    by: dict[str, dict[str, Quote]] = {}
    for line in case.log.lost:
        speaker = case.log.host_of(line.rank or 0)
        told = {names[w] for w in re.findall(r"[\w-]+", line.text) if w in names}
        if not set(map(int, _SELF.findall(line.text))) - {line.rank}:  # else the numbers are of cards, not of hosts
            told |= {h for n in _PEER.findall(line.text) if (h := case.log.host_of(int(n)))}
        if speaker:
            for host in told - {speaker}:
                by.setdefault(host, {}).setdefault(speaker, line)
    speakers = {h for said in by.values() for h in said}
    most = sorted((h for h in by if h not in speakers), key=lambda h: (-len(by[h]), h))
    if not most or most[0] == case.hosts[0] or len(by[most[0]]) < 2:
        return Answer(False)
    if any(2 * len(said) > len(by[most[0]]) for h, said in by.items() if h != most[0]):
        return Answer(False)  # everybody lost somebody
    return Answer(True, tuple(quote(case, q, book) for q in list(by[most[0]].values())[:2]), (most[0],))


def left_first(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """One rank ended by itself and all others were told to end: whatever it was, it was there."""
    exits = case.log.exits
    own = [e for e in exits if e.code not in (0, 143)]
    if len(own) != 1 or len(exits) < max(3, len(case.hosts)) or sum(e.code == 143 for e in exits) != len(exits) - 1:
        return Answer(False)
    text = f"{own[0].rank}: NODE_EXIT host={own[0].host} exit={own[0].told}"
    return Answer(True, (quote(case, Quote(own[0].rank, own[0].line, text), book),), (own[0].host,), case.end_of_work)


def left_no_word(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The launcher tells how every host's rank ended, but for one."""
    told = {e.host for e in case.log.exits if e.host}
    mute = [h for h in case.hosts if h not in told]
    if len(mute) != 1 or len(told) < _MOST_TOLD:
        return Answer(False)
    says = f"how the ranks of {len(told)} hosts ended is known; {mute[0]} alone left no message"
    source = f"{case.log.path.name}: NODE_EXIT lines"
    return Answer(True, (book.add("log", source, says, {"hosts": float(len(told))}),), (mute[0],), case.end_of_work)


def rank_crashed(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """One rank crashed by itself (a bad address, an illegal instruction) before any other ended."""
    return _ended_by(_CRASH_CODES, case, book)


def _ended_by(codes: set[int], case: Case, book: EvidenceBook) -> Answer:
    event = case.event("first-failure")
    if event is not None:
        code, host = int(event["data"]["exit"]), str(event.get("host"))
        if code not in codes:
            return Answer(False)
        says = f"rank {event['rank']} on {host} {event['data']['cause']} at {utc(float(event['t']))}, before any other"
        source = f"events.jsonl kind=first-failure rank={event['rank']}"
        ids = [book.add("event", source, says, {"rank": float(event["rank"]), "exit": float(code)})]
        return Answer(True, tuple(ids), (host,), float(event["t"]))
    exits = [e for e in case.log.exits if e.code != 143]
    if not exits and codes == _KILL_CODES:
        return _told_in_own_log(case, book)
    if not exits or (len({e.code for e in exits}) > 1 and exits[0].code not in _KILL_CODES):
        return Answer(False)
    first = exits[0]
    alone = sum(e.code == first.code for e in case.log.exits) * 2 <= len(case.hosts or case.log.exits)
    if first.code not in codes or not alone:
        return Answer(False)
    text = f"{first.rank}: NODE_EXIT host={first.host} exit={first.told}"
    ids = [quote(case, Quote(first.rank, first.line, text), book)]
    return Answer(True, tuple(ids), (first.host,), case.end_of_work)


def _told_in_own_log(case: Case, book: EvidenceBook) -> Answer:
    """Where no launcher tells how each rank ended, the place of the line that tells first of a kill is where it was."""
    found = next((f for f in case.triage.failures if f.id == "sigkill" and f.role == "primary"), None)
    if found is None or len(found.hosts) != 1 or len(case.hosts) < 2:
        return Answer(False)
    ids = (book.add("log", f"{found.file}:{found.line}", found.text),)
    return Answer(True, ids, found.hosts, case.end_of_work)


def heartbeat_claim(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The coordination service declared tasks dead."""
    beat = case.log.heartbeat
    if beat is None or beat.claim is None:
        return Answer(False)
    ids = [quote(case, beat.claim, book), *(quote(case, q, book) for q in beat.named[:4])]
    timeout = case.log.config.get("jax_distributed_heartbeat_timeout_seconds")
    if timeout:
        ids.append(quote(case, timeout[1], book))
    begun = symptoms.windows.get("kill")
    return Answer(True, tuple(ids), (), begun[0].start if begun else case.heartbeat_time)


def accused_kept_stepping(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The accused completed steps after their heartbeats are said to have stopped."""
    beat, timeline, window = case.log.heartbeat, case.timeline, symptoms.windows.get("kill")
    if beat is None or timeline is None or window is None or not len(timeline):
        return Answer(None)
    inside = timeline.steps[timeline.ends > window[0].start]
    ids = []
    for task in sorted(beat.accused):
        last = case.log.steps.last_by_rank.get(task)
        if last is None or not len(inside) or last < int(inside[0]):
            return Answer(False)
        ids.append(quote(case, last_line_of(case.log, task, last), book))
    return Answer(bool(ids), tuple(ids))


def cancelled(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Someone or something ended the run from outside."""
    cancel, summary = case.log.cancel, case.log.summary
    if cancel is not None:  # "DUE TO NODE FAILURE": the scheduler's own doing, with a cause of its own
        return Answer("DUE TO NODE" not in cancel.text, (quote(case, cancel, book),), (), case.end_of_work)
    if summary is not None and summary.exit in (130, 143):
        text = f"Status: FAILED (exit {summary.exit}) — {summary.reason}"
        return Answer(True, (quote(case, Quote(None, summary.line, text), book),), (), case.end_of_work)
    told = case.triage.primary  # a launcher that was asked to end says so in words of its own
    if told is not None and told.text and state_of(told.cause) == "stopped-by-hand":
        return Answer(True, (quote(case, Quote(told.rank, told.line, told.text), book),), (), case.end_of_work)
    return Answer(False)


def traceback(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """A rank raised an error and ended by itself; the first such rank is named."""
    event, cancel = case.event("first-failure"), case.log.cancel
    traces = [t for t in case.log.tracebacks if cancel is None or t.line < cancel.line]  # not of ranks told to end
    if case.all_done and len(steps := case.log.steps):  # what is raised on the way out ended nothing
        traces = [t for t in traces if t.line < int(steps.line.max())]
    first = int(event["rank"]) if event else next((e.rank for e in case.log.exits if e.code != 143), None)
    mine = [t for t in traces if first is None or t.rank == first]
    primary = case.triage.primary  # where the log tells what the exception only repeats, that is the cause
    raised = [f for f in case.triage.failures if state_of(f.cause) == "error-raised"]
    if primary is not None and primary not in raised and any(f.role == "consequence" for f in raised):
        return Answer(False)
    if not mine or (event and int(event["data"]["exit"]) in _KILL_CODES):
        return Answer(False)
    ids = [quote(case, mine[-1], book)]
    if event:
        says = f"rank {event['rank']} on {event.get('host')} {event['data']['cause']} before any other"
        ids.append(book.add("event", f"events.jsonl kind=first-failure rank={event['rank']}", says))
    return Answer(True, tuple(ids), (), float(event["t"]) if event else case.end_of_work)


def ended_by_its_own_error(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """A rank raised or crashed by itself and the run failed: what is torn down rests and waits for nothing."""
    first = case.triage.primary
    own = first is not None and first.text and state_of(first.cause) in ("error-raised", "process-crashed")
    if not own or first is None or case.triage.status != "failed" or first.unnamed:
        return Answer(False)
    return Answer(True, (quote(case, Quote(first.rank, first.line, first.text), book),))


def finished_or_advancing(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """All steps are done, or steps keep coming."""
    summary, timeline = case.log.summary, case.timeline
    if summary is not None and summary.exit == 0:
        ids = [quote(case, Quote(None, summary.line, "Status: SUCCESS (exit 0)"), book)]
        return Answer(True, tuple(ids))
    if timeline is None or not len(timeline):
        return Answer(None)
    over = case.all_done or case.log.finished is not None
    if summary is None and not case.live and case.run is not None and (ours(case.run) or not over):
        # Our agent would have written how it ended: it was killed with its ranks. Of a run that was joined later, or
        # whose hosts another store watches, samples after its end prove nothing.
        return Answer(None)
    reaches = case.check("reaches-end")
    if summary is None and not case.live and reaches is not None and not reaches.ok:
        return Answer(None)  # neither the log nor the recording tells of its end: it may have died long ago
    if summary is None and not case.live and case.telemetry is None and not over:
        return Answer(None)  # the evidence ends, and nothing says that the run went on or came to its end
    says = f"step {int(timeline.steps[-1])} completed at {utc(timeline.last_end)}"
    return Answer(symptoms.stall is None, (book.add("progress", f"{timeline.source}: last completed step", says),))


def constant_speed(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """No phase is slower than the job's own full speed, saves and warm-up aside."""
    timeline = case.timeline
    if timeline is None or not symptoms.phases:
        return _first_steps(case, book)
    chosen = case.masks.undisturbed(timeline.seconds)
    median = float(np.median(timeline.seconds[chosen]))
    visible = visible_change(case)
    says = f"median step time {median:.3f} s, no lasting change of speed"
    values = {"median_step_s": median}
    if visible is not None:
        says += f"; one of {100 * visible:.1f} % would have been seen"
        values["visible_percent"] = 100 * visible
    source = f"{timeline.source}: median of {int(chosen.sum())} undisturbed steps of {len(timeline)}"
    ids = (book.add("progress", source, says, values),)
    return Answer(not symptoms.slow, ids)


def visible_change(case: Case) -> float | None:
    """The smallest lasting change of speed that would have been called slow; None where there are too few steps."""
    timeline = case.timeline
    if timeline is None or len(timeline) < 4 * WARM_UP_STEPS:
        return None
    kept = timeline.seconds[~case.masks.of("checkpoint", "eval", "warm-up")]
    return smallest_visible(kept, PLAIN.slow) if len(kept) >= 2 * WARM_UP_STEPS else None


def _first_steps(case: Case, book: EvidenceBook) -> Answer:
    """Of a run that has only begun: whether its first steps, the compiled one aside, are alike."""
    timeline = case.timeline
    if timeline is None or not _FEWEST_STEPS < len(timeline) < 4 * WARM_UP_STEPS:
        return Answer(None)
    if case.log.summary is not None and case.log.summary.exit != 0:
        return Answer(None)
    seconds = timeline.seconds[1:]
    low, high = float(seconds.min()), float(seconds.max())
    says = f"{len(timeline)} steps so far, of {low:.3f} to {high:.3f} s: too few to see a small change of speed"
    ids = (book.add("progress", f"{timeline.source}: shortest and longest step", says, {"low": low, "high": high}),)
    return Answer(high <= _ALIKE * low, ids)


def _last_step_line(case: Case) -> Quote | None:
    steps = case.log.steps
    return step_line(case, int(steps.step[-1])) if len(steps) else None


def step_line(case: Case, step: int) -> Quote | None:
    """The line that tells of a step, of the rank whose lines were read in full."""
    steps = case.log.steps
    at = steps.place(step)
    if at is None:
        return None
    fallback = f"completed step: {step}, seconds: {float(steps.seconds[at]):.3f}"
    return line_at(case.log, int(steps.line[at]), steps.rank or 0, fallback)


FACTS: dict[str, Fact] = {}


def add_facts(*facts: Fact) -> None:
    """Playbooks ask a fact by its function's name."""
    FACTS.update({getattr(fact, "__name__", "").replace("_", "-"): fact for fact in facts})


add_facts(
    stalled, left_first, nobody_says_why, lost_by_peers, rank_killed, rank_crashed, named_by_peers, heartbeat_claim,
    accused_kept_stepping, cancelled, left_no_word, traceback, ended_by_its_own_error, finished_or_advancing,
    constant_speed,
)  # fmt: skip


_TAIL = 1 << 22  # bytes at the end of a log in which a rank's last step line is looked for


def line_at(facts: LogFacts, number: int, rank: int, fallback: str) -> Quote:
    """A line by its number."""
    with contextlib.suppress(OSError), facts.path.open("rb") as f:
        for raw in islice(f, number - 1, number):
            return Quote(rank, number, raw.decode("utf-8", "replace").rstrip("\r\n"))
    return Quote(rank, number, fallback)


def last_line_of(facts: LogFacts, rank: int, step: int) -> Quote:
    """A rank's line on its last step, looked for from the end: of most ranks only the number is kept."""
    begins, number = re.compile(rb"^\s*0*%d: " % rank), facts.lines
    with contextlib.suppress(OSError), facts.path.open("rb") as f:
        f.seek(max(0, f.seek(0, 2) - _TAIL))
        lines = f.read(_TAIL).split(b"\n")
        behind = len(lines) - (0 if lines[-1] else 1)
        for at, raw in enumerate(lines):
            text = raw.decode("utf-8", "replace").rstrip("\r")
            if begins.match(raw) and (told := read_step(text)) is not None and told.step == step:
                return Quote(rank, number - behind + at + 1, text)
    return Quote(rank, number, f"{rank}: step {step}")
