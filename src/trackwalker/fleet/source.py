"""A workspace as commands see it: its folder, and the verdicts that were saved or made in the background."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from trackwalker.diagnose.verdict import Verdict
from trackwalker.fleet.examine import Examined
from trackwalker.job.layout import Job
from trackwalker.job.whole import open_regular

_LARGEST_VERDICT = 32 << 20


class Plain:
    """Read-only; what a server of the same user worked out is known here, too."""

    def __init__(self, root: Path, kept: Path | None = None) -> None:
        self.root = root.resolve()
        self._examined = Examined(self.root, kept)

    def inside(self, path: Path) -> bool:
        """Whether a path lies in the workspace once every link is followed."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False

    def marks(self) -> Mapping[str, str]:
        """Change with each verdict that was made in the background."""
        return self._examined.marks()

    def verdict(self, job: Job) -> Verdict | None:
        """The one that was made in the background, else the one saved with the job."""
        return self._examined.verdict(job) or self._saved(job)

    def _saved(self, job: Job) -> Verdict | None:
        path = job.dir / "verdict.json" if job.dir else None
        if path is None or not path.exists() or not self.inside(path):
            return None
        try:
            with open_regular(path) as file:
                if os.fstat(file.fileno()).st_size > _LARGEST_VERDICT:
                    return None
                return Verdict.model_validate_json(file.read())
        except (OSError, ValidationError, ValueError):
            return None
