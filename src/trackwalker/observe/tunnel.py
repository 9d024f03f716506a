"""How to reach a running job's pages from one's own machine: SSH commands to copy; nothing is opened to the network."""

from __future__ import annotations

import getpass
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackwalker.errors import EvidenceError
from trackwalker.job.journal import has_ended, read
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.job.run import Origin, load_run
from trackwalker.job.services import USER, Service, login_of, read_services

SCHEMA = "trackwalker.tunnel/1"
TITLES = {"prometheus": "Prometheus", "tensorboard": "TensorBoard", "ray": "Ray dashboard"}


@dataclass(frozen=True)
class Tunnel:
    """What a job serves now, the commands that lead there, and, where it serves nothing, why."""

    job: str
    services: tuple[Service, ...]
    commands: tuple[str, ...]
    why_none: str | None = None
    password: str = ""  # of Prometheus and TensorBoard, where we may know it

    def lines(self) -> list[str]:
        """For a person."""
        if self.why_none is not None:
            return [self.why_none]
        said = [f"{self.job}: on your own machine run"]
        for i, command in enumerate(self.commands):
            said.append(f"  {command}" if i == 0 else f"or, where that name is not known there\n  {command}")
        said.append("then open")
        said += [f"  {TITLES.get(s.name, s.name):<14} {s.url}" for s in self.services]
        said.append(f"as {USER}, password {self.password}" if self.password else "the password is its owner's")
        first = self.services[0].port
        other = f"-L {10000 + first % 10000}:127.0.0.1:{first}"
        said.append(f"Is a port taken on your side? Change the first number only, such as {other}")
        return said

    def banner(self) -> list[str]:
        """The same in two lines, for the start of a run."""
        pages = "  ".join(f"{TITLES.get(s.name, s.name)} {s.url}" for s in self.services)
        return [pages, f"from elsewhere: {self.commands[0]}  (trackwalker tunnel {self.job} tells the password)"]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        services = [{"name": s.name, "machine": s.machine, "port": s.port, "url": s.url} for s in self.services]
        about = {"schema": SCHEMA, "job": self.job, "services": services, "commands": list(self.commands)}
        login = {"user": USER, "password": self.password} if self.password else None
        return {**about, "login": login, "why_none": self.why_none}


def tunnel(job: Job) -> Tunnel:
    """The way to a job's services as they are now."""
    if job.dir is None or job.run_json is None or not job.run_json.exists():
        return _none(job, f"{job.label} is not a run of ours: it does not say what it serves")
    if _ended(job):
        return _none(job, f"{job.label} has ended: trackwalker tsdb view {job.id} serves what was recorded")
    try:
        record = load_run(job.run_json)
    except EvidenceError:
        record = None
    services = (*read_services(job.dir), *_ray(job.dir))
    if not services:
        if record is not None and not record.observe:
            return _none(job, f"{job.label} is not being recorded: start runs with --observe to have something to see")
        return _none(job, f"{job.label} serves nothing yet: Prometheus comes up with the first metrics, try again soon")
    commands = tuple(_commands(services, record.origin if record else None))
    return Tunnel(job.id, services, commands, password=login_of(job.dir))


def _none(job: Job, why: str) -> Tunnel:
    return Tunnel(job.id, (), (), why)


def _ended(job: Job) -> bool:
    if job.events is not None and has_ended(read(job.events).items):
        return True
    # Killed without a word; on another machine we cannot see that, and the services' own files have to do.
    return not is_live(job.state) and not (job.dir is not None and read_services(job.dir))


def _ray(job_dir: Path) -> list[Service]:
    """Ray keeps its own file, because that holds a secret."""
    try:
        about = json.loads((job_dir / "agent" / "ray.json").read_bytes())
        port = int(str(about["dashboard"]).rpartition(":")[2])
        pid, start = int(about["pid"]), int(about["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    here = [s.machine for s in read_services(job_dir)]
    return [Service("ray", port, pid, start, here[0])] if here else []


def _commands(services: tuple[Service, ...], origin: Origin | None) -> list[str]:
    head = services[0].machine
    user = origin.user if origin is not None else getpass.getuser()
    forward = [word for s in services for word in ("-L", f"{s.port}:127.0.0.1:{s.port}")]
    if origin is None or origin.machine == head:
        places = [[f"{user}@{head}"]]
        if origin is not None and origin.address:
            places.append([*_port(origin.port), f"{user}@{origin.address}"])
    else:
        # The head node is behind the login node; that one has a name inside, and an address that worked from outside.
        jumps = [f"{user}@{origin.machine}"]
        if origin.address:
            jumps.append(f"{user}@{_bracketed(origin.address)}" + ("" if origin.port == 22 else f":{origin.port}"))
        places = [["-J", jump, f"{user}@{head}"] for jump in jumps]
    return [shlex.join(["ssh", "-N", *forward, *place]) for place in places]


def _port(port: int) -> list[str]:
    return [] if port == 22 else ["-p", str(port)]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
