"""The index as a command wants it: brought up to date where that is quick, left alone where it is not."""

from __future__ import annotations

from pathlib import Path

from trackwalker.fleet.scan import scan
from trackwalker.fleet.store import Store, folder_for

_FEW = 300  # jobs that a command reads by the way


def refreshed(workspace: Path) -> Store | None:
    """The rows of a workspace, fresh; None where nobody has built them or too much is new to read it in passing."""
    from trackwalker.fleet.index import JobIndex, open_store
    from trackwalker.fleet.source import Plain

    folder = folder_for(workspace)
    if folder is None or not folder.is_dir():
        return None
    store = open_store(workspace)
    if store is None:
        return None
    known = dict(store.ask("SELECT id, split_part(split_part(state, '|', 1), ' ', 1) FROM jobs"))
    seen = scan(workspace.resolve())
    new = sum(known.get(name) != each.mark for name, each in seen.items())
    if not known or new > _FEW:
        return None
    if new or len(known) != len(seen):
        JobIndex(Plain(workspace)).refresh()
    return store
