"""Score a blind set: python bench/first_sight.py NAME ANSWERS VERDICTS OUT

ANSWERS is the author's answers.json: a list of {id, healthy, forbidden, hosts, and `root` (acceptable cause ids; empty:
abstain) with `all_of`, `hosts_alt`, `abstain_ok`, or, where no cause file describes the trouble, `gpu` and `device`:
then the place is what counts}. VERDICTS holds `<id>.json` of `trackwalker diagnose JOB --json`. OUT: a file of
lab/history/incidents.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trackwalker import __version__
from trackwalker.lab.scenario import TrueCause, Truth
from trackwalker.lab.scoring.grade import grade
from trackwalker.lab.scoring.results import CaseResult, Results
from trackwalker.lab.scoring.tools import OWN


def truth_of(case: dict[str, Any], verdict: dict[str, Any]) -> Truth:
    """What an author's answer accepts."""
    must_not = list(case.get("forbidden", []))
    if case["healthy"]:
        calm = Truth(outcome="healthy", must_not=must_not)
        benign = [c["cause"] for c in verdict.get("causes", []) if c["role"] == "root" and c["cause"] not in must_not]
        return calm.model_copy(
            update={"alternatives": [Truth(outcome="expected", roots=[TrueCause(cause=c) for c in benign])]}
        )
    if "root" not in case:
        return _placed(case, verdict, must_not)
    several = case.get("all_of", [])
    if not (case["root"] or several):
        return Truth(outcome="insufficient-evidence", must_not=must_not)
    answers = [
        Truth(
            outcome="incident",
            roots=[TrueCause(cause=c, hosts=h or []) for c in (several or [cause])],
            also_roots=several,  # who of the hosts is whose is not told
            must_not=must_not,
            or_abstain=case.get("abstain_ok", False),
        )
        for cause in case["root"] or several[:1]
        for h in [case["hosts"], *case.get("hosts_alt", [])]
    ]
    return answers[0].model_copy(update={"alternatives": answers[1:]})


def _placed(case: dict[str, Any], verdict: dict[str, Any], must_not: list[str]) -> Truth:
    """Trouble without a name: whatever it is called, the place decides."""
    said = {c["cause"] for c in verdict.get("causes", []) if c["role"] == "root"} - {"unclassified"} - set(must_not)
    # A bare name is a part of the only host: `mlx5_1` on n07 is n07/mlx5_1.
    parts = [[case[k]] if case.get(k) else [] for k in ("gpu", "device")]
    gpus, devices = ([p if "/" in p else f"{case['hosts'][0]}/{p}" for p in part] for part in parts)

    def named(cause: str) -> Truth:
        root = TrueCause(cause=cause, hosts=case["hosts"], gpus=gpus, devices=devices)
        return Truth(outcome="incident", roots=[root], must_not=must_not)

    return named("unclassified").model_copy(update={"alternatives": [named(c) for c in sorted(said)]})


def main(name: str, answers: Path, verdicts: Path, out: Path) -> None:
    """Grade, write, and print what counts."""
    cases = []
    for case in json.loads(answers.read_text()):
        verdict = json.loads((verdicts / f"{case['id']}.json").read_text())
        truth = truth_of(case, verdict)
        given = grade(verdict if "causes" in verdict else None, truth)
        cases.append(
            CaseResult(
                tool=OWN,
                family=f"{name}-{case['id']}",
                split="test",
                group=case.get("kind", "?"),
                seed=1,
                truth=truth,
                grade=given,
                passed=given.passed,
                seconds=round(verdict.get("cost", {}).get("seconds", 0.0), 2),
            )
        )
    out.write_text(Results(version=__version__, suite=[name], cases=cases).to_json())
    trouble = [c for c in cases if c.truth.outcome == "incident"]
    well = [c for c in cases if c.truth.outcome == "healthy"]
    print(f"{name}: right in everything {sum(c.passed for c in cases)}/{len(cases)}")
    print(f"  trouble: root {sum(c.grade.roots for c in trouble)}/{len(trouble)}, hosts exact", end=" ")
    print(f"{sum(c.grade.hosts and c.grade.outcome for c in trouble)}/{len(trouble)}", end=", ")
    named = [c for c in trouble if any(r.gpus or r.devices for r in c.truth.roots)]
    print(f"GPU or device {sum(c.grade.devices for c in named)}/{len(named)}")
    print(f"  a wrong host {sum(bool(_strangers(c)) for c in trouble)}, called healthy or expected", end=" ")
    print(sum(c.grade.said_outcome in ("healthy", "expected") for c in trouble))
    print(f"  forbidden {sum(bool(c.grade.forbidden) for c in cases)}/{len(cases)}, well ones accused", end=" ")
    print(f"{sum(c.grade.said_outcome == 'incident' for c in well)}/{len(well)}")
    for right in (True, False):
        sure = [k.confidence or 0.0 for c in cases for k in c.grade.claims if k.right == right]
        print(f"  confidence where {'right' if right else 'wrong'}: {sum(sure) / max(1, len(sure)):.3f} ({len(sure)})")
    for c in cases:
        if not c.passed:
            wanted = [f"{r.cause}({','.join(r.hosts)})" for r in c.truth.roots]
            print(f"  {c.family} {c.group}: {' '.join(wanted) or c.truth.outcome}; said {c.grade.said[:160]}")


def _strangers(case: CaseResult) -> set[str]:
    true = {h for t in (case.truth, *case.truth.alternatives) for r in t.roots for h in r.hosts}
    return set(case.grade.accused) - true


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
