"""How the nodes of a job meet: small files in the job directory, which all of them see.

No port, no name service and nobody who has to be up first. Every file has one writer; the first node reads what the
others posted, and they read what it decided.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.job.whole import write_whole

_LOOK_S = 0.05
Note = dict[str, Any]


class Absent(Exception):
    """Not everybody came in time; `nodes` are the ranks of those who did not."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"nodes {nodes} did not report")
        self.nodes = nodes


class Stopped(Exception):
    """Waiting was ended by a signal."""


class Rendezvous:
    """The meeting place of one attempt."""

    def __init__(self, place: Path, node_rank: int, nodes: int, stopped: Callable[[], bool]) -> None:
        self._place, self._rank, self._nodes, self._stopped = place, node_rank, nodes, stopped

    def post(self, topic: str, note: Note) -> None:
        """Tell the first node something."""
        (self._place / topic).mkdir(parents=True, exist_ok=True)
        write_whole(self._place / topic / f"{self._rank}.json", json.dumps(note))

    def posted(self, topic: str, known: dict[int, Note] | None = None) -> dict[int, Note]:
        """What was posted so far, by node rank, with the time it was first seen here; `known` is not read again."""
        found = dict(known or {})
        with contextlib.suppress(OSError):
            for path in (self._place / topic).iterdir():
                if path.suffix == ".json" and path.stem.isdigit() and int(path.stem) not in found:
                    with contextlib.suppress(OSError, ValueError):
                        found[int(path.stem)] = {**json.loads(path.read_text()), "seen_at": time.time()}
        return found

    def gather(self, topic: str, deadline: float | None) -> dict[int, Note]:
        """Wait until every node has posted; raises Absent at the deadline (monotonic), Stopped on a signal."""
        found: dict[int, Note] = {}
        while True:
            found = self.posted(topic, found)
            if len(found) >= self._nodes:
                return found
            if deadline is not None and time.monotonic() > deadline:
                raise Absent([rank for rank in range(self._nodes) if rank not in found])
            self._pause()

    def decide(self, topic: str, note: Note) -> None:
        """The first node's word, for all."""
        write_whole(self._place / f"{topic}.json", json.dumps(note))

    def decided(self, topic: str) -> Note | None:
        """What the first node said, None while it has not."""
        try:
            answer: Note = json.loads((self._place / f"{topic}.json").read_text())
        except (OSError, ValueError):
            return None
        return answer

    def await_decision(self, topic: str, deadline: float | None) -> Note:
        """Wait for the first node's word; raises Absent([0]) at the deadline."""
        while True:
            note = self.decided(topic)
            if note is not None:
                return note
            if deadline is not None and time.monotonic() > deadline:
                raise Absent([0])
            self._pause()

    def _pause(self) -> None:
        if self._stopped():
            raise Stopped
        time.sleep(_LOOK_S)
