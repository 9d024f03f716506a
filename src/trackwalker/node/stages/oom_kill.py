"""Whether the kernel killed a process for want of memory: SIGKILL alone does not say who sent it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trackwalker.node.collectors.kernel_log import KernelLine

_KILLED = re.compile(r"Kill(?:ed)? process (\d+)\b")


def kernel_kill(lines: Iterable[KernelLine], pids: Iterable[int], since: float) -> str | None:
    """The kernel's own words about the first of these processes that it killed, None when it killed none of them."""
    wanted = set(pids)
    for line in lines:
        match = _KILLED.search(line.text) if line.kind == "oom" and line.time >= since else None
        if match and int(match[1]) in wanted:
            return line.text
    return None
