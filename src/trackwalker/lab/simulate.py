"""From a scenario and a seed to a job directory, and the truth beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trackwalker.errors import UsageError
from trackwalker.lab.blocks import BlockWriter
from trackwalker.lab.faults import FAULTS
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.scenario import Draws, Scenario, Truth
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.sheet.writer import write_sheet
from trackwalker.lab.world import EPOCH, PROFILES, Run, WorldSpec, make_hosts


@dataclass(frozen=True)
class Simulated:
    """Where a simulated job lies and what is true about it."""

    workspace: Path
    job: Path
    truth: Truth
    samples: int


def simulate(
    scenario: Scenario,
    out: Path,
    seed: int = 1,
    nodes: int | None = None,
    gpus: int | None = None,
    profile: str | None = None,
) -> Simulated:
    """Write one job of a scenario under `out/outputs`; `out/truth.json` holds the answer."""
    rng = np.random.default_rng([seed, sum(scenario.family.encode())])
    world = dict(scenario.world)
    world |= {k: v for k, v in {"nodes": nodes, "gpus": gpus, "profile": profile}.items() if v is not None}
    spec = WorldSpec(**world)
    if spec.profile not in PROFILES:
        raise UsageError(f"no GPU profile '{spec.profile}'; known: {', '.join(PROFILES)}")
    hosts = make_hosts(spec.nodes, rng)
    draws = Draws(hosts, spec.gpus, rng)
    draws.bind(scenario.draw)
    spec = WorldSpec(**draws.fill(world))
    start = float(EPOCH + int(rng.integers(0, 200)) * 86_400 + int(rng.integers(0, 86_400)))
    run = Run(spec, hosts, str(int(rng.integers(4000, 9999))), start, rng)
    shows = []
    for entry in scenario.faults:
        filled = draws.fill(entry)
        kind = filled.pop("kind")
        if kind not in FAULTS:
            raise UsageError(f"scenario {scenario.family}: no fault '{kind}'; known: {', '.join(sorted(FAULTS))}")
        shows.append(FAULTS[kind](run, **filled))
    run.play()
    sheet, log = Sheet(run), JobLog(run)
    for show in shows:
        show(sheet, log)
    return _write(run, sheet, log, out, Truth(**draws.fill(scenario.truth)))


def _write(run: Run, sheet: Sheet, log: JobLog, out: Path, truth: Truth) -> Simulated:
    workspace = out / "outputs"
    name = f"{run.job_id}-JAX-{run.spec.model}"
    job = workspace / name
    job.mkdir(parents=True)
    log.write(workspace / f"{name}.log", job / "ray_logs")
    (job / "log").symlink_to(f"../{name}.log")
    artifact = workspace / ".artifacts" / f"artifact_{run.start:.0f}_{run.job_id}"
    artifact.mkdir(parents=True)
    (artifact / "git_summary.txt").write_text("## main...origin/main\n")
    (job / "artifact").symlink_to(f"../.artifacts/{artifact.name}")
    samples = 0
    if run.spec.ray and not log.no_training:
        writer = BlockWriter(job / "prometheus", seed=int(run.job_id))
        write_sheet(sheet, writer)
        samples = writer.close()
    (out / "truth.json").write_text(json.dumps(truth.model_dump(), indent=1) + "\n")
    return Simulated(workspace, job, truth, samples)
