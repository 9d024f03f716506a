"""`trackwalker lab`: incidents on demand, with their truth, and an honest score."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, AsJson, Workspace
from trackwalker.cli.common.say import Screen
from trackwalker.cli.common.waiting import Waiting, waiting
from trackwalker.cli.lab.dose import dose
from trackwalker.cli.lab.false_alarms import false_alarms
from trackwalker.cli.lab.inject import inject
from trackwalker.cli.lab.propose import propose
from trackwalker.errors import UsageError
from trackwalker.job.resolve import resolve
from trackwalker.lab import bundle as bundles
from trackwalker.lab.real.score import score_real
from trackwalker.lab.scenario import all_scenarios, load_scenario, post_cases
from trackwalker.lab.scoring import calibration, recorded, scoreboard
from trackwalker.lab.scoring.agents import AGENT, RECORD
from trackwalker.lab.scoring.cases import make_suite, only
from trackwalker.lab.scoring.results import CaseResult, agent_lines, read_results
from trackwalker.lab.scoring.score import score as run_score
from trackwalker.lab.scoring.table import Table as ScoreTable
from trackwalker.lab.scoring.tools import OWN
from trackwalker.lab.simulate import Format
from trackwalker.lab.simulate import simulate as run_simulate
from trackwalker.report.text import one_line

REAL = "real"
WORSE = 1  # the score fell below the recorded one

app = typer.Typer(
    no_args_is_help=True,
    help="Make incidents with a known truth, and score any diagnoser on them.",
    epilog="Example: trackwalker lab simulate rdma-phased --seed 3 --out case",
)


@app.command("simulate", epilog="Example: trackwalker lab simulate rdma-phased --nodes 24 --seed 3 --out case")
def simulate(
    scenario: Annotated[str | None, typer.Argument(help="A family of --list, or a .yml file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="New folder for the job and truth.json.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Instead of the scenario's own.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs of a node.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws hosts, magnitudes and onsets.")] = 1,
    profile: Annotated[str | None, typer.Option("--profile", help="GPU: mi355x, mi300x or h200.")] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Whose launcher wrote the job: upstream or ours.")
    ] = "upstream",
    listing: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
) -> None:
    """Write the job directory of an incident, with logs of all ranks and a real metrics database."""
    if listing:
        _list()
        return
    if scenario is None or out is None:
        raise UsageError("say which scenario (--list shows them) and where: lab simulate SCENARIO --out DIR")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder: choose another --out")
    with waiting():
        done = run_simulate(load_scenario(scenario), out, seed, nodes, gpus, profile, form=form)
    print(done.job)
    print(
        f"simulated {done.hours:.1f} hours of the job, {done.samples:,} metric samples; "
        f"the injected fault: {out / 'truth.json'}",
        file=sys.stderr,
    )


app.command("inject", epilog="Example: trackwalker lab inject cpu 8308 --rank 1 --seconds 30")(inject)
app.command("dose", epilog="Example: trackwalker lab dose --out dose.json --svg dose.svg")(dose)
app.command("propose", epilog="Example: trackwalker lab propose 8308 --truth truth.json --to cases")(propose)
app.command("false-alarms", epilog="Example: trackwalker lab false-alarms --seeds 3")(false_alarms)


@app.command("score", epilog="Example: trackwalker lab score --suite full --tool 'my-tool {job}' --out results.json")
def score(
    suite: Annotated[
        list[str],
        typer.Option("--suite", help="smoke, full, tune, test, scale, posts, real, a scenario, or a folder of cases."),
    ] = ["smoke"],  # noqa: B006 - read only
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", help="Command with {job}, baseline:NAME, or trackwalker (default); repeatable."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="Command of an agent: task on stdin, verdict JSON on stdout; or replay:FOLDER."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep what the agent called and said in this folder.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option("--family", help="Only this family of the suite; repeatable.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Cases of each family (full: 5, else 1).")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Simulate with so many nodes.")] = None,
    conditions: Annotated[bool, typer.Option("--conditions", help="Add the derived conditions of every case.")] = False,
    variants: Annotated[
        int, typer.Option("--variants", min=0, help="Add so many perturbed worlds of each family.")
    ] = 0,
    stress: Annotated[
        int, typer.Option("--stress", min=0, help="Add so many worlds in which much is too faint or not collected.")
    ] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Cases at once (default: all cores).")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds a tool may take for a case.")] = 600.0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the results to this file.")] = None,
    as_json: AsJson = False,
) -> int:
    """Run diagnosers on cases whose truth they cannot read, and grade what they say.

    Exit codes: 0 scored, 1 the smoke suite's score fell below the recorded one, 2 nothing to score.
    """
    tools = list(dict.fromkeys(tool)) if tool else [OWN]
    if record is not None and agent is None:
        raise UsageError("--record keeps what an agent does: give --agent")
    if agent is not None:
        tools.append(f"{AGENT}{agent}")
        if record is not None:
            os.environ[RECORD] = str(record.absolute())  # the cases run in processes of their own
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}")
    if REAL in suite:
        if suite != [REAL]:
            raise UsageError("the suite 'real' is run alone: it needs the machine for itself")
        if nodes is not None or conditions or variants or stress:
            raise UsageError(
                "the suite 'real' is as it is: --nodes, --conditions, --variants and --stress need a world"
            )
        results = score_real(tools, family or [], seeds or 1, timeout, _say, partial(_progress, clock=Waiting()))
    else:
        clock = Waiting()
        cases = only(make_suite(suite, seeds, conditions, variants, stress), family or [], nodes)
        results = run_score(cases, tools, suite, jobs or os.cpu_count() or 1, timeout, partial(_progress, clock=clock))
    if out is not None:
        _write(out, results.to_json() + "\n")
    if as_json:
        print(results.to_json())
    else:
        _show(scoreboard.tables([results]))
        for line in agent_lines(results):
            print(line)
    worse = recorded.below_recorded(results) if tools == [OWN] and nodes is None else None
    if worse:
        print(f"trackwalker: {worse}", file=sys.stderr)
    return WORSE if worse else 0


@app.command(
    "report", epilog="Example: trackwalker lab report results.json baselines.json --md > docs/reference/scoreboard.md"
)
def report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS…", help="Files that 'lab score --out' wrote.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file.")] = None,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
) -> None:
    """Turn results into a page; several files are compared in one."""
    read = [read_results(path) for path in results]
    if html is not None:
        _write(html, scoreboard.to_html(read))
    if markdown:
        print(scoreboard.to_markdown(read), end="")
    elif html is None:
        _show(scoreboard.tables(read))


@app.command("calibrate", epilog="Example: trackwalker lab calibrate results.json --out confidence.json")
def calibrate(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS…", help="Files that 'lab score --out' wrote.")],
    out: Annotated[Path | None, typer.Option("--out", help="Write the table that diagnose reads.")] = None,
    first_sight: Annotated[
        bool, typer.Option("--first-sight", help="These were scored before anybody looked: fit on all families.")
    ] = False,
) -> None:
    """Fit how sure a cause is to how often it was right: fitted on tuning families, shown on test families."""
    read = [read_results(path) for path in results]
    made = calibration.calibrate(read, first_sight)
    if out is not None:
        _write(out, made.model_dump_json(indent=1) + "\n")
    _show(calibration.tables(read, made, first_sight))


@app.command("pack", epilog="Example: trackwalker lab pack 8308 --out 8308.tar.gz")
def pack(
    job: Annotated[str, typer.Argument(help="Job id, id prefix, log file or job directory.")],
    out: Annotated[Path, typer.Option("--out", help="File to write: .tar.gz.")],
    truth: Annotated[Path | None, typer.Option("--truth", help="truth.json, where the truth is known.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Regular expression of the metrics to keep.")] = None,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> None:
    """Make a bundle of a job that opens anywhere: logs, metrics, record and verdict, without secrets."""
    packed = bundles.pack(resolve(job, workspace), out, truth, metric)
    print(f"{packed.path}: {packed.files} files, {packed.samples} samples, {packed.hidden} secrets hidden")
    print("look into it before you give it away: only known shapes of secrets are found", file=sys.stderr)


@app.command("add", epilog="Example: trackwalker lab add 8308.tar.gz --family nic-on-rail-3 --to cases")
def add(
    bundle: Annotated[Path, typer.Argument(help="A bundle of 'lab pack' that holds its truth.")],
    to: Annotated[Path, typer.Option("--to", help="Folder of recorded cases; 'lab score --suite' takes it.")],
    family: Annotated[str | None, typer.Option("--family", help="Name of the case (default: the job's).")] = None,
    about: Annotated[str, typer.Option("--about", help="One sentence about the incident.")] = "",
) -> None:
    """Turn a solved incident into a regression case."""
    print(bundles.add(bundle, to, family, about))


def _list() -> None:
    table = Table("scenario", "split", "outcome", "about", box=None)
    for s in [*all_scenarios(), *post_cases()]:
        table.add_row(s.family, s.split, str(s.truth.get("outcome")), s.about)
    Screen(highlight=False).print(table)


def _show(all_tables: list[ScoreTable]) -> None:
    console = Screen(highlight=False)
    for each in all_tables:
        table = Table(*each.head, title=each.title, title_justify="left", box=None)
        for row in each.rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        console.print(table)
        console.print(*each.notes, "", sep="\n", markup=False)


def _progress(done: int, of: int, result: CaseResult, *, clock: Waiting) -> None:
    mark = "right" if result.passed else "WRONG"
    condition = f" {result.variant}" if result.variant else ""
    case = f"{result.family}-{result.seed}{condition}, {result.seconds:.1f} s"
    _say(f"{done}/{of} {mark} {result.tool}: {case}{clock.rest(done, of)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}") from e
