"""Run one playbook's tests on one case."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace

import numpy as np

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.detect import SHORTEST_WINDOW_S, answered, compared, detect, windows_of
from trackwalker.diagnose.causes.evidence import EvidenceBook, span_words, statement, told
from trackwalker.diagnose.causes.logcause import only_waits, theirs_alone
from trackwalker.diagnose.causes.playbook import Playbook, Test
from trackwalker.diagnose.causes.states import states
from trackwalker.diagnose.deviations import hardware  # noqa: F401  (it adds questions to FACTS)
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms, slide_start
from trackwalker.diagnose.facts import (  # noqa: F401  (they add questions to FACTS)
    account_facts,
    heartbeat,
    machine_facts,
    network_facts,
    step_anomalies,
    trend_facts,
)
from trackwalker.diagnose.facts.log_facts import FACTS
from trackwalker.errors import UsageError
from trackwalker.stats.detectors import Finding

_LEAST_SHARE = 0.2
_COVERED = 0.75
STRICT = bool(os.environ.get("TRACKWALKER_DEBUG"))  # an error inside a test ends everything, as our own tests want it
_SPREAD_LOOKS = 4  # of fewer a quarter of them is no look
_FEW_ACCUSED = 8  # whose counters are read one by one


@dataclass
class TestResult:
    """How one test came out."""

    test: Test
    fired: bool | None  # None: could not be asked
    evidence: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    time: float | None = None
    spans: set[int] | None = None  # which of the window's stretches it speaks for; None: not asked per stretch
    hosts_by_span: dict[int, set[str]] = field(default_factory=dict)  # of slow phases: whom it names in which
    accuses: bool = False  # its hosts are culprits
    log_role: str = ""  # what the log's own order makes of a failure class
    words: str = ""  # of the log's line
    wrote: set[str] = field(default_factory=set)  # hosts that wrote such lines
    covered: set[str] = field(default_factory=set)  # hosts that it had a number of

    def __post_init__(self) -> None:
        self.accuses = self.accuses or self.test.accuses


@dataclass
class Examination:
    """A playbook's tests on a case, and what they come to."""

    playbook: Playbook
    results: list[TestResult]
    screened: bool = False  # asked of a run without a slow phase

    @property
    def state(self) -> str:
        """`found`, `refuted`, `clean` (tested, not there) or `untestable`."""
        claimed = self._claimed
        if any(r.spans is None or (claimed is not None and claimed <= r.spans) for r in self._against):
            return "refuted"
        state = "found"
        for group in self._groups():
            if any(r.fired for r in group):
                continue
            if any(r.fired is False for r in group):
                return "clean"
            state = "untestable"
        return "clean" if state == "found" and self.spans == set() else state

    @property
    def half_proven(self) -> bool:
        """What was measured speaks for it, and what would settle it was not measured."""
        measured = any(r.fired and r.test.query for r in self.results if r.test.role == "require")
        return measured and self.state == "untestable"

    @property
    def _against(self) -> list[TestResult]:
        """The tests that refute it, in their phases; who clears some of its hosts leaves the others accused."""
        fired = (r for r in self.results if r.test.role == "refute" and r.fired)
        return [left for r in fired if (left := self._refuting(r)) is not None]

    def _refuting(self, result: TestResult) -> TestResult | None:
        """A test that refutes, for the phases in which it clears everybody accused there."""
        free = self._free(result)
        if not result.hosts or result.spans is None or self._claimed is None:
            return result if not result.hosts or self._accused <= free else None
        whole = {i for i in result.spans if self._accused_in(i) <= free & result.hosts_by_span.get(i, free)}
        return replace(result, spans=whole) if whole else None

    def _accused_in(self, phase: int) -> set[str]:
        return set().union(*(r.hosts_by_span.get(phase, r.hosts) if r.spans is not None else r.hosts
                             for r in self.fired if r.accuses))  # fmt: skip

    @property
    def spans(self) -> set[int] | None:
        """The slow phases all required tests speak for and none refutes; None when it is not about phases."""
        claimed = self._claimed
        if claimed is None:
            return None
        return claimed.difference(*(r.spans or () for r in self._against))

    @property
    def _claimed(self) -> set[int] | None:
        spans: set[int] | None = None
        for group in self._groups():
            told = [r.spans for r in group if r.fired and r.spans is not None]
            if told:
                mine = set().union(*told)
                spans = mine if spans is None else spans & mine
        return spans

    def phases(self, symptoms: Symptoms) -> set[int]:
        """The slow phases it was there for: those it speaks for, else all that were not over when it began."""
        since = self.onset or 0.0
        return {i for i, p in enumerate(symptoms.slow) if p.end > since} if self.spans is None else self.spans

    def was_there_for(self, other: Examination, symptoms: Symptoms) -> bool:
        """Whether it was there for most of what another cause lost: nothing comes of what began later."""
        return not other.spans or symptoms.mostly(other.spans, self.phases(symptoms))

    def asked(self, facts: frozenset[str]) -> bool:
        """Whether one of these facts speaks for it."""
        return any(r.fired and r.test.fact in facts for r in self.results if r.test.role == "require")

    @property
    def waits(self) -> bool:
        """Whether it only tells that somebody is waited for."""
        return states().within("waited_for", self.playbook.state)

    @property
    def in_silence(self) -> bool:
        """Whether something speaks for it that was measured while nothing moved."""
        return any(r.fired and r.test.role == "require" and r.test.window == "during" for r in self.results)

    @property
    def log_only(self) -> bool:
        """Nothing but log lines speaks for it."""
        return all(r.test.signature is not None for r in self.results if r.fired and r.test.role == "require")

    @property
    def explains(self) -> frozenset[str]:
        """The states that can come of it."""
        fired = [r for r in self.results if r.fired]
        told = any(r.test.definite or (r.test.signature and not r.test.warnings and not r.log_role) for r in fired)
        book = self.playbook
        return states().reaches(book.acts_as or book.state) if told or not book.only_if_told else frozenset()

    def explained_by(self, other: Examination) -> bool:
        """Whether this can come of another cause: of a process that is gone also what only lines say of a path."""
        mine, gone = self.playbook.state, set(other.hosts)
        heard = self.log_only and not other.log_only and mine in states().unanswered(other.playbook.state)
        # Whoever says it too lost its own path while it lived.
        return mine in other.explains or (heard and not any(r.wrote & gone for r in self.fired))

    @property
    def log_role(self) -> str:
        """`consequence` or `mechanism` when nothing but log lines speaks for it and they say so."""
        required = [r for r in self.results if r.fired and r.test.role == "require"]
        roles = {r.log_role for r in required}
        return roles.pop() if len(roles) == 1 else ""

    def _groups(self) -> list[list[TestResult]]:
        groups: dict[str, list[TestResult]] = {}
        for result in self.results:
            if result.test.role == "require":
                groups.setdefault(result.test.group or result.test.id, []).append(result)
        return list(groups.values())

    @property
    def fired(self) -> list[TestResult]:
        """The tests that speak for the cause."""
        return [r for r in self.results if r.fired and r.test.role != "refute"]

    @property
    def hosts(self) -> list[str]:
        """The culprits: named by tests that accuse, and by those that narrow the circle; less whom a test refutes."""
        against = [r for r in self.results if r.test.role == "refute" and r.fired]
        cleared = {h for h in self._accused if any(h in self._free(r) and self._clears(r, h) for r in against)}
        return sorted(self._narrow(self._accused - cleared or self._accused))

    def _free(self, result: TestResult) -> set[str]:
        """The hosts that a test clears; one of cards clears a host where it clears each accused card there."""
        cards = set().union(*(r.gpus for r in self.fired if r.accuses)) if result.gpus else set()
        return result.hosts - {g.rsplit("/", 1)[0] for g in cards - result.gpus}

    def _clears(self, result: TestResult, host: str) -> bool:
        """Whether a test that refutes clears a host in every phase in which it is accused."""
        if not result.hosts_by_span:
            return True
        accused = {i for i in self._claimed or () if host in self._accused_in(i)}
        return all(host in result.hosts_by_span.get(i, ()) for i in accused)

    @property
    def _accused(self) -> set[str]:
        return set().union(*(r.hosts for r in self.fired if r.accuses))

    def _narrow(self, accused: set[str]) -> set[str]:
        return accused & set().union(*(r.hosts for r in self.fired if r.test.narrows)) or accused

    @property
    def hosts_by_span(self) -> dict[int, list[str]]:
        """The culprits of each slow phase, where the tests tell the phases apart."""
        told = [x for r in self.fired if r.accuses for x in r.hosts_by_span.items()]
        spans = sorted({i for i, _ in told})
        named = set(self.hosts)  # whom a test cleared is not told of either
        return {i: sorted(self._narrow(set().union(*(who for j, who in told if j == i)) & named)) for i in spans}

    @property
    def devices(self) -> list[str]:
        """Devices of the culprits."""
        named = set().union(*(r.devices for r in self.fired))
        return sorted(d for d in named if not self.hosts or d.partition("/")[0] in self.hosts)

    @property
    def gpus(self) -> list[str]:
        """GPUs of the culprits, as host/number."""
        named = set().union(*(r.gpus for r in self.fired if r.accuses))
        return sorted(g for g in named if g.rsplit("/", 1)[0] in self.hosts)

    @property
    def evidence(self) -> list[str]:
        """What carries the cause, in order, each once."""
        return list(dict.fromkeys(e for r in self.fired for e in r.evidence))

    @property
    def counter_evidence(self) -> list[str]:
        """What speaks against it: the clean required tests, or what refutes it."""
        against = [r for r in self.results if (r.test.role == "refute") == bool(r.fired) and r.fired is not None]
        return list(dict.fromkeys(e for r in against if r.test.role in ("require", "refute") for e in r.evidence))

    @property
    def missing(self) -> list[str]:
        """What was not collected and would be needed."""
        needed = [r for group in self._groups() if not any(t.fired for t in group) for r in group]
        measured = {m for r in needed if r.test.query is not None for m in r.missing}
        return sorted(measured or {m for r in needed for m in r.missing})  # a metric's name says more than a question's

    @property
    def onset(self) -> float | None:
        """The earliest time a required test gives."""
        times = [r.time for r in self.fired if r.time is not None and r.test.role == "require"]
        return min(times) if times else None


def examine(
    playbook: Playbook, case: Case, symptoms: Symptoms, book: EvidenceBook, all_along: bool = False
) -> Examination:
    """Ask every question of a playbook, or its screen; locating tests come last and look at the accused only."""
    screened = bool(playbook.screen) and (all_along or not set(playbook.symptoms) & symptoms.names)
    examination = Examination(playbook, [], screened)
    for test in sorted(playbook.screen if screened else playbook.tests, key=lambda t: t.role == "locate"):
        fired = {r.test.id for r in examination.results if r.fired}
        if (test.when is not None and test.when not in fired) or fired & set(test.unless.split(", ")):
            continue
        try:
            result = _ask(test, case, symptoms, book, [*examination.hosts, *examination.gpus])
        except (LookupError, ArithmeticError, ValueError, TypeError) as e:
            if STRICT:
                raise
            # Data that nobody thought of must not cost the whole verdict: one question less, and it is told.
            case.damage.append(f"test '{test.id}' of playbook {playbook.id} failed inside ({type(e).__name__}: {e})")
            result = TestResult(test, None, missing=[f"test '{test.id}'"])
        if playbook.acts_on == "gpu" and len(case.hosts) == 1:
            _name_the_only_one(result, case)
        examination.results.append(result)
    return examination


def _name_the_only_one(result: TestResult, case: Case) -> None:
    """What is true of all GPUs of a job with one rank is true of that rank's."""
    of_gpus = bool(result.test.metrics) and all(m.startswith("hw_gpu_") for m in result.test.metrics)
    if result.fired and result.test.role == "require" and of_gpus and not result.hosts:
        result.hosts, result.accuses = {case.hosts[0]}, True
    if result.fired and result.hosts and not result.gpus and len(known := case.topology.gpus_of(case.hosts[0])) == 1:
        result.gpus = {f"{case.hosts[0]}/{known[0]}"}


def _ask(test: Test, case: Case, symptoms: Symptoms, book: EvidenceBook, accused: list[str]) -> TestResult:
    if test.fact is not None:
        return _ask_fact(test, case, symptoms, book)
    if test.signature is not None:
        return _ask_signature(test, test.signature, case, book)
    return _ask_metrics(test, case, symptoms, book, accused)


def _ask_fact(test: Test, case: Case, symptoms: Symptoms, book: EvidenceBook) -> TestResult:
    if test.fact not in FACTS:
        raise UsageError(f"test '{test.id}' asks for the unknown fact '{test.fact}'; known: {', '.join(sorted(FACTS))}")
    answer = FACTS[test.fact](case, symptoms, book)
    missing = [test.fact] if answer.fired is None else []
    spans = None if answer.spans is None else set(answer.spans)
    return TestResult(
        test, answer.fired, list(answer.evidence), set(answer.hosts), missing=missing, time=answer.time, spans=spans
    )


def _ask_signature(test: Test, causes: list[str], case: Case, book: EvidenceBook) -> TestResult:
    """Whether lines of a failure class are in the log, who wrote them, and what their order makes of them."""
    known = case.triage.roles.findings if test.warnings else case.triage.failures
    mine = [f for f in known if f.cause in causes and f.text]
    if not mine or (test.primary and mine[0].role != "primary"):
        # What the log does not name is not ruled out by it.
        return TestResult(test, None if test.primary or test.hint else False)
    lead = mine[0]
    ids = [book.add("log", f"{lead.file}:{lead.line}", lead.text)]
    alike = [f for f in mine if f.role == lead.role]  # what follows from the first is on other hosts too
    wrote = {h for f in ([lead] if lead.local else alike) for h in f.hosts}  # a line that tells whose it is decides
    few = wrote if len(wrote) * 2 <= max(len(case.hosts), 1) else set()  # what most ranks say accuses nobody
    role = "" if lead.role == "primary" or test.warnings else lead.role
    words = next((f.text for f in mine if not only_waits(f)), lead.text)
    return TestResult(
        test, True, ids, few, time=case.end_of_work, accuses=theirs_alone(mine), log_role=role, words=words,
        wrote={h for f in mine for h in f.hosts},
    )  # fmt: skip


def _ask_metrics(test: Test, case: Case, symptoms: Symptoms, book: EvidenceBook, accused: list[str]) -> TestResult:
    telemetry = case.telemetry
    spans, references = windows_of(test, symptoms)
    absent = [m for m in test.metrics if telemetry is None or m not in telemetry.metrics()]
    if telemetry is None or absent or not spans:
        return TestResult(test, None, missing=absent or [f"{test.window} window"])
    result = TestResult(test, None, spans=set() if test.window == "slow" else None)
    explained = 0.0
    for i, span in enumerate(spans):
        if span.seconds < (shortest := max(SHORTEST_WINDOW_S, _SPREAD_LOOKS * case.interval * test.spread)):
            continue
        query, values = answered(test, case, span)
        if not values:
            continue
        before, reference = answered(test, case, references[min(i, len(references) - 1)]) if references else ("", None)
        finding = detect(test, case, values, reference, accused)
        result.fired = bool(result.fired)
        result.covered |= {name.partition("/")[0] for name in values} if test.label != "device" else set()
        words = {"window": span_words(span), **heartbeat.words(case)}
        text, numbers = statement(test, finding, words), told(compared(test, case, values, finding), finding)
        if reference and "{before" in (test.says if finding.fired else test.clean):
            # What is said of both windows has to come back from one query.
            query = f'{query} or label_replace({before}, "window", "{test.against}", "", "")'
            numbers |= {f"{name}/{test.against}": v for name, v in told(reference, Finding(False)).items()}
        if finding.fired:
            explained += span.seconds
            named = set(finding.hosts)
            who = {n.partition("/")[0] for n in named} if test.label != "device" else set()
            result.hosts |= who
            result.devices |= named if test.label == "device" else set()
            result.gpus |= named if test.label == "gpu" else set()
            if result.spans is not None:
                result.spans.add(i)
                result.hosts_by_span[i] = who
            begin = slide_start(case, symptoms, i) if test.window == "slow" else _since(test, case, named, span)
            result.time = begin if result.time is None else min(result.time, begin)
            result.evidence.append(book.add("metric", query, text, numbers))
        elif test.clean:
            result.evidence.append(book.add("metric", query, text, numbers))
    if result.fired is False and not case.covers([(s.start, s.end) for s in spans], _COVERED):
        # Nothing was found in the part that was recorded: that says nothing about the rest.
        return TestResult(test, None, missing=[f"samples of the whole {test.window} window"])
    if result.fired is None:  # they are in the database, but not for these hosts at this time
        result.missing = [f"{m} of the job's hosts in the {test.window} window" for m in test.metrics]
    else:
        # Several slow phases may have several causes; one that explains a sliver of the slow time explains nothing.
        result.fired = explained > _LEAST_SHARE * sum(s.seconds for s in spans if s.seconds >= shortest)
    return result


def _since(test: Test, case: Case, named: set[str], span: Span) -> float:
    """When it began inside a window: where a counter of a few accused tells, its first rise; else with the window."""
    hosts = sorted({n.partition("/")[0] for n in named})
    if test.window == "steady" and case.timeline is not None:  # bad all along: since the first step, if not later
        span = Span(float(case.timeline.ends[0] - case.timeline.seconds[0]), span.end)
    counters = [m for m in test.metrics if m.endswith("_total")]
    if case.telemetry is None or len(counters) != 1 or len(test.metrics) != 1 or not 0 < len(hosts) <= _FEW_ACCUSED:
        return span.start
    rises = [
        float(times[1:][np.diff(values) > 0][0])
        for host in hosts
        for _, times, values in case.telemetry.raw(f"{counters[0]}{{host={json.dumps(host)}}}", span.start, span.end)
        if (np.diff(values) > 0).any()
    ]
    return min(rises, default=span.start)
