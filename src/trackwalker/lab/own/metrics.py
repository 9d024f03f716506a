"""The database as our recorder fills it: one page for each node, every rank's steps, names of our agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from trackwalker.lab.own.journals import rank_records
from trackwalker.lab.own.log import pid_of
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.sheet.rows import FAST_S, RAY_S, HostRows, Rng
from trackwalker.lab.sheet.writer import scrape_times, stamps, values_of
from trackwalker.lab.world import TFLOP_PER_TOKEN, Floats
from trackwalker.node.collectors.training import PER_STEP_FIELDS, TrainingCollector
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.telemetry.blocks import BlockWriter, Labels, labels

_OTHERS_BYTES = 62e9  # what runs on a node beside the trainer
_INSTALLED = 2.16e12  # bytes, as the sheet has it
_CORES = 192
Series = tuple[str, dict[str, str], Floats]


def write_own_sheet(sheet: Sheet, writer: BlockWriter, scalars: dict[str, Floats]) -> None:
    """Write every node's page, then every rank's steps, each with the step's own time."""
    for number, name in enumerate([*sheet.run.hosts, *sheet.strangers]):
        rng = np.random.default_rng([int(sheet.run.job_id), number])
        stranger = number >= len(sheet.run.hosts)
        host = HostRows(sheet, 0 if stranger else number, rng, name if stranger else None)
        for every, rows in host.exporters():
            if stranger and every == RAY_S:
                continue
            times = scrape_times(sheet, name, every, rng)
            if len(times) < 2:
                continue
            held: list[Series] = []
            for row in rows(times):
                if not sheet.is_absent(row.metric, name):
                    values = sheet.frozen(name, times, values_of(sheet, name, row, times))
                    held += _renamed(row.metric, row.labels, values, name, times)
            if every == FAST_S:
                held += _identity(sheet, number, name, times) if not stranger else []
                held.append(("up", {}, np.ones(len(times))))
            _add(sheet, writer, name, times, held)
            if every == FAST_S and name in sheet.gone_at and sheet.kept is None:
                late = np.arange(times[-1] + every, sheet.run.end, every)
                _add(sheet, writer, name, late, [("up", {}, np.zeros(len(late)))])
        if not stranger:
            _training(sheet, writer, number, scalars, rng)


def _renamed(metric: str, about: dict[str, str], values: Floats, host: str, times: Floats) -> Iterator[Series]:
    """What Ray reports in upstream's runs the agent reads from the machine itself."""
    own = {"host": host}
    if metric == "ray_node_gpus_utilization":
        yield "hw_gpu_utilization_percent", {**own, "gpu": about["GpuIndex"]}, values
    elif metric == "ray_node_mem_total":
        yield "hw_mem_total_bytes", own, values
    elif metric == "ray_node_mem_used":
        yield "hw_mem_available_bytes", own, np.maximum(_INSTALLED - values, 0.0)
        yield "hw_mem_rss_bytes", own, np.maximum(values - _OTHERS_BYTES, 0.0)
    elif metric == "ray_node_cpu_utilization":
        yield "hw_cpu_seconds_total", own, np.cumsum(values / 100.0 * _CORES * np.diff(times, prepend=times[0]))
    else:
        yield metric, about, values


def _identity(sheet: Sheet, rank: int, host: str, times: Floats) -> Iterator[Series]:
    """Who is who, and whether the rank's process is there."""
    run, one = sheet.run, np.ones(len(times))
    there = (times >= run.training_begin) & (times < sheet.idle_after(host))
    who = {"host": host, "rank": str(rank)}
    about = {"kernel": "6.8.0-60-generic", "gpus": str(run.spec.gpus), "gpu_model": run.profile.name}
    yield "hw_agent_info", {"host": host, "attempt": "0", "exported_job_id": run.job_id}, one
    yield "hw_node_info", {"host": host, **about}, one
    yield "hw_rank_info", {**who, "local_rank": "0", "node": host, "pid": str(pid_of(rank))}, one
    for gpu in range(run.spec.gpus):
        used = {"host": host, "gpu": str(gpu), "rank": str(rank), "lane": host, "known_by": "only rank"}
        yield "hw_gpu_rank_info", used, one
    yield "hw_rank_up", who, there.astype(float)
    yield "hw_rank_stopped", who, np.where(there, 0.0, np.nan)


def _training(sheet: Sheet, writer: BlockWriter, rank: int, scalars: dict[str, Floats], rng: Rng) -> None:
    """The agent's own collector adds up the rank's records; between two of them its totals stand still."""
    run, host = sheet.run, sheet.run.hosts[rank]
    until = min(sheet.gone_at.get(host, run.end), sheet.idle_after(host))
    records = [r for r in rank_records(run, sheet, host, scalars) if r["t"] <= until]
    who = {"host": host, "rank": str(rank)}
    steps = [r for r in records if r["phase"] == "train"]
    if steps:
        held = [(name, who, np.array([r[key] for r in steps], float)) for key, name in PER_STEP_FIELDS.items()]
        reported = {name for name, _, _ in held}
        if rank == 0:  # the bridge: what only the event files hold
            tags = {**scalars, **_constants(sheet, len(steps))}
            extra = {f"tb_{tag}": values for tag, values in tags.items() if tag != "metrics_plugin_staleness_fill"}
            held += [(name, who, values[: len(steps)]) for name, values in extra.items() if name not in reported]
        at = np.array([r["t"] for r in steps])
        keep = np.isin(at, sheet.in_database(at))
        held = [(name, who, values[keep]) for name, who, values in held if not sheet.is_absent(name, host)]
        _add(sheet, writer, host, at[keep], held, nan_is_news=True)
    times = scrape_times(sheet, host, FAST_S, rng)
    _add(sheet, writer, host, times, _totals(records, host, rank, times))


def _constants(sheet: Sheet, steps: int) -> dict[str, Floats]:
    """Scalars of the event files that say the same at every step, or nearly so."""
    tokens = sheet.run.spec.tokens
    return {
        "learning_total_weights": np.full(steps, 6_291_456.0),
        "learning_param_norm": np.round(1_180.0 + 0.01 * np.arange(steps), 3),
        "perf_per_device_tokens": np.full(steps, tokens),
        "perf_per_device_tflops": np.full(steps, round(tokens * TFLOP_PER_TOKEN, 3)),
    }


def _totals(records: list[dict[str, Any]], host: str, rank: int, times: Floats) -> list[Series]:
    collector = TrainingCollector(Backlog(), host)
    columns: dict[tuple[str, tuple[tuple[str, str], ...]], Floats] = {}
    after = np.searchsorted(np.array([r["t"] for r in records]), times, side="right")  # records known by then
    fed = 0
    for moment, known in enumerate(after.tolist()):
        if known == fed and moment:
            for values in columns.values():
                values[moment] = values[moment - 1]
            continue
        for record in records[fed:known]:
            collector.feed({**record, "rank": rank, "host": host})
        fed = known
        for family in collector.collect():
            for about, value, _ in family.samples:
                key = (family.name, tuple(sorted(about.items())))
                columns.setdefault(key, np.full(len(times), np.nan))[moment] = value
    return [(name, dict(about), values) for (name, about), values in columns.items()]


def _add(
    sheet: Sheet, writer: BlockWriter, host: str, times: Floats, held: list[Series], nan_is_news: bool = False
) -> None:
    """Series that are there at the same moments go in together; NaN means that there is no sample then."""
    base = {"instance": f"{host}:9400", "job": "node_hw", "job_id": sheet.run.job_id}
    groups: dict[bytes, tuple[list[Labels], list[Floats]]] = {}
    for name, about, values in held:
        there = np.ones(len(times), bool) if nan_is_news else ~np.isnan(values)
        if there.any():
            names, rows = groups.setdefault(there.tobytes(), ([], []))
            names.append(labels(name, **about, **base))
            rows.append(values[there])
    skewed = stamps(times + sheet.run.spec.clock_skew_s.get(host, 0.0))
    for mask, (names, rows) in groups.items():
        writer.add(names, skewed[np.frombuffer(mask, bool)], np.array(rows))
