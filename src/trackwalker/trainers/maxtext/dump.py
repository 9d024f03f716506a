"""XLA's dump of the compiled step: one process of the run writes it, in every mode."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from trackwalker.trainers.maxtext.place import Place, Words

_SWITCH = "ENABLE_XLA_DUMP"


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
