"""Asking schedulers and Prometheus about many jobs without waiting for them: each question runs beside the loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from trackwalker.job.services import USER, login_of, read_services
from trackwalker.job.slurm.states import JobState
from trackwalker.launch.job_state import KUBERNETES, LOCAL, SLURM, Standing, of_slurm, standing
from trackwalker.launch.slurm.client import Slurm
from trackwalker.watch.detect.rules import Alert
from trackwalker.watch.jobs import Watched
from trackwalker.watch.notify.message import Severity

_EVERY_S = {LOCAL: 10.0, SLURM: 15.0, KUBERNETES: 30.0}
_SLOWEST_S = 120.0  # between two questions to a controller that does not answer
_ALERTS_S = 15.0
_PATIENCE_S = 3.0
_URGENT = frozenset({"confirm", "slurm"})


class Background:
    """A few threads for calls that may hang; without threads each call is made at once (for one look, and tests)."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="watch") if threads else None
        # A hundred dead Prometheus servers must not hold up the question whether a job hangs.
        self._urgent = ThreadPoolExecutor(2, thread_name_prefix="watch-urgent") if threads else None
        self._running: dict[tuple[str, ...], Future[Any]] = {}

    def start(self, key: tuple[str, ...], call: Callable[[], Any]) -> None:
        """Begin a call unless the same one is under way."""
        if key in self._running:
            return
        pool = self._urgent if key[0] in _URGENT else self._pool
        if pool is not None:
            self._running[key] = pool.submit(call)
            return
        self._running[key] = future = Future[Any]()
        try:
            future.set_result(call())
        except Exception as e:
            future.set_exception(e)

    def done(self, kind: str) -> list[tuple[Any, Any]]:
        """The answers to questions of a kind (the key's first word); an exception is an answer, too."""
        found = [k for k, f in self._running.items() if k[0] == kind and f.done()]
        answers = []
        for key in found:
            future = self._running.pop(key)
            answers.append((key, future.exception() or future.result()))
        return answers

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._running

    def close(self) -> None:
        """Wait for nobody."""
        for pool in (self._pool, self._urgent):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)


class Asker:
    """Keeps every watched job's standing and alerts up to date."""

    def __init__(self, background: Background, slurm: Slurm | None = None) -> None:
        self._background = background
        self._slurm = slurm or Slurm()
        self._slurm_at, self._slurm_pause = 0.0, _EVERY_S[SLURM]
        self.slurm_silent_since: float | None = None
        self.curious = False  # somebody wants to see the queue, whether a watched job is in it or not
        self._http: httpx.Client | None = None

    def begin(self, watched: Iterable[Watched], now: float) -> None:
        """Ask what is due."""
        queued = self.curious
        for each in watched:
            if now >= each.ask_at and each.scheduler != SLURM:
                each.ask_at = now + _EVERY_S.get(each.scheduler, _EVERY_S[LOCAL])
                self._background.start(("standing", each.job.id), partial(standing, each.job, self._slurm))
            queued = queued or each.scheduler == SLURM
            if each.own and each.job.dir is not None and now >= each.alerts_at:
                each.alerts_at = now + _ALERTS_S
                self._background.start(("alerts", each.job.id), partial(self._alerts, each.job.dir))
        if queued and now >= self._slurm_at:
            self._slurm_at = now + self._slurm_pause
            self._background.start(("slurm",), self._slurm.queue)

    def take(self, watched: dict[str, Watched], now: float) -> list[JobState]:
        """Put the answers where they belong; returns Slurm's whole queue where it answered."""
        queue: list[JobState] = []
        for _, answer in self._background.done("slurm"):
            queue = self._take_queue(answer, watched, now)
        for (_, job), answer in self._background.done("standing"):
            if job in watched and isinstance(answer, Standing) and answer.state != "unknown":
                _stands(watched[job], answer)
        for (_, job), answer in self._background.done("alerts"):
            if job in watched:
                _take_alerts(watched[job], answer, now)
        return queue

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()

    def _take_queue(self, answer: Any, watched: dict[str, Watched], now: float) -> list[JobState]:
        if not isinstance(answer, list):
            # Nobody answered: every job stands as it stood. After a while, ask less often.
            self.slurm_silent_since = self.slurm_silent_since or now
            longer = now - self.slurm_silent_since > _SLOWEST_S
            self._slurm_pause = min(2 * self._slurm_pause, _SLOWEST_S) if longer else _EVERY_S[SLURM]
            return []
        self.slurm_silent_since, self._slurm_pause, self.curious = None, _EVERY_S[SLURM], False
        known: dict[str, JobState] = {state.id: state for state in answer}
        for each in watched.values():
            if each.scheduler != SLURM:
                continue
            if each.job.id in known:
                (now_known,) = self._slurm.cancelled_by([self._slurm.closer(known[each.job.id])])
                seen = of_slurm(each.job, now_known)
                if seen.state != "unknown":
                    _stands(each, seen)
            elif now >= each.ask_at:  # the controller has forgotten it: the accounting knows, or its own record
                each.ask_at = now + _EVERY_S[SLURM]
                self._background.start(("standing", each.job.id), partial(standing, each.job, self._slurm))
        return answer

    def _alerts(self, job_dir: Path) -> list[Alert] | None:
        """What fires in the job's own Prometheus; None where none is announced."""
        found = [s for s in read_services(job_dir) if s.name == "prometheus"]
        if not found:
            return None
        self._http = self._http or httpx.Client(timeout=_PATIENCE_S, trust_env=False)
        answer = self._http.get(f"{found[0].url}/api/v1/alerts", auth=(USER, login_of(job_dir)))
        answer.raise_for_status()
        return [a for a in map(_alert, answer.json()["data"]["alerts"]) if a is not None]


def _stands(watched: Watched, seen: Standing) -> None:
    """Another standing is judged at once, whenever the job's files are due."""
    if watched.standing != seen:
        watched.look_at = 0.0
    watched.standing = seen


def _take_alerts(watched: Watched, answer: Any, now: float) -> None:
    signs = watched.signs
    if isinstance(answer, list):
        signs.alerts, signs.metrics_gone_since = answer, None
        watched.had_metrics = True
    elif watched.had_metrics:  # what fired may fire still: nobody can say
        signs.metrics_gone_since = signs.metrics_gone_since or now


def _alert(said: dict[str, Any]) -> Alert | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        labels, notes = said["labels"], said.get("annotations") or {}
        if said.get("state") != "firing":
            return None
        since = datetime.fromisoformat(said["activeAt"][:19] + "+00:00").timestamp()
        word: Severity = "critical" if labels.get("severity") == "critical" else "warning"
        host = labels.get("host") or labels.get("instance", "")
        return Alert(labels["alertname"], word, host, notes.get("summary", ""), since)
    return None
