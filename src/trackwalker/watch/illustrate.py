"""The plot that goes with the first message of an incident, where one helps."""

from __future__ import annotations

from pathlib import Path

from trackwalker.errors import TrackwalkerError
from trackwalker.watch.message import Attachment, Message

_QUANTITIES = {"slow": "tgs", "hang": "step", "data-stall": "step", "checkpoint": "step", "loss": "loss"}
_LIMIT_S = 15.0  # a message is not held up for its picture


class Illustrator:
    """Draws from the job's own log and journal, in a process of its own."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace

    def draw(self, message: Message) -> tuple[Attachment, ...]:
        """One plot, or none where the kind of message has none or drawing fails."""
        quantity = _QUANTITIES.get(message.kind)
        if quantity is None or not message.job:
            return ()
        from trackwalker.agent.workspace import Workspace
        from trackwalker.watch.replies import picture_of  # large; a watcher without incidents does not need it

        try:
            job = Workspace(self._workspace).job(message.job)
            plot = picture_of(job, quantity, _LIMIT_S)
            if plot is None and quantity == "tgs":
                plot = picture_of(job, "step", _LIMIT_S)
        except (TrackwalkerError, OSError):
            return ()
        return (plot,) if plot is not None else ()
