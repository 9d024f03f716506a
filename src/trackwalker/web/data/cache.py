"""What was worked out once and is still true: a bounded cache that works each thing out once, however many ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Cache(Generic[T]):
    """Values by key, each good for one fingerprint; the least recently used leave first.

    Two threads that ask for the same thing share one making of it. A making that failed is not kept: whoever waited
    gets the error, and the next one tries again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, tuple[Hashable, Future[T]]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, fingerprint: Hashable, make: Callable[[], T]) -> T:
        """The value for this state of the evidence, made now unless it is known or being made."""
        with self._lock:
            held = self._known.get(key)
            mine = held is None or held[0] != fingerprint
            if mine:
                held = (fingerprint, Future())
                self._known[key] = held
            assert held is not None  # noqa: S101  # for the type checker
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        promise = held[1]
        if mine:
            try:
                promise.set_result(make())
            except BaseException as e:
                with self._lock:
                    if self._known.get(key) is held:
                        del self._known[key]
                promise.set_exception(e)
        return promise.result()

    def peek(self, key: Hashable, fingerprint: Hashable) -> T | None:
        """The value where it is there and still true; never waits and never makes one."""
        with self._lock:
            held = self._known.get(key)
        if held is None or held[0] != fingerprint or not held[1].done() or held[1].exception() is not None:
            return None
        return held[1].result()

    def forget(self, key: Hashable) -> None:
        """Make it anew for the next who asks."""
        with self._lock:
            self._known.pop(key, None)

    def __len__(self) -> int:
        return len(self._known)
