"""The device mesh: what the parallelism keys mean on so many nodes, and whether the model can be cut that way."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trackwalker.errors import UsageError
from trackwalker.launch.request.effective import Effective

_AXIS_KEY = re.compile(r"(dcn|ici)_(\w+)_parallelism")
# By MaxText's sharding rules: what cuts a batch, what cuts the width of a weight, what cuts heads and vocabulary.
_BATCH = ("data", "fsdp", "fsdp_transpose", "expert", "diloco")
_WIDTH = ("fsdp", "fsdp_transpose", "context", "expert")
_HEADS = ("tensor", "tensor_sequence", "autoregressive")
_LENGTH = ("sequence", "context")
_WEIGHTS = (*_WIDTH, "sequence", *_HEADS, "tensor_transpose", "pipeline")


@dataclass(frozen=True)
class Mesh:
    """Sizes of the axes across nodes (dcn) and inside a node (ici); an axis that is not named has size 1."""

    nodes: int
    gpus_per_node: int
    dcn: dict[str, int] = field(default_factory=dict)
    ici: dict[str, int] = field(default_factory=dict)

    def size(self, *axes: str) -> int:
        """Over how many devices these axes go together."""
        return math.prod(self.dcn.get(a, 1) * self.ici.get(a, 1) for a in axes)

    @property
    def devices(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    @property
    def weight_shards(self) -> int:
        """Into how many pieces a weight is cut; data parallelism copies it instead."""
        return self.size(*_WEIGHTS)

    def words(self) -> str:
        """The axes that are used, for people: `dcn data=2 | ici fsdp=8`."""
        groups = [(g, [f"{a}={n}" for a, n in sizes.items() if n > 1]) for g, sizes in self.groups()]
        return " | ".join(f"{g} {' '.join(used) or '1'}" for g, used in groups)

    def groups(self) -> list[tuple[str, dict[str, int]]]:
        """Both halves of the mesh with their names."""
        return [("dcn", self.dcn), ("ici", self.ici)]


def build_mesh(config: Effective, nodes: int, gpus_per_node: int) -> tuple[Mesh | None, list[str]]:
    """The mesh with every -1 filled in, or None and all that is wrong with it."""
    problems: list[str] = []
    sizes: dict[str, dict[str, int]] = {"dcn": {}, "ici": {}}
    for key in sorted(config):
        if found := _AXIS_KEY.fullmatch(key):
            try:
                size = config.whole(key)
            except UsageError as e:
                problems.append(str(e))
                continue
            if size < 1 and size != -1:
                problems.append(f"{key}={size}: an axis has a size of 1 or more, or -1 for 'what is left'")
            sizes[found[1]][found[2]] = size
    if not problems:
        for group, target, what in (("dcn", nodes, "nodes"), ("ici", gpus_per_node, "GPUs per node")):
            problems += _fill(group, sizes[group], target, what)
    return (None, problems) if problems else (Mesh(nodes, gpus_per_node, sizes["dcn"], sizes["ici"]), [])


def _fill(group: str, sizes: dict[str, int], target: int, what: str) -> list[str]:
    if target < 1:
        return []  # said elsewhere
    open_axes = [a for a, n in sizes.items() if n == -1]
    if len(open_axes) > 1:
        keys = " and ".join(f"{group}_{a}_parallelism" for a in open_axes)
        return [f"{keys} are both -1: at most one axis of a group can take what is left, give the other a size"]
    fixed = math.prod(n for n in sizes.values() if n != -1)
    if open_axes:
        if target % fixed:
            return [f"the {group}_* axes multiply to {fixed}, which does not divide {target} {what}"]
        sizes[open_axes[0]] = target // fixed
    elif fixed != target:
        return [f"the {group}_* axes multiply to {fixed}, but there are {target} {what}"]
    return []


def cuts(config: Effective, mesh: Mesh) -> list[str]:
    """Everything about the model that this mesh cannot cut evenly, and pairs of settings that do not go together."""
    problems = []
    for rule in (_width, _heads, _experts, _pipeline, _batch, _length, _sparse):
        problems += _said(rule, config, mesh)
    return problems


def _said(rule: Callable[[Effective, Mesh], Iterator[str]], config: Effective, mesh: Mesh) -> list[str]:
    try:
        return list(rule(config, mesh))
    except UsageError as e:
        return [str(e)]


def _width(config: Effective, mesh: Mesh) -> Iterator[str]:
    width, shards = config.whole("base_emb_dim"), mesh.size(*_WIDTH)
    if width % shards:
        yield f"the model's width {width} cannot be cut into {shards} equal parts (fsdp x context x expert axes)"


def _heads(config: Effective, mesh: Mesh) -> Iterator[str]:
    shards = mesh.size(*_HEADS)
    mla = config["attention_type"] == "mla"
    for key in ("base_num_query_heads", *(() if mla else ("base_num_kv_heads",))):
        if config.whole(key) % shards:
            yield f"{key}={config.whole(key)} cannot be cut into {shards} equal parts: lower the tensor axes"


def _experts(config: Effective, mesh: Mesh) -> Iterator[str]:
    experts, shards = config.whole("num_experts"), mesh.size("expert")
    if shards > 1 and experts == 1:
        yield f"the expert axis is {shards}, but the model has no experts"
    elif experts % shards:
        yield f"num_experts={experts} cannot be shared out evenly over an expert axis of {shards}"
    if config.whole("num_experts_per_tok") > experts:
        yield f"num_experts_per_tok={config.whole('num_experts_per_tok')} is more than num_experts={experts}"


def _pipeline(config: Effective, mesh: Mesh) -> Iterator[str]:
    stages = mesh.size("pipeline")
    if stages == 1:
        return
    layers = config.whole("pipeline_parallel_layers")
    if layers == -1:
        # MaxText pipelines the layers with experts only where the first ones are dense.
        dense = config.whole("first_num_dense_layers") if config["decoder_block"] == "deepseek" else 0
        layers = config.whole("base_num_decoder_layers") - dense
    at_once = stages * config.whole("num_layers_per_pipeline_stage")
    if layers % at_once:
        yield (
            f"{layers} pipelined layers cannot be shared out evenly over {at_once} (stages x layers per stage);"
            f" set pipeline_parallel_layers={layers - layers % at_once} or another number of stages"
        )


def _batch(config: Effective, mesh: Mesh) -> Iterator[str]:
    each, shards = config.number("per_device_batch_size"), mesh.size(*_BATCH)
    whole = each * mesh.devices
    if each <= 0:
        yield f"per_device_batch_size={each:g}: more than 0 is needed"
    elif not whole.is_integer() or int(whole) % shards:
        yield f"a batch of {whole:g} ({each:g} x {mesh.devices} GPUs) cannot be cut into {shards} equal parts"
    elif (stages := mesh.size("pipeline")) > 1 and int(whole) % stages:
        yield f"a batch of {whole:g} cannot be cut into {stages} microbatches, one for each pipeline stage"


def _length(config: Effective, mesh: Mesh) -> Iterator[str]:
    length, shards = config.whole("max_target_length"), mesh.size(*_LENGTH)
    if length < 1:
        yield f"max_target_length={length}: at least 1 is needed"
    elif length % shards:
        yield f"max_target_length={length} cannot be cut into {shards} equal parts (sequence x context)"


def _sparse(config: Effective, mesh: Mesh) -> Iterator[str]:
    sparse = config.whole("num_experts") > 1 and config.flag("sparse_matmul")
    if mesh.size("pipeline") > 1 and sparse and not config.flag("use_turbo_deepep_dispatch"):
        yield "sparse_matmul does not work with pipeline parallelism: add sparse_matmul=False, or set pipeline to 1"
