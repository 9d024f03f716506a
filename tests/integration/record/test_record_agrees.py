"""Every job has one record: triage, diagnose, perf, jobs, status, watcher and web say the same of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_agreement import disagreements

from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import all_scenarios, load_scenario
from trackwalker.lab.simulate import simulate

pytestmark = [pytest.mark.usefixtures("prometheus")]
# One of each kind of ending and of source: a hang, a save; a death, a slow phase, a cut log, another trainer's lines.
FEW = ("collective-hang", "expected-checkpoint")
FURTHER = ("node-death", "cpu-contention", "oom-gpu", "ragged-lengths")
MORE = pytest.mark.long(reason="a world each, read by every command; a landing keeps a hang, a save and captured logs")
MANY = 200
PARTS = 20  # so that several workers can share them


def made(family: str, place: Path) -> Job:
    done = simulate(load_scenario(family), place)
    return resolve(str(done.job), done.workspace)


@pytest.mark.parametrize("family", [*FEW, *(pytest.param(family, marks=MORE) for family in FURTHER)])
def test_the_commands_agree_on_a_case_of_the_lab(family: str, tmp_path: Path) -> None:
    assert disagreements(made(family, tmp_path)) == []


def test_the_commands_agree_on_a_sample(samples: Path) -> None:
    assert disagreements(resolve(str(samples / "collective-hang"), samples)) == []


def test_the_commands_agree_on_real_logs(samples: Path) -> None:
    logs = sorted((samples.parent / "reallogs").glob("*.log"))
    if not logs:
        pytest.skip("the real logs are kept outside the repository and are not here")
    assert [line for log in logs for line in disagreements(Job(log.stem, log, None))] == []


def test_the_commands_agree_on_captured_logs() -> None:
    logs = sorted((Path(__file__).parents[2] / "data" / "triage" / "captured").glob("*/*.out"))
    assert len(logs) > 9
    assert [line for log in logs for line in disagreements(Job(log.stem, log, None))] == []


@pytest.mark.long(reason="all nine samples, minutes")
@pytest.mark.timeout(1800)
def test_the_commands_agree_on_every_sample(samples: Path) -> None:
    jobs = [resolve(str(p), samples) for p in sorted(samples.iterdir()) if (p / "outputs").is_dir()]
    assert len(jobs) == 9
    assert [line for job in jobs for line in disagreements(job)] == []


@pytest.mark.long(reason="two hundred lab cases, half an hour of CPU")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_commands_agree_on_two_hundred_cases_of_the_lab(part: int, tmp_path: Path) -> None:
    names = sorted(s.family for s in all_scenarios())
    chosen = names[:: max(1, len(names) // MANY)][:MANY]
    assert len(chosen) == MANY
    assert [line for name in chosen[part::PARTS] for line in disagreements(made(name, tmp_path / name))] == []
