"""Questions about single steps, saves, the loss, and training scalars, by name, for playbooks."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes import course
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts.log_facts import FACTS, Answer, add_facts, step_line
from trackwalker.job.causes import about_topic
from trackwalker.record.projection import final_step
from trackwalker.record.stall import START_BUDGET_S
from trackwalker.stats.segments import running_median

_MOST_QUOTED = 4
_COMPILES = 3


def isolated_spikes(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """One or two slow steps among normal ones, and full speed after them."""
    known = course.profiled_steps(case) | set(course.compiled_steps(case))
    found = [s for s in course.spikes(case) if s.step not in known]
    if not found or "blip" not in symptoms.names:
        return Answer(False)
    ids = [_cite(case, s, f"step {s.step} took {_beside(s)}", book) for s in found]
    return Answer(True, tuple(ids), (), _known(found[0].start))


def _known(time: float) -> float | None:
    """A time, where the clock of the steps is known."""
    return time if math.isfinite(time) else None


def profiler_steps(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The slow steps are those the profiler was told to record or writes its dump in."""
    slow, set_up = course.spikes(case), course.profiled_steps(case)
    inside = [s for s in slow if s.step in set_up]
    if not inside or len(inside) < len(slow):
        return Answer(False)
    ids = []
    if (setting := case.log.config.get("profiler")) is not None:  # else it was asked for while it ran
        ids.append(book.add("log", f"{case.log.path.name}:{setting[1].line}", setting[1].text))
    for s in inside[:_MOST_QUOTED]:
        ids.append(_cite(case, s, f"step {s.step} took {_beside(s)}; the profiler was on", book))
    return Answer(True, tuple(ids), (), _known(inside[0].start))


def single_replica_restored(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The run began behind step 0 and was set to restore one replica and broadcast it, or tells that it did."""
    asked, timeline = case.log.config.get("enable_single_replica_ckpt_restoring"), case.timeline
    found = asked[1] if asked is not None and asked[0].lower() in ("true", "1") else case.log.start.broadcast
    if found is None or timeline is None or not len(timeline):
        return Answer(False)
    first = int(timeline.steps[0])
    ids = [book.add("log", f"{case.log.path.name}:{found.line}", found.text)]
    says = f"the first step is {first}"
    ids.append(book.add("progress", f"{_source(case)}: first step", says, {"step": float(first)}))
    return Answer(first > 1, tuple(ids), (), float(timeline.ends[0] - timeline.seconds[0]))


def recompiled(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Compilations are told of again and again after the first steps."""
    steps = course.compiled_steps(case)
    if len(steps) < _COMPILES:
        return Answer(False)
    shown = ", ".join(str(s) for s in steps[:8]) + (", …" if len(steps) > 8 else "")
    says = f"{len(steps)} steps after the first ones begin with a compilation: {shown}"
    source = f"{case.log.path.name}: lines that tell of a compilation"
    ids = [book.add("log", source, says, {"steps": float(len(steps))})]
    timeline = case.timeline
    slow = {s.step for s in course.spikes(case)} & set(steps)
    if timeline is not None and slow:
        says = f"{len(slow)} of them are the slow steps"
        ids.append(book.add("progress", f"{_source(case)}: slow steps", says, {"steps": float(len(slow))}))
    start = _time_of(case, steps[0])
    return Answer(bool(slow) or "slow" in symptoms.names, tuple(ids), (), start)


def long_saves(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The longest steps are those after a save."""
    found = course.long_saves(case)
    if not found:
        return Answer(False)
    ids = []
    for save in found[:_MOST_QUOTED]:
        says = f"the step after the save of step {save.step} took {save.extra_s:.0f} s more than a normal step"
        ids.append(book.add("progress", f"{_source(case)}: save of step {save.step}", says, {"extra_s": save.extra_s}))
    return Answer(True, tuple(ids), (), _time_of(case, found[0].step + 1))


def growing_saves(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Saves take longer and longer."""
    grown = course.growing_saves(case)
    if grown is None:
        return Answer(False)
    early, late = grown
    costs = course.saves(case)
    says = f"saves usually cost {early:.3g} s, the slow ones {late:.3g} s"
    values = {f"save {s.step}": s.extra_s for s in costs}
    ids = (book.add("progress", f"{_source(case)}: steps after saves, less a normal step", says, values),)
    worse = next((s.step for s in costs if s.extra_s > 1.25 * early and s.step > costs[0].step), costs[-1].step)
    return Answer(True, ids, (), _time_of(case, worse))


def loss_went_wrong(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The loss is not a number any more, or rose and stayed up."""
    trouble = course.loss_trouble(case)
    if trouble is None:
        return Answer(False)
    line = step_line(case, trouble.step)
    ids = [book.add("log", f"{case.log.path.name}:{line.line}", line.text)] if line else []
    ids.append(book.add("progress", f"{case.log.path.name}: loss of all steps", trouble.says))
    return Answer(True, tuple(ids), (), _time_of(case, trouble.step))


def balance_loss_shifted(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The experts' balance loss rose when the run became slow."""
    metric = "tb_learning_moe_lb_loss"
    spans, fast = symptoms.windows.get("slow"), symptoms.windows.get("fast")
    if case.telemetry is None or metric not in case.telemetry.metrics() or not spans or not fast:
        return Answer(None)
    before, spread, first = _level(case, metric, fast[0], "at full speed", book)
    after, _, second = _level(case, metric, spans[-1], "when slow", book)
    if before is None or after is None:
        return Answer(None)
    if after - before <= max(0.1 * abs(before), 4.0 * spread):
        return Answer(False, (first, second), (), spans[0].start)
    rise = _rise(case, metric, fast[0].start, spans[-1].end, 0.5 * (before + after))
    if rise is None:
        return Answer(True, (first, second), (), spans[0].start)
    query = f"{metric} @ {rise:.3f}"
    values = case.telemetry.by_host(query, rise)
    says = f"{metric} is {next(iter(values.values())):.4g} at the first step of its new level"
    return Answer(True, (first, book.add("metric", query, says, values), second), (), rise)


def _rise(case: Case, metric: str, start: float, end: float, middle: float) -> float | None:
    """When a training scalar came to lie above a value for good: one stray step does not count."""
    series = case.telemetry.raw(metric, start, end) if case.telemetry is not None else []
    for _, times, values in series[:1]:
        above = running_median(values, 9) > middle
        if above.any():
            return float(times[int(np.argmax(above))])
    return None


def _level(case: Case, metric: str, span: Span, word: str, book: EvidenceBook) -> tuple[float | None, float, str]:
    """Median of a training scalar in a span, half its spread, and the evidence for the median."""
    if case.telemetry is None:
        return None, 0.0, ""
    inside = f"{metric}[{max(1, round(span.seconds))}s] @ {span.end:.3f}"
    query = f"quantile_over_time(0.5, {inside})"
    values = case.telemetry.by_host(query, span.end)
    if not values:
        return None, 0.0, ""
    quarters = f"quantile_over_time(0.75, {inside}) - quantile_over_time(0.25, {inside})"
    spread = next(iter(case.telemetry.by_host(quarters, span.end).values()), 0.0)
    median = next(iter(values.values()))
    return median, spread, book.add("metric", query, f"{metric} {word}: median {median:.4g}", values)


def no_step_completed(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """The run ended before its first step."""
    began = case.timeline is not None and len(case.timeline) > 0
    return Answer(False) if began else Answer(True, (_completed(case, "no step was completed", book),))


def _completed(case: Case, says: str, book: EvidenceBook) -> str:
    return book.add("progress", f"{case.log.path.name}: completed steps", says)


def start_overdue(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """No step was completed in far more time than any start-up takes."""
    took = _start_took(case)
    if took is None:
        return Answer(False)
    says = f"no step was completed in {took / 60:.0f} min since the job began"
    return Answer(took > START_BUDGET_S, (_completed(case, says, book),))


def starting_up(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """No step yet, no failure, no end, and no longer than a cold start may take."""
    took = _start_took(case)
    open_end = case.log.summary is None and case.log.cancel is None and not case.triage.failures
    if took is None or not open_end:
        return Answer(False)
    says = f"no step was completed in the {took / 60:.0f} min since the job began, and nothing failed"
    return Answer(took <= START_BUDGET_S, (_completed(case, says, book),))


def params_initialised(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Every rank had its parameters; what came next was compilation."""
    ranks = case.log.params_ranks
    if not ranks or len(ranks) < len(case.hosts):
        return Answer(False)
    says = f"{len(ranks)} ranks report their parameters initialised"
    return Answer(True, (book.add("log", f"{case.log.path.name}: Memstats lines", says, {"ranks": float(len(ranks))}),))


def _start_took(case: Case) -> float | None:
    until = case.end_of_work
    if (case.timeline is not None and len(case.timeline)) or case.start is None or until is None:
        return None
    return until - case.start


def stopped_together(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Without a recording: every rank's last step is the same, nobody failed first, and then silence."""
    if case.telemetry is not None or symptoms.stall is None:
        return Answer(None)  # where there are metrics they decide
    last = case.log.steps.last_by_rank
    own_errors = [f for f in case.triage.failures if f.role == "primary" and not about_topic({f.cause}, "hang")]
    if len(last) < max(2, len(case.hosts)) or own_errors:
        return Answer(None)
    together = len(set(last.values())) == 1
    says = f"all {len(last)} ranks completed step {max(last.values())} and none completed another"
    return Answer(together, (book.add("log", f"{case.log.path.name}: last step lines", says),))


def all_steps_done(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Every step that was asked for was completed before anything failed."""
    timeline = case.timeline
    if timeline is None or not len(timeline) or (final_step(case.triage.index) is None and not case.all_done):
        return Answer(None)
    if not case.all_done:
        return Answer(False)
    line = step_line(case, int(timeline.steps[-1]))
    ids = (book.add("log", f"{case.log.path.name}:{line.line}", line.text),) if line else ()
    return Answer(True, ids, (), timeline.last_end)


def observer(name: str, case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """What a check of the recording itself found."""
    check = case.check(name)
    if check is None or not check.query:
        return Answer(None)
    if check.ok:
        return Answer(False)
    few = check.hosts if len(check.hosts) * 2 <= max(2, len(case.hosts)) else ()
    return Answer(True, (book.add("metric", check.query, check.says),), few)


def _cite(case: Case, spike: course.Spike, says: str, book: EvidenceBook) -> str:
    values = {"seconds": spike.seconds, "level_s": spike.level}
    return book.add("progress", f"{_source(case)}: step {spike.step}", says, values)


def _beside(spike: course.Spike) -> str:
    return f"{spike.seconds:.1f} s, the steps around it {spike.level:.1f} s"


def _source(case: Case) -> str:
    return case.timeline.source if case.timeline is not None else case.log.path.name


def _time_of(case: Case, step: int | None) -> float | None:
    """When a step began; without one, when the first ended."""
    timeline = case.timeline
    if timeline is None or not len(timeline):
        return None
    i = 0 if step is None else int(np.searchsorted(timeline.steps, step))
    i = min(i, len(timeline) - 1)
    return float(timeline.ends[i] - (timeline.seconds[i] if step is not None else 0.0))


add_facts(
    isolated_spikes, profiler_steps, recompiled, single_replica_restored, long_saves, growing_saves, loss_went_wrong,
    balance_loss_shifted, no_step_completed, all_steps_done, stopped_together, start_overdue, starting_up,
    params_initialised,
)  # fmt: skip
FACTS["frozen-exporter"] = partial(observer, "ghost-data")  # an exporter repeated the same values for many minutes
FACTS["scrape-gap"] = partial(observer, "gaps")  # a host was not scraped for many minutes and then was again
FACTS["foreign-database"] = partial(observer, "identity")  # the database is not this job's
