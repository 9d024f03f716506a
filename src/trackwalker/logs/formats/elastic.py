"""The summary torchrun prints when a worker failed: whose words each of its blocks quotes, and when they were said.

Its blocks give the tracebacks of several ranks one below the other, without a label: without this they would all be
nobody's, and the first in the text, which is seldom the first in time, would be believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trackwalker.logs.scanning.lines import Body, parse

HEADS = (b"  time      : ", b"  host      : ", b"  rank      : ")
_HEAD = re.compile(rb"  (time|host|rank) {6}: (\S+)")
_LONGEST = 200  # lines of one block
_KEYS = ("time", "host", "rank", "exitcode", "error_file", "traceback")


@dataclass
class Summary:
    """The block that is being read."""

    line: int = -_LONGEST
    rank: int | None = None
    host: str = ""
    clock: float | None = None

    def head(self, number: int, raw: bytes) -> None:
        """A line that begins a block or says whose it is."""
        match = _HEAD.search(raw)
        if match is None:
            return
        what, told = match[1], match[2].decode("utf-8", "replace")
        if what == b"time":
            stamp = parse(told.replace("_", " ").encode() + b" x")
            self.rank, self.host, self.clock = None, "", stamp.clock if stamp else None
        elif what == b"host":
            self.host = "" if told == "localhost" else told
        elif told.isdigit():
            self.rank, self.line = int(told), number

    def owned(self, body: Body, number: int) -> Body:
        """A line of the block as its rank's, where it belongs to one."""
        inside = self.rank is not None and 0 < number - self.line <= _LONGEST and body.rank is None
        if not inside or not body.text.startswith("  ") or body.text.split(maxsplit=1)[0] in _KEYS[:3]:
            return body
        return replace(body, rank=self.rank, host=self.host or body.host, clock=self.clock)
