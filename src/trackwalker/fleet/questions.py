"""What people ask about many jobs: what cost most, which hosts are in it again and again, how goodput went."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trackwalker.fleet.rows import TROUBLED
from trackwalker.fleet.store import Store
from trackwalker.launch.ledger import wilson

DAY_S = 86400.0
_WHEN = "coalesce(started, changed, 0)"
_TROUBLED = f"badge_tone IN {TROUBLED}"
# What stands before the last number of a host's name, where there is more than one: r12-n03 is in r12.
_RACK = "regexp_replace(regexp_extract(host, '^(.*[0-9][^0-9]+)[0-9]+[^0-9]*$', 1), '[^0-9]+$', '')"
_MOST = 25


@dataclass(frozen=True)
class Spent:
    """What jobs that have something in common held and lost; None where no job says how many GPUs it held."""

    name: str  # empty: it is not known
    jobs: int
    troubled: int
    gpu_hours: float | None
    lost_gpu_hours: float | None
    unknown: int = 0  # jobs among the troubled whose loss is not known

    def money(self, price: float | None) -> float | None:
        """What was lost, priced."""
        return None if price is None or self.lost_gpu_hours is None else price * self.lost_gpu_hours


@dataclass(frozen=True)
class Flaky:
    """A host by the share of its jobs in which a verdict or a log names it, with a 95 % interval."""

    host: str
    named: int
    ran: int
    low: float
    high: float
    usual: float  # the share of all other hosts together
    causes: tuple[str, ...]
    lost_gpu_hours: float | None
    jobs: tuple[str, ...] = ()  # that name it, those that lost most first

    @property
    def stands_out(self) -> bool:
        """Whether chance is a poor explanation: even the low end of its interval is above what is usual."""
        return self.named >= 2 and self.low > self.usual


@dataclass(frozen=True)
class Day:
    """Goodput of the jobs that began on a day, weighed by node-hours."""

    t: float
    jobs: int
    troubled: int
    gpu_hours: float | None
    goodput: float | None
    lost_gpu_hours: float | None


@dataclass(frozen=True)
class Whole:
    """The fleet in one line."""

    jobs: int
    troubled: int
    hosts: int
    gpu_hours: float | None
    lost_gpu_hours: float | None
    unknown: int  # troubled jobs whose loss is not known
    burning: float | None  # GPUs that bring nothing now
    silent: int = 0  # jobs that do not say how many GPUs they held


def whole(store: Store, since: float = 0.0) -> Whole:
    """Everything together."""
    [row] = store.ask(
        f"SELECT count(*), count(*) FILTER ({_TROUBLED}), sum(gpu_hours), sum(lost_gpu_hours), "  # noqa: S608
        f"count(*) FILTER ({_TROUBLED} AND lost_gpu_hours IS NULL), sum(burning), count(*) FILTER (gpu_hours IS NULL) "
        f"FROM jobs WHERE {_WHEN} >= ?",
        [since],
    )
    [hosts] = store.ask(
        f"SELECT count(DISTINCT host) FROM ran JOIN jobs ON ran.job = jobs.id WHERE {_WHEN} >= ?",  # noqa: S608
        [since],
    )
    return Whole(row[0], row[1], hosts[0], *row[2:])


def by_model(store: Store, since: float = 0.0, most: int = _MOST) -> list[Spent]:
    """Which models cost most."""
    return _spent(store, "model", "jobs", since, most)


def by_cause(store: Store, since: float = 0.0, most: int = _MOST) -> list[Spent]:
    """Which causes cost most, by the verdict, or by the log where there is none; that none is known is one of them."""
    return _spent(store, "cause", "jobs", since, most, _TROUBLED)


def by_host(store: Store, since: float = 0.0, most: int = _MOST) -> list[Spent]:
    """Which hosts cost most: what a job lost is shared by the hosts that are named as its culprits."""
    return _by_place(store, "host", since, most)


def by_rack(store: Store, since: float = 0.0, most: int = _MOST) -> list[Spent]:
    """The same by rack, where the hosts' names tell it."""
    return _by_place(store, _RACK, since, most)


def flaky(store: Store, since: float = 0.0, most: int = 50) -> list[Flaky]:
    """Hosts that were named at least once, the surest first: by their interval, as one of one says little."""
    found = store.ask(
        f"""
        WITH recent AS (SELECT id, cause, lost_gpu_hours, {_TROUBLED} AS bad FROM jobs WHERE {_WHEN} >= $since),
        each AS (SELECT ran.host, count(*) AS n FROM ran JOIN recent ON ran.job = recent.id GROUP BY ran.host),
        hit AS (
          SELECT a.host, count(*) AS named, list_distinct(list(r.cause)) AS causes,
                 sum(r.lost_gpu_hours / h.hosts) AS lost,
                 list(r.id ORDER BY r.lost_gpu_hours DESC NULLS LAST, r.id) AS jobs
          FROM culprits a JOIN recent r ON a.job = r.id
          JOIN (SELECT job, count(*) AS hosts FROM culprits GROUP BY job) h ON h.job = a.job
          WHERE r.bad GROUP BY a.host)
        SELECT hit.host, named, greatest(coalesce(each.n, 0), named), causes, lost, jobs,
               sum(named) OVER (), (SELECT coalesce(sum(n), 0) FROM each)
        FROM hit LEFT JOIN each ON each.host = hit.host
        """,  # noqa: S608 - our own words
        {"since": since},
    )
    told = []
    for host, named, ran, causes, lost, jobs, all_named, all_ran in found:
        low, high = wilson(float(named), float(ran))
        rest = max(float(all_ran) - ran, 0.0)
        usual = (float(all_named) - named) / rest if rest else 0.0
        why = tuple(sorted(filter(None, causes)))
        told.append(Flaky(host, named, ran, low, high, min(usual, 1.0), why, lost, tuple(jobs)))
    return sorted(told, key=lambda each: (not each.stands_out, -each.low, -each.named, each.host))[:most]


def days(store: Store, since: float = 0.0) -> list[Day]:
    """Goodput day by day, the oldest first."""
    held = "greatest(ended - started, 0) * coalesce(nodes, 1)"  # node-seconds: fewer jobs say how many GPUs they held
    found = store.ask(
        f"""
        SELECT floor({_WHEN} / {DAY_S}) * {DAY_S}, count(*), count(*) FILTER ({_TROUBLED}), sum(gpu_hours),
               sum(goodput * ({held})) / nullif(sum({held}) FILTER (goodput IS NOT NULL), 0), sum(lost_gpu_hours)
        FROM jobs WHERE {_WHEN} >= ? AND {_WHEN} > 0 GROUP BY 1 ORDER BY 1
        """,  # noqa: S608 - our own words
        [since],
    )
    return [Day(*row) for row in found]


def ran_since(store: Store, since: float) -> dict[str, dict[str, float]]:
    """Which jobs ran on which hosts, and when."""
    ran: dict[str, dict[str, float]] = {}
    sql = f"SELECT host, job, {_WHEN} FROM ran JOIN jobs ON ran.job = jobs.id WHERE {_WHEN} >= ?"  # noqa: S608
    for host, job, at in store.ask(sql, [since]):
        ran.setdefault(host, {})[job] = at
    return ran


def of_host(store: Store, host: str, most: int = 200) -> tuple[list[str], int, list[str]]:
    """The newest jobs that ran on a host, how many did in all, and those whose culprit it is."""
    sql = "SELECT {what} FROM {table} JOIN jobs ON {table}.job = jobs.id WHERE host = ?"
    order = f"ORDER BY {_WHEN} DESC, id DESC LIMIT {int(most)}"
    ran = store.ask(f"{sql.format(what='id', table='ran')} {order}", [host])
    [(count,)] = store.ask(sql.format(what="count(*)", table="ran"), [host])
    named = store.ask(f"{sql.format(what='id', table='culprits')} AND {_TROUBLED} {order}", [host])
    return [row[0] for row in ran], count, [row[0] for row in named]


def rack_of(host: str) -> str:
    """What stands before the last number of a name that has more than one; empty where there is only one."""
    match = re.fullmatch(r"(.*[0-9])[^0-9]+[0-9]+[^0-9]*", host)
    return match[1] if match else ""


def _spent(store: Store, key: str, table: str, since: float, most: int, also: str = "true") -> list[Spent]:
    found = store.ask(
        f"SELECT {key}, count(*), count(*) FILTER ({_TROUBLED}), sum(gpu_hours), sum(lost_gpu_hours), "  # noqa: S608
        f"count(*) FILTER ({_TROUBLED} AND lost_gpu_hours IS NULL) FROM {table} WHERE {_WHEN} >= ? AND {also} "
        f"GROUP BY 1 ORDER BY sum(lost_gpu_hours) DESC NULLS LAST, count(*) FILTER ({_TROUBLED}) DESC, 1 "
        f"LIMIT {int(most)}",
        [since],
    )
    return [_row(row) for row in found]


def _by_place(store: Store, key: str, since: float, most: int) -> list[Spent]:
    """A loss is booked once, however many hosts share it; what a host held is its share of the jobs it ran in."""
    found = store.ask(
        f"""
        WITH recent AS (SELECT * FROM jobs WHERE {_WHEN} >= $since),
        places AS (  -- of each host once: a name is taken apart a thousand times, not a million
          SELECT host, {key} AS place FROM (SELECT host FROM ran UNION SELECT host FROM culprits)),
        share AS (SELECT job, count(*) AS hosts FROM culprits GROUP BY job),
        lost AS (
          SELECT place, count(DISTINCT r.id) AS troubled, sum(r.lost_gpu_hours / s.hosts) AS lost,
                 count(DISTINCT r.id) FILTER (r.lost_gpu_hours IS NULL) AS unknown
          FROM culprits JOIN recent r ON culprits.job = r.id JOIN share s ON s.job = r.id JOIN places USING (host)
          WHERE {_TROUBLED} GROUP BY 1),
        held AS (
          SELECT place, count(DISTINCT r.id) AS jobs, sum(r.gpu_hours / greatest(len(r.ran_on), 1)) AS hours
          FROM ran JOIN recent r ON ran.job = r.id JOIN places USING (host)
          WHERE place IN (SELECT place FROM lost) GROUP BY 1)
        SELECT lost.place, coalesce(held.jobs, lost.troubled), lost.troubled, held.hours, lost.lost, lost.unknown
        FROM lost LEFT JOIN held ON held.place = lost.place WHERE lost.place <> ''
        ORDER BY lost.lost DESC NULLS LAST, lost.troubled DESC, 1 LIMIT {int(most)}
        """,  # noqa: S608 - our own words
        {"since": since},
    )
    return [_row(row) for row in found]


def _row(row: tuple[Any, ...]) -> Spent:
    name, jobs, troubled, hours, lost, unknown = row
    return Spent(name or "", jobs, troubled, hours, lost, unknown)
