"""`trackwalker tsdb doctor`: what a cluster's own metric store has for a diagnosis."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trackwalker.cli.options import AsJson, MetricMap, StoreAuthFile, StoreCaFile, StoreTenant
from trackwalker.diagnose.playbook import least_metrics
from trackwalker.report.text import json_visible
from trackwalker.telemetry.doctor import examine_store, scrape_config
from trackwalker.telemetry.foreign import load_maps
from trackwalker.telemetry.remote import Access, RemoteStore

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
