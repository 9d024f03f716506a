"""Topology rules: settings that hold only where the resolved config says so, written as data."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from trackwalker.errors import UsageError

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_WORDS = {"true": True, "false": False}


class Rule(BaseModel):
    """`when` a condition on the resolved config holds, these settings apply."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    when: str
    why: str = ""
    config: dict[str, Any] = {}
    env: dict[str, str] = {}
    xla_flags: dict[str, str] = {}

    @field_validator("when")
    @classmethod
    def _can_be_read(cls, text: str) -> str:
        try:
            _parse(text)
        except UsageError as e:
            raise ValueError(str(e)) from e
        return text


def matching(rules: Iterable[Rule], facts: Mapping[str, Any]) -> list[Rule]:
    """The rules whose condition holds, in their order."""
    return [rule for rule in rules if holds(rule.when, facts)]


def holds(condition: str, facts: Mapping[str, Any]) -> bool:
    """Whether a condition such as `pipeline > 1 and not dropless` holds; a name without a value compares as false."""
    return bool(_value(_parse(condition), facts, condition))


def names_in(condition: str) -> set[str]:
    """The facts and config keys that a condition asks for."""
    return {n.id for n in ast.walk(_parse(condition)) if isinstance(n, ast.Name) and n.id not in _WORDS}


def _parse(text: str) -> ast.expr:
    # Python's own grammar, but only these parts of it, and nothing is ever executed.
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as e:
        raise UsageError(f"condition '{text}' cannot be read") from e
    for node in ast.walk(body):
        if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
            continue
        if isinstance(node, (ast.BoolOp, ast.boolop, ast.Not, ast.Name, ast.Load, *_COMPARE)):
            continue
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            continue
        raise UsageError(f"condition '{text}': only names, numbers, 'text', comparisons, and, or, not")
    return body


def _value(node: ast.expr, facts: Mapping[str, Any], text: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _WORDS[node.id] if node.id in _WORDS else facts.get(node.id)
    if isinstance(node, ast.BoolOp):
        values = (bool(_value(v, facts, text)) for v in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        return not _value(node.operand, facts, text)
    assert isinstance(node, ast.Compare)  # noqa: S101  (_parse lets nothing else through)
    left = _value(node.left, facts, text)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, facts, text)
        try:
            if left is None or right is None or not _COMPARE[type(op)](left, right):
                return False
        except TypeError as e:
            raise UsageError(f"condition '{text}' compares {left!r} with {right!r}") from e
        left = right
    return True
