"""Many nodes in few processes: each has an address of its own on loopback and serves a real agent's payload.

The payload was captured from one real agent; every node puts its own name into it, traffic, energy and time counters
grow, sensors move, and all else (errors, identities, link states) stays, as on healthy nodes.
Usage: fleet.py PAYLOAD FIRST COUNT PORT (nodes FIRST .. FIRST+COUNT-1; prints "ready" when all of them listen)
With other arguments it is `fleet_jobs.py`: the index over 100,000 jobs.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import ClassVar

JOB_ID = "90002"  # of the job whose agents these are
CAPTURED = "node0000"  # the name of the node that the payload was captured from
_LINE = re.compile(r"^([a-zA-Z_:]\w*)(\{.*\}) (\S+)$")
_GROWS = re.compile(r"_(bytes|pkts|joules|switches|us|seconds|wait)_total$|_total_us$")
_MOVES = re.compile(r"_(celsius|watts|mhz|percent|pct|duration_seconds)$|vram_used|mem_(available|dirty)|procs_running")


def name_of(number: int) -> str:
    """The name of a node."""
    return f"node{number:05d}"


def address_of(number: int) -> str:
    """Its address; the first ones (127.0.0.x) are left to others."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


class Payload:
    """A captured exposition text that can be written again for another node and another time."""

    def __init__(self, text: str) -> None:
        self.series = 0
        self._parts: list[str] = [""]  # text around the values that move
        self._values: list[tuple[float, float]] = []  # base and growth per second; without growth a sensor
        for line in text.splitlines():
            match = _LINE.match(line)
            self.series += match is not None
            if match and (_GROWS.search(match[1]) or _MOVES.search(match[1])):
                base = float(match[3])
                growth = (base + 1000.0) / 100 if _GROWS.search(match[1]) else 0.0
                self._parts[-1] += f"{match[1]}{match[2]} "
                self._values.append((base, growth))
                self._parts.append("\n")
            else:
                self._parts[-1] += line + "\n"

    def write(self, number: int, seconds: float) -> str:
        """The text of a node, `seconds` after its start."""
        dice = random.Random(number * 1_000_003 + int(seconds * 10))  # noqa: S311
        out = [self._parts[0]]
        for (base, growth), part in zip(self._values, self._parts[1:], strict=True):
            if growth:
                value = int(base + growth * seconds * (1 + (number % 97) / 500) + dice.random() * growth)
            else:
                value = round(base * (0.97 + 0.06 * dice.random()), 1)
            out += (str(value), part)
        return "".join(out).replace(f'host="{CAPTURED}', f'host="{name_of(number)}')


class Target(asyncio.Protocol):
    """One connection: any request is answered with the metrics of the node whose address it came to."""

    payload: Payload
    started = time.time()
    served: ClassVar[dict[int, int]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Which node this is stands in the address."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        _, _, high, low = transport.get_extra_info("sockname")[0].split(".")
        self._number = int(high) * 250 + int(low) - 1
        self._request = b""

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._request += data
        if b"\r\n\r\n" not in self._request:
            return
        zipped, asked_who = b"gzip" in self._request, self._request.startswith(b"GET /healthz")
        self._request = b""
        if asked_who:  # a recorder makes sure that it is not somebody else who answers
            self._transport.write(f"HTTP/1.1 200 OK\r\nTrackwalker-Job: {JOB_ID}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        self.served[self._number] = self.served.get(self._number, 0) + 1
        body = self.payload.write(self._number, time.time() - self.started).encode()
        head = "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        if zipped:
            body, head = gzip.compress(body, compresslevel=1), head + "Content-Encoding: gzip\r\n"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def serve(first: int, count: int, port: int) -> None:
    """Listen for all nodes until killed."""
    loop = asyncio.get_running_loop()
    for number in range(first, first + count):
        await loop.create_server(Target, address_of(number), port, backlog=8)
    print("ready", flush=True)
    counts = os.environ.get("FLEET_COUNTS")
    while True:  # how often the node was scraped that was scraped least, for whoever waits for it
        await asyncio.sleep(1)
        if counts:
            Path(counts).write_text(str(min((Target.served.get(first + n, 0) for n in range(count)), default=0)))


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1].startswith("-"):  # the fleet of jobs (issue 32), which has options of its own
        import fleet_jobs

        sys.exit(fleet_jobs.main())
    Target.payload = Payload(Path(sys.argv[1]).read_text())
    asyncio.run(serve(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
