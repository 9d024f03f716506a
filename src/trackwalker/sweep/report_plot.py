"""A figure of a sweep's report as SVG: points with their intervals, numbers or names along the axis."""

from __future__ import annotations

from html import escape

from trackwalker.report.charts.plots import Scale, drawable, line_path, px, value_ticks
from trackwalker.report.text import clip_middle, one_line
from trackwalker.sweep.model import Plot

_WIDTH, _HEIGHT = 760, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 744, 40, 270
_MOST_NAMES = 24
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.t{font-size:14px;font-weight:600}.g{stroke:#d8dee4}"
    ".l{fill:none;stroke:#57606a;stroke-width:1.5}.i{stroke:#57606a;stroke-width:1.5}.p{fill:#0969da}.m{fill:#cf222e}"
)


def svg(plot: Plot) -> str:
    """The figure as a file of its own; colours work on white, which it brings along."""
    low, high = _padded(plot.low, len(plot.y)), _padded(plot.high, len(plot.y))
    values = [v for v in (*plot.y, *low, *high) if drawable(v)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(plot.title)}"><style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="t" x="{_LEFT}" y="22">{_text(plot.title)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{_text(plot.x_label)}</text>',
        f'<text x="12" y="{_TOP - 6}">{_text(plot.y_label)}</text>',
    ]
    if not values:
        return "".join([*parts, f'<text x="{_LEFT}" y="150">nothing was measured</text></svg>\n'])
    room = 0.08 * (max(values) - min(values)) or 0.05 * abs(max(values)) or 1.0
    y = Scale(min(values) - room, max(values) + room, _BOTTOM, _TOP)
    for tick in value_ticks(y.lo, y.hi):
        at = px(y(tick.value))
        parts.append(f'<line class="g" x1="{_LEFT}" x2="{_RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{px(y(tick.value) + 4)}" text-anchor="end">{tick.label}</text>')
    return "".join([*parts, *_points(plot, y, low, high), "</svg>\n"])


def _points(plot: Plot, y: Scale, low: list[float | None], high: list[float | None]) -> list[str]:
    numeric = all(isinstance(x, (int, float)) for x in plot.x)
    places = [float(x) for x in plot.x] if numeric else [float(i) for i in range(len(plot.x))]
    lo, hi = min(places), max(places)
    pad = 0.06 * (hi - lo) or 0.5
    x = Scale(lo - pad, hi + pad, _LEFT, _RIGHT)
    parts, every = [], -(-len(places) // _MOST_NAMES)
    if numeric:
        parts += [_below(x(tick.value), tick.label) for tick in value_ticks(x.lo, x.hi, 8)]
    else:
        names = [clip_middle(one_line(str(name)), 14) for name in plot.x]
        parts += [_below(x(places[i]), names[i], slanted=len(places) > 8) for i in range(0, len(places), every)]
    known = [(x(at), y(v)) for at, v in sorted(zip(places, plot.y, strict=True), key=lambda p: p[0]) if drawable(v)]
    if numeric:
        parts.append(f'<path class="l" d="{line_path(known)}"/>')
    for i, (at, value) in enumerate(zip(places, plot.y, strict=True)):
        if not drawable(value):
            parts.append(f'<text x="{px(x(at))}" y="{_BOTTOM - 4}" text-anchor="middle">✕</text>')
            continue
        down, up = low[i], high[i]
        if drawable(down) and drawable(up):
            parts.append(f'<line class="i" x1="{px(x(at))}" x2="{px(x(at))}" y1="{px(y(down))}" y2="{px(y(up))}"/>')
        kind = "m" if i in plot.marked else "p"
        parts.append(f'<circle class="{kind}" cx="{px(x(at))}" cy="{px(y(value))}" r="4.5"/>')
    return parts


def _below(at: float, text: str, slanted: bool = False) -> str:
    turn = (
        f' transform="rotate(35 {px(at)} {_BOTTOM + 14})" text-anchor="start"' if slanted else ' text-anchor="middle"'
    )
    return f'<text x="{px(at)}" y="{_BOTTOM + 18}"{turn}>{_text(text)}</text>'


def _padded(values: tuple[float | None, ...], size: int) -> list[float | None]:
    return list(values) + [None] * (size - len(values))


def _text(text: str) -> str:
    return escape(one_line(text))
