"""What a program's instructions cost on paper: FLOPs of products and convolutions, bytes in and out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trackwalker.perf.hlo.program import FREE, Computation, Instruction, Program, Shape

_FUSED = ("fusion", "call", "async-start", "conditional")
_PRODUCT_CALLS = ("gemm", "matmul")  # in the target of a custom call
_CONVOLUTION_CALL = "__cudnn$convForward"


@dataclass(frozen=True)
class OpCost:
    """One execution of one instruction, with everything fused into it."""

    flops: int
    bytes: int  # read and written, if nothing stays in a cache


@dataclass
class Cost:
    """A program's products, summed over its loops."""

    flops: int = 0
    recomputed: int = 0  # FLOPs of what the forward pass had computed already
    by_dtype: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)  # custom calls whose FLOPs nobody wrote down: executions


def flops(instruction: Instruction) -> int | None:
    """FLOPs of one execution (two per multiply-add); None for what is not a product."""
    shapes = instruction.operand_shapes
    if len(shapes) < 2:
        return None
    left, right = shapes[:2]
    out = _first_array(instruction.shape)
    call = instruction.opcode == "custom-call"
    if instruction.opcode in ("dot", "ragged-dot") or (call and _is_product(instruction)):
        summed = 1
        for dimension in instruction.contracted:
            summed *= left.dims[dimension] if dimension < len(left.dims) else 1
        return 2 * out.elements * summed
    if instruction.opcode == "convolution" or (call and instruction.target.startswith(_CONVOLUTION_CALL)):
        feature = instruction.kernel_out or 0
        features = right.dims[feature] if 0 <= feature < len(right.dims) else 1
        return 2 * out.elements * (right.elements // max(features, 1))
    return None


def cost(program: Program) -> Cost:
    """All products of the program with how often each runs."""
    total = Cost()
    for name, runs in program.runs.items():
        for instruction in _body(program, name).instructions:
            one = flops(instruction)
            if one is None:
                if instruction.opcode == "custom-call":
                    total.unknown[instruction.target] = total.unknown.get(instruction.target, 0) + runs
                continue
            dtype = instruction.operand_shapes[0].dtype  # of what is multiplied
            total.flops += one * runs
            total.recomputed += one * runs if is_recomputed(instruction) else 0
            total.by_dtype[dtype] = total.by_dtype.get(dtype, 0) + one * runs
    return total


def is_recomputed(instruction: Instruction) -> bool:
    """Whether it computes again what the forward pass had (jax.checkpoint, or the compiler's own choice)."""
    return "rematted_computation" in instruction.path or ".remat" in instruction.name


def op_costs(program: Program) -> dict[str, OpCost]:
    """What each instruction that a trace can name costs once: FLOPs with all that is fused into it, and bytes."""
    inside: dict[str, int] = {}

    def total(name: str) -> int:
        if name not in inside:
            inside[name] = 0  # a computation does not call itself; if a damaged one does, it stops here
            inside[name] = sum(of(i) for i in _body(program, name).instructions)
        return inside[name]

    def of(instruction: Instruction) -> int:
        own = flops(instruction) or 0
        return own + (sum(map(total, instruction.calls)) if instruction.opcode in _FUSED else 0)

    return {i.name: OpCost(of(i), i.shape.bytes + sum(s.bytes for s in i.operand_shapes)) for i in _traced(program)}


def _traced(program: Program) -> Iterator[Instruction]:
    """Instructions outside fusions: those run as kernels of their own."""
    fused = {c for i in program.instructions.values() if i.opcode == "fusion" for c in i.calls}
    for name in program.runs:
        if name not in fused:
            yield from (i for i in _body(program, name).instructions if i.opcode not in FREE)


def _body(program: Program, name: str) -> Computation:
    return program.computations.get(name) or Computation(name)


def _is_product(instruction: Instruction) -> bool:
    return bool(instruction.contracted) and any(word in instruction.target for word in _PRODUCT_CALLS)


def _first_array(shape: Shape) -> Shape:
    while shape.parts:
        shape = shape.parts[0]
    return shape
