"""The demo: a real run, a real fault, noticed live, diagnosed, checked against what was done."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trackwalker.diagnose.engine import Diagnosis, diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.inject import FaultName, find_victim, inject
from trackwalker.launch.plan import plan_local
from trackwalker.launch.request import ModelSpec, Passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.watch.live import LiveWatch, Notice

PROCS = 4
VICTIM_RANK = 2
_BASELINE_STEPS = 60  # full speed to compare with
_BASELINE_S = 15.0
_START_LIMIT_S = 150.0
_NOTICE_LIMIT_S = 90.0
_EVIDENCE_S = {"stop": 12.0, "cpu": 15.0}  # how long the fault is left to speak before the diagnosis
_EXPECTED = {"stop": "collective-hang", "kill": "node-death", "cpu": "cpu-contention", "none": None}


@dataclass(frozen=True)
class DemoResult:
    """What was done, what was found, and whether the two agree."""

    fault: FaultName
    victim: str
    job_dir: Path
    notice: Notice | None
    noticed_after_s: float | None
    diagnosis: Diagnosis

    @property
    def right(self) -> bool:
        """Whether the verdict names the injected fault and exactly its host."""
        verdict, cause = self.diagnosis.verdict, _EXPECTED[self.fault]
        if cause is None:
            return verdict.outcome == "healthy" and not verdict.causes
        roots = verdict.roots
        return [c.cause for c in roots] == [cause] and roots[0].hosts == [self.victim]


def run_demo(
    fault: FaultName, workspace: Path, say: Callable[[str], None], show: Callable[[LiveWatch], None]
) -> DemoResult:
    """Train, break, notice, diagnose; ends everything it started."""
    steps = {"none": "150"}.get(fault, "100000")
    config = {"steps": steps, "jax_distributed_heartbeat_timeout_seconds": "14400"}
    plan = plan_local(ModelSpec("tiny", tag=fault), PROCS, Passthrough(config), workspace, True, ["demo", fault])
    run = LocalRun.start(plan)
    say(f"started {PROCS} training processes as job {plan.record.id}")
    watch = LiveWatch(run.job_dir)
    victim_host = plan.agent.ranks[VICTIM_RANK].host
    notice, began = None, time.time()
    with ExitStack() as faults, ExitStack() as stack:
        stack.callback(_end, run, say)  # the run is ended before the fault is undone: the evidence stays as it was
        _wait_for_baseline(run, watch, show)
        if fault == "none":
            say("no fault this time: the run goes to its end")
            _follow(run, watch, show, lambda n: n is not None and n.kind == "end", 600.0)
        else:
            victim = find_victim(run.job_dir, VICTIM_RANK)
            say(f"fault '{fault}' on rank {VICTIM_RANK} ({victim_host}, pid {victim.pid})")
            began = faults.enter_context(inject(fault, victim))
            notice = _follow(run, watch, show, lambda n: n is not None, _NOTICE_LIMIT_S)
            if notice is not None:
                say(f"noticed after {notice.time - began:.1f} s: {notice.text}")
            _follow(run, watch, show, lambda n: False, _EVIDENCE_S.get(fault, 0.0))
        if fault in ("kill", "none"):
            _finish(run)
        say("diagnosing from the job directory")
        diagnosis = diagnose(resolve(str(run.job_dir), workspace))
    return DemoResult(fault, victim_host, run.job_dir, notice, notice.time - began if notice else None, diagnosis)


def _wait_for_baseline(run: LocalRun, watch: LiveWatch, show: Callable[[LiveWatch], None]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    first: float | None = None
    while time.monotonic() < deadline:
        watch.look()
        show(watch)
        if run.supervise() is not None:
            return
        if watch.last_step is not None:
            first = first or time.monotonic()
            if watch.last_step >= _BASELINE_STEPS and time.monotonic() - first >= _BASELINE_S:
                return
        time.sleep(0.2)


def _follow(
    run: LocalRun,
    watch: LiveWatch,
    show: Callable[[LiveWatch], None],
    enough: Callable[[Notice | None], bool],
    seconds: float,
) -> Notice | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        notice = watch.look()
        show(watch)
        if enough(notice):
            return notice
        run.supervise()
        time.sleep(0.2)
    return None


def _finish(run: LocalRun) -> None:
    deadline = time.monotonic() + 60.0
    while run.supervise() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    run.wait_closed()


def _end(run: LocalRun, say: Callable[[str], None]) -> None:
    if run.supervise() is None:
        say("ending the run")
        run.cancel()
    _finish(run)
