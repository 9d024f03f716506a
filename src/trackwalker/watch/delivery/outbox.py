"""The outbox: what is put is on disk, what is on disk is told, and it is told once as far as each service allows.

Every attempt is written down before it begins and when it ends. A kill between the two leaves an attempt in doubt:
then the channel is asked whether the message is there before it is sent again. A service that can be asked, or that
takes the same message only once, gets it exactly once; where neither is possible it may come twice, and says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from trackwalker.errors import UsageError
from trackwalker.watch.config import Config
from trackwalker.watch.delivery.book import Book, Delivery, Entry
from trackwalker.watch.notify.base import (
    CannotKnowError,
    InDoubtError,
    Letter,
    Notifier,
    NotSentError,
    Receipt,
    RejectedError,
)
from trackwalker.watch.notify.message import Attachment, Message, heading, presentable, short_id

FILE = "outbox.jsonl"
_FIRST_WAIT, _LONGEST_WAIT = 2.0, 300.0
_GIVE_UP_S = 48 * 3600.0
_SETTLE_S = 3.0  # a request that was cut off may still be on its way


# Quiet hours: what they hold back, and the one message that tells it afterwards.
_LINES = 40
_SEVERITIES = ("info", "warning", "critical")


def is_held(config: Config, channel: str, message: Message, now: float) -> bool:
    """Whether a channel keeps quiet about a message now; a critical one always passes."""
    quiet = getattr(config.channels[channel], "quiet", None)
    return quiet is not None and message.severity != "critical" and quiet.until(now) is not None


def digest(held: list[Message], channel: str, timezone: str, still_open: set[str], now: float) -> Message:
    """One message for many; the same many give the same key."""
    zone = ZoneInfo(timezone)
    keys = "\n".join(message.key for message in held)
    lines = []
    for message in held[:_LINES]:
        clock = datetime.fromtimestamp(message.time, UTC).astimezone(zone)
        lines.append(f"{clock:%H:%M} {heading(message)}")
    if len(held) > _LINES:
        lines.append(f"and {len(held) - _LINES} more")
    going_on = len({m.thread for m in held if m.thread in still_open and not m.resolves and m.severity != "info"})
    title = f"{len(held)} messages from the quiet hours"
    title += f", {going_on} incident{'' if going_on == 1 else 's'} still open" if going_on else ", all of it over"
    name = f"quiet:{channel}:{short_id(keys)}"
    severity = max((message.severity for message in held), key=_SEVERITIES.index) if going_on else "info"
    return Message(
        key=name, thread=name, severity=severity, kind="summary", title=title, text="\n".join(lines), time=now
    )


class Outbox:
    """Messages to tell and what became of them. One process has it open; `put` and `deliver` may be two threads."""

    def __init__(self, folder: Path, config: Config | None = None, now: float | None = None) -> None:
        self._config = config or Config()
        self._secrets = self._config.secrets()
        self._book = Book(folder / FILE, time.time() if now is None else now)
        self._lock = threading.RLock()  # of the book; never held while a service is asked
        self._delivering = threading.Lock()
        self._notifiers: dict[str, Notifier] = {}
        self.illustrate: Callable[[Message], tuple[Attachment, ...]] | None = None  # draws a plot where one helps

    def put(self, message: Message, now: float | None = None) -> bool:
        """Take a message; it is durable when this returns. False where its key is known: it is told once."""
        return self._put(message, time.time() if now is None else now, but="")

    def deliver(self, now: float | None = None) -> int:
        """Tell what is due; how many messages or files were delivered. A channel's trouble is never an error here."""
        with self._delivering:
            at = time.time() if now is None else now
            clock: Callable[[], float] = time.time if now is None else lambda: at
            with self._lock:
                waiting = {name for entry in self._book.open.values() for name in entry.to}
                for name in waiting - set(self._config.channels):
                    for entry, _ in self._book.open_in(name):
                        self._end(entry, name, "dead", "the channel is no longer in the settings", at)
            return sum(self._deliver_in(name, clock) for name in self._config.channels if name in waiting)

    def note(self, channel: str, receipt: Receipt) -> None:
        """Remember something that was said in a channel outside of the outbox: an answer to a question."""
        with self._lock:
            self._book.write(op="note", channel=channel, receipt=dict(receipt))

    def waiting(self) -> int:
        """How many deliveries are not done yet."""
        with self._lock:
            return sum(d.state == "open" for entry in self._book.entries.values() for d in entry.to.values())

    def dead(self) -> list[tuple[Message, str, str]]:
        """What could not be told: the message, the channel and why."""
        with self._lock:
            entries = list(self._book.entries.values())
            return [(e.message, name, d.why) for e in entries for name, d in e.to.items() if d.state == "dead"]

    def channels(self) -> dict[str, dict[str, Any]]:
        """For a status page: what waits, what was given up, and the last trouble of each channel."""
        with self._lock:
            found: dict[str, dict[str, Any]] = {}
            for name in self._config.channels:
                found[name] = {"waiting": 0, "dead": 0, "trouble": ""}
            for entry in self._book.entries.values():
                for name, delivery in entry.to.items():
                    said = found.setdefault(name, {"waiting": 0, "dead": 0, "trouble": ""})
                    said["waiting"] += delivery.state == "open"
                    said["dead"] += delivery.state == "dead"
                    said["trouble"] = delivery.why if delivery.state in ("open", "dead") else said["trouble"]
            return found

    def close(self) -> None:
        """End connections and close the journal; what waits is told after the next start."""
        with self._delivering, self._lock:
            for notifier in self._notifiers.values():
                notifier.close()
            self._book.close()

    def _put(self, message: Message, now: float, but: str, folds: Iterable[tuple[str, str]] = ()) -> bool:
        with self._lock:
            if message.key in self._book.entries:
                return False
            to = self._config.destinations(message)
            earlier = self._book.threads.get(message.thread, [])
            if message.resolves and earlier:  # those who heard of it hear that it is over, whatever the routes say
                to = {name: 0.0 for entry in earlier for name in entry.to if name in self._config.channels}
            to.pop(but, None)
            self._book.write(
                op="put",
                t=now,
                message=presentable(message, self._secrets).model_dump(mode="json"),
                to={name: now + wait for name, wait in to.items()},
                patient=[name for name, wait in to.items() if wait],
                folds=[list(pair) for pair in folds],
            )
            return True

    def _deliver_in(self, channel: str, clock: Callable[[], float]) -> int:
        now = clock()
        with self._lock:
            if self._book.rests.get(channel, 0.0) > now:
                return 0
            self._fold(channel, now)
            todo = self._book.open_in(channel)
        count, stuck = 0, set[str]()
        for entry, delivery in todo:
            message = entry.message
            now = clock()
            if message.thread in stuck or is_held(self._config, channel, message, now):
                continue
            if self._dropped(entry, channel, delivery, now) or delivery.due > now:
                continue
            if delivery.tried is not None and now - delivery.tried < _SETTLE_S:
                stuck.add(message.thread)
                continue
            try:
                count += self._tell(entry, channel, delivery, clock)
            except NotSentError as e:
                self._postpone(entry, channel, delivery, e, clock())
                break  # the next message would meet the same trouble
            except RejectedError as e:
                self._give_up(entry, channel, str(e), clock())
        return count

    def _dropped(self, entry: Entry, channel: str, delivery: Delivery, now: float) -> bool:
        """Nobody is told late about what is over, nor that something is over which nobody was told."""
        message, book = entry.message, self._book
        with self._lock:
            over = delivery.patient and delivery.tried is None and book.resolved(message.thread)
            alone = message.resolves and len(book.threads[message.thread]) > 1
            if over or (alone and not book.told(message.thread, channel, message.key)):
                self._end(entry, channel, "dropped", "", now)
                return True
        return False

    def _tell(self, entry: Entry, channel: str, delivery: Delivery, clock: Callable[[], float]) -> int:
        notifier = self._notifier(channel)
        self._draw(entry)
        count = 0
        files = [i for i, a in enumerate(entry.message.attachments) if a.media_type in notifier.attaches]
        while delivery.state == "open":
            step = delivery.step
            if step > len(files):  # a plot that was there before a restart and cannot be drawn now
                self._end(entry, channel, "done", "", clock())
                break
            letter = self._letter(entry, channel, delivery, files[step - 1] if step else None)
            try:
                receipt = self._send(notifier, letter, entry, channel, delivery, clock)
            except (InDoubtError, RejectedError) as e:
                if not step:
                    raise
                receipt = {"file": "", "why": str(e)}  # the words have arrived; a plot is not worth a second one
            with self._lock:
                self._book.write(
                    op="done", key=entry.message.key, channel=channel, step=step, t=clock(), receipt=dict(receipt),
                    last=step >= len(files),
                )  # fmt: skip
            count += 1
        return count

    def _draw(self, entry: Entry) -> None:
        """Plots are drawn when they are sent, by this thread: the watcher itself does not wait for them."""
        first = self._book.threads[entry.message.thread][0] is entry
        if self.illustrate is not None and first and not entry.message.attachments and not entry.message.resolves:
            drawn = self.illustrate(entry.message)
            entry.message = entry.message.model_copy(update={"attachments": drawn})

    def _send(
        self,
        notifier: Notifier,
        letter: Letter,
        entry: Entry,
        channel: str,
        delivery: Delivery,
        clock: Callable[[], float],
    ) -> Receipt:
        in_doubt = delivery.tried is not None
        if in_doubt and letter.attachment is not None:
            raise InDoubtError("it may have arrived before")
        if in_doubt and not notifier.idempotent:
            try:
                found = notifier.find(letter)
                if found is not None:
                    return found
                in_doubt = False
            except CannotKnowError:
                letter = replace(letter, again=True)
        place = {"key": entry.message.key, "channel": channel, "step": delivery.step}
        with self._lock:
            self._book.write(op="try", t=clock(), **place)
        try:
            return notifier.send(letter)
        except RejectedError:
            raise
        except NotSentError as e:
            if not isinstance(e, InDoubtError) and not in_doubt:
                with self._lock:
                    self._book.write(op="unsent", **place)
            raise
        except Exception as e:  # whatever a channel does, the watcher goes on; its words may hold a secret
            raise InDoubtError(f"{channel} failed with {type(e).__name__}") from None

    def _letter(self, entry: Entry, channel: str, delivery: Delivery, attachment: int | None) -> Letter:
        with self._lock:
            known = self._book.known.get(channel, ())
            return Letter(
                message=entry.message,
                attachment=attachment,
                first=self._book.first(entry.message.thread, channel),
                own=delivery.receipts[0] if delivery.receipts else None,
                known=tuple(known),
                before=tuple(delivery.before if delivery.tried is not None else known),
                begun=delivery.tried if delivery.tried is not None else 0.0,
            )

    def _notifier(self, channel: str) -> Notifier:
        if channel not in self._notifiers:
            try:
                self._notifiers[channel] = self._config.channels[channel].open()
            except UsageError as e:
                raise NotSentError(str(e)) from None
        return self._notifiers[channel]

    def _postpone(self, entry: Entry, channel: str, delivery: Delivery, error: NotSentError, now: float) -> None:
        if now - entry.put > _GIVE_UP_S:
            self._give_up(entry, channel, f"given up after two days: {error}", now)
            return
        wait = min(_FIRST_WAIT * 2.0 ** min(delivery.tries, 20), _LONGEST_WAIT)
        # Spread, so that many watchers do not come back together; by the key, so that it is the same after a restart.
        wait *= 0.8 + 0.4 * int(short_id(f"{entry.message.key}{delivery.tries}")[:4], 16) / 0xFFFF
        until = now + max(wait, error.after or 0.0)
        with self._lock:
            self._book.write(
                op="wait", key=entry.message.key, channel=channel, t=now, until=until, why=str(error)
            )  # fmt: skip

    def _give_up(self, entry: Entry, channel: str, why: str, now: float) -> None:
        with self._lock:
            self._end(entry, channel, "dead", why, now)
            day = int(now // 86_400)
            told = Message(
                key=f"dead:{channel}:{day}",
                thread=f"dead:{channel}:{day}",
                severity="warning",
                kind="notifier",
                title=f"the channel '{channel}' does not take messages",
                text=f"{why}\nWhat it refused is in the outbox; 'trackwalker watch test {channel}' tries it.",
                time=now,
            )
            self._put(told, now, but=channel)

    def _end(self, entry: Entry, channel: str, state: str, why: str, now: float) -> None:
        with self._lock:
            self._book.write(op="end", key=entry.message.key, channel=channel, state=state, why=why, t=now)

    def _fold(self, channel: str, now: float) -> None:
        """When quiet hours are over, what they held is told as one message."""
        quiet = getattr(self._config.channels[channel], "quiet", None)
        if quiet is None or quiet.until(now) is not None:
            return
        held = [
            entry
            for entry, d in self._book.open_in(channel)
            if entry.message.severity != "critical" and d.due <= now and not d.tries and d.tried is None and not d.step
            and quiet.until(entry.put) is not None
        ]  # fmt: skip
        if len(held) > 1:
            open_threads = {e.message.thread for e in held if not self._book.resolved(e.message.thread)}
            told = digest([e.message for e in held], channel, quiet.timezone, open_threads, now)
            self._book.write(
                op="put", t=now, message=told.model_dump(mode="json"), to={channel: now},
                folds=[[e.message.key, channel] for e in held],
            )  # fmt: skip
