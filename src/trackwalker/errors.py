"""The few errors a caller can do something about; the command line prints each as one line."""

from __future__ import annotations


class TrackwalkerError(Exception):
    """Something the user can mend; the message says what is wrong and what to do."""

    exit_code = 2


class UsageError(TrackwalkerError):
    """The request itself is wrong: an unknown model, a malformed key=value, a bad option."""


class JobNotFoundError(TrackwalkerError):
    """No job, or more than one, answers to the given name."""


class NotAJobError(TrackwalkerError):
    """The directory exists but holds no log, so there is nothing to read."""


class EvidenceError(TrackwalkerError):
    """The evidence exists but cannot be read at all (an empty log, an unreadable database)."""


class MissingToolError(TrackwalkerError):
    """A program we need (Prometheus) is neither present nor installable."""


class UnreachableError(TrackwalkerError):
    """A scheduler does not answer."""

    exit_code = 69


class MaybeQueuedError(UnreachableError):
    """A scheduler did not answer in time: the job may be queued all the same, so what it needs is kept."""


class RefusedError(TrackwalkerError):
    """An action that its policy, its approval or the owner of the job does not allow; nothing was done."""
