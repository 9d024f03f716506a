"""A real run with a real fault: trained, broken, noticed live, diagnosed, checked against what was done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.job.resolve import resolve
from trackwalker.lab.real.cases import RealCase
from trackwalker.lab.real.inject import find_victim, inject
from trackwalker.lab.real.noticing import Notice, Noticing
from trackwalker.lab.real.undo import note_for
from trackwalker.launch.plan import How, plan_local
from trackwalker.launch.request.words import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.watch.detect.live import LiveWatch

_BASELINE = {"steady": (60, 15.0), "early": (30, 5.0)}  # steps and seconds at full speed, to compare with
_START_LIMIT_S = 150.0
_NOTICE_LIMIT_S = 90.0
_END_LIMIT_S = 240.0

Say = Callable[[str], None]
Show = Callable[[LiveWatch], None]


@dataclass(frozen=True)
class DemoResult:
    """What was done, what was found, and whether the two agree."""

    case: RealCase
    job_dir: Path
    notice: Notice | None
    noticed_after_s: float | None
    diagnosis: Diagnosis

    @property
    def right(self) -> bool:
        """Whether the verdict names the injected fault and exactly its host."""
        verdict, truth = self.diagnosis.verdict, self.case.truth
        said = verdict.outcome, [(c.cause, c.hosts) for c in verdict.roots]
        return any(said == (t.outcome, [(r.cause, r.hosts) for r in t.roots]) for t in (truth, *truth.alternatives))


@dataclass
class BrokenRun:
    """A run with its fault in place."""

    job_dir: Path
    began: float
    notice: Notice | None = None


def run_demo(case: RealCase, workspace: Path, say: Say, show: Show) -> DemoResult:
    """Train, break, notice, diagnose; ends everything it started."""
    with broken_run(case, workspace, say, show) as broken:
        say("diagnosing from the job directory")
        diagnosis = diagnose(resolve(str(broken.job_dir), workspace))
    notice = broken.notice
    return DemoResult(case, broken.job_dir, notice, notice.time - broken.began if notice else None, diagnosis)


def run_case(case: RealCase, workspace: Path) -> Path:
    """The same without the diagnosis: the job directory of a run that ended."""
    with broken_run(case, workspace, lambda text: None, lambda watch: None) as broken:
        pass
    return broken.job_dir


@contextmanager
def broken_run(case: RealCase, workspace: Path, say: Say, show: Show) -> Iterator[BrokenRun]:
    """A real run, broken as the case says, for as long as the block lasts."""
    config = {"steps": "100000", "jax_distributed_heartbeat_timeout_seconds": "14400"}
    if case.cause is not None:  # a run that stops where a save is due may be saving, for a quarter of an hour
        config["checkpoint_period"] = "100000"
    config |= case.config
    env = {} if case.gpu else {"JAX_PLATFORMS": "cpu"}  # four ranks cannot have the one GPU of a machine
    how = How("local", ["demo", case.name], case.procs, observe=True)
    plan = plan_local(ModelSpec("tiny", tag=case.name), Passthrough(config, env), workspace, how)
    staged = note_for(plan.agent.job_dir, "stage")
    with ExitStack() as faults, ExitStack() as stack:
        faults.callback(staged.run)
        if case.stage is not None:
            plan.agent.job_dir.parent.mkdir(parents=True, exist_ok=True)
            plan = case.stage(plan, case.rank, staged, faults)
        run = LocalRun.start(plan)
        stack.callback(end_run, run, say)  # the run is ended before the fault is undone: the evidence stays as it was
        say(f"started {case.procs} training process{'es' if case.procs > 1 else ''} as job {plan.record.id}")
        follow = Follower(run, show)
        if case.begins in _BASELINE:
            follow.until(lambda n: follow.steady(*_BASELINE[case.begins]), _START_LIMIT_S)
        broken = BrokenRun(run.job_dir, time.time())
        if case.cause is None and case.live is None:
            say("no fault this time: the run goes to its end")
        else:
            say(f"fault: {case.about}" + (f" (rank {case.rank})" if case.culprits else ""))
        fault = faults.enter_context(ExitStack())
        if case.live is not None:
            broken.began = fault.enter_context(inject(case.live, find_victim(run.job_dir, case.rank)))
        if case.cause is not None:
            broken.notice = follow.until(lambda n: n is not None, _NOTICE_LIMIT_S if case.noticed else 0.0)
            if broken.notice is not None:
                say(f"noticed after {broken.notice.time - broken.began:.1f} s: {broken.notice.text}")
        if case.live is not None or case.cause is not None:
            follow.until(lambda n: run.supervise() is not None, case.speaks_s)
        if case.undone_early:
            fault.close()
        if case.ends:
            follow.until(lambda n: run.supervise() is not None, _END_LIMIT_S)
            _finish(run)
        yield broken


class Follower:
    """Keeps a run going and watched while something is waited for."""

    def __init__(self, run: LocalRun, show: Show) -> None:
        self._run, self._show = run, show
        self._watch = Noticing(run.job_dir)
        self._first: float | None = None

    def until(self, enough: Callable[[Notice | None], bool], seconds: float) -> Notice | None:
        """Look until it is enough, the run is over or time is up; the notice that was enough."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            notice = self._watch.notice()
            self._show(self._watch)
            if enough(notice) or self._run.supervise() is not None:
                return notice
            time.sleep(0.2)
        return None

    @property
    def last_step(self) -> int | None:
        """The last step that was seen."""
        return self._watch.last_step

    def steady(self, steps: int, seconds: float) -> bool:
        """Whether so many steps are done, over so many seconds."""
        last = self._watch.last_step
        if last is None:
            return False
        self._first = self._first or time.monotonic()
        return last >= steps and time.monotonic() - self._first >= seconds


def _finish(run: LocalRun) -> None:
    deadline = time.monotonic() + 60.0
    while run.supervise() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    run.wait_closed()


def end_run(run: LocalRun, say: Say) -> None:
    """Cancel a run that still goes, and wait until its record is closed."""
    if run.supervise() is None:
        say("ending the run")
        run.cancel()
    _finish(run)
