"""One agent among the agents of a job: who ends the run, who waits for whom, who writes the last words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional, Protocol

from trackwalker.node.agent.output import Tail
from trackwalker.node.stages.rendezvous import Note, Rendezvous

_LOOK_S = 0.5
_PATIENCE_S = 20.0  # for the last words of the other nodes, beyond the time that their ranks have to end


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    host: str
    exit: int
    ended: float
    cause: str


def rank_end(note: Note) -> RankEnd:
    """A rank's end as another node wrote it down."""
    return RankEnd(**{name: note[name] for name in ("rank", "host", "exit", "ended", "cause")})


@dataclass(frozen=True)
class Word:
    """The run is over everywhere: because of a failure, or (None) because somebody ended it."""

    failure: RankEnd | None


Orphaned = Callable[[], Optional[RankEnd]]  # what to say once whoever watches over this agent is gone


class Copies(Protocol):
    """What takes in the lines of another node: a journal, or the log."""

    def copy(self, line: bytes) -> None:
        """Add one line."""
        ...


class Crew:
    """What the agent needs to know of the other nodes; as it is here, of none: the only agent of its job."""

    is_head = True  # writes what there is once for the job: banner, summary, run-end

    def look(self, now: float) -> Word | None:
        """Take in what happened elsewhere; a word that ends the run here too."""
        return None

    def tell(self, end: RankEnd | None) -> None:
        """Everybody is to end: a rank of this node ended badly by itself, or (None) this node was told to."""

    def finish(self, ends: list[RankEnd], stopping: bool) -> bool:
        """All ranks of this node have ended; whether there is nobody left to wait for."""
        return True

    def all_ends(self) -> list[RankEnd]:
        """How the ranks of the other nodes ended; the first node's alone to know."""
        return []

    def missing(self) -> list[str]:
        """Hosts that never reported how their ranks ended."""
        return []


class Member(Crew):
    """An agent that reports to the first node's."""

    is_head = False

    def __init__(self, meeting: Rendezvous, orphaned: Orphaned = lambda: None) -> None:
        self._meeting, self._orphaned = meeting, orphaned
        self._looked = 0.0
        self._said = False

    def look(self, now: float) -> Word | None:
        """Whether the first node said that the run is over."""
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        note = self._meeting.decided("stop")
        if note is None and (end := self._orphaned()) is not None:
            self.tell(end)
            return Word(end)
        if note is None:
            return None
        return Word(rank_end(note["failure"]) if note["failure"] else None)

    def tell(self, end: RankEnd | None) -> None:
        """Only the first failure of this node is news; that it was told to end, whoever told it has told all."""
        if end is not None and not self._said:
            self._said = True
            self._meeting.post("failed", asdict(end))

    def finish(self, ends: list[RankEnd], stopping: bool) -> bool:
        """Report and go."""
        self._meeting.post("ended", {"ends": [asdict(end) for end in ends]})
        return True


class Head(Crew):
    """The first node's agent: spreads the first failure, merges journals, waits for everybody."""

    is_head = True

    def __init__(
        self,
        meeting: Rendezvous,
        hosts: Mapping[int, str],
        journals: Sequence[tuple[Path, Copies]],
        grace_s: float,
        orphaned: Orphaned = lambda: None,
        read: Mapping[str, int] | None = None,
    ) -> None:
        """`hosts` are all nodes by their number, ours among them; `read`, how far an earlier agent had merged."""
        self._meeting, self._hosts, self._grace_s, self._orphaned = meeting, hosts, grace_s, orphaned
        self._journals = [(Tail(path, (read or {}).get(str(path), 0)), journal) for path, journal in journals]
        self._looked = 0.0
        self._told = False
        self._finished: float | None = None
        self._asked = 0.0
        self._reported: dict[int, Note] = {}
        self._done = False

    def look(self, now: float) -> Word | None:
        """The first failure that another node told of; everybody else is told."""
        if now - self._looked < _LOOK_S:
            return None
        self._looked = now
        self._merge(final=False)
        told = [rank_end(note) for note in self._meeting.posted("failed").values()]
        told += [end for end in [self._orphaned()] if end is not None]
        if not told or self._told:
            return None
        first = min(told, key=lambda end: (end.ended, end.rank))
        self.tell(first)
        return Word(first)

    def tell(self, end: RankEnd | None) -> None:
        """Only the first word counts."""
        if not self._told:
            self._told = True
            self._meeting.decide("stop", {"failure": asdict(end) if end else None})

    def finish(self, ends: list[RankEnd], stopping: bool) -> bool:
        """Whether all nodes have reported; when the run is being stopped, for a bounded time only."""
        now = time.monotonic()
        if self._done or now - self._asked < _LOOK_S:
            return self._done
        self._asked = now
        self._finished = self._finished if self._finished is not None and stopping else now
        reported = self._reported = self._meeting.posted("ended", self._reported)
        late = stopping and now - self._finished > self._grace_s + _PATIENCE_S
        if len(reported) < len(self._hosts) - 1 and not late:
            return False
        self._merge(final=True)
        self._done = True
        return True

    def all_ends(self) -> list[RankEnd]:
        """How the ranks of the other nodes ended, as far as they said."""
        return [rank_end(end) for note in self._reported.values() for end in note["ends"]]

    def missing(self) -> list[str]:
        """Hosts that never reported how their ranks ended."""
        return [host for rank, host in self._hosts.items() if rank and rank not in self._reported]

    def merged(self) -> dict[str, int]:
        """How far every journal of another node has been read."""
        return {str(tail.path): tail.offset for tail, _ in self._journals}

    def _merge(self, final: bool) -> None:
        """What the others wrote down goes into the job's own journals: each file has one writer."""
        for tail, journal in self._journals:
            for line in tail.lines(final):
                journal.copy(line)
