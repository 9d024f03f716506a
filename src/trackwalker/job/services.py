"""What a running job serves and where: a small file for each service, there while the service is."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trackwalker.job.processes import alive, read_stat
from trackwalker.job.whole import read_whole, write_whole

USER = "trackwalker"  # who logs in to a job's pages; the password is in the job's `agent/login.key`, for its owner only


@dataclass(frozen=True)
class Service:
    """A page or an API on a loopback port of one machine."""

    name: str  # prometheus, tensorboard, ray
    port: int
    pid: int
    start: int  # of the process, in clock ticks since boot: with the pid it names a process for good
    machine: str

    @property
    def url(self) -> str:
        """Its address on that machine, and at the near end of a tunnel."""
        return f"http://127.0.0.1:{self.port}"


def announce(job_dir: Path, name: str, port: int, pid: int) -> Service:
    """Write down where a service listens; raises OSError when the job directory cannot be written."""
    stat = read_stat(pid)
    service = Service(name, port, pid, stat.start if stat else 0, socket.gethostname())
    path = _file(job_dir, name)
    # Without parents: where the job directory has vanished, making a new one would hide that.
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json.dumps({"v": 1, **asdict(service), "url": service.url}))
    return service


def withdraw(job_dir: Path, name: str) -> None:
    """The service is no more; the last one to go takes the folder with it."""
    with contextlib.suppress(OSError):
        _file(job_dir, name).unlink(missing_ok=True)
        (job_dir / "services").rmdir()


def read_services(job_dir: Path) -> list[Service]:
    """The services that run, by name. Of another machine's processes only the file can speak."""
    found = []
    for path in sorted((job_dir / "services").glob("*.json")):
        service = _read(path)
        if service is not None and (service.machine != socket.gethostname() or alive(service.pid, service.start)):
            found.append(service)
    return found


def keep_login(job_dir: Path, password: str) -> None:
    """Write down what opens the job's Prometheus and TensorBoard; nobody but the run's owner can read it."""
    path = _login(job_dir)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, password, mode=0o600)


def drop_login(job_dir: Path) -> None:
    """The pages are no more."""
    with contextlib.suppress(OSError):
        _login(job_dir).unlink(missing_ok=True)


def login_of(job_dir: Path) -> str:
    """The password of a job's pages; empty where it is not ours to read, or they have none."""
    try:
        return read_whole(_login(job_dir)).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _login(job_dir: Path) -> Path:
    return job_dir / "agent" / "login.key"


def _file(job_dir: Path, name: str) -> Path:
    return job_dir / "services" / f"{name}.json"


def _read(path: Path) -> Service | None:
    try:
        said: dict[str, Any] = json.loads(read_whole(path))
        port, pid, start = (int(said[key]) for key in ("port", "pid", "start"))
        return Service(str(said["name"]), port, pid, start, str(said["machine"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # gone meanwhile, or not ours
