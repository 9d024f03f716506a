"""The deviation sweep: every recorded series, in every episode, against its own past and its peers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.states import graph
from trackwalker.diagnose.deviations.grids import coarsest_of, grids
from trackwalker.diagnose.episodes.episodes import Episode
from trackwalker.record.topology import Topology
from trackwalker.stats import deviations as stats
from trackwalker.telemetry.client import Floats, QueryError
from trackwalker.telemetry.coverage import PRESENCE
from trackwalker.telemetry.frames import Frame, Grid, Sampling, read_frame
from trackwalker.telemetry.meaning import Meaning, Place, meaning_of, pick_of, quantum
from trackwalker.telemetry.store import Telemetry

Kind = Literal["rose", "fell", "absent", "frozen", "restarted"]
_FEWEST_REFERENCE = 4  # bins
_FEWEST_SILENT = 5  # bins: a recording may end a few scrapes behind the last step, and that is no silence yet
_PARTED = 9  # bins that have a first third
_AT_FIRST = 2  # bins: where one begins with the slow phase, whoever follows it later is not the reason
_BEGUN = 0.25  # of the change: what grows from nothing has a third of it there
_NOTED = 3.0  # scores below this are not kept: no false discovery control lets them pass
_AT_ONCE = 2  # one answer is read while the next is made
MANY = 64  # hosts: of more, only what can decide is read

Pairs = tuple[tuple[str, str], ...]
Key = tuple[str | None, str | None, str | None, str | None, Pairs]  # host, GPU, device, rank, aspect


@dataclass(frozen=True)
class Deviation:
    """One subject's metric that is not what it was, nor what its peers are; host None: most hosts together."""

    episode: Episode
    meaning: Meaning
    kind: Kind
    score: float
    host: str | None
    gpu: str | None = None
    device: str | None = None
    rank: str | None = None
    aspect: Pairs = ()
    pick: Pairs = ()  # labels that select it
    before: float = math.nan
    after: float = math.nan
    since: float = 0.0
    as_rate: bool = False
    whole: bool = False  # all GPUs or ports of the host together
    of: int = 1  # hosts that report the metric
    later: bool = False  # not there yet when the slow phase began

    @property
    def fleet(self) -> bool:
        """Whether it speaks of most hosts together."""
        return self.host is None

    @property
    def subject(self) -> tuple[str | None, str | None, str | None]:
        """Host, GPU, device."""
        return self.host, self.gpu, self.device

    @property
    def alike(self) -> tuple[str, str, Pairs]:
        """What deviations of several subjects have in common when they are one story."""
        return self.meaning.metric, self.kind, self.aspect


@dataclass(frozen=True)
class Sweep:
    """All deviations, strongest first, and how much was compared."""

    deviations: tuple[Deviation, ...] = ()
    tests: int = 0
    metrics: int = 0


def sweep(
    case: Case, episodes: Iterable[Episode], hosts: frozenset[str] = frozenset(), against: frozenset[str] = frozenset()
) -> Sweep:
    """Compare every recorded series in every episode.

    `hosts` limits it to some; `against` names those whose changes theirs are measured by, instead of all the others'.
    """
    telemetry = case.telemetry
    episodes = list(episodes)
    if telemetry is None or not episodes:
        return Sweep()
    wanted = hosts | against if hosts and against else _hosts_of(case)
    interval = max(case.interval, 0.5)
    if case.timeline is not None and (last := case.timeline.last_end) is not None:
        episodes = [e.until(last - interval) for e in episodes]  # the last scrapes may hold the end of the processes
    meanings = [m for m in map(meaning_of, sorted(telemetry.metrics() - telemetry.renamed)) if m.compared]
    if len(wanted) > MANY:
        meanings = _deciding(meanings, graph().never_the_reason)
    found: list[Deviation] = []
    known: dict[str, Sampling] = {}
    tests = 0
    for grid, mine in grids(episodes, interval, telemetry.range(), len(wanted)):
        there = _presence(telemetry, grid, wanted, known)
        noted: dict[str, list[Deviation]] = {e.name: [] for e in mine}
        made: dict[str, int] = {e.name: 0 for e in mine}
        for frame in _frames(telemetry, meanings, grid, coarsest_of(grid, mine), wanted, known):
            for episode in mine:
                bins = episode.bins(frame.ends, frame.grid.step)
                rows, count = _Look(frame, episode, *bins, tuple(case.hosts), against, there).all(case.topology)
                rows = [d for d in rows if not hosts or d.host in hosts]
                noted[episode.name] += rows
                made[episode.name] += count
        for episode in mine:
            rows = noted[episode.name]
            keep = stats.discoveries(np.array([d.score for d in rows]), made[episode.name])
            found += _single_or_whole([d for d, good in zip(rows, keep, strict=True) if good])
            tests += made[episode.name]
    return Sweep(tuple(sorted(found, key=order)), tests, len(meanings))


def _deciding(meanings: list[Meaning], never: frozenset[str]) -> list[Meaning]:
    """Without what never is the reason, and of the several measures of one activity in one unit the first."""
    out: dict[tuple[str, ...], Meaning] = {}
    for m in meanings:
        if m.quantity not in never:
            out.setdefault((m.quantity, m.unit) if m.layer == "activity" else (m.metric,), m)
    return list(out.values())


def order(d: Deviation) -> tuple[float, str, str, str, str, str]:
    """The strongest first."""
    return -round(d.score, 3), d.meaning.metric, d.host or "", d.gpu or "", d.device or "", str(d.aspect)


def _hosts_of(case: Case) -> frozenset[str]:
    """The job's hosts that can be believed, with the machines that lanes run on."""
    if not case.hosts:
        return frozenset()
    machines = {r.node for r in case.run.ranks if getattr(r, "node", None)} if case.run is not None else set()
    return frozenset(case.trusted) | frozenset(machines)


def _frames(
    telemetry: Telemetry,
    meanings: list[Meaning],
    grid: Grid,
    coarsest: int,
    hosts: frozenset[str],
    known: dict[str, Sampling],
) -> Iterator[Frame]:
    def read(meaning: Meaning) -> Frame | None:
        try:
            return read_frame(telemetry, meaning, grid, coarsest, hosts, known)
        except QueryError:
            return None  # two series of one name that cannot be told apart: nothing to compare

    with ThreadPoolExecutor(_AT_ONCE, "trackwalker-sweep") as pool:
        # A few at a time, in order: the answers of a large fleet do not all fit into memory at once.
        for at in range(0, len(meanings), 2 * _AT_ONCE):
            for frame in pool.map(read, meanings[at : at + 2 * _AT_ONCE]):
                if frame is not None:
                    yield frame


_Presence = tuple[float, dict[str | None, stats.Bools]]  # length of a bin; in which bins a host reported anything


def _presence(telemetry: Telemetry, grid: Grid, hosts: frozenset[str], known: dict[str, Sampling]) -> _Presence:
    """When each host reported, by what every host reports."""
    metric = next((m for m in PRESENCE if m in telemetry.metrics()), None)
    frame = read_frame(telemetry, meaning_of(metric), grid, 1, hosts, known) if metric is not None else None
    seen: dict[str | None, stats.Bools] = {}
    for place, values in zip(frame.places, frame.values, strict=True) if frame is not None else ():
        seen[place.host] = seen.get(place.host, np.zeros(len(values), dtype=bool)) | ~np.isnan(values)
    return frame.grid.step if frame is not None else grid.step, seen


@dataclass(frozen=True)
class _Rows:
    """Rows of a frame that are compared with each other: single series, or hosts as a whole."""

    values: Floats
    keys: list[Key]
    picks: list[Pairs]
    whole: bool = False


@dataclass(frozen=True)
class _Look:
    """One metric in one episode: which bins are compared, whose hosts are the job's, and who measures whom."""

    frame: Frame
    episode: Episode
    now: stats.Bools
    past: stats.Bools
    job: tuple[str, ...]
    against: frozenset[str]
    there: _Presence

    @property
    def _errors(self) -> bool:
        return self.frame.as_rate and self.frame.meaning.layer == "error"

    def all(self, topology: Topology) -> tuple[list[Deviation], int]:
        """The noteworthy rows, and how many comparisons were made."""
        frame = self.frame
        fewest = _FEWEST_SILENT if self.episode.kind == "stall" else 1
        if self.now.sum() < fewest or self.past.sum() < _FEWEST_REFERENCE:
            return [], 0
        if not len(frame.values):
            return [], frame.silent
        keys = [(owner(p, topology), p.gpu, p.device, p.rank, p.aspect) for p in frame.places]
        singles = _Rows(frame.values, keys, [pick_of(labels) for labels in frame.labels])
        if self._errors:
            singles = replace(singles, values=np.nan_to_num(singles.values))  # a counter not there yet is at zero
        tables = [singles, *_whole_hosts(singles, frame)]
        out = [d for rows in tables for d in self._changed(rows)]
        out += [*self._fleet(tables[-1]), *self._irregular(singles)]
        return out, sum(len(t.values) for t in tables) + frame.silent

    def _changed(self, rows: _Rows) -> Iterator[Deviation]:
        frame = self.frame
        peers, who, _ = _groups(rows, frozenset(self.job))
        yardstick = np.array([key[0] in self.against for key in rows.keys]) if self.against else None
        hosts = len(set(who.tolist()))
        quiet = round(frame.silent * hosts / len(frame.values))  # hosts none of whose counters moved
        result = self._test(rows.values, peers, who, quiet if rows.whole else frame.silent, yardstick)
        noted = np.abs(result.score) >= _NOTED
        if self._errors and noted.any():
            noted &= (result.score < 0) | (result.after > stats.weather(rows.values, self.now, self.past, who))
        early, late, first = self._parts(rows.values, result)
        for i in np.flatnonzero(noted & (early >= _BEGUN) & (late >= _BEGUN)).tolist():
            made = self._made(rows.keys[i], rows.picks[i], result, i, rows.whole, hosts + quiet)
            yield replace(made, later=bool(first[i] < _BEGUN))

    def _parts(self, values: Floats, result: stats.Changes) -> tuple[Floats, Floats, Floats]:
        """How much of its change each gauge shows early and late in a slow phase, and at its very beginning.

        What comes later did not make it slow, nor did what is over long before it is.
        """
        now, moved = np.flatnonzero(self.now), result.after - result.before
        if self.episode.kind != "slow" or len(self.episode.window) > 1 or self.frame.as_rate or len(now) < _PARTED:
            whole = np.ones(len(values))
            return whole, whole, whole
        with np.errstate(invalid="ignore", divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a part without samples nothing is known
            parts = (now[: len(now) // 3], now[-(len(now) // 3) :], now[:_AT_FIRST])
            shown = ((np.nanmean(values[:, at], axis=1) - result.before) / moved for at in parts)
            early, late, first = (np.where(np.isfinite(share), share, 1.0) for share in shown)
        return early, late, first

    def _fleet(self, rows: _Rows) -> Iterator[Deviation]:
        """What most hosts did together: invisible to a comparison with peers, but the clue to who waits for whom."""
        _, who, members = _groups(rows, frozenset(self.job))
        for group in members.values():
            hosts, values = len(set(who[group].tolist())), rows.values[group]
            if hosts < stats.FEWEST_PEERS or 2 * len(group) < len(group) + self.frame.silent:
                continue
            with np.errstate(invalid="ignore"):
                middle = np.nanmedian(np.where(np.isnan(values).all(axis=0), 0.0, values), axis=0)
            alone = np.zeros(1, dtype=np.intp)
            result = self._test(middle[None, :], alone, alone, 0)
            if abs(result.score[0]) >= _NOTED:
                key = (None, None, None, None, rows.keys[group[0]][4])
                yield self._made(key, key[4], result, 0, True, hosts)

    def _test(
        self, values: Floats, peers: stats.Ints, who: stats.Ints, silent: int, yardstick: stats.Bools | None = None
    ) -> stats.Changes:
        frame = self.frame
        return stats.changes(
            values, self.now, self.past, peers, who, counter_s=frame.grid.step if frame.as_rate else 0.0,
            quantum=0.0 if frame.as_rate else _rounding(values, frame.meaning),
            relative=frame.meaning.layer == "activity", silent=silent, yardstick=yardstick,
        )  # fmt: skip

    def _irregular(self, rows: _Rows) -> Iterator[Deviation]:
        """Series that vanish beside their siblings, stand still, or begin anew."""
        frame, episode, hosts = self.frame, self.episode, [k[0] for k in rows.keys]
        whose = {h: i for i, h in enumerate(dict.fromkeys(hosts))}
        index = np.array([whose[h] for h in hosts])
        seen = ~np.isnan(frame.values)
        present = np.zeros((len(whose), frame.values.shape[1]), dtype=bool)
        np.logical_or.at(present, index, seen)
        if episode.stops:  # all cards of a host at once: while the run goes on an exporter's doing, at its end a reason
            present |= [self._reported(h) for h in whose]
        absent = stats.vanished(frame.values, self.now, self.past, present[index], for_good=episode.stops)
        scores: list[tuple[Kind, Floats]] = [("absent", absent)]
        if not frame.as_rate and frame.meaning.kind == "gauge":
            still = stats.frozen(frame.values, self.now, self.past)
            if 2 * (still > 0).sum() < len(still):  # where most stand still nothing moves, and no sensor is at fault
                scores.append(("frozen", still))
        blank = stats.Changes(*(np.full(len(hosts), math.nan) for _ in range(5)))
        odd = [(kind, i, float(score[i])) for kind, score in scores for i in np.flatnonzero(score >= _NOTED).tolist()]
        inside = [(i, at) for i, at in frame.restarts.items() if any(s.start <= at <= s.end for s in episode.window)]
        for kind, i, score_i in [*odd, *(("restarted", i, stats.LEAST_SCORE + 1.0) for i, _ in inside)]:
            made = self._made(rows.keys[i], rows.picks[i], blank, i, False, len(whose))
            last = float(frame.ends[np.flatnonzero(seen[i])[-1]]) if seen[i].any() else episode.since
            since = {"absent": max(episode.since, last), "restarted": dict(inside).get(i, episode.since)}
            yield replace(made, kind=kind, score=score_i, since=since.get(kind, episode.since))

    def _reported(self, host: str | None) -> stats.Bools:
        """In which bins of the frame, which may be longer or shorter ones, a host reported anything."""
        step, known = self.there
        mine = known.get(host, np.zeros(1, dtype=bool))
        at = np.ceil((self.frame.ends - self.frame.grid.start) / step - 1e-6).astype(int) - 1
        out: stats.Bools = mine[np.minimum(at, len(mine) - 1)]
        return out

    def _made(self, key: Key, pick: Pairs, result: stats.Changes, i: int, whole: bool, hosts: int) -> Deviation:
        host, gpu, device, rank, aspect = key
        alone = hosts == 1 < len(self.job) and host == self.job[0]
        if alone and not (gpu or device or self.frame.meaning.known or self._errors):
            host, whole = None, True  # what the first host alone reports, which also coordinates, is about the job
        meaning, score = meaning_of(self.frame.meaning.metric, aspect), float(result.score[i])
        return Deviation(
            self.episode, meaning, "rose" if score > 0 else "fell", abs(score),
            host, gpu, device, rank, aspect, pick, float(result.before[i]), float(result.after[i]),
            self.episode.since, self.frame.as_rate, whole, hosts,
        )  # fmt: skip


def owner(place: Place, topology: Topology) -> str | None:
    """Whose series it is: a GPU's is its lane's."""
    if place.host is None or place.gpu is None or place.host not in topology.machines:
        return place.host
    return topology.lane_of(place.host, place.gpu)


def _whole_hosts(rows: _Rows, frame: Frame) -> list[_Rows]:
    """Each host's GPUs or ports together, where hosts have several."""
    members: dict[tuple[str | None, Pairs], list[int]] = {}
    for i, (host, _, _, _, aspect) in enumerate(rows.keys):
        members.setdefault((host, aspect), []).append(i)
    if all(len(m) < 2 for m in members.values()):
        return []
    keys = sorted(members, key=str)
    order = [i for k in keys for i in members[k]]
    starts = np.cumsum([0] + [len(members[k]) for k in keys[:-1]])
    seen = ~np.isnan(rows.values[order])
    total = np.add.reduceat(np.nan_to_num(rows.values[order]), starts, axis=0)
    count = np.add.reduceat(seen.astype(float), starts, axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(count > 0, total if frame.as_rate else total / count, np.nan)
    names = ("host", "instance", *(name for name, _ in keys[0][1]))
    picks = [tuple(p for p in rows.picks[members[k][0]] if p[0] in names) for k in keys]
    return [_Rows(values, [(host, None, None, None, aspect) for host, aspect in keys], picks, True)]


def _groups(rows: _Rows, job: frozenset[str]) -> tuple[stats.Ints, stats.Ints, dict[int, list[int]]]:
    """Peer group and host of each row; a machine is no peer of its ranks."""
    groups: dict[tuple[bool, Pairs], int] = {}
    hosts: dict[str | None, int] = {}
    peers, who = [], []
    for host, _, _, _, aspect in rows.keys:
        peers.append(groups.setdefault((host in job, aspect), len(groups)))
        who.append(hosts.setdefault(host, len(hosts)))
    members: dict[int, list[int]] = {}
    for i, group in enumerate(peers):
        members.setdefault(group, []).append(i)
    return np.array(peers), np.array(who), members


def _rounding(values: Floats, meaning: Meaning) -> float:
    """The smallest change a gauge can show; one of somebody else's whose level is finer than that has a finer one."""
    usual = quantum(meaning.unit or meaning.kind)
    if meaning.known or not usual or np.isnan(values).all():
        return usual
    return min(usual, float(np.nanmedian(np.abs(values)))) or usual


def _single_or_whole(found: list[Deviation]) -> list[Deviation]:
    """Of a host and its GPUs or ports that deviate alike, the one that says it best."""
    parts: dict[tuple[object, ...], list[Deviation]] = {}
    for d in found:
        if not d.whole and d.host is not None:
            parts.setdefault((d.host, *d.alike), []).append(d)
    whole: dict[tuple[object, ...], Deviation] = {
        (d.host, *d.alike): d for d in found if d.whole and d.host is not None
    }
    out = [d for d in found if d.host is None]
    for key in sorted({*parts, *whole}, key=str):
        single, all_of_it = parts.get(key, []), whole.get(key)
        if all_of_it is None or (len(single) == 1 and single[0].gpu is None and single[0].device is None):
            out += single
        elif not single or len(single) > 2:
            out.append(all_of_it)
        else:
            out += single
    return out
