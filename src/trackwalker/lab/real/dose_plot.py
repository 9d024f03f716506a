"""Draws doses against what they cost and what was said, one row for each fault."""

from __future__ import annotations

from html import escape

from trackwalker.lab.real.dose import FAULTS, DoseResults, DoseRun, Grade

_WIDTH, _LEFT, _ROW, _TOP, _RIGHT = 760, 130, 46, 44, 20
_COLOURS: dict[Grade, str] = {
    "named": "#1a7f37",
    "located": "#2f6fb5",
    "unplaced": "#8ab4d8",
    "not seen": "#9aa0a6",
    "other load": "#c98a00",
    "wrong": "#c62828",
}
_TICKS = (0, 15, 25, 50, 75, 100)


def plot(results: DoseResults) -> str:
    """The results as an SVG: speed lost from left to right, a dot for each run in the colour of its grade."""
    names = [n for n in FAULTS if any(r.fault == n for r in results.runs)]
    height = _TOP + _ROW * len(names) + 34
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for i, (grade, colour) in enumerate(_COLOURS.items()):
        at = _LEFT + 104 * i
        out.append(f'<circle cx="{at}" cy="16" r="5" fill="{colour}"/><text x="{at + 10}" y="20">{grade}</text>')
    for tick in _TICKS:
        x = _x(tick / 100)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{height - 30}" stroke="#ddd"/>')
        out.append(f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle">{tick} %</text>')
    for row, name in enumerate(names):
        y = _TOP + _ROW * row + _ROW // 2
        out.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        mine = sorted((r for r in results.runs if r.fault == name), key=lambda r: r.strength)
        out += [_dot(r, y + (-9 if i % 2 else 9)) for i, r in enumerate(mine)]
    out.append(f'<text x="{_WIDTH - _RIGHT}" y="{height - 2}" text-anchor="end" fill="#666">speed lost</text>')
    return "\n".join([*out, "</svg>", ""])


def _x(lost: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(max(lost, 0.0), 1.0)


def _dot(run: DoseRun, y: int) -> str:
    text = escape(f"{run.strength:g} {run.unit}: {run.grade}")
    return (
        f'<circle cx="{_x(run.lost or 0.0):.1f}" cy="{y}" r="5" fill="{_COLOURS[run.grade]}" fill-opacity="0.85">'
        f"<title>{text}</title></circle>"
    )
