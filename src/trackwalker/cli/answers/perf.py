"""`trackwalker perf`: where a step's time goes; drill into one operation, compare two runs, ask for a trace."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, AsMd, Workspace
from trackwalker.cli.common.saving import write_text
from trackwalker.cli.common.say import Screen
from trackwalker.cli.common.waiting import waiting
from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.job.shorthand import LATEST
from trackwalker.perf.analysis.capture import capture as capture_trace
from trackwalker.perf.analysis.diff import diff as diff_reports
from trackwalker.perf.analysis.diff_result import DiffReport
from trackwalker.perf.analysis.drill import drill as drill_down
from trackwalker.perf.analysis.drill_result import DrillReport
from trackwalker.perf.analysis.report import NAME, Options, analyse, load_report
from trackwalker.perf.analysis.result import PerfReport
from trackwalker.perf.analysis.step_lanes import step_lanes
from trackwalker.perf.formats.find import is_trace, traces_in
from trackwalker.perf.ranks.perfetto import merge as merge_traces
from trackwalker.report.perf.diff import diff_markdown, render_diff
from trackwalker.report.perf.drill import drill_markdown, render_drill
from trackwalker.report.perf.page import diff_page, perf_page
from trackwalker.report.perf.serve import PageServer
from trackwalker.report.perf.terminal import render_perf
from trackwalker.report.perf.view import perf_markdown
from trackwalker.report.text import json_visible

R = TypeVar("R", PerfReport, DiffReport, DrillReport)
_WIDE = 120
REGRESSION = 1  # with --fail-over: B is slower than allowed

JobName = Annotated[str, typer.Argument(help="Job id, id prefix, log file, job directory, or a trace file or folder.")]
Trace = Annotated[
    list[Path] | None, typer.Option("--trace", help="Trace file or folder, instead of those of the job; repeatable.")
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Kind of device for MFU, such as MI300X or H200.")]
PeakTflops = Annotated[float | None, typer.Option("--peak", min=0.001, help="Peak TFLOP/s of one device for MFU.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write the page to this file: it opens without a server.")]
Ray = Annotated[str | None, typer.Option("--ray", help="Ray cluster that reduces the ranks' traces (an address).")]


# Writing and serving the performance page.
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


class PerfGroup(TyperGroup):
    """`perf JOB` is short for `perf show JOB`, `perf` for the latest job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the word in where it was left out."""
        if not args:
            args = ["show", LATEST]
        elif args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["show", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=PerfGroup,
    help="Say how fast a run is, where its steps' time goes and what to fix first; a job is not changed.",
    epilog="Example: trackwalker perf 8104 --md",
)


@app.command(epilog="Example: trackwalker perf 8104 --save --price 2.50")
def show(
    job: JobName = LATEST,
    as_json: AsJson = False,
    as_md: AsMd = False,
    html: Html = None,
    saving: Annotated[
        bool, typer.Option("--save", help="Write perf.json, perf.md and perf.html into the job directory.")
    ] = False,
    trace: Trace = None,
    gpu: Gpu = None,
    peak: PeakTflops = None,
    price: Annotated[float | None, typer.Option("--price", min=0.0, help="Price of one GPU-hour, for goodput.")] = None,
    no_trace: Annotated[
        bool, typer.Option("--no-trace", help="Read the log only: a second instead of several.")
    ] = False,
    ray: Ray = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Throughput, MFU, where the step goes, goodput, and what to fix first; `perf JOB` is short for this."""
    found, traces = _job(job, trace or [], workspace)
    options = Options(traces=traces, gpu=gpu, peak=peak, price=price, with_traces=not no_trace, ray=ray)
    with waiting():
        report = analyse(found, options)
    if html is not None:
        print(f"page: {write_page(report, html)}", file=sys.stderr)
    _print(report, as_json, as_md, perf_markdown, render_perf)
    if saving:
        if found.dir is None:
            raise UsageError(f"{found.label} has no job directory to save into; use --html FILE, or redirect --json")
        path = write_text(found.dir / NAME, report.to_json() + "\n")
        write_text(found.dir / "perf.md", perf_markdown(report))
        write_page(report, found.dir / "perf.html")
        print(f"report: {path}", file=sys.stderr)
    return 0


@app.command(epilog="Example: trackwalker perf drill 8104 --op all-gather")
def drill(
    job: JobName,
    op: Annotated[str, typer.Option("--op", help="Part of an operation's name, kernel, path or source line.")],
    as_json: AsJson = False,
    as_md: AsMd = False,
    trace: Trace = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """One operation in depth: every execution in the traced steps, where it comes from, what ran beside it."""
    found, traces = _job(job, trace or [], workspace)
    report = drill_down(found, op, Options(traces=traces))
    _print(report, as_json, as_md, drill_markdown, render_drill)
    return 0


@app.command(epilog="Example: trackwalker perf merge 8104 --out 8104.perfetto-trace --rank 5")
def merge(
    job: JobName,
    out: Annotated[Path, typer.Option("--out", help="File to write; open it in ui.perfetto.dev or a local Perfetto.")],
    rank: Annotated[
        list[int] | None,
        typer.Option("--rank", help="Also this rank's kernels (else: rank 0 and the stragglers); repeatable."),
    ] = None,
    trace: Trace = None,
    ray: Ray = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """All ranks' steps and collectives in one trace for Perfetto, on one clock that the collectives set."""
    found, traces = _job(job, trace or [], workspace)
    with waiting():
        merged = merge_traces(found, Options(traces=traces, ray=ray), out, rank or [])
    for gap in merged.missing:
        print(f"missing: {gap.what}: {gap.why}", file=sys.stderr)
    print(f"{merged.path}: {merged.ranks} ranks, kernels of {', '.join(map(str, merged.detailed))}")
    return 0


@app.command(epilog="Example: trackwalker perf diff 8104 8111 --fail-over 2")
def diff(
    a: Annotated[str, typer.Argument(help="The baseline: a job, a trace, or a saved perf.json.")],
    b: Annotated[str, typer.Argument(help="What is compared with it.")],
    as_json: AsJson = False,
    as_md: AsMd = False,
    html: Html = None,
    fail_over: Annotated[
        float | None, typer.Option("--fail-over", min=0.0, help="Exit 1 when B is slower by more percent than this.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare runs that do not compare.")] = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """What got slower or faster, by how much of the step, beyond noise; settings that differ first.

    Exit codes: 0 compared, 1 slower than --fail-over allows, 2 nothing to read, or not comparable.
    """
    with waiting():
        report = diff_reports(_report(a, workspace), _report(b, workspace))
    if report.refused and not force:
        raise UsageError(f"{report.summary}; --force compares all the same")
    _print(report, as_json, as_md, diff_markdown, render_diff)
    if html is not None:
        print(f"page: {write_text(html, diff_page(report))}", file=sys.stderr)
    if fail_over is None:
        return 0
    if report.speed is None:
        raise UsageError("--fail-over: neither run has steps to judge by")
    noisy = report.speed.detectable
    if noisy is not None and 100 * noisy > fail_over:
        says = f"only a change of {100 * noisy:.1f} % or more would be seen"
        print(f"trackwalker: the gate of {fail_over:g} % is finer than the noise: {says}; run longer", file=sys.stderr)
    return REGRESSION if report.regression(fail_over) else 0


@app.command(epilog="Example: trackwalker perf serve 8104 --port 8484")
def serve(
    job: JobName,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    trace: Trace = None,
    gpu: Gpu = None,
    peak: PeakTflops = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Analyse once and show the page in a browser on this machine, until Ctrl-C; `/perf.json` is the report as data."""
    found, traces = _job(job, trace or [], workspace)
    serve_page(analyse(found, Options(traces=traces, gpu=gpu, peak=peak)), port)
    return 0


@app.command(epilog="Example: trackwalker perf capture 8104 --steps 3")
def capture(
    job: Annotated[str, typer.Argument(help="A running job of ours: job id, id prefix or job directory.")],
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many steps to trace.")] = 3,
    python: Annotated[bool, typer.Option("--python", help="Python's calls, too: slower, and names host gaps.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds to wait for the traces.")] = 300.0,
    as_json: AsJson = False,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Ask a running job for a trace of its next steps, and wait until every rank has written its own."""
    found = resolve(job, workspace)

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    got = capture_trace(found, steps, python=python, timeout_s=timeout, say=say)
    if as_json:
        print(json.dumps(got.to_dict(), indent=1))
    elif got.complete:
        print(f"traced steps {got.first_step} to {got.last_step} on {len(got.ranks)} ranks: {', '.join(got.folders)}")
        print(f"next: trackwalker perf {found.id}")
    for rank, error in got.errors.items():
        print(f"trackwalker: rank {rank} took no trace: {error}", file=sys.stderr)
    if not got.complete and not got.errors:
        why = f"{len(got.ranks)} ranks answered" if got.ranks else "no rank answered: its trainer takes no requests"
        print(f"trackwalker: the trace is not complete: {why}", file=sys.stderr)
    return 0 if got.complete else 1


def _job(name: str, traces: list[Path], workspace: Path) -> tuple[Job, list[Path]]:
    """A job; or a trace on its own, which has steps and kernels but no log."""
    path = Path(name).expanduser()
    try:
        alone = (path.is_file() and is_trace(path)) or (path.is_dir() and not (path / "log").exists())
        own = traces_in(path) if alone else []
    except OSError:
        own = []
    if not own:
        return resolve(name, workspace), traces
    try:
        return (resolve(name, workspace), traces) if path.is_dir() else (Job(path.name, None, None), traces or [path])
    except TrackwalkerError:
        return Job(path.name, None, None), traces or own


def _report(name: str, workspace: Path) -> PerfReport:
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file() and not is_trace(path):
        return load_report(path)
    job, traces = _job(name, [], workspace)
    return analyse(job, Options(traces=traces))


def _print(
    report: R, as_json: bool, as_md: bool, markdown: Callable[[R], str], render: Callable[[R, Console], None]
) -> None:
    if as_json:
        print(json_visible(report.to_json()))
    elif as_md:
        print(markdown(report), end="")
    else:
        console = Screen(highlight=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:  # tables are wide, and a pipe has no width
            console = Screen(highlight=False, width=_WIDE)
        render(report, console)
