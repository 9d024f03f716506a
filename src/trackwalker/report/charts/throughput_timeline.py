"""The throughput timeline: step time over wall time, with phases, marks and the stretches where nothing moved."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.diagnose.views.story import StepPoint, Story
from trackwalker.report import words
from trackwalker.report.charts import axis
from trackwalker.report.charts.marks import Flag, Save, flags, saves
from trackwalker.report.charts.plots import Scale, drawable, line_path, px, quantile, text_width, thin, value_ticks

_POINTS = 2000
_PHASES = 120
_SILENCES = 20
_ROW, _STRIP, _PLOT, _SAVES, _AXIS = 20, 20, 190, 24, 38


@dataclass(frozen=True)
class Band:
    """A shaded stretch of time: a phase or a silence."""

    x: str
    width: str
    label: str
    middle: str
    title: str
    slow: bool = False
    level: str = ""  # where the median of a phase lies


@dataclass(frozen=True)
class Timeline:
    """Everything the template draws; `sentence` alone where there is nothing to draw."""

    sentence: str = ""
    caption: tuple[str, ...] = ()
    height: int = 0
    strip: int = 0
    top: int = 0
    bottom: int = 0
    ticks: tuple[axis.AxisTick, ...] = ()
    levels: tuple[tuple[str, str], ...] = ()
    phases: tuple[Band, ...] = ()
    silences: tuple[Band, ...] = ()
    path: str = ""
    dots: tuple[tuple[str, str], ...] = ()
    over: tuple[tuple[str, str], ...] = ()
    flags: tuple[Flag, ...] = ()
    saves: tuple[Save, ...] = ()
    shown: tuple[StepPoint, ...] = ()
    total: int = 0


def build(story: Story) -> Timeline:
    """Lay out the timeline of a story, or say in one sentence why there is none."""
    known = [p for p in story.steps if words.is_time(p.time) and drawable(p.seconds) and p.seconds >= 0]
    steps = sorted(known, key=lambda point: point.time)
    x = axis.time_scale(story)
    if len(steps) < 2 or x is None:
        return Timeline(sentence=_sentence(story, steps), shown=tuple(steps), total=len(steps))

    marks = flags(story, x)
    strip = 8 + _ROW * (1 + max((flag.row for flag in marks), default=-1))
    top = strip + _STRIP + 6
    bottom = top + _PLOT
    lo, hi = value_range(steps, [p.seconds for p in story.phases], any(p.slow for p in story.phases))
    y = Scale(lo, hi, bottom, top)
    silences = find_silences(steps, x)
    shown = [steps[i] for i in thin([point.seconds for point in steps], _POINTS)]
    over = [point for point in shown if point.seconds > hi]
    return Timeline(
        caption=tuple(_caption(steps, shown, silences, lo, hi) + _unnamed(marks)),
        height=bottom + _SAVES + _AXIS,
        strip=strip,
        top=top,
        bottom=bottom,
        ticks=tuple(axis.ticks(x)),
        levels=tuple((px(y(tick.value)), f"{tick.label} s") for tick in value_ticks(lo, hi)),
        phases=tuple(_phases(story, x, y)),
        silences=tuple(_silence(start, end, x) for start, end in silences),
        path=_path(shown, silences, x, y),
        dots=tuple((px(x(p.time)), px(y(p.seconds))) for p in shown if p.seconds <= hi) if len(shown) <= 90 else (),
        over=tuple((px(x(point.time)), f"step {point.step}: {words.seconds(point.seconds)}") for point in over),
        flags=tuple(marks),
        saves=tuple(saves(story, x)),
        shown=tuple(shown),
        total=len(story.steps),
    )


def value_range(steps: list[StepPoint], medians: list[float], slow: bool) -> tuple[float, float]:
    """The vertical span: a slowdown must be visible, noise must not look like one, a spike must not flatten both.

    A span of at least a quarter of the usual step time keeps noise small. What is far slower (a first compile, a
    save) is drawn at the upper edge instead of setting the scale; how far depends on whether there is a slow
    phase that the spikes would hide.
    """
    ordered = sorted(point.seconds for point in steps)
    usual = max([quantile(ordered, 0.9), *(m for m in medians if drawable(m) and m <= ordered[-1])])
    low = quantile(ordered, 0.02)
    span = max(usual - low, 0.25 * usual, 1e-9)
    limit = usual + 2.2 * span if slow else max(usual + 2.2 * span, 3 * usual)
    hi = max(*(value for value in ordered if value <= limit), low + span) + 0.08 * span
    lo = low - 0.5 * span
    return (0.0 if lo < 0.55 * hi else lo), hi


def find_silences(steps: list[StepPoint], x: Scale) -> list[tuple[float, float]]:
    """Stretches in which no step completed: before the first, between two, after the last."""
    typical = quantile(sorted(point.seconds for point in steps), 0.5)
    least = max(3 * typical, 0.02 * (x.hi - x.lo))
    edges = [x.lo, *(point.time for point in steps)]
    # A step occupies the time before its end: a long step is slow, not silent.
    starts = [point.time - point.seconds for point in steps] + [x.hi]
    found = [(start, end) for start, end in zip(edges, starts, strict=True) if end - start > least]
    return sorted(sorted(found, key=lambda span: span[0] - span[1])[:_SILENCES])


def _sentence(story: Story, steps: list[StepPoint]) -> str:
    if not steps:
        return "No step with a known time completed in this window, so there is no timeline to draw."
    if len(steps) > 1:
        return f"{len(steps):,} steps completed within less than a second: too short a span for a timeline."
    only = steps[0]
    text = f"Only one step completed (step {only.step:,} in {words.seconds(only.seconds)}, {words.utc(only.time)} UTC)"
    silent = story.end - only.time if story.end is not None and words.is_time(story.end) else 0.0
    after = f" No step completed in the {words.duration(silent)} after it." if silent > 1 else ""
    return f"{text}, which makes no timeline.{after}"


def _caption(
    steps: list[StepPoint], shown: list[StepPoint], silences: list[tuple[float, float]], lo: float, hi: float
) -> list[str]:
    notes = ["Each point is one completed step; lower is faster."]
    if lo > 0:
        notes.append(f"The vertical axis starts at {words.seconds(lo)}, not at zero.")
    if over := [point.seconds for point in steps if point.seconds > hi]:
        count = "One step is" if len(over) == 1 else f"{len(over):,} steps are"
        notes.append(
            f"{count} slower than the scale holds (triangles at the upper edge), at most {words.seconds(max(over))}."
        )
    for start, end in silences:
        what = "before the first step" if end <= steps[0].time else "no step completed"
        notes.append(f"{words.utc(start)} to {words.utc(end, date=False)} UTC ({words.duration(end - start)}): {what}.")
    if len(shown) < len(steps):
        notes.append(f"{len(shown):,} of {len(steps):,} steps are drawn; the fastest and slowest are among them.")
    return notes


def _unnamed(marks: list[Flag]) -> list[str]:
    count = sum(flag.row < 0 for flag in marks)
    return [f"{count} marks found no room for a label; the table below names them."] if count else []


def _silence(start: float, end: float, x: Scale) -> Band:
    a, b = x(start), x(end)
    first = start <= x.lo
    texts = (
        ["before the first step"]
        if first
        else [f"no step completed for {words.duration(end - start)}", "no step completed"]
    )
    label = next((text for text in texts if text_width(text) + 12 < b - a), "")
    return Band(px(a), px(b - a), label, px((a + b) / 2), f"{texts[0]}, from {words.utc(start)} UTC")


def _phases(story: Story, x: Scale, y: Scale) -> list[Band]:
    known = [
        p
        for p in story.phases
        if words.is_time(p.start) and words.is_time(p.end) and p.end > p.start and drawable(p.seconds)
    ]
    widest = sorted(known, key=lambda phase: phase.start - phase.end)[:_PHASES]
    usual = next((phase.seconds for phase in sorted(known, key=lambda phase: phase.start) if not phase.slow), None)
    bands = []
    for phase in sorted(widest, key=lambda phase: phase.start):
        a, b = x(phase.start), x(phase.end)
        if b - a < 0.5:
            continue
        speed = words.seconds(phase.seconds)
        more = f" ({words.change(phase.seconds / usual - 1)})" if phase.slow and usual else ""
        texts = (
            [f"slow: {speed} per step{more}", f"slow: {speed}", "slow"] if phase.slow else [f"{speed} per step", speed]
        )
        label = next((text for text in texts if text_width(text) + 8 < b - a), "")
        title = f"steps {phase.first_step} to {phase.last_step}: {texts[0]}"
        bands.append(Band(px(a), px(b - a), label, px((a + b) / 2), title, phase.slow, px(y(phase.seconds))))
    return bands


def _path(shown: list[StepPoint], silences: list[tuple[float, float]], x: Scale, y: Scale) -> str:
    """One path, broken at every silence: a line across it would claim steps that never were."""
    runs: list[list[tuple[float, float]]] = [[]]
    waiting = [start for start, _ in silences if start >= shown[0].time]
    for point in shown:
        if waiting and point.time > waiting[0]:
            waiting.pop(0)
            runs.append([])
        runs[-1].append((x(point.time), y(point.seconds)))
    return "".join(line_path(run) for run in runs)
