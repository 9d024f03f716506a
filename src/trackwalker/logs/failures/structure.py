"""What a line tells without any vocabulary of causes: that it is an error, of what sort, about what.

Levels, exception classes, errno, signals, exit codes and the grammar of failing ("cannot X the Y", "Y refused") are the
same in every program. Who wrote the line and when, `lines.py` tells; what the words may mean, `kinds.py`.
"""

from __future__ import annotations

import errno
import re
import signal as signals
from dataclasses import dataclass

from trackwalker.logs.scanning.lines import Body

# One of these stands in every line that is looked at: nothing here names a cause.
NEEDLES = tuple(
    word.encode()
    for word in (
        "error: ",
        " error ",
        "[error]",
        " error:",
        "error] ",
        "errors:",
        "error=",
        "level=error",
        '"error"',
        "[errno ",
        "errno: ",
        "error(",
        "error\n",
        "exception",
        "traceback",
        "failed ",
        " failed",
        "failure",
        "cannot ",
        " can't ",
        "could not",
        "couldn't",
        "unable to",
        "fatal: ",
        "[fatal]",
        " fatal ",
        "fatal e",
        "panic: ",
        "panicked",
        "[panic]",
        "critical",
        "aborted",
        "aborting",
        "abort: ",
        "refused",
        "refuses ",
        "rejected",
        "timed out",
        " killed",
        "terminated",
        "corrupt",
        "unreachable",
        "unavailable",
        " denied",
        "not found",
        "no such ",
        "does not exist",
        "exit code",
        "exitcode",
        "exit status",
        "exited with",
        "return code",
        "non-zero",
        "wtermsig",
        "wexitstatus",
        " signal ",
        "signal: ",
        "sigkill",
        "sigsegv",
        "sigabrt",
        "sigbus",
        "crashed",
        "core dump",
        "did not ",
        "not respond",
        "no response",
        "mismatch",
        "violat",
        "exhausted",
        "exceeded",
        "giving up",
        "gave up",
        "broken ",
        "vanished",
        "disappeared",
        "went away",
        "is lost",
        "lost contact",
        " lost ",
        "is gone",
        "is dead",
        " died ",
        "died\n",
        "disconnect",
        "deadlock",
        " stuck ",
        "overflow",
        "overrun",
        "underrun",
        "illegal ",
        "invalid ",
        "unrecover",
        "uncorrect",
        "bailing",
        "unhandled",
        "unexpected",
        "never came",
        "never arrived",
        "inconsist",
        "not permitted",
        "forbidden",
        "no longer ",
        "shut down",
        "shutting down",
        "stopped responding",
        "what():",
        "[error ",
        "[critical",
        "lvl=error",
        "severity=error",
    )
    if len(word) >= 7
)
# What follows lists what might have happened, and is no report that it did.
GUESSES = re.compile(
    r"(?i)(?:possible|potential|likely|common) (?:root )?(?:reasons?|causes?)\b"
    r"|indicates that the remote task|scheduler events"
)
_LEVEL = re.compile(
    r"^\W{0,4}(?:[\w./:,+ -]{1,60}?[\s\]|:(\[-]+)??\W{0,3}(?P<level>FATAL?|CRITICAL|CRIT|ERRO?R?|(?<=\[)[EF](?=\])|PANIC|EMERG|ALERT|SEVERE|SEVERITY=ERROR)\b"  # noqa: E501
)
_LOWER = re.compile(
    r"(?:^|[\w)\]]: |\| |^[\w.+-]{2,24} (?=error [A-Z]{1,6}-?\d))(?P<level>fatal error|fatal|error|panic)(?:\[\w+\]| [A-Z]{1,6}-?\d{1,6})?: |\"?(?:level|severity|lvl)\"?[=:] ?\"?(?P<named>error|fatal|critical|panic)\b"  # noqa: E501
    r"|^\W{0,2}(?:[A-Z][A-Z0-9_]{1,15}[-_ ]?\d{2,6}(?P<letter>[EFS])|(?P<code>[EF])[-_]?\d{3,6})\]?(?::|\s-|\s(?=[a-z]))"  # noqa: E501  # message codes
)
_GLOG = re.compile(
    r"^(?P<level>[EF])\d{4} \d\d:\d\d:\d\d|^\[\w{1,12} (?P<nemo>[EF]) \d{4}-|^\[(?P<padded>error|critical|fatal) *\]"  # NeMo's, structlog's  # noqa: E501
)
_WARNS = re.compile(
    r"^.{0,80}?\bWARN(?:ING)?\b|^\W*[Ww]arning: |^W\d{4} |^\[W\d{3,4} |\b\w+Warning:|level=\"?warn|^.{0,40}\b(?:DEBUG|TRACE)\b"  # noqa: E501
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:\.|::))?(?P<type>[A-Z]\w*(?:Error|Exception|Fault|Failure|Interrupt|Timeout|Exit|Panic|Abort|Expired))\b(?::|\s*$|\()"
    r"|^(?P<module>(?:[a-z_]\w*\.)+)(?P<other>[A-Z]\w+): \S"
    r"|^(?:Exception in thread \"[^\"]*\"|Caused by:) (?:[a-z_]\w*\.)*(?P<java>[A-Z]\w+)\b"
)
_WHAT = re.compile(
    r"^\s*what\(\):|terminate called after throwing|^thread '[^']*' panicked at|^panic: |^goroutine \d+ "
)
_ERRNO = re.compile(
    rf"\b(?P<name>{'|'.join(sorted(errno.errorcode.values()))})\b|\b[Ee]rrno[ =:]*(?P<number>\d{{1,3}})\b|\(os error (?P<os>\d{{1,3}})\)"  # noqa: E501
)
_CODE = re.compile(
    r"(?i)\b(?:exit(?:ed|s|ing)?|return(?:ed|s)?|terminated|finished|ended|died|quit)\b[\w \t'\"<>()\[\],./-]{0,60}?"
    r"(?:\b(?:code|status|value)\b\W{0,5}?|\bwith )(?P<code>-?\d{1,3})\b(?!\s+[a-z])"
    r"|\b(?:exit_?code|WEXITSTATUS|rc|retcode|exit)\b['\"]?\W{0,4}?(?P<bare>-?\d{1,3})\b"
)
_SIGNAL = re.compile(
    r"\b(?:[Ss]ignal|WTERMSIG|SIGNAL|sig)\b\W{0,4}(?:number )?(?P<number>\d{1,2})\b|\bSIG(?P<name>KILL|SEGV|ABRT|BUS|ILL|FPE|TERM|INT|HUP|PIPE)\b"  # noqa: E501
)
_FAILS = re.compile(
    r"""(?ix)
    \b(?:failed|failing|fails|failure)\s+(?:to\s+)(?P<verb>\w+)\s+(?P<a>.{0,80})
    | \b(?:cannot|can't|could\s+not|couldn't|unable\s+to|was\s+not\s+able\s+to|did\s+not|didn't|refus(?:ed|es|ing)\s+to)\s+(?P<verb2>\w+)\s*(?P<b>.{0,80})
    | (?P<c>[^.;:]{0,80}?)\b(?:has\s+|have\s+|was\s+|were\s+|is\s+|are\s+|got\s+|had\s+|been\s+)*(?:not\s+)?
      (?P<state>failed(?!\s+to\b)|refused(?!\s+to\b)|rejected|aborted|crashed|died|dead|lost|gone|killed|timed\s+out|exhausted|corrupt(?:ed)?|unreachable|unavailable
        |broken|denied|mismatch(?:ed)?|vanished|disappeared|expired|exceeded|overflow(?:ed|s)?|overrun|underrun|disconnected|deadlocked|stuck|violated|unresponsive
        |went\s+away|shut\s+down|gave\s+up|giving\s+up|not\s+(?:found|responding|permitted|available|reachable)|no\s+longer\s+\w+|unrecoverable|uncorrectable|inconsistent|unexpected(?:ly)?|never\s+(?:came|arrived|returned)|forbidden|invalid|illegal|terminated|bailing\s+out|missing|unhandled)\b
    | \b(?:no\s+such|failure\s+(?:of|in|while|during)|error\s+(?:in|while|during|from|reading|writing|at|occurred)|invalid|illegal|unexpected|no\s+response\s+from|lost\s+(?:contact|connection|touch)\s+(?:to|with)|violation\s+of)\s+(?P<d>.{0,80})
    """  # noqa: E501
)
_UNDONE = re.compile(
    r"(?i)\b(?:cannot|can't|could not|couldn't|unable to|was not able to|failed to|refus(?:ed|es|ing) to)\s+\w"
)
_ASIDE = re.compile(r"^\s*(?:={2,}|-{2,}|#+|\*{2,}|\()\s.*\b(?:stuck|hangs?|hung|silent|stalled|unresponsive)\b")
_LEAVES = re.compile(
    r"(?i)[:\]]\s*(?:exiting|shutting down|quitting|leaving|going down)"
    r"(?: (?:rank|process|worker|task|the \w+|now))*[ =#]*\d*\W*$"
)
_NOT_AN_ERROR = re.compile(
    r"""(?ix)
    \b(?:0|no|zero|without|any)\s+(?:\w+\s+)?(?:errors?|failures?|failed|exceptions?)\b | \b0\s(?:corrupt|missing|invalid|dropped|lost|rejected)\b | \b(?:errors?|failures?|failed|dropped|lost)\s*[=:]\s*(?:0\b|none|null|false|\[\])
    | \b(?:retry|retrying|will\s+retry|will\s+continue|continuing|ignor(?:ed|ing)|fall(?:ing)?\s+back|falls\s+back|recovered|succeeded|suppress\w*|harmless|skipp(?:ed|ing)\s+(?:it|this)|using\s+default|optional|resum(?:ed|ing)\s+after)\b
    | \berror[_ -]?(?:rate|bar|handling|handler|feedback|correction|if|on|log|file|count)\b | \b(?:if|when|unless|in\s+case)\b.{0,40}\b(?:fail|error)\w* | \bfail[_-]?(?:fast|over|safe)
    | \bfailure[_ -](?:policy|rate|detection|domain|mode|prob) | --[\w-]*(?:error|fail) | \bmean(?:_|\s)?(?:squared|absolute)
    """  # noqa: E501
)
# A rule of stars behind a level: what it frames is told between two of them.
_WORDLESS = re.compile(r"^[IWEF]\d{4} \S+\s+\d+ [\w.+/-]+:\d+\]\W*$")
# A row of a table, "what : how much", that tells of nothing: nvidia-smi -q counts every sort of error it knows.
_NOTHING = re.compile(r"^[^:=\n]{3,60}?\s*[:=]\s*(?:0|0x0+|N/A|No|None|Not Active|Disabled|Inactive|OK)\s*$")
# A row of counts, "RUNNING 64  FAILED 0  PREEMPTED 0".
_ROW, _NONE = re.compile(r"\W*(?:[A-Za-z_-]{3,}[ =:]+\d+\b\W*){3,}"), re.compile(r"[ =:]+0\b(?![.x])")
_OTHER = re.compile(
    r"(?i)\b(?:peer|rank|worker|process|task|member|participant|node|host|replica|shard owner)s?[ #=:]{1,2}(?P<who>\d{1,6}\b(?!\.\d)|(?=[\w.-]*\d)[a-z][\w.-]{1,60})"  # noqa: E501
)
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<|/(?:torch|jax|flax|ray|deepspeed|transformers)/"
)
_BOXED = re.compile(r"(?:[#*!]{1,4}|[|║]) \S")  # whoever draws a box means it
_SENDS = re.compile(r"(?i)\b(?:sen[dt]|sending|forward\w*|killing|handler|propagat\w*|catch\w*|ignor\w*)\b")
_ASKED = frozenset({1, 2, 15})
_SIGNALS = frozenset({4, 6, 7, 8, 9, 11, 15})
FATAL, ERROR, PHRASE, SAID = 4, 3, 2, 1


@dataclass(frozen=True)
class Told:
    """What the structure of one line says."""

    severity: int
    exception: str = ""
    errno: str = ""
    signal: int | None = None
    code: int | None = None
    verb: str = ""
    about: str = ""  # the object of the failed verb
    undone: bool = False  # it says what could not be done
    python: bool = False  # its class stands in a module of Python's
    others: tuple[str, ...] = ()  # ranks or hosts that the line is about, as it names them

    @property
    def is_end(self) -> bool:
        """It tells how a process ended, not why: nothing is said that could not be done."""
        return (self.signal is not None or self.code is not None) and not self.undone


def ending(text: str) -> tuple[int | None, int | None]:
    """The signal and the exit code that a line tells of; -9, 137 and 247 all are signal 9."""
    number: int | None = None
    if _SENDS.search(text):  # whoever sends a signal did not end by it
        return None, None
    if match := _SIGNAL.search(text):
        number = int(match["number"]) if match["number"] else int(signals.Signals[f"SIG{match['name']}"])
    code: int | None = None
    if match := _CODE.search(text):
        code = int(match["code"] or match["bare"])
        for told in (-code, code - 128, 256 - code):
            if told in _SIGNALS and number is None:
                number = told
    return number, code


def frame_of(text: str) -> tuple[str, bool] | None:
    """A traceback's frame as "file.py:12 in f", and whether it lies in a library."""
    match = _FRAME.match(text)
    if match is None:
        return None
    return f"{match['path'].rpartition('/')[2]}:{match['line']} in {match['name']}", bool(
        _LIBRARY.search(match["path"])
    )


def others_in(text: str) -> tuple[str, ...]:
    """The ranks or hosts that a line is about, as it names them."""
    return tuple(dict.fromkeys(m["who"] for m in _OTHER.finditer(text)))[:8]


def counted_none(text: str, at: int) -> bool:
    """Whether a row of counts counts none of what ends at a place."""
    return _NONE.match(text, at) is not None and _ROW.fullmatch(text) is not None


def warns(text: str) -> bool:
    """Whether a line calls itself a warning or less."""
    return _WARNS.search(text[:120]) is not None


def read(body: Body) -> Told | None:
    """The structure of a line that is an error; None for all others."""
    text = body.text if body.payload_from is None else body.text[: body.payload_from]
    if body.informs or warns(text) or _FRAME.match(text) or _NOTHING.match(text) or _WORDLESS.match(text):
        return None
    head = text[:160]
    level = _GLOG.match(head) or _LEVEL.match(head) or _LOWER.search(head)
    raised = _EXCEPTION.match(text.lstrip("| ╰─+"))
    thrown = _WHAT.search(text)
    number, code = ending(text)
    fails = _FAILS.search(text, 0, 600)
    ended = number is not None or (code is not None and code != 0)
    if not (level or raised or thrown or fails or ended):
        return None
    if fails is not None and counted_none(text, fails.end()):
        return None
    if _NOT_AN_ERROR.search(text, 0, 600) and not raised:
        return None
    if _LEAVES.search(text) and not (raised or thrown or ended):
        return None  # that it goes says nothing of why
    if _ASIDE.match(text) and not (level or raised or thrown or ended):
        return None  # what a person writes above a part of an excerpt
    if number in _ASKED and not raised:
        return None  # it was told to end, and did
    if code == 0 and number is None and not raised and not thrown:
        return None
    severity = ERROR if _BOXED.match(text) else PHRASE
    if raised or thrown:
        severity = FATAL
    elif level is not None:
        word = next(filter(None, level.groups()), "").upper()
        severity = FATAL if word[:3] in ("FAT", "PAN", "CRI", "EME") or word == "F" else ERROR
    number_or_name = ""
    if match := _ERRNO.search(text):
        number_or_name = match["name"] or match["number"] or match["os"]
    about, verb = "", ""
    if fails is not None:
        groups = fails.groupdict()
        verb = groups["verb"] or groups["verb2"] or groups["state"] or ""
        about = next((v for k in "abcd" if (v := groups[k])), "").strip(" :-[]()'\"")
    name = (raised["type"] or raised["other"] or raised["java"]) if raised else ""
    python = (
        raised is not None
        and not raised["java"]
        and "." in raised.group().partition(":")[0]
        and "::" not in raised.group()
    )
    undone = _UNDONE.search(text, 0, 600) is not None
    return Told(severity, name, number_or_name, number, code, verb, about, undone, python, others_in(text))
