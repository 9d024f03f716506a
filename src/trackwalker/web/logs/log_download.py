"""A log as a file to keep: read in parts that end with a line, every line without its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trackwalker.job.redact import HIDDEN
from trackwalker.job.scrub import Scrubber
from trackwalker.web.logs.log_lines import is_key_body

_PART = 1 << 20
_LONGEST = 16 << 20  # of a line that is looked at whole: what is longer is cut, and the cut is said


def clean_parts(path: Path, scrubber: Scrubber) -> Iterator[bytes]:
    """The log in parts."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_PART):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield b"".join(_clean(line, scrubber) + b"\n" for line in whole.split(b"\n"))
            if len(rest) > _LONGEST:
                yield _clean(rest[:_LONGEST], scrubber) + b" [a line of more than 16 MB is cut here]\n"
                rest = b""
                while (block := file.read(_PART)) and b"\n" not in block:
                    pass
                rest = block.partition(b"\n")[2]
    if rest:
        yield _clean(rest, scrubber)


def _clean(line: bytes, scrubber: Scrubber) -> bytes:
    text = line.decode("utf-8", "surrogateescape")
    found = HIDDEN if is_key_body(text) else scrubber.clean(text)
    return line if found == text else found.encode("utf-8", "surrogateescape")
