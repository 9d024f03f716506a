"""A small job directory of ours, and everything that can be wrong with one of its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ID = "local_20260101_000000_abcd"
NAME = f"{ID}-JAX-tiny"
T0 = 1767225600.0
STEP = "completed step: {n}, seconds: 1.000, TFLOP/s/device: 1.0, Tokens/s/device: 5.0, total_weights: 1, loss: 2.0"

WORKSPACE_FILES = (".ledger/nodes.jsonl",)
JOURNALS = ("events.jsonl", "progress.jsonl")
DOCUMENTS = ("run.json", "agent/state.json", "services/prometheus.json", "agent/ray.json", "provenance.json",
             "verdict.json")  # fmt: skip


def make_job(workspace: Path, job_id: str = ID) -> Path:
    """A finished run of two ranks with every file that a reader opens; returns its directory."""
    folder = workspace / f"{job_id}-JAX-tiny"
    for name in ("agent", "ranks", "services"):
        (folder / name).mkdir(parents=True)
    log = workspace / f"{folder.name}.log"
    lines = [f"{rank}: {STEP.format(n=n)}" for n in range(30) for rank in (0, 1)]
    log.write_text("\n".join([f"JOB_ID={job_id}", "NNODES=2", *lines]) + "\n")
    (folder / "log").symlink_to(f"../{log.name}")
    files: dict[str, Any] = {
        "run.json": {
            "schema": "trackwalker.run/1", "id": job_id, "name": "JAX-tiny", "model": "tiny", "scheduler": "local",
            "trainer": "tiny", "created": T0, "argv": ["run", "tiny"], "command": ["python", "x"],
            "workspace": str(workspace), "ranks": [{"rank": r, "host": f"box-r{r}", "node": "box"} for r in (0, 1)],
            "config": {"steps": {"value": 30, "source": "model tiny"}},
        },
        "agent/state.json": {"v": 1, "agent": {"pid": 999999, "start": 1}, "started": T0, "ranks": [
            {"rank": 0, "host": "box-r0", "pid": 999998, "start": 1, "main": 999998, "exit": 1, "ended": T0 + 30},
        ]},
        "services/prometheus.json": {"name": "prometheus", "port": 9, "pid": 1, "start": 1, "machine": "elsewhere"},
        "agent/ray.json": {"dashboard": "http://127.0.0.1:1", "stacks": "yes"},
        "provenance.json": {},
        "verdict.json": {},
    }  # fmt: skip
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events()))
    records = [{"v": 1, "t": T0 + n, "rank": r, "phase": "train", "step": n, "seconds": 1.0, "loss": 2.0}
               for n in range(30) for r in (0, 1)]  # fmt: skip
    (folder / "progress.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    ledger = workspace / WORKSPACE_FILES[0]
    ledger.parent.mkdir(exist_ok=True)
    ledger.write_text(json.dumps({"v": 1, **incident()}) + "\n")
    return folder


def events() -> list[dict[str, Any]]:
    """What its agent wrote down."""
    first = {"rank": 0, "host": "box-r0", "exit": 1, "cause": "exited with code 1"}
    told = [("stage-begin", {"name": "Training"}), ("rank-start", {"pid": 7}), ("rank-exit", {"exit": 1, "cause": "x"}),
            ("first-failure", first), ("run-end", {"exit": 1, "reason": "rank 0 failed", "first": first})]  # fmt: skip
    return [
        {"v": 1, "t": T0 + 30 + i, "stage": "train", "node": "box", "rank": 0, "host": "box-r0", "kind": k, "data": d}
        for i, (k, d) in enumerate(told)
    ]


def incident() -> dict[str, Any]:
    """A line of the workspace's ledger, of an hour ago."""
    return {"t": time.time() - 3600, "host": "n1", "job": "7", "attempt": 1, "kind": "node-lost", "what": "node-lost",
            "line": "x", "exit": None}  # fmt: skip


HUGE = 10**400
WRONG = (None, True, "x", "nan", "-1", -1, 0, 3.5, float("nan"), float("inf"), 1e308, HUGE, [], {}, [1], {"a": 1})

Spoil = Callable[[Path], None]


def spoil_file() -> Iterator[tuple[str, Spoil]]:
    """Ways in which a file is not what it should be, whatever is in it."""

    def directory(path: Path) -> None:
        path.unlink()
        path.mkdir()

    def fifo(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    def link(target: str) -> Spoil:
        def spoil(path: Path) -> None:
            path.unlink()
            path.symlink_to(target)

        return spoil

    yield "missing", lambda p: p.unlink()
    yield "directory", directory
    yield "fifo", fifo
    yield "device", link("/dev/zero")
    yield "loop", _loop
    yield "empty", lambda p: p.write_text("")
    yield "garbage", lambda p: p.write_bytes(os.urandom(257))
    yield "nul", lambda p: p.write_bytes(b"\0" * 4096)
    yield "half", lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])
    yield "deep", lambda p: p.write_text("[" * 100_000)
    yield "list", lambda p: p.write_text("[1, 2]")
    yield "number", lambda p: p.write_text("3")
    yield "null", lambda p: p.write_text("null")


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def paths_in(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the fields of a document are, the document's own parts first."""
    inside = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for key, value in inside:
        yield (*at, key)
        if isinstance(value, (dict, list)):
            yield from paths_in(value, (*at, key))


def spoilt(document: Any, path: tuple[Any, ...], value: Any) -> str:
    """The document as JSON text, one of its fields replaced."""
    copy = json.loads(json.dumps(document))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return json.dumps(copy)
