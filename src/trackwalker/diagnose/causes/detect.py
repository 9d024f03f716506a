"""The questions of playbooks to the recording and their answers; the detectors that say who stands out in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from string import Template
from typing import Any

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.playbook import Playbook, Test
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts import heartbeat
from trackwalker.errors import UsageError
from trackwalker.stats import detectors
from trackwalker.stats.detectors import Finding, Values
from trackwalker.telemetry.client import Question, host_of

SHORTEST_WINDOW_S = 3.0
_TAIL_S = 150.0  # the last part of a window: longer than a clock may be wrong
_PLAIN: dict[str, Callable[..., Finding]] = {
    "minority": detectors.minority,
    "silent": detectors.silent,
    "every-at-least": partial(detectors.all_at_least, share=1.0),
    "every-at-most": partial(detectors.all_at_most, share=1.0),
    "all-at-least": detectors.all_at_least,
    "all-at-most": detectors.all_at_most,
    "most-at-least": partial(detectors.all_at_least, share=detectors.MOST),
    "any-above": detectors.any_above,
}
_AGAINST: dict[str, Callable[..., Finding]] = {  # these look at the same quantity in another window too
    "outliers": detectors.outliers,
    "lows": detectors.lows,
    "most-lower": detectors.most_lower,
    "most-lower-than-who-waits": partial(detectors.most_lower, wait=True),
    "hot": detectors.hot,
    "several-rose": detectors.several_rose,
    "most-rose": detectors.several_rose,
    "alone-rose": detectors.alone_rose,
    "any-rose": detectors.any_rose,
    "all-fell-to": detectors.all_fell_to,
    "most-fell-to": partial(detectors.all_fell_to, share=detectors.MOST),
}
_OF_ACCUSED = ("accused-like-others", "accused-above", "accused-idle", "devices-of-accused")
_OF_PEERS = ("minority", "outliers", "lows", "hot", "silent")  # who is unlike the others
DETECTORS = frozenset({*_PLAIN, *_AGAINST, "gone", *_OF_ACCUSED})
# These ask whether something holds for all; the others look for somebody, and may find nobody.
OF_ALL = frozenset(n for n in DETECTORS if n.startswith(("every-", "all-", "most-", "accused-like")))


def detect(test: Test, case: Case, values: Values, reference: Values | None, accused: list[str]) -> Finding:
    """What a test's detector finds in one number per host, GPU or device."""
    options: dict[str, Any] = dict(test.with_)
    name = test.detector or ""
    if _by_kind(test, case):
        return _within_kinds(test, case, values, reference)
    if name in _PLAIN:
        return _PLAIN[name](values, **options)
    if name in _AGAINST:
        return _AGAINST[name](values, reference=reference, **options)
    if name == "gone":
        # Whoever cannot be believed cannot be missed either: a frozen exporter's host may well be alive.
        here, expected = {h: v for h, v in values.items() if v > 0}, case.trusted
        if not set(expected) <= here.keys():  # nor can who never answered: only silence after words is an end
            spoke = _ever_told(test, case)
            expected = [h for h in expected if h in spoke]
        return detectors.missing(here, expected=expected)
    if name == "accused-like-others":
        control = heartbeat.control(case)
        finding = detectors.equivalent(values, group=[h for _, h in heartbeat.accused(case)], **options)
        beside = {"control_value": values[control[1]]} if control is not None and control[1] in values else {}
        return Finding(finding.fired, finding.hosts, {**finding.numbers, **beside})
    if name == "accused-above":  # all that were declared dead, whoever else is
        few, dead = detectors.minority(values, **options), {h for _, h in heartbeat.accused(case)}
        fired = bool(dead) and all(values.get(h, 0.0) > options["limit"] for h in dead)
        return Finding(fired, few.hosts, {"value": few.numbers["max"], **few.numbers})
    if name == "accused-idle":  # against themselves before, or where there is no before against the others
        mine = {k: v for k, v in values.items() if k in accused or k.partition("/")[0] in accused}
        named = {k: v for k, v in mine.items() if k in accused} or mine
        others = sorted(v for k, v in values.items() if k not in mine)
        usual = reference or (dict.fromkeys(named, others[len(others) // 2]) if others else {})
        idle = bool(named) and all(k in usual and v <= options["ratio"] * usual[k] for k, v in named.items())
        return Finding(idle, tuple(sorted(named)) if idle else (), {"value": max(named.values(), default=0.0)})
    if name == "devices-of-accused":
        mine = {k: v for k, v in values.items() if k.split("/")[0] in accused}
        worst = tuple(sorted(k for k, v in mine.items() if v > 0.2 * max(mine.values(), default=0.0) and v > 0))
        return Finding(bool(worst), worst, {"value": max(mine.values(), default=0.0)})
    raise UsageError(f"test '{test.id}' names the unknown detector '{test.detector}'")


def _by_kind(test: Test, case: Case) -> bool:
    return test.detector in _OF_PEERS and bool(case.kinds) and all("gpu" in m for m in test.metrics)


def compared(test: Test, case: Case, values: dict[str, float], finding: Finding) -> dict[str, float]:
    """The values that a sentence about somebody speaks of: cards of another kind are not among `the others`."""
    kinds = {case.kinds.get(h.partition("/")[0]) for h in finding.hosts} if _by_kind(test, case) else set()
    return {k: v for k, v in values.items() if not kinds or case.kinds.get(k.partition("/")[0]) in kinds}


def _within_kinds(test: Test, case: Case, values: Values, reference: Values | None) -> Finding:
    """Of each kind of cards by itself: those of another kind are no peers. The clearest says it in numbers."""
    detector = (_PLAIN | _AGAINST)[test.detector or ""]
    found = []
    for kind in sorted({case.kinds.get(k.partition("/")[0], "") for k in values}):
        mine = {k: v for k, v in values.items() if case.kinds.get(k.partition("/")[0], "") == kind}
        alike = {} if test.detector in _PLAIN else {"reference": reference}
        found.append(detector(mine, **dict(test.with_), **alike))
    fired = [f for f in found if f.fired]
    first = max(fired or found, key=lambda f: len(f.hosts), default=Finding(False))
    return Finding(bool(fired), tuple(sorted({h for f in fired for h in f.hosts})), first.numbers)


def _ever_told(test: Test, case: Case) -> set[str]:
    """The hosts that reported a test's metric at any time of the recording."""
    if case.telemetry is None:
        return set()
    begin, end = case.telemetry.range()
    query = f"count by (host) (count_over_time({test.metrics[0]}[{max(1, round(end - begin))}s] @ {end:.3f}))"
    return set(case.telemetry.by_host(query, end))


def answer_ahead(
    called: list[Playbook], case: Case, symptoms: Symptoms, beside: Iterable[list[Question]]
) -> list[Playbook]:
    """The playbooks, once all that they and others ask in any case was asked: side by side, of each metric together."""
    if case.telemetry is not None:
        case.telemetry.ahead(chain(beside, (q for p in called for q in _asks(p, case, symptoms))))
    return called


def _asks(playbook: Playbook, case: Case, symptoms: Symptoms) -> Iterator[list[Question]]:
    """What an examination asks of the recording whatever it finds: a question, and the same of the time before."""
    screened = bool(playbook.screen) and not set(playbook.symptoms) & symptoms.names
    known = case.telemetry.metrics() if case.telemetry is not None else frozenset()
    for test in playbook.screen if screened else playbook.tests:
        if test.query is None or test.when is not None or test.unless or not known.issuperset(test.metrics):
            continue
        spans, references = windows_of(test, symptoms)
        for i, span in enumerate(spans):
            if span.seconds >= SHORTEST_WINDOW_S:
                both = [span, references[min(i, len(references) - 1)]] if references else [span]
                yield [(_text(test, case, each), each.end) for each in both]


def windows_of(test: Test, symptoms: Symptoms) -> tuple[list[Span], list[Span]]:
    """The stretches of time that a test looks at, and those that it compares them with."""
    return symptoms.windows.get(test.window, []), symptoms.windows.get(test.against, []) if test.against else []


def _text(test: Test, case: Case, span: Span) -> str:
    """The PromQL with its window and moment written in, so that anyone can run it again."""
    window = f"{max(1, round(span.seconds))}s"
    tail = f"{max(1, round(min(_TAIL_S, 0.5 * span.seconds)))}s"
    begin, end = f"{span.start:.3f}", f"{span.end:.3f}"
    plain = Template(test.query or "").substitute(window=window, tail=tail, start=begin, end=end)
    return case.topology.by_owner(plain)


def answered(test: Test, case: Case, span: Span) -> tuple[str, dict[str, float]]:
    """The question and its answer."""
    text = _text(test, case, span)
    if case.telemetry is None:
        return text, {}
    if test.label == "host":
        values = case.telemetry.by_host(text, span.end)
    else:
        values = {}
        for sample in case.telemetry.instant(text, span.end):
            part = sample.labels.get(test.label) or sample.labels.get("GpuIndex", "")
            values[f"{host_of(sample.labels) or ''}/{part}"] = sample.value
    values = {k: v for k, v in values.items() if v == v}
    if case.hosts:  # only the job's hosts are compared; what nobody but their machine tells is the machine's
        trusted, machines = frozenset(case.trusted), case.topology.machines
        if test.label == "host" and values.keys() <= trusted:
            return text, values
        own = {k: v for k, v in values.items() if k.partition("/")[0] in trusted}
        values = own or {k: v for k, v in values.items() if k.partition("/")[0] in machines}
    return text, values
