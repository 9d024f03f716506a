"""Private copies of databases behind loopback ports of the user's choice, until the user has seen enough."""

from __future__ import annotations

import asyncio
import getpass
import math
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin

import httpx

from trackwalker.errors import EvidenceError, UsageError
from trackwalker.job.layout import Job
from trackwalker.observe.login import login
from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.door import Door
from trackwalker.telemetry.query import iso
from trackwalker.telemetry.store import open_database

_ASSET = re.compile(r"""<(?:script|link)\b[^>]*?\b(?:src|href)=["']?([^"' >]+\.(?:js|css)[^"' >]*)""")
_ENDINGS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Viewed:
    """One database that is being served."""

    job: str
    url: str  # Prometheus' graph page over the job's time range, or the API where there is no page; with its token
    port: int
    has_page: bool
    first: float
    last: float
    damage: tuple[str, ...]

    def lines(self) -> list[str]:
        """What the user has to know."""
        user, here = getpass.getuser(), socket.gethostname()
        said = [f"{self.job}  {iso(self.first)} to {iso(self.last)}", f"  {self.url}"]
        if not self.has_page:
            said.append(
                "  (this Prometheus came without its web page: the address answers the API, for curl or Grafana)"
            )
        said.append(f"  from elsewhere: ssh -N -L {self.port}:127.0.0.1:{self.port} {user}@{here}")
        return said + [f"  damaged: {line}" for line in self.damage]


def serve(jobs: Sequence[Job], port: int | None, ready: Callable[[list[Viewed]], None]) -> None:
    """Serve each job until SIGINT or SIGTERM; then everything is removed. `ready` hears where they are."""
    with ExitStack() as stack:
        told = stack.enter_context(_until_told())
        # Ports first: a busy one is known at once. Bound but not listening yet, nobody is let in too early.
        doors = [stack.enter_context(_door(None if port is None else port + i)) for i in range(len(jobs))]
        rooms = []
        for job in jobs:
            if job.database is None:
                raise EvidenceError(f"{job.label} was not recorded: there is no metrics database to view")
            rooms.append(stack.enter_context(open_database(job.database)))
            if told.is_set():
                return
        asyncio.run(_serve(list(jobs), doors, rooms, ready, told))


@contextmanager
def _until_told() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; they also interrupt, as opening a large database takes minutes."""
    told = threading.Event()

    def tell(number: int, frame: object) -> None:
        # Python drops an exception that a signal raises inside a finalizer or a fork hook: the event stays.
        told.set()
        raise KeyboardInterrupt

    complain = sys.unraisablehook
    sys.unraisablehook = lambda what: None if what.exc_type is KeyboardInterrupt else complain(what)
    before = {number: signal.signal(number, tell) for number in _ENDINGS}
    try:
        yield told
    finally:
        sys.unraisablehook = complain
        for number, handler in before.items():
            signal.signal(number, handler)


def _door(port: int | None) -> socket.socket:
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"port {port} is not between 1 and 65535")
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind(("127.0.0.1", port or 0))
    except OSError as e:
        door.close()
        raise UsageError(f"port {port} cannot be used ({e.strerror}): choose another, or leave --port out") from None
    return door


async def _serve(
    jobs: list[Job],
    doors: list[socket.socket],
    rooms: list[Telemetry],
    ready: Callable[[list[Viewed]], None],
    told: threading.Event,
) -> None:
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _ENDINGS:
        loop.add_signal_handler(number, enough.set)
    if told.is_set():
        return
    viewed = []
    servers = []
    try:
        for job, door, room in zip(jobs, doors, rooms, strict=True):
            behind, token = room.url, secrets.token_urlsafe(18)
            try:
                servers.append(await asyncio.start_server(Door(behind.port or 0, token, login().header), sock=door))
            except OSError as e:  # another program began to listen between our bind and now
                raise UsageError(f"port {door.getsockname()[1]} cannot be used ({e.strerror})") from None
            page = await asyncio.to_thread(has_page, str(behind))
            viewed.append(_describe(job, door.getsockname()[1], room, page, token))
        ready(viewed)
        await enough.wait()
    finally:
        for server in servers:
            server.close()


def _describe(job: Job, port: int, room: Telemetry, page: bool, token: str) -> Viewed:
    first, last = room.range()
    here = f"http://127.0.0.1:{port}"
    names = room.metrics()
    metric = "up" if "up" in names else min(names, default="up")
    api = f"{here}/api/v1/query?{urlencode({'query': metric, 'time': f'{last:.3f}'})}"
    url = f"{page_url(port, metric, first, last) if page else api}&token={token}"
    return Viewed(job.label, url, port, page, first, last, tuple(room.damage))


def page_url(port: int, metric: str, first: float, last: float) -> str:
    """The graph page on the time of the job: by itself it would show the last hour, where there is nothing."""
    minutes = max(1, math.ceil((last - first) / 60))
    end = iso(math.ceil(last)).replace("T", " ").rstrip("Z")
    view = {"g0.expr": metric, "g0.tab": "0", "g0.range_input": f"{minutes}m", "g0.end_input": end}
    return f"http://127.0.0.1:{port}/graph?{urlencode(view)}"


def has_page(url: str) -> bool:
    """Whether the graph page comes with its scripts: Debian keeps those in other packages, and may leave them out."""
    with httpx.Client(base_url=url, trust_env=False, timeout=10, follow_redirects=True) as http:
        try:
            answer = http.get("/graph")
            assets = [urljoin(str(answer.url), found) for found in _ASSET.findall(answer.text)]
            return answer.status_code == 200 and bool(assets) and all(http.get(a).status_code == 200 for a in assets)
        except httpx.HTTPError:
            return False
