"""What every channel can do, and the three ways in which sending fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trackwalker.errors import TrackwalkerError
from trackwalker.watch.notify.message import Message

Receipt = Mapping[str, Any]  # what the service calls the message: plain JSON, kept by the outbox


class NotSentError(TrackwalkerError):
    """The service surely did not take the message: try again, not before `after` seconds where it said so."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


class InDoubtError(NotSentError):
    """The message may have arrived: the answer was lost, late or unreadable. Look for it before sending again."""


class RejectedError(TrackwalkerError):
    """The service will never take it like this: a wrong token, an unknown chat. Trying again changes nothing."""


class CannotKnowError(TrackwalkerError):
    """Whether a message arrived cannot be asked here."""


@dataclass(frozen=True)
class Letter:
    """A message on its way through one channel."""

    message: Message
    attachment: int | None = None  # None: the message itself; otherwise which of its files
    first: Receipt | None = None  # what began this message's thread in this channel
    own: Receipt | None = None  # of the message itself, when one of its files is sent
    known: tuple[Receipt, ...] = ()  # the latest of this channel, newest last
    before: tuple[Receipt, ...] = ()  # those that it had before the attempt in doubt
    begun: float = 0.0  # when it was first tried
    again: bool = False  # it may have arrived before, and nobody can tell: say so


class Notifier:
    """One channel. No method retries, sleeps, or lets a secret into an error."""

    attaches: frozenset[str] = frozenset()  # media types that go as letters of their own; where none, inside or not
    idempotent = True  # the service itself takes the same message only once

    def send(self, letter: Letter) -> Receipt:
        """Hand one message or file over; the receipt is what `first` and `own` are later."""
        raise NotImplementedError

    def find(self, letter: Letter) -> Receipt | None:
        """The receipt of a letter in doubt, None when it surely is not there; CannotKnowError when nobody can say.

        Where the service counts a message once there is nothing to look for: it is sent again.
        """
        return None

    def close(self) -> None:
        """End its connections."""
