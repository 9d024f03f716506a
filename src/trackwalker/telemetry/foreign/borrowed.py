"""What a cluster's own metric store has about a job, as a database of ours: read once, bounded, then closed."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trackwalker.errors import EvidenceError
from trackwalker.job.sharing import share_out
from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.client import Floats, Labels, Telemetry
from trackwalker.telemetry.foreign.names import OWN, Maps, Rule, host_in, load_maps, translated
from trackwalker.telemetry.foreign.remote import AT_ONCE, MOST_SAMPLES, Access, Cost, RemoteStore
from trackwalker.telemetry.matrix import read_quickly
from trackwalker.telemetry.meaning import meaning_of
from trackwalker.telemetry.xor import encode_quickly

Row = tuple[Labels, Floats, Floats]
HOSTS_AT_ONCE = 100  # in one question: a regular expression of a thousand names is slow to match
MANY_HOSTS = 200  # from here on other processes help: each takes a second to begin
_SEED = 0x0D15EA5E  # of the block's name: none that a recorder or the lab would draw
_LOOK_S = 600.0
_CHUNK = 240  # samples: at two minutes between them eight hours
_RECORDING = ("job:", "up")  # sums that our rules made, and what says no more than that somebody was asked


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
    rules += own_rules(names, maps)
    if not rules:
        raise EvidenceError("the store has no metric that a map knows: trackwalker tsdb doctor says what it has")
    into.mkdir(parents=True, exist_ok=True)
    asked = list(hosts)
    if len(asked) <= MANY_HOSTS:
        _read_rules(store, maps, rules, asked, (since, until), into, 0, out, say)
    else:
        # Reading and writing down is most of the work: by as many processes as there are CPUs and may ask at once.
        readers = min(AT_ONCE, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else AT_ONCE)
        shares = [Share(store.access, maps, rules[n::readers], asked, (since, until), into, n, readers)
                  for n in range(readers)]  # fmt: skip
        for part in share_out(read_share, shares):
            _add(out, part)
    if not out.series:
        asked_of = ", ".join(asked[:3])
        raise EvidenceError(f"the store has no sample of {asked_of}… in that time: check --hosts, --since and --until")
    return out


def own_rules(names: frozenset[str], maps: Maps) -> list[Rule]:
    """Rules for what stands in a store under our own names, sent there by our recorders: as it is, labels and all."""
    told = {rule.to for rule in maps.known(names)} | {rule.name for rule in maps.rules}
    ours = (n for n in sorted(names - told) if not n.startswith(_RECORDING) and meaning_of(n).known)
    return [Rule(n, n, ("host", "instance"), {}, f"trackwalker's {n.partition('_')[0]}_", derive=OWN) for n in ours]


@dataclass(frozen=True)
class Share:
    """One process's part of the metrics."""

    access: Access
    maps: Maps
    rules: list[Rule]
    hosts: list[str]
    span: tuple[float, float]
    into: Path
    number: int
    of: int


def read_share(share: Share) -> Borrowed:
    """Read one part and write it down."""
    encode_quickly()
    read_quickly()
    store = RemoteStore(share.access, AT_ONCE // share.of, MOST_SAMPLES // share.of)
    out = Borrowed(store.cost)
    try:
        _read_rules(store, share.maps, share.rules, share.hosts, share.span, share.into, share.number, out, _silent)
    finally:
        store.close()
    return out


def _silent(text: str) -> None:
    """Nobody listens."""


def _add(out: Borrowed, part: Borrowed) -> None:
    out.cost.add(part.cost)
    for name, count in part.exporters.items():
        out.exporters[name] = out.exporters.get(name, 0) + count
    out.interval, out.series = max(out.interval, part.interval), out.series + part.series
    out.hosts |= part.hosts


def _read_rules(
    store: RemoteStore, maps: Maps, rules: list[Rule], hosts: list[str], span: tuple[float, float], into: Path,
    number: int, out: Borrowed, say: Callable[[str], None],
) -> None:  # fmt: skip
    # One block: each costs an index of all series. Long chunks: each costs as much as a hundred samples.
    writer = BlockWriter(into, number, block_ms=1 << 50, chunk=_CHUNK)
    labels_of: dict[str, str] = {}  # exporter -> the label that names its hosts in this store
    # While one metric is written down the next one is on its way; the store has one metric at a time to look for.
    with ThreadPoolExecutor(1) as ahead:
        coming = [ahead.submit(_fetch, store, rule, hosts, *span, labels_of) for rule in rules[:1]]
        for at, rule in enumerate(rules):
            say(f"{rule.name} as {rule.to}")
            rows, every = coming.pop().result()
            coming += [ahead.submit(_fetch, store, after, hosts, *span, labels_of) for after in rules[at + 1 :][:1]]
            written = write_rows(writer, maps, rule, rows, set(hosts), out)
            if written:
                out.exporters[rule.exporter] = out.exporters.get(rule.exporter, 0) + 1
                out.series += written
                out.interval = max(out.interval, every)
    writer.close()


def _fetch(
    store: RemoteStore, rule: Rule, hosts: list[str], since: float, until: float, labels_of: dict[str, str]
) -> tuple[list[Row], float]:
    """The samples of one metric, and how far apart they are; nothing where these hosts have none."""
    label = labels_of.get(rule.exporter) or _host_label(store, rule, until, since)
    if not label:
        return [], 0.0
    labels_of[rule.exporter] = label
    selectors = [selector(rule, label, hosts[at : at + HOSTS_AT_ONCE]) for at in range(0, len(hosts), HOSTS_AT_ONCE)]
    window = min(_LOOK_S, until - since)
    for each in selectors:
        # In the middle and at the end: a host that is gone by then was there before. Other hosts are like these.
        count, every = max(store.count(each, at, window) for at in (0.5 * (since + until + window), until))
        if count:
            return store.raw(selectors, since, until, count * len(selectors), every)
    return [], 0.0


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


def write_rows(
    writer: BlockWriter, maps: Maps, rule: Rule, rows: list[Row], hosts: set[str] | None, out: Borrowed
) -> int:
    """One metric in our names, of these hosts or of all; returns how many series it became."""
    whole: dict[tuple[tuple[str, str], ...], list[tuple[Floats, Floats]]] = defaultdict(list)
    for theirs, times, values in rows:
        whole[tuple(sorted(theirs.items()))].append((times, values))
    ours: dict[tuple[tuple[str, str], ...], tuple[Floats, Floats]] = {}
    for key, parts in whole.items():
        theirs = dict(key)
        host = host_in(theirs, rule.host)
        if not host or (hosts is not None and host not in hosts):
            continue
        out.hosts.add(host)
        times, values = parts[0] if len(parts) == 1 else _joined(parts)
        if rule.derive != OWN and not maps.all_sound(values):
            sound = maps.clean(values)
            times, values = times[sound], values[sound]
        if not len(times):
            continue
        for told, at, value in translated(rule, theirs, times, values):
            own = rule.derive == OWN and "host" not in theirs  # Ray's are known by their instance alone
            name = labels(rule.to, **told if own or rule.to == "up" else {"host": host, **told})
            if name in ours and rule.derive == "label":  # a state that is a label changes from series to series
                ours[name] = _worst([ours[name], (at, value)])
            # Two pods of one exporter on one host, or a restart under another label: the longer one counts.
            elif name not in ours or len(at) > len(ours[name][0]):
                ours[name] = (at, value)
    together: dict[bytes, list[tuple[tuple[str, str], ...]]] = defaultdict(list)
    for name, (at, _) in ours.items():
        together[at.tobytes()].append(name)
    for moments, names in together.items():
        stamps = np.rint(np.frombuffer(moments) * 1000).astype(np.int64)
        writer.add(names, stamps, np.array([ours[name][1] for name in names]))
    return len(ours)


def _joined(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """The pieces of one series, in the order of time."""
    times, values = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _worst(parts: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Flags one after the other; where two speak of the same moment (a node in two partitions) the lower one counts."""
    times, values = _joined(parts)
    moments, first = np.unique(times, return_index=True)
    return moments, np.minimum.reduceat(values, first)


def untold(metrics: frozenset[str]) -> list[Rule]:
    """The rules for metrics of others in a recorded database that are not there in our names.

    A quantity is what it measures, not what its exporter calls it: a diagnosis asks for our names wherever it lies.
    """
    return [replace(r, host=("host", *r.host)) for r in load_maps().known(metrics) if r.to not in metrics]


def write_ours(telemetry: Telemetry, rules: list[Rule], into: Path) -> frozenset[str]:
    """Write these as a block of a folder; returns the names, theirs, of which there is one."""
    writer, maps, begin_end = BlockWriter(into, _SEED, block_ms=1 << 50), load_maps(), telemetry.range()
    done = set()
    for rule in rules:
        only = ",".join(f'{name}=~"{value}"' for name, value in rule.only.items())
        rows = telemetry.raw(f"{rule.name}{{{only}}}", *begin_end)
        if write_rows(writer, maps, rule, rows, None, Borrowed(Cost())):
            done.add(rule.name)
    into.mkdir(parents=True, exist_ok=True)
    writer.close()
    return frozenset(done)
