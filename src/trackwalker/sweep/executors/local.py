"""Trials as runs on this machine, one at a time: a figure of two runs that share the machine means nothing.

Each run has a small process of its own in a session of its own, which does what `trackwalker run` does. So it outlives
the sweep, whatever happens to that, and a resumed sweep finds it again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trackwalker.errors import MaybeQueuedError, TrackwalkerError, UnreachableError, UsageError
from trackwalker.job.processes import spawn
from trackwalker.launch.code.provenance import code_of
from trackwalker.launch.job_state import cancel as cancel_job
from trackwalker.launch.job_state import standing
from trackwalker.launch.plan import How, plan_local, starred
from trackwalker.launch.request.words import parse_model_spec, parse_passthrough
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.sweep.executors.jobs import JobExecutor, processes_with, spec_of, words_of
from trackwalker.sweep.executors.protocol import Look
from trackwalker.sweep.model import Result, Trial
from trackwalker.sweep.plan import Setup

ORDERS = "jobs"  # of a sweep's folder
_START_S = 60.0
_LOOK_S = 0.3


class LocalExecutor(JobExecutor):
    """Runs on this machine."""

    at_once: int | None = 1

    def __init__(self, setup: Setup, folder: Path) -> None:
        super().__init__(setup)
        self._orders = folder / ORDERS
        self._children: list[subprocess.Popen[bytes]] = []

    def check(self, trials: list[Trial]) -> list[str]:
        """What `trackwalker run` would refuse."""
        problems: dict[str, None] = {}
        for trial in trials:
            if trial.nodes:
                problems[
                    f"{trial.key}: a sweep with --on local has no nodes to choose from ({', '.join(trial.nodes)})"
                ] = None
            try:
                spec, words = parse_model_spec(spec_of(trial, "check")), parse_passthrough(words_of(trial))
                plan_local(spec, words, self.workspace, How("local", [], self.setup.procs, self.setup.observe))
            except UsageError as e:
                problems[f"{trial.key}: {e}"] = None
            if trial.code and not Path(trial.code).is_dir():
                problems[f"{trial.key}: its code {trial.code} is not a folder here"] = None
        return list(problems)

    def describe(self, trial: Trial, tag: str) -> dict[str, Any]:
        """The command that does the same by hand."""
        words = ["trackwalker", "run", spec_of(trial, tag), "-n", str(self.setup.procs)]
        words += ["--observe"] if self.setup.observe else []
        return {"command": [*words, "--", *(starred(word) for word in words_of(trial))]}

    def submit(self, trial: Trial, tag: str) -> str:
        """Start it, and wait until it has a directory."""
        order = self._orders / f"{tag}.json"
        self._orders.mkdir(exist_ok=True)
        order.touch(mode=0o600)  # it may hold a secret setting
        said = {"spec": spec_of(trial, tag), "words": words_of(trial), "procs": self.setup.procs,
                "observe": self.setup.observe, "workspace": str(self.workspace)}  # fmt: skip
        order.write_text(json.dumps(said))
        argv = [sys.executable, "-m", "trackwalker.sweep.executors.local", str(order)]
        child = spawn(argv, order.with_suffix(".out"), cwd=trial.code or self.setup.code or None)
        self._children = [*(c for c in self._children if c.poll() is None), child]
        deadline = time.monotonic() + _START_S
        while (job := self._written(tag)) is None:
            if child.poll() is not None and self._written(tag) is None:
                last = order.with_suffix(".out").read_text(errors="replace").strip().splitlines()[-1:]
                raise UsageError(last[0] if last else f"the run ended at once with exit code {child.returncode}")
            if time.monotonic() > deadline:
                raise MaybeQueuedError(f"the run of {tag} takes long to start")
            time.sleep(0.05)
        return job

    def find(self, tag: str) -> str | None:
        """By its directory; one that nothing was ever started in does not count."""
        starting = self._lives(tag)
        job = self._written(tag)
        if job is not None:
            found = self._job(job)
            begun = found is not None and found.state is not None and found.state.exists()
            return job if starting or begun else None
        if starting:
            raise UnreachableError(f"the run of {tag} is about to start")
        return None

    def look(self, trial: Trial, job: str, tag: str) -> Look:
        """Whether its processes live."""
        for child in self._children:
            child.poll()  # an ended child is no process any more
        found = self._job(job)
        if found is None:
            return Look("ended", "its directory is gone")
        seen = standing(found)
        if seen.state == "unknown":
            return Look("unknown", seen.meaning)
        # Before its agent has written down its process id, nothing but the process that starts it is there.
        if not seen.ended or (seen.state == "lost" and self._lives(tag)):
            return self._moving(job)
        return Look("ended", seen.meaning)

    def cancel(self, trial: Trial, job: str, tag: str) -> None:
        """End it; a directory that does not carry the tag is not ours."""
        found = self._job(job)
        if found is None or found.dir is None or not found.dir.name.endswith(f"-{tag}"):
            raise UsageError(f"job {job} is not one of this sweep: not cancelled")
        cancel_job(found)

    def measure(self, trial: Trial, job: str) -> Result:
        """What came of it."""
        found = self._job(job)
        seen = standing(found) if found is not None else None
        return self._measured(trial, job, seen.state if seen else "lost", seen.meaning if seen else "is gone")

    def _lives(self, tag: str) -> bool:
        """Whether the process that looks after the run is there."""
        return any(processes_with(f"/{tag}.json"))


def main(order: Path) -> int:
    """Carry out one order: start the run, keep it going, end when it ends."""
    said = json.loads(order.read_bytes())
    workspace = Path(said["workspace"])
    typed = ["run", said["spec"], "-n", str(said["procs"]), "--", *said["words"]]
    frozen = code_of(Path.cwd(), workspace, None)
    how = How("local", typed, int(said["procs"]), bool(said["observe"]), provenance=frozen)
    plan = plan_local(parse_model_spec(said["spec"]), parse_passthrough(said["words"]), workspace, how)
    started = LocalRun.start(plan)
    signal.signal(signal.SIGTERM, lambda *_: started.cancel())
    while (code := started.supervise()) is None:
        time.sleep(_LOOK_S)
    started.wait_closed()
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except TrackwalkerError as e:
        print(e, file=sys.stderr)
        sys.exit(e.exit_code)
