"""What a diagnosis asked: every question with its answer, of whom, how well it could see; and what it did not ask."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.detect import OF_ALL
from trackwalker.diagnose.causes.examine import Examination, TestResult
from trackwalker.diagnose.causes.playbook import Playbook, Test
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.story import Story
from trackwalker.errors import UsageError
from trackwalker.job.causes import Topic, about_topic
from trackwalker.record.clock import utc

SCHEMA = "trackwalker.tests/1"
_ORDER = ("found", "refuted", "clean", "untestable")
_ANSWERS = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True)
class Asked:
    """The questions of one diagnosis, and where its evidence ends."""

    examinations: list[Examination] = field(default_factory=list)
    uncalled: list[Playbook] = field(default_factory=list)
    symptoms: frozenset[str] = frozenset()
    hosts: list[str] = field(default_factory=list)
    windows: dict[str, float] = field(default_factory=dict)  # seconds of each
    ends: dict[str, str] = field(default_factory=dict)  # UTC: of the steps, of the metrics, of the run

    @classmethod
    def of(cls, case: Case, symptoms: Symptoms, examinations: list[Examination], books: list[Playbook]) -> Asked:
        """Of one open case."""
        called = {e.playbook.id for e in examinations}
        ends = {
            "last_step": case.timeline.last_end if case.timeline is not None else None,
            "metrics": case.telemetry.range()[1] if case.telemetry is not None else None,
            "run": case.end,
        }
        return cls(
            examinations,
            [b for b in books if b.id not in called],
            symptoms.names,
            list(case.hosts),
            {name: round(sum(s.seconds for s in spans), 1) for name, spans in symptoms.windows.items()},
            {name: told for name, t in ends.items() if t is not None and (told := utc(t)) is not None},
        )

    def examined(self) -> list[Examination]:
        """By what came of them: found, refuted, clean, untestable."""
        return sorted(self.examinations, key=lambda e: (_ORDER.index(state_of(e)), e.playbook.id))

    def contradicts(self, cause: str) -> list[TestResult]:
        """What should hold of all hosts if a cause is right, and does not; who finds nobody proves nothing."""
        mine = [r for e in self.examinations if e.playbook.id == cause for r in e.results]
        return [r for r in mine if r.test.role == "support" and r.test.detector in OF_ALL and r.fired is False]

    def not_covered(self, cause: str) -> list[str]:
        """The job's hosts that no metric test of a cause had a number of; none where it asked no metrics."""
        mine = [r for e in self.examinations if e.playbook.id == cause for r in e.results]
        of_hosts = [r for r in mine if r.test.query is not None and r.test.label != "device" and r.fired is not None]
        if not of_hosts:
            return []
        return [h for h in self.hosts if not any(h in r.covered for r in of_hosts)]

    def why_uncalled(self, book: Playbook) -> str:
        """Why a playbook was not asked at all."""
        needs = " or ".join("a run without trouble" if s == "none" else s for s in book.symptoms)
        return f"asked where there is {needs}; this job shows {', '.join(sorted(self.symptoms)) or 'no symptom'}"

    def row(self, result: TestResult) -> dict[str, Any]:
        """One question as JSON has it; nothing that is empty."""
        test = result.test
        metric = test.query is not None
        missing = [h for h in self.hosts if h not in result.covered] if metric and result.covered else []
        row = {
            "test": test.id,
            "role": test.role,
            "asks": question(test),
            "answer": _ANSWERS[result.fired],
            "names": sorted(result.gpus or result.devices or result.hosts),
            "asked_of": f"{len(self.hosts) - len(missing)} of {len(self.hosts)} hosts" if result.covered else "",
            "not_covered": missing,
            "window": f"{test.window}: {self.windows[test.window]:g} s"
            if test.window in self.windows and metric
            else "",
            "fires_when": limits(test),
            "missing": result.missing,
            "evidence": result.evidence,
        }
        return {k: v for k, v in row.items() if v not in ("", [], None)}

    def about(self, cause: str) -> Asked:
        """Only what was asked about one cause, or why it was not."""
        chosen = replace(
            self,
            examinations=[e for e in self.examinations if e.playbook.id == cause],
            uncalled=[b for b in self.uncalled if b.id == cause],
        )
        if not chosen.examinations and not chosen.uncalled:
            raise UsageError(f"no cause '{cause[:60]}' is known: 'trackwalker diagnose JOB --tests' names them all")
        return chosen

    def to_dict(self, job: str) -> dict[str, Any]:
        """As `diagnose --tests --json` prints it."""
        return {
            "schema": SCHEMA,
            "job": job,
            "symptoms": sorted(self.symptoms),
            "hosts": self.hosts,
            "evidence_ends": self.ends,
            "asked": [
                {"cause": e.playbook.id, "state": state_of(e), "tests": [self.row(r) for r in e.results]}
                for e in self.examined()
            ],
            "not_asked": {b.id: self.why_uncalled(b) for b in self.uncalled},
        }


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, the pictures behind it, what was damaged in the evidence, and what was asked."""

    verdict: Verdict
    story: Story
    damage: list[str]
    asked: Asked = field(default_factory=Asked)


def state_of(examination: Examination) -> str:
    """What the questions come to; a cause that nothing measured speaks against, for want of a metric, is not clean."""
    required = [r for r in examination.results if r.test.role == "require"]
    unmeasured = any(r.fired is None and r.missing for r in required)
    return (
        "untestable"
        if examination.state == "clean" and unmeasured and not examination.counter_evidence
        else examination.state
    )


def question(test: Test) -> str:
    """What a test asks, in a line."""
    if test.query is not None:
        return test.query
    return f"fact {test.fact}" if test.fact else f"log lines of class {', '.join(test.signature or [])}"


def limits(test: Test) -> str:
    """When a metric test fires: its power to see is that of its detector."""
    if test.detector is None:
        return ""
    told = [f"{name} {value}" for name, value in test.with_.items()]
    against = f" against the {test.against} window" if test.against else ""
    return ", ".join([test.detector, *told]) + against


# A topic's words, and what to say when none of its causes was found.
TOPICS: dict[Topic, tuple[str, str]] = {
    "speed": (r"slow|tgs|mfu|throughput|tokens|speed|step time|perf", "no cause for a slowdown was found"),
    "stop": (r"hang|hung|stuck|stall|freeze|frozen|stop|progress", "the run is not known to have hung"),
    "memory": (r"memory|oom|leak", "no trouble with memory was found"),
    "network": (r"network|nic|rdma|nccl|rccl|fabric|link|congest", "no trouble with the network was found"),
    "loss": (r"loss|nan|diverg|gradient", "the loss shows nothing unusual"),
}


def answer(question: str, verdict: Verdict) -> Verdict:
    """The verdict with a summary that answers the question first; it says so when the answer lies elsewhere."""
    roots = {c.cause for c in verdict.causes if c.role == "root"}
    for topic, (words, nothing) in TOPICS.items():
        if re.search(words, question, re.IGNORECASE):
            if about_topic(roots, topic):
                return verdict
            found = verdict.outcome == "incident"
            link = " What was found instead: " if found else " "
            asked = " ".join(question.split())[:80]
            summary = f"Asked \u201c{asked}\u201d: {nothing}.{link}{verdict.summary}"
            return verdict.model_copy(update={"summary": summary})
    return verdict
