"""One log line taken apart: whose it is, when it was written, how serious it calls itself, what of it is payload."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackwalker.job.payload import payload_start
from trackwalker.logs.formats import dialect as d
from trackwalker.logs.formats.records import read_pairs, read_record

# Every escape sequence, whole: nothing of it may reach a terminal or stand between two letters of a pattern.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f]"  # noqa: E501
)
# srun's label; torchrun's [default3]: and [rank3]:; Horovod's [3]<stderr>:; mpirun's [1,3]<stderr>:, SageMaker's of it
_LABELS = (
    d.TASK_LABEL,
    re.compile(r"^\[(?:rank|default|worker)[ _-]?(\d+)\]:? ?"),
    re.compile(r"^\[(?:\d+,)?(?:mpirank:)?(\d+)(?:,(?P<host>[\w.-]+))?\]<std(?:err|out|diag)>:?(?: (?! ))?"),
    re.compile(r"^(?:rank|Rank|worker)[ _-]?(\d+)(?:\[\d+\])?\s?[:|] "),
    re.compile(r"^[\w.-]{1,40}?(?:[-_.@]rank[-_]?|@)(\d{1,6})(?:\.service)?\[\d+\]: "),  # a unit of a journal
)
_INNER_RANK = re.compile(
    r"\[?(?<!node )(?<!node_)\b(?:PG \S+ )?(?:global_|world_)?[Rr]ank(?:[ :=]|: | = ){0,1}(\d+)\b\]?"
)
# A line's own word on who wrote it: a field before all that it says, alone or in its bracketed head.
_OWN_RANK = re.compile(r"^(?:\[[^\]\n]{0,80}?\b)?(?:global_|world_)?rank[=:](\d{1,6})\b(?=[\s\],|])")
# Who wrote it, where that stands before the text: syslog's host, NCCL's host:pid:tid, Ray's address, a named host.
_SYSLOG = re.compile(
    r"^(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.\d+)? "  # noqa: E501
    r"(?P<host>[\w.-]+) (?=[\w./@-]+(?:\[\d+\])?: )"
)
_ISO_HOST = re.compile(r"^(?P<host>(?=[\w.-]*[a-z])[\w.-]{2,64}) (?=(?:kernel|[\w./@-]+\[\d+\]): )")
_PROGRAM = re.compile(
    r"^(?:torchrun|python[\d.]*|mpirun|srun|deepspeed|accelerate|bash)\[\d+\]: "
)  # of a job's journal
_DAEMON = re.compile(r"^([\w.@/-]+\[\d+\]): ")  # the process that wrote it, as journals label it
_LEVEL = re.compile(r"^\[?(?:ERROR|FATAL|CRITICAL|WARNING|INFO)\b")
# Horovod's time before its label, as ctime writes it.
_CTIME = re.compile(
    r"^\w{3} (?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) \d{4}(?=\[| )"  # noqa: E501
)
_DMESG = re.compile(r"^(?:<\d+>)?\[ *(?P<up>\d{1,9}\.\d{6})\] ")
_DMESG_T = re.compile(
    r"^\[\w{3} (?P<month>\w{3}) +(?P<day>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.\d+)? \d{4}\] "
)
_NCCL_HOST = re.compile(r"^(?P<host>(?=[\w.-]*[A-Za-z])[\w.-]{2,64}):\d{1,8}:\d{1,8} \[\d+\] ")
_RAY_HOST = re.compile(r"^\((?:[\w.:]+ )?(?P<actor>pid=\d+(?:, ip=(?P<host>[^)\s]+))?)\)")
# kubectl logs --prefix; an indexed pod's number is its rank, a random ending is none
_POD = re.compile(r"^\[pod/(?P<pod>[a-z0-9][\w.-]*?(?:-(?P<index>\d{1,5}))?)/[\w.-]+\] ")
_BRACKET_HOST = re.compile(r"^\[(?P<host>(?=[\w.-]*[\d-])[a-z][\w.-]{1,63}):(?P<rank>\d{1,6})\]:? ?")
_UCX_HOST = re.compile(r"^\[\d{9,10}\.\d{6}\] \[(?P<host>(?=[\w.-]*[A-Za-z])[\w.-]{2,64}):\d{1,8}:\d{1,4}\] ")
_PREFIX_HOST = re.compile(r"^(?P<host>(?=[\w.-]*\d)[a-z][a-z0-9.-]{1,63}): (?=\S)")
_COLUMN_HOST = re.compile(r"^(?P<host>(?=[\w.-]*\d)[a-z][a-z0-9.]*-[a-z0-9.-]{1,63}) +\| (?=\S)")  # gcloud ssh, compose
_FIELDS = 600  # characters in which a line of fields shows that it is one
_A_PROCESS = 1000  # and above: a process's number rather than a rank's
_LOCAL = "[default"  # torchrun's label holds the rank within its node
NAMED_HOST = re.compile(r"(?i)\b(?:host(?:name)?|node(?:name)?)[ =:]{1,2}['\"]?((?=[\w.-]*\d)[a-z][\w.-]{1,63})")
_SERIOUS = ("ERROR", "CRITICAL", "FATAL")
_MONTHS = {
    m: i for i, m in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}
_STAMP = re.compile(
    r"^\[?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:Z|[+-]\d\d:?\d\d)?\]?:?(?:\s+|$)(?:\[?std(?:out|err)\]?[:\s]+)?"  # noqa: E501
)
_GLOG = re.compile(r"^([IWEF])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d+))?\s+\d+ [\w.+/-]+:\d+\] ?")
# What a record says that shows by itself how serious it is: another label, a part of a traceback, an exception.
_SPEAKS_ITSELF = re.compile(
    r"[\s\[]|Traceback |(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Fault|Interrupt)\b(?::|$)|[IWEF]\d{4} "
)
_INFORMS = re.compile(
    r"^\S{0,40}\s?NCCL INFO|NCCL INFO|^\[?(?:INFO|DEBUG|TRACE)\b|^\S+ (?:INFO|DEBUG) |[\s\[|:(-](?:INFO|DEBUG)[\s\]|:)]",  # noqa: E501
    re.ASCII,
)
_INFORMING = ("INFO", "DEBUG", "TRACE")
# A row of cells between tabs: where in the code, how serious, then what is said.
_CELLS = re.compile(r"^\s?(?:[\w.:/-]{1,80}\t+)?(?P<level>INFO|DEBUG|WARNING|WARN|ERROR|CRITICAL|FATAL)\t+")
_CODE_ABOVE = re.compile(rb'File "[^"]+", line \d+')
_PROMPT = (
    r"(?:\(\w+\) )?(?:(?:\[[^\]\n$]{1,60}\]|[\w@.:~/-]{1,60}) ?)?\$ (?=[a-z./])"  # what somebody typed is no output
)
PROMPTS = re.compile(f"(?m)^(?:{_PROMPT}|==> .+ <==$)".encode())  # or which file `tail` shows next
_NOT_OUTPUT = re.compile(
    rf"^(?:{_PROMPT}"
    r"|Config param |\+{1,3} |PASSTHROUGH_ARGS=|[A-Z][A-Z0-9_]+=|diff --git |@@ |Launching training subprocess)"
)
# What only the launcher says: its stages and checks come before training, so a rank that prints them later forges them.
LAUNCHERS = re.compile(
    r"^(?:FATAL: \S+ \| \[CHECK_|== [\w ]{1,40} (?:BEGIN|END|TIMEOUT|FAILED)\b|FATAL: [\w ]{1,40}: no word from|NODE_LOST host=|FIRST_FAILURE rank=|=+ JOB SUMMARY)"  # noqa: E501
)

_HEADS = re.compile(r"^(?:FATAL: [\w ]{1,40}: no word from|NODE_LOST host=|FIRST_FAILURE rank=|=+ JOB SUMMARY)")


@dataclass(frozen=True)
class Body:
    """A line without label, time and escapes."""

    text: str
    rank: int | None
    clock: float | None  # seconds within its year or its era; only differences within one log mean something
    informs: bool
    payload_from: int | None
    task: int | None = None  # by the launcher's own label or file; a rank that the line names may be one of many in it
    host: str = ""  # who wrote it, where that stands before the text
    named: str = ""  # the host that its text names
    label: str = ""  # a word before the text that has the form of a host; the other lines tell whether it is one
    actor: str = ""  # Ray's label: the process, and its address where it is another machine's; kubectl's: the pod
    local: int | None = None  # the rank within its node, where that is all a label tells
    outer: bool = False  # its rank is the number of a task or a pod, which may be a whole node
    labelled: bool = False  # a label or a record tells its rank, not its words
    below: bool = False  # the label that tells its rank stands right below that of a task or a pod

    @property
    def speaks_for_the_launcher(self) -> bool:
        """Whether a rank prints what only the launcher may say.

        srun labels also what a node's script says of its stages and checks; what the head says has no label, and what
        torchrun or Ray label is a rank's.
        """
        if LAUNCHERS.match(self.text) is None:
            return False
        foreign = self.actor or (self.rank is not None and self.task is None and not _INNER_RANK.search(self.text))
        return bool(foreign) or (self.task is not None and _HEADS.match(self.text) is not None)

    def in_payload(self, at: int) -> bool:
        """Whether a place lies behind a payload key."""
        return self.payload_from is not None and at >= self.payload_from


def holds(text: str, words: tuple[str, ...]) -> bool:
    """Whether one of these words may stand in a text, in any case of letters: an expression takes ten times as long."""
    lower = text.lower()
    return any(word in lower for word in words) or not text.isascii()  # other letters have cases of their own


def clean(raw: bytes) -> str:
    """The text of a raw line without escapes and control characters."""
    text = raw.decode("utf-8", "replace")
    if "\r" in text.rstrip("\r"):  # a progress bar redraws its line: the last drawing counts
        text = text.rstrip("\r").rpartition("\r")[2]
    return _ESCAPES.sub("", text.rstrip("\r"))


def parse(raw: bytes, above: bytes = b"", rank: int | None = None) -> Body | None:
    """Take a line apart; None when it is not output but source code, configuration or an echoed command."""
    text = clean(raw)
    clock, task, host, prefix, actor, local, outer, below = None, rank, "", "", "", None, False, False
    for _ in range(4):  # label, time and actor prefix come in any order
        before = text
        if match := _RAY_HOST.match(text):
            host, actor = host or match["host"] or "", match["actor"]
        for form in (_SYSLOG, _DMESG_T, _CTIME):
            if match := form.match(text):
                clock = clock or _seconds(
                    str(_MONTHS.get(match["month"], 0)), match["day"], match["h"], match["m"], match["s"], None
                )
                host = host or match.groupdict().get("host", "")
                text = _PROGRAM.sub("", text[match.end() :])
                if host and not actor and (match := _DAEMON.match(text)):
                    actor, rest = f"{host} {match[1]}", text[match.end() :]
                    text = rest if any(label.match(rest) for label in _LABELS[1:]) else text
        if match := _DMESG.match(text):
            text = text[match.end() :]
        if match := _POD.match(text):
            host, actor, text = host or match["pod"], match["pod"], text[match.end() :]
            rank, outer = (int(match["index"]), True) if rank is None and match["index"] else (rank, outer)
        if match := _COLUMN_HOST.match(text):
            host, actor, text = host or match["host"], match["host"], text[match.end() :]
        if match := _BRACKET_HOST.match(text):  # Open MPI's own lines have the number of the process there
            number = int(match["rank"])
            rank, local = (number, number) if rank is None and number < _A_PROCESS else (rank, local)
            host, text = host or match["host"], text[match.end() :]
        elif not prefix and not host and (match := _PREFIX_HOST.match(text)):
            prefix = match["host"]
            rest = text[match.end() :]
            if any(
                form.match(rest) for form in (*_LABELS[1:], _STAMP, _GLOG, _LEVEL)
            ):  # else it may be a device's name
                text = rest
        for label in _LABELS:
            if match := label.match(text):
                rank = int(match[1][:9])
                host = host or match.groupdict().get("host") or ""
                below = outer and label is not d.TASK_LABEL
                task, outer = (rank, True) if label is d.TASK_LABEL else (task, False)
                local = rank if match[0].startswith(_LOCAL) else None
                text = text[match.end() :]
                break
        text = d.RAY_LABEL.sub("", text)
        if match := _STAMP.match(text):
            clock = clock or _seconds(match[2], match[3], match[4], match[5], match[6], match[7])
            text = text[match.end() :]
            if match := _ISO_HOST.match(text):  # journalctl -o short-iso, rsyslog's own form
                host, text = host or match["host"], _PROGRAM.sub("", text[match.end() :])
                if not actor and (match := _DAEMON.match(text)):
                    actor = f"{host} {match[1]}"
        record = read_record(text) if '{"' in text[:200] else read_pairs(text) if "=" in text[:_FIELDS] else None
        if record is not None and record.said != text:
            if record.rank is not None and (rank is None or (outer and actor and not record.outer)):
                rank, outer = record.rank, record.outer
            host, actor = host or record.host, actor or record.pod
            said = record.said
            text = said if not record.level or _SPEAKS_ITSELF.match(said) else f"{record.level.upper()} {said}"
            if LAUNCHERS.match(said):
                return None  # no launcher writes records
        elif record is not None and rank is None:  # fields behind a sentence
            rank, host = record.rank, host or record.host
        if match := _CELLS.match(text):
            said = text[match.end() :]
            text = said if _SPEAKS_ITSELF.match(said) and match["level"] in _SERIOUS else f"{match['level']} {said}"
        if text == before:
            break
    informs = False
    if match := _GLOG.match(text):
        clock = clock or _seconds(match[2], match[3], match[4], match[5], match[6], match[7])
        informs = match[1] == "I"
    if _NOT_OUTPUT.match(text):
        return None
    if text.startswith("    ") and _CODE_ABOVE.search(above):
        return None  # the source line that a traceback quotes
    head = text[:160]
    informs = informs or (any(w in head for w in _INFORMING) and _INFORMS.search(head) is not None)
    # Labels of a pod, or of a place on a node, count something else than ranks.
    if (rank is None or local is not None or (outer and actor)) and (match := _OWN_RANK.match(text)):
        rank, local, outer, below = int(match[1]), None, False, False
    labelled = rank is not None
    if rank is None and (match := _INNER_RANK.search(head)):
        rank = int(match[1][:9])
    payload = payload_start(text)
    if not host and (match := _NCCL_HOST.match(text) or _UCX_HOST.match(text)):
        host = match["host"]
    near = 300 if payload is None else min(payload, 300)
    about = NAMED_HOST.search(text, 0, near) if holds(text[:near], ("host", "node")) else None
    named = about[1] if about else ""
    return Body(text, rank, clock, informs, payload, task, host, named, prefix, actor, local, outer, labelled, below)


def _seconds(month: str, day: str, hour: str, minute: str, second: str, fraction: str | None) -> float:
    days = int(month) * 31 + int(day)
    return days * 86400.0 + int(hour) * 3600 + int(minute) * 60 + int(second) + float(f"0.{fraction or 0}")
