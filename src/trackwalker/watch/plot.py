"""A job's course as a picture: `python -m trackwalker.watch.plot JOB tgs` writes a PNG to its output.

A program of its own, because reading a large log takes memory that the watcher does not have.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.resolve import resolve
from trackwalker.report.png import line_plot

QUANTITIES = {
    "tgs": "tokens/s/device over steps",
    "step": "step time in seconds over steps",
    "loss": "loss over steps",
}


def draw(job: str, quantity: str) -> bytes | None:
    """The PNG of one quantity over the steps; None where the job has not reported it."""
    found = triage(resolve(job, Path()))
    record, steps = found.record.steps, found.index.steps
    if quantity == "loss":
        return line_plot([float(s) for s in steps.step], [float(v) for v in steps.loss])
    values = record.tgs if quantity == "tgs" else record.seconds
    return line_plot([float(s) for s in record.step], [float(v) for v in values])


def main(argv: list[str]) -> int:
    """Write the picture; exit 1 where there is nothing to draw."""
    try:
        picture = draw(*argv)
    except TrackwalkerError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    if picture is None:
        return 1
    sys.stdout.buffer.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:3]))
