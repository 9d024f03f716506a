"""From a sheet to a database, host by host: memory does not grow with the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from trackwalker.job.advance import advance
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.sheet.rows import FAST_S, RAY_S, HostRows, Rng, Row
from trackwalker.lab.world import TFLOP_PER_TOKEN, Floats
from trackwalker.telemetry.blocks import BlockWriter, Labels, labels

FILL_S = 150.0  # the training collector repeats its last values this often while no step comes


def write_sheet(sheet: Sheet, writer: BlockWriter, part: int = 0, parts: int = 1) -> None:
    """Write every host's series, then rank 0's training scalars; of several parts, one recorder's hosts."""
    count = len(sheet.run.hosts)
    for number in range(count * part // parts, count * (part + 1) // parts):
        advance(number, len(sheet.run.hosts), "hosts written")
        rng = np.random.default_rng([int(sheet.run.job_id), number])
        host = HostRows(sheet, number, rng)
        for every, rows in host.exporters():
            _write_exporter(sheet, writer, host.host, every, rows, rng)
    if part:
        return
    for number, name in enumerate(sheet.strangers):
        rng = np.random.default_rng([int(sheet.run.job_id), len(sheet.run.hosts) + number])
        host = HostRows(sheet, 0, rng, name)
        for every, rows in host.exporters():
            if every != RAY_S:  # Ray knows the job's own nodes only
                _write_exporter(sheet, writer, name, every, rows, rng)
    _write_scalars(sheet, writer)


def _write_exporter(
    sheet: Sheet,
    writer: BlockWriter,
    host: str,
    every: float,
    rows: Callable[[Floats], Iterator[Row]],
    rng: Rng,
) -> None:
    times = scrape_times(sheet, host, every, rng)
    if len(times) < 2:
        return
    ray = every == RAY_S
    base = {"instance": f"{host}:{55080 if ray else 9400}", "job": "ray" if ray else "node_hw"}
    names: list[Labels] = []
    table: list[Floats] = []
    for row in rows(times):
        if not sheet.is_absent(row.metric, host):
            names.append(labels(row.metric, **row.labels, **base))
            table.append(sheet.frozen(host, times, values_of(sheet, host, row, times)))
    up = labels("up", **base)
    whole = every in (FAST_S, RAY_S)  # the page that stands for its target
    if whole:
        names.append(up)
        table.append(np.ones(len(times)))
    if names:
        writer.add(names, stamps(times + sheet.run.spec.clock_skew_s.get(host, 0.0)), np.array(table))
    if whole and host in sheet.gone_at and sheet.kept is None:
        # A scrape that fails is recorded too: `up` 0, after the last good one.
        late = np.arange(times[-1] + every, sheet.run.end, every)
        writer.add([up], stamps(late), np.zeros((1, len(late))))


def scrape_times(sheet: Sheet, host: str, every: float, rng: Rng) -> Floats:
    """When an exporter of a host was asked and answered."""
    run = sheet.run
    begin = run.training_begin + 40.0 + rng.uniform(0, every)
    times = np.arange(begin, min(run.end, sheet.gone_at.get(host, run.end)), every)
    return sheet.scraped(host, times[rng.random(len(times)) >= run.spec.lost_scrapes])


def values_of(sheet: Sheet, host: str, row: Row, times: Floats) -> Floats:
    """What a series shows at these moments, with everything that faults laid over it."""
    values = row.values
    overlays = list(sheet.overlays(row.metric, host, row.labels))
    for overlay in overlays:
        if overlay.what != "jump":
            values = overlay.apply(times, values)
    if row.counter:
        elapsed = np.diff(times, prepend=times[0])
        values = row.lifetime + np.cumsum(np.maximum(values, 0.0) * elapsed)
        for jump in overlays:
            if jump.what == "jump":
                values = values + jump.amount * (times >= jump.start)
    return (np.floor(values / row.unit) if row.counter else np.round(values / row.unit)) * row.unit


def _write_scalars(sheet: Sheet, writer: BlockWriter) -> None:
    """Rank 0's scalars: a step's samples carry its own wall time, and fills pad the silences."""
    run = sheet.run
    n = len(run.ends)
    if not n:
        return
    head = {"host": run.hosts[0], "instance": f"{run.hosts[0]}:9400", "job": "node_hw"}
    tags = training_scalars(sheet)
    times, table = run.ends.copy(), np.array(list(tags.values()))
    fills = np.arange(times[-1] + FILL_S, run.end, FILL_S)
    if len(fills):
        last = np.repeat(table[:, -1:], len(fills), axis=1)
        last[list(tags).index("metrics_plugin_staleness_fill")] = 1.0
        times, table = np.concatenate([times, fills]), np.concatenate([table, last], axis=1)
    keep = np.isin(times, sheet.in_database(times))
    shown = [i for i, tag in enumerate(tags) if not sheet.is_absent(f"tb_{tag}", run.hosts[0])]
    if keep.any() and shown:
        names = [labels(f"tb_{tag}", **head) for tag in tags]
        writer.add([names[i] for i in shown], stamps(times[keep]), table[shown][:, keep])


def training_scalars(sheet: Sheet) -> dict[str, Floats]:
    """Rank 0's scalars by tag, one value for every step that was completed."""
    run, n = sheet.run, len(sheet.run.ends)
    steps = np.arange(run.first, run.first + n).astype(float)
    grad = 0.8 + 0.6 * np.exp(-steps / 80.0) + run.rng.normal(0, 0.02, n)
    quiet = {
        "step": steps,
        "learning_loss": np.round(run.loss[:n] + run.rng.normal(0, 0.012, n), 3),
        "learning_grad_norm": np.round(grad, 4),
        "learning_raw_grad_norm": np.round(grad * 1.05, 4),
        "learning_current_learning_rate": 3e-4 * np.minimum(1.0, (steps + 1) / 500.0),
        "learning_moe_lb_loss": np.round(0.0102 + run.rng.normal(0, 1e-4, n), 6),
        "perf_step_time_seconds": np.round(run.seconds, 3),
        "perf_per_device_tokens_per_sec": np.round(run.spec.tokens / run.seconds, 3),
        "perf_per_device_tflops_per_sec": np.round(run.spec.tokens / run.seconds * TFLOP_PER_TOKEN, 3),
        "metrics_plugin_staleness_fill": np.zeros(n),
    }
    return quiet | {tag: values[:n] for tag, values in sheet.scalars.items()}


def stamps(times: Floats) -> NDArray[np.int64]:
    """Times as the database has them."""
    return np.round(times * 1000).astype(np.int64)
