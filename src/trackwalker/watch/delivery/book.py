"""The outbox's memory: what was put, tried, delivered or given up, folded from an append-only journal."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trackwalker.job.journal import encode, read
from trackwalker.watch.memory import DurableJournal, is_long, rewrite
from trackwalker.watch.notify.base import Receipt
from trackwalker.watch.notify.message import Message

State = Literal["open", "done", "dead", "dropped", "folded"]
_KEEP_S = 30 * 86_400.0  # how long the key of a message that was told is remembered
_KNOWN = 60  # latest receipts of a channel


@dataclass
class Delivery:
    """One message on its way through one channel."""

    due: float
    patient: bool = False  # it is told only if its incident is still open when it is due
    state: State = "open"
    step: int = 0  # 0: the message itself; then its files
    tries: int = 0
    tried: float | None = None  # an attempt whose end is not known: it may have arrived
    before: list[Receipt] = field(default_factory=list)  # what the channel had told before that attempt
    receipts: list[Receipt] = field(default_factory=list)
    why: str = ""  # the last trouble
    into: str = ""  # the summary that tells it


@dataclass
class Entry:
    """One message and its deliveries."""

    message: Message
    put: float
    to: dict[str, Delivery]

    @property
    def is_open(self) -> bool:
        """Whether something remains to be done."""
        return any(d.state == "open" for d in self.to.values())


class Book:
    """Everything about every message, in the order in which they were put."""

    def __init__(self, path: Path, now: float) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.entries: dict[str, Entry] = {}
        self.open: dict[str, Entry] = {}  # those with something left to do
        self.threads: dict[str, list[Entry]] = {}
        self.known: dict[str, deque[Receipt]] = {}
        self.rests: dict[str, float] = {}  # until when a channel is left alone
        for record in read(path).items:
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError):  # a foreign record changes nothing
                continue
        if is_long(path):
            self._compact(path, now)
        self._journal = DurableJournal(path)
        os.chmod(path, 0o600)

    def write(self, **record: Any) -> None:
        """Make a fact durable, then believe it."""
        self._journal.append(record)
        self._take(record)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def open_in(self, channel: str) -> list[tuple[Entry, Delivery]]:
        """What a channel still has to tell, oldest first."""
        found = [(entry, entry.to[channel]) for entry in self.open.values() if channel in entry.to]
        return [(entry, delivery) for entry, delivery in found if delivery.state == "open"]

    def first(self, thread: str, channel: str) -> Receipt | None:
        """What began a thread in a channel: its first message, or the summary that told it."""
        for entry in self.threads.get(thread, []):
            delivery = entry.to.get(channel)
            if delivery is None:
                continue
            if delivery.into:
                delivery = self.entries[delivery.into].to[channel]
            if delivery.receipts:
                return delivery.receipts[0]
        return None

    def told(self, thread: str, channel: str, but: str) -> bool:
        """Whether a channel has heard of a thread, or is about to, from another message than `but`."""
        others = (e.to[channel] for e in self.threads.get(thread, []) if channel in e.to and e.message.key != but)
        return any(d.state in ("done", "folded", "dead") or (d.state == "open" and not d.patient) for d in others)

    def resolved(self, thread: str) -> bool:
        """Whether the incident is over."""
        return any(entry.message.resolves for entry in self.threads.get(thread, []))

    def _take(self, record: dict[str, Any]) -> None:
        op, channel = record.get("op"), str(record.get("channel", ""))
        if op == "put":
            message = Message.model_validate(record["message"])
            patient = set(record.get("patient", []))
            to = {name: Delivery(float(due), name in patient) for name, due in record["to"].items()}
            self._enter(Entry(message, float(record["t"]), to))
            for key, name in record.get("folds", []):
                folded = self.entries[key].to[name]
                folded.state, folded.into = "folded", message.key
                self._settle(self.entries[key])
        elif op == "entry":
            to = {name: Delivery(**said) for name, said in record["to"].items()}
            self._enter(Entry(Message.model_validate(record["message"]), float(record["t"]), to))
        elif op == "note":
            self._know(channel, record["receipt"])
        elif op == "rest":
            self.rests[channel] = float(record["until"])
        elif op in ("try", "unsent", "done", "wait", "end"):
            entry = self.entries[record["key"]]
            self._deliver(op, entry, channel, record)
            self._settle(entry)

    def _deliver(self, op: str, entry: Entry, channel: str, record: dict[str, Any]) -> None:
        delivery = entry.to[channel]
        if op == "try":
            if delivery.tried is None:
                delivery.tried = float(record["t"])
                delivery.before = list(self.known.get(channel, ()))
        elif op == "unsent":  # surely not there: nothing is in doubt any more
            delivery.tried, delivery.before = None, []
        elif op == "done":
            receipt = record["receipt"]
            delivery.receipts.append(receipt)
            self._know(channel, receipt)
            delivery.step, delivery.tried, delivery.tries, delivery.why = int(record["step"]) + 1, None, 0, ""
            delivery.before = []
            delivery.state = "done" if record.get("last") else "open"
        elif op == "wait":
            delivery.due, delivery.why = float(record["until"]), str(record["why"])
            delivery.tries += 1
            self.rests[channel] = max(self.rests.get(channel, 0.0), delivery.due)
        else:
            delivery.state, delivery.why = record["state"], str(record.get("why", ""))

    def _enter(self, entry: Entry) -> None:
        if entry.message.key not in self.entries:
            self.entries[entry.message.key] = entry
            self.threads.setdefault(entry.message.thread, []).append(entry)
            self._settle(entry)

    def _know(self, channel: str, receipt: Receipt) -> None:
        if receipt:
            self.known.setdefault(channel, deque(maxlen=_KNOWN)).append(receipt)

    def _settle(self, entry: Entry) -> None:
        """A message with nothing left to do leaves the list; its words and plots would fill the memory."""
        if entry.is_open:
            self.open[entry.message.key] = entry
            return
        self.open.pop(entry.message.key, None)
        if not any(delivery.state == "dead" for delivery in entry.to.values()):
            entry.message = entry.message.model_copy(update={"attachments": (), "text": "", "facts": {}})

    def _compact(self, path: Path, now: float) -> None:
        dull = {k for k, e in self.entries.items() if not e.is_open and now - e.put > _KEEP_S}
        self.entries = {k: e for k, e in self.entries.items() if k not in dull}
        self.threads = {}
        for entry in self.entries.values():
            self.threads.setdefault(entry.message.thread, []).append(entry)
        rewrite(path, self._snapshot())

    def _snapshot(self) -> Iterator[bytes]:
        for channel, receipts in self.known.items():
            for receipt in receipts:
                yield encode({"op": "note", "channel": channel, "receipt": receipt})
        for channel, until in self.rests.items():
            yield encode({"op": "rest", "channel": channel, "until": until})
        for entry in self.entries.values():
            to = {name: asdict(delivery) for name, delivery in entry.to.items()}
            yield encode({"op": "entry", "t": entry.put, "message": entry.message.model_dump(mode="json"), "to": to})
