"""The console that commands print on."""

from __future__ import annotations

from rich.console import Console


class Screen(Console):
    """A console whose reader may leave: `main` ends quietly then, where Rich would end with exit code 1."""

    def on_broken_pipe(self) -> None:
        """Called by Rich while it handles the BrokenPipeError."""
        raise BrokenPipeError
