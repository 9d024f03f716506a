"""A workspace of 100,000 jobs: how long its index takes to build and to refresh, and every question of the fleet pages.

python bench/fleet.py                       # 100,000 jobs, made in a temporary folder
python bench/fleet.py --jobs 5000 --keep /some/folder
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOW = time.time()
MODELS = ("llama3-70b", "mixtral-8x22b", "grok-1", "qwen3-30b", "deepseek-v3")
CAUSES = ("rdma-degradation", "gpu-hardware-fault", "ecc-timeout", "checkpoint-slow", "cpu-contention")
HOSTS = [f"r{rack:02d}-n{node:02d}" for rack in range(50) for node in range(25)]
BAD = set(random.Random(3).sample(HOSTS, 20))  # noqa: S311
DAYS = 90
LIMIT_S = 1.0
STEP = "{rank}: completed step: {n}, seconds: {s:.3f}, TFLOP/s/device: 400.0, Tokens/s/device: {t:.1f}, loss: 2.1"


def make(root: Path, number: int, dice: random.Random, of: int = 100_000) -> None:
    """One finished job: run.json, log, events and, where a bad host took part, a saved verdict."""
    job, model = str(1_000_000 + number), MODELS[number % len(MODELS)]
    name, started = f"{job}-JAX-{model}", NOW - DAYS * 86400 * (1 - number / of) - 7200
    folder = root / name
    if folder.exists():
        return
    folder.mkdir()
    hosts = dice.sample(HOSTS, 4)
    bad = [host for host in hosts if host in BAD and dice.random() < 0.6]
    slow = 1.4 if bad else 1.0
    lines = [f"JOB_ID={job}", f"JOB_NAME=JAX-{model}", "NNODES=4", f"MODEL_NAME={model}"]
    lines += [
        STEP.format(rank=0, n=n, s=9.0 * (slow if n > 12 else 1), t=4000 / (slow if n > 12 else 1)) for n in range(24)
    ]
    log = root / f"{name}.log"
    log.write_text("\n".join(lines) + "\n")
    os.utime(log, (started + 3600, started + 3600))
    (folder / "log").symlink_to(f"../{log.name}")
    run = {
        "schema": "trackwalker.run/1", "id": job, "name": f"JAX-{model}", "model": model, "scheduler": "slurm",
        "trainer": "maxtext", "created": started, "argv": ["submit", model], "command": ["python"],
        "workspace": str(root), "ranks": [{"rank": r, "host": h, "node": h} for r, h in enumerate(hosts)],
        "config": {"steps": {"value": 24, "source": "model"}},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    end = {"v": 1, "t": started + 3600, "stage": "train", "kind": "run-end", "data": {"exit": 0, "reason": "done"}}
    (folder / "events.jsonl").write_text(json.dumps(end) + "\n")
    if bad:
        cause = {"cause": dice.choice(CAUSES), "role": "root", "confidence": 0.9, "hosts": bad}
        verdict = {
            "schema": "trackwalker.verdict/1", "job": {"id": job, "dir": str(folder), "nodes": 4, "gpus": 32},
            "window": {}, "status": "completed", "outcome": "incident", "summary": f"{bad[0]} slowed the run down",
            "causes": [cause], "cost": {"seconds": 1.0, "queries": 0, "bytes_read": 0},
        }  # fmt: skip
        (folder / "verdict.json").write_text(json.dumps(verdict))


def ledger(root: Path, count: int) -> None:
    """What agents wrote of nodes in trouble."""
    dice = random.Random(5)  # noqa: S311
    path = root / ".ledger" / "nodes.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        for number in range(count):
            host = dice.choice(sorted(BAD)) if dice.random() < 0.5 else dice.choice(HOSTS)
            fact = {"host": host, "job": str(1_000_000 + number), "attempt": 1, "kind": "check-failed"}
            line = {"v": 1, "t": NOW - dice.random() * DAYS * 86400, **fact, "what": "network", "line": "slow link"}
            file.write(json.dumps(line) + "\n")


def put_unread(store: Any, root: Path, sample: int) -> int:
    """Rows as the reading of these jobs would give them, for all but a few: what questions and refreshes cost."""
    from trackwalker.fleet.rows import JobRow
    from trackwalker.fleet.scan import scan
    from trackwalker.fleet.store import Kept

    rows = []
    for job, seen in sorted(scan(root).items())[sample:]:
        folder = next(name for name in seen.names if not name.endswith(".log"))
        run = json.loads((root / folder / "run.json").read_text())
        path = root / folder / "verdict.json"
        cause = json.loads(path.read_text())["causes"][0] if path.exists() else None
        facts: dict[str, Any] = {"badge_tone": "bad", "badge_from": "verdict", "badge": "x", "group": "trouble"}
        facts |= {"cause": cause["cause"], "hosts": tuple(cause["hosts"]), "lost_gpu_hours": 0.3} if cause else {}
        row = JobRow(
            job, run["name"], run["model"], "completed", nodes=4, last_step=23, total_steps=24, tgs=4000.0,
            levels="z" * 24, goodput=0.9, says="completed at step 23 of 24", changed=seen.changed, gpus=32,
            started=run["created"], ended=run["created"] + 240, gpu_hours=2.1,
            ran_on=tuple(rank["node"] for rank in run["ranks"]), **(facts if cause else {"group": "finished"}),
        )  # fmt: skip
        rows.append(Kept(row, f"{seen.mark}|", f"{folder}.log", folder))
    return int(store.put(rows))


def timed(what: str, work: Callable[[], Any], limit: float | None = LIMIT_S) -> bool:
    """Do it, print what it took, and say whether that is little enough."""
    began, cpu = time.perf_counter(), time.process_time()
    found = work()
    took, own = time.perf_counter() - began, time.process_time() - cpu
    size = f"{len(found):,} rows" if isinstance(found, list | dict | tuple) else f"{found}"[:60]
    good = limit is None or took < limit
    verdict = "" if limit is None else "PASS " if good else "FAIL "
    print(f"{verdict}{what}: {took:.3f} s, {own:.3f} s of CPU ({size})", flush=True)
    return good


def main() -> int:
    """Make, index, ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--sample", type=int, help="read only so many; rows of the others are put as if they were read")
    parser.add_argument("--keep", type=Path, help="keep the jobs here, and use those that are here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trackwalker-bench-") as temporary:
        base = args.keep or Path(temporary)
        root = base / "outputs"
        root.mkdir(parents=True, exist_ok=True)
        return judge(root, base / "index", args.jobs, args.sample)


def judge(root: Path, folder: Path, count: int, sample: int | None) -> int:
    """Every figure of issue 32, line 4."""
    from trackwalker.fleet import questions
    from trackwalker.fleet.index import JobIndex
    from trackwalker.fleet.scan import newest
    from trackwalker.fleet.source import Plain
    from trackwalker.launch.ledger import suspects

    dice = random.Random(1)  # noqa: S311
    timed(f"making {count:,} jobs", lambda: [make(root, n, dice, count) for n in range(count)], None)
    ledger(root, count // 5)
    index = JobIndex(Plain(root), folder)
    assert index.store is not None  # noqa: S101
    index.store.clear()
    if sample:
        timed(f"rows of {count - sample:,} jobs put unread", lambda: put_unread(index.store, root, sample), None)
    what = f"{sample:,} of {count:,} jobs read" if sample else "index built from the job directories"
    timed(what, lambda: index.refresh(), None)
    size = sum(path.stat().st_size for path in index.store.folder.iterdir())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"index: {size / 1e6:.1f} MB on disk; this process at most {memory:.0f} MB", flush=True)
    good = []
    month = NOW - 30 * 86400
    make(root, count + 1, dice, count + 2)
    index.refresh(every=False)
    make(root, count + 2, dice, count + 3)
    good.append(timed("refresh after one new job, index open", lambda: index.refresh(every=False)))
    timed("the same with a look at every job", index.refresh, None)
    timed("the same in a new process (index opened from disk)", lambda: JobIndex(Plain(root), folder).refresh(), None)
    store = index.store
    asked: dict[str, Callable[[], Any]] = {
        "fleet in one line": lambda: questions.whole(store, month),
        "models": lambda: questions.by_model(store, month),
        "causes": lambda: questions.by_cause(store, month),
        "hosts": lambda: questions.by_host(store, month),
        "racks": lambda: questions.by_rack(store, month),
        "flaky hosts": lambda: questions.flaky(store, month),
        "flaky hosts of all time": lambda: questions.flaky(store),
        "goodput by day": lambda: questions.days(store),
        "one host": lambda: questions.of_host(store, sorted(BAD)[0]),
        "nodes to leave out": lambda: suspects(root, NOW, questions.ran_since(store, NOW - 7 * 86400)),
        "the newest 50 jobs": lambda: newest(root, 50)[0],
        "rows of the jobs page": lambda: index.rows()[0],
    }
    good += [timed(name, ask) for name, ask in asked.items()]
    index.close()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
