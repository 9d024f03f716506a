"""What is done about an open incident: evidence is asked for, the job is diagnosed, and somebody is told, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.watch.delivery import telling
from trackwalker.watch.detect.verdicts import Diagnoses, same
from trackwalker.watch.incident import Incident
from trackwalker.watch.memory import Memory
from trackwalker.watch.notify.message import Message

_PATIENCE_S = 20.0  # a first message waits so long for the verdict and the stacks, then goes without
_SECOND_LOOK_S = 60.0  # a slow-down shows its cause when it has lasted a while
_END_S = 15.0
_MOST_VERDICTS = 3
_FORGET_S = 900.0
_STOPPED = frozenset({"hang", "data-stall"})  # a run that stands still anyway may be held for a moment
_SLOW = frozenset({"slow", "data-slow"})
_EVIDENCE = _STOPPED | _SLOW
_DIAGNOSED = _EVIDENCE | {"loss", "checkpoint", "failure", "fault", "ended"}


class Casework:
    """Drives every incident that is not done with; all it needs is in the memory, so a restart goes on where it was."""

    def __init__(self, memory: Memory, put: Callable[[Message], object], diagnoses: Diagnoses) -> None:
        self._memory, self._put, self._diagnoses = memory, put, diagnoses
        self._asked: set[str] = set()  # incidents whose verdict is on its way
        self._active = {i.id for i in memory.incidents.values() if i.is_open or not i.told}

    @property
    def busy(self) -> bool:
        """Whether something is still to be told."""
        return not self._diagnoses.idle or any(not self._memory.incidents[i].told for i in self._active)

    def begin(self, incident: Incident) -> None:
        """Take up a new incident."""
        self._active.add(incident.id)

    def step(self, now: float) -> None:
        """Ask for what is missing, take in what came, and tell what is due."""
        for name, verdict in self._diagnoses.step():
            self._asked.discard(name)
            if name in self._memory.incidents:
                self._take_verdict(self._memory.incidents[name], verdict, now)
        for name in sorted(self._active, key=self._urgency):
            incident = self._memory.incidents[name]
            self._collect(incident, now)
            if self._wants_verdict(incident, now):
                self._diagnose(incident)
            if not incident.told and self._is_ready(incident, now):
                self.tell(incident, now)
            if incident.told and incident.id not in self._asked and self._is_done(incident, now):
                self._active.discard(name)

    def _urgency(self, name: str) -> tuple[bool, float]:
        """What goes on comes before what is over: somebody can still do something about it."""
        incident = self._memory.incidents[name]
        return incident.kind == "ended", incident.opened

    def tell(self, incident: Incident, now: float) -> None:
        """The first message, with all that is known by now."""
        message = telling.opened(incident, self._name(incident), now)
        over = {"resolved": now} if incident.once else {}
        self._memory.say(message, self._put, now, id=incident.id, told=True, updated=now, **over)

    def close(self) -> None:
        """End a diagnosis that runs."""
        self._diagnoses.close()

    def _is_ready(self, incident: Incident, now: float) -> bool:
        if incident.thread != incident.id and not self._memory.incidents[incident.thread].told:
            return False  # what began the thread is told first
        waits = incident.id in self._asked or incident.evidence == "requested" or self._awaits_end(incident, now)
        return not waits or now - incident.opened >= _PATIENCE_S

    def _awaits_end(self, incident: Incident, now: float) -> bool:
        """A failed rank takes the job with it: a moment later there is more to diagnose."""
        ended = self._memory.jobs.get(incident.job, {}).get("ended")
        return incident.kind == "failure" and not incident.verdicts and not ended and now - incident.opened < _END_S

    def _is_done(self, incident: Incident, now: float) -> bool:
        return (incident.resolved is not None or now - incident.opened > _FORGET_S) and incident.evidence != "requested"

    def _wants_verdict(self, incident: Incident, now: float) -> bool:
        if incident.kind not in _DIAGNOSED or incident.facts.get("state") in telling.FINE_ENDS:
            return False
        if incident.thread != incident.id or self._awaits_end(incident, now):
            return False  # the verdict is that of the incident that began the thread
        if not incident.verdicts:
            return True
        second = incident.is_open and now - incident.opened >= _SECOND_LOOK_S
        return incident.kind in _SLOW and incident.verdicts == 1 and second

    def _diagnose(self, incident: Incident) -> None:
        path = self._memory.jobs.get(incident.job, {}).get("path")
        if path and incident.id not in self._asked and incident.verdicts < _MOST_VERDICTS:
            self._asked.add(incident.id)
            self._diagnoses.ask(incident.id, Path(path), first=incident.kind != "ended")

    def _take_verdict(self, incident: Incident, verdict: dict[str, Any] | None, now: float) -> None:
        values: dict[str, Any] = {"verdicts": incident.verdicts + 1}
        if verdict is not None and not same(incident.verdict, verdict):
            values["verdict"] = verdict
        self._learned(incident, now, values, news="verdict" in values)

    def _collect(self, incident: Incident, now: float) -> None:
        if incident.evidence not in ("", "requested") or incident.kind not in _EVIDENCE:
            return
        from trackwalker.watch.detect import capsule  # only when there is something to collect

        try:
            job = self._job(incident)
            if job is None or not incident.evidence:
                if job is not None and incident.is_open:
                    capsule.request(job, incident.id, pause=incident.kind in _STOPPED)
                self._memory.change(incident, now, evidence="requested" if job and incident.is_open else "none")
                return
            found = capsule.collected(job, incident.id)
        except (OSError, TrackwalkerError):
            self._memory.change(incident, now, evidence="none")
            return
        if found is None:
            return
        odd = [one.rank for one in found.odd]
        values = {"evidence": "collected" if found.stacks else "none", "seen": found.summary()}
        self._learned(incident, now, {**values, "ranks": odd or incident.ranks}, news=bool(found.stacks))
        if found.stacks:
            self._diagnose(incident)  # the stacks are evidence now

    def _learned(self, incident: Incident, now: float, values: dict[str, Any], news: bool) -> None:
        """Write down what is new; where the incident was told already, the update is part of the same record."""
        if not (news and incident.told):
            self._memory.change(incident, now, **values)
            return
        message = telling.updated(replace(incident, **values), self._name(incident), now)
        self._memory.say(message, self._put, now, id=incident.id, updated=now, **values)

    def _job(self, incident: Incident) -> Job | None:
        """The job, where it has agents that can be asked."""
        path = self._memory.jobs.get(incident.job, {}).get("path")
        job = resolve(path, Path()) if path else None
        return job if job is not None and job.dir is not None and (job.dir / "run.json").is_file() else None

    def _name(self, incident: Incident) -> str:
        return str(self._memory.jobs.get(incident.job, {}).get("name", ""))
