"""A run on a cluster, decided before it is queued: the nodes' order, the record, and the folder that holds them.

The job needs nothing from the submitting process once the folder is written: whatever happens to the terminal, every
node finds its order there, and the first node makes the job directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackwalker.errors import UsageError
from trackwalker.job.run import RunRecord
from trackwalker.job.trust import distrust, make_folder, ours_alone
from trackwalker.job.whole import write_whole
from trackwalker.launch.code.bundle import build_agent
from trackwalker.launch.code.provenance import NAME as PROVENANCE
from trackwalker.launch.code.provenance import Provenance
from trackwalker.launch.code.snapshot import Snapshot
from trackwalker.launch.plan import CONFIG, Settled, event_folder, services, starred
from trackwalker.launch.plan import How as How
from trackwalker.launch.request.layers import XLA_FLAGS
from trackwalker.launch.request.resolved import Resolved
from trackwalker.launch.request.validate import Asked, Checked, check, parse_timeouts
from trackwalker.launch.request.words import Passthrough, parse_passthrough
from trackwalker.node.stages.order import Order

FOLDER = ".submissions"
_PER_GPU = "ONE_GPU_PER_PROCESS"


@dataclass(frozen=True)
class Submission:
    """One run, fully resolved."""

    folder: Path
    order: Order
    record: RunRecord
    checked: Checked
    config_yaml: str
    provenance: Provenance | None = None

    def write(self) -> None:
        """Write the folder that the nodes read; a failure is one clear error."""
        try:
            with ours_alone():
                self._write()
            if why := distrust(self.folder, self.folder.parents[1]):
                raise UsageError(f"the orders for the nodes would lie where others can change them: {why}")
        except OSError as e:
            raise UsageError(f"cannot write {self.folder}: {e.strerror}; choose another --workspace") from e

    def _write(self) -> None:
        self.folder.mkdir(parents=True)
        build_agent(self.folder / "agent.pyz")
        (self.folder / CONFIG).write_text(self.config_yaml, encoding="utf-8")
        # The one place where a secret setting stands as it is.
        write_whole(self.folder / "order.json", json.dumps(dataclasses.asdict(self.order), default=str), mode=0o600)
        self.record.save(self.folder / "run.json")
        if self.provenance is not None:
            self.provenance.save(self.folder)

    def open_job(self, job_id: str) -> Path:
        """Make the job directory with its record and links; the first node may have done so already."""
        job_dir = self.order.workspace / f"{job_id}-{self.order.name}"
        try:
            make_folder(job_dir)
        except OSError as e:
            raise UsageError(f"job {job_id} is queued, but its directory {job_dir} cannot be used: {e.strerror}") from e
        with contextlib.suppress(FileExistsError):
            (self.folder / "job").symlink_to(Path("../..") / job_dir.name)  # `clean` asks whether it is still there
        with contextlib.suppress(FileExistsError):
            (job_dir / "log").symlink_to(Path("..") / f"{job_dir.name}.log")
        with contextlib.suppress(FileExistsError):
            if self.record.snapshot:
                (job_dir / "artifact").symlink_to(Path("..") / ".artifacts" / self.record.snapshot)
        with contextlib.suppress(OSError):  # the first node was quicker, or nobody looked
            os.link(self.folder / PROVENANCE, job_dir / PROVENANCE)
        # Linked, not written: where the first node was quicker, its record knows more than ours.
        whole = self.folder / "run.id.json"
        self.record.model_copy(update={"id": job_id}).save(whole)
        with contextlib.suppress(FileExistsError):
            os.link(whole, job_dir / "run.json")
        whole.unlink()
        return job_dir


def runtime_of(flags: Any) -> str:
    """The runtime that flags of a job ask for: without an image there is nothing to put ranks into."""
    return flags.runtime or ("auto" if flags.image else "native")


def packages_of(runtime: str, python: str) -> str | None:
    """Whose packages a run uses, for its provenance: None for this Python's, empty where only its image knows."""
    return "" if runtime != "native" else None if python == sys.executable else python


def how_of(asks: Any, scheduler: str, argv: list[str], runtime: str, code: Snapshot | None, **more: Any) -> How:
    """How a job is carried out, by the flags that `submit` and sweeps have; `more` is what is known beside them."""
    told = {name: getattr(asks, name) for name in ("procs", "observe", "privileged")}
    frozen = {"snapshot": code.hash, "workdir": str(code.path)} if code else {}
    listen = os.environ.get("TRACKWALKER_LISTEN", "")
    return How(**{"scheduler": scheduler, "argv": argv, "runtime": runtime, "listen": listen, **told, **frozen, **more})


def plan_submission(asked: Asked, how: How) -> Submission:
    """Resolve and check a request; everything that is wrong with it is told in one error."""
    checked = check(asked)
    if checked.errors or checked.resolved is None or checked.spec is None:
        many = f"{len(checked.errors)} problems: " if len(checked.errors) > 1 else ""
        raise UsageError(many + "; ".join(problem.text for problem in checked.errors))
    resolved, passthrough = checked.resolved, parse_passthrough(asked.words)
    run = Settled(resolved, checked.spec, passthrough, asked.workspace or Path("outputs"), how)
    model = resolved.model
    made = datetime.fromtimestamp(run.created, UTC)
    folder = run.workspace / FOLDER / f"{made:%Y%m%d_%H%M%S}_{secrets.token_hex(3)}"
    container = _container(asked, how)
    argv = run.program("python3" if container else how.python, folder, folder / CONFIG)
    # XLA_FLAGS are merged flag by flag in the layers; everything else of the user's stands above what a node finds.
    overrides = {key: value for key, value in passthrough.env.items() if key != XLA_FLAGS}
    settings = [f"{key}={value}" for key, value in run.settings.items()]
    order = Order(
        name=run.name,
        model=model.name,
        scheduler=how.scheduler,
        workspace=run.workspace,
        nodes=asked.nodes,
        argv=argv,
        settings=settings,
        output=None if run.elsewhere is not None else run.shared,
        steps=_steps(resolved),
        procs=_procs(how, resolved, passthrough),
        env={key: value for key, value in run.env.items() if key not in overrides},
        layers=resolved.env_on_nodes(),
        overrides=overrides,
        header=run.header,
        timeouts=parse_timeouts(asked.stage_timeouts or ""),
        policy=how.policy,
        expected_gpus=0 if _on_cpus(resolved) else resolved.target.gpus_per_node,
        tensorboard=str(event_folder(resolved, run.elsewhere or run.shared)),
        listen=how.listen,
        services=services(how.python, how.observe, how.ray, asked.nodes),
        container=container,
        workdir=how.workdir,
        flags=dict(how.flags),
    )
    record = run.record("", [*argv, *(starred(word) for word in settings)])
    record.image = str(container["image"]) if container else ""
    record.submission = str(folder)
    return Submission(folder, order, record, checked, model.trainer_yaml(), how.provenance)


def _container(asked: Asked, how: How) -> dict[str, Any] | None:
    if how.runtime == "native":
        return None
    if not asked.image:
        raise UsageError("a container needs an image: give --image, or --runtime native to run without one")
    wanted = {"image": asked.image, "registry": asked.registry, "privileged": how.privileged}
    return wanted if how.runtime == "auto" else {**wanted, "runtime": how.runtime}


def _procs(how: How, resolved: Resolved, passthrough: Passthrough) -> int:
    """Processes on each node; upstream's word for one per GPU counts where no flag does."""
    word = passthrough.env.get(_PER_GPU, "")
    if word.lower() not in ("", "0", "false", "1", "true"):
        raise UsageError(f"_env_{_PER_GPU}={word}: it is true or false; --procs-per-node says how many")
    if how.procs > 1 or word.lower() not in ("1", "true"):
        return how.procs
    told = passthrough.env.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdecimal() and int(told) else resolved.target.gpus_per_node


def _on_cpus(resolved: Resolved) -> bool:
    hardware = resolved.config.get("hardware")
    return resolved.model.about.trainer == "tiny" or (hardware is not None and hardware.value == "cpu")


def _steps(resolved: Resolved) -> int | None:
    """How many steps there are to be; None where the trainer makes that out itself."""
    steps = resolved.effective.whole("steps") if "steps" in resolved.effective else 0
    return steps if steps > 0 else None
