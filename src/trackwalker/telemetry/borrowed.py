"""What a cluster's own metric store has about a job, as a database of ours: read once, bounded, then closed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError
from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.client import Floats, Labels
from trackwalker.telemetry.foreign import Maps, Rule, host_in, translated
from trackwalker.telemetry.remote import Cost, RemoteStore

HOSTS_AT_ONCE = 100  # in one question: a regular expression of a thousand names is slow to match
_LOOK_S = 600.0


@dataclass
class Borrowed:
    """What was found, at which interval, and what it cost."""

    cost: Cost
    exporters: dict[str, int] = field(default_factory=dict)  # exporter -> metrics of it that were read
    interval: float = 0.0
    series: int = 0
    hosts: set[str] = field(default_factory=set)


def borrow(
    store: RemoteStore, maps: Maps, hosts: Sequence[str], since: float, until: float, into: Path,
    say: Callable[[str], None] = lambda text: None,
) -> Borrowed:  # fmt: skip
    """Read everything that a map knows about these hosts in a span, and write it down in our own names."""
    out = Borrowed(store.cost)
    names = store.names(since, until)
    rules = maps.known(names)
    if not rules:
        raise EvidenceError("the store has no metric that a map knows: trackwalker tsdb doctor says what it has")
    into.mkdir(parents=True, exist_ok=True)
    writer = BlockWriter(into)
    for rule in rules:
        say(f"{rule.name} as {rule.to}")
        _read(store, maps, rule, list(hosts), since, until, writer, out)
    writer.close()
    if not out.series:
        asked = ", ".join(list(hosts)[:3])
        raise EvidenceError(f"the store has no sample of {asked}… in that time: check --hosts, --since and --until")
    return out


def _read(
    store: RemoteStore, maps: Maps, rule: Rule, hosts: list[str], since: float, until: float, writer: BlockWriter,
    out: Borrowed,
) -> None:  # fmt: skip
    label = _host_label(store, rule, until, since)
    if not label:
        return
    selectors = [selector(rule, label, hosts[at : at + HOSTS_AT_ONCE]) for at in range(0, len(hosts), HOSTS_AT_ONCE)]
    window = min(_LOOK_S, until - since)
    count = every = 0.0
    for each in selectors:
        # In the middle and at the end: a host that is gone by then was there before.
        found = max(store.count(each, at, window) for at in (0.5 * (since + until + window), until))
        count, every = count + found[0], max(every, found[1])
    if not count:
        return
    rows = store.raw(selectors, since, until, int(count), every)
    written = _write(writer, maps, rule, rows, set(hosts), out)
    if written:
        out.exporters[rule.exporter] = out.exporters.get(rule.exporter, 0) + 1
        out.series += written
        out.interval = max(out.interval, every)


def _host_label(store: RemoteStore, rule: Rule, until: float, since: float) -> str:
    """Which of the labels that can name a host this store uses."""
    window = min(3600.0, until - since)
    for name in rule.host:
        query = f'count(count_over_time({rule.name}{{{name}!=""}}[{window:.0f}s]))'
        if any(value for at in (until, 0.5 * (since + until + window)) for _, value in store.instant(query, at)):
            return name
    return ""


def selector(rule: Rule, label: str, hosts: Sequence[str]) -> str:
    """The series of a metric on some hosts, with or without a domain and a port."""
    wanted = "|".join(re.escape(host).replace("\\-", "-") for host in hosts)
    only = "".join(f',{name}=~"{value}"' for name, value in rule.only.items())
    pattern = f"({wanted})(\\..*)?(:[0-9]+)?".replace("\\", "\\\\")
    return f'{rule.name}{{{label}=~"{pattern}"{only}}}'


def _write(
    writer: BlockWriter, maps: Maps, rule: Rule, rows: list[tuple[Labels, Floats, Floats]], hosts: set[str],
    out: Borrowed,
) -> int:  # fmt: skip
    whole: dict[tuple[tuple[str, str], ...], list[tuple[Floats, Floats]]] = defaultdict(list)
    for theirs, times, values in rows:
        whole[tuple(sorted(theirs.items()))].append((times, values))
    ours: dict[tuple[tuple[str, str], ...], tuple[Floats, Floats]] = {}
    for key, parts in whole.items():
        theirs = dict(key)
        host = host_in(theirs, rule.host)
        if host not in hosts:
            continue
        out.hosts.add(host)
        times, values = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.argsort(times, kind="stable")
        sound = maps.clean(values[order])
        times, values = times[order][sound], values[order][sound]
        if not len(times):
            continue
        for told, at, value in translated(rule, theirs, times, values):
            name = labels(rule.to, **{"host": host, **told} if rule.to != "up" else told)
            # Two pods of one exporter on one host, or a restart under another label: the longer one counts.
            if name not in ours or len(at) > len(ours[name][0]):
                ours[name] = (at, value)
    together: dict[bytes, list[tuple[tuple[tuple[str, str], ...], Floats, Floats]]] = defaultdict(list)
    for name, (at, value) in ours.items():
        stamps = np.rint(at * 1000)
        together[stamps.tobytes()].append((name, stamps, value))
    for group in together.values():
        writer.add([name for name, _, _ in group], group[0][1].astype(np.int64), np.array([v for _, _, v in group]))
    return len(ours)
