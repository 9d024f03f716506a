"""Agents on jobs whose truth they cannot see: make the sites they work in, and grade what they left there.

Usage: python bench/agents_blind.py make SITES TRUTH [--sites 4] [--seed 30] [--shared FOLDER]
       python bench/agents_blind.py score SITES TRUTH

A site is a folder with `outputs` (some jobs in a drawn order), `AGENTS.md`, `skills/`, `bin/trackwalker` (notes every
call) and `verdicts/` for the answers. The smoke suite is in them as `lab score` makes it, and ten further cases that a
seeded draw picks: six families outside the smoke suite under drawn seeds, two simulated samples and two real H200 runs
(ten families where there is no `--shared`). TRUTH holds the truth and the tool that the wrapper runs; agents are told
nothing of it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from trackwalker.agent.skills.skills import shipped
from trackwalker.diagnose.engine import diagnose
from trackwalker.job.resolve import resolve
from trackwalker.lab.scenario import TrueCause, Truth, all_scenarios
from trackwalker.lab.scoring.agents import as_verdict
from trackwalker.lab.scoring.cases import SMOKE, Case, build
from trackwalker.lab.scoring.grade import Grade, grade

# Of the samples those whose job ids no page of ours tells as an example.
SAMPLES = (
    *("fleet-memory-leak", "input-stall-all-ranks", "leaf-congestion"),
    *("ring-buffer-wraps", "storage-stall-heartbeat"),
)
REAL = ("healthy", "power-cap", "slow-data", "stopped")
WRAPPER = """#!{python}
import json, os, subprocess, sys, time
begin = time.time()
env = {{**os.environ, "PYTHONPATH": {tool!r}, "XDG_STATE_HOME": {state!r}}}
env.setdefault("JOB_WORKSPACE", {workspace!r})
argv = sys.argv[1:]
if argv[:1] == ["lab"]:
    print("trackwalker lab is not installed here", file=sys.stderr)
    code, size = 2, 0
else:
    done = subprocess.run([{python!r}, "-m", "trackwalker", *argv], stdout=subprocess.PIPE, env=env)
    sys.stdout.buffer.write(done.stdout)
    code, size = done.returncode, len(done.stdout)
call = {{"t": begin, "seconds": time.time() - begin, "bytes": size, "rc": code, "argv": argv}}
with open({calls!r}, "a") as out:
    out.write(json.dumps(call) + "\\n")
sys.exit(code)
"""


def sampled(folder: Path) -> Truth:
    """The truth of a sample or of a real run, in the lab's words."""
    answer = json.loads((folder / "ANSWER.json").read_text())
    if "accept_any_of" not in answer:
        roots = [TrueCause(cause=c, hosts=h) for c, h in answer["roots"].items()]
        return Truth(outcome=answer["outcome"], roots=roots)
    must_not = [*answer["must_not"]["root_causes"], *(f"host:{h}" for h in answer["must_not"]["accuse_hosts"])]
    right: list[Truth] = []
    for one in answer["accept_any_of"]:
        choices: list[list[TrueCause]] = [[]]
        for cause, hosts in one["roots"].items():
            sets = hosts["any_of"] if isinstance(hosts, dict) else [hosts]
            choices = [[*held, TrueCause(cause=cause, hosts=each)] for held in choices for each in sets]
        for outcome in one.get("outcomes", answer["accept_outcomes"]):
            for chosen in choices:
                if bool(chosen) != (outcome in ("healthy", "insufficient-evidence")):
                    extra = one["extra_roots_ok"]
                    right.append(Truth(outcome=outcome, roots=chosen, also_roots=extra, must_not=must_not))
    return right[0].model_copy(update={"alternatives": right[1:]})


def cases_of(seed: int, shared: Path | None) -> list[tuple[str, Case | Path]]:
    """The smoke suite and ten more, in a drawn order."""
    draw = random.Random(seed)  # noqa: S311 - a draw that comes back
    families = sorted(s.family for s in all_scenarios() if s.family not in SMOKE)
    more = draw.sample(families, 6 if shared else 10)
    found: list[tuple[str, Case | Path]] = [(f, Case(f, "tune", 1)) for f in SMOKE]
    found += [(f, Case(f, "tune", draw.randint(2, 99))) for f in more]
    if shared:
        found += [(f, shared / "samples" / f) for f in draw.sample(SAMPLES, 2)]
        found += [(f, shared / "h200runs" / f) for f in draw.sample(REAL, 2)]
    draw.shuffle(found)
    return found


def place(case: Case | Path, home: Path) -> tuple[Path, Truth]:
    """The job of a case below `home/outputs`, and its truth."""
    if isinstance(case, Case):
        return build(case, home)
    inner = case / "outputs" if (case / "outputs").is_dir() else case
    shutil.copytree(inner, home / "outputs", symlinks=True, ignore=shutil.ignore_patterns("ANSWER.json"))
    return next(p for p in (home / "outputs").iterdir() if (p / "log").exists()), sampled(case)


def make(sites: Path, truth: Path, number: int, seed: int, shared: Path | None) -> None:
    """Build everything; the engine's own verdict is kept beside the truth."""
    truth.mkdir(parents=True, exist_ok=True)
    package = truth / "tool" / "trackwalker"
    if not package.exists():
        source = Path(sys.modules["trackwalker"].__file__ or "").parent
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__", "scenarios"))
        shutil.copytree(shipped(), truth / "tool" / "trackwalker" / "skills", dirs_exist_ok=True)
    table: dict[str, Any] = {}
    told = truth / "truth.json"
    if told.is_file():
        table = json.loads(told.read_text())  # a broken-off making goes on
    for n in range(1, number + 1):
        if not (sites / f"site{n}").exists():
            furnish(sites / f"site{n}", truth)
    done = {(row["name"], row["seed"]) for row in table.values()}
    for n, (name, case) in enumerate(cases_of(seed, shared)):
        which = case.seed if isinstance(case, Case) else 0
        if (name, which) in done:
            continue
        made = truth / "making"
        shutil.rmtree(made, ignore_errors=True)
        job, known = place(case, made)
        verdict = diagnose(resolve(str(job), job.parent)).verdict.model_dump(by_alias=True, mode="json")
        key = job.name.partition("-")[0]
        # Ids are drawn: the next site that has none of this id takes it.
        turn = [sites / f"site{(n + k) % number + 1}" for k in range(number)]
        site = next(s for s in turn if not list((s / "outputs").glob(f"{key}-*")))
        for entry in job.parent.iterdir():
            target = site / "outputs" / entry.name
            if entry.name == ".artifacts":
                shutil.copytree(entry, target, symlinks=True, dirs_exist_ok=True)
            else:
                entry.rename(target)
        row = {"site": site.name, "job": key, "name": name, "seed": which, "truth": known.model_dump()}
        table[f"{site.name}/{key}"] = {**row, "engine": verdict}
        told.write_text(json.dumps(table, indent=1) + "\n")
        print(f"{site.name} {key}: made", flush=True)
    shutil.rmtree(truth / "making", ignore_errors=True)


def furnish(site: Path, truth: Path) -> None:
    """What an agent may see."""
    for part in ("outputs", "bin", "verdicts"):
        (site / part).mkdir(parents=True)
    shutil.copy(shipped().parent / "AGENTS.md", site / "AGENTS.md")
    shutil.copytree(shipped(), site / "skills")
    state = truth / f"state-{site.name}"
    state.mkdir()
    words = {"python": sys.executable, "tool": str((truth / "tool").resolve()), "state": str(state.resolve())}
    calls, workspace = str((state / "calls.jsonl").resolve()), str((site / "outputs").resolve())
    wrapper = site / "bin" / "trackwalker"
    wrapper.write_text(WRAPPER.format(**words, calls=calls, workspace=workspace))
    wrapper.chmod(0o755)


def calls_of(truth: Path, site: str, jobs: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Every call by the job it names; one that names none belongs to the job that is asked about next."""
    path = truth / f"state-{site}" / "calls.jsonl"
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
    waiting: list[dict[str, Any]] = []
    last = jobs[0]
    for line in path.read_text().splitlines() if path.is_file() else []:
        call = json.loads(line)
        named = [j for j in jobs if any(j in word for word in call["argv"])]
        waiting.append(call)
        if named:
            last = named[0]
            found[last] += waiting
            waiting = []
    found[last] += waiting
    return found


def score(sites: Path, truth: Path) -> None:
    """Print one line for each case, and the sums."""
    table = json.loads((truth / "truth.json").read_text())
    rows = []
    for site in sorted({row["site"] for row in table.values()}):
        here = {row["job"]: row for row in table.values() if row["site"] == site}
        calls = calls_of(truth, site, list(here))
        for job, row in here.items():
            known = Truth.model_validate(row["truth"])
            told = next(iter((sites / site / "verdicts").glob(f"{job}*.json")), None)
            mine = grade(as_verdict(reasoned(json.loads(told.read_text()))), known) if told else grade(None, known)
            engine = grade(row["engine"], known)
            rows.append((job, row["name"], calls[job], mine, engine))
    for job, name, called, mine, engine in rows:
        seconds = sum(c["seconds"] for c in called)
        size = sum(c["bytes"] for c in called)
        print(f"{job} {name}: {len(called)} calls, {seconds:.0f} s in them, {size} bytes; ", end="")
        print(f"agent {word(mine)}, engine {word(engine)}")
    answered = [len(called) for _, _, called, mine, _ in rows if mine.said != "no verdict"]
    if answered:
        worse = sum(e.passed and not m.passed for _, _, _, m, e in rows)
        better = sum(m.passed and not e.passed for _, _, _, m, e in rows)
        right, own = sum(m.passed for _, _, _, m, _ in rows), sum(e.passed for _, _, _, _, e in rows)
        spent = f"calls: median {statistics.median(answered)}, most {max(answered)}"
        print(f"{len(answered)} of {len(rows)} answered; {spent}")
        print(f"right: agents {right}, engine {own} of {len(rows)}; worse than the engine {worse}, better {better}")


def reasoned(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer whose reasons stand in one `why` for all its causes: each cause rests on that."""
    why = answer.get("why")
    causes = [{**c, "evidence": c.get("evidence") or ([why] if why else [])} for c in answer.get("causes", [])]
    return {**answer, "causes": causes}


def word(found: Grade) -> str:
    """Right, or what was said instead."""
    return "right" if found.passed else f"wrong ({found.said})"


def main() -> None:
    """The command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("do", choices=["make", "score"])
    line.add_argument("folder", type=Path)
    line.add_argument("truth", type=Path)
    line.add_argument("--sites", type=int, default=4)
    line.add_argument("--seed", type=int, default=30)
    line.add_argument("--shared", type=Path)
    given = line.parse_args()
    if given.do == "score":
        score(given.folder, given.truth)
    else:
        make(given.folder, given.truth, given.sites, given.seed, given.shared)


if __name__ == "__main__":
    main()
