"""`trackwalker tsdb`: the metrics databases of recorded jobs; every command reads a private copy."""

from __future__ import annotations

import csv
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.common.options import (
    DEFAULT_WORKSPACE,
    AsJson,
    MetricMap,
    StoreAuthFile,
    StoreCaFile,
    StoreTenant,
    Workspace,
)
from trackwalker.cli.common.say import Screen, damaged, print_json
from trackwalker.cli.common.waiting import waiting
from trackwalker.cli.common.workspace import there
from trackwalker.diagnose.causes.playbook import least_metrics
from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.resolve import resolve
from trackwalker.logs.formats.nodelist import nodes_in_header
from trackwalker.report.text import json_visible
from trackwalker.report.tsdb import render_answer, render_list, render_metrics
from trackwalker.telemetry import catalogue, export, query, recorded, serve
from trackwalker.telemetry.foreign.doctor import examine_store, scrape_config
from trackwalker.telemetry.foreign.names import load_maps
from trackwalker.telemetry.foreign.remote import Access, RemoteStore
from trackwalker.telemetry.store import open_database

# `trackwalker tsdb doctor`: what a cluster's own metric store has for a diagnosis.
_SHOWN = 6  # names in a row


def doctor(
    url: Annotated[str, typer.Argument(metavar="URL", help="Prometheus, VictoriaMetrics, Mimir or Thanos.")],
    as_json: AsJson = False,
    auth_file: StoreAuthFile = None,
    tenant: StoreTenant = "",
    ca_file: StoreCaFile = None,
    metric_map: MetricMap = None,
) -> int:
    """Say what a cluster's own metric store has for a diagnosis, what it lacks, and what to scrape; only reads."""
    store = RemoteStore(Access(url, auth_file, tenant, ca_file))
    try:
        found = examine_store(store, load_maps(metric_map))
    finally:
        store.close()
    needs = least_metrics(found.ours)
    lacking = found.missing(needs)
    config = scrape_config(found)
    if as_json:
        exporters = {
            e.exporter: {"there": e.there, "lacking": e.lacking, "series": e.series, "interval_s": e.interval}
            for e in found.exporters
        }
        data = {"schema": "trackwalker.tsdb-doctor/1", "exporters": exporters, "untestable": lacking, "scrape": config}
        print(json_visible(json.dumps(data, indent=1)))
        return 0
    for entry in found.exporters:
        if entry.there:
            size = f"{len(entry.there)} metrics, {entry.series} series of the first"
            print(f"{entry.exporter}: {size}, every {entry.interval:.0f} s")
            if entry.lacking:
                more = ", …" if len(entry.lacking) > _SHOWN else ""
                print(f"  not there: {', '.join(entry.lacking[:_SHOWN])}{more}")
        else:
            print(f"{entry.exporter}: not there")
    print(f"causes that can be tested: {', '.join(sorted(set(needs) - set(lacking))) or 'none'}")
    for cause, names in sorted(lacking.items()):
        print(f"untestable: {cause} needs {', '.join(names[:_SHOWN])}")
    if config:
        print(f"to scrape besides:\n{config}")
    print(f"cost to the store: {found.cost.text()}")
    return 0


app = typer.Typer(
    no_args_is_help=True,
    help="List, query, view and export the metrics of recorded jobs; a job is never changed.",
    epilog="Example: trackwalker tsdb query 8308 'avg by (host) (hw_gpu_power_watts)'",
)

_Job = Annotated[str, typer.Argument(metavar="JOB", help="Job id, id prefix, log file or job directory.")]
_Start = Annotated[str | None, typer.Option("--start", help="Epoch seconds or ISO time (UTC); default: first sample.")]
_End = Annotated[str | None, typer.Option("--end", help="Epoch seconds or ISO time (UTC); default: last sample.")]


app.command("doctor", epilog="Example: trackwalker tsdb doctor http://mimir/prometheus --metrics-tenant ml")(doctor)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _ends_cleanly() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C: private copies and half-written files go
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.callback()
def _every(context: typer.Context) -> None:
    context.with_resource(_ends_cleanly())


@app.command("list", epilog="Example: trackwalker tsdb list --workspace outputs --json")
def list_(
    as_json: AsJson = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Only block descriptions and file sizes; Prometheus is not started.")
    ] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """List the recorded jobs of a workspace: span, hosts, gaps, size, integrity."""
    with waiting() as line:
        entries = catalogue.list_databases(
            there(workspace), nodes_in_header, fast, lambda done, of: line.show(done, of, "databases")
        )
    if as_json:
        rows = [e.to_dict() for e in entries]
        print_json({"schema": catalogue.SCHEMA, "workspace": str(workspace), "fast": fast, "jobs": rows})
    elif entries:
        render_list(entries, Screen(highlight=False))
    else:
        print(f"no recorded jobs in {workspace}")


@app.command(
    "query", epilog="Example: trackwalker tsdb query 8308 'max by (host) (hw_gpu_power_watts)' --step 60 --csv"
)
def query_(
    job: _Job,
    promql: Annotated[str, typer.Argument(metavar="PROMQL", help="What to ask.")],
    at: Annotated[
        str | None, typer.Option("--at", help="Epoch seconds or ISO time (UTC); default: the last moment with data.")
    ] = None,
    start: _Start = None,
    end: _End = None,
    step: Annotated[float | None, typer.Option("--step", help="Seconds between points; default: range / 250.")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header instead of a table.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Ask one PromQL question: at the last moment with data, or over a range with --start, --end or --step.

    Exit codes: 0 an answer, 2 nothing to read or a bad query, 3 an answer from a damaged database.
    """
    over = any(option is not None for option in (start, end, step))
    if over and at is not None:
        raise UsageError("--at asks for one time; --start, --end and --step for a range: give one or the other")
    if as_json and as_csv:
        raise UsageError("give --json or --csv, not both")
    times = [query.parse_time(text) for text in (at, start, end)]
    with open_database(_database(job, workspace)) as telemetry:
        if over:
            answer = query.ask_range(telemetry, promql, times[1], times[2], step)
        else:
            answer = query.ask_instant(telemetry, promql, times[0])
    if as_json:
        print_json(answer.to_dict())
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(answer.rows())
    else:
        render_answer(answer, Screen(highlight=False))
    for hint in answer.hints:
        print(f"trackwalker: {hint}", file=sys.stderr)
    return damaged(answer.damage)


@app.command("metrics", epilog="Example: trackwalker tsdb metrics 8308 'gpu.*(power|clock)'")
def metrics(
    job: _Job,
    pattern: Annotated[
        str | None, typer.Argument(metavar="PATTERN", help="Regular expression that a part of the name matches.")
    ] = None,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """List what was recorded: each metric with kind, unit, hosts, first and last sample.

    Exit codes: 0 listed, 2 nothing to read or a bad pattern, 3 listed from a damaged database.
    """
    with open_database(_database(job, workspace)) as telemetry, waiting() as line:
        found = recorded.list_metrics(telemetry, pattern, lambda done, of: line.show(done, of, "metrics"))
        damage = telemetry.damage
        close = [] if found else recorded.hints(telemetry, pattern or "")
    if as_json:
        rows = [metric.to_dict() for metric in found]
        print_json({"schema": recorded.SCHEMA, "job": job, "metrics": rows, "damage": damage})
    elif found:
        render_metrics(found, Screen(highlight=False))
    else:
        print(f"no metric of {job} matches '{pattern or ''}'")
    for hint in close:
        print(f"trackwalker: {hint}", file=sys.stderr)
    return damaged(damage)


@app.command("view", epilog="Example: trackwalker tsdb view 8308 8309 --port 9090")
def view(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Job ids, id prefixes, logs or job directories.")],
    port: Annotated[int | None, typer.Option("--port", help="First port; default: any free ones.")] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """Serve private copies of databases on loopback ports until Ctrl-C."""

    def ready(viewed: list[serve.Viewed]) -> None:
        for each in viewed:
            print("\n".join(each.lines()), flush=True)
        print("Ctrl-C ends", file=sys.stderr, flush=True)

    serve.serve([resolve(job, workspace) for job in jobs], port, ready)


@app.command("export", epilog="Example: trackwalker tsdb export 8308 power.csv.gz --metric 'hw_gpu_.*'")
def export_(
    job: _Job,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .csv, .csv.gz or .parquet.")],
    metric: Annotated[
        str | None, typer.Option("--metric", help="Regular expression that a metric's whole name matches.")
    ] = None,
    start: _Start = None,
    end: _End = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Write every stored sample into one table: metric, labels, time (epoch seconds), value.

    Exit codes: 0 written, 2 nothing to read or not to be written, 3 written from a damaged database.
    """
    database = _database(job, workspace)
    export.check_target(out, database, force)
    begin, until = query.parse_time(start), query.parse_time(end)
    with open_database(database, ours=False) as telemetry, waiting() as line:
        done = export.export(
            telemetry, out, metric, begin, until, lambda at, of, name: line.show(at, of, "metrics written")
        )
        damage = telemetry.damage
    print(f"{done.samples} samples of {done.metrics} metrics: {done.path}", file=sys.stderr)
    return damaged(damage)


def _database(name: str, workspace: Path) -> Path:
    job = resolve(name, workspace)
    if job.database is None:
        raise EvidenceError(f"{job.label} was not recorded: it has no metrics database")
    return job.database
