"""The agents of a recorded command on several nodes: each finds its own tasks, the first one speaks for all.

`trackwalker record` has left a note for every task in the attempt's `tasks` folder. The agent of a node waits for those
of its own node, says who it is, and the first node's agent waits a while for everybody's word: a node that comes later
is still followed, one that never comes is missed at the end.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trackwalker.job.journal import Journal
from trackwalker.job.processes import alive
from trackwalker.job.whole import write_whole
from trackwalker.node.agent.jobdir import write_places
from trackwalker.node.agent.output import Sink, complain
from trackwalker.node.agent.peers import Crew, Head, Member
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.stages.rendezvous import Note, Rendezvous

HERE_S = 60.0  # for the tasks of a node to be started
ALL_S = 120.0  # for the other nodes; a job whose tasks come later trains later as well
_LOOK_S = 0.1


def join(spec: AgentSpec) -> AgentSpec:
    """The orders with the tasks of this node in them, once they have come."""
    crew = spec.crew
    attempt = Path(crew["attempt"])
    ranks = _await(lambda: _tasks(attempt / "tasks", spec.node), int(crew["here"]), HERE_S)
    if len(ranks) < int(crew["here"]):
        complain(f"{len(ranks)} of {crew['here']} tasks have come on {spec.node}")
    ranks = ranks or spec.ranks
    number = int(crew["number"])
    meeting = Rendezvous(attempt, number, 0, lambda: False)
    meeting.post("here", {"host": spec.node, "ranks": [rank.rank for rank in ranks]})
    hosts = {str(number): spec.node}
    if number == 0:
        found = _await(lambda: _hosts(meeting), spec.world, ALL_S)
        hosts = {str(n): host for n, (host, _) in sorted(_by_node(found).items())}
        write_places(spec.job_dir, [(rank, host, host) for rank, host, _ in found])
    nodes = max(len(hosts), int(crew["nodes"]))
    joined = replace(spec, ranks=ranks, nodes=nodes, crew={**crew, "hosts": hosts})
    write_whole(joined.spec_file, json.dumps(asdict(joined), default=str), mode=0o600)
    return joined


def crew_of(spec: AgentSpec) -> Crew:
    """Who else there is; an agent that begins anew goes on where it had read the others' journals."""
    if not spec.crew:
        return Crew()
    attempt, number = Path(spec.crew["attempt"]), int(spec.crew["number"])
    meeting = Rendezvous(attempt, number, 0, lambda: False)
    if number:
        return Member(meeting)
    events, progress = Journal(spec.job_dir / "events.jsonl"), Journal(spec.job_dir / "progress.jsonl")
    log = Sink(spec.log)
    others = [attempt / n for n in spec.crew.get("hosts", {}) if n != "0"]
    files = [(o / name, to) for o in others for name, to in (("events.jsonl", events), ("progress.jsonl", progress))]
    files += [(other / "merged.log", log) for other in others]  # type: ignore[misc]
    read: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        read = json.loads((attempt / "merged.json").read_text())
    hosts = {int(n): host for n, host in spec.crew.get("hosts", {}).items()}
    return _Recorded(meeting, hosts, files, spec.grace_s, read=read, kept=attempt / "merged.json")


class _Recorded(Head):
    """A first node that writes down how far it has merged: it may begin anew when ranks appear."""

    def __init__(self, *given: Any, kept: Path, **more: Any) -> None:
        super().__init__(*given, **more)
        self._kept = kept
        self._last: dict[str, int] = {}

    def _merge(self, final: bool) -> None:
        super()._merge(final)
        now = self.merged()
        if now != self._last:
            with contextlib.suppress(OSError):
                write_whole(self._kept, json.dumps(now))
                self._last = now


def _await(look: Callable[[], list[Any]], wanted: int, seconds: float) -> list[Any]:
    deadline = time.monotonic() + seconds
    while len(found := look()) < wanted and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return found


def _tasks(folder: Path, node: str) -> list[RankSpec]:
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note: Note = json.loads(path.read_text())
            note.pop("local_rank")
            if note.pop("node") == node and (alive(note["pid"], note["start"]) or path.with_suffix(".exit").exists()):
                found.append(RankSpec(**note))
    return sorted(found, key=lambda rank: rank.rank)


def _hosts(meeting: Rendezvous) -> list[tuple[int, str, int]]:
    """Rank, host and node number of every task that is known to have come."""
    return [(rank, str(note["host"]), n) for n, note in meeting.posted("here").items() for rank in note["ranks"]]


def _by_node(found: list[tuple[int, str, int]]) -> dict[int, tuple[str, list[int]]]:
    out: dict[int, tuple[str, list[int]]] = {}
    for rank, host, number in found:
        out.setdefault(number, (host, []))[1].append(rank)
    return out
