"""A workspace as commands see it: its folder, and the verdicts that were saved or made in the background."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from trackwalker.diagnose.saved import saved_verdict, standing
from trackwalker.diagnose.verdict import Verdict
from trackwalker.fleet.examine import Examined
from trackwalker.fleet.rows import JobRow
from trackwalker.fleet.scan import Seen, scan
from trackwalker.fleet.store import Store, folder_for
from trackwalker.job.layout import Job


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
        """The one that was made in the background, or the one saved with the job: whichever was made of more."""
        made, saved = self._examined.verdict(job), saved_verdict(job, self.inside)
        return standing(made, saved) if made is not None else saved


_FEW = 300  # jobs that a command reads by the way


def refreshed(workspace: Path, seen: Mapping[str, Seen] | None = None) -> Store | None:
    """The rows of a workspace, fresh; None where nobody has built them or too much is new to read it in passing.

    `seen` is what a look at the workspace gave already.
    """
    from trackwalker.fleet.index import JobIndex, open_store

    folder = folder_for(workspace)
    if folder is None or not folder.is_dir():
        return None
    store = open_store(workspace)
    if store is None:
        return None
    known = dict(store.ask("SELECT id, split_part(split_part(state, '|', 1), ' ', 1) FROM jobs"))
    seen = scan(workspace.resolve()) if seen is None else seen
    new = sum(known.get(name) != each.mark for name, each in seen.items())
    if not known or new > _FEW:
        return None
    if new or len(known) != len(seen):
        JobIndex(Plain(workspace)).refresh()
    return store


_GOOD = frozenset({"completed", "soft-success"})


def is_good(row: JobRow) -> bool:
    """Whether it ended well and nothing is held against it."""
    return row.status in _GOOD and not row.troubled and row.badge_tone != "unknown"


def last_good(row: JobRow, rows: Iterable[JobRow]) -> JobRow | None:
    """The newest good run of the same model that began before it, one of as many nodes before all others."""
    same = [each for each in rows if each.id != row.id and each.model == row.model and is_good(each)]
    before = [each for each in same if each.when <= row.when]
    return max(before, key=lambda each: (each.nodes == row.nodes, each.when, each.id), default=None)
