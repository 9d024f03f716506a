"""A log line that is a record, in JSON or as key=value: what was said in it, how serious it is, who said it and where.

Programs write their own fields; collectors (fluentd, Docker, journald, a cloud's logging) wrap each line with where
they took it from. Both are the same here: a field's last name tells what it is, however deep it stands.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

# A collector may put its time and its tag before the record.
_BEGINS = re.compile(r'^[\d\s:.,TZ+-]{0,60}(?:[\w*-]+(?:\.[\w*-]+)+:? ?)?(?=\{ ?")')
_PAIR = re.compile(r'(?:^|(?<=[\s,;\[({]))([A-Za-z_][\w.]{0,40})=("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,;\])}]*)')
_ALL_PAIRS = re.compile(r'^(?:[A-Za-z_][\w.]{0,40}=(?:"(?:[^"\\]|\\.)*"|\S*)(?:\s+|$)){3,}$')
_LEADING = re.compile(r'^\{((?:[A-Za-z_][\w.]{0,40}="[^"]{0,200}"[, ]*)+)\} ')  # Loki's labels
_TRAILING = re.compile(r"(?:\s+[A-Za-z_][\w.]{0,40}=(?:\"[^\"]*\"|'[^']*'|\S+)){2,}\s*$")
_OWN = ("msg", "message")
_TOLD = ("detail", "details", "reason", "description", "desc", "text", "error", "err", "cause", "what", "why", "event")
_LEVELLED = _TOLD  # without an error's level it may be a sample of the data
_WRAPPED = ("log", "textpayload", "@message", "line", "body")  # the line a collector took over, as it was
_RAISED = (
    "exc_info", "exception", "stack_trace", "traceback", "exc", "stack", "stacktrace", "err", "error", "detail", "reason",  # noqa: E501
    "body", "cause",
)  # fmt: skip
_LEVELS = ("level", "lvl", "severity", "sev", "levelname", "log_level", "loglevel")
_BAD = frozenset({"error", "fatal", "critical", "err", "crit", "panic", "emergency", "alert"})
_RANKS = ("rank", "global_rank", "world_rank", "process_index", "proc_rank", "rank_id", "process_id", "worker_rank")
_HOSTS = ("host", "hostname", "node_name", "nodename", "node", "_hostname", "machine", "server", "instance")
_PODS = ("pod_name", "pod", "k8s_pod_name", "podname")
_INDEX = ("job-completion-index", "pod-index", "replica-index", "completion_index", "pod_index")
_COLLECTED = frozenset(
    {"stream", "kubernetes", "pod_name", "container_name", "resource", "attrs", "@timestamp", "docker"}
)
_PROGRAMS = ("syslog_identifier", "container_name", "program", "ident", "tag", "logger", "_systemd_unit", "unit")
_EVENTS = ("event", "evt", "status", "state", "outcome", "result", "verdict", "action", "kind", "type", "check")
_ENDS = re.compile(
    r"(?i)\b(?:abort|fault|halt|fatal|fail|error|panic|crash|died|dead|violat|refus|leave|exit|stop|quit)\w*$"
)
_IDENTITY = frozenset({
    "ts", "t", "time", "timestamp", "rank", "local_rank", "global_rank", "host", "hostname", "node", "pid", "tid", "ip",
    "job", "run", "level", "lvl", "sev", "severity", "ch", "file", "lineno",
})  # fmt: skip
_RANKED = re.compile(r"(?i)rank[-_. ]?(\d{1,6})\b")
# Fields whose last name alone says too little.
_NESTED = {
    "host.name": "hostname", "node.name": "node_name", "pod.name": "pod_name", "log.level": "level",
    "container.name": "container_name", "host.hostname": "hostname",
}  # fmt: skip
_NUMBERED = re.compile(r"-(\d{1,5})$")
_MOST = 64  # fields
_LONGEST = 2000  # characters


@dataclass(frozen=True)
class Record:
    """What a record says."""

    said: str
    level: str
    rank: int | None
    host: str
    pod: str
    outer: bool = False  # its rank is the number of a pod, which may be a whole node


def read_record(text: str) -> Record | None:
    """The record that a line is; None for lines that are none, or that say nothing."""
    begins = _BEGINS.match(text)
    if begins is None or not text.rstrip().endswith("}"):
        return None
    try:
        held = json.loads(text[begins.end() :])
    except ValueError:
        return None
    if not isinstance(held, dict):
        return None
    fields = _flat(held)
    level = next((str(fields[k]) for k in _LEVELS if isinstance(fields.get(k), str)), "")
    if fields.get("stream") == "stderr" and level.lower() not in _BAD:
        level = ""  # a collector's word: what comes that way it calls information
    said = _said(fields, level, held)
    if said is None:
        return None
    return _record(said, fields)


def read_pairs(text: str) -> Record | None:
    """The record that a line of key=value is; or who and where, of a sentence that such fields follow or lead."""
    if len(text) > _LONGEST:
        return None
    if match := _LEADING.match(text):
        return _record(text[match.end() :], _pairs(match[1].replace(",", " ")))
    if _ALL_PAIRS.match(text):
        fields = _pairs(text)
        said = next((fields[k] for k in (*_OWN, *_TOLD) if " " in fields.get(k, "")), None)
        if said is not None or _is_bad(fields):
            return _record(said or _rest(fields), fields)
    if (match := _TRAILING.search(text)) and (told := _record(text, _pairs(match[0]))) and told.rank is not None:
        return told
    return None


def _pairs(text: str) -> dict[str, Any]:
    return {m[1].lower(): m[2].strip("\"'").replace('\\"', '"') for m in _PAIR.finditer(text)}


def _record(said: str, fields: dict[str, Any]) -> Record:
    """Who says it, where and how seriously."""
    level = next((str(fields[k]) for k in _LEVELS if isinstance(fields.get(k), str)), "")
    level = level or ("error" if _is_bad(fields) else "")
    pod = next((str(fields[k]) for k in _PODS if isinstance(fields.get(k), str)), "")
    rank, outer = _number(fields, _RANKS), False
    if rank is None:
        index = _number(fields, _INDEX)
        match = _NUMBERED.search(pod)
        named = next(
            (m for k in _PROGRAMS if isinstance(fields.get(k), str) and (m := _RANKED.search(fields[k]))), None
        )
        rank = int(named[1]) if named else index if index is not None else int(match[1]) if match else None
        outer = rank is not None and named is None
    host = next((str(fields[k]) for k in _HOSTS if isinstance(fields.get(k), str) and fields[k]), "")
    return Record(said, level, rank, host or pod, pod, outer)


def _is_bad(fields: dict[str, Any]) -> bool:
    """Whether a record without a level calls itself the end of something."""
    return fields.get("fatal") in (True, "true", "1") or any(
        _ENDS.search(str(fields[k])) for k in _EVENTS if k in fields
    )


def _rest(fields: dict[str, Any]) -> str:
    """What a record says that has no field for it: all of its words that do not tell who, where and when."""
    return ", ".join(f"{k} {v}".replace("_", " ") for k, v in fields.items() if k not in _IDENTITY and k != "fatal")


def _flat(held: dict[str, Any]) -> dict[str, Any]:
    """Fields by their last name in small letters; those outside stand before those inside."""
    found: dict[str, Any] = {}
    level = [("", held)]
    while level and len(found) < _MOST:
        inside = []
        for path, each in level:
            for key, value in each.items():
                name = f"{path}.{key.lower()}".strip(".")
                if isinstance(value, dict):
                    inside.append((name, value))
                else:
                    found.setdefault(
                        _NESTED.get(".".join(name.split(".")[-2:]), name.rpartition(".")[2].rpartition("/")[2]), value
                    )
        level = inside
    return found


def _said(fields: dict[str, Any], level: str, held: dict[str, Any]) -> str | None:
    keys = [*_OWN, *_LEVELLED] if level.lower() in _BAD else list(_OWN) if level or "_hostname" in fields else []
    # Who says that a line is a rank's took it over from there.
    collected = bool(_COLLECTED & held.keys()) or (not level and _number(fields, _RANKS) is not None)
    keys += _WRAPPED if collected else ()
    keys += _OWN if collected and not level else ()
    said = next((fields[k] for k in keys if isinstance(fields.get(k), str)), None)
    if said is None:
        return _rest(fields) if _is_bad(fields) else None
    raised = next((fields[k] for k in _RAISED if isinstance(fields.get(k), str) and fields[k]), "")
    said, cause = _one_line(said), _one_line(raised)
    return f"{said}: {cause}" if cause and cause not in said else said


def _one_line(text: str) -> str:
    """Of a traceback within one record its last line, which says what was raised; else all of it as it stands."""
    text = text.rstrip("\n")
    if "Traceback (most recent call last)" not in text or "\n" not in text:
        return text
    told = [line for line in text.split("\n") if line.strip() and not line.startswith((" ", "\t"))]
    return told[-1]


def _number(fields: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        told = fields.get(name)
        if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1_000_000:
            return told
        if isinstance(told, str) and told.isdigit() and len(told) <= 6:
            return int(told)
    return None
