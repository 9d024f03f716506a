"""The recorder's own folder on node-local disk: the live database, its log, and who may write there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from trackwalker.errors import TrackwalkerError
from trackwalker.job.private import METRICS_TOKEN
from trackwalker.job.shards import SCRAPE_S, Shard
from trackwalker.observe.mirror import followed_by, seed
from trackwalker.observe.remote_write import RemoteWrite

# What Prometheus is told to do: whom to scrape, which rules to evaluate, where to send a second copy.
RULES = Path(__file__).parent / "rules"
RAY_SCRAPE_S = 5  # as upstream: Ray itself looks no more often
RAY_UNWANTED = "ray_grpc_.*|.*_bucket|python_.*|process_.*|target_info"
EVALUATE_S = 5  # forty-odd cheap rules: often enough for an alert, rarely enough not to be felt


def prometheus_config(
    targets: Path,
    ray_targets: Path,
    remote_write: dict[str, Any] | None = None,
    token_file: str = "",
    scrape_s: int = SCRAPE_S,
) -> str:
    """The configuration file: as often as asked, whatever the node agents announce, and Ray where there is one."""
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{scrape_s}s",
            "scrape_timeout": f"{scrape_s}s",
            "evaluation_interval": f"{max(EVALUATE_S, scrape_s)}s",
        },
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {
                "job_name": "node_hw",
                "honor_timestamps": True,
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
                **({"authorization": {"credentials_file": token_file}} if token_file else {}),
            },
            {
                "job_name": "ray",
                "scrape_interval": f"{RAY_SCRAPE_S}s",
                "file_sd_configs": [{"files": [str(ray_targets)], "refresh_interval": "1s"}],
                # What is new with every start of Ray would cut each series; its inner workings say nothing of the run.
                "metric_relabel_configs": [
                    {"action": "labeldrop", "regex": "SessionName|Version|otel_scope_.*"},
                    {"action": "drop", "source_labels": ["__name__"], "regex": RAY_UNWANTED},
                ],
            },
        ],
    }
    if remote_write is not None:
        config["remote_write"] = [remote_write]
    return yaml.safe_dump(config, sort_keys=False)


class LiveDir:
    """Node-local files of one recorded job."""

    def __init__(self, job_dir: Path, job_id: str, shard: Shard = Shard()) -> None:  # noqa: B008 - nobody changes it
        # Two checkouts on one machine may count their jobs alike: the directory's own name decides.
        mark = hashlib.sha256(os.fsencode(job_dir.resolve())).hexdigest()[:8]
        part = f"-shard{shard.number}" if shard.number else ""  # Ray looks for the first one's
        self.root = _base() / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', job_id)}-{mark}{part}"
        self.data = self.root / "prometheus"
        self.log = self.root / "prometheus.log"
        self.config = self.root / "prometheus.yml"
        self.targets = self.root / "targets.json"
        self.ray_targets = self.root / "ray_targets.json"
        self._copy = shard.database(job_dir)
        self._lock = -1

    def claim(self) -> None:
        """Make the folder ours alone; a second recorder of the same job is an error."""
        if "TRACKWALKER_LOCAL" not in os.environ:
            claim_folder(self.root.parent)
        claim_folder(self.root)
        # A kernel lock: a recorder that was killed leaves the file behind, but never the lock.
        self._lock = os.open(self.root / "recorder.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrackwalkerError("another recorder is at work for this job: let it, or stop it first") from None

    def prepare(self, say: Callable[[str], None]) -> None:
        """Have a live database that continues the mirror: what a killed recorder left, else a copy of the mirror."""
        if self.data.exists() and not followed_by(self.data, self._copy):
            # Meanwhile the run went on elsewhere; following this old database would undo what was recorded there.
            say("the local database is older than the mirror: set aside")
            os.rename(self.data, self.root / f"stale-{uuid.uuid4().hex[:8]}")
        if not self.data.exists():
            seed(self._copy, self.data, self.log)
            self.log.touch()

    @property
    def settled(self) -> bool:
        """Whether Prometheus did not end in the middle of rewriting its log."""
        return not any((self.data / "wal").glob("*.repair"))

    def write_config(self, remote: RemoteWrite | None = None, scrape_s: int = SCRAPE_S) -> None:
        """The configuration; secrets of a remote store stay in this private folder."""
        section = remote.section(self.root) if remote is not None else None
        token_file = os.environ.get(METRICS_TOKEN, "")
        self.config.write_text(prometheus_config(self.targets, self.ray_targets, section, token_file, scrape_s))

    def remove(self) -> None:
        """Remove everything; only right after the mirror holds all of it."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _base() -> Path:
    chosen = os.environ.get("TRACKWALKER_LOCAL")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"trackwalker-{os.getuid()}"


def claim_folder(folder: Path) -> None:
    """Have this folder as ours alone, or say that it is somebody else's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In a shared /tmp the name is predictable: somebody else's folder or link there is not ours to write to.
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise TrackwalkerError(f"{folder} belongs to somebody else: set TRACKWALKER_LOCAL to a folder of your own")
