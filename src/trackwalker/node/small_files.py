"""The agent's own small files in the job directory; a disk that is full is complained about once for each file."""

from __future__ import annotations

from pathlib import Path

from trackwalker.job.whole import write_whole
from trackwalker.node.output import complain


class SmallFiles:
    """Files that readers see old or new, never half."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritable: set[str] = set()

    def replace(self, name: str, text: str) -> bool:
        """Write a file; False when it cannot be written now."""
        try:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as e:
            if name not in self._unwritable:
                complain(f"cannot write {name}: {e.strerror}")
            self._unwritable.add(name)
            return False
        self._unwritable.discard(name)
        return True
