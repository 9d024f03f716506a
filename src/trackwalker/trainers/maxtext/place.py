"""Which process of the run this is, and what its words and its config file say."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^([A-Za-z_]\w*):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s+)#.*$")


# XLA's dump of the compiled step: one process of the run writes it, in every mode.
_SWITCH = "ENABLE_XLA_DUMP"


# How the processes of a run find each other: the same patience in every mode, and no guessing by JAX.
INIT_KEY, HEARTBEAT_KEY = "jax_distributed_initialization_timeout", "jax_distributed_heartbeat_timeout_seconds"
_INIT_S = 300
# A process that dies is seen at once by its agent, a node by its scheduler. The heartbeat is the last resort, and a
# short one kills healthy runs that write a checkpoint or compile for long.
_HEARTBEAT_S = 14400


def prepare_meeting(place: Place, words: Words, env: MutableMapping[str, str]) -> None:
    """Set the timeouts of `jax.distributed`, and call it where MaxText could not."""
    if not place.coordinator:
        return
    if words.get("enable_checkpointing").lower() in ("false", "0", "no"):
        # JAX keeps SIGTERM to itself, for a last checkpoint. Where there is none, the process would just train on.
        env.setdefault("JAX_ENABLE_PREEMPTION_SERVICE", "0")
    distributed: Any = importlib.import_module("jax.distributed")
    patience = {
        "initialization_timeout": int(words.get(INIT_KEY) or _INIT_S),
        "heartbeat_timeout_seconds": int(words.get(HEARTBEAT_KEY) or _HEARTBEAT_S),
    }
    _insist(distributed, patience)
    # MaxText knows one process per node on GPUs; for CPUs it asks for the variables of another launcher.
    if place.local is None and words.get("hardware") != "cpu":
        return
    own = {} if place.local is None else {"local_device_ids": [place.local]}
    distributed.initialize(place.coordinator, place.world, place.rank, **own)
    env.pop("JAX_COORDINATOR_IP", None)  # MaxText must not do it again
    said = f"[jax-preinit] nprocs={place.world} rank={place.rank} local_device={place.local}"
    heartbeat, init = patience["heartbeat_timeout_seconds"], patience["initialization_timeout"]
    print(f"{said} heartbeat_timeout_s={heartbeat} init_timeout_s={init}", flush=True)


def _insist(distributed: Any, patience: dict[str, int]) -> None:
    """Whoever calls `initialize`, and whatever for, it is with these timeouts."""
    original = distributed.initialize
    known = inspect.signature(original).parameters

    def initialize(coordinator_address: Any = None, *rest: Any, **named: Any) -> Any:
        named.update({key: value for key, value in patience.items() if key in known})
        if coordinator_address is not None and "cluster_detection_method" in known:
            # Else JAX asks Slurm which of the node's processes this is, and gives it that one GPU instead of all.
            named.setdefault("cluster_detection_method", "deactivate")
        return original(coordinator_address, *rest, **named)

    distributed.initialize = initialize


def for_maxtext(words: Words, package: str) -> list[str]:
    """The words as this MaxText may read them: most releases have no key for the heartbeat, and refuse it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    base = next((p for p in (Path(place, "configs", "base.yml") for place in places) if p.is_file()), None)
    if base is None or re.search(rf"^{HEARTBEAT_KEY}:", base.read_text(encoding="utf-8"), re.MULTILINE):
        return words.words
    kept = words.without(HEARTBEAT_KEY)
    if words.in_file(HEARTBEAT_KEY):
        text = Path(kept[0]).read_text(encoding="utf-8")
        handle, name = tempfile.mkstemp(prefix="config-", suffix=".yml")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(re.sub(rf"^{HEARTBEAT_KEY}:.*\n?", "", text, flags=re.MULTILINE))
        kept = [name, *kept[1:]]
    return kept


def choose_dump(place: Place, words: Words, env: MutableMapping[str, str]) -> None:
    """Ask XLA for the dump in the first process, and keep every other from writing to the same folder."""
    flags = env.get("XLA_FLAGS", "").split()
    if place.rank != 0:
        flags = [flag for flag in flags if not flag.startswith("--xla_dump_")]
    elif env.get(_SWITCH, "").lower() in ("1", "true") and not any(f.startswith("--xla_dump_to=") for f in flags):
        where = os.path.join(words.get("base_output_directory") or ".", "xla_dump")
        flags += ["--xla_dump_hlo_as_text", "--xla_dump_hlo_module_re=^jit_train_step$", f"--xla_dump_to={where}"]
    if flags or "XLA_FLAGS" in env:
        env["XLA_FLAGS"] = " ".join(flags)


@dataclass(frozen=True)
class Place:
    """One process among those of the run."""

    rank: int
    world: int
    local: int | None = None  # its GPU where every GPU has a process of its own; None: it sees all of them
    coordinator: str = ""  # host:port; empty when it is alone


def find_place(env: Mapping[str, str]) -> Place:
    """The process that the launcher's variables describe."""
    own = bool(env.get("NPROCS"))
    address = env.get("JAX_COORDINATOR_IP", "")
    return Place(
        rank=int((env.get("GLOBAL_RANK") if own else env.get("NODE_RANK")) or 0),
        world=int((env.get("NPROCS") if own else env.get("NNODES")) or 1),
        local=int(env.get("LOCAL_RANK") or 0) if own else None,
        coordinator=f"{address}:{env.get('JAX_COORDINATOR_PORT', '')}" if address else "",
    )


class Words:
    """The trainer's words, CONFIG key=value …, and the plain values of its config file below them."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self._file = _plain_values(Path(words[0])) if words and "=" not in words[0] else {}

    def get(self, key: str, default: str = "") -> str:
        """What the last word says, else the file, else the default."""
        told = [word.partition("=")[2] for word in self.words[1:] if word.startswith(f"{key}=")]
        return told[-1] if told else self._file.get(key, default)

    def in_file(self, key: str) -> bool:
        """Whether the file itself has the key."""
        return key in self._file

    def without(self, key: str) -> list[str]:
        """The words without those for a key."""
        return [word for word in self.words if not word.startswith(f"{key}=")]


def _plain_values(path: Path) -> dict[str, str]:
    """Top-level `key: value` pairs of a YAML file: all that is asked for, and no package is needed to read them."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}  # MaxText will say so better
    return {key: _COMMENT.sub("", value).strip("\"'") for key, value in _LINE.findall(text)}
