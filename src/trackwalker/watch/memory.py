"""What the watcher remembers: an append-only journal in `<workspace>/.watch/`, on disk before anything is said.

Every decision is one record, so a kill at any byte leaves either the decision or nothing. A message is part of the
record that decides on it; it is put into the outbox afterwards, again after a restart where that is not known to have
happened, and the outbox knows its key: nothing is lost and nothing is told twice.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.journal import Journal, encode, read
from trackwalker.job.redact import HIDDEN
from trackwalker.job.trust import distrust
from trackwalker.job.whole import write_whole
from trackwalker.watch.incident import Condition, Incident
from trackwalker.watch.notify.message import Message

LONG = 4 << 20  # bytes of journal after which a start writes only what still matters


class DurableJournal(Journal):
    """A journal whose records are on disk when `append` returns, without the watcher's own secrets."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        super().__init__(path)
        self._secrets = [json.dumps(secret)[1:-1].encode() for secret in secrets if secret]

    def copy(self, line: bytes) -> None:
        """Write one line and wait for the disk."""
        for secret in self._secrets:  # a job may have printed one
            line = line.replace(secret, HIDDEN.encode())
        super().copy(line)
        os.fsync(self._fd)


def is_long(path: Path) -> bool:
    """Whether a journal is worth making short."""
    return path.exists() and path.stat().st_size > LONG


def rewrite(path: Path, lines: Iterable[bytes]) -> None:
    """Put these lines in the place of a file; a crash leaves the old ones or the new ones."""
    write_whole(path, b"".join(lines), sync=True)


FOLDER = ".watch"
_SAME_S = 0.5
_KEEP_S = 30 * 86_400.0  # resolved incidents


class ForgetfulError(TrackwalkerError):
    """The journal cannot be written: nothing may be told that would not be remembered."""


class BusyError(TrackwalkerError):
    """Another watcher has this workspace."""


class Memory:
    """Incidents, jobs and messages of one workspace; one watcher at a time holds it."""

    def __init__(self, folder: Path, now: float, secrets: Sequence[str] = ()) -> None:
        self.folder = folder
        self.incidents: dict[str, Incident] = {}
        self._by_job: dict[str, list[Incident]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}  # the last standing that was told or taken note of
        self.since = now  # when somebody began to watch this workspace
        self._unsaid: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if why := distrust(folder):
                raise UsageError(f"the watcher's memory is not used: {why}")
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise UsageError(f"cannot write {folder}: {e.strerror}; a watcher keeps its memory there") from e
        self._claim()
        path = folder / "journal.jsonl"
        records = read(path).items
        for record in records:
            self._take(record)
        if is_long(path):
            self._compact(path, now)
        self._journal = DurableJournal(path, secrets)
        if not records:
            self._write({"op": "begin", "t": now})

    def close(self) -> None:
        """Let another watcher have it."""
        self._journal.close()
        os.close(self._lock)

    def open_of(self, job: str) -> list[Incident]:
        """The incidents of a job that go on."""
        return [i for i in self.of(job) if i.is_open]

    def of(self, job: str) -> list[Incident]:
        """All incidents of a job, the oldest first."""
        return self._by_job.get(job, [])

    def known(self, job: str, condition: Condition) -> Incident | None:
        """The incident that a condition belongs to, open or over; None when it is news."""
        key = (condition.kind, condition.subject)
        for incident in reversed([i for i in self.of(job) if (i.kind, i.subject) == key]):
            # What began at the same moment is the same, seen again after a restart.
            if incident.is_open or condition.once or abs(condition.since - incident.since) < _SAME_S:
                return incident
        return None

    def open(self, job: str, condition: Condition, now: float, thread: str = "") -> Incident:
        """Begin an incident."""
        number = sum(i.kind == condition.kind for i in self.of(job)) + 1
        name = f"{job}-{condition.kind}-{number}"
        shared = {f.name for f in fields(Incident)} & {f.name for f in fields(Condition)}
        told = {field: getattr(condition, field) for field in shared}
        made = Incident(name, job, opened=now, thread=thread or name, updated=now, **told)
        self._note({"op": "open", "t": now, "incident": {**asdict(made), "ranks": list(made.ranks)}})
        return self.incidents[name]

    def change(self, incident: Incident, now: float, **values: Any) -> None:
        """Write down what is new about an incident."""
        self._note({"op": "set", "t": now, "id": incident.id, "set": {"updated": now, **values}})

    def say(self, message: Message, put: Callable[[Message], object], now: float, **values: Any) -> None:
        """Decide on a message, together with what it changes about its incident, and hand it over."""
        said = message.model_dump(mode="json")
        self._note({"op": "set", "t": now, "id": values.pop("id", ""), "set": values, "say": said})
        put(message)
        self._note({"op": "said", "key": message.key})

    def repeat(self, put: Callable[[Message], object]) -> None:
        """Hand over what was decided on before a crash and perhaps not handed over."""
        for key, message in list(self._unsaid.items()):
            put(Message.model_validate(message))
            self._note({"op": "said", "key": key})

    def see(self, job: str, **values: Any) -> None:
        """Remember how a job stands; what is known already costs nothing."""
        known = self.jobs.get(job, {})
        if any(known.get(name) != value for name, value in values.items()):
            self._note({"op": "job", "job": job, "set": values})

    def _note(self, record: dict[str, Any]) -> None:
        self._write(record)
        self._take(record)

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._journal.append(record)
        except OSError as e:
            raise ForgetfulError(f"cannot write {self._journal.path}: {e.strerror}") from e

    def _take(self, record: dict[str, Any]) -> None:
        """Fold one record; a foreign one changes nothing."""
        op = record.get("op")
        if op == "begin":
            self.since = float(record["t"])
        elif op == "open":
            incident = Incident.from_dict(record["incident"])
            self.incidents[incident.id] = incident
            self._by_job.setdefault(incident.job, []).append(incident)
        elif op == "set":
            incident_ = self.incidents.get(record["id"])
            for name, value in (record["set"] if incident_ else {}).items():
                setattr(incident_, name, value)
            if "say" in record:
                self._unsaid[record["say"]["key"]] = record["say"]
        elif op == "said":
            self._unsaid.pop(record["key"], None)
        elif op == "job":
            self.jobs.setdefault(record["job"], {}).update(record["set"])

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise BusyError(f"another watcher (process {who}) has this workspace: let it, or stop it") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _compact(self, path: Path, now: float) -> None:
        def matters(incident: Incident) -> bool:
            over = self.jobs.get(incident.job, {}).get("ended") and now - (incident.resolved or now) > _KEEP_S
            return incident.is_open or not over

        kept = {i.id: i for i in self.incidents.values() if matters(i)}
        self.incidents = kept
        self._by_job = {job: [i for i in kept.values() if i.job == job] for job in {i.job for i in kept.values()}}
        rewrite(path, self._snapshot())

    def _snapshot(self) -> Iterator[bytes]:
        yield encode({"op": "begin", "t": self.since})
        for job, values in self.jobs.items():
            yield encode({"op": "job", "job": job, "set": values})
        for incident in self.incidents.values():
            yield encode({"op": "open", "incident": asdict(incident)})
        for message in self._unsaid.values():
            yield encode({"op": "set", "id": "", "set": {}, "say": message})
