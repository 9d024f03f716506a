"""How far long work is: those who do it say so, whoever shows it (a command on a terminal) listens; else nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int, str], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def advance(done: int, of: int, what: str) -> None:
    """So many of so many things (`hosts`, `traces`) are done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(done, of, what)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have it called while this lasts."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)
