"""A run of the real agent: its job directory, the agents that were started for it, what is left of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.job.journal import read
from trackwalker.node.agent.spec import AgentSpec, RankSpec


class Run:
    """A job directory and the agents that were started for it."""

    def __init__(self, root: Path, bundle: Path, programs: list[str], grace_s: float) -> None:
        self.dir, self.log = root / "local_1_1_ab-JAX-x", root / "local_1_1_ab-JAX-x.log"
        ranks = [RankSpec(r, f"box-r{r}", [sys.executable, "-u", "-c", code]) for r, code in enumerate(programs)]
        spec = AgentSpec("local_1_1_ab", "JAX-x", "x", "box", self.dir, self.log, ranks, len(ranks), grace_s)
        self.sessions: frozenset[int] = frozenset()
        self._spec, self._bundle, self._errors = root / "spec.json", bundle, root / "agent.err"
        self._spec.write_text(json.dumps(dataclasses.asdict(spec), default=str))
        self.agent = self.start()

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with self._errors.open("ab") as errors:
            argv = [sys.executable, "-I", "-S", str(self._bundle), str(self._spec), *options]
            self.agent = subprocess.Popen(argv, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True)
        return self.agent

    def ends(self, seconds: float = 20.0) -> int:
        code = self.agent.wait(seconds)
        assert "Traceback" not in self._errors.read_text()
        return code

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.dir / "agent" / "state.json").read_text())  # type: ignore[no-any-return]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in read(self.dir / "events.jsonl").items if e["kind"] == kind]

    def main(self, rank: int) -> int:
        return int(self.state["ranks"][rank]["main"])

    def left_over(self) -> list[str]:
        """Live processes that carry this job in their environment or stand in a rank's session."""
        time.sleep(0.1)
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                state, session = stat[stat.rfind(b")") + 2 :].split()[0:4:3]
                mine = str(self.dir).encode() in Path(f"/proc/{name}/environ").read_bytes()
                if state != b"Z" and (mine or int(session) in self.sessions):
                    found.append(f"{name} {stat[:60]!r}")
        return found

    def up(self) -> None:
        """Wait until every rank said so, and remember the sessions."""
        wait_for(lambda: self.text.count(": up\n") >= len(self.state["ranks"]))
        self.sessions = frozenset(r["pid"] for r in self.state["ranks"])


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if condition():
                return
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
