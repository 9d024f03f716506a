"""`trackwalker config`: the model configs, what they say, whether they can run, and new ones."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from trackwalker.cli.common import settings
from trackwalker.cli.common.options import AsJson
from trackwalker.cli.common.say import Screen
from trackwalker.errors import UsageError
from trackwalker.job.redact import HIDDEN, is_secret
from trackwalker.job.run import Setting
from trackwalker.job.scrub import shown
from trackwalker.launch.request.memory import count_parameters, to_json
from trackwalker.launch.request.models import Model, architecture_of, load_model, model_files, new_model, read_model
from trackwalker.launch.request.resolved import Effective
from trackwalker.launch.request.validate import Asked, Checked, check
from trackwalker.launch.request.words import parse_passthrough

SCHEMA = "trackwalker.config/1"
REJECTED = 1  # the question was answered, and the answer is no

app = typer.Typer(
    no_args_is_help=True,
    help="List, show and check model configs, and make new ones; get and set your own settings. Nothing is started.",
    epilog="Example: trackwalker config check 70b -N 8 -- remat_policy=full",
)

_Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model name, alias or file.")]
_Words = Annotated[list[str] | None, typer.Argument(help="Behind '--': key=value and _env_NAME=VALUE, as for a run.")]
_Nodes = Annotated[
    int | None, typer.Option("-N", "--nodes", help="Nodes; default: every count that the model documents.")
]
_Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU model, such as MI300X or H200; default: the model's.")]


@app.command("list", epilog="Example: trackwalker config list --json")
def list_(as_json: AsJson = False) -> None:
    """List the models: name, aliases, parameters, documented node counts."""
    models = [read_model(path) for path in model_files().values()]
    if as_json:
        _print_json({"schema": SCHEMA, "models": [_about(m) for m in models]})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("model", "also", "parameters", "nodes", "GPU"):
        table.add_column(column)
    for model in models:
        about = model.about
        counts = ", ".join(map(str, about.nodes))
        cells = (model.name, ", ".join(about.aliases), _billions(model), counts, about.gpu or "")
        table.add_row(*map(Text, cells))
    Screen(highlight=False).print(table)


@app.command("get", epilog="Example: trackwalker config get workspace")
def get(key: Annotated[str, typer.Argument(metavar="KEY", help="workspace, partition, image, …")]) -> int:
    """Print one setting of the config files or the environment; exit code 1: it is not set."""
    settings.known(key)
    found = settings.effective(os.environ).get(key)
    if found is not None:
        print(found.value)
    return 0 if found is not None else REJECTED


@app.command("set", epilog="Example: trackwalker config set workspace /shared/me/outputs")
def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", help="workspace, partition, account, image, gpu, fabric, …")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value; an empty one takes it away.")],
    project: Annotated[bool, typer.Option("--project", help="In trackwalker.toml here, not in your own file.")] = False,
) -> None:
    """Set one line of your config file, or of the project's; the others stay as they are."""
    path = Path(settings.PROJECT) if project else settings.user_file()
    if key == "workspace" and value and not project:
        value = str(Path(value).expanduser().absolute())  # what is typed here means this folder, not that of the file
    settings.write(path, key, value)
    print(f"{key} = {value} (saved in {path})" if value else f"{key} is no longer set in {path}")


@app.command("path", epilog="Example: trackwalker config path")
def path() -> None:
    """Print the config files that count here, those that do not exist included."""
    print(f"user     {settings.user_file()}")
    print(f"project  {settings.project_file() or Path.cwd() / settings.PROJECT}")


@app.command("show", epilog="Example: trackwalker config show 405b -N 8 -- per_device_batch_size=2")
def show(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Model name, alias or file.")] = None,
    words: _Words = None,
    nodes: _Nodes = None,
    gpu: _Gpu = None,
    origin: Annotated[bool, typer.Option("--origin", help="Without MODEL: also where each setting is set.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the resolved config of a model: every key with the layer that set it, the mesh, the memory estimate.

    Without a model: the settings of the config files (`config path`) and of the environment that count here.
    """
    if model is None:
        _show_settings(origin, as_json)
        return
    found = load_model(model)
    checked = _check(found, found.about.nodes[0] if nodes is None else nodes, words, gpu)
    resolved = checked.resolved
    if resolved is None:
        raise UsageError(checked.problems[0].text)
    if as_json:
        config, env = _shown(resolved.config), _shown(resolved.env)
        _print_json({"schema": SCHEMA, **_about(found), **_outcome(checked), "config": config, "env": env})
        return
    print(f"{found.name}  {_billions(found)} parameters  {found.path}")
    print(f"{found.about.source or 'no source given'}\n")
    for key, setting in resolved.config.items():
        note = "" if setting.source.startswith("model ") else f"   ({setting.source})"
        print(f"  {key}: {shown(key, str(setting.value))}{note}")
    if resolved.mesh:
        print(f"\nmesh on {resolved.mesh.nodes} x {resolved.mesh.gpus_per_node} GPUs: {resolved.mesh.words()}")
    if checked.estimate:
        print(f"memory of each GPU: {checked.estimate.words()}")
    for problem in checked.problems:
        print(f"{problem.level}: {problem.text}")


@app.command("check", epilog="Example: trackwalker config check my-model.yml -N 16 --gpu MI300X --json")
def check_(
    model: _Model, settings: _Words = None, nodes: _Nodes = None, gpu: _Gpu = None, as_json: AsJson = False
) -> int:
    """Check a model config as a submission would: keys, mesh, divisibility, memory.

    Exit codes: 0 it can run, 1 it cannot, 2 there is nothing to check.
    """
    found = load_model(model)
    counts = found.about.nodes if nodes is None else [nodes]
    results = {count: _check(found, count, settings, gpu) for count in counts}
    if as_json:
        rows = [{"nodes": count, **_outcome(checked)} for count, checked in results.items()]
        _print_json({"schema": SCHEMA, "name": found.name, "checks": rows})
    else:
        for count, checked in results.items():
            memory = f"; {checked.estimate.words()}" if checked.estimate else ""
            on = f"{found.name} on {count} node{'s' * (count != 1)}"
            print(f"{on}: {'rejected' if checked.errors else 'ok'}{memory}")
            for problem in checked.problems:
                print(f"  {problem.level}: {problem.text}")
    return REJECTED if any(checked.errors for checked in results.values()) else 0


@app.command("new", epilog="Example: trackwalker config new my-7b --hf config.json --like qwen3-14b -- steps=100")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new model, or a .yml file to write.")],
    settings: _Words = None,
    like: Annotated[str, typer.Option("--like", help="The model whose run settings it takes over.")] = "default",
    hf: Annotated[Path | None, typer.Option("--hf", help="config.json of released weights: the architecture.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> int:
    """Write a model file of your own, from another model and, where given, the config.json of released weights.

    Exit codes: 0 written and it can run, 1 written but it cannot run yet, 2 not written.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", Path(name).name):
        raise UsageError(f"'{name}': a model's name has letters, digits, '.', '_', '+' and '-' only")
    target = Path(name) if name.endswith((".yml", ".yaml")) else Path(f"{name}.yml")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; --force replaces it")
    base = load_model(like)
    words = parse_passthrough(settings or [])
    words.config.setdefault("run_name", target.stem)
    text = new_model(base, words.config, architecture_of(hf) if hf else None)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"cannot write {target}: {e.strerror}") from e
    print(f"wrote {target}; put its folder into TRACKWALKER_MODELS to use it by name")
    return check_(str(target if "/" in str(target) else Path(".") / target), None, None, None, False)


def _check(model: Model, nodes: int, words: list[str] | None, gpu: str | None) -> Checked:
    asked = Asked(str(model.path), words or [], nodes, gpu=gpu)
    checked = check(asked)
    return replace(checked, problems=[p for p in checked.problems if p.about != "name"])


def _shown(settings: dict[str, Setting]) -> dict[str, Any]:
    hidden = {k: HIDDEN for k, s in settings.items() if is_secret(k) and s.value}
    return {k: {"value": hidden.get(k, s.value), "source": s.source} for k, s in settings.items()}


def _outcome(checked: Checked) -> dict[str, Any]:
    mesh = checked.resolved.mesh if checked.resolved else None
    return {
        "accepted": not checked.errors,
        "problems": [p.to_dict() for p in checked.problems],
        "mesh": dict(mesh.groups()) if mesh else None,
        "memory": to_json(checked.estimate) if checked.estimate else None,
    }


def _about(model: Model) -> dict[str, Any]:
    about = model.about
    counted = count_parameters(Effective(model.config, about.architecture)) if about.trainer == "maxtext" else None
    return {
        "name": model.name,
        "path": str(model.path),
        "aliases": about.aliases,
        "trainer": about.trainer,
        "nodes_documented": about.nodes,
        "gpus_per_node": about.gpus_per_node,
        "gpu": about.gpu,
        "parameters": counted.total if counted else None,
        "active_parameters": counted.active if counted else None,
        "source": about.source or None,
    }


def _billions(model: Model) -> str:
    if model.about.trainer != "maxtext":
        return ""
    counted = count_parameters(Effective(model.config, model.about.architecture))
    active = f" ({counted.active / 1e9:.0f}B active)" if counted.active != counted.total else ""
    return f"{counted.total / 1e9:.1f}B{active}"


def _show_settings(origin: bool, as_json: bool) -> None:
    found = settings.effective(os.environ)
    if as_json:
        rows = {key: {"value": each.value, "origin": each.origin} for key, each in found.items()}
        _print_json({"schema": SCHEMA, "settings": rows})
        return
    for key, (_, what) in settings.KEYS.items():
        each = found.get(key)
        value = shown(key, each.value) if each else "-"
        print(f"{key:<11}{value}" + (f"  # {each.origin if each else f'not set: {what}'}" if origin else ""))


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=1, ensure_ascii=False))
