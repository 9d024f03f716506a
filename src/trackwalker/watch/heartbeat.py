"""Who watches the watcher: a ping to a service that calls people when it stops coming."""

from __future__ import annotations

from collections.abc import Callable

from trackwalker.watch.notify.base import NotSentError
from trackwalker.watch.notify.http import Http

_STUCK_S = 120.0  # a loop that has not come round for so long is not alive


class Heartbeat:
    """Pings while the watcher's own loop comes round; a watcher that hangs is silent, like one that is dead."""

    def __init__(self, url: str, every_s: float) -> None:
        self._http, self._url, self._every_s = Http("the heartbeat", url, [url]), url, every_s
        self._alive = self._sent = 0.0

    def around(self, wait: Callable[[float], bool], clock: Callable[[], float]) -> Callable[[float], bool]:
        """The loop's own way to wait, noting that the loop came round."""

        def waiting(seconds: float) -> bool:
            self._alive = clock()
            return wait(seconds)

        return waiting

    def beat(self, now: float) -> bool:
        """Ping when it is due; a ping that fails is made up for by the next."""
        if now - self._alive > _STUCK_S or now - self._sent < self._every_s:
            return False
        self._sent = now
        try:
            status, _, _ = self._http.ask("GET", self._url, timeout=10.0, may_repeat=True)
        except NotSentError:
            return False
        return status < 300
