"""Many hosts in few words: `gpu-r57-n[01-04]` for four of them, `64 devices on 8 hosts` before the list itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)")
# Five names or more in a row, each with a letter and a digit; a slash divides a host from its device.
_NAME = r"(?=[\w.:-]*[A-Za-z])[\w.:-]*\d[\w.:-]*(?:/[\w.:-]+)?"
_LIST = re.compile(rf"(?<![\w./-]){_NAME}(?:, {_NAME}){{4,}}(?![\w./-])")
_FEWEST = 3


def collapse(names: Iterable[str]) -> list[str]:
    """Names with their last number as a range where it runs on; the order of the first of each is kept."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        found = _LAST_NUMBER.search(name)
        if found is None:
            groups[(name, "", -1)] = []
            continue
        width = len(found[1]) if found[1].startswith("0") and len(found[1]) > 1 else 0
        groups.setdefault((name[: found.start()], name[found.end() :], width), []).append(int(found[1]))
    return [_written(*key, numbers) for key, numbers in groups.items()]


def places(names: Sequence[str]) -> str:
    """Hosts, or devices of hosts (`host/device`), counted and in ranges."""
    hosts: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        host, _, device = name.partition("/")
        hosts.setdefault(host, []).append(device)
    if len(names) < _FEWEST:
        return ", ".join(names)
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, devices in hosts.items():
        alike.setdefault(tuple(d for d in devices if d), []).append(host)
    parts = [
        f"{', '.join(collapse(own))}{'/' + ', '.join(collapse(devices)) if devices else ''}"
        for devices, own in alike.items()
    ]
    count = sum(len(devices) for devices in hosts.values())
    what = f"{count:,} devices on {len(hosts):,} host{'s' if len(hosts) > 1 else ''}" if "/" in names[0] else ""
    return f"{what or f'{len(hosts):,} hosts'} ({'; '.join(parts)})"


def shortened(text: str) -> str:
    """A sentence with every long list of names in it counted and in ranges."""
    return _LIST.sub(lambda found: places(found[0].split(", ")), text)


def _written(front: str, back: str, width: int, numbers: list[int]) -> str:
    if width < 0:
        return front
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    if len(numbers) == 1:
        return f"{front}{numbers[0]:0{max(width, 1)}d}{back}"
    told = [f"{n[0]:0{max(width, 1)}d}" + (f"-{n[-1]:0{max(width, 1)}d}" if len(n) > 1 else "") for n in runs]
    return f"{front}[{','.join(told)}]{back}"
