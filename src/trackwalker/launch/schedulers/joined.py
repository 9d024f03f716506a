"""One node's part of a command that is recorded on several: an agent on each node, the recorder on the first."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

from trackwalker.job.journal import read
from trackwalker.job.whole import write_whole
from trackwalker.launch.schedulers.local import LocalRun


class JoinedRun(LocalRun):
    """The agent of this node, looked after by the node's first task."""

    def _write(self) -> None:
        if self.plan.agent.is_first:
            with contextlib.suppress(FileExistsError):
                (self.job_dir / "log").symlink_to(Path("..") / self.plan.log.name)
            with self.plan.log.open("ab") as log:  # a requeued job goes on in the same log
                log.write(self.plan.header.encode("utf-8", "surrogateescape"))
            self.record.save(self.job_dir / "run.json")
            if self.plan.provenance is not None:
                self.plan.provenance.save(self.job_dir)
        write_whole(self._spec_file, json.dumps(dataclasses.asdict(self.plan.agent), default=str), mode=0o600)

    @property
    def _spec_file(self) -> Path:
        return self.plan.agent.spec_file

    def _run_end(self) -> int | None:
        if not self.plan.agent.is_first:
            ended = self._agent.poll() if self._agent is not None else 1
            return None if ended is None else 0  # how its tasks ended the first node knows
        for record in reversed(read(self.job_dir / "events.jsonl").items):
            if record.get("kind") == "run-end" and record["t"] > self.record.created:
                return int(record["data"]["exit"] or 0)
        return None
