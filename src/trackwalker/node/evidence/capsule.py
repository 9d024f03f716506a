"""The evidence capsule of one node: what can be seen of its ranks now, written down before anybody ends them.

Whoever watches the run puts `agent/requests/<incident>.json` into the job directory; every node's agent answers with
`stacks/<incident>/<node>/`, `done.json` last. The agent asks by itself before it ends ranks because one failed, because
their time is up, or because a run that had stopped was cancelled. Each collector has a thread of its own: one that
hangs costs its own file and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trackwalker.job.trust import distrust
from trackwalker.node.agent.output import complain
from trackwalker.node.agent.ranks import Rank
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.evidence.collection import BEFORE_KILL_S, DONE, Collection

REQUESTS, STACKS = "agent/requests", "stacks"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_LOOK_S = 1.0
_SKEW_S = 5.0  # between the clocks of the nodes and the watcher's

Say = Callable[..., None]


class Capsules:
    """Answers requests from a thread of its own; `holding` is what the agent asks before it ends ranks."""

    def __init__(self, spec: AgentSpec, ranks: Sequence[Rank], say: Say) -> None:
        self._spec, self._ranks, self._say = spec, ranks, say
        self._requests = spec.job_dir / REQUESTS
        self._stop = threading.Event()
        self._answered: set[str] = set()
        self._busy = threading.Lock()
        self._last: threading.Thread | None = None
        self._held_until = 0.0

    def start(self, since: float) -> None:
        """Look for requests made since the run began; those of an earlier attempt are not ours."""
        threading.Thread(target=self._watch, args=(since,), name="capsules", daemon=True).start()

    def close(self) -> None:
        """The run has ended: give a capsule under way a moment to be finished."""
        self._stop.set()
        if self._busy.acquire(timeout=BEFORE_KILL_S):
            self._busy.release()

    def holding(self, why: str) -> bool:
        """Whether the ranks are still being read before they are ended; the first call begins it, and it is brief."""
        if self._last is None and not any(rank.exit is None for rank in self._ranks):
            return False
        if self._last is None:
            self._held_until = time.monotonic() + BEFORE_KILL_S
            self._last = threading.Thread(target=self._before_the_end, args=(why,), name="last-capsule", daemon=True)
            self._last.start()
        return self._last.is_alive() and time.monotonic() < self._held_until

    def _before_the_end(self, why: str) -> None:
        with contextlib.suppress(Exception):  # nothing here may keep the agent from ending the run
            self._answer(f"end-{self._spec.attempt}", pause=False, why=why, brief=True)

    def _watch(self, since: float) -> None:
        seen = 0.0
        while not self._stop.wait(_LOOK_S):
            try:
                changed = self._requests.stat().st_mtime
            except OSError:
                continue
            if changed == seen and time.time() - changed > 2 * _SKEW_S:
                continue  # nothing new: one stat a second is all it costs
            seen = changed
            with contextlib.suppress(OSError):
                for path in sorted(self._requests.glob("*.json")):
                    self._take(path, since)

    def _take(self, path: Path, since: float) -> None:
        incident = path.stem
        if incident in self._answered or not NAME.fullmatch(incident):
            return
        if distrust(path, self._spec.job_dir, friend=self._spec.job_dir.stat().st_uid):
            return  # py-spy would be sent at our ranks because somebody else said so
        try:
            asked = json.loads(path.read_text())
            made, pause = float(asked["t"]), bool(asked.get("pause", False))
        except (OSError, ValueError, KeyError, TypeError):
            return  # half written: it is looked at again
        self._answered.add(incident)
        if made < since - _SKEW_S or (self._folder(incident) / DONE).exists():
            return
        try:
            self._answer(incident, pause, why="asked for")
        except Exception as e:  # whatever goes wrong here stays here
            complain(f"no evidence for {incident}: {e}")

    def _answer(self, incident: str, pause: bool, why: str, brief: bool = False) -> None:
        with self._busy:
            alive = [rank for rank in self._ranks if rank.exit is None and rank.pid]
            done = Collection(self._spec, alive, self._folder(incident)).collect(pause, brief, why)
        self._say("capsule", incident=incident, seconds=done["seconds"], why=why, brief=brief)

    def _folder(self, incident: str) -> Path:
        return self._spec.job_dir / STACKS / incident / self._spec.node
