"""The questions of playbooks to the recording: their texts, their answers, and which can be answered beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from string import Template

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.playbook import Playbook, Test
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.telemetry.client import Question, host_of

SHORTEST_WINDOW_S = 3.0
_TAIL_S = 150.0  # the last part of a window: longer than a clock may be wrong


def answer_ahead(called: list[Playbook], case: Case, symptoms: Symptoms) -> list[Playbook]:
    """The playbooks, once all that they ask in any case was asked: side by side, and of each metric together."""
    if case.telemetry is not None:
        case.telemetry.ahead(q for p in called for q in _asks(p, case, symptoms))
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
        own = {k: v for k, v in values.items() if k.partition("/")[0] in trusted}
        values = own or {k: v for k, v in values.items() if k.partition("/")[0] in machines}
    return text, values
