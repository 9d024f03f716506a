"""Tasks that the coordination declared dead: who is accused, who is like them, what held them up; who is gone."""

from __future__ import annotations

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.facts.log_facts import Answer, add_facts, quote
from trackwalker.record.clock import utc

_MOST_QUOTED = 4
_PROCESSES = "hw_gpu_user_processes"  # processes that hold the GPUs open
_SAMPLES_S = 180.0  # of a window's end have to be there


def accused(case: Case) -> list[tuple[int, str]]:
    """The accused tasks with their hosts, where the log tells them."""
    beat = case.log.heartbeat
    return [(t, host) for t in sorted(beat.accused) if (host := case.log.host_of(t))] if beat else []


def control(case: Case) -> tuple[int, str] | None:
    """A task that was not accused to hold the accused against: the nearest neighbour of most of them."""
    named = {task for task, _ in accused(case)}
    others = [t for t in range(len(case.log.hosts)) if t not in named]
    if not named or not others:
        return None
    best = min(others, key=lambda t: (min(abs(t - a) for a in named), sum(abs(t - a) for a in named), t))
    return best, case.log.hosts[best]


def words(case: Case) -> dict[str, str]:
    """Accused and control for a sentence; nothing where no heartbeat was missed."""
    beat, beside = case.log.heartbeat, control(case)
    if beat is None or not beat.accused:
        return {}
    known = dict(accused(case))
    told = ", ".join(f"{t} ({known[t]})" if t in known else str(t) for t in sorted(beat.accused))
    return {"accused": told, "control": f"{beside[0]} ({beside[1]})" if beside else "none"}


def accused_were_alive(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Every accused task wrote the error itself, or its processes held the GPUs until the kill."""
    beat = case.log.heartbeat
    if beat is None or not beat.accused:
        return Answer(None)
    spoke = sorted(beat.accused & set(beat.own_death))
    ids = [quote(case, beat.own_death[t], book) for t in spoke[:_MOST_QUOTED]]
    mute = {t: host for t, host in accused(case) if t not in spoke}
    if len(spoke) + len(mute) < len(beat.accused):
        return Answer(False, tuple(ids))
    if not mute:
        return Answer(True, tuple(ids))
    if not spoke:
        return Answer(False)  # as many as are accused are mute: nothing but a counter would speak for them
    seen = _processes_stayed(case, symptoms, sorted(mute.values()), book)
    return Answer(bool(seen), (*ids, *seen))


def _processes_stayed(case: Case, symptoms: Symptoms, hosts: list[str], book: EvidenceBook) -> tuple[str, ...]:
    telemetry, window = case.telemetry, symptoms.windows.get("kill")
    if telemetry is None or window is None or _PROCESSES not in telemetry.metrics():
        return ()
    if not set(hosts) <= set(case.trusted):
        return ()
    span = window[0]
    least = f"min by (host) (min_over_time({_PROCESSES}[{round(span.seconds)}s] @ {span.end:.3f}))"
    late = f"count_over_time({_PROCESSES}[{_SAMPLES_S:.0f}s] @ {span.end:.3f})"  # the host reports to the end
    query = f"{least} and on (host) {late}"
    values = telemetry.by_host(query, span.end)
    usual = [v for h, v in values.items() if h not in hosts]
    if not usual or any(values.get(h, 0.0) < min(usual) or values.get(h, 0.0) <= 0 for h in hosts):
        return ()
    says = f"{', '.join(hosts)} left no log, but its {values[hosts[0]]:.0f} GPU processes were there until the kill"
    return (book.add("metric", query, says, values),)


def fell_silent_first(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """A host stopped to report while the run worked, left no word on its end, and the others go on reporting."""
    if case.telemetry is None:
        return Answer(None)
    spoke = {h for f in case.triage.failures for h in (f.host, *f.hosts)} | {e.host for e in case.log.exits}
    gone = {h: t for h, t in case.fell_silent.items() if h not in spoke}
    if not gone:
        return Answer(False)
    first, end = min(gone.values()), case.telemetry.range()[1]
    window = f"{max(1, round(end - max(gone.values())))}s"
    query = f"count by (host) (count_over_time({case.presence}[{window}] @ {end:.3f}))"
    values = case.telemetry.by_host(query, end)
    says = f"{', '.join(sorted(gone))} reports nothing after {utc(first)}; {len(values)} other hosts go on"
    return Answer(True, (book.add("metric", query, says, values),), tuple(sorted(gone)), first)


add_facts(accused_were_alive, fell_silent_first)
