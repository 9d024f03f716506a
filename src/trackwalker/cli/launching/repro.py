"""`trackwalker repro`: the short run that crashes once in a hundred times, a hundred times."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trackwalker.cli.common.options import DEFAULT_WORKSPACE, Workspace
from trackwalker.job.journal import read
from trackwalker.launch.plan import Plan, plan_local
from trackwalker.launch.request.words import Passthrough, parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.node.evidence import coredump


def repro(
    model: Annotated[str, typer.Argument(help="Model, as model[[:alias]:tag].")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Behind '--': key=value for the trainer (steps=1 unless given), _env_NAME=VALUE."),
    ] = None,
    procs: Annotated[int, typer.Option("-n", "--procs", help="Rank processes on this machine.")] = 1,
    most: Annotated[int, typer.Option("--most", min=0, help="Give up after so many runs; 0: never.")] = 0,
    workspace: Workspace = DEFAULT_WORKSPACE,
) -> int:
    """Repeat a short run on this machine until it fails; keeps its log, its core and a first backtrace."""
    spec = parse_model_spec(model)
    given = parse_passthrough(settings or [])
    passthrough = Passthrough({"steps": "1", **given.config}, given.env)

    def make_plan() -> Plan:
        return plan_local(spec, procs, passthrough, workspace, observe=False, argv=sys.argv[1:])

    signal.signal(signal.SIGTERM, _interrupt)
    ended = repeat(make_plan, most, Path.cwd(), lambda text: print(text, flush=True))
    for core in ended.cores:
        print(f"core {core}")
    if ended.crashed and ended.job_dir is not None:
        print(f"trackwalker diagnose {ended.job_dir} says why")
    return ended.code


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


_RULE = "=" * 40
_TICK_S = 0.1
_BY_HAND = (130, 143)  # INT, TERM


@dataclass(frozen=True)
class Repeated:
    """How a repetition ended: the exit code of the last iteration, and what it left."""

    iterations: int
    code: int
    job_dir: Path | None
    cores: tuple[Path, ...]

    @property
    def crashed(self) -> bool:
        """Whether the run failed by itself."""
        return self.code not in (0, *_BY_HAND)


def repeat(make_plan: Callable[[], Plan], most: int, work_dir: Path, say: Callable[[str], None]) -> Repeated:
    """Run the plan again and again, at most `most` times (0: until it fails); Ctrl-C ends the loop."""
    for line in coredump.enable():  # the ranks inherit the limit
        say(line)
    code, number, last = 0, 0, None
    cores: list[Path] = []
    while code == 0 and (most == 0 or number < most):
        number += 1
        begin = time.time()
        for line in (_RULE, f"Starting iteration #{number}", f"Start time: {time.ctime(begin)}", _RULE):
            say(line)
        run = LocalRun.start(make_plan())
        last = run.job_dir
        say(f"job {run.plan.record.id}  log {run.plan.agent.log}")
        code = _wait(run)
        seconds = int(time.time() - begin)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        for line in (
            f"Iteration #{number} finished",
            f"Exit code: {code}",
            f"End time: {time.ctime()}",
            f"Duration: {seconds}s ({clock})",
        ):
            say(line)
        if code in _BY_HAND:
            say("Stopped by hand.")
        elif code:
            cores = _cores(run, begin, work_dir, say)
            say(f"{run.plan.record.model} crashed with exit code {code}. Stopping loop.")
    say(f"Loop terminated after {number} iteration(s)")
    return Repeated(number, code, last, tuple(cores))


def _wait(run: LocalRun) -> int:
    while True:
        try:
            code = run.supervise()
            if code is not None:
                run.wait_closed()
                return code
            time.sleep(_TICK_S)
        except KeyboardInterrupt:
            run.cancel()


def _cores(run: LocalRun, begin: float, work_dir: Path, say: Callable[[str], None]) -> list[Path]:
    agent = run.plan.agent
    pids = {}
    for event in read(run.job_dir / "events.jsonl").items:
        if event.get("kind") == "rank-start":
            pids[int(event["data"]["pid"])] = int(event["rank"])
    found = coredump.collect(run.job_dir, agent.job_id, agent.node, begin, pids, [work_dir], say)
    if not found:
        say("no core was left: the run ended without a crash, or the kernel keeps cores elsewhere (core_pattern)")
    return [core.path for core in found]
