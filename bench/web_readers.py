"""Twenty people at one server over a workspace of 500 jobs: each opens pages one after the other, as a person does.

python bench/web_readers.py            # also part of bench/web.py
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from fleet_jobs import HOSTS, make
from usage import cpu_seconds

JOBS = 500
READERS = 20
SECONDS = 60.0
LIMIT_S = 1.0
LIST_S = 1.0
_REPEATS = 40  # of a page whose CPU time is measured: a tick is 10 ms
_THINK_S = (0.5, 3.0)  # between two pages of one person


def workspace(root: Path, count: int = JOBS) -> Path:
    """So many finished jobs, some with a verdict beside them."""
    root.mkdir(parents=True, exist_ok=True)
    dice = random.Random(1)  # noqa: S311
    for number in range(count):
        make(root, number, dice, count)
    return root


def page_costs(client: httpx.Client, url: str, pid: int) -> None:
    """What each kind of page costs the server in CPU time when nothing has changed since the last reader."""
    job, host = str(1_000_000 + JOBS // 2), sorted(HOSTS)[0]
    kinds = ("/", "/?q=rdma", "/incidents", "/fleet", "/nodes", f"/job/{job}", f"/job/{job}/log")
    told = []
    for path in (*kinds, f"/host?name={host}", f"/runs?job={job}&baseline=auto"):
        client.get(f"{url}{path}")
        before = cpu_seconds([pid], ended=False)
        for _ in range(_REPEATS):
            client.get(f"{url}{path}")
        spent = 1000 * (cpu_seconds([pid], ended=False) - before) / _REPEATS
        told.append(f"{re.sub(r'[0-9]{4,}', 'ID', path.split('&')[0])} {spent:.1f}")
    print(f"CPU of the server for a page that is known, ms (with its background): {', '.join(told)}", flush=True)


def paths(dice: random.Random) -> str:
    """What a person opens next: lists mostly, then a job, an incident, a host."""
    job = str(1_000_000 + dice.randrange(JOBS))
    host = dice.choice(HOSTS)
    every = ("/", "/", "/incidents", "/fleet", "/nodes", "/?q=rdma", f"/job/{job}", f"/job/{job}", f"/job/{job}/log")
    return dice.choice((*every, f"/host?name={host}", f"/runs?job={job}&baseline=auto"))


async def reader(url: str, cookies: httpx.Cookies, number: int, until: float, took: list[tuple[str, float]]) -> None:
    """One person."""
    dice = random.Random(number)  # noqa: S311
    async with httpx.AsyncClient(base_url=url, cookies=cookies, timeout=60.0) as client:
        while time.perf_counter() < until:
            path = paths(dice)
            began = time.perf_counter()
            answer = await client.get(path)
            assert answer.status_code in (200, 404), (path, answer.status_code)  # noqa: S101 - not every host ran
            took.append((re.sub(r"\d{4,}", "ID", path.split("?")[0]), time.perf_counter() - began))
            await asyncio.sleep(dice.uniform(*_THINK_S))


async def all_readers(url: str, cookies: httpx.Cookies, count: int, seconds: float) -> list[tuple[str, float]]:
    """All of them at once; a page and how long it took."""
    took: list[tuple[str, float]] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(reader(url, cookies, number, until, took) for number in range(count)))
    return took


def judge(
    link: str, process: subprocess.Popen[str], count: int = READERS, seconds: float = SECONDS
) -> list[tuple[bool, str]]:
    """The list of all jobs, then the readers."""
    url, _, _ = link.partition("/?token=")
    with httpx.Client(timeout=120.0) as client:
        client.get(link)
        began = time.perf_counter()
        while client.get(f"{url}/jobs.json").json()["pending"]:
            time.sleep(0.2)
        read_s = time.perf_counter() - began
        times = []
        for _ in range(5):
            at = time.perf_counter()
            size = len(client.get(f"{url}/").content)
            times.append(time.perf_counter() - at)
        page_costs(client, url, process.pid)
        cookies = client.cookies
        before = cpu_seconds([process.pid])
        took = asyncio.run(all_readers(url, cookies, count, seconds))
    spent = cpu_seconds([process.pid]) - before
    listed = sorted(times)[2]
    every = sorted(seconds_ for _, seconds_ in took)
    p95 = every[int(0.95 * (len(every) - 1))]
    print(
        f"{JOBS} jobs: read in {read_s:.1f} s, listed in {listed:.2f} s ({size / 1000:.0f} kB the page); "
        f"{count} readers for {seconds:.0f} s: {len(every)} pages, median {every[len(every) // 2]:.2f} s, "
        f"p95 {p95:.2f} s, slowest {every[-1]:.2f} s; server {spent / seconds:.2f} cores"
    )
    kinds = sorted({name for name, _ in took})
    for kind in kinds:
        own = sorted(s for name, s in took if name == kind)
        p95_own = own[int(0.95 * (len(own) - 1))]
        print(f"  {kind:12} {len(own):5} pages, median {own[len(own) // 2]:.2f} s, p95 {p95_own:.2f} s")
    return [
        (listed <= LIST_S, f"list of {JOBS} jobs {listed:.2f} s (at most {LIST_S:g})"),
        (p95 < LIMIT_S, f"p95 of {count} readers {p95:.2f} s (below {LIMIT_S:g})"),
    ]


def main() -> int:
    """Make, serve, read."""
    from web import server

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--readers", type=int, default=READERS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trackwalker-bench-") as temporary:
        root = workspace(Path(temporary) / "outputs")
        with server(root) as (process, link):
            found = judge(link, process, args.readers, args.seconds)
    for good, text in found:
        print("PASS" if good else "FAIL", text)
    return 0 if all(good for good, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
