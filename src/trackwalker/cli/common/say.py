"""What commands print of names and lines that others wrote: control characters are shown, not obeyed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console

from trackwalker.report.text import json_visible, visible

DAMAGED = 3  # exit code: an answer was given, from evidence that is damaged


def say(text: str, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a text of some lines; an escape in it can neither colour, move nor rename the reader's terminal."""
    print("\n".join(visible(line) for line in text.split("\n")), file=file, flush=flush)


def print_json(document: object) -> None:
    """Print one JSON document; what a terminal would obey is written as JSON escapes."""
    print(json_visible(json.dumps(document, indent=1, ensure_ascii=False)))


def damaged(lines: Iterable[str]) -> int:
    """Tell what of the evidence is damaged; the exit code of a command that answered all the same."""
    told = [f"trackwalker: damaged evidence: {line}" for line in lines]
    print("".join(f"{line}\n" for line in told), end="", file=sys.stderr)
    return DAMAGED if told else 0


def say_raw(lines: list[bytes]) -> None:
    """Print lines of a log: as they are to a file or a pipe, made visible on a terminal."""
    if not lines:
        return
    sys.stdout.flush()
    if sys.stdout.isatty():
        shown = (visible(line.decode("utf-8", "replace").removesuffix("\n")) + "\n" for line in lines)
        sys.stdout.write("".join(shown))
        sys.stdout.flush()
        return
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()


class Screen(Console):
    """A console whose reader may leave: `main` ends quietly then, where Rich would end with exit code 1."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; to a file or a pipe without the blanks that fill lines on a terminal."""
        if self.is_terminal or self.record:
            super().print(*objects, **how)
            return
        with self.capture() as made:
            super().print(*objects, **how)
        try:
            self.file.write("\n".join(line.rstrip(" ") for line in made.get().split("\n")))
        except BrokenPipeError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled; one without a number, or Typer would end with exit code 1."""
        raise BrokenPipeError from None
