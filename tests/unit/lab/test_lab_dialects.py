"""Other trainers' logs in the lab: their own step lines, pods with a file each, hosts with their own clock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.lab.scenario import Scenario
from trackwalker.lab.simulate import simulate

WORLD = {"nodes": 3, "hosts": ["n1", "n2", "n3"], "steps": 6, "total": 6, "step_s": 5.0, "ray": False}


def made(place: Path, faults: list[dict[str, object]], **world: object) -> Path:
    scenario = Scenario(
        family="f", split="tune", about="a", world={**WORLD, **world}, faults=faults, truth={"outcome": "healthy"}
    )
    return simulate(scenario, place).job


@pytest.mark.parametrize(
    ("trainer", "last", "printer"),
    [
        ("torchtitan", "step:  6  loss:", "0: "),
        ("megatron", "iteration        6/       6 |", "2: "),
        ("nemo", "iteration 5/5 |", "0: "),
    ],
)
def test_a_dialect_replaces_the_step_lines(tmp_path: Path, trainer: str, last: str, printer: str) -> None:
    text = (made(tmp_path, [{"kind": "dialect", "trainer": trainer}]) / "log").read_text()
    assert "completed step" not in text
    assert "Config param" not in text
    assert next(line for line in text.splitlines() if last in line).startswith(printer)
    assert "JOB SUMMARY" in text


def test_an_unknown_dialect_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dialect 'fortran'"):
        made(tmp_path, [{"kind": "dialect", "trainer": "fortran"}])


def test_pods_have_a_file_each_and_no_labels(tmp_path: Path) -> None:
    job = made(tmp_path, [{"kind": "pods"}])
    assert sorted(p.name for p in job.glob("rank-*.log")) == ["rank-1.log", "rank-2.log"]
    assert "completed step: 5," in (job / "rank-2.log").read_text()
    assert not re.search(r"^ *\d+: ", (job / "log").read_text(), flags=re.MULTILINE)


def test_a_host_writes_with_its_own_clock_and_names_its_peer(tmp_path: Path) -> None:
    fault = {"kind": "breaks", "host": "n2", "at": 4, "text": "mine {iso}", "others": "of {peer_rank} {iso}"}
    text = (made(tmp_path, [fault], clock_skew_s={"n2": 3600.0}, ending="crash") / "log").read_text()
    hours = dict(re.findall(r"^(\d): (?:mine|of 1) \S+ (\d+):", text, flags=re.MULTILINE))
    assert (int(hours["1"]) - int(hours["0"])) % 24 == 1
