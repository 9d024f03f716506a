"""A scenario: one YAML file with a world, faults, the truth, and what must not be concluded.

Every seed draws other hosts, magnitudes and onsets: `draw:` binds names, `$name` uses them.
"""

from __future__ import annotations

import difflib
import os
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from trackwalker.errors import UsageError
from trackwalker.job.yaml_files import read_yaml

FOLDER_VARIABLE = "TRACKWALKER_SCENARIOS"
POSTS = "posts/"  # what names of worked cases begin with
Kind = Literal["incident", "expected", "healthy", "insufficient-evidence"]


class TrueCause(BaseModel):
    """One root of the truth; `gpus` and `devices` are graded where given."""

    model_config = ConfigDict(extra="forbid")

    cause: str
    hosts: list[str] = []
    gpus: list[str] = []
    devices: list[str] = []


class Truth(BaseModel):
    """What a right verdict says, and what no verdict may say."""

    model_config = ConfigDict(extra="forbid")

    status: list[str] = []  # any of these; empty: not graded
    outcome: Kind
    roots: list[TrueCause] = []
    also_roots: list[str] = []  # further root ids that are true as well, so neither wanted nor wrong
    or_abstain: bool = False  # "insufficient evidence" is right as well: what would decide may not be there
    mechanism: str | None = None
    onset_step: int | None = None
    must_not: list[str] = []  # cause ids that are wrong as a root; `host:NAME` as an accusation
    alternatives: list[Truth] = []  # other answers that an honest examiner takes as right


class Scenario(BaseModel):
    """One family of incidents."""

    model_config = ConfigDict(extra="forbid")

    family: str
    origin: str = ""  # the author's set and the name there, under which lab/history keeps its first results
    split: Literal["tune", "test"]
    about: str
    draw: dict[str, Any] = {}
    world: dict[str, Any] = {}
    faults: list[dict[str, Any]] = []
    truth: dict[str, Any]

    @property
    def seed(self) -> int:
        """What sets this family's random numbers apart from those of others; a new name changes none of them."""
        return sum((self.origin or self.family).encode())


def scenario_folder() -> Path:
    """Where the scenarios are: beside this file, or where the environment says."""
    named = os.environ.get(FOLDER_VARIABLE)
    folder = Path(named) if named else Path(str(files("trackwalker.lab"))) / "scenarios"
    if not folder.is_dir():
        raise UsageError(f"{FOLDER_VARIABLE}={named} is no folder of scenarios" if named else f"{folder} is not there")
    return folder


def load_scenario(name: str) -> Scenario:
    """A shipped scenario by family name, or any YAML file."""
    if name.endswith((".yml", ".yaml")):
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"there is no file {name}")
    else:
        shipped = _paths(scenario_folder())
        if name not in shipped:
            near = difflib.get_close_matches(name, shipped, n=1)
            hint = "'lab simulate --list' shows them; a path to a .yml file works too"
            raise UsageError(f"no scenario '{name}'; " + (f"did you mean {near[0]}?" if near else hint))
        path = shipped[name]
    try:
        return Scenario(**read_yaml(path.read_text()))
    except (yaml.YAMLError, TypeError) as e:
        raise UsageError(f"scenario {path.name}: {' '.join(str(e).split())}") from e
    except ValidationError as e:
        first = e.errors()[0]
        raise UsageError(f"scenario {path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from e


@lru_cache
def _paths(folder: Path) -> dict[str, Path]:
    """Each scenario's file by its name; folders say what kind of trouble it is (a kind of incident, then the cause)."""
    found = sorted(folder.rglob("*.yml"), key=lambda path: path.stem)
    return {(POSTS if path.parent == folder / POSTS else "") + path.stem: path for path in found}


def all_scenarios() -> list[Scenario]:
    """The shipped scenarios by name."""
    return [load_scenario(name) for name in _paths(scenario_folder()) if not name.startswith(POSTS)]


def post_cases() -> list[Scenario]:
    """The worked cases of upstream's posts: their own hosts, steps and times, nothing left to a seed but noise."""
    return [load_scenario(name) for name in _paths(scenario_folder()) if name.startswith(POSTS)]


class Draws:
    """The values a seed gives to a scenario's names."""

    def __init__(self, hosts: list[str], gpus: int, rng: np.random.Generator) -> None:
        self._hosts, self._gpus, self._rng = hosts, gpus, rng
        self._taken: set[str] = set()
        self.values: dict[str, Any] = {}

    def bind(self, names: dict[str, Any]) -> None:
        """Draw every name in order; hosts are never drawn twice."""
        for name, rule in names.items():
            self.values[name] = self._draw(rule)

    def _draw(self, rule: Any) -> Any:
        if not isinstance(rule, dict):
            return rule
        if "hosts" in rule:
            wanted = int(rule["hosts"])
            free = [h for h in self._hosts[1 if rule.get("not_head") else 0 :] if h not in self._taken]
            if wanted > len(free):
                raise UsageError(f"the scenario needs {wanted} more hosts, {len(free)} are left: use more nodes")
            chosen = sorted(str(h) for h in self._rng.choice(free, wanted, replace=False))
            self._taken |= set(chosen)
            return chosen
        if rule.get("head"):  # rank 0's host, where the coordinator runs
            self._taken.add(self._hosts[0])
            return self._hosts[:1]
        if "gpu" in rule:
            return int(self._rng.integers(self._gpus))
        if "choose" in rule:
            return rule["choose"][int(self._rng.integers(len(rule["choose"])))]
        low, high = rule["between"]
        if isinstance(low, int) and isinstance(high, int):
            return int(self._rng.integers(low, high + 1))
        return float(self._rng.uniform(low, high))

    def fill(self, value: Any) -> Any:
        """The same structure with names replaced; `$bad/ionic_$n` inside a text works too."""
        if isinstance(value, dict):
            return {k: self.fill(v) for k, v in value.items()}
        if isinstance(value, list):
            out: list[Any] = []
            for item in value:
                filled = self.fill(item)
                out += filled if isinstance(filled, list) and isinstance(item, str) else [filled]
            return out
        if isinstance(value, str) and "$" in value:
            return self._text(value)
        return value

    def _text(self, text: str) -> Any:
        if text[1:] in self.values and text.startswith("$"):
            return self.values[text[1:]]
        for name in sorted(self.values, key=len, reverse=True):
            held = self.values[name]
            text = text.replace(f"${name}", str(held[0] if isinstance(held, list) else held))
        return text
