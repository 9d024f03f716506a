"""Profiles of several processes: JAX names a trace after the host, and those of one host overwrite each other."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackwalker.trainers.maxtext.place import Place


def separate_traces(place: Place) -> None:
    """Each process traces into a folder of its own and hands its files over with its rank in their names."""
    if place.world == 1:
        return
    profiler: Any = importlib.import_module("jax.profiler")
    start: Callable[..., Any] = profiler.start_trace
    stop: Callable[..., Any] = profiler.stop_trace
    wanted: list[Path] = []

    def start_trace(log_dir: Any, *rest: Any, **named: Any) -> Any:
        result = start(os.path.join(os.fspath(log_dir), _own(place)), *rest, **named)
        wanted[:] = [Path(log_dir)]
        return result

    def stop_trace(*rest: Any, **named: Any) -> Any:
        result = stop(*rest, **named)
        if wanted:
            with contextlib.suppress(OSError):  # they stay where they are: found later, and whole
                hand_over(wanted.pop(), place)
        return result

    profiler.start_trace, profiler.stop_trace = start_trace, stop_trace


def hand_over(log_dir: Path, place: Place) -> None:
    """Move `<own>/…/host.ext` to `…/host.proc<rank>.ext`, as the profile page expects to find them."""
    own = log_dir / _own(place)
    for path in sorted(p for p in own.rglob("*") if p.is_file()):
        host, dot, ending = path.name.partition(".")
        to = log_dir / path.relative_to(own).with_name(f"{host}.proc{place.rank}{dot}{ending}")
        to.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, to)
    shutil.rmtree(own)


def _own(place: Place) -> str:
    return f".trace-{place.rank}"
