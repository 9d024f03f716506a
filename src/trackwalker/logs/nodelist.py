"""Slurm's compressed host lists: node[001-003,7],gpu1 and so on."""

from __future__ import annotations

import re

_PART = re.compile(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*)(?:,|$)")
_MOST = 100_000  # a damaged range must not eat the machine


def expand(text: str) -> list[str]:
    """Host names in order; text that is not a host list comes back as it is."""
    hosts: list[str] = []
    for match in _PART.finditer(text.strip()):
        prefix, ranges, suffix = match.groups()
        if ranges is None:
            if prefix:
                hosts.append(prefix)
            continue
        for item in ranges.split(","):
            low, dash, high = item.partition("-")
            if not dash:
                hosts.append(f"{prefix}{low}{suffix}")
            elif low.isdigit() and high.isdigit() and int(high) - int(low) < _MOST:
                hosts += [f"{prefix}{n:0{len(low)}d}{suffix}" for n in range(int(low), int(high) + 1)]
    return hosts
