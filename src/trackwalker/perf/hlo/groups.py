"""Which devices take part in a collective: every way XLA writes it, turned into lists of device numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Groups = tuple[tuple[int, ...], ...]  # empty: all devices together

_MOST_DEVICES = 1 << 22  # more than any cluster has; a damaged number asks for terabytes
_IOTA = re.compile(r"^\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"^mesh\[([^\]]*)\]")
_DEVICES = re.compile(r"device_ids=\((?:\[([\d,]+)\])?(?:T\(([\d,]+)\))?\)")
_AXIS = re.compile(r"'([^']+)'(?:=(\d+))?(?::\((\d+)\)(\d+))?")
_LISTED = re.compile(r"\{([\d,\s]*)\}")


def iota_groups(groups: int, size: int, dims: Sequence[int], order: Sequence[int] = ()) -> Groups:
    """Groups counted off a grid: all devices in a row, folded, turned, and cut into groups."""
    devices = _devices(math.prod(dims)).reshape(tuple(dims))
    if order:
        devices = devices.transpose(tuple(order))
    return _rows(devices.reshape(groups, size))


def mesh_groups(
    sizes: Sequence[int], axes: Sequence[tuple[int, int, int]], dims: Sequence[int] = (), order: Sequence[int] = ()
) -> Groups:
    """Groups along axes of a mesh; an axis is (position, devices before it, its size), part of an axis has a size."""
    total = math.prod(sizes)
    devices = _devices(total).reshape(tuple(dims) or (total,))
    if order:
        devices = devices.transpose(tuple(order))
    # An axis of which only a part takes part is first cut into what is before, the part, and what is after.
    shape: list[int] = []
    taken: list[int] = []
    for position, length in enumerate(sizes):
        part = [(before, size) for index, before, size in axes if index == position]
        before, size = part[0] if part else (1, 1)
        size = size or length
        if part:
            taken.append(len(shape) + 1)
        shape += [before, size, length // (before * size)] if part else [1, length, 1]
    grid = devices.reshape(shape)
    rest = [i for i in range(len(shape)) if i not in taken]
    members = math.prod(shape[i] for i in taken)
    return _rows(grid.transpose(*rest, *taken).reshape(-1, members))


def _devices(total: int) -> npt.NDArray[np.int64]:
    if not 0 <= total <= _MOST_DEVICES:
        raise ValueError(f"a program for {total} devices")
    return np.arange(total)


def parse_groups(text: str) -> Groups:
    """The value of `replica_groups=` in HLO text, in any of its printed forms; () means all devices."""
    text = text.strip()
    if found := _IOTA.match(text):
        shape = _numbers(found[1])
        return iota_groups(math.prod(shape[:-1]), shape[-1], _numbers(found[2]), _numbers(found[3] or ""))
    if found := _MESH.match(text):
        mesh = [(name, int(size)) for name, size, _, _ in _AXIS.findall(found[1])]
        rest = text[found.end() :]
        folded = _DEVICES.search(rest)
        dims, order = (_numbers(folded[1] or ""), _numbers(folded[2] or "")) if folded else ([], [])
        position = {name: i for i, (name, _) in enumerate(mesh)}
        chosen = _AXIS.findall(rest[rest.find("{") :])
        axes = [(position[n], int(before or 1), int(size or 0)) for n, _, before, size in chosen if n in position]
        return mesh_groups([s for _, s in mesh], axes, dims, order)
    return tuple(tuple(_numbers(g)) for g in _LISTED.findall(text) if g.strip())


def parse_pairs(text: str) -> Groups:
    """The value of `source_target_pairs=`: who sends to whom."""
    return tuple(tuple(_numbers(pair)) for pair in _LISTED.findall(text))


def chains(pairs: Groups) -> Groups:
    """Devices joined by sends: a permutation has no groups, but these wait for each other."""
    leader: dict[int, int] = {}

    def find(device: int) -> int:
        while leader.setdefault(device, device) != device:
            device = leader[device]
        return device

    for pair in pairs:
        if len(pair) == 2:
            leader[find(pair[0])] = find(pair[1])
    joined: dict[int, list[int]] = {}
    for device in sorted(leader):
        joined.setdefault(find(device), []).append(device)
    return tuple(tuple(members) for members in joined.values())


def _rows(grid: np.ndarray) -> Groups:
    return tuple(tuple(int(d) for d in row) for row in grid)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]
