"""Which cases make a suite, and how one case is made: from a scenario and a seed, or from a recorded incident."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from trackwalker.errors import UsageError
from trackwalker.job.layout import LOG_SUFFIXES
from trackwalker.job.yaml_files import read_yaml
from trackwalker.lab.perturb import named
from trackwalker.lab.scenario import Scenario, Truth, all_scenarios, load_scenario, post_cases
from trackwalker.lab.simulate import simulate
from trackwalker.lab.variants import AS_WRITTEN, VARIANTS, Variant

CASE_FILE = "case.yml"  # beside the job of a recorded incident
SMOKE = (
    "collective-hang",
    "container-pull-fail",
    "cpu-contention",
    "expected-checkpoint",
    "gpu-thermal-throttle",
    "healthy-plain",
    "input-stall",
    "node-death",
    "oom-gpu",
    "pre-existing-counters",
    "rdma-retry-exhaustion",
    "slow-without-telemetry",
)
SCALE = ("gpu-thermal-throttle", "healthy-spread", "node-death", "rdma-from-start")
SCALE_NODES = 1000
FULL_SEEDS = 5
_WORLD_SEED = 1000  # perturbed worlds draw other hosts and numbers than the plain cases


@dataclass(frozen=True)
class Case:
    """One question: a family under a seed and a condition, or (`folder`) a recorded incident."""

    family: str
    split: str
    seed: int = 1
    variant: str = ""
    nodes: int | None = None
    folder: Path | None = None


class Recorded(BaseModel):
    """What `lab add` writes beside a recorded incident."""

    model_config = ConfigDict(extra="forbid")

    family: str
    split: str = "tune"
    about: str = ""
    truth: Truth


def make_suite(
    names: list[str], seeds: int | None, conditions: bool = False, worlds: int = 0, stress: int = 0
) -> list[Case]:
    """The cases of suites (smoke, full, tune, test, scale, posts), of scenarios, of recorded cases (folders).

    `conditions` adds every derived condition, `worlds` and `stress` so many perturbed and harsh worlds of each family.
    """
    cases: list[Case] = []
    for name in names:
        if name == "smoke":
            for family in SMOKE:
                cases += _of_scenario(family, load_scenario(family), seeds or 1, conditions, worlds, stress)
        elif name in ("full", "tune", "test"):
            for scenario in [s for s in all_scenarios() if name in ("full", s.split)]:
                cases += _of_scenario(scenario.family, scenario, seeds or FULL_SEEDS, conditions, worlds, stress)
        elif name == "posts":
            for scenario in post_cases():
                cases += _of_scenario(scenario.family, scenario, seeds or 1, conditions, 0, 0)
        elif name == "scale":
            for family in SCALE:
                split = load_scenario(family).split
                cases += [Case(family, split, seed, nodes=SCALE_NODES) for seed in range(1, (seeds or 1) + 1)]
        elif Path(name).is_dir():
            cases += _recorded(Path(name))
        else:
            cases += _of_scenario(name, load_scenario(name), seeds or 1, conditions, worlds, stress)
    return cases


def only(cases: list[Case], families: list[str], nodes: int | None = None) -> list[Case]:
    """The cases of some families (all, where none is named), on another number of nodes where one is given."""
    unknown = set(families) - {Path(case.family).stem for case in cases}
    if unknown:
        raise UsageError(f"no family '{min(unknown)}' in this suite")
    chosen = [case for case in cases if not families or Path(case.family).stem in families]
    return [replace(case, nodes=nodes or case.nodes) for case in chosen]


def build(case: Case, place: Path) -> tuple[Path, Truth]:
    """Make the case in an empty place that holds the job and nothing else; the truth is only returned."""
    if case.folder is not None:
        shutil.copytree(case.folder / "outputs", place / "outputs", symlinks=True)
        return _only_job(place / "outputs"), _read_case(case.folder).truth
    made = place.with_name(place.name + "-made")
    scenario = load_scenario(case.family)
    try:
        done = simulate(scenario, made, case.seed, case.nodes, variant=_variant(scenario, case.variant))
        place.mkdir(parents=True, exist_ok=True)
        done.workspace.rename(place / "outputs")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return place / "outputs" / done.job.name, done.truth


def truth_and_job(case: Case) -> tuple[Path, Truth]:
    """The job of a recorded incident where it lies, and what is true of it."""
    if case.folder is None:
        raise UsageError(f"{case.family} is no recorded incident")
    return _only_job(case.folder / "outputs"), _read_case(case.folder).truth


def _of_scenario(name: str, scenario: Scenario, seeds: int, conditions: bool, worlds: int, stress: int) -> list[Case]:
    """`name` is how the scenario is loaded again: its family, or the path of its file."""
    fitting = [v.name for v in VARIANTS.values() if v.fits(scenario)] if conditions else []
    plain = [Case(name, scenario.split, seed, v) for v in ["", *fitting] for seed in range(1, seeds + 1)]
    numbered = [("world", n) for n in range(1, worlds + 1)] + [("stress", n) for n in range(1, stress + 1)]
    return plain + [Case(name, scenario.split, _WORLD_SEED + n, f"{kind}-{n}") for kind, n in numbered]


def _variant(scenario: Scenario, name: str) -> Variant:
    return named(scenario, name) or (VARIANTS[name] if name else AS_WRITTEN)


def _recorded(folder: Path) -> list[Case]:
    folders = [folder] if (folder / CASE_FILE).is_file() else sorted(p.parent for p in folder.glob(f"*/{CASE_FILE}"))
    if not folders:
        raise UsageError(f"{folder} holds no recorded cases (folders with {CASE_FILE}, as 'lab add' makes them)")
    found = [(f, _read_case(f)) for f in folders]
    return [Case(c.family, c.split, folder=f) for f, c in found]


def _read_case(folder: Path) -> Recorded:
    path = folder / CASE_FILE
    try:
        return Recorded(**read_yaml(path.read_text()))
    except (OSError, yaml.YAMLError, TypeError, ValidationError) as e:
        raise UsageError(f"{path}: not a recorded case: {' '.join(str(e).split())}") from e


def _only_job(workspace: Path) -> Path:
    entries = [p for p in workspace.iterdir() if not p.name.startswith(".")]
    jobs = [p for p in entries if p.is_dir()] or [p for p in entries if p.suffix in LOG_SUFFIXES]  # a log alone is one
    if len(jobs) != 1:
        raise UsageError(f"{workspace} holds {len(jobs)} jobs, a case has one")
    return jobs[0]
