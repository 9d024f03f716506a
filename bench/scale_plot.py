"""Cost curves as one SVG of small log-log plots, with the exponent that fits each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WIDE, HIGH, MARGIN = 300, 220, 46


@dataclass(frozen=True)
class Curve:
    """One quantity against one size."""

    along: str
    what: str
    sizes: list[float]
    values: list[float]


def fitted(curve: Curve) -> float:
    """The exponent of the power law nearest to the points."""
    return float(np.polyfit(np.log(curve.sizes), np.log(curve.values), 1)[0])


def plot(curves: list[Curve]) -> str:
    """All curves side by side, two rows: time above, memory below."""
    columns = list(dict.fromkeys(c.along for c in curves))
    rows = list(dict.fromkeys(c.what for c in curves))
    parts = [_panel(c, columns.index(c.along) * WIDE, rows.index(c.what) * HIGH) for c in curves]
    size = f'width="{WIDE * len(columns)}" height="{HIGH * len(rows)}"'
    style = "text{font:11px sans-serif;fill:#333}.l{stroke:#1f5fa8;fill:none;stroke-width:2}.d{stroke:#bbb;fill:none}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{"".join(parts)}</svg>\n'


def _panel(curve: Curve, left: int, top: int) -> str:
    x, y = np.log(curve.sizes), np.log(curve.values)
    low = float(y.min()) - 0.3
    high = max(float(y.max()) + 0.3, low + float(x[-1] - x[0]))  # room for a straight line of slope 1

    def place(a: float, b: float) -> str:
        across = left + MARGIN + (a - x[0]) / (x[-1] - x[0]) * (WIDE - 2 * MARGIN)
        down = top + HIGH - MARGIN - (b - low) / (high - low) * (HIGH - 2 * MARGIN)
        return f"{across:.1f},{down:.1f}"

    points = " ".join(place(a, b) for a, b in zip(x, y, strict=True))
    linear = " ".join(place(a, float(y[0] + a - x[0])) for a in (x[0], x[-1]))
    dots = "".join(
        f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" fill="#1f5fa8"/>'
        f'<text x="{p.split(",")[0]}" y="{float(p.split(",")[1]) - 7:.1f}" text-anchor="middle">{v:.3g}</text>'
        for p, v in zip(points.split(), curve.values, strict=True)
    )
    ticks = "".join(
        f'<text x="{place(a, low).split(",")[0]}" y="{top + HIGH - MARGIN + 14}" text-anchor="middle">{s:g}</text>'
        for a, s in zip(x, curve.sizes, strict=True)
    )
    title = f"{curve.what} against {curve.along}: exponent {fitted(curve):.2f}"
    box = f'width="{WIDE - 2 * MARGIN}" height="{HIGH - 2 * MARGIN}"'
    frame = f'<rect x="{left + MARGIN}" y="{top + MARGIN}" {box} class="d"/>'
    return (
        f'{frame}<polyline points="{linear}" class="d" stroke-dasharray="4 3"/><polyline points="{points}" class="l"/>'
        f'{dots}{ticks}<text x="{left + WIDE // 2}" y="{top + MARGIN - 14}" text-anchor="middle">{title}</text>'
    )
