"""PromQL over HTTP to numbers: instant values by host, matrices on a grid, raw samples with their own times."""

from __future__ import annotations

import gc
import json
import re
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, RemoteDisconnected
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode

import httpx
import numpy as np
import numpy.typing as npt
import orjson

from trackwalker.errors import EvidenceError, TrackwalkerError
from trackwalker.telemetry.direct.answers import Direct, Traffic
from trackwalker.telemetry.matrix import read_matrix as read_matrix

Floats = npt.NDArray[np.float64]
Labels = dict[str, str]
Question = tuple[str, float]  # PromQL, and of which moment

_TIME, _VALUE = itemgetter(0), itemgetter(1)
_WORDS = re.compile(r"[a-zA-Z_:][\w:]*")
_AHEAD = 2
_MOST_POINTS = 11_000  # Prometheus refuses more points for each series in one range query


class QueryError(TrackwalkerError, ValueError):
    """A query that Prometheus refused, in Prometheus' own words."""


class Sample(NamedTuple):
    """One series' value at one time; a tuple, as a diagnosis makes a million of them."""

    labels: Labels
    value: float
    time: float


@dataclass(frozen=True)
class Matrix:
    """Series on a common time grid: values[series, time], NaN where a series has none."""

    labels: list[Labels]
    times: Floats
    values: Floats


class Server(Protocol):
    """A Prometheus that can be asked."""

    traffic: Traffic

    @property
    def url(self) -> httpx.URL:
        """Where it answers."""

    def call(self, path: str, params: Mapping[str, Any] | None = None, method: str = "POST") -> Any:
        """The `data` of an API answer."""

    def samples(self, path: str, params: Mapping[str, Any]) -> list[tuple[Labels, Floats, Floats]]:
        """The labels, times and values of every series of a matrix answer."""


class Answer(NamedTuple):
    """What came back, whatever it says."""

    status: int
    content: bytes


class Api:
    """The HTTP side: connections kept open, answers decoded, errors in one line.

    The server is our own, on loopback: no TLS, no proxy, no redirect, nothing compressed (64 series x 562 points take
    33 ms plain and 166 ms gzipped). A diagnosis asks hundreds of questions, and a client for all the web takes 2 ms of
    CPU time for each; this takes a fifth of that.
    """

    def __init__(self, url: str, last_words: Callable[[], str], traffic: Traffic | None = None) -> None:
        self.url = httpx.URL(url)
        self._last_words = last_words
        self.traffic = traffic or Traffic()
        user = self.url.userinfo
        self._headers = {"Authorization": f"Basic {b64encode(user).decode()}"} if user else {}
        self._idle: deque[HTTPConnection] = deque()  # threads take one each, and put it back

    def call(self, path: str, params: Mapping[str, Any] | None = None, method: str = "POST") -> Any:
        """The `data` of an API answer."""
        return self._data(self._ask(path, params, method))

    def samples(self, path: str, params: Mapping[str, Any]) -> list[tuple[Labels, Floats, Floats]]:
        """The labels, times and values of every series of a matrix answer."""
        answer = self._ask(path, params, "POST")
        found = read_matrix(answer.content)
        if found is None:
            found = [(s["metric"], *samples_of(s)) for s in self._data(answer)["result"] if s.get("values")]
        return found

    def _ask(self, path: str, params: Mapping[str, Any] | None, method: str) -> Answer:
        self.traffic.queries += 1
        words = urlencode(dict(params or {}), doseq=True)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            try:
                answer = self._send(connection, method, path, words)
            except (RemoteDisconnected, ConnectionError):  # kept for minutes, it may be closed: no answer had begun
                connection.close()
                answer = self._send(connection, method, path, words)
        except (OSError, HTTPException) as e:
            connection.close()
            raise EvidenceError(f"the private Prometheus stopped answering ({e!r}): {self._last_words()}") from e
        self._idle.append(connection)
        self.traffic.bytes += len(answer.content)
        return answer

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self.url.host, self.url.port, timeout=300.0)

    def _send(self, connection: HTTPConnection, method: str, path: str, words: str) -> Answer:
        if method == "POST":  # long queries do not fit into a URL
            form = {"Content-Type": "application/x-www-form-urlencoded", **self._headers}
            connection.request(method, path, words.encode(), form)
        else:
            connection.request(method, f"{path}?{words}", headers=self._headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())

    def _data(self, answer: Answer) -> Any:
        try:
            body = _decode(answer.content) if answer.content else {"status": "success"}
        except ValueError:
            body = {"error": f"HTTP {answer.status}: {answer.content.decode(errors='replace')[:200]}"}
        if body.get("status") != "success":
            raise QueryError(" ".join(str(body.get("error")).split()))
        return body.get("data")

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()


class Telemetry:
    """An open metrics database. Results are sorted by labels, so the same data give the same answer."""

    def __init__(
        self,
        api: Server,
        bounds: Sequence[tuple[int, int]],
        damage: list[str],
        unreadable: AbstractSet[str] = frozenset(),
        direct: Direct | None = None,
    ) -> None:
        self.damage = damage
        self._api = api
        self._direct = direct  # asked first
        self._bounds = bounds
        self._unreadable = unreadable
        self._range: tuple[float, float] | None = None
        self._metrics: frozenset[str] | None = None
        self._answers: dict[tuple[str, float], list[Sample]] = {}  # several playbooks ask the same question
        self._before = Traffic()  # that is not this one's
        self.renamed: frozenset[str] = frozenset()  # metrics of others that are here in our names too

    def fresh(self) -> Telemetry:
        """The same open database for another purpose: with a memory and a count of its own."""
        other = Telemetry(self._api, self._bounds, self.damage, self._unreadable, self._direct)
        other._range, other._metrics = self.range(), self.metrics()
        other._before, other.renamed = replace(self._api.traffic), self.renamed
        return other

    @property
    def url(self) -> httpx.URL:
        """Where the private Prometheus answers while this is open."""
        return self._api.url

    @property
    def queries(self) -> int:
        """How many questions were asked so far."""
        return self._api.traffic.queries - self._before.queries

    @property
    def bytes_read(self) -> int:
        """How many bytes the answers had on the wire, or the chunks that they were made of."""
        return self._api.traffic.bytes - self._before.bytes

    def metrics(self) -> frozenset[str]:
        """The names of all metrics that can be read."""
        if self._direct is not None and (known := self._direct.metrics()) is not None:
            return known - self._unreadable
        if self._metrics is None:
            self._metrics = frozenset(self._api.call("/api/v1/label/__name__/values", method="GET")) - self._unreadable
        return self._metrics

    def range(self) -> tuple[float, float]:
        """Times of the first and the last sample."""
        if self._range is None:
            first, last = min(b[0] for b in self._bounds) / 1000, max(b[1] for b in self._bounds) / 1000
            if self._direct is not None and (end := self._direct.newest(last)) is not None:
                self._range = (first, end)
                return self._range
            # A block's end is the end of its time slot; its last sample may have come earlier. By name, as timestamp()
            # drops the names and then refuses series that look alike.
            newest = (f'max(timestamp({{__name__="{name}"}}))' for name in sorted(self.metrics()))
            each = (f'label_replace({query}, "n", "{i}", "", "")' for i, query in enumerate(newest))
            self._range = (first, max((s.value for s in self.instant(" or ".join(each), last)), default=last))
        return self._range

    def instant(self, promql: str, at: float) -> list[Sample]:
        """The value of every series that a query gives at one time; asked of the server once."""
        if (promql, at) not in self._answers:
            self._answers[promql, at] = self._instant(promql, at)
        return list(self._answers[promql, at])

    def ahead(self, asked: Iterable[Sequence[Question]]) -> None:
        """Answer what will be asked, two questions at a time; those about one metric come together, read once for all.

        Of a sequence each question is asked only where the one before it has an answer. What fails is left for whoever
        asks it.
        """
        known = self.metrics()
        groups: dict[str, list[Sequence[Question]]] = {}
        for questions in asked:
            about = sorted(known.intersection(_WORDS.findall(questions[0][0])))
            groups.setdefault(about[0] if about else "", []).append(questions)

        def answer(group: list[Sequence[Question]]) -> None:
            for questions in sorted(group, key=lambda q: q[0][1]):
                with suppress(TrackwalkerError):
                    all(self.instant(promql, at) for promql, at in questions)

        with ThreadPoolExecutor(_AHEAD, "trackwalker-ahead") as pool:
            list(pool.map(answer, (groups[name] for name in sorted(groups))))

    def _instant(self, promql: str, at: float) -> list[Sample]:
        now = np.array([round(at * 1000)])
        if self._direct is not None and (found := self._direct.values(promql, now)) is not None:
            return list(map(Sample, found[0], found[1][:, 0].tolist(), repeat(int(now[0]) / 1000)))
        data = self._query(promql, at)
        kind, result = data["resultType"], data["result"]
        if kind == "scalar":
            return [Sample({}, float(result[1]), float(result[0]))]
        if kind != "vector":
            raise QueryError(f"{promql}: gives a {kind}, not one value for each series; use raw() for samples")
        samples = [Sample(r["metric"], float(r["value"][1]), float(r["value"][0])) for r in result if "value" in r]
        return sorted(samples, key=lambda s: _order(s.labels))

    def by(self, promql: str, at: float, label: str) -> dict[str, float]:
        """One value for each value of a label; series without the label are left out."""
        return _keyed(promql, label, ((s.labels.get(label), s.value) for s in self.instant(promql, at)))

    def by_host(self, promql: str, at: float) -> dict[str, float]:
        """One value for each host: label `host`, else the host part of `instance`, as Ray's metrics have only that."""
        samples = self.instant(promql, at)
        found = {s.labels.get("host") or host_of(s.labels): s.value for s in samples}
        if None in found or len(found) < len(samples):
            return _keyed(promql, "host", ((host_of(s.labels), s.value) for s in samples))
        return found  # type: ignore[return-value]

    def matrix(self, promql: str, start: float, end: float, step: float) -> Matrix:
        """A query evaluated at start, start + step, … up to end."""
        # Prometheus counts in whole milliseconds: on the same grid no point is lost to rounding.
        first, last, pace = round(start * 1000), round(end * 1000), max(1, round(step * 1000))
        times = np.arange(first, last + 1, pace, dtype=np.int64)
        if self._direct is not None and len(times) and (found := self._direct.values(promql, times)) is not None:
            return Matrix(found[0], times / 1000.0, np.where(found[2], found[1], np.nan))
        rows: dict[tuple[tuple[str, str], ...], Floats] = {}
        for at in range(0, len(times), _MOST_POINTS):
            part = times[at : at + _MOST_POINTS]
            params = {"query": promql, "start": _s(part[0]), "end": _s(part[-1]), "step": _s(pace)}
            for labels, own, values in self._api.samples("/api/v1/query_range", params):
                row = rows.setdefault(_order(labels), np.full(len(times), np.nan))
                row[np.rint((own * 1000 - first) / pace).astype(np.int64)] = values
        keys = sorted(rows)
        values = np.array([rows[k] for k in keys]) if keys else np.empty((0, len(times)))
        return Matrix([dict(k) for k in keys], times / 1000.0, values)

    def raw(self, selector: str, start: float, end: float) -> list[tuple[Labels, Floats, Floats]]:
        """The stored samples of every matching series, with their true times, from start to end inclusive."""
        first, last = round(start * 1000), round(end * 1000)
        if self._direct is not None and (rows := self._direct.raw(selector, first, last)) is not None:
            return sorted(rows, key=lambda row: _order(row[0]))
        found: dict[tuple[tuple[str, str], ...], list[tuple[Floats, Floats]]] = {}
        for labels, times, values in self._raw(selector, first, last):
            found.setdefault(_order(labels), []).append((times, values))
        return [
            (dict(key), np.concatenate([t for t, _ in parts]), np.concatenate([v for _, v in parts]))
            for key, parts in sorted(found.items())
        ]

    def _raw(self, selector: str, first: int, last: int) -> list[tuple[Labels, Floats, Floats]]:
        if last < first:
            return []
        # One millisecond more at the front and a filter: whether that edge belongs to a range depends on the version.
        params = {"query": f"{selector}[{last - first + 1}ms]", "time": f"{last / 1000:.3f}"}
        try:
            found = self._api.samples("/api/v1/query", params)
        except QueryError as e:
            if "too many samples" not in str(e) or last == first:
                raise
            middle = (first + last) // 2
            return self._raw(selector, first, middle) + self._raw(selector, middle + 1, last)
        inside = ((labels, np.rint(times * 1000) >= first, times, values) for labels, times, values in found)
        return [(labels, times[keep], values[keep]) for labels, keep, times, values in inside if keep.any()]

    def _query(self, promql: str, at: float) -> Any:
        return self._api.call("/api/v1/query", {"query": promql, "time": f"{at:.3f}"})


def _decode(content: bytes) -> Any:
    # A large answer is a million small lists, and each collection walks them all: five times slower with it.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(content)
    finally:
        if collecting:
            gc.enable()


def host_of(labels: Mapping[str, str]) -> str | None:
    """The host a series belongs to: label `host`, else `instance` without its port."""
    if host := labels.get("host"):
        return host
    instance = labels.get("instance")
    if instance is None:
        return None
    host, colon, port = instance.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else instance


def _keyed(promql: str, label: str, pairs: Any) -> dict[str, float]:
    out: dict[str, float] = {}
    for key, value in pairs:
        if key is None:
            continue
        if key in out:
            raise QueryError(f"{promql}: more than one series for {label} {json.dumps(key)}; aggregate by ({label})")
        out[key] = value
    return out


def _order(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def samples_of(series: Mapping[str, Any]) -> tuple[Floats, Floats]:
    pairs = series.get("values", ())
    times = np.fromiter(map(_TIME, pairs), np.float64, len(pairs))
    return times, np.fromiter(map(float, map(_VALUE, pairs)), np.float64, len(pairs))


def _s(milliseconds: int | np.int64) -> str:
    return f"{milliseconds / 1000:.3f}"
