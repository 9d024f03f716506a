"""A disagreement becomes a case: the job packed, the truth, and a test that fails until the engine learns it."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from trackwalker.diagnose.causes.playbook import load_playbooks
from trackwalker.diagnose.engine import diagnose
from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.lab import bundle
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.cases import CASE_FILE, make_suite, truth_and_job
from trackwalker.lab.scoring.grade import Grade, grade
from trackwalker.report.text import one_line

PLAYBOOKS = "TRACKWALKER_PLAYBOOKS"  # a folder of one's own, as for `diagnose`
_TEST = '''"""{about}

Written by `trackwalker lab propose`. It fails until the diagnosis of the recorded job says what is true of it.
"""

from pathlib import Path

from trackwalker.lab.propose import wrong_in


def test_{name}() -> None:
    assert wrong_in(Path(__file__).parent / "{family}") == []
'''


@dataclass(frozen=True)
class Proposal:
    """What was written, and what the engine says instead of the truth."""

    case: Path
    bundle: Path
    test: Path
    said: str
    wrong: list[str]


def read_truth(given: str) -> Truth:
    """The truth from a file, or from JSON text."""
    if not given.lstrip().startswith("{"):
        return bundle.read_truth(Path(given))
    try:
        return Truth.model_validate(json.loads(given))
    except ValueError as e:  # pydantic's error is one too
        raise UsageError(f"--truth is no truth: {' '.join(str(e).split())[:200]}") from e


def propose(job: Job, truth: Truth, to: Path, family: str, about: str) -> Proposal:
    """Write the bundle, the case and its test; refuses where the engine is right already, before and after packing."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", family):
        raise UsageError(f"'{family}' cannot name a case: letters, digits, '.', '_' and '-' only")
    before = _graded(job, truth)
    if before.passed:
        raise UsageError(f"the verdict agrees with that truth ({before.said}): there is nothing to teach")
    to.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W", "_", family)
    packed, test = to / f"{family}.tar.gz", to / f"test_{name}.py"
    for path in (packed, test, to / family):
        if path.exists():
            raise UsageError(f"{path} exists: choose another --family")
    held = to / f".{family}.truth.json"
    try:
        held.write_text(truth.model_dump_json())
        bundle.pack(job, packed, held)
    finally:
        held.unlink(missing_ok=True)
    try:
        case = bundle.add(packed, to, family, about)
        wrong = wrong_in(case)
        if not wrong:  # what the engine was misled by stayed at home
            raise UsageError(f"job {job.id}: packed it is diagnosed right, as it lies it is not; no case was made")
    except UsageError:
        packed.unlink(missing_ok=True)
        shutil.rmtree(to / family, ignore_errors=True)  # half a case would fail for the wrong reason
        raise
    words = one_line(about).replace("\\", "/").replace('"', "'")
    test.write_text(_TEST.format(about=words or f"A job that was diagnosed wrong: {family}.", name=name, family=family))
    return Proposal(case, packed, test, before.said, wrong)


def wrong_in(case: Path) -> list[str]:
    """What the engine gets wrong about a recorded case, in words; nothing where it is right."""
    if not (case / CASE_FILE).is_file():
        raise UsageError(f"{case} is no recorded case: it has no {CASE_FILE}")
    [one] = make_suite([str(case)], None)
    job, truth = truth_and_job(one)
    found = _graded(resolve(str(job), job.parent), truth)
    return [] if found.passed else [*_words(found), f"it says: {found.said}"]


def _graded(job: Job, truth: Truth) -> Grade:
    own = os.environ.get(PLAYBOOKS)
    verdict = diagnose(job, load_playbooks(Path(own) if own else None)).verdict
    return grade(verdict.model_dump(by_alias=True, mode="json"), truth)


def _words(found: Grade) -> list[str]:
    parts = {"status": found.status, "outcome": found.outcome, "roots": found.roots, "hosts": found.hosts}
    wrong = [f"wrong {name}" for name, right in {**parts, "devices": found.devices}.items() if not right]
    return [*wrong, *(f"forbidden: {each}" for each in found.forbidden), *(f"{each}" for each in found.ungrounded)]
