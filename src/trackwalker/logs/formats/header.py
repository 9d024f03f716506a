"""The front of a log: what the launcher said about the job before it started, without reading the rest."""

from __future__ import annotations

from pathlib import Path

from trackwalker.logs.formats import dialect as d
from trackwalker.logs.formats.nodelist import hosts_in

_FRONT = 256 * 1024


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
