"""From a scenario and a seed to a job directory, and the truth beside it."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from trackwalker.errors import UsageError
from trackwalker.lab.faults import FAULTS
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.own.ends import end_at_first_failure
from trackwalker.lab.own.job import write_own_job
from trackwalker.lab.own.log import OwnLog
from trackwalker.lab.scenario import Draws, Scenario, Truth
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.sheet.writer import write_sheet
from trackwalker.lab.variants import AS_WRITTEN, Variant, shifted_host
from trackwalker.lab.world import EPOCH, PROFILES, Run, WorldSpec, make_hosts
from trackwalker.telemetry.blocks import BlockWriter

Format = Literal["upstream", "ours"]  # whose launcher the job directory seems to come from


@dataclass(frozen=True)
class Simulated:
    """Where a simulated job lies and what is true about it."""

    workspace: Path
    job: Path
    truth: Truth
    samples: int
    hours: float


def simulate(
    scenario: Scenario,
    out: Path,
    seed: int = 1,
    nodes: int | None = None,
    gpus: int | None = None,
    profile: str | None = None,
    variant: Variant = AS_WRITTEN,
    form: Format = "upstream",
    recorders: int = 1,
) -> Simulated:
    """Write one job of a scenario under `out/outputs`; `out/truth.json` holds the answer.

    Several recorders share the hosts of a large cluster and write their blocks at the same time.
    """
    rng = np.random.default_rng([seed, scenario.seed])
    world = dict(scenario.world)
    world |= variant.world({"nodes": nodes, "gpus": gpus, "profile": profile})
    drawn = {k for k, v in world.items() if str(v).startswith("$")}  # known once the hosts are, which need the rest
    spec = _world(scenario, {k: v for k, v in world.items() if k not in drawn})
    if spec.profile not in PROFILES:
        raise UsageError(f"no GPU profile '{spec.profile}'; known: {', '.join(PROFILES)}")
    if spec.hosts and len(spec.hosts) != spec.nodes:
        raise UsageError(
            f"scenario {scenario.family}: its {len(spec.hosts)} hosts have names; it cannot be made with {spec.nodes}"
        )
    hosts = spec.hosts or make_hosts(spec.nodes, rng)
    draws = Draws(hosts, spec.gpus, rng)
    draws.bind(scenario.draw)
    spec = _world(scenario, draws.fill(world))
    if variant.skew_s:
        spec.clock_skew_s[shifted_host(hosts, seed)] = variant.skew_s
    start = float(EPOCH + int(rng.integers(0, 200)) * 86_400 + int(rng.integers(0, 86_400)))
    run = Run(spec, hosts, spec.job_id or str(int(rng.integers(4000, 9999))), start, rng)
    shows = []
    for entry in scenario.faults:
        filled = variant.fault(draws.fill(entry))
        kind = filled.pop("kind")
        if kind not in FAULTS:
            raise UsageError(f"scenario {scenario.family}: no fault '{kind}'; known: {', '.join(sorted(FAULTS))}")
        try:
            shows.append(FAULTS[kind](run, **filled))
        except TypeError as e:
            raise UsageError(f"scenario {scenario.family}: fault '{kind}': {e}") from e
    run.play()
    if spec.ends_at is not None:
        run.end_at(spec.ends_at.timestamp())
    if variant.cut is not None:
        run.cut(variant.cut)
    sheet = Sheet(run)
    log = OwnLog(run, sheet) if form == "ours" else JobLog(run)
    for show in shows:
        show(sheet, log)
    for pattern in variant.dropped(seed):
        sheet.absent(pattern)
    truth = variant.truth(Truth(**draws.fill(scenario.truth)))
    if isinstance(log, OwnLog) and end_at_first_failure(log, sheet) and truth.status:
        truth = truth.model_copy(update={"status": ["failed"]})
    return write_job(run, sheet, log, out, truth, recorders)


def _world(scenario: Scenario, world: dict[str, Any]) -> WorldSpec:
    try:
        return WorldSpec(**world)
    except ValidationError as e:
        first = e.errors()[0]
        raise UsageError(
            f"scenario {scenario.family}: world: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from e


def write_job(run: Run, sheet: Sheet, log: JobLog, out: Path, truth: Truth, recorders: int = 1) -> Simulated:
    """Write what a played run left: log, worker logs, database, the truth beside the workspace."""
    workspace = out / "outputs"
    name = f"{run.job_id}-JAX-{run.spec.model}"
    job = workspace / name
    job.mkdir(parents=True)
    (out / "truth.json").write_text(truth.model_dump_json(indent=1) + "\n")
    hours = (run.end - run.start) / 3600.0
    if isinstance(log, OwnLog):
        return Simulated(workspace, job, truth, write_own_job(run, sheet, log, job), hours)
    log.write(workspace / f"{name}.log", job / "ray_logs")
    (job / "log").symlink_to(f"../{name}.log")
    artifact = workspace / ".artifacts" / f"artifact_{run.start:.0f}_{run.job_id}"
    artifact.mkdir(parents=True)
    (artifact / "git_summary.txt").write_text("## main...origin/main\n")
    (job / "artifact").symlink_to(f"../.artifacts/{artifact.name}")
    samples = 0
    if run.spec.ray and not log.no_training:
        samples = _write_database(sheet, job / "prometheus", int(run.job_id), recorders)
    return Simulated(workspace, job, truth, samples, hours)


def _write_database(sheet: Sheet, folder: Path, seed: int, recorders: int) -> int:
    def record(part: int) -> int:
        writer = BlockWriter(folder, seed=seed + part)
        write_sheet(sheet, writer, part, recorders)
        return writer.close()

    if recorders == 1:
        return record(0)
    told: Queue[int] = get_context("fork").Queue()  # forked: what a sheet holds cannot be sent
    children = [get_context("fork").Process(target=lambda p=part: told.put(record(p))) for part in range(recorders)]
    for child in children:
        child.start()
    samples = 0
    for child in children:
        child.join()
        if child.exitcode != 0:
            raise RuntimeError(f"a recorder ended with {child.exitcode}")
        samples += told.get()
    return samples
