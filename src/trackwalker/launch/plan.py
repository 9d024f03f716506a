"""What exactly would run: decided once, written down, then started."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from trackwalker import __version__
from trackwalker.errors import UsageError
from trackwalker.job.redact import redact
from trackwalker.job.run import RankPlace, RunRecord, Setting
from trackwalker.launch.again import knobs
from trackwalker.launch.models import load_model
from trackwalker.launch.origin import origin
from trackwalker.launch.request import ModelSpec, Passthrough, job_name
from trackwalker.node.spec import AgentSpec, RankSpec

MOST_PROCS = 64


@dataclass(frozen=True)
class Plan:
    """One run, fully resolved: the record that is kept, the agent's orders, the environment and the log's header."""

    record: RunRecord
    agent: AgentSpec
    env: dict[str, str]
    header: str
    log: Path


def plan_local(
    spec: ModelSpec,
    procs: int,
    passthrough: Passthrough,
    workspace: Path,
    observe: bool,
    argv: list[str],
    ray: bool = False,
) -> Plan:
    """Plan a run on this machine: one lane per rank process, all over loopback."""
    if not 1 <= procs <= MOST_PROCS:
        raise UsageError(f"-n {procs}: between 1 and {MOST_PROCS} processes on one machine")
    model = load_model(spec.model)
    spec = replace(spec, model=model.name)
    shipped = model.config
    now = time.time()
    job_id = f"local_{datetime.fromtimestamp(now, UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(2)}"
    name = job_name(spec)
    workspace = workspace.absolute()
    job_dir = workspace / f"{job_id}-{name}"
    box = short_hostname()
    hosts = [f"{box}-r{r}" for r in range(procs)]
    port = free_port()

    config = {k: Setting(value=v, source=f"model {spec.model}") for k, v in shipped.items()}
    config["base_output_directory"] = Setting(value=str(_output_root(spec, passthrough, job_dir)), source="layout")
    settings = {"base_output_directory": config["base_output_directory"].value, **passthrough.config}
    run_name = str(passthrough.config.get("run_name") or shipped.get("run_name") or "tiny")
    config |= shown_words(passthrough.config)
    command = [sys.executable, "-u", "-m", "trackwalker.trainers.tiny", str(model.path)]
    command += [f"{k}={v}" for k, v in settings.items()]

    common = {
        "JOB_ID": job_id,
        "JOB_NAME": name,
        "NNODES": str(procs),
        "JOB_WORKSPACE": str(workspace),
        "JOB_DIR": job_dir.name,
    }
    if procs > 1:
        common |= {"JAX_COORDINATOR_IP": "127.0.0.1", "JAX_COORDINATOR_PORT": str(port)}
    ranks = [
        RankSpec(r, host, command, {**common, "NODE_RANK": str(r), "TRACKWALKER_HOST": host})
        for r, host in enumerate(hosts)
    ]
    record = RunRecord(
        id=job_id,
        name=name,
        model=spec.model,
        alias=spec.alias,
        tag=spec.tag,
        scheduler="local",
        trainer="tiny",
        created=now,
        argv=[starred(a) for a in argv],
        command=[starred(c) for c in command],
        config=config,
        env=shown_words(passthrough.env),
        ranks=[RankPlace(rank=r, host=h, node=box) for r, h in enumerate(hosts)],
        observe=observe,
        ray=ray,
        workspace=str(workspace),
        origin=origin(),
        code=tool_versions(),
        knobs=knobs(os.environ),
    )
    log = workspace / f"{job_dir.name}.log"
    agent = AgentSpec(
        job_id=job_id,
        job_name=name,
        model=spec.model,
        node=box,
        job_dir=job_dir,
        log=log,
        ranks=ranks,
        world=procs,
        nodes=procs,
        tensorboard=Path(settings["base_output_directory"], run_name, "tensorboard"),
    )
    return Plan(record, agent, dict(passthrough.env), _header(record, hosts, port, passthrough), log)


def _output_root(spec: ModelSpec, passthrough: Passthrough, job_dir: Path) -> Path:
    # Upstream's rule: checkpointing runs of a model share a directory, so that the next run can restore.
    checkpointing = passthrough.config.get("enable_checkpointing", "").lower() in ("true", "1", "yes")
    return job_dir.parent / (spec.alias or spec.model) if checkpointing else job_dir


def _header(record: RunRecord, hosts: list[str], port: int, passthrough: Passthrough) -> str:
    words = [f"{k}={redact(k, v)}" for k, v in passthrough.config.items()]
    words += [f"_env_{k}={redact(k, v)}" for k, v in passthrough.env.items()]
    box = record.ranks[0].node
    nodelist = hosts[0] if len(hosts) == 1 else f"{box}-r[0-{len(hosts) - 1}]"
    rows = [
        f"JOB_ID={record.id}",
        f"JOB_NAME={record.name}",
        f"NNODES={len(hosts)}",
        f"JOB_NODELIST={nodelist}",
        f"JAX_COORDINATOR_PORT={port}",
        f'PASSTHROUGH_ARGS="{" ".join(words)}"',
        f"MODEL_NAME={record.model}",
    ]
    rows += [f"MODEL_NAME_ALIAS={record.alias}"] if record.alias else []
    rows += [f"EXP_TAG={record.tag}"] if record.tag else []
    return "\n".join(row.replace("\n", " ") for row in rows) + "\n"


def shown_words(settings: dict[str, str]) -> dict[str, Setting]:
    """The user's settings for the record, secrets starred."""
    return {_text(k): Setting(value=_text(redact(k, v)), source="command line") for k, v in settings.items()}


def starred(word: str) -> str:
    """A word of the command line for the record: a secret's value is starred."""
    key, eq, value = word.partition("=")
    return _text(f"{key}={redact(key.lstrip('-').removeprefix('_env_'), value)}" if eq else word)


def _text(word: str) -> str:
    """A word for the record: bytes that are no UTF-8 reach the trainer as they are, but JSON cannot hold them."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def tool_versions() -> dict[str, str]:
    """What this run was launched by: our version and commit, Python, the kernel."""
    code = {"trackwalker": __version__, "python": platform.python_version(), "kernel": platform.release()}
    git = shutil.which("git")
    if git:
        here = Path(__file__).parent
        answer = subprocess.run(
            [git, "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        if answer.returncode == 0:
            code["commit"] = answer.stdout.strip()
    return code


def short_hostname() -> str:
    """This machine's name as the `host` label carries it."""
    return os.environ.get("TRACKWALKER_NODE") or socket.gethostname().split(".")[0] or "box"


def free_port() -> int:
    """A loopback port nobody listens on right now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
