"""A real watcher with a Telegram token: nobody who looks at its processes, its files or its words sees the token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from agent_run import wait_for
from stations import station
from watched_job import SimJob

from trackwalker.job.run import load_run

pytestmark = pytest.mark.timeout(120)
ANNA = 4711


def test_no_token_in_processes_files_and_words_also_when_telegram_fails_and_a_job_prints_it(tmp_path: Path) -> None:
    workspace = tmp_path / "outputs"
    job = a_local_job(workspace)
    with station("telegram", tmp_path) as telegram:
        token = telegram.secret.encode()
        telegram.service.retry_after = 1
        telegram.service.faults.extend([500, "drop", "garbage", 429])
        settings = tmp_path / "watch.yml"
        settings.write_text(yaml.safe_dump({"channels": {"oncall": {**telegram.settings, "users": [ANNA]}}}))
        argv = [sys.executable, "-m", "trackwalker", "watch", "--all", "--json", "--config", str(settings)]
        with (tmp_path / "watch.log").open("wb") as log:
            watcher = subprocess.Popen([*argv, "-w", str(workspace)], stdout=log, stderr=log)
        seen: set[bytes] = set()
        try:
            wait_for(lambda: '"path"' in (workspace / ".watch" / "journal.jsonl").read_text(), 30.0)
            job.event(time.time(), "first-failure", rank=1, exit=1, cause=f"asked bot{telegram.secret} in vain")
            job.event(time.time(), "run-end", exit=1, reason="FAILED")
            telegram.service.says(ANNA, "tail 77")

            def told() -> bool:
                seen.update(words_of_processes(watcher.pid))
                texts = [m.get("text", "") for m in telegram.service.told]
                return any("failed first" in t for t in texts) and any("77" in t and "in vain" not in t for t in texts)

            wait_for(told, 60.0)
        finally:
            watcher.kill()
            watcher.wait()
        assert any(b"watch\0--all" in words for words in seen), "the watcher itself was looked at"
        assert not [words for words in seen if token in words]
        assert token not in (tmp_path / "watch.log").read_bytes()
        (said,) = [m for m in messages(tmp_path / "watch.log") if m["kind"] == "failure"]
        assert "in vain" in said["title"]
        assert not [m for m in telegram.service.told if token in json.dumps(m).encode()]
    # What the job wrote itself is its own; nothing that we write holds it.
    ours = [path for path in workspace.rglob("*") if path.is_file() and path.name != "events.jsonl"]
    assert {".watch/journal.jsonl", ".watch/outbox.jsonl"} <= {str(path.relative_to(workspace)) for path in ours}
    assert not [path for path in ours if token in path.read_bytes()]


def a_local_job(workspace: Path) -> SimJob:
    job = SimJob(workspace)
    record = load_run(job.dir / "run.json")
    assert record is not None
    record.model_copy(update={"scheduler": "local"}).save(job.dir / "run.json")
    job.steps(time.time() - 60.0, 1.0, 60)
    os.utime(job.log)
    return job


def words_of_processes(watcher: int) -> set[bytes]:
    """What `ps` shows of every process, and the environment of the watcher."""
    found = {path.read_bytes() for path in [Path(f"/proc/{watcher}/environ")]}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found.add(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:  # it has ended
            continue
    return found


def messages(log: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
