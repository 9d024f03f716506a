"""`trackwalker explain`: where a variable, an XLA flag or a config key of a run gets its value from."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trackwalker.cli.common.options import AsJson
from trackwalker.errors import UsageError
from trackwalker.job.scrub import shown
from trackwalker.launch.request.keys import known_keys
from trackwalker.launch.request.layers import COMMAND_LINE, XLA_FLAGS, Step, found_on_node
from trackwalker.launch.request.memory import find_gpu
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.resolved import Resolved, Target, resolve
from trackwalker.launch.request.words import parse_passthrough

SCHEMA = "trackwalker.explain/1"


def explain(
    variable: Annotated[str, typer.Argument(metavar="VAR", help="Environment variable, XLA flag or config key.")],
    model: Annotated[str, typer.Argument(help="Model name, alias or file.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Behind '--': key=value and _env_NAME=VALUE, as for a run.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("-N", "--nodes", help="Nodes; default: the model's smallest.")] = None,
    vendor: Annotated[str | None, typer.Option("--vendor", help="amd or nvidia; default: the model's GPU.")] = None,
    fabric: Annotated[str | None, typer.Option("--fabric", help="ionic, mlx5, bnxt, efa or tcp.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which layer sets a variable, XLA flag or config key of a run, and what the layers below it said."""
    found = load_model(model)
    words = parse_passthrough(settings or [])
    about = found.about
    vendor = vendor or (find_gpu(about.gpu).vendor if about.gpu else None)
    target = Target(about.nodes[0] if nodes is None else nodes, about.gpus_per_node, vendor, fabric)
    it = resolve(found, target, words.config, words.env)
    kind, steps = _steps(it, variable.removeprefix("--"))
    if as_json:
        value = it.env[XLA_FLAGS].value if variable == XLA_FLAGS and XLA_FLAGS in it.env else None
        document: dict[str, Any] = {"schema": SCHEMA, "name": variable, "kind": kind, "model": found.name}
        document |= {"value": value if value is not None else (steps[-1].value if steps else None)}
        document |= {"nodes": target.nodes, "vendor": vendor, "fabric": fabric, "layers": [_row(s) for s in steps]}
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return
    counts = "made of these flags" if variable == XLA_FLAGS else "the last line counts"
    place = " ".join(word for word in (vendor, fabric) if word)
    on = f"{target.nodes} {place} node".replace("  ", " ") + "s" * (target.nodes != 1)
    print(f"{variable} for {found.name} on {on}: {counts}")
    width = max((len(s.source) for s in steps), default=0)
    for step in steps:
        note = f"   {step.why}" if step.why else ""
        checked = f" (checked on the node: {step.guard})" if step.guard else ""
        print(f"  {step.source:<{width}}  {step.value if step.value else '(empty)'}{note}{checked}")


def _row(step: Step) -> dict[str, Any]:
    row: dict[str, Any] = {"source": step.source, "value": step.value, "why": step.why or None}
    return row | ({"guard": step.guard} if step.guard else {})


def _steps(it: Resolved, name: str) -> tuple[str, list[Step]]:
    environment = it.environment
    if name == XLA_FLAGS:
        if not (value := it.env.get(XLA_FLAGS)):
            raise UsageError(f"no layer sets {XLA_FLAGS} for {it.model.name}: it keeps the value it has in the image")
        last = [steps[-1] for steps in environment.flags.values()] if value.value else []
        return "variable", last or [Step(value.source, "")]
    if name in environment.variables:
        return "variable", [_hidden(name, s) for s in environment.variables[name]]
    if name in environment.flags:
        return "flag", environment.flags[name]
    if name in found_on_node():
        return "variable", [Step("node", "found when the job starts", found_on_node()[name])]
    if name in known_keys(it.model.about.trainer):
        return "config", [_hidden(name, s) for s in _config_steps(it, name)]
    raise UsageError(f"no layer sets '{name}' for {it.model.name}: it keeps the value it has in the image")


def _config_steps(it: Resolved, name: str) -> list[Step]:
    about, file, last = it.model.about, it.model.config, it.config.get(name)
    steps = [Step("model_name", str(about.architecture[name]))] if name in about.architecture else []
    steps += [Step(f"model {it.model.name}", str(file[name]))] if name in file else []
    steps += [Step(f"rule {r.name}", str(r.config[name]), r.why) for r in it.rules if name in r.config]
    if last and last.source == COMMAND_LINE:
        steps.append(Step(COMMAND_LINE, str(last.value)))
    return steps or [Step("trainer", "its own default")]


def _hidden(name: str, step: Step) -> Step:
    return Step(step.source, shown(name, step.value), step.why, step.guard)
