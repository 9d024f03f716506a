"""The time axis that the timeline and the host lanes share, so that one moment is one column on the page."""

from __future__ import annotations

from dataclasses import dataclass

from trackwalker.diagnose.views.story import Mark, Story
from trackwalker.report.charts.plots import Scale, px, time_ticks
from trackwalker.report.words import is_time

WIDTH, LEFT, RIGHT = 1080, 168, 1064  # one coordinate system for both drawings


@dataclass(frozen=True)
class AxisTick:
    """A tick as drawn: its column, the clock and, where it changes, the date."""

    x: str
    label: str
    sub: str


def time_scale(story: Story) -> Scale | None:
    """The shared axis; None where the story has no span that could be drawn."""
    steps = [point.time for point in story.steps if is_time(point.time)]
    given = [t for t in (story.start, story.end) if t is not None and is_time(t)]
    # Lanes and marks count only where the story names no span: a stray sample must not stretch the picture.
    loose = [t for lane in story.lanes for t in lane.times if is_time(t)] if len(given) < 2 else []
    moments = steps + given + loose
    if not moments or max(moments) - min(moments) < 1:
        return None
    return Scale(min(moments), max(moments), LEFT, RIGHT)


def ticks(scale: Scale) -> list[AxisTick]:
    """The ticks of the shared axis."""
    return [AxisTick(px(scale(tick.value)), tick.label, tick.sub) for tick in time_ticks(scale.lo, scale.hi)]


def inside(scale: Scale, mark: Mark) -> bool:
    """Whether a mark lies on the axis."""
    return is_time(mark.time) and scale.lo <= mark.time <= scale.hi
