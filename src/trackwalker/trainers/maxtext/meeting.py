"""How the processes of a run find each other: the same patience in every mode, and no guessing by JAX."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from trackwalker.trainers.maxtext.place import Place, Words

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
