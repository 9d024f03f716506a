"""A store that belongs to others, asked politely: four questions at a time, bounded answers, a pause when told so."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.observe.remote_write import read_auth
from trackwalker.telemetry.client import Floats, Labels, QueryError, samples_of
from trackwalker.telemetry.matrix import read_matrix

AT_ONCE = 4
_TRIES = 5
_PATIENCE_S = 60.0
_LONGEST_PAUSE_S = 30.0
MOST_SERIES = 50_000  # of one metric
MOST_SAMPLES = 100_000_000  # of one diagnosis
_PER_ANSWER = 2_000_000  # samples of one question
_PER_METRIC = 500_000  # samples of one metric; of a larger fleet only each second, third … is asked for
_COARSEST_S = 120.0
_BUSY = (429, 503)


@dataclass(frozen=True)
class Access:
    """Where the store is and who we are for it; secrets come from files only."""

    url: str
    auth_file: Path | None = None
    tenant: str = ""
    ca_file: Path | None = None


@dataclass
class Cost:
    """What a shared store was asked to do for us."""

    queries: int = 0
    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waited: int = 0  # times it asked us to come back later

    def add(self, other: Cost) -> None:
        """What another reader asked for; they asked side by side, so the time is the longest's."""
        for name in ("queries", "samples", "bytes", "waited"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds = max(self.seconds, other.seconds)

    def text(self) -> str:
        """In one line."""
        size = f"{self.queries} queries, {self.samples:,} samples, {self.bytes / 1e6:.1f} MB, {self.seconds:.1f} s"
        return size + (f", asked to wait {self.waited} times" if self.waited else "")


def thinning(series: int, seconds: float, every: float) -> int:
    """Of how many samples of a metric one is asked for: of a large fleet's not all, but one in two minutes always."""
    return max(1, min(round(series * seconds / every / _PER_METRIC), int(_COARSEST_S / every)))


class RemoteStore:
    """Any store that speaks Prometheus' query API; only ever read."""

    def __init__(self, access: Access, at_once: int = AT_ONCE, most: int = MOST_SAMPLES) -> None:
        """`at_once` questions and `most` samples are this reader's share, where several read for one diagnosis."""
        self.access, self._at_once, self._most = access, at_once, most
        parts = urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("--metrics is not an address: use http(s)://host[:port]/path")
        if parts.username is not None or parts.password is not None:
            raise UsageError("--metrics holds a user or password: put them into a --metrics-auth-file")
        # Plain: to compress an answer takes a store longer than to make it, and keeps one of its cores for that.
        headers = {"Accept-Encoding": "identity"} | ({"X-Scope-OrgID": access.tenant} if access.tenant else {})
        login: tuple[str, str] | None = None
        if access.auth_file is not None:
            auth = read_auth(access.auth_file)
            if auth.user is None:
                headers["Authorization"] = f"Bearer {auth.secret}"
            else:
                login = (auth.user, auth.secret)
        try:
            verify: Any = ssl.create_default_context(cafile=str(access.ca_file)) if access.ca_file else True
            self._http = httpx.Client(
                base_url=access.url.rstrip("/"),
                headers=headers,
                auth=login,
                verify=verify,
                timeout=httpx.Timeout(_PATIENCE_S),
                limits=httpx.Limits(max_connections=at_once),
            )
        except OSError as e:
            raise UsageError(f"--metrics-ca-file {access.ca_file}: {e.strerror or e}") from e
        self._where = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self.cost = Cost()
        self._lock = threading.Lock()

    def names(self, since: float, until: float) -> frozenset[str]:
        """All metrics that have samples in a span, as far as the store can say."""
        params = {"start": f"{since:.0f}", "end": f"{until:.0f}"}
        return frozenset(str(name) for name in self._json("/api/v1/label/__name__/values", params, get=True))

    def instant(self, promql: str, at: float) -> list[tuple[Labels, float]]:
        """A query's value for each series at one time."""
        data = self._json("/api/v1/query", {"query": promql, "time": f"{at:.3f}"})
        return [(row["metric"], float(row["value"][1])) for row in data["result"]]

    def count(self, selector: str, at: float, window: float) -> tuple[int, float]:
        """How many series match, and how far apart their samples are; no series, no distance."""
        query = f'count_values("n", count_over_time({selector}[{window:.0f}s]))'
        counts = {float(labels["n"]): value for labels, value in self.instant(query, at) if "n" in labels}
        if not counts:
            return 0, 0.0
        usual = max(counts, key=lambda n: (counts[n], n))
        return round(sum(counts.values())), window / max(1.0, usual)

    def raw(
        self, selectors: Iterable[str], since: float, until: float, series: int, every: float
    ) -> tuple[list[tuple[Labels, Floats, Floats]], float]:
        """The stored samples of selectors, in pieces of a bounded size, four at a time; and how far apart they are.

        Of a large fleet not every sample is asked for: each second or third still shows what lasts for minutes.
        """
        if series > MOST_SERIES:
            raise EvidenceError(f"{series:,} series of one metric, more than {MOST_SERIES:,}: name fewer --hosts")
        every = max(every, 1.0)
        thinned = thinning(series, until - since, every)
        expected = series * (until - since) / every / thinned
        if self.cost.samples + expected > self._most:
            raise EvidenceError(f"more than {MOST_SAMPLES:,} samples: shorten --since/--until or name fewer --hosts")
        wanted = list(selectors)
        piece = max(60.0, _PER_ANSWER * len(wanted) / max(1, series) * every)
        spans, begin = [], since
        while begin < until:
            spans.append((begin, min(until, begin + piece)))
            begin += piece
        asked = [(selector, span) for selector in wanted for span in spans]
        ask = self._raw if thinned == 1 else partial(self._thin, step=every * thinned)
        with ThreadPoolExecutor(self._at_once) as pool:
            parts = list(pool.map(lambda each: ask(each[0], *each[1]), asked))
        return [row for part in parts for row in part], every * thinned

    def _thin(self, selector: str, begin: float, end: float, step: float) -> list[tuple[Labels, Floats, Floats]]:
        """The last sample of each step; a series that is gone has none."""
        query = f"last_over_time({selector}[{round(1000 * step)}ms])"
        # VictoriaMetrics need not keep what is asked for once; others do not know the word.
        params = {
            "query": query,
            "start": f"{begin + step:.3f}",
            "end": f"{end:.3f}",
            "step": f"{step:.3f}",
            "nocache": "1",
        }
        return self._rows(self._ask("/api/v1/query_range", params))

    def _raw(self, selector: str, begin: float, end: float) -> list[tuple[Labels, Floats, Floats]]:
        params = {"query": f"{selector}[{round(1000 * (end - begin))}ms]", "time": f"{end:.3f}"}
        found = self._rows(self._ask("/api/v1/query", params))
        # A sample on an edge belongs to one piece only.
        kept = ((labels, times > begin, times, values) for labels, times, values in found)
        return [(labels, times[keep], values[keep]) for labels, keep, times, values in kept if keep.any()]

    def _rows(self, answer: httpx.Response) -> list[tuple[Labels, Floats, Floats]]:
        found = read_matrix(answer.content)
        if found is None:
            found = [(row["metric"], *samples_of(row)) for row in self._data(answer)["result"] if row.get("values")]
        with self._lock:
            self.cost.samples += sum(len(times) for _, times, _ in found)
        return found

    def _json(self, path: str, params: Mapping[str, str], get: bool = False) -> Any:
        return self._data(self._ask(path, params, get))

    def _ask(self, path: str, params: Mapping[str, str], get: bool = False) -> httpx.Response:
        pause = 1.0
        for attempt in range(_TRIES):
            began = time.monotonic()
            try:
                answer = self._http.get(path, params=params) if get else self._http.post(path, data=dict(params))
            except httpx.HTTPError as e:
                raise EvidenceError(f"{self._where} does not answer: {type(e).__name__} {e}") from e
            with self._lock:
                self.cost.queries += 1
                self.cost.bytes += answer.num_bytes_downloaded
                self.cost.seconds += time.monotonic() - began
            if answer.status_code not in _BUSY:
                return answer
            if attempt == _TRIES - 1:
                break
            told = answer.headers.get("Retry-After", "")
            wait = min(_LONGEST_PAUSE_S, float(told) if told.isdigit() else pause)
            with self._lock:
                self.cost.waited += 1
            time.sleep(wait)
            pause *= 2
        raise EvidenceError(
            f"{self._where} is busy ({answer.status_code}) and was asked {_TRIES} times: try again later"
        )

    def _data(self, answer: httpx.Response) -> Any:
        if answer.status_code in (401, 403):
            raise EvidenceError(
                f"{self._where} refuses us ({answer.status_code}): --metrics-auth-file, --metrics-tenant"
            )
        try:
            body = orjson.loads(answer.content)
        except ValueError:
            raise EvidenceError(
                f"{self._where} answers {answer.status_code} and no JSON: is this a Prometheus query address?"
            ) from None
        if not isinstance(body, dict) or body.get("status") != "success":
            said = body.get("error") if isinstance(body, dict) else ""
            raise QueryError(f"{self._where}: {' '.join(str(said or answer.status_code).split())[:300]}")
        return body.get("data")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
