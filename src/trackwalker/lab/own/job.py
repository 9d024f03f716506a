"""The whole job directory of a simulated run in our own format."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trackwalker.lab.own.journals import run_record, write_journals
from trackwalker.lab.own.log import CODE, OwnLog
from trackwalker.lab.own.metrics import write_own_sheet
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.sheet.writer import training_scalars
from trackwalker.lab.world import Run
from trackwalker.telemetry.blocks import BlockWriter


def write_own_job(run: Run, sheet: Sheet, log: OwnLog, job: Path) -> int:
    """Write logs, record, journals and database into an empty job directory; returns the number of samples."""
    log.write(job.with_name(f"{job.name}.log"), job / "ranks")
    (job / "log").symlink_to(f"../{job.name}.log")
    CODE.save(job)
    run_record(log, job.parent).save(job / "run.json")
    scalars = training_scalars(sheet)
    told = scalars
    if log.run is not run:  # the database is another run's: this one has losses of its own
        told = scalars | {"learning_loss": np.round(log.run.loss[: len(log.run.ends)], 3)}
    write_journals(log, job, told)
    if not run.spec.ray or log.no_training:
        return 0
    writer = BlockWriter(job / "prometheus", seed=int(run.job_id))
    write_own_sheet(sheet, writer, scalars)
    return writer.close()
