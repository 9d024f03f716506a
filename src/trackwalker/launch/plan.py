"""What exactly would run: decided once, written down, then started."""

from __future__ import annotations

import getpass
import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackwalker import __version__
from trackwalker.errors import UsageError
from trackwalker.job.processes import free_port, short_hostname
from trackwalker.job.run import Origin, RankPlace, RunRecord, Setting
from trackwalker.job.scrub import shown
from trackwalker.job.shards import recorders
from trackwalker.launch.code.provenance import NAME, Provenance, git_summary
from trackwalker.launch.request.keys import bad_values, missing_trainer, unknown_keys
from trackwalker.launch.request.models import Model, load_model
from trackwalker.launch.request.resolved import Resolved, Target, resolve
from trackwalker.launch.request.words import ModelSpec, Passthrough, job_name
from trackwalker.launch.resubmit import knobs
from trackwalker.node.agent.spec import AgentSpec, RankSpec
from trackwalker.node.runtimes import gpu_vendor

MOST_PROCS = 64
CONFIG = "config.yml"
NOWHERE: Mapping[str, Setting] = {}


# Where a run was asked for: the machine that people can reach, for tunnels to machines that they cannot.
def origin(env: Mapping[str, str] = os.environ) -> Origin:
    """This machine and this user; over SSH also the address that the user's own machine reached us by."""
    # SSH_CONNECTION: client address, client port, server address, server port. Nobody on the internet is asked.
    words = env.get("SSH_CONNECTION", "").split()
    address, port = (words[2], int(words[3])) if len(words) == 4 and words[3].isdecimal() else (None, 22)
    machine = env.get("TRACKWALKER_LOGIN") or socket.gethostname()
    return Origin(machine=machine, user=_user(env), address=address, port=port)


def _user(env: Mapping[str, str]) -> str:
    try:
        return env.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "root" if os.getuid() == 0 else str(os.getuid())


@dataclass(frozen=True)
class Plan:
    """One run, fully resolved: the record that is kept, the agent's orders, the environment and the log's header."""

    record: RunRecord
    agent: AgentSpec
    env: dict[str, str]
    header: str
    log: Path
    config_yaml: str  # what the trainer reads
    provenance: Provenance | None = None


@dataclass(frozen=True)
class How:
    """How a run is to be carried out, beyond what it is."""

    scheduler: str  # local, slurm, kubernetes
    argv: list[str]  # what the user typed
    procs: int = 1  # processes on each node
    observe: bool = False
    ray: bool = False
    runtime: str = "native"
    privileged: bool = False
    python: str = sys.executable  # that runs the trainer: the container's own, or this one on a shared file system
    policy: dict[str, str] = field(default_factory=dict)
    listen: str = ""
    snapshot: str = ""  # hash of the code snapshot
    workdir: str = ""
    provenance: Provenance | None = None  # of the code; None: nobody looked
    flags: Mapping[str, Any] = field(default_factory=dict)  # of the command line, that only the nodes read


class Settled:
    """A request as every scheduler carries it out: what trainer, log header and record are told of it, decided once."""

    def __init__(
        self, resolved: Resolved, spec: ModelSpec, passthrough: Passthrough, workspace: Path, how: How
    ) -> None:
        self.resolved, self.passthrough, self.how = resolved, passthrough, how
        self.spec = replace(spec, model=resolved.model.name)
        self.trainer = resolved.model.about.trainer
        self.name = job_name(self.spec)
        self.workspace = workspace.absolute()
        self.created = time.time()
        self.env = {key: str(setting.value) for key, setting in resolved.env.items()}
        beyond = {k: str(v) for k, v in resolved.settings_beyond_the_file().items() if k not in passthrough.config}
        self.settings = {**beyond, **passthrough.config}  # beside the trainer's file
        self.elsewhere = passthrough.config.get("base_output_directory")
        self.shared = shared_output(resolved, self.spec, passthrough, self.workspace)
        self.header = header_words(self.spec, passthrough, how.provenance)

    def program(self, python: str, folder: Path, config: Path) -> list[str]:
        """What a rank runs, before its settings; `folder` holds the agent."""
        return [python, "-u", *trainer_program(self.trainer, folder), str(config)]

    def record(
        self, job_id: str, command: list[str], placed: Mapping[str, Setting] = NOWHERE, ranks: Sequence[RankPlace] = ()
    ) -> RunRecord:
        """What is kept of the run; `placed` are settings that follow from where it lies."""
        return RunRecord(
            id=job_id,
            name=self.name,
            model=self.spec.model,
            alias=self.spec.alias,
            tag=self.spec.tag,
            scheduler=self.how.scheduler,
            trainer=self.trainer,
            created=self.created,
            argv=[starred(word) for word in self.how.argv],
            command=command,
            config={**self.resolved.config, **placed, **shown_words(self.passthrough.config)},
            env=shown_env(self.resolved.env),
            ranks=list(ranks),
            observe=self.how.observe,
            ray=self.how.ray,
            workspace=str(self.workspace),
            origin=origin(),
            code=code_facts(self.how.provenance),
            knobs=knobs(os.environ),
            snapshot=self.how.snapshot,
        )


def plan_local(spec: ModelSpec, passthrough: Passthrough, workspace: Path, how: How) -> Plan:
    """Plan a run on this machine: one lane per rank process, all over loopback."""
    procs = how.procs
    if not 1 <= procs <= MOST_PROCS:
        raise UsageError(f"-n {procs}: between 1 and {MOST_PROCS} processes on one machine")
    model = load_model(spec.model)
    # The small trainer says by itself which keys it knows; MaxText would say so after a minute.
    trainer = model.about.trainer
    if trainer != "tiny" and (unknown := unknown_keys(trainer, passthrough.config, model.about.keys)):
        raise UsageError("; ".join(unknown))
    target = Target(gpus_per_node=model.about.gpus_per_node, vendor=gpu_vendor() or None)
    run = Settled(resolve(model, target, passthrough.config, passthrough.env), spec, passthrough, workspace, how)
    job_id = new_local_id(run.created)
    job_dir = run.workspace / f"{job_id}-{run.name}"
    box, port = short_hostname(), free_port()
    hosts = [f"{box}-r{r}" for r in range(procs)]
    output = run.elsewhere or run.shared or str(job_dir)
    settings = {"base_output_directory": output, **run.settings}
    command = run.program(sys.executable, job_dir / "agent", job_dir / CONFIG)
    command += [f"{k}={v}" for k, v in settings.items()]
    common = {
        "JOB_ID": job_id,
        "JOB_NAME": run.name,
        "NNODES": str(procs),
        "JOB_WORKSPACE": str(run.workspace),
        "JOB_DIR": job_dir.name,
    }
    if procs > 1:
        common |= {"JAX_COORDINATOR_IP": "127.0.0.1", "JAX_COORDINATOR_PORT": str(port)}
    ranks = [
        RankSpec(r, host, command, {**common, "NODE_RANK": str(r), "TRACKWALKER_HOST": host})
        for r, host in enumerate(hosts)
    ]
    record = run.record(
        job_id,
        [starred(word) for word in command],
        {"base_output_directory": Setting(value=output, source="layout")},
        [RankPlace(rank=r, host=h, node=box) for r, h in enumerate(hosts)],
    )
    log = run.workspace / f"{job_dir.name}.log"
    agent = AgentSpec(
        job_id=job_id,
        job_name=run.name,
        model=run.spec.model,
        node=box,
        job_dir=job_dir,
        log=log,
        ranks=ranks,
        world=procs,
        nodes=procs,
        tensorboard=event_folder(run.resolved, output),
    )
    rows = [
        f"JOB_ID={job_id}",
        f"JOB_NAME={run.name}",
        f"NNODES={procs}",
        f"JOB_NODELIST={hosts[0] if procs == 1 else f'{box}-r[0-{procs - 1}]'}",
        f"JAX_COORDINATOR_PORT={port}",
        *run.header,
    ]
    return Plan(record, agent, run.env, "\n".join(rows) + "\n", log, model.trainer_yaml(), how.provenance)


def refuse_wrong(model: Model, passthrough: Passthrough) -> None:
    """Raise what the trainer would say only once it runs: settings it does not take, a package that is not here."""
    trainer = model.about.trainer
    wrong = unknown_keys(trainer, passthrough.config, model.about.keys)
    if not wrong and trainer == "tiny":
        wrong = bad_values(model.path, passthrough.config)
    if not wrong and "PYTHONPATH" not in passthrough.env:  # there the trainer may be somewhere else
        wrong = missing_trainer(trainer)
    if wrong:
        raise UsageError("; ".join(wrong))


def trainer_program(trainer: str, folder: Path) -> list[str]:
    """What Python runs: that of MaxText, in an image or beside us, has no trackwalker; the agent carries the hook."""
    return [str(folder / "agent.pyz"), "maxtext"] if trainer == "maxtext" else ["-m", f"trackwalker.trainers.{trainer}"]


def event_folder(resolved: Resolved, output: str) -> Path:
    """Where rank 0 writes its event files; MaxText adds the name of the run once more."""
    name = str(resolved.config["run_name"].value) if "run_name" in resolved.config else resolved.model.name
    folder = Path(output, name, "tensorboard")
    return folder / name if resolved.model.about.trainer == "maxtext" else folder


def services(python: str, observe: bool, ray: bool, nodes: int = 1) -> dict[str, list[str]]:
    """What runs beside training: recorders, and Ray."""
    found = recorders([python, "-m", "trackwalker.observe"], nodes) if observe else {}
    return {**found, "ray": [python, "-m", "trackwalker.observe.ray"]} if ray else found


def new_local_id(now: float) -> str:
    """`local_<date>_<time>_<4 hex>`, the form that every reader of job directories knows."""
    return f"local_{datetime.fromtimestamp(now, UTC):%Y%m%d_%H%M%S}_{secrets.token_hex(2)}"


def shared_output(resolved: Resolved, spec: ModelSpec, passthrough: Passthrough, workspace: Path) -> str:
    """Runs of a model that keep checkpoints share a directory, so that the next one can restore; empty: the job's own.

    Read from the resolved config, not from the words: it does not matter who switched checkpoints on. The small trainer
    keeps them in every run, and shares them only when asked to on the command line.
    """
    asked = resolved.model.about.trainer == "maxtext" or "enable_checkpointing" in passthrough.config
    keeps = asked and "enable_checkpointing" in resolved.effective and resolved.effective.flag("enable_checkpointing")
    return str(workspace / (spec.alias or spec.model)) if keeps else ""


def header_words(spec: ModelSpec, passthrough: Passthrough, provenance: Provenance | None) -> list[str]:
    """What the log's header says about the request and its code, line by line."""
    words = [f"{k}={shown(k, v)}" for k, v in passthrough.config.items()]
    words += [f"_env_{k}={shown(k, v)}" for k, v in passthrough.env.items()]
    rows = [f'PASSTHROUGH_ARGS="{" ".join(words)}"', f"MODEL_NAME={spec.model}"]
    rows += [f"MODEL_NAME_ALIAS={spec.alias}"] if spec.alias else []
    rows += [f"EXP_TAG={spec.tag}"] if spec.tag else []
    rows = [row.replace("\n", " ") for row in rows]
    if provenance is None:
        return rows
    # Not the patch itself: one that touches a log reader would read as steps, errors and summaries of this run.
    said = f"{len(provenance.patch)} characters, in {NAME}" if provenance.patch else ""
    return rows + git_summary(provenance.model_copy(update={"patch": said, "patch_cut": 0})).splitlines()


def shown_env(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The environment for the record, secrets starred."""
    return {k: Setting(value=_text(shown(k, str(s.value))), source=s.source) for k, s in settings.items()}


def shown_words(settings: dict[str, str]) -> dict[str, Setting]:
    """The user's settings for the record, secrets starred."""
    return {_text(k): Setting(value=_text(shown(k, v)), source="command line") for k, v in settings.items()}


def starred(word: str) -> str:
    """A word of the command line for the record: a secret's value is starred."""
    key, eq, value = word.partition("=")
    return _text(f"{key}={shown(key.lstrip('-').removeprefix('_env_'), value)}" if eq else shown("", word))


def _text(word: str) -> str:
    """A word for the record: bytes that are no UTF-8 reach the trainer as they are, but JSON cannot hold them."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def code_facts(provenance: Provenance | None) -> dict[str, str]:
    """What this run was launched by and from: our version, Python, the kernel, the commit of the code."""
    code = {"trackwalker": __version__, "python": platform.python_version(), "kernel": platform.release()}
    return {**code, **(provenance.facts() if provenance is not None else {})}
