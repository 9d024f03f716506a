"""The small pictures of the jobs table."""

from __future__ import annotations

from trackwalker.report.charts.plots import px

SPARK_WIDTH, SPARK_HEIGHT = 96.0, 20.0


def spark_path(points: tuple[float | None, ...]) -> str:
    """A sparkline as an SVG path from zero up: a small drop looks small."""
    return "".join("M" + "L".join(f"{x} {y}" for x, y in run) for run in _runs(points))


def spark_area(points: tuple[float | None, ...]) -> str:
    """The surface below the sparkline."""
    return "".join(
        f"M{run[0][0]} {SPARK_HEIGHT:g}L" + "L".join(f"{x} {y}" for x, y in run) + f"L{run[-1][0]} {SPARK_HEIGHT:g}Z"
        for run in _runs(points)
    )


def _runs(points: tuple[float | None, ...]) -> list[list[tuple[str, str]]]:
    """Stretches without a gap, in pixels."""
    step = SPARK_WIDTH / max(len(points) - 1, 1)
    runs: list[list[tuple[str, str]]] = [[]]
    for i, value in enumerate(points):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((px(i * step), px(1.5 + (SPARK_HEIGHT - 1.5) * (1.0 - value))))
    return [run for run in runs if run]
