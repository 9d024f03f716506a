"""The words of a PDF that Chromium printed: enough of the format to test what is on the paper, page by page."""

from __future__ import annotations

import re
import zlib

_OBJECT = re.compile(rb"(\d+) 0 obj(.*?)endobj", re.DOTALL)
_STREAM = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
_SHOWN = re.compile(rb"/F(\d+) [-\d.]+ Tf|<([0-9A-Fa-f]+)>|(\sTj|\sTJ|\bET\b)")


def pages_of(pdf: bytes) -> list[str]:
    """The text of every page, in the order of the pages; spaces between words are kept as far as they were drawn."""
    objects = {int(number): body for number, body in _OBJECT.findall(pdf)}
    fonts = {number: _unicode(objects, body) for number, body in objects.items() if b"/ToUnicode" in body}
    pages = [body for body in objects.values() if re.search(rb"/Type\s*/Page\b(?!s)", body)]
    return [_text(_contents(objects, page), fonts) for page in pages]


def _contents(objects: dict[int, bytes], page: bytes) -> bytes:
    found = re.search(rb"/Contents\s+(\d+) 0 R", page)
    return _inflated(objects[int(found[1])]) if found else b""


def _inflated(body: bytes) -> bytes:
    stream = _STREAM.search(body)
    if stream is None:
        return b""
    return zlib.decompressobj().decompress(stream[1]) if b"/FlateDecode" in body else stream[1]


def _unicode(objects: dict[int, bytes], font: bytes) -> dict[int, str]:
    """Glyph numbers as letters."""
    found = re.search(rb"/ToUnicode\s+(\d+) 0 R", font)
    table = _inflated(objects[int(found[1])]) if found else b""
    out: dict[int, str] = {}
    for part in re.findall(rb"beginbfchar(.*?)endbfchar", table, re.DOTALL):
        for glyph, letters in re.findall(rb"<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>", part):
            out[int(glyph, 16)] = bytes.fromhex(letters.decode()).decode("utf-16-be", "replace")
    for part in re.findall(rb"beginbfrange(.*?)endbfrange", table, re.DOTALL):
        for first, last, letter in re.findall(rb"<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>\s*<([0-9A-Fa-f]+)>", part):
            for step, glyph in enumerate(range(int(first, 16), int(last, 16) + 1)):
                out[glyph] = chr(int(letter, 16) + step)
    return out


def _text(drawn: bytes, fonts: dict[int, dict[int, str]]) -> str:
    out: list[str] = []
    font: dict[int, str] = {}
    for number, shown, end in _SHOWN.findall(drawn):
        if number:
            font = fonts.get(int(number), {})
        elif shown:
            glyphs = [int(shown[at : at + 4], 16) for at in range(0, len(shown), 4)]
            out += [font.get(glyph, "") for glyph in glyphs]
        elif end.strip() == b"ET":
            out.append("\n")
    return "".join(out)
