"""How far the clocks of ranks are off, from the step that they completed together: failures are put in order by it.

Ranks of one run end a step at the same time, as they wait for each other; what their lines say of that moment differs
by their clocks. Only seconds are corrected: below that it may be the order in which they were printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

_ENOUGH = 4  # ranks that tell when they completed the same step
_LEAST_S = 1.0


def clocks_off(seen: Mapping[int, tuple[int, float]], hosts: Mapping[int, str]) -> dict[int, float]:
    """By rank, how many seconds its clock is ahead of most; `seen` has each rank's last step and when it was written.

    A host has one clock: a rank that did not live to complete that step has its neighbours'.
    """
    common = Counter(step for step, _ in seen.values()).most_common(1)
    if not common or common[0][1] < max(_ENOUGH, len(seen) // 2):
        return {}
    at = {rank: clock for rank, (step, clock) in seen.items() if step == common[0][0]}
    middle = median(at.values())
    of_host: dict[str, list[float]] = {}
    for rank, clock in at.items():
        if rank in hosts:
            of_host.setdefault(hosts[rank], []).append(clock - middle)
    known = {host: median(each) for host, each in of_host.items()}
    off = {rank: clock - middle for rank, clock in at.items()}
    off |= {rank: known[host] for rank, host in hosts.items() if host in known}
    return {rank: seconds for rank, seconds in off.items() if abs(seconds) > _LEAST_S}
