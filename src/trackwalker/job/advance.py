"""How far long work is: those who do it say so, whoever shows it (a command on a terminal) listens; else nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Thing = TypeVar("Thing")
Listener = Callable[[int, int, str], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def advance(done: int, of: int, what: str) -> None:
    """So many of so many things (`hosts`, `traces`) are done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(done, of, what)


def counted(things: Sequence[Thing], what: str) -> Iterator[Thing]:
    """The things one after the other; how many are done is said before each."""
    for done, each in enumerate(things):
        advance(done, len(things), what)
        yield each


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have it called while this lasts."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)
