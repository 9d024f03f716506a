"""Writing and serving the performance page."""

from __future__ import annotations

import secrets
from pathlib import Path

from trackwalker.cli.save import write_text
from trackwalker.perf.lanes import step_lanes
from trackwalker.perf.result import PerfReport
from trackwalker.report.perf_page import perf_page
from trackwalker.report.perf_serve import PageServer


def write_page(report: PerfReport, path: Path) -> Path:
    """The page as one file."""
    return write_text(path, _page(report))


def serve_page(report: PerfReport, port: int) -> None:
    """The page on 127.0.0.1 until the user interrupts."""
    place = secrets.token_urlsafe(18)  # other users of this machine reach the port, but do not know the place
    documents = {"": ("text/html", _page(report)), "perf.json": ("application/json", report.to_json())}
    server = PageServer({f"/{place}/{name}": document for name, document in documents.items()}, port)
    print(f"{server.url}{place}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        print()


def _page(report: PerfReport) -> str:
    return perf_page(report, step_lanes(report.trace) if report.trace is not None else None)
