"""Faults that are set up before a run begins: a network of its own, a leaking rank, a small disk, a taken port."""

from __future__ import annotations

import dataclasses
import importlib.util
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from trackwalker.lab.real import network
from trackwalker.lab.real.gpu_faults import gpu_here
from trackwalker.lab.real.undo import NotHereError, Undo
from trackwalker.launch.plan import Plan

Stage = Callable[[Plan, int, Undo, ExitStack], Plan]

_STORE_MB = 16  # room for two checkpoints of the tiny model
_LIBRARY = "libjax_common.so"


def own_network(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
    """Every rank in a network namespace of its own, joined by a bridge."""
    reason = network.unavailable()
    if reason:
        raise NotHereError(reason)
    token = secrets.token_hex(2)
    hosts_file = plan.agent.job_dir.parent / f"hosts-{token}"
    stack.callback(hosts_file.unlink, missing_ok=True)
    network.build(token, plan.agent.world, hosts_file, undo)
    return network.into_namespaces(plan, token, hosts_file)


def gpu(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
    """Nothing is changed, but there has to be a GPU whose settings may be."""
    if not gpu_here():
        raise NotHereError("this fault needs an NVIDIA GPU and root")
    return plan


def leaking(after: str, mb_per_s: float) -> Stage:
    """One rank's process never frees what it allocates, from so many seconds (or lab/leaky's CONFINED) on."""

    def stage(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
        argv = list(plan.agent.ranks[rank].argv)
        at = argv.index("trackwalker.trainers.tiny")
        argv[at : at + 1] = ["trackwalker.lab.real.leaky", after, str(mb_per_s)]
        return _changed(plan, rank, argv=argv)

    return stage


def other_program(*settings: str) -> Stage:
    """One rank is started with other settings than the rest, so that it compiles another program."""

    def stage(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
        return _changed(plan, rank, argv=[*plan.agent.ranks[rank].argv, *settings])

    return stage


def small_disk(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
    """Checkpoints go to a file system that holds two of them."""
    store = plan.agent.job_dir.parent / f"store-{secrets.token_hex(2)}"
    undo.push("remove-folder", str(store))
    store.mkdir(parents=True)
    undo.push("command", "umount", "--lazy", str(store))
    words = ["mount", "-t", "tmpfs", "-o", f"size={_STORE_MB}m", "trackwalker-lab", str(store)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise NotHereError(f"cannot mount a small file system: {' '.join(done.stderr.split())} (it needs root)")
    for number in range(plan.agent.world):
        argv = [w for w in plan.agent.ranks[number].argv if not w.startswith("base_output_directory=")]
        plan = _changed(plan, number, argv=[*argv, f"base_output_directory={store}"])
    return plan


def taken_port(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
    """Somebody else listens where the coordinator wants to."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", int(plan.agent.ranks[0].env["JAX_COORDINATOR_PORT"])))
    listener.listen()
    return plan


def lost_library(plan: Plan, rank: int, undo: Undo, stack: ExitStack) -> Plan:
    """One rank finds JAX's package without the shared library that it links to."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise NotHereError("jaxlib is not installed (pip install 'trackwalker[tiny]')")
    real = Path(found.origin).parent
    if not (real / _LIBRARY).exists():
        raise NotHereError(f"this jaxlib has no {_LIBRARY} that could be missing")
    shadow = plan.agent.job_dir.parent / f"shadow-{secrets.token_hex(2)}"
    stack.callback(shutil.rmtree, shadow, ignore_errors=True)
    (shadow / "jaxlib").mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name != _LIBRARY:  # links, so that the loader looks for the library beside them
            (shadow / "jaxlib" / entry.name).symlink_to(entry)
    env = {**plan.agent.ranks[rank].env, "PYTHONPATH": str(shadow)}
    return _changed(plan, rank, env=env)


def _changed(plan: Plan, rank: int, **fields: object) -> Plan:
    ranks = list(plan.agent.ranks)
    ranks[rank] = dataclasses.replace(ranks[rank], **fields)  # type: ignore[arg-type]
    return dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks))
