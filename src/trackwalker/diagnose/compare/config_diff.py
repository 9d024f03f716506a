"""What two jobs were told to do differently, and which of it explains another speed or other losses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trackwalker.diagnose.case import Case
from trackwalker.job.resolve import follow
from trackwalker.logs.formats.dialect import STEERS

Effect = Literal[
    "speed",  # changes the work of a step or how it is done
    "perhaps",  # may change it: code, image, a setting that is not known here
    "numbers",  # changes what is computed (seed, data, learning rate), not how fast
    "start",  # how the run began
    "nodes",  # the same number of other machines
    "none",  # names, places, how long, how often saved: such steps are left out of the comparison
]

_SPEED = re.compile(
    r"per_device_batch_size|max_target_length|remat_|.*quanti[sz]|.*fp8|dtype|weight_dtype|.*_dtype$|matmul_precision"
    r"|attention|.*flash|sa_|(ici|dcn)_\w+_parallelism|mesh_axes|gradient_accumulation|scan_layers|megablox|sparse_matmul"
    r"|capacity_factor|num_experts|base_(?!output)\w+|head_dim|mlp_dim|num_\w*layers|vocab_size|packing|.*offload|model_name"
    r"|dataset_type|num_slices|param_scan_axis|optimizer_memory|fused_|use_ring"
    r"|shardy|te_|allow_split_physical_axes|logical_axis_rules|MODEL_NAME$|GPUS_PER_NODE$"
)
_NUMBERS = re.compile(
    r".*seed|.*learning_rate|.*warmup|opt_type|adam_|adamw|mu_dtype|gradient_clipping|.*dataset|hf_|.*shuffl|tokenizer"
    r"|load_\w*path|.*weight_decay|init_|.*dropout|z_loss|load_balance_loss_weight|grain_|eval_\w+|global_batch"
)
_START = re.compile(r"enable_single_replica_ckpt_restoring|load_parameters|load_full_state|.*restor")
_NONE = re.compile(
    r"steps$|run_name|.*(dir|directory|path|file|uri)$|tensorboard|log_|metrics_|gcs_|upload|.*timeout|.*heartbeat"
    r"|.*checkpoint|.*ckpt|save_|max_num_checkpoints|num_epoch|hardware|.*hostname|.*timestamp|jax_(cache|distributed)|.*profiler"
    r"|compile_topology|monitor_|enable_goodput|.*_port$|.*address|process_id|num_processes|vertex|managed_mldiagnostics"
)
_ENVIRONMENT = re.compile(rf"{STEERS}$")
_ENVIRONMENT_NONE = re.compile(
    r".*(PORT|ADDRESS|ADDR|HOST|DIR|PATH|FILE|RANK|ID|VISIBLE_DEVICES|PROCESS_COUNT|SOCKET_IFNAME)$|JAX_CO|.*DEBUG|.*LOG_LEVEL"
)
_FLAG_PLACES = re.compile(r"--xla_dump\w*=\S+|--\w+=\S*/\S*")


@dataclass(frozen=True)
class Change:
    """One setting that differs; None where a job does not state it."""

    name: str
    a: str | None
    b: str | None
    effect: Effect
    source_a: str = ""
    source_b: str = ""

    @property
    def says(self) -> str:
        """The change in words."""
        return f"{self.name}: {_shown(self.a)} in A, {_shown(self.b)} in B"


@dataclass(frozen=True)
class Stated:
    """A value and the place that states it."""

    value: str
    source: str


def config_changes(a: Case, b: Case) -> list[Change]:
    """Everything that differs, what explains most first; settings only one log states are no difference."""
    out = []
    for read in (settings_of, _environment):
        one, two = read(a), read(b)
        complete = bool(one) and bool(two)
        for name in sorted(one.keys() | two.keys()):
            effect = _effect(name) if read is settings_of else _environment_effect(name)
            x, y = one.get(name), two.get(name)
            if (x is None or y is None) and not (complete and effect == "speed"):
                continue  # the two logs may merely tell different parts
            if x is None or y is None or _plain(name, x.value) != _plain(name, y.value):
                out.append(_change(name, x, y, effect))
    out += [*_machines(a, b), *_code(a, b), *_beginnings(a, b)]
    order = ["speed", "perhaps", "nodes", "start", "numbers", "none"]
    return sorted(out, key=lambda c: (order.index(c.effect), c.name))


def shared_hosts(a: Case, b: Case) -> list[str]:
    """Hosts that both jobs ran on."""
    return sorted(set(a.hosts) & set(b.hosts))


def _change(name: str, x: Stated | None, y: Stated | None, effect: Effect) -> Change:
    return Change(
        name, x.value if x else None, y.value if y else None, effect, x.source if x else "", y.source if y else ""
    )


def settings_of(case: Case) -> dict[str, Stated]:
    """Settings by name: run.json, else the config dump, else what was passed on the command line."""
    out: dict[str, Stated] = {}
    log = case.log
    for name, value in _passed(log.header.get("PASSTHROUGH_ARGS", "")):
        if not name.startswith("_env_"):
            out[name] = Stated(value, f"{log.path.name}: PASSTHROUGH_ARGS")
    for name, (value, quote) in log.config.items():
        out[name] = Stated(value, f"{log.path.name}:{quote.line}")
    if case.run is not None:
        for name, setting in case.run.config.items():
            out[name] = Stated(str(setting.value), f"run.json: config.{name}")
    for key in ("MODEL_NAME",):
        if key in log.header:
            out[key] = Stated(log.header[key], f"{log.path.name}: {key}")
    return out


def _passed(text: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(text.strip().strip('"'))
    except ValueError:
        words = text.split()
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name:
            yield name, value


def _environment(case: Case) -> dict[str, Stated]:
    """Variables that reach the GPUs and the network, as launcher and the lowest rank print them."""
    log = case.log
    found = {name: Stated(told.text, f"{log.path.name}:{told.line}") for name, told in log.environment.items()}
    for name, value in _passed(log.header.get("PASSTHROUGH_ARGS", "")):
        if name.startswith("_env_") and _ENVIRONMENT.match(name[5:]):
            found.setdefault(name[5:], Stated(value, f"{log.path.name}: PASSTHROUGH_ARGS"))
    if case.run is not None:
        for name, setting in case.run.env.items():
            if _ENVIRONMENT.match(name):
                found[name] = Stated(str(setting.value), f"run.json: env.{name}")
    return found


def _machines(a: Case, b: Case) -> Iterator[Change]:
    if not a.hosts or not b.hosts:
        return
    sources = tuple(f"{c.log.path.name}: JOB_NODELIST" if c.run is None else "run.json: ranks" for c in (a, b))
    if len(a.hosts) != len(b.hosts):
        yield Change("nodes", str(len(a.hosts)), str(len(b.hosts)), "speed", *sources)
    only_a, only_b = sorted(set(a.hosts) - set(b.hosts)), sorted(set(b.hosts) - set(a.hosts))
    if only_a or only_b:
        yield Change("node list", _some(only_a), _some(only_b), "nodes", *sources)


def _some(hosts: list[str]) -> str:
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    return f"also {shown}" if hosts else "no others"


def _code(a: Case, b: Case) -> Iterator[Change]:
    """The frozen copy's git summary, or the versions in run.json."""
    one, two = _git(a), _git(b)
    if one is not None and two is not None and one.value != two.value:
        yield _change("code", Stated(_commit(one.value), one.source), Stated(_commit(two.value), two.source), "perhaps")
    if a.run is not None and b.run is not None:
        for name in sorted(a.run.code.keys() & b.run.code.keys()):
            if a.run.code[name] != b.run.code[name]:
                yield Change(
                    f"code {name}", a.run.code[name], b.run.code[name], "perhaps", "run.json: code", "run.json: code"
                )


def _git(case: Case) -> Stated | None:
    artifact = follow(case.job.dir / "artifact") if case.job.dir is not None else None
    path = artifact / "git_summary.txt" if artifact is not None else None
    try:
        return Stated(path.read_text(errors="replace").strip(), "artifact/git_summary.txt") if path else None
    except OSError:
        return None


def _commit(summary: str) -> str:
    """The line that names the commit, else the first one."""
    lines = [line.strip() for line in summary.splitlines() if line.strip()]
    for title, line in pairwise(lines):
        if title == "[LAST COMMIT]":
            return line[:80]
    return lines[0][:80] if lines else "nothing"


def _beginnings(a: Case, b: Case) -> Iterator[Change]:
    one, two = began(a), began(b)
    if one is not None and two is not None and one.value != two.value:
        yield _change("start", one, two, "start")


def began(case: Case) -> Stated | None:
    """Fresh, or restored from a step."""
    if case.log.restored is not None:
        return Stated(f"restored from step {case.log.restored}", f"{case.log.path.name}: restore line")
    if case.timeline is None or not len(case.timeline):
        return None
    first = int(case.timeline.steps[0])
    source = f"{case.timeline.source}: first step"
    return Stated("fresh" if first == 0 else f"continued at step {first}", source)


def _effect(name: str) -> Effect:
    if _START.match(name):
        return "start"
    if _SPEED.match(name):
        return "speed"
    if _NUMBERS.match(name):
        return "numbers"
    return "none" if _NONE.match(name) else "perhaps"


def _environment_effect(name: str) -> Effect:
    return "none" if _ENVIRONMENT_NONE.match(name) else "speed" if name == "XLA_FLAGS" else "perhaps"


def _plain(name: str, value: str) -> object:
    """A value without the ways of writing it."""
    text = value.strip().strip("'\"")
    if name == "XLA_FLAGS":
        return frozenset(_FLAG_PLACES.sub("", text).split())
    try:
        return float(text)
    except ValueError:
        return text.lower()


def _shown(value: str | None) -> str:
    return "not stated" if value is None else value if len(value) <= 80 else value[:79] + "…"
