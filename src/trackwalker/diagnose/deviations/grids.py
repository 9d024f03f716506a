"""On which time grids the series of a sweep are read: enough of each episode and of what it is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trackwalker.diagnose.episodes.episodes import Episode
from trackwalker.telemetry.frames import Grid

_BINS = 160  # over all that is compared
_WINDOW_BINS = 8  # of the shortest window
_REACH = 300  # bins of reference before a short window, and _AFTER bins after it
_AFTER = 60
_AROUND_S, _AROUND_HOSTS = 3600.0, 32  # before and after the beginning of an episode, for so many hosts; of more, less
_LEAST_AROUND_S = 600.0


def grids(
    episodes: list[Episode], interval: float, recorded: tuple[float, float], hosts: int
) -> Iterator[tuple[Grid, list[Episode]]]:
    """The time grids that the episodes need: one for all, or one around the beginning of each where that is too much.

    Reading costs as much as the time and the hosts that it spans; what begins with an episode shows in the hours
    around its beginning as well as in the whole day.
    """
    begin = max(recorded[0], min(s.start for e in episodes for s in (*e.reference, *e.window)))
    end = min(recorded[1], max(s.end for e in episodes for s in (*e.reference, *e.window)))
    if end - begin <= 2 * interval:
        return
    around = max(_LEAST_AROUND_S, _AROUND_S * min(1.0, _AROUND_HOSTS / max(hosts, 1)))
    single = [e for e in episodes if len(e.window) == 1]
    if end - begin > 3 * around and single:
        for episode in single:
            first, last = _near(episode, around)
            first, last = max(begin, first), min(end, last)
            if last - first > 2 * interval:
                yield Grid(first, last, max(interval, (last - first) / _BINS)), [episode]
        if max(len(e.window) for e in episodes) <= len(single):
            return  # all phases together would say the same again
        episodes = [e for e in episodes if e not in single]
    common = max(interval, (end - begin) / _BINS)
    shared = [e for e in episodes if _length(e) >= _WINDOW_BINS * common or common <= interval]
    if shared:
        yield Grid(begin, end, common), shared
    for episode in episodes:
        if episode in shared:
            continue
        step = max(interval, _length(episode) / _WINDOW_BINS)
        first = max(begin, episode.window[0].start - _REACH * step)
        last = min(end, episode.window[-1].end + _AFTER * step)
        yield Grid(first, last, step), [episode]


def _near(episode: Episode, around: float) -> tuple[float, float]:
    """So much of the window's beginning and of the reference before it; else of its end and of the one after it."""
    window = episode.window[0]
    before = [s for s in episode.reference if s.start < window.start]
    if before:
        last = max(before, key=lambda s: s.end)
        return max(last.start, min(last.end, window.start) - around), min(window.end, window.start + around)
    after = min(episode.reference, key=lambda s: s.start)
    return max(window.start, window.end - around), min(after.end, max(after.start, window.end) + around)


def _length(episode: Episode) -> float:
    return sum(s.seconds for s in episode.window)


def coarsest_of(grid: Grid, episodes: list[Episode]) -> int:
    """How many times longer bins may be made before a window has too few of them."""
    inside = [sum(max(0.0, min(s.end, grid.end) - max(s.start, grid.start)) for s in e.window) for e in episodes]
    return max(1, math.floor(min(inside) / (_WINDOW_BINS * grid.step)))
