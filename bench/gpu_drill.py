"""Real faults on a real NVIDIA GPU, several strengths each: train, break, record, diagnose, and say who was right.

    python3 bench/gpu_drill.py --part 1 --out OUT      (parts 1 to 4, each under ten minutes on one H200; root)

Writes OUT/drill-PART.json (the table, with what each fault cost), OUT/drill-PART.tar.xz (the job directories) and
prints the table. On a machine without a network it needs CARRY (default .device-carry): `wheels/*.whl` of our
dependencies and `prometheus.xz`. Every fault is undone when its run is over, also when this program is killed.
`--dry-run` does the same with a small model on CPUs and leaves out what needs a GPU.
`--diagnose OUT` reads the recordings of an earlier drill again and prints the table anew.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import lzma
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_machine import machine_facts, sliced

ROOT = Path(__file__).resolve().parents[1]
READY = "GPU_DRILL_READY"
SCHEMA = "trackwalker.gpu-drill/1"
BASE_STEPS = 110  # at full speed before the fault: eleven seconds on an H200
START_LIMIT_S = 120.0
TORCH_TOKENS = 8 * 1024  # of a step of bench/torch_trainer.py
MUST_SEE = 0.10  # what costs this much or more has to be named


@dataclasses.dataclass(frozen=True)
class Drill:
    """One run: what is broken, how strongly, and for how many steps it goes on after that."""

    name: str
    fault: str = ""
    strength: float = 0.5
    cause: str = ""  # what a right verdict names where it costs enough; empty: nothing is wrong
    after: int = 150
    torch: bool = False
    slices: int = 0  # ranks, each on a MIG slice of the GPU; the fault meets rank 0


def doses(fault: str, cause: str, *each: tuple[float, int]) -> list[Drill]:
    """One fault in several strengths."""
    return [Drill(f"{fault}-{strength:g}", fault, strength, cause, after) for strength, after in each]


# Steps after the fault: at a tenth of a second each they have to lose some seconds to be an incident at all.
PARTS: dict[int, list[Drill]] = {
    1: [
        Drill("healthy-1", after=150),
        *doses("power-cap", "gpu-power-cap", (0.6, 90), (0.45, 150), (0.3, 300)),
        *doses("lock-clocks", "gpu-clock-degraded", (0.7, 70), (0.5, 120), (0.35, 250)),
        *doses("gpu-hog", "gpu-shared", (1.0, 100), (0.5, 150), (0.25, 220)),
    ],
    2: [
        Drill("healthy-2", after=250),
        *doses("busy-wait", "gpu-shared", (1.0, 100), (0.5, 150), (0.25, 220)),
        *doses("data-stall", "input-stall", (0.4, 60), (0.2, 110), (0.13, 220)),
        *doses("gpu-memory-hog", "gpu-shared", (0.95, 120), (0.6, 120), (0.3, 120)),
    ],
    3: [
        Drill("healthy-3", after=350),
        *doses("cpu", "cpu-contention", (1.0, 150), (0.5, 150), (0.25, 150)),
        *doses("stop", "collective-hang", (0.5, 200)),
        Drill("torch-healthy", after=150, torch=True),
        Drill("torch-power-cap", "power-cap", 0.6, "gpu-power-cap", 100, torch=True),
        Drill("torch-gpu-hog", "gpu-hog", 1.0, "gpu-shared", 100, torch=True),
    ],
    4: [
        Drill("mig-healthy", after=100, torch=True, slices=2),
        Drill("mig-gpu-hog", "gpu-hog", 1.0, "gpu-shared", 100, torch=True, slices=2),
        Drill("mig-busy-wait", "busy-wait", 1.0, "gpu-shared", 100, torch=True, slices=2),
    ],
}


def prepare(carry: Path) -> None:
    """Unpack what was carried here and start again with it."""
    if os.environ.get(READY):
        return
    env = {**os.environ, READY: "1"}
    paths = [str(ROOT / "src")]
    if carry.is_dir():
        home = Path(tempfile.gettempdir()) / "gpu-drill"
        if not (home / "done").exists():
            shutil.rmtree(home, ignore_errors=True)
            (home / "python").mkdir(parents=True)
            for wheel in sorted((carry / "wheels").glob("*.whl")):
                zipfile.ZipFile(wheel).extractall(home / "python")  # noqa: S202 - our own wheels
            program = home / "prometheus"
            program.write_bytes(lzma.decompress((carry / "prometheus.xz").read_bytes()))
            program.chmod(0o755)
            (home / "done").touch()
        paths.append(str(home / "python"))
        env["TRACKWALKER_PROMETHEUS"] = str(home / "prometheus")
    env["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execve(sys.executable, [sys.executable, "-u", *sys.argv], env)  # noqa: S606 - ourselves, with a fuller path


def main() -> int:
    """One part of the drill."""
    parser = argparse.ArgumentParser(description="Real faults on a real GPU.")
    parser.add_argument("--part", type=int, choices=sorted(PARTS), default=1)
    parser.add_argument("--only", help="comma-separated names of runs instead of a part")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--carry", type=Path, default=ROOT / ".device-carry")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds; no run is begun that would not fit")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--diagnose", type=Path, help="only read the recordings of this folder again")
    args = parser.parse_args()
    prepare(args.carry)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.diagnose is not None:
        return again(args.diagnose, args.out)
    everything = [drill for part in PARTS.values() for drill in part]
    wanted = args.only.split(",") if args.only else []
    chosen = [d for d in everything if d.name in wanted] if wanted else PARTS[args.part]
    name = "drill-only" if wanted else f"drill-{args.part}"
    return Session(chosen, args.out, name, args.budget, args.dry_run).run()


class Session:
    """Runs one after the other; the diagnosis of one is made while the next one starts."""

    def __init__(self, drills: list[Drill], out: Path, name: str, budget: float, dry: bool) -> None:
        self._drills, self._out, self._name, self._budget, self._dry = drills, out, name, budget, dry
        self._began = time.monotonic()
        self._workspace = Path(tempfile.mkdtemp(prefix="gpu-drill-"))
        self._rows: list[dict[str, Any]] = []
        self._pending: list[tuple[dict[str, Any], subprocess.Popen[str]]] = []
        self._facts: dict[str, Any] = {}

    def run(self) -> int:
        """All of them; 1 when a run could not be made at all."""
        self._facts = machine_facts()
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(self._workspace / "jax-cache")
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.3"  # strangers need room beside the job
        failed, longest = False, 60.0
        for drill in self._drills:
            left = self._budget - (time.monotonic() - self._began)
            if left < longest:
                self._rows.append({**dataclasses.asdict(drill), "error": "no time was left for it"})
                continue
            began = time.monotonic()
            row = self._one(drill)
            if "error" not in row:
                longest = max(longest, time.monotonic() - began)
            self._rows.append(row)
            self._save()
            if "error" in row and row.get("fatal"):
                failed = True
                break
        self._collect()
        self._save()
        self._pack()
        print(table(self._rows))
        print(json.dumps(self._facts, indent=1))
        shutil.rmtree(self._workspace, ignore_errors=True)
        return 1 if failed else 0

    def _one(self, drill: Drill) -> dict[str, Any]:
        from trackwalker.lab.real.undo import NotHereError

        row: dict[str, Any] = dataclasses.asdict(drill)
        began = time.monotonic()
        try:
            with sliced(drill.slices) as slices:
                job_dir, onset = self._train(drill, slices)
        except NotHereError as e:
            return {**row, "error": str(e)}
        except RuntimeError as e:
            return {**row, "error": str(e), "fatal": True}
        took = round(time.monotonic() - began, 1)
        row |= {"job": job_dir.name, "seconds": took, "onset": onset, **cost(job_dir, onset)}
        self._collect()
        command = [sys.executable, "-m", "trackwalker", "diagnose", str(job_dir), "--json"]
        self._pending.append((row, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        say(f"{drill.name}: {row['seconds']} s, cost {row['cost']}")
        return row

    def _train(self, drill: Drill, slices: list[str]) -> tuple[Path, float | None]:
        """One run from beginning to end, broken on its way; its directory and when the fault began."""
        from trackwalker.lab.real.cases import GPU_MODEL
        from trackwalker.lab.real.inject import find_victim, inject
        from trackwalker.launch.plan import plan_local
        from trackwalker.launch.request.words import ModelSpec, Passthrough
        from trackwalker.launch.schedulers.local import LocalRun

        base = 40 if self._dry else BASE_STEPS
        after = drill.after // 4 if self._dry else drill.after
        config = {"steps": str(base + after), "enable_checkpointing": "false", "log_period": "1"}
        config |= {} if self._dry else GPU_MODEL
        words = ["gpu-drill", drill.name]
        count = max(drill.slices, 1)
        plan = plan_local(ModelSpec("tiny", tag=drill.name), count, Passthrough(config), self._workspace, True, words)
        if drill.torch:
            argv = [sys.executable, "-u", str(ROOT / "bench" / "torch_trainer.py"), str(plan.agent.job_dir / "torch")]
            ranks = []
            for rank in plan.agent.ranks:
                env = {**rank.env, "RANK": str(rank.rank), "WORLD_SIZE": str(count)}
                env |= {"CUDA_VISIBLE_DEVICES": slices[rank.rank]} if slices else {}
                ranks.append(dataclasses.replace(rank, argv=[*argv, str(base + after)], env=env))
            plan = dataclasses.replace(plan, agent=dataclasses.replace(plan.agent, ranks=ranks))
        run = LocalRun.start(plan)
        onset = None
        try:
            self._until(run, lambda: steps_done(run.job_dir) >= base, START_LIMIT_S, drill)
            with contextlib.ExitStack() as stack:
                if drill.fault:
                    onset = stack.enter_context(inject(drill.fault, find_victim(run.job_dir, 0), drill.strength))
                # One that never ends by itself (a stopped process) is ended after a while, with its fault in place.
                limit = 25.0 if drill.fault == "stop" else 90.0
                self._until(run, lambda: False, limit, drill)
                if run.supervise() is None:
                    run.cancel()
                self._until(run, lambda: False, 40.0, drill)
        finally:
            if run.supervise() is None:
                run.cancel()
            run.wait_closed()
        return run.job_dir, onset

    def _until(self, run: Any, enough: Any, seconds: float, drill: Drill) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = run.supervise()
            if ended is not None or enough():
                if ended and not steps_done(run.job_dir):
                    raise RuntimeError(f"{drill.name} ended with {ended} before its first step: {tail(run.log)}")
                return
            time.sleep(0.1)
        if not steps_done(run.job_dir):
            raise RuntimeError(f"{drill.name} made no step in {seconds:.0f} s: {tail(run.log)}")

    def _collect(self) -> None:
        for row, process in self._pending:
            said = process.communicate(timeout=120)[0]
            row |= judge(row, json.loads(said)) if said.strip() else {"error": "diagnose said nothing"}
            say(f"{row['name']}: {row.get('verdict')} -> {row.get('right')}")
        self._pending.clear()

    def _save(self) -> None:
        document = {"schema": SCHEMA, "machine": self._facts, "runs": self._rows}
        (self._out / f"{self._name}.json").write_text(json.dumps(document, indent=1) + "\n")

    def _pack(self) -> None:
        with tarfile.open(self._out / f"{self._name}.tar.xz", "w:xz") as archive:
            for path in sorted(self._workspace.iterdir()):
                if path.name.startswith("local_"):
                    archive.add(path, path.name, filter=_without_agent)


def _without_agent(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if info.name.endswith("agent.pyz") else info


def judge(row: dict[str, Any], verdict: dict[str, Any]) -> dict[str, Any]:
    """What the verdict says, and whether that is right."""
    roots = [c for c in verdict["causes"] if c["role"] == "root"]
    named = sorted({c["cause"] for c in roots})
    hosts = sorted({h for c in roots for h in c["hosts"]})
    gpus = sorted({g for c in roots for g in c["gpus"]})
    told = f"{verdict['outcome']}: {', '.join(named) or '-'}"
    costs = row.get("cost") or 0.0
    must = bool(row["cause"]) and (costs >= MUST_SEE or row["fault"] == "stop")
    if must:
        right = verdict["outcome"] == "incident" and named == [row["cause"]]
    else:  # what costs little may be named or not, but nothing else may be
        right = verdict["outcome"] != "incident" or named == [row["cause"]]
    return {"verdict": told, "roots": named, "hosts": hosts, "gpus": gpus, "must": must, "right": right,
            "summary": verdict["summary"]}  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The result for people."""
    lines = ["| run | cost | must be named | verdict | host | GPU | right |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if "verdict" not in row:
            lines.append(f"| {row['name']} | | | not run: {row.get('error', '')} | | | |")
            continue
        share = "" if row.get("cost") is None else f"{100 * row['cost']:+.0f} %"
        cells = [row["name"], share, "yes" if row["must"] else "no", row["verdict"], ", ".join(row["hosts"]),
                 ", ".join(row["gpus"]), "yes" if row["right"] else "NO"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def again(folder: Path, out: Path) -> int:
    """Diagnose earlier recordings with this code."""
    rows, facts = [], {}
    with tempfile.TemporaryDirectory() as place:
        for archive in sorted(folder.glob("*.tar.xz")):
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
            document = json.loads(archive.with_name(archive.name.removesuffix(".tar.xz") + ".json").read_text())
            facts |= document["machine"]
            for row in document["runs"]:
                if "job" in row:
                    row |= cost(Path(place) / row["job"], row["onset"])
                    command = [sys.executable, "-m", "trackwalker", "diagnose", f"{place}/{row['job']}", "--json"]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    row |= judge(row, json.loads(done.stdout))
                rows.append(row)
    (out / "drill.json").write_text(json.dumps({"schema": SCHEMA, "machine": facts, "runs": rows}, indent=1) + "\n")
    print(table(rows))
    return 0 if all(row.get("right", True) for row in rows) else 1


def progress(job_dir: Path) -> list[tuple[float, float]]:
    """When each step ended and how long it took; from the trainer's records, else from the times of its lines."""
    found: list[tuple[float, float]] = []
    with contextlib.suppress(OSError):
        for line in (job_dir / "progress.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record.get("phase") == "train" and record.get("rank", 0) == 0 and "step" in record and "t" in record:
                    rate = float(record.get("tokens_per_s") or 0.0)  # a torchtitan line has no seconds
                    spoken = TORCH_TOKENS / rate if rate else 0.0
                    found.append((float(record["t"]), float(record.get("seconds") or spoken)))
    if found:
        return found
    with contextlib.suppress(OSError):
        for line in (job_dir / "ranks" / "0.log").read_text(errors="replace").splitlines():
            rate = re.search(r"  memory: .* tps: ([\d,]+)", line)  # its time is that of a look at the file
            if rate:
                when = datetime.fromisoformat(line.split(" ", 1)[0]).timestamp()
                found.append((when, TORCH_TOKENS / float(rate[1].replace(",", ""))))
    return found


def steps_done(job_dir: Path) -> int:
    """How many steps were told of so far."""
    return len(progress(job_dir))


def cost(job_dir: Path, onset: float | None) -> dict[str, Any]:
    """By how much steps became longer, median against median."""
    steps = progress(job_dir)
    before = [s for t, s in steps[20:] if s and (onset is None or t < onset)]
    after = [s for t, s in steps if s and onset is not None and t - s > onset]
    if not before or not after:
        return {"cost": None, "step_s": round(statistics.median(before), 4) if before else None}
    full, slow = statistics.median(before), statistics.median(after)
    mean = statistics.fmean(after)
    return {"cost": round(mean / full - 1, 3), "step_s": round(full, 4), "slow_step_s": round(slow, 4)}


def tail(log: Path) -> str:
    """The last words of a log."""
    with contextlib.suppress(OSError):
        return " / ".join(log.read_text(errors="replace").splitlines()[-12:])
    return ""


def say(text: str) -> None:
    """One line, at once."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
