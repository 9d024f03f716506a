"""The `resume:` section of the watcher's settings: what may be started again, how often, and on which nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trackwalker.errors import UsageError
from trackwalker.job.trust import distrust_open
from trackwalker.job.yaml_files import Strict
from trackwalker.launch.resume import RULES, Rule
from trackwalker.logs.formats.nodelist import expand

_FINAL = ("completed", "cancelled")  # nobody wants these again, whatever a file says
_OWN_NODES = {"node-fail": "exclude"}  # Slurm gives another node, unless the lost one is back by then


# The watcher's settings file as YAML; what is wrong with it in one line, without repeating its values.
Model = TypeVar("Model", bound=BaseModel)


def read_settings(path: Path) -> Any:
    """What the file holds."""
    try:
        with path.open() as file:
            if why := distrust_open(file.fileno(), path):
                raise UsageError(f"the watcher's settings are not believed, others could have written them: {why}")
            return yaml.load(file, Loader=Strict)  # noqa: S506 - a safe one
    except OSError as e:
        raise UsageError(f"the watcher's settings {path} cannot be read: {e.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{where} is not YAML: {getattr(e, 'problem', None) or type(e).__name__}") from None


def validated(model: type[Model], raw: Any, path: Path, section: str = "") -> Model:
    """The settings, or of a section, as a model."""
    try:
        return model.model_validate(raw)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in ([section] if section else []) + list(first["loc"]))
        more = f" (and {e.error_count() - 1} more)" if e.error_count() > 1 else ""
        raise UsageError(f"{path}: {place or 'the file'}: {first['msg'].removeprefix('Value error, ')}{more}") from None


class ClassRule(BaseModel):
    """How one class of failure is treated; what is left out stays as docs/how-to/resume.md has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    times: int | None = Field(default=None, ge=0, le=100)
    nodes: Literal["any", "same", "exclude"] | None = None


class ResumePolicy(BaseModel):
    """What the owner allows. The defaults are the table of docs/how-to/resume.md, for jobs that asked for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: Literal["asked", "all"] = "asked"  # asked: submitted with --auto-resume
    dry_run: bool = False
    budget: int = Field(default=3, ge=0, le=1000)  # further attempts of one run, all classes together
    classes: dict[str, ClassRule] = {}
    most_excluded: int = Field(default=2, ge=0)  # nodes that may be left out of one run, all attempts together
    spare: tuple[str, ...] = ()  # nodes that take the place of those left out, the first free one first
    without_progress: int = Field(default=2, ge=1)  # stop after so many attempts in a row without a new checkpoint

    @field_validator("classes")
    @classmethod
    def _known(cls, value: dict[str, ClassRule]) -> dict[str, ClassRule]:
        unknown = sorted(set(value) - set(RULES))
        if unknown:
            raise ValueError(f"no failure class '{unknown[0]}'; known: {', '.join(sorted(RULES))}")
        if final := [name for name in _FINAL if name in value and value[name].times]:
            raise ValueError(f"a run that was {final[0]} is never started again")
        return value

    @field_validator("spare", mode="before")
    @classmethod
    def _nodes(cls, value: object) -> object:
        return tuple(expand(value)) if isinstance(value, str) else value

    def rules(self) -> dict[str, Rule]:
        """The table of the failure classes with this policy's changes."""
        out = {}
        for name, rule in RULES.items():
            mine = self.classes.get(name, ClassRule())
            times = rule.times if mine.times is None else mine.times
            out[name] = Rule(times, rule.why, mine.nodes or _OWN_NODES.get(name, rule.nodes))
        return out


def load_policy(path: Path) -> ResumePolicy:
    """The `resume:` section of a settings file; what is wrong with it in one line."""
    raw = read_settings(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("resume"), dict):
        raise UsageError(f"{path} has no section 'resume:'; docs/how-to/supervise.md shows one")
    return validated(ResumePolicy, raw["resume"], path, "resume")
