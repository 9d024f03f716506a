"""The same job twice gives the same bytes, and every piece of evidence comes back from its own source."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from trackwalker.diagnose.engine import diagnose
from trackwalker.diagnose.verdict import Evidence, Verdict
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import load_scenario
from trackwalker.lab.simulate import simulate
from trackwalker.telemetry.client import host_of
from trackwalker.telemetry.store import Telemetry, open_database

pytestmark = [pytest.mark.usefixtures("prometheus")]

# One for each kind of source: silence and log lines, a device, what the trainer wrote.
SCENARIOS = ("collective-hang", "rdma-phased", "moe-routing-shift")
FURTHER = (
    "cpu-contention", "fabric-congestion", "healthy-plain", "heartbeat-false-positive", "host-memory-leak",
    "gpu-thermal-throttle", "telemetry-gap",
)  # fmt: skip
MORE = pytest.mark.long(reason="further incidents whose evidence comes from the same kinds of source")
NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
WINDOW = re.compile(r"\[(\d+)s\b")
MOMENT = re.compile(r"@ (\d+\.\d+)")
LINE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+)$")
NODES, GPUS = 6, 2


def judged(family: str, folder: Path) -> tuple[Job, Verdict]:
    done = simulate(load_scenario(family), folder / "case", seed=3, nodes=NODES, gpus=GPUS)
    job = resolve(str(done.job), done.workspace)
    return job, diagnose(job).verdict


def asked_again(telemetry: Telemetry, item: Evidence) -> dict[str, float]:
    """What the source gives now; it carries its own moment, so any time will do to ask."""
    out = {}
    for sample in telemetry.instant(item.source, telemetry.range()[1]):
        parts = [host_of(sample.labels), *(sample.labels.get(k) for k in ("gpu", "device", "GpuIndex", "window"))]
        out["/".join(p for p in parts if p)] = sample.value
    return out


def sayable(values: dict[str, float], source: str) -> set[str]:
    """Every way in which a statement may print what its source gives, the source's own window and moments included."""
    known = [*values.values(), float(np.median(list(values.values()))), *(float(n) for n in WINDOW.findall(source))]
    moments = [float(n) for n in MOMENT.findall(source)]
    known += [max(moments) - min(moments)] if moments else []
    known += [n / 60 for n in known[-3:]]  # a window may be told in minutes
    hosts = {str(n) for n in range(len(values) + 1)}
    return hosts | {f"{v:{form}}" for v in known for form in (".0f", ".1f", ".2f", ".3g", ".4g")}


@pytest.mark.parametrize("family", [*SCENARIOS, *(pytest.param(family, marks=MORE) for family in FURTHER)])
def test_every_claim_comes_back_from_its_source(tmp_path: Path, family: str) -> None:
    job, verdict = judged(family, tmp_path)
    again = diagnose(job).verdict
    assert again.model_dump_json(exclude={"cost"}) == verdict.model_dump_json(exclude={"cost"})
    assert verdict.evidence
    assert job.database is not None
    with open_database(job.database) as telemetry:
        for item in verdict.evidence:
            if item.kind == "metric":
                check_metric(telemetry, item)
            elif item.kind == "log":
                check_line(job, item)


def check_metric(telemetry: Telemetry, item: Evidence) -> None:
    values = asked_again(telemetry, item)
    assert values, f"{item.source} gives nothing"
    for name, value in item.values.items():
        assert round(values[name], 3) == value, f"{item.source}: {name}"
    assert "?" not in item.says, f"a number is missing in: {item.says}"
    said = NUMBER.findall(item.says.replace("..", " "))
    unknown = set(said) - sayable(values, item.source)
    assert not unknown, f"{item.says!r} does not come back from {item.source}: {values}"


def check_line(job: Job, item: Evidence) -> None:
    place = LINE.match(item.source)
    if place is None:  # a count of many lines names the file and the kind of line
        assert job.log is not None
        assert item.source.startswith(f"{job.log.name}: ")
        return
    assert job.log is not None
    path = next(
        p for p in (job.log.parent / place["file"], *sorted(job.log.parent.rglob(place["file"]))) if p.is_file()
    )
    lines = path.read_bytes().split(b"\n")
    text = lines[int(place["line"]) - 1].decode("utf-8", "replace")
    assert item.says.rstrip("…") in text, f"{item.source} reads otherwise"
