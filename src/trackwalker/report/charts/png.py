"""Pictures as PNG bytes, without a drawing library: a line plot for chats and phones, a grid of cells for a page."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trackwalker.report.charts.plots import Scale, drawable, quantile, thin, value_ticks

_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 110, 24, 20, 44
_INK, _GRID, _LINE, _PAPER = (70, 70, 70), (225, 225, 225), (20, 90, 170), (255, 255, 255)
_DOT = 3  # pixels of one dot of a digit
_POINTS = 2000
_TRUE_COLOUR, _INDEXED = 2, 3
# Rows of three dots, top to bottom: what the labels of an axis need. The plot's title is the message it comes with.
_GLYPHS = {
    "0": (7, 5, 5, 5, 7), "1": (2, 6, 2, 2, 7), "2": (7, 1, 7, 4, 7), "3": (7, 1, 3, 1, 7), "4": (5, 5, 7, 1, 1),
    "5": (7, 4, 7, 1, 7), "6": (7, 4, 7, 5, 7), "7": (7, 1, 1, 2, 2), "8": (7, 5, 7, 5, 7), "9": (7, 5, 7, 1, 7),
    ".": (0, 0, 0, 0, 2), ",": (0, 0, 0, 2, 4), "-": (0, 0, 7, 0, 0), "+": (0, 2, 7, 2, 0), "e": (7, 5, 7, 4, 7),
    "k": (4, 5, 6, 6, 5), "M": (5, 7, 7, 5, 5), "G": (7, 4, 5, 5, 7), "T": (7, 2, 2, 2, 2),
}  # fmt: skip
Canvas = npt.NDArray[np.uint8]


def line_plot(xs: Sequence[float], ys: Sequence[float]) -> bytes | None:
    """Values over steps, None with fewer than two; a spike is drawn at the edge instead of setting the scale."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if drawable(x) and drawable(y)]
    if len(points) < 2:
        return None
    ordered = sorted(y for _, y in points)
    low, usual = quantile(ordered, 0.01), quantile(ordered, 0.98)
    span = max(usual - low, 0.1 * abs(usual), 1e-9)
    lo, hi = low - 0.15 * span, usual + 0.3 * span
    lo = 0.0 if low >= 0 and lo < 0.4 * hi else lo
    x = Scale(points[0][0], points[-1][0], _LEFT, _WIDTH - _RIGHT)
    y = Scale(lo, hi, _HEIGHT - _BOTTOM, _TOP)
    canvas: Canvas = np.full((_HEIGHT, _WIDTH, 3), _PAPER, np.uint8)
    for tick in value_ticks(lo, hi):
        at = round(y(tick.value))
        canvas[at, _LEFT : _WIDTH - _RIGHT] = _GRID
        _write(canvas, tick.label, _LEFT - 10 - _width(tick.label), at - 7)
    for tick in value_ticks(x.lo, x.hi, 8):
        at = round(x(tick.value))
        canvas[_HEIGHT - _BOTTOM : _HEIGHT - _BOTTOM + 6, at] = _INK
        left = min(max(at - _width(tick.label) // 2, 0), _WIDTH - _width(tick.label))
        _write(canvas, tick.label, left, _HEIGHT - _BOTTOM + 14)
    canvas[_HEIGHT - _BOTTOM, _LEFT : _WIDTH - _RIGHT] = _INK
    shown = [points[i] for i in thin([value for _, value in points], _POINTS)]
    for (x0, y0), (x1, y1) in pairwise(shown):
        _segment(canvas, x(x0), y(y0), x(x1), y(y1))
    return _encode(canvas)


def _segment(canvas: Canvas, x0: float, y0: float, x1: float, y1: float) -> None:
    count = int(max(abs(x1 - x0), abs(y1 - y0))) + 2
    across = np.linspace(x0, x1, count).round().astype(int)
    down = np.linspace(y0, y1, count).round().astype(int)
    for dx, dy in ((0, 0), (0, 1), (1, 0)):  # two pixels wide: a phone is small
        canvas[np.clip(down + dy, 0, _HEIGHT - 1), np.clip(across + dx, 0, _WIDTH - 1)] = _LINE


def _width(text: str) -> int:
    return 4 * _DOT * len(text)


def _write(canvas: Canvas, text: str, left: int, top: int) -> None:
    for position, char in enumerate(text):
        for row, dots in enumerate(_GLYPHS.get(char, ())):
            for column in range(3):
                if dots & (4 >> column):
                    at, across = top + row * _DOT, left + (4 * position + column) * _DOT
                    canvas[max(at, 0) : at + _DOT, max(across, 0) : across + _DOT] = _INK


def _encode(canvas: Canvas) -> bytes:
    """Rows without a filter, compressed: all that the format asks for."""
    height, width, _ = canvas.shape
    return _file(width, height, _TRUE_COLOUR, canvas.reshape(height, -1))


def encode_indexed(pixels: Canvas, palette: Sequence[tuple[int, int, int, int]]) -> bytes:
    """A picture of few colours, each red, green, blue and how much it covers; one byte a pixel before compression."""
    height, width = pixels.shape
    colours = bytes(part for colour in palette for part in colour[:3])
    covers = bytes(colour[3] for colour in palette)
    return _file(width, height, _INDEXED, pixels, _chunk(b"PLTE", colours) + _chunk(b"tRNS", covers))


def _file(width: int, height: int, kind: int, rows: Canvas, colours: bytes = b"") -> bytes:
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = zlib.compress(unfiltered.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + colours + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
