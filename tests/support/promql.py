"""Which metrics a PromQL expression names, and which there are."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from trackwalker.observe.live import RULES

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
# Prometheus' own, of every target.
_OF_TARGETS = {"up", "ALERTS"}
# Label lists, selectors, ranges and strings hold no metric names; what is left and no function or keyword is one.
_NOISE = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)')
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()\b(?!\s*\()")
_KEYWORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}


def metrics_in(expression: str) -> set[str]:
    """The metric names of an expression."""
    bare = _NOISE.sub(" ", expression)
    bare = re.sub(r"\b\d[\w.]*", " ", bare)  # numbers and durations
    return {word for word in _WORD.findall(bare) if word not in _KEYWORDS}


def known_metrics() -> set[str]:
    """What the collectors declare (docs/reference/metrics.md is generated from that), and what every target has."""
    return set(re.findall(r"^\| `(\w+)`", _PAGE.read_text(), re.M)) | _OF_TARGETS


def recorded_names() -> set[str]:
    """What our recording rules add."""
    groups = [g for file in RULES.glob("*.yml") for g in yaml.safe_load(file.read_text())["groups"]]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
