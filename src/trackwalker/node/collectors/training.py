"""Training as every rank reports it: each step's scalars (tb_*) with the step's own time, and totals (train_*, ckpt_*).

A hang is silence, not a ghost: no step makes no tb_* sample, and train_last_step_timestamp_seconds stands still.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trackwalker.job.dialects import read_step
from trackwalker.node.agent.rank_progress import Ledger, number
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.exposition import Family
from trackwalker.node.sensors.sysfs import DECLARED, declared, families

_TAIL_BYTES = 1 << 20
# field of a step's record -> the metric that carries it, one sample for each step
_PER_STEP = {row["field"]: (name, row["help"]) for name, row in DECLARED["training_step"].items()}
PER_STEP_FIELDS = {field: name for field, (name, _) in _PER_STEP.items()}
METRICS = declared("training")


def parse_step_line(line: str) -> dict[str, Any] | None:
    """A progress record from a trainer's step line, None for any other line."""
    told = read_step(line)
    if told is None or told.step is None:
        return None
    named = {
        "seconds": told.seconds, "tflops": told.tflops, "mfu": told.mfu, "tokens_per_s": told.tgs, "loss": told.loss,
    }  # fmt: skip
    known = {k: v for k, v in named.items() if math.isfinite(v) or (k == "loss" and told.no_number)}
    return {"phase": "train", "step": told.step, **known}


def last_records(journal: Path) -> list[dict[str, Any]]:
    """The newest records of a progress journal: more than a scraper can have missed, without reading all of it."""
    out = []
    try:
        with journal.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
            if math.isfinite(float(record["t"])):
                out.append({**record, "t": float(record["t"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # the cut first line, a torn last one
    return out


class TrainingCollector:
    """Adds up every rank's progress; fed by the agent from the trainer's hook or its step lines."""

    name = "training"

    def __init__(self, backlog: Backlog, node: str) -> None:
        self._backlog, self._node = backlog, node
        self._lock = threading.Lock()  # fed by the agent's loop, read by the exporter
        self._ledgers: dict[int, Ledger] = {}

    def feed(self, record: dict[str, Any]) -> None:
        """Take in one progress record of a rank."""
        rank = int(record["rank"])
        with self._lock:
            self._ledgers.setdefault(rank, Ledger(str(record["host"]))).take(record)
        self._offer(record)

    def replay(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Offer steps again that an earlier agent had counted, but perhaps not got rid of."""
        for record in records:
            if record.get("rank") in self._ledgers:
                self._offer(record)

    def _offer(self, record: Mapping[str, Any]) -> None:
        if record.get("phase") != "train" or "step" not in record:
            return
        labels = {"host": str(record["host"]), "rank": str(record["rank"])}
        for key, (name, text) in _PER_STEP.items():
            value = number(record.get(key))
            if value is not None:
                self._backlog.add(name, text, value, record["t"], labels)

    def reported(self, rank: int) -> frozenset[str]:
        """The per-step metrics that this rank reports by itself."""
        with self._lock:
            ledger = self._ledgers.get(rank)
            return frozenset(_PER_STEP[k][0] for k in ledger.reported if k in _PER_STEP) if ledger else frozenset()

    def silent_s(self, now: float) -> float:
        """Since when no rank has completed a step; 0 before the first."""
        with self._lock:
            return now - max((led.step_at for led in self._ledgers.values() if led.step_at is not None), default=now)

    def last_step(self, rank: int) -> int | None:
        """The last step that a rank completed."""
        with self._lock:
            ledger = self._ledgers.get(rank)
            return ledger.step if ledger else None

    def saved(self) -> dict[str, Any]:
        """All totals, for the agent's state file."""
        with self._lock:
            return {str(rank): asdict(ledger) for rank, ledger in self._ledgers.items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue the totals of an earlier agent."""
        with self._lock:
            self._ledgers = {int(rank): Ledger(**fields) for rank, fields in saved.items()}

    def collect(self) -> list[Family]:
        """The totals of every rank as of now."""
        out = families(METRICS)
        with self._lock:
            for rank, ledger in sorted(self._ledgers.items()):
                _add(out, ledger, {"host": ledger.host, "rank": str(rank)})
        out["train_samples_dropped_total"].add(self._backlog.dropped, host=self._node)
        return list(out.values())


def _add(out: dict[str, Family], ledger: Ledger, labels: dict[str, str]) -> None:
    simple = {
        "train_step": ledger.step,
        "train_last_step_timestamp_seconds": ledger.step_at,
        "train_steps_total": ledger.steps,
        "train_step_seconds_total": ledger.step_seconds,
        "train_data_wait_seconds_total": ledger.data_wait if "data_wait_s" in ledger.reported else None,
        "train_phase_start_timestamp_seconds": ledger.phase_at,
        "ckpt_save_seconds": ledger.save_s,
        "ckpt_last_success_step": ledger.saved_step,
        "ckpt_restore_seconds": ledger.restore_s,
    }
    if ledger.saves:
        simple["ckpt_saves_total"] = ledger.saves
        simple["ckpt_save_seconds_total"] = ledger.saving
        simple["ckpt_blocking_seconds_total"] = ledger.blocking
    for name, value in simple.items():
        out[name].add(value, None, **labels)
    if ledger.phase_at is not None:
        out["train_phase"].add(1, None, phase=ledger.phase, **labels)
    for phase, seconds in ledger.phases.items():
        out["train_phase_seconds_total"].add(seconds, None, phase=phase, **labels)
    for tag, count in ledger.nonfinite.items():
        out["train_nonfinite_total"].add(count, None, tag=tag, **labels)
