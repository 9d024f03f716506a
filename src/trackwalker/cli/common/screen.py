"""The console that commands print on."""

from __future__ import annotations

from typing import Any

from rich.console import Console


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
