"""Questions answered before they are asked."""

from __future__ import annotations

import threading
from typing import Any

from trackwalker.telemetry.client import QueryError, Telemetry
from trackwalker.telemetry.direct.answers import Traffic


class Server:
    """Knows two metrics; of `b` there is nothing, and one question is refused."""

    url: Any = ""

    def __init__(self) -> None:
        self.traffic, self.asked, self._lock = Traffic(), list[str](), threading.Lock()

    def call(self, path: str, params: Any = None, method: str = "POST") -> Any:
        if path.endswith("values"):
            return ["a_total", "b_total"]
        with self._lock:
            self.asked.append(params["query"])
        if params["query"] == "wrong(a_total)":
            raise QueryError("no such function")
        result = [] if "b_total" in params["query"] else [{"metric": {"host": "n1"}, "value": [1.0, "2"]}]
        return {"resultType": "vector", "result": result}

    def samples(self, path: str, params: Any) -> Any:
        raise AssertionError(path)


def test_each_is_asked_once_and_what_follows_from_nothing_not_at_all() -> None:
    server = Server()
    telemetry = Telemetry(server, [(0, 1000)], [])
    first = [("sum(a_total)", 1.0), ("sum(a_total) @ 0", 0.5)]
    telemetry.ahead([first, first, [("sum(b_total)", 1.0), ("sum(b_total) @ 0", 0.5)], [("wrong(a_total)", 1.0)]])
    assert sorted(server.asked) == ["sum(a_total)", "sum(a_total) @ 0", "sum(b_total)", "wrong(a_total)"]
    assert telemetry.by_host("sum(a_total)", 1.0) == {"n1": 2.0}
    assert len(server.asked) == 4
