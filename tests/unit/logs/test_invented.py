"""Words that no signature knows, in logs of eight trainers: who failed first is told, and no cause is invented."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.job.layout import Job

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from invented import TEXTS, TRAINERS, Case, cases, judge

MADE = cases(TEXTS)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, dict[str, Any]]]:
    """What triage says of every log."""
    folder = tmp_path_factory.mktemp("logs")
    return [(case, judge(case, folder)) for case in MADE]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_first_rank_its_host_and_no_invented_cause(judged: list[tuple[Case, dict[str, Any]]], trainer: str) -> None:
    found = [(case, row) for case, row in judged if case.name.endswith(f"-{trainer}")]
    assert len(found) >= 7
    assert [(c.name, row["said"]) for c, row in found if row["wrong"]] == []
    assert [(c.name, row["ranks"], row["hosts"]) for c, row in found if not (row["rank"] and row["host"])] == []


def test_the_generic_class_is_right_in_most(judged: list[tuple[Case, dict[str, Any]]]) -> None:
    right = sum(row["class"] for _, row in judged)
    assert right >= 0.7 * len(MADE) == 42


def _with(case: Case, tmp_path: Path) -> dict[str, object]:
    log = tmp_path / f"{case.name}.log"
    log.write_text(case.log)
    told: dict[str, object] = json.loads(diagnose(Job(case.name, log, None)).verdict.to_json())
    return told


def test_the_verdict_carries_class_rank_and_host(tmp_path: Path) -> None:
    case = next(c for c in MADE if c.classes == ("storage",) and not c.name.endswith("ray") and "volume" in c.log)
    failure = _with(case, tmp_path)["failure"]
    assert isinstance(failure, dict)
    assert (failure["class"], failure["named"]) == ("storage", False)
    assert (failure["rank"], failure["host"]) == (case.rank, case.host)
    assert failure["source"].startswith(f"{case.name}.log:")
    assert failure["says"] in case.log


def test_a_run_without_a_failure_has_none(tmp_path: Path) -> None:
    healthy = MADE[0].log.split("Traceback")[0].split(" ERROR ")[0]
    steps = [line for line in healthy.splitlines() if "loss" in line or "NODELIST" in line]
    log = tmp_path / "well.log"
    log.write_text("\n".join(steps) + "\n")
    assert json.loads(diagnose(Job("well", log, None)).verdict.to_json())["failure"] is None
