"""Slurm's compressed host lists: node[001-003,7],gpu1, rack[1-2]n[1-4]-ib and so on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trackwalker.logs.formats import dialect as d

_LIST = re.compile(r"(?:[^\[\]]|\[[^\[\]]*\])*")
_ITEM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_GROUP = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_FRONT = 256 * 1024  # bytes at the beginning of a log: what the launcher said about the job before it started
_MOST = 100_000  # a damaged range must not eat the machine


def expand(text: str) -> list[str]:
    """Host names in order; text that is not a host list comes back as it is."""
    text = text.strip()
    if not _LIST.fullmatch(text):
        return [text]
    return [host for item in _ITEM.findall(text) for host in _expand_item(item)]


def hosts_in(header: Mapping[str, str]) -> list[str]:
    """The job's hosts in the order of their ranks: the scheduler's list, or what a rank made of a damaged one."""
    hosts = expand(header["JOB_NODELIST"]) if header.get("JOB_NODELIST") else []
    spelled = [h for h in header.get("NODELIST_EXPANDED", "").split(",") if h]
    return hosts if hosts and len(set(hosts)) == len(hosts) else spelled or hosts


def nodes_in_header(log: Path) -> int | None:
    """How many nodes the job was given, None where the header does not say (or cannot be read)."""
    try:
        with log.open("rb") as f:
            front = f.read(_FRONT).decode("utf-8", "replace")
    except OSError:
        return None
    said: dict[str, str] = {}
    for line in front.splitlines():
        if match := d.HEADER.match(d.ANSI.sub("", line)):
            said.setdefault(match[1], match[2].split("  ")[0].strip().strip('"'))
    count = said.get("NNODES", "")
    if count.isascii() and count.isdigit() and int(count) > 0:
        return int(count)
    return len(hosts_in(said)) or None


def _expand_item(item: str) -> list[str]:
    group = _GROUP.search(item)
    if not group:
        return [item]
    numbers = [n for part in group[1].split(",") for n in _expand_range(part)]
    tails = _expand_item(item[group.end() :])
    if len(numbers) * len(tails) > _MOST:
        return [item]
    return [f"{item[: group.start()]}{number}{tail}" for number in numbers for tail in tails]


def _expand_range(part: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if not match or not 0 <= int(match[2]) - int(match[1]) < _MOST:
        return [part]
    return [f"{n:0{len(match[1])}d}" for n in range(int(match[1]), int(match[2]) + 1)]
