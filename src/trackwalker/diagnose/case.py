"""Everything known about one job, opened once for all questions."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.errors import EvidenceError, MissingToolError
from trackwalker.job.dialects import by_name
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord
from trackwalker.logs.facts import LogFacts
from trackwalker.record.clock import from_glog
from trackwalker.record.line_clock import put_on_the_clock
from trackwalker.record.masks import Masks
from trackwalker.record.projection import all_done, asked_steps
from trackwalker.record.read import Record, cancelled_at
from trackwalker.record.stall import Silence, Stall, find_stall, lag_of, limit_of, pauses_due
from trackwalker.record.steps import EVENTS
from trackwalker.record.timeline import Timeline, by_time, from_scalars, mark, timeline_of
from trackwalker.record.topology import Topology, make_topology
from trackwalker.telemetry.client import Sample, host_of
from trackwalker.telemetry.coverage import PRESENCE, scrape_interval
from trackwalker.telemetry.quality import Check, check_quality
from trackwalker.telemetry.store import Telemetry, open_database

_SCRAPES = 3
_SILENT_S, _LOOKED_S = 30.0, 900.0  # of one host while the others report; how far back from the end it is looked for
_BUSY = ("hw_gpu_utilization_percent", "ray_node_gpus_utilization", "hw_gpu_power_watts")
_SOONER = 3.0  # times: so much earlier is a silence a stall where something else says that the work has ended
_AT_REST = 0.5  # of what the devices did or held before: nothing is left but what they do without work
_HELD = ("hw_gpu_vram_used_bytes", "ray_node_gram_used")
# What a card is, by the numbers of its board and the names that exporters repeat on each series.
_KIND_NAMED = frozenset({"hw_gpu_info", "hw_gpu_power_watts", "ray_node_gpus_utilization"})
_KINDS = _KIND_NAMED | {"hw_gpu_vram_total_bytes", "hw_gpu_clock_max_mhz", "hw_gpu_power_limit_default_watts"}
_KIND_WORDS = ("name", "modelName", "model", "card_model", "product", "product_name", "GpuDeviceName", "gpu_model")
_TEARDOWN_S = 120.0  # Slurm kills after 30 s, waits 60 s for what cannot be killed; then containers are removed
Opener = Callable[[Path], AbstractContextManager[Telemetry]]  # a server keeps databases open between questions


@dataclass
class Case:
    """One job as evidence: its log, its journals, its metrics, and what is wrong with them."""

    job: Job
    log: LogFacts
    run: RunRecord | None
    events: list[dict[str, Any]]
    telemetry: Telemetry | None
    timeline: Timeline | None
    hosts: list[str]  # by rank, as far as the log tells
    start: float | None
    end: float | None  # last moment the evidence speaks of
    live: bool
    damage: list[str] = field(default_factory=list)
    bytes_read: int = 0
    checks: list[Check] = field(default_factory=list)  # is the recording itself to be trusted?
    seen: Triage | None = None

    @cached_property
    def topology(self) -> Topology:
        """Which rank reports under which name, on which machine, with which GPUs."""
        ranks = self.run.ranks if self.run is not None else []
        known = [] if ranks else self._labels("hw_rank_info")
        return make_topology(ranks, self.log.hosts or self.hosts, known, self._labels("hw_gpu_rank_info"))

    def _labels(self, metric: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self._last(metric)]

    def _last(self, metric: str) -> list[Sample]:
        if self.telemetry is None or metric not in self.telemetry.metrics():
            return []
        begin, end = self.telemetry.range()
        for window in (min(600.0, end - begin), end - begin):  # of a large cluster the last minutes are enough
            if found := self.telemetry.instant(f"last_over_time({metric}[{max(1, round(window))}s])", end):
                return found
        return []

    @cached_property
    def kinds(self) -> dict[str, str]:
        """What cards each host has, where the job has several kinds: others have other clocks, limits and widths."""
        out: dict[str, str] = {}
        for metric in sorted(_KINDS):
            told: dict[str, set[str]] = {}
            for sample in self._last(metric):
                named = [w for n in _KIND_WORDS if (w := sample.labels.get(n))] if metric in _KIND_NAMED else None
                told.setdefault(host_of(sample.labels) or "", set()).update(
                    [f"{sample.value:.2g}"] if named is None else named
                )
            kinds = [", ".join(sorted(words)) for words in told.values() if words]
            if len(set(kinds)) > 1:  # who does not say is taken for one of the most
                usual = max(sorted(set(kinds)), key=kinds.count)
                mine = {h: ", ".join(sorted(told.get(h, ()))) or usual for h in self.hosts}
                out = {h: f"{out.get(h, '')} {kind}".strip() for h, kind in mine.items()}
        return out if len(set(out.values())) > 1 else {}

    @property
    def all_damage(self) -> list[str]:
        """What cannot be read of the evidence, what was met only in reading it too."""
        met = self.telemetry.damage if self.telemetry is not None else []
        return [*self.damage, *(d for d in met if d not in self.damage)]

    @cached_property
    def trusted(self) -> list[str]:
        """The job's hosts whose numbers can be believed: a frozen exporter says nothing about its host."""
        frozen = {h for c in self.checks if c.name == "ghost-data" for h in c.hosts}
        return [h for h in self.hosts if h not in frozen]

    @property
    def triage(self) -> Triage:
        """What the log alone says: failure classes with their roles."""
        if self.seen is None:
            self.seen = triage(self.job)
        return self.seen

    def check(self, name: str) -> Check | None:
        """One of the checks of the recording."""
        return next((c for c in self.checks if c.name == name), None)

    def event(self, kind: str) -> dict[str, Any] | None:
        """The first event of a kind in time: the nodes' journals are merged as they come, not in order."""
        found = [e for e in self.events if e.get("kind") == kind]
        return min(found, key=lambda e: e["t"] if isinstance(e.get("t"), int | float) else math.inf, default=None)

    @property
    def end_of_work(self) -> float | None:
        """When something began to end the run (a cancel, a failure, a kill): what follows is teardown."""
        times = [float(e["t"]) for e in self.events if e.get("kind") in ("first-failure", "stop")]
        if (cancelled := cancelled_at(self.log)) is not None:
            times.append(cancelled)
        crash = self.heartbeat_time
        if crash is not None:
            times.append(crash)
        return min(times) if times else self.end

    @property
    def heartbeat_time(self) -> float | None:
        """When the coordination service declared tasks dead."""
        beat = self.log.heartbeat
        near = self.end or self.start
        return from_glog(beat.clock, near) if beat and beat.clock and near is not None else None

    @property
    def total_steps(self) -> int | None:
        """How many steps the run was asked for."""
        return asked_steps(self.triage.index)

    @property
    def all_done(self) -> bool:
        """Whether the last step was told of, by the best source or by the log, which may count otherwise."""
        last = [int(self.timeline.steps[-1])] if self.timeline is not None and len(self.timeline) else []
        told = self.triage.record.progress.last_step
        return all_done(self.triage.index, max([*last, *([told] if told is not None else [])], default=None))

    @cached_property
    def masks(self) -> Masks:
        """Which steps of the course say nothing about its speed, and why."""
        record = self.seen.record if self.seen is not None else None
        return mark(
            self.timeline,
            self.log,
            record.table.pauses if record is not None else (),
            record.restarts if record is not None else (),
        )

    @cached_property
    def stall(self) -> Stall | None:
        """Whether the run went silent; by the clock of the recording where there is one."""
        record, timeline = self.triage.record, self.timeline
        last_end = timeline.last_end if timeline is not None else None
        if last_end is None or self.end_of_work is None:
            return record.stall
        if timeline is not None and not timeline.exact and record.stall is not None:
            return record.stall  # what the files tell is better than what is reckoned
        lag = lag_of(timeline, record.table.clock == EVENTS)
        waited = self.end_of_work - self.start if self.start is not None else None
        silence = Silence(self.end_of_work, last_end, lag, waited_s=waited)
        found = find_stall(timeline, self.masks, self.log, silence, self.all_done)
        short = self.telemetry is not None and not self.live and self.end_of_work - last_end < _TEARDOWN_S
        if short and self._at_rest(_HELD, last_end, self.end_of_work):
            return None  # who gave back what its devices held has ended, and waits for nothing
        if self.telemetry is None or self.log.summary is not None:
            return found
        if found is None and not self.live and timeline is not None and timeline.exact and not self.all_done:
            # A recording that ends with the run holds a short silence only: a second witness makes up for its length.
            limit, silent = limit_of(timeline, self.masks, self.log) / _SOONER, self.end_of_work - last_end
            rests = not pauses_due(timeline, self.log) and self._at_rest(_BUSY, last_end, self.end_of_work)
            if silent > limit and (self.fell_silent or rests):
                says = f"no step for {silent:.0f} s, and the work has ended"
                found = Stall(silent, limit, says, int(timeline.steps[-1]), last_end, self.end_of_work)
        # Where only the recording knows how late it is, a silence has to last for some of its scrapes.
        return found if found is not None and found.seconds >= _SCRAPES * self.interval else None

    def covers(self, spans: list[tuple[float, float]], share: float) -> bool:
        """Whether the recording reaches over so much of some stretches of time."""
        begin, end = self.telemetry.range() if self.telemetry is not None else (0.0, 0.0)
        recorded = sum(max(0.0, min(b, end) - max(a, begin)) for a, b in spans)
        return self.telemetry is not None and recorded >= share * sum(b - a for a, b in spans)

    @property
    def presence(self) -> str | None:
        """What every recorded host has at least one of."""
        known = self.telemetry.metrics() if self.telemetry is not None else frozenset()
        return next((m for m in PRESENCE if m in known), None)

    @cached_property
    def interval(self) -> float:
        """Seconds between two looks of the recorder; nothing where nobody tells."""
        telemetry, metric = self.telemetry, self.presence
        return scrape_interval(telemetry, metric) if telemetry is not None and metric is not None else 0.0

    @cached_property
    def fell_silent(self) -> dict[str, float]:
        """Hosts that stopped to report while the run still worked and nearly all others go on; when each did."""
        telemetry, timeline, metric = self.telemetry, self.timeline, self.presence
        if telemetry is None or metric is None:
            return {}
        end, mine, last = telemetry.range()[1], frozenset(self.trusted), dict[str, float]()
        for labels, times, _ in telemetry.raw(metric, end - _LOOKED_S, end):
            if (host := host_of(labels)) in mine and len(times):
                last[host] = max(last.get(host, 0.0), float(times[-1]))
        usual = sorted(last.values())[len(last) // 2] if last else 0.0
        gone = {h: t for h, t in last.items() if usual - t >= max(_SCRAPES * self.interval, _SILENT_S)}
        if timeline is not None and timeline.last_end is not None:  # who leaves later leaves because it is over
            over = timeline.last_end + float(timeline.seconds[-1]) + self.interval
            gone = {h: t for h, t in gone.items() if t <= over}
        return gone if len(last) > 2 and len(gone) <= max(1, len(last) // 4) else {}

    def _at_rest(self, measures: tuple[str, ...], since: float, until: float) -> bool:
        """Whether the devices of most hosts have nothing to do, or hold nothing, after a moment, and had before."""
        telemetry = self.telemetry
        metric = next((m for m in measures if telemetry is not None and m in telemetry.metrics()), None)
        if telemetry is None or metric is None:
            return False
        late = 0.5 * (since + until)  # by then the last step is over on all
        now, then = (
            telemetry.by_host(f"avg by (host) (avg_over_time({metric}[{max(1, round(b - a))}s] @ {b:.3f}))", b)
            for a, b in ((late, until), (since - 2.0 * (until - since), since))
        )
        rest = [h for h in now if now[h] < _AT_REST * then.get(h, 0.0)]
        return bool(now) and 3 * len(rest) >= 2 * len(now)


@contextmanager
def open_case(job: Job, opener: Opener | None = None, seen: Triage | None = None) -> Iterator[Case]:
    """The record of a job with its metrics; changes no byte of it. Damaged parts are named in `damage` and left out.

    `seen` is a triage already made of the same evidence.
    """
    seen = seen or triage(job)
    record = seen.record
    log, run, live = record.facts, record.run, record.clock.live
    damage = list(record.damage)
    with ExitStack() as stack:
        telemetry = _open_telemetry(job, opener or open_database, stack, damage)
        start = record.clock.start
        if start is None and telemetry is not None:
            start = telemetry.range()[0]
        timeline = timeline_of(record.table, log, telemetry, start)
        if timeline is not None and not timeline.exact and telemetry is not None and start is not None:
            timeline = put_on_the_clock(timeline, log.steps, log.path, start, telemetry.range()[1])
        end = _end(record, telemetry, timeline, start)
        last = timeline.last_end if timeline is not None and timeline.exact else None
        # Steps up to the end of the recording: whoever is silent there works all the same.
        stepping = last is not None and telemetry is not None and telemetry.range()[1] - last < _LOOKED_S / 3
        well = stepping or (log.summary is not None and log.summary.exit == 0)
        hosts = _all_hosts(record, telemetry)
        checks = check_quality(telemetry, hosts, end, job.database is not None, well)
        identity = check_identity(telemetry, log) if telemetry is not None else None
        if identity is not None:
            checks.append(identity)
            telemetry = telemetry if identity.ok else None  # another job's numbers decide nothing here
        if timeline is None and telemetry is not None and not log.exits:  # a log that was lost, not a start that failed
            timeline = from_scalars(telemetry)
        yield Case(
            job=job,
            log=log,
            run=run,
            events=record.events,
            telemetry=telemetry,
            timeline=timeline,
            hosts=hosts,
            start=start,
            end=end,
            live=live,
            damage=damage,
            bytes_read=record.index.size,
            checks=checks,
            seen=seen,
        )


def _open_telemetry(job: Job, opener: Opener, stack: ExitStack, damage: list[str]) -> Telemetry | None:
    if job.database is None or not any(job.database.iterdir()):
        return None
    try:
        telemetry = stack.enter_context(opener(job.database))
    except MissingToolError:
        raise
    except EvidenceError as e:
        damage.append(str(e))
        return None
    damage.extend(telemetry.damage)
    return telemetry


def _all_hosts(record: Record, telemetry: Telemetry | None) -> list[str]:
    """The job's hosts: a pod's log names its own alone, the recording the others, as many as the job has nodes.

    Where nothing tells who they are (a launcher that names nobody), they are the machines of the job's own recording.
    """
    hosts, nodes = record.hosts, record.nodes or 0
    if telemetry is None or len(hosts) >= max(nodes, 1):
        return hosts
    seen = set(_recorded(telemetry)[1])
    if not hosts:
        machines = sorted(h for h in seen if (m := _LANE.match(h)) is None or m[1] not in seen)
        return machines if len(machines) == nodes or not nodes else []
    return [*hosts, *sorted(seen - set(hosts))] if len(seen) == nodes and seen > set(hosts) else hosts


_LANE = re.compile(r"(.+)-r\d+$")  # of a machine with several ranks


def _recorded(telemetry: Telemetry) -> tuple[str, list[str]]:
    """The hosts that ever reported, and the query that tells."""
    metrics, (begin, end) = telemetry.metrics(), telemetry.range()
    presence = next((m for m in ("hw_procs_running", "hw_gpu_power_watts", "hw_rank_up") if m in metrics), None)
    if presence is None:
        return "", []
    query = f"count by (host, instance) (last_over_time({presence}[{max(1, round(end - begin))}s] @ {end:.3f}))"
    return query, sorted({h for s in telemetry.instant(query, end) if (h := host_of(s.labels))})


def _end(record: Record, telemetry: Telemetry | None, timeline: Timeline | None, start: float | None) -> float | None:
    """The last moment that the evidence speaks of."""
    summary, events = record.facts.summary, record.events
    if record.clock.live:
        return time.time()
    finished = [float(e["t"]) for e in events if e.get("kind") == "run-end"]
    if finished:
        return finished[-1]
    if start is not None and summary is not None and summary.wall_s is not None:
        told = start + summary.wall_s
        last = timeline.last_end if timeline is not None else None
        return told if last is None else max(told, last)  # a summary that a step contradicts is of a part of the run
    known = [float(e["t"]) for e in events if e.get("stage") != "supervise"]  # that is said of it, later
    if telemetry is not None:
        known.append(telemetry.range()[1])
    if timeline is not None and timeline.last_end is not None:
        known.append(timeline.last_end)
    return max(known) if known else None


_FEWEST = 5  # steps known to both
_SAME = 0.02  # the log rounds a loss to three digits


def check_identity(telemetry: Telemetry, log: LogFacts) -> Check | None:
    """Compare hosts and losses of the database with those of the log; None where there is nothing to compare."""
    if log.hosts:
        query, seen = _recorded(telemetry)
        if seen and not set(seen) & set(log.hosts):
            names = ", ".join(seen[:4])
            return Check("identity", False, (), f"the database holds other hosts ({names}, …) than the log", query)
    dialect = by_name(log.steps.dialect)
    if dialect is not None and not dialect.numbered:
        return None  # steps that were counted by their lines are not the trainer's
    if not {"tb_step", "tb_learning_loss"} <= telemetry.metrics():
        return None
    losses = by_time(telemetry, "tb_learning_loss")  # both series of a step carry the same time
    recorded = {int(step): losses[t] for t, step in by_time(telemetry, "tb_step").items() if t in losses}
    told = log.steps.losses
    both = [s for s in recorded if s in told and recorded[s] == recorded[s] and told[s] == told[s]]
    if len(both) < _FEWEST:
        return None
    # Two runs of one program share their first losses roughly; most of many must agree to the rounding. Whoever wrote
    # the database may count a step more or less than the log, or tell of the one before.
    steps = sorted(told)
    at = {s: i for i, s in enumerate(steps)}

    def near(step: int) -> list[float]:
        return [told[s] for s in steps[max(at[step] - 1, 0) : at[step] + 2]]

    agree = sum(any(abs(recorded[s] - v) <= _SAME * max(abs(v), 0.1) for v in near(s)) for s in both)
    ok = agree >= 0.5 * len(both)
    says = "" if ok else f"only {agree} of {len(both)} losses in the database are those of the log"
    return Check("identity", ok, (), says, "tb_learning_loss")
