"""What a scheduler's own tables and events say of why a job ended: it was preempted, or somebody stopped it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.tables import Table

_REASONS = re.compile(r"(?i)\s(?:reason)\s.*\bmessage\b")
_EVENT = re.compile(
    r"^\s*\S.*?\s(?:Normal|Warning)\s+(?P<reason>[A-Z]\w+)\s+(?P<rest>.*)$|^\s*(?:Normal|Warning)\s+(?P<own>[A-Z]\w+)\s+(?P<more>.*)$"
)
_PREEMPTS = re.compile(r"(?i)^(?:\w*preempted|preempt|preempting|evictedduetopreempt\w*)$")
_EVICTS = re.compile(r"(?i)^\w*evict\w*$")
_FOR_OTHERS = re.compile(r"(?i)\bpreempt|\breclaim|higher.priority|accommodate")
_SHORT = {"NF": "NODE_FAIL", "PR": "PREEMPTED", "CA": "CANCELLED", "TO": "TIMEOUT", "OOM": "OUT_OF_MEMORY"}
_NO_PODS = re.compile(r"No resources found(?: in \S+ namespace)?\.?\s*$|\s*JobState=PENDING\b")
_DEMANDS = re.compile(
    r"^\s*\{.*\}( \* \d+ \(\w+\))?: \d+\+? pending (?:tasks|actors|placement)"
)  # what Ray has no room for
_WELL = ("Running", "Completed", "Succeeded", "Terminating")
_AGAIN, _OFTEN = re.compile(r"(\d{1,6})\b"), 3  # restarts
_CONDITION = re.compile(r"^\s*-?\s*(?:reason|type): ['\"]?(?P<reason>\w+)['\"]?\s*$")
_IF = re.compile(r"(?i)\b(?:if|when|whether|not|could|may|might|can|or|early)\b")
_NOTICE = re.compile(
    r"(?i)\b(?:spot|preemptible|instance|node|vm|capacity)\b.{0,40}\b(?:interruption|reclaim\w*|preemption|termination) notice\b|\b(?:cluster|nodes?|instances?|vms?|jobs?|pods?|workloads?|slices?|runs?|trials?|machines?)\b.{0,30}\b(?:is|was|been|got|were|will be) (?:preempted|reclaimed)\b"  # noqa: E501
    r"|\binterrupted[_ ]by[_ ]no[_ ]capacity\b|^(?:\S+ ){0,3}Interrupted - |\binstances? reclaimed\b"
)
_TIME_UP = re.compile(
    r"(?i)\b(?:job|task|run|trial|step|execution|experiment|training|container|pod|workflow)\b.{0,40}\b(?:time ?out|time limit|run ?time limit|max(?:imum)? (?:run ?time|duration))\b.{0,30}\b(?:expired|exceeded|reached|hit)\b"  # noqa: E501
)
_WAITS_ITSELF = re.compile(
    r"(?i)nccl|collective|watchdog|barrier|rendezvous|store\b|connect|heartbeat|socket|http|lock|grace"
)
_PERSON = re.compile(
    r"(?i)\buser (?:has |had )?(?:requested|asked|stopped|cancell?ed|terminated|killed|aborted)\b"
    r"|\b(?:stopped|cancell?ed|terminated|killed|aborted|deleted|stop requested) by (?:the |a |its )?(?:user|owner|submitter|admin\w*)\b"  # noqa: E501
    r"|\b(?:stopped|deleted|aborted|removed|cancell?ed|killed) (?:at (?:the )?request of|via \w*rm\b)|\(by user \w+\)|\bintentionally stopped\b"  # noqa: E501
    r"|\b(?:stop|cancel|kill)\w* (?:request|command) (?:received )?from (?:the )?(?:user|owner|submitter)\b"
)


def states(found: Iterable[Table], known: Mapping[str, str]) -> Iterator[Shown]:
    """Slurm's states of jobs in a table of them; `known` has the failure class of each."""
    for table in found:
        column = next((c for c in ("state", "st") if c in table.columns), None)
        if column is None or not table.columns[0].startswith("jobid"):
            continue
        for row in table.rows:
            state = row.cells[column].rstrip("+")
            if (signature := known.get(_SHORT.get(state, state))) is not None:
                yield signature, row.line, row.text.strip()
            elif state in ("PD", "PENDING"):
                yield "pod-not-started", row.line, f"the scheduler has not started it: {row.text.strip()}"


def not_placed(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """Pods that are not running by the table of them, and what a scheduler warns of."""
    for table in found:
        if {"name", "ready", "status"} <= set(table.columns):
            for row in table.rows:
                again = _AGAIN.match(row.cells.get("restarts", ""))
                if row.cells["status"] not in _WELL:
                    yield "pod-not-started", row.line, row.text.strip()
                elif again and int(again[1]) >= _OFTEN:
                    yield "crash-loop", row.line, row.text.strip()
    for at, line in enumerate(lines):
        if _NO_PODS.match(line) or _DEMANDS.match(line):
            yield "pod-not-started", at, line.strip()
        if (event := _EVENT.match(line)) and re.search(r"\bWarning\b", line[: event.end()]) and len(line) < 600:
            yield "pod-not-started", at, line.strip()


def ended_by_schedulers(lines: Sequence[str]) -> Iterator[Shown]:
    """Events whose reason is preemption, in a table or in an object's conditions; a person's request in words."""
    for at, line in enumerate(lines):
        if len(line) > 600:
            continue
        event = _EVENT.match(line)
        if event is not None:
            reason, rest = event["reason"] or event["own"], event["rest"] or event["more"] or ""
            if _PREEMPTS.match(reason) or (_EVICTS.match(reason) and _FOR_OTHERS.search(rest)):
                yield "preempted", at, line.strip()
        elif (told := _CONDITION.match(line)) and _PREEMPTS.match(told["reason"]):
            yield "preempted", at, line.strip()
        if _NOTICE.search(line) and not _IF.search(line):
            yield "preempted", at, line.strip()
        if _TIME_UP.search(line) and not _IF.search(line) and not _WAITS_ITSELF.search(line):
            yield "walltime", at, line.strip()
        if _PERSON.search(line) and not _IF.search(line):
            yield "cancelled", at, line.strip()
