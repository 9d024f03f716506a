"""A job directory as an agent writes it, a recorder beside it, and a target that counts its scrapes."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trackwalker.job.journal import Journal
from trackwalker.job.processes import alive, read_stat
from trackwalker.job.services import USER, login_of
from trackwalker.telemetry.store import open_database


class Exporter:
    """A target whose one metric counts its scrapes: a hole in the recorded values is a lost sample.

    It answers as the agent of a job, or (None) as some other program.
    """

    def __init__(self, series: int = 1, job_id: str | None = "1", port: int = 0) -> None:
        self.scrapes = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # self is the exporter
                self.scrapes += handler.path.endswith("/metrics")
                body = "".join(f'scrapes_total{{host="h{i}"}} {self.scrapes}\n' for i in range(series))
                handler.send_response(200)
                if job_id is not None:
                    handler.send_header("Trackwalker-Job", job_id)
                handler.end_headers()
                handler.wfile.write(body.encode())

            def log_message(handler, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Job:
    """A job directory with what an agent would write, and the recorder beside it."""

    def __init__(self, root: Path) -> None:
        self.id, self.dir = "1", root / "1-JAX-test"
        (self.dir / "agent").mkdir(parents=True)
        self.local = root / "local"
        self.output = root / "recorder.out"
        self.recorder: subprocess.Popen[bytes] | None = None
        stat = read_stat(os.getpid())
        assert stat is not None
        state = {"agent": {"pid": os.getpid(), "start": stat.start}, "ranks": []}
        (self.dir / "agent" / "state.json").write_text(json.dumps(state))
        self.event("rank-start")

    def event(self, kind: str) -> None:
        journal = Journal(self.dir / "events.jsonl")
        journal.append({"kind": kind, "data": {}})
        journal.close()

    def announce(self, *exporters: Exporter) -> None:
        groups = [{"targets": [e.address for e in exporters], "labels": {"job_id": "1"}}]
        (self.dir / "agent" / "new").write_text(json.dumps(groups))
        (self.dir / "agent" / "targets").mkdir(exist_ok=True)
        (self.dir / "agent" / "new").rename(self.dir / "agent" / "targets" / "box.json")

    def start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "trackwalker.observe", "--job-dir", str(self.dir), "--job-id", self.id]
        env = {**os.environ, "TRACKWALKER_LOCAL": str(self.local)}
        with self.output.open("ab") as out:
            self.recorder = subprocess.Popen(argv, stdout=out, stderr=out, env=env, start_new_session=True)
        return self.recorder

    def server(self) -> dict[str, Any]:
        """Where Prometheus is, once it says so."""
        path = self.dir / "services" / "prometheus.json"
        wait_for(path.exists, 20, self.output)
        about: dict[str, Any] = json.loads(path.read_text())
        return {**about, "access": f"http://{USER}:{login_of(self.dir)}@127.0.0.1:{about['port']}"}

    def counts(self) -> dict[str, list[int]]:
        """The recorded counter of each exporter, in order of time."""
        with open_database(self.dir / "prometheus") as t:
            assert t.damage == []
            found = t.raw("scrapes_total", *t.range())
        for labels, times, _ in found:
            assert (labels["job"], labels["job_id"]) == ("node_hw", "1")
            assert np.median(np.diff(times)) == pytest.approx(1.0, abs=0.1)
        return {labels["instance"]: values.astype(int).tolist() for labels, _, values in found}

    def close(self) -> None:
        if self.recorder is not None and self.recorder.poll() is None:
            self.recorder.kill()
            self.recorder.wait()


def wait_for(condition: Callable[[], bool], seconds: float, log: Path | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s; {log.read_text() if log and log.exists() else ''}")
        time.sleep(0.05)


def gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or not alive(pid, stat.start)
