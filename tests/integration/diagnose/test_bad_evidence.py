"""Damaged databases: one clear line, a non-zero exit, and the rest of the evidence still used."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from command_here import call_here
from test_diagnose_worlds import rdma_world

from conftest import tree_hash


def diagnose(job: Path) -> subprocess.CompletedProcess[str]:
    return call_here(os.environ, "diagnose", str(job), "--json")


def block_of(job: Path) -> Path:
    return next(p for p in (job / "prometheus").iterdir() if (p / "meta.json").exists())


@pytest.mark.parametrize("harm", ["index", "meta", "junk", "wal"])
def test_a_corrupt_database(harm: str, tmp_path: Path, prometheus: Path) -> None:
    job = rdma_world([(40, 12.0), (50, 14.5)], {"tx14": [1]}).build(tmp_path, prometheus)
    database = job / "prometheus"
    if harm == "index":
        for block in database.iterdir():
            if block.is_dir():
                (block / "index").write_bytes(b"\0" * 4096)
    elif harm == "meta":
        for block in database.iterdir():
            if block.is_dir():
                (block / "meta.json").write_text("{")
    elif harm == "junk":
        for block in list(database.iterdir()):
            subprocess.run(["rm", "-rf", block], check=True)
        (database / "holiday.jpg").write_bytes(b"\xff\xd8")
    else:
        (database / "wal").mkdir()
        (database / "wal" / "00000000").write_bytes(bytes(range(256)) * 512)
    before = tree_hash(tmp_path)
    result = diagnose(job)
    assert result.returncode == 3, result.stderr
    assert "Traceback" not in result.stderr
    assert all(line.startswith("trackwalker: damaged evidence: ") for line in result.stderr.strip().splitlines())
    verdict = json.loads(result.stdout)
    assert any(q["check"] == "damage" and not q["ok"] for q in verdict["data_quality"])
    if harm == "wal":  # the blocks are whole: the answer stands
        assert [(c["cause"], c["hosts"]) for c in verdict["causes"] if c["role"] == "root"] == [
            ("rdma-degradation", ["tx14"])
        ]
    else:
        assert verdict["outcome"] == "insufficient-evidence"
        assert verdict["progress"]["last_step"] == 89
    assert tree_hash(tmp_path) == before


def test_a_damaged_run_record_and_journal(tmp_path: Path, prometheus: Path) -> None:
    job = rdma_world([(40, 12.0), (50, 14.5)], {"tx14": [1]}).build(tmp_path, prometheus)
    (job / "run.json").write_text('{"schema": "something-else/9"}')
    (job / "events.jsonl").write_bytes(b'\xff\xfe not json\n{"v": 1, "kind": "x", "t": 1}\n')
    result = diagnose(job)
    assert result.returncode == 3
    assert "run.json is damaged or foreign" in result.stderr
    assert "1 lines of events.jsonl" in result.stderr
    assert [c["hosts"] for c in json.loads(result.stdout)["causes"] if c["role"] == "root"] == [["tx14"]]
