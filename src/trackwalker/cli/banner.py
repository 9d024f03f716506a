"""The two lines that tell, at the start of a recorded run, where its pages are."""

from __future__ import annotations

import time

from trackwalker.job.layout import Job
from trackwalker.observe import tensorboard
from trackwalker.observe.tunnel import tunnel

_PATIENCE_S = 30.0  # TensorBoard comes with the first event file, and needs seconds to load


class Banner:
    """Says once where Prometheus and TensorBoard are, as soon as they are there."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._first_seen: float | None = None
        self._said = False

    def due(self) -> list[str]:
        """The lines, at the one moment they are due; else nothing."""
        if self._said:
            return []
        found = tunnel(self._job)
        names = {service.name for service in found.services}
        if "prometheus" not in names:
            return []
        now = time.monotonic()
        self._first_seen = self._first_seen or now
        wanted = tensorboard.installed()
        if wanted and "tensorboard" not in names and now - self._first_seen < _PATIENCE_S:
            return []
        self._said = True
        return found.banner() + ([] if wanted else [tensorboard.MISSING])
