"""`trackwalker tsdb doctor`: what a cluster's own metric store has for a diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trackwalker.cli.options import AsJson
from trackwalker.diagnose.playbook import load_playbooks
from trackwalker.report.text import json_visible
from trackwalker.telemetry.doctor import examine_store, scrape_config
from trackwalker.telemetry.foreign import load_maps
from trackwalker.telemetry.remote import Access, RemoteStore

_SHOWN = 6  # names in a row


def doctor(
    url: Annotated[str, typer.Argument(metavar="URL", help="Prometheus, VictoriaMetrics, Mimir or Thanos.")],
    as_json: AsJson = False,
    auth_file: Annotated[
        Path | None,
        typer.Option(
            "--metrics-auth-file",
            envvar="TRACKWALKER_METRICS_AUTH_FILE",
            help="File with one line: 'bearer TOKEN' or 'basic USER:PASSWORD'.",
        ),
    ] = None,
    tenant: Annotated[
        str, typer.Option("--metrics-tenant", envvar="TRACKWALKER_METRICS_TENANT", help="X-Scope-OrgID of the store.")
    ] = "",
    ca_file: Annotated[Path | None, typer.Option("--metrics-ca-file", help="Certificates that the store has.")] = None,
    metric_map: Annotated[
        Path | None, typer.Option("--metric-map", help="A map of further metrics (as telemetry/foreign.yml).")
    ] = None,
) -> int:
    """Say what a cluster's own metric store has for a diagnosis, what it lacks, and what to scrape; only reads."""
    store = RemoteStore(Access(url, auth_file, tenant, ca_file))
    try:
        found = examine_store(store, load_maps(metric_map))
    finally:
        store.close()
    # A cause is testable when one of its tests has all it needs.
    needs = {
        book.id: min(tests, key=lambda need: len(need - found.ours))
        for book in load_playbooks()
        if (tests := [set(test.metrics) for test in book.tests if test.metrics])
    }
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
