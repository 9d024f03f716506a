"""Numbers, times and small facts in words, the same on every surface."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from trackwalker.diagnose.verdict import Action, Cause, Magnitude, Onset, Progress, Verdict
from trackwalker.job.causes import cause_name
from trackwalker.report.text import clip, one_line

_ID, _TITLE = re.compile(r"^id: *(\S+)", re.MULTILINE), re.compile(r"^title: *(.+)$", re.MULTILINE)
_LATEST = 253402300799.0  # the last second of the year 9999: what datetime can hold

OUTCOMES = {
    "incident": "Incident",
    "expected": "Expected",
    "healthy": "Healthy",
    "insufficient-evidence": "Insufficient evidence",
}
# What a setting that differs means for two runs.
EFFECTS = {
    "speed": "explains speed",
    "perhaps": "may explain speed",
    "numbers": "explains losses",
    "start": "how it began",
    "nodes": "other machines",
    "none": "no effect",
}
_QUANTITIES = {"tgs": "tokens/s/device", "step_time_s": "step time (s)", "step_time": "step time (s)"}


# What was not collected, in words: metrics have names, the engine's own questions have ids that say little.
# What the engine asks besides metrics, as the data that would answer it.
_DATA = {
    "accused-kept-stepping": "steps of the ranks that were called dead",
    "accused-were-alive": "process states of the ranks that were called dead",
    "all-steps-done": "the number of steps",
    "balance-loss-shifted": "the load-balancing loss of every step",
    "bursts-slow-steps": "step times beside RDMA counters",
    "cancelled": "how the job ended",
    "constant-speed": "enough step times",
    "disk-fills": "free disk space over time",
    "finished-or-advancing": "how the job ended",
    "flaps-slow-steps": "step times beside the state of RDMA links",
    "foreign-database": "recorded metrics",
    "frozen-exporter": "recorded metrics",
    "growing-saves": "durations of several checkpoints",
    "heartbeat-claim": "lines about heartbeats in the log",
    "idle-in-slow-steps": "GPU use within slow steps",
    "isolated-spikes": "enough step times",
    "long-saves": "durations of checkpoints",
    "loss-went-wrong": "the loss of every step",
    "lossy-receiver": "RDMA counters of both ends",
    "disk-full": "free space of the file systems",
    "fell-silent-first": "recorded metrics",
    "lost-by-peers": "lines about lost peers in the log",
    "lost-to-compile": "time spent in compilation",
    "lost-to-cpu": "time that ranks waited for a CPU",
    "lost-to-data": "time that ranks waited for data",
    "lost-to-idle": "GPU use within slow steps",
    "lost-to-save": "time spent in checkpoints",
    "memory-grows": "host memory over time",
    "no-step-completed": "steps",
    "odd-rank-in-data": "what each rank was doing",
    "params-initialised": "lines about the start in the log",
    "profiler-steps": "when the profiler ran",
    "rank-crashed": "how each rank ended",
    "rank-killed": "how each rank ended",
    "recompiled": "time spent in compilation",
    "scrape-gap": "recorded metrics",
    "single-replica-restored": "how the checkpoint was restored",
    "stacks-wait": "stacks of the ranks",
    "stalled": "times of the last steps",
    "start-overdue": "when the start-up began",
    "starting-up": "how far the start-up came",
    "stopped-together": "the last step of every rank",
    "traceback": "tracebacks in the log",
}


def lacking(missing: list[str]) -> list[str]:
    """What was not collected: metrics by their names, everything else in words."""
    return list(dict.fromkeys(_DATA.get(name, name) for name in missing))


def is_time(value: float | None) -> bool:
    """Whether a value can be a moment: finite and in a year that a calendar can write."""
    return value is not None and math.isfinite(value) and 0 <= value <= _LATEST


def utc(value: float, date: bool = True) -> str:
    """A moment in UTC to the second: `2026-02-24 19:10:20`, or only the clock."""
    if not is_time(value):
        return "unknown time"
    moment = datetime.fromtimestamp(math.floor(value), UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if date else f"{moment:%H:%M:%S}"


def utc_iso(value: str) -> str:
    """An ISO time of the verdict as the reports write it; what cannot be read is shown as it is."""
    try:
        moment = datetime.fromisoformat(value)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment
    except (ValueError, OverflowError):
        return one_line(value)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def number(value: float) -> str:
    """A number with about four digits that mean something: 3,293 or 39.0 or 0.0123."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("infinite" if value > 0 else "-infinite")
    size = abs(value)
    if size >= 1e12 or 0 < size < 1e-3:
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def amount(value: float) -> str:
    """A sum of hours or money, the same wherever it stands: no digits that nobody reads; little is not nothing."""
    if 0 < abs(value) < 0.05:
        return f"{value:.1g}"
    return number(round(value) if abs(value) >= 100 else round(value, 1))


def seconds(value: float) -> str:
    """A step time: `39.0 s`, and milliseconds below a tenth of a second."""
    if not math.isfinite(value):
        return number(value)
    if 0 < abs(value) < 0.1:
        return f"{value * 1000:.3g} ms"
    return f"{value:,.0f} s" if abs(value) >= 1000 else f"{value:.1f} s" if abs(value) >= 10 else f"{value:.2f} s"


def duration(value: float) -> str:
    """A span of time in its two largest units: `2 d 3 h`, `17 min 50 s`."""
    if not math.isfinite(value):
        return "unknown"
    if abs(value) < 10:
        return f"{value:.2g} s" if value == 0 or abs(value) >= 0.1 else seconds(value)
    left = round(abs(value))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count:,} {unit}")
        if len(parts) == 2:
            break
    return ("-" if value < 0 else "") + " ".join(p for i, p in enumerate(parts) if i == 0 or p[0] != "0")


def hours(value: float) -> str:
    """A length of a run, given in hours: `2.25 h`, `12.5 min`."""
    return f"{value:.2f} h" if value >= 1 else f"{60 * value:.1f} min"


def change(value: float) -> str:
    """A relative change with its sign: `-20.4 %`."""
    if not math.isfinite(value):
        return "change unknown"
    percent = 100 * value
    return f"{percent:+,.0f} %" if abs(percent) >= 100 else f"{percent:+.1f} %"


def confidence(value: float) -> str:
    """A confidence as a percentage; only 1 itself reads as 100 %."""
    if not math.isfinite(value):
        return "confidence unknown"
    percent = round(100 * value)
    return "confidence above 99 %" if percent >= 100 and value < 1 else f"confidence {percent} %"


def size(value: float) -> str:
    """A number of bytes: `18.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} TB"


def names(items: Sequence[str], most: int = 12) -> str:
    """A list of hosts or devices in words; a long one is cut and counted."""
    shown = ", ".join(clip(one_line(item), 120) for item in items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most:,} more"


def onset(value: Onset) -> str:
    """When a cause began, with the step and how well it is known."""
    known = f"± {duration(value.uncertainty_s)}" if value.uncertainty_s is not None else ""
    step = f"step {value.step:,}" if value.step is not None else ""
    parts = (f"{utc_iso(value.time)} {known}".rstrip(), step) if value.time else (step, known)
    return ", ".join(part for part in parts if part) or "not known"


def magnitude(value: Magnitude) -> str:
    """What a cause did to a quantity: `tokens/s/device 3,293 → 2,620 (-20.4 %)`."""
    what = _QUANTITIES.get(value.of, one_line(value.of))
    return f"{what} {number(value.from_)} → {number(value.to)} ({change(value.change)})"


def cause_facts(cause: Cause) -> list[tuple[str, str]]:
    """The who, when and how much of one cause, as label and words."""
    rows = [("hosts", names(cause.hosts, 24)), ("GPUs", names(cause.gpus, 24)), ("devices", names(cause.devices, 24))]
    if cause.onset is not None:
        rows.append(("onset", onset(cause.onset)))
    if cause.magnitude is not None:
        rows.append(("magnitude", magnitude(cause.magnitude)))
    rows = [row for row in rows if row[1]]
    if cause.role == "root" and not (cause.hosts or cause.gpus or cause.devices):
        rows.insert(0, ("hosts", "none identified"))
    return rows


def progress_facts(progress: Progress) -> list[tuple[str, str]]:
    """How far and how fast the run came; unknown parts are left out, never shown as zero."""
    rows = []
    if progress.last_step is not None:
        of = f" of {progress.total_steps:,}" if progress.total_steps is not None else ""
        since = f" (from step {progress.first_step:,})" if progress.first_step else ""
        rows.append(("last step", f"{progress.last_step:,}{of}{since}"))
    elif progress.total_steps is not None:
        rows.append(("last step", f"none of {progress.total_steps:,}"))
    if progress.step_time_s is not None:
        rows.append(("step time", seconds(progress.step_time_s)))
    if progress.tgs is not None:
        rows.append(("throughput", f"{number(progress.tgs)} tokens/s/device"))
    if progress.last_checkpoint is not None:
        rows.append(("last checkpoint", f"step {progress.last_checkpoint:,}"))
    if progress.steps_lost is not None:
        rows.append(("steps lost", f"{progress.steps_lost:,}"))
    if progress.eta_s is not None:
        rows.append(("time to finish", duration(progress.eta_s)))
    return rows


def further_facts(verdict: Verdict) -> list[tuple[str, str]]:
    """The fields of a verdict that say themselves how they are called (`Field(title=…)`), for every view alike."""
    told = ((field.title, getattr(verdict, name)) for name, field in type(verdict).model_fields.items())
    return [(title, _value(value)) for title, value in told if title and value not in (None, "", [])]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return names([one_line(str(each)) for each in value]) if isinstance(value, list) else one_line(str(value))


def verdict_facts(verdict: Verdict) -> list[tuple[str, str]]:
    """How far and how fast the run came, and what else the verdict says in a line each."""
    return [*progress_facts(verdict.progress), *further_facts(verdict)]


def job_size(verdict: Verdict) -> str:
    """How large the job is, as far as known: `24 nodes, 192 GPUs`."""
    counts = ((verdict.job.nodes, "node"), (verdict.job.gpus, "GPU"))
    return ", ".join(f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts if n is not None)


def window(verdict: Verdict) -> str:
    """The span of the evidence, with what is open said in words."""
    start, end = verdict.window.start, verdict.window.end
    if start is None and end is None:
        return ""
    return f"{utc_iso(start) if start else 'unknown'} to {utc_iso(end) if end else 'unknown'}"


def culprits(verdict: Verdict) -> list[str]:
    """The accused hosts of the root causes, each once, in the order of the verdict."""
    return list(dict.fromkeys(host for cause in verdict.roots for host in cause.hosts))


def gpu(name: str) -> str:
    """A GPU of a verdict: on the only machine it has a number alone, which by itself says nothing."""
    return f"GPU {name}" if name.isdecimal() else name


def where(verdict: Verdict) -> str:
    """Where and since when, in one line: hosts, GPUs and devices of the root causes."""
    places = [place for cause in verdict.roots for place in (*cause.hosts, *cause.gpus, *cause.devices)]
    whole = {place for place in places if any(other.startswith(f"{place}/") for other in places)}  # said by its part
    found = names([place for place in dict.fromkeys(places) if place not in whole], 6) or "no host identified"
    since = next((onset(cause.onset) for cause in verdict.roots if cause.onset is not None), "")
    return f"{found}; since {since}" if since and since != "unknown" else found


def first_sentence(text: str, limit: int) -> tuple[str, str]:
    """The first sentence, cut to the limit, and the whole text where that is not all of it."""
    sentence, _, rest = text.partition(". ")
    sentence = f"{sentence}." if rest else sentence
    shown = clip(sentence, limit)
    return shown, text if len(shown) < len(text) else ""


def action_title(action: Action) -> str:
    """What to do and to whom: `Exclude nodes chi2822`; a step that a log's signature names is its own title."""
    if action.do == "next-step":
        return one_line(action.why)
    return f"{one_line(action.do).replace('-', ' ').capitalize()} {names(action.hosts)}".strip()


def action_why(action: Action) -> str:
    """Why it is recommended, and what it costs where it costs something."""
    why = "" if action.do == "next-step" else one_line(action.why)
    cost = one_line(action.risk)
    return why if not cost or cost == "none" else f"{why} (costs: {cost})".strip()


@cache
def cause_titles() -> dict[str, str]:
    """The titles of the shipped playbooks by the ids of their causes."""
    pages = (path.read_text(encoding="utf-8") for path in Path(str(files("trackwalker.playbooks"))).glob("*.md"))
    fronts = [page.partition("\n---\n")[0] for page in pages]
    found = [(_ID.search(front), _TITLE.search(front)) for front in fronts]
    return {name[1]: title[1].strip("\"' ") for name, title in found if name and title}


def cause_title(cause: str) -> str:
    """A cause in words; one without a playbook has only its id."""
    return cause_titles().get(cause) or cause_name(cause)
