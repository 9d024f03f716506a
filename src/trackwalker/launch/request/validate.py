"""Everything that is wrong with a request, found before anything is queued; each problem is one line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from trackwalker.errors import UsageError
from trackwalker.job.scrub import shown
from trackwalker.launch.request.keys import bad_values, unknown_keys
from trackwalker.launch.request.memory import Estimate, estimate_memory, find_gpu
from trackwalker.launch.request.mesh import cuts
from trackwalker.launch.request.models import Model, load_model
from trackwalker.launch.request.resolved import FACTS, Resolved, Target, resolve
from trackwalker.launch.request.rules import names_in
from trackwalker.launch.request.words import ModelSpec, job_name, parse_model_spec, parse_passthrough
from trackwalker.node.runtimes.image import ImageError, is_archive, normalise
from trackwalker.node.stages.order import STAGES

T = TypeVar("T")
MOST_NODES = 16384
# Shapes of secrets that are known by themselves, whatever the key is called.
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{15,}|sk-[A-Za-z0-9_-]{20,}"
    r"|AKIA[A-Z0-9]{16}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{20,}"
)


# `STAGE_TIMEOUTS`: how long each stage of a job may take.
DEFAULTS: dict[str, float | None] = {"preflight": 900.0, "pull": 900.0, "health": 300.0, "train": None}
_UPSTREAM = {"ecc": "health"}
_NO_LIMIT = ("none", "-1")
_FORM = "the form is stage:seconds or stage:none, separated by commas"


def parse_timeouts(text: str) -> dict[str, float | None]:
    """Seconds for each stage, None where there is no limit: the defaults with the given ones in their place."""
    limits = dict(DEFAULTS)
    for part in text.split(",") if text.strip() else []:
        name, colon, value = (word.strip() for word in part.partition(":"))
        stage = _UPSTREAM.get(name.lower(), name.lower())
        if not colon:
            raise UsageError(f"stage timeouts '{text}': '{part}' cannot be read; {_FORM}")
        if stage not in STAGES:
            raise UsageError(f"stage timeouts: unknown stage '{name}'; stages are {', '.join(STAGES)}")
        limits[stage] = None if value.lower() in _NO_LIMIT else _seconds(stage, value)
    return limits


def _seconds(stage: str, value: str) -> float:
    if not (value.isascii() and value.isdecimal()):
        raise UsageError(f"stage timeouts: '{stage}:{value}' is no number of seconds; {_FORM}")
    if int(value) == 0:
        raise UsageError(f"stage timeouts: '{stage}:0' is not clear; give a number of seconds, or none for no limit")
    return float(value)


@dataclass(frozen=True)
class Problem:
    """One line about one part of the request; an error forbids the run, a warning does not."""

    about: str
    text: str
    level: Literal["error", "warning"] = "error"

    def to_dict(self) -> dict[str, str]:
        """As data."""
        return {"level": self.level, "about": self.about, "text": self.text}


@dataclass(frozen=True)
class Asked:
    """A request as it was typed, nothing of it checked."""

    spec: str
    words: list[str] = field(default_factory=list)  # behind `--`
    nodes: int = 1
    gpus_per_node: int | None = None  # None: what the model file says
    gpu: str | None = None  # GPU profile; None: what the model file says
    fabric: str | None = None
    image: str | None = None
    registry: str = "docker.io"
    stage_timeouts: str | None = None
    workspace: Path | None = None
    models: Mapping[str, str] = field(default_factory=lambda: os.environ)  # where TRACKWALKER_MODELS is looked up


@dataclass(frozen=True)
class Checked:
    """What a request comes to: all its problems, and whatever of it could be resolved in spite of them."""

    problems: list[Problem]
    spec: ModelSpec | None = None
    resolved: Resolved | None = None
    estimate: Estimate | None = None

    @property
    def errors(self) -> list[Problem]:
        """The problems that forbid the run."""
        return [p for p in self.problems if p.level == "error"]


def check(asked: Asked) -> Checked:
    """Check every part of a request that can be checked, whatever is wrong with the others."""
    desk = _Desk()
    spec = desk.attempt("model", lambda: parse_model_spec(asked.spec))
    model = desk.attempt("model", lambda: load_model(spec.model, asked.models)) if spec else None
    if spec and model:
        desk.attempt("name", lambda: job_name(ModelSpec(model.name, spec.alias, spec.tag)))
    # One word at a time: every bad one is told.
    parsed = [desk.attempt("words", partial(parse_passthrough, [word])) for word in asked.words]
    config = {k: v for each in parsed if each for k, v in each.config.items()}
    env = {k: v for each in parsed if each for k, v in each.env.items()}
    desk.say("name", _secrets(spec, config))
    desk.say("nodes", _nodes(asked))
    if asked.stage_timeouts is not None:
        desk.attempt("stage timeouts", partial(parse_timeouts, asked.stage_timeouts))
    if asked.image is not None:
        desk.attempt("image", partial(_image, asked.image, asked.registry))
    if asked.workspace is not None:
        desk.say("workspace", _workspace(asked.workspace))
    resolved, estimate = _config(asked, model, config, env, desk) if model else (None, None)
    return Checked(desk.problems(), spec, resolved, estimate)


class _Desk:
    """Collects problems instead of stopping at the first."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def attempt(self, about: str, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except (UsageError, ImageError) as e:
            self.say(about, [str(e)])
            return None

    def say(self, about: str, lines: Iterable[str]) -> None:
        self._found += [Problem(about, " ".join(line.split())) for line in lines]

    def add(self, problems: Iterable[Problem]) -> None:
        self._found += problems

    def problems(self) -> list[Problem]:
        once: dict[str, Problem] = {}
        for problem in self._found:
            once.setdefault(problem.text, problem)  # mesh and memory stumble over the same value
        return sorted(once.values(), key=lambda p: p.level)  # errors first


def _config(
    asked: Asked, model: Model, config: dict[str, str], env: dict[str, str], desk: _Desk
) -> tuple[Resolved | None, Estimate | None]:
    desk.say("config", _keys(model, config))
    name = asked.gpu or model.about.gpu  # memory is checked for the GPU that the model is documented for,
    gpu = desk.attempt("gpu", partial(find_gpu, name)) if name else None
    vendor = gpu.vendor if gpu and asked.gpu else None  # but whose GPUs the nodes have, only the user or a node knows
    gpus = model.about.gpus_per_node if asked.gpus_per_node is None else asked.gpus_per_node
    target = Target(max(1, asked.nodes), max(1, gpus), vendor, asked.fabric)
    resolved = desk.attempt("environment", partial(resolve, model, target, config, env))
    if not resolved or model.about.trainer != "maxtext":
        return resolved, None
    desk.say("mesh", resolved.mesh_problems)
    if not resolved.mesh:
        return resolved, None
    desk.say("mesh", cuts(resolved.effective, resolved.mesh))
    work = partial(estimate_memory, resolved.effective, resolved.mesh)
    estimate = desk.attempt("memory", partial(work, gpu)) if gpu else None
    if estimate:
        desk.add(_memory(estimate))
    return resolved, estimate


def _secrets(spec: ModelSpec | None, config: Mapping[str, str]) -> Iterator[str]:
    named = {"tag": spec.tag, "alias": spec.alias} if spec else {}
    named["run_name"] = config.get("run_name")
    for what, word in named.items():
        if word and _SECRET_VALUE.search(word):
            yield f"the {what} looks like a secret, and would be in names that everybody reads: leave it out"


def _nodes(asked: Asked) -> Iterator[str]:
    if not 1 <= asked.nodes <= MOST_NODES:
        yield f"-N {asked.nodes}: between 1 and {MOST_NODES} nodes"
    if asked.gpus_per_node is not None and not 1 <= asked.gpus_per_node <= 128:
        yield f"{asked.gpus_per_node} GPUs per node: between 1 and 128"


def _image(image: str, registry: str) -> None:
    if not is_archive(image):
        normalise(image, registry)
    elif not Path(image).is_file():
        raise UsageError(f"image file '{image}' does not exist here; every node has to see it")


def _workspace(workspace: Path) -> Iterator[str]:
    place = workspace.absolute()
    there = next(p for p in (place, *place.parents) if p.exists())
    if not there.is_dir():
        yield f"workspace {workspace} cannot be made: {there} is a file"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield f"workspace {workspace} cannot be written: no permission in {there}"


def _keys(model: Model, words: Mapping[str, str]) -> Iterator[str]:
    about = model.about
    unknown = unknown_keys(about.trainer, words, about.keys)
    yield from unknown
    if about.trainer == "tiny" and not unknown:
        yield from bad_values(model.path, words)
    yield from (f"{model.path.name}: {line}" for line in unknown_keys(about.trainer, model.config, about.keys))
    for rule in about.rules:
        for line in unknown_keys(about.trainer, [*rule.config, *(names_in(rule.when) - FACTS)], about.keys):
            yield f"{model.path.name}, rule '{rule.name}': {line}"
    named = str(model.config.get("model_name", ""))
    if named and words.get("model_name", named) != named:
        other = words["model_name"]
        yield f"{model.name} describes model_name={named}; for {other} make a file: trackwalker config new"
    # MaxText refuses this itself, but only on the nodes.
    elif named and words.get("override_model_config", "").lower() not in ("true", "1"):
        for key, value in words.items():
            if key in about.architecture and value != str(about.architecture[key]):
                yield f"{key}={shown(key, value)} contradicts model_name={named}: add override_model_config=True"


def _memory(estimate: Estimate) -> Iterator[Problem]:
    if estimate.verdict == "impossible":
        advice = "use more nodes, or shard the weights over more GPUs"
        yield Problem("memory", f"weights and optimizer alone do not fit: {estimate.words()}; {advice}")
    elif estimate.verdict != "fits":
        likely = "probably does not fit" if estimate.verdict == "unlikely" else "may not fit"
        yield Problem("memory", f"a step {likely}: {estimate.words()}", "warning")
