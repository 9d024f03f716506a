"""Who failed first: each node writes down whom it saw, and the end of the run tells who it was."""

from __future__ import annotations

import json
from pathlib import Path

from trackwalker.job.layout import Job
from trackwalker.record.read import read_record


def failed(at: float, rank: int, code: int) -> dict[str, object]:
    return {"v": 1, "t": at, "kind": "first-failure", "rank": rank, "host": f"n{rank}",
            "data": {"exit": code, "cause": f"exit {code}"}}  # fmt: skip


def first_of(folder: Path, *events: dict[str, object]) -> list[tuple[int, float]]:
    log, directory = folder / "7-run.log", folder / "7-run"
    directory.mkdir()
    log.write_text("a line\n")
    (directory / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    found = [e for e in read_record(Job("7", log, directory)).events if e["kind"] == "first-failure"]
    return [(e["rank"], e["t"]) for e in found]


def test_the_end_of_the_run_tells_whose_failure_was_first(tmp_path: Path) -> None:
    first = {"rank": 2, "host": "n2", "exit": 137, "ended": 99.5, "cause": "killed by SIGKILL"}
    end = {"v": 1, "t": 103.0, "kind": "run-end", "data": {"exit": 137, "first": first}}
    # The journals of the nodes are joined as they come, and a victim's node may write before the culprit's.
    assert first_of(tmp_path, failed(100.0, 0, 1), failed(101.0, 2, 137), end) == [(2, 99.5)]


def test_without_a_word_at_the_end_all_nodes_are_heard(tmp_path: Path) -> None:
    end = {"v": 1, "t": 103.0, "kind": "run-end", "data": {"exit": 1, "first": None}}
    assert first_of(tmp_path, failed(100.0, 0, 1), failed(101.0, 2, 137), end) == [(0, 100.0), (2, 101.0)]
