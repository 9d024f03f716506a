"""What somebody who reports a run shows and says: stacks of ranks that wait, GPUs that only spin, remarks of his own.

Nobody cuts out a piece of a log, looks at stacks or writes a sentence beside it for a run that is well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from statistics import median

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.programs import BY_HAND, NO_MORE
from trackwalker.logs.excerpts.tables import Table
from trackwalker.logs.failures.structure import ERROR, NEEDLES, read, warns
from trackwalker.logs.formats.stacks import RankStack, parse
from trackwalker.logs.scanning.lines import Body

_MAIN = re.compile(r"^Thread (?P<id>\S+) \([^)]*\): \"MainThread\"")
_SAVES = re.compile(r"(?i)checkpoint|\bsave|serializ|\bckpt")
_SEVERAL = 2
_BOX = re.compile(
    r"(?P<draw>\d+)W\s*/\s*(?P<cap>\d+)W\s*\|\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*\|\s*(?P<busy>\d+)%"
)
_HELD = 0.05  # of the memory
_TYPED = re.compile(r"^(?:[\w.@-]+[:~][\w~/.-]*)?\s?\$\s")
_ASKS = re.compile(
    r"^(?:(?:[\w.@-]+[:~][\w~/.-]*)?\s?[$#]\s|\W{2,}\s*)(?:\w+; ?)*(?:sudo )?(?:ssh \S+ ['\"]?)?"
    r"(?:py-spy|gdb|nvidia-smi|rocm-smi|ps|top|iostat|mpstat|dmesg|strace|ibstat|squeue|sacct|scontrol|kubectl (?:get|describe|logs|top|events)|date|uptime|"  # noqa: E501
    r"df|du|gsutil (?:ls|du)|aws s3 ls|ping|lsof|journalctl|free|vmstat|netstat|ss)\b"
)
_A_STEP = re.compile(r"(?i)\b(?:it|iter|iters|iterations?|steps?)\b\W{0,3}\d")
_CLOCK, _FRONT = re.compile(r"(?<![\d:])([01]\d|2[0-3]):([0-5]\d):([0-5]\d(?:\.\d+)?)(?![\d:])"), 48
_FEWEST, _OFTEN, _LONG_S = 2, 20, 300.0  # spaces between steps; times the usual one; seconds
_SPINS, _LITTLE = 99, 0.45  # percent; of the limit: who computes draws more
_FILLED = re.compile(
    r"(?i)\b(?:cpu|host|system|node|virtual|ram)\b[^|]{0,40}?\b(?:mem(?:ory)?|ram|used)\b.{0,60}?(?<![\d.])(?P<much>\d{1,3}(?:\.\d+)?) ?%"  # noqa: E501
)
_FULL = 95.0  # percent of the host's memory
_A_RUN = re.compile(
    r"(?i)\b(?:it|iter|iters|iterations?|steps?|epochs?)\b\W{0,3}\d|\d+/\d+ \[|\bloss\W{1,4}\d|(?:s|sec)/(?:it|step)\b|it/s\b|MiB /|\brank ?\d"  # noqa: E501
)
_LAST_OUTPUT = re.compile(r"(?i)\blast (?:output|lines?|words?|log)\b")
_MARKS = ("#", ">", "(", "--", "==")
_REMARK = re.compile(r"^\s*(?:#+|>+|--+|==+|\(|\*+|//|\[[a-z][a-z .-]{0,20}\](?=\s+\S+ ))?\s*(?P<said>[A-Za-z0-9'`\"].*)$")
_LOGGED = re.compile(
    r"^\W{0,3}\d{4}-\d\d|^\W{0,3}\d\d:\d\d|\b(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b|\]:? |\w=\S|^[\w.@-]+[:~]\S*[$#]|\$ |%\|"  # noqa: E501
)
_SPEAKS = re.compile(  # a program, by its name or its level before what it says
    r"^(?!(?:Subject|Re|Report\w*|Notes?|Problem|Symptoms?|Summary|Observed|Context|Question)\b)(?:\S+|(?i:error|warning|fatal)\b[^:]{0,40}): "  # noqa: E501
)
_SENTENCE = re.compile(
    r"\b(?:the|a|an|is|are|was|were|it|its|this|that|there|then|and|of|in|on|at|with|for|but|we|i|they|all|here|to|from)\b",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"(?i)\b(?:no|not|never|nobody|nothing|none|ends?|ended|stops?|stopped|stands?|stood|gone|dead|dies|died|killed|still|later|slow|slower|slowly|"
    r"(?:the|its) last|last (?:output|lines?|words?|log)|twice|third time|(?:takes?|took|needs?) (?:about |only )?\d+|left (?:it|running)|than (?:before|usual|expected)|drops?|dropped|idle|waits?|waiting"  # noqa: E501
    r"|for (?:\w+ )?(?:minutes?|min|hours?|h|days?))\b"
)
_WELL = re.compile(
    r"(?i)\b(?:healthy|fine|as expected|looks good|all good|normal run|no (?:problem|issue)s?|(?:with|had|gave|and|finished|completed|ended) no errors?|without (?:any )?(?:error|problem|issue)s?)\b"  # noqa: E501
)
_MAY_BE = re.compile(r"(?i)\b(?:can|could|may|might|will|would|should|if|when|unless|consider|please|example|usage)\b")
_RULE, _BOX_LINES = re.compile(r"^\s*-{40,}\s*$"), 30
_MPI = re.compile(r"\bmpi(?:run|exec)\b|\b(?:ORTE|PRTE|PRRTE|PMIx|Open MPI)\b|help message help-")
_ADVICE = re.compile(r"(?i)^\W*(?:\[\S+\] )?(?:warning|note|by default|as of)\b")
_FAILED_STATE = re.compile(
    r"(?i)^(?:[a-z]+[_-])?(?:fail|error|crash|dead|lost|unhealthy|unknown|stuck)[a-z]*(?:[_-]\w+)*$"
)
_STATES = frozenset({"state", "status", "phase", "job status", "job_status", "final_status", "result", "health"})
_SLOWER = re.compile(
    r"(?i)\bslow\w*|\b(?:takes?|took|needs?) (?:about |only )?\d+|\bthan (?:before|usual|expected)\b|\bdrops?\b|util|%"
)
_WORDS = 5
_LONG = 600
_TROUBLED = re.compile(
    r"(?i)\b(?:differs? from (?:rank|that of|the others?|expected)|out of sync|de-?sync\w*|no heartbeats?\b|miss(?:ed|ing) heartbeats?|heartbeats? (?:was |were )?missed"  # noqa: E501
    r"|stopping (?:the )?(?:job|run|gang)|(?:marked|is|became|as) (?:unhealthy|degraded|lost)|exit[ _]?codes?\W{1,4}\[[^\]]*[1-9])"
)
_FOR_LONG = re.compile(r"(?i)\b\d+ ?(?:min(?:utes?)?|h(?:ours?)?|days?)\b")
_AGAIN = re.compile(
    r"(?i)\bstill\b|\bwaiting\b|\bretry\w*|\btrying\b|\bpending\b|\bconnecting\b|\bnot (?:yet )?(?:ready|available|reachable|up)\b|\bqueued\b"  # noqa: E501
)
_ALIKE = re.compile(r"[\d.:,-]+")


def stood_together(lines: Sequence[str]) -> Iterator[Shown]:
    """Main threads of several processes, of which most wait for others, in a run that is told to stand."""
    asked = next((at for at, line in enumerate(lines) if NO_MORE.search(line) or BY_HAND.search(line, 0, 400)), None)
    heads = {match["id"]: at for at, line in enumerate(lines) if (match := _MAIN.match(line))}
    if asked is None or len(heads) < _SEVERAL:
        return
    threads = [t for t in parse("\n".join(lines)) if t.name == "MainThread"]
    stacks = [RankStack(n, "", frames=thread.frames) for n, thread in enumerate(threads) if thread.frames]
    waiting = [s for s in stacks if s.waits]
    others = [s for s in stacks if not s.waits]
    if not waiting or len(stacks) < _SEVERAL:
        return
    first = min(heads.values())
    if any(s.in_data for s in others):
        yield "dataloader-hang", first, f"one stands in its loader, the others wait: {lines[first].strip()}"
    elif not any(_SAVES.search(frame.key) for s in others for frame in s.frames):
        yield "held-up", first, f"they wait for others: {lines[first].strip()}"


def filled_before_the_kill(lines: Sequence[str]) -> Iterator[Shown]:
    """The host's memory was all but full by the program's own last count of it, and the process was killed."""
    told = [(at, m) for at, line in enumerate(lines) if (m := _FILLED.search(line, 0, 400))]
    if told and _FULL <= float(told[-1][1]["much"]) <= 100:
        yield "oom-host", told[-1][0], lines[told[-1][0]].strip()


def spinning(lines: Sequence[str]) -> Iterator[Shown]:
    """GPUs that are all busy and draw little power wait for each other; those that hold a program and rest, for it."""
    rows = [(at, match) for at, line in enumerate(lines) if (match := _BOX.search(line))]
    low = [at for at, m in rows if int(m["busy"]) >= _SPINS and int(m["draw"]) < _LITTLE * int(m["cap"])]
    idle = [at for at, m in rows if int(m["busy"]) == 0 and int(m["used"]) >= _HELD * int(m["total"])]
    if len(low) >= _SEVERAL and len(low) == len(rows):
        yield "slow-words", low[0], f"busy and idle at once: {lines[low[0]].strip()}"
    elif len(idle) >= _SEVERAL and len(idle) == len(rows) and any(_A_RUN.search(x, 0, 400) for x in lines):
        yield "slow-words", idle[0], f"held and idle: {lines[idle[0]].strip()}"


def looked_into(lines: Sequence[str]) -> Iterator[Shown]:
    """Below a run's lines somebody asks the machine, the scheduler or the store about it, by command or by heading."""
    ran = next((at for at, line in enumerate(lines) if _A_RUN.search(line, 0, 400)), len(lines))
    for at in range(ran + 1, len(lines)):
        if _ASKS.match(lines[at]) and not any(_ASKS.match(line) or _TYPED.match(line) for line in lines[:ran]):
            yield "slow-words", at, f"stands: {lines[at].strip()}"
            return


def no_step_since(lines: Sequence[str]) -> Iterator[Shown]:
    """Lines go on for long after the last step, by times that all of them carry."""
    told = [
        (at, int(m[1]) * 3600 + int(m[2]) * 60 + float(m[3]))
        for at, line in enumerate(lines)
        if (m := _CLOCK.search(line[:_FRONT]))
    ]
    steps = [(at, clock) for at, clock in told if _A_STEP.search(lines[at], 0, 400)]
    gaps = [b - a for (_, a), (_, b) in pairwise(steps)]
    if len(gaps) < _FEWEST or min(gaps) < 0 or not told:
        return
    since = told[-1][1] - steps[-1][1]
    if told[-1][0] > steps[-1][0] and since >= max(_OFTEN * median(gaps), 3 * max(gaps), _LONG_S):
        at = steps[-1][0]
        yield "slow-words", at, f"stands: no step since {lines[at].strip()}"


def boxed(lines: Sequence[str]) -> Iterator[Shown]:
    """What MPI's launcher says between two rules: it only speaks so of what did not work, or to advise."""
    rules = [at for at, line in enumerate(lines) if _RULE.match(line)]
    if not rules or not any(_MPI.search(line, 0, 400) for line in lines):
        return
    for first, last in pairwise(rules):
        said = " ".join(line.strip() for line in lines[first + 1 : last]).strip()
        if said and last - first <= _BOX_LINES and not _ADVICE.match(said):
            yield "slow-words", first + 1, said[:300]
            return


def failed_states(found: Sequence[Table]) -> Iterator[Shown]:
    """A row of a table that has a column of states, whose state says by itself that it failed."""
    for table in found:
        column = next((c for c in table.columns if c in _STATES), None)
        for row in table.rows if column else ():
            if _FAILED_STATE.match(row.cells[column or ""].strip()):
                yield "slow-words", row.line, f"its state: {row.text.strip()}"
                return


def said_again(lines: Sequence[str]) -> Iterator[Shown]:
    """The last lines are one and the same but for their numbers, and tell of a wait."""
    spoken = [(at, line.strip()) for at, line in enumerate(lines) if line.strip()]
    last = spoken[-_SEVERAL:]
    alike = len({_ALIKE.sub("#", line) for _, line in last}) == 1 and len(last) == _SEVERAL
    if alike and _AGAIN.search(last[-1][1], 0, 400) and not _A_STEP.search(last[-1][1], 0, 400):
        yield "slow-words", last[-1][0], f"stands: {last[-1][1]}"


def levels(lines: Sequence[str], harmless: Collection[int]) -> Iterator[Shown]:
    """A line that calls itself an error by its level alone, in a text that tells of nothing else."""
    for at, line in enumerate(lines):
        new = line.strip() and at + 1 not in harmless and not any(word in line.lower().encode() for word in NEEDLES)
        told = read(Body(line[:_LONG], None, None, False, None)) if new else None  # the others were looked at before
        if told is not None and told.severity >= ERROR:
            yield "slow-words", at, line.strip()
            return


def troubled(lines: Sequence[str], harmless: Collection[int]) -> Iterator[Shown]:
    """A line of a program, a watchdog or a launcher that tells of trouble in none of the words of an error."""
    for at, line in enumerate(lines):
        if at + 1 not in harmless and not warns(line) and _TROUBLED.search(line, 0, _LONG) and not _MAY_BE.search(line):
            yield "slow-words", at, f"in trouble: {line.strip()}"
            return


def remarks(lines: Sequence[str], all_lines: Sequence[str]) -> Iterator[Shown]:
    """A person's own sentence about what is missing, late or over, beside lines of a run.

    Whoever explains how to use a program tells what may be; who reports tells what was.
    """
    ran = [at for at, line in enumerate(all_lines) if _A_RUN.search(line, 0, 400)]
    for at, line in enumerate(lines):
        match = _REMARK.match(line) if len(line) < 600 else None
        said = match["said"] if match else ""
        if len(said.split()) < _WORDS or (_LOGGED.search(said) and not line.lstrip().startswith(_MARKS)):
            continue
        if _SPEAKS.match(said) or not set(ran) - {at}:
            continue
        marked = line.lstrip().startswith(_MARKS)
        if not marked and min(ran) < at < max(ran):  # the run went on after it
            continue
        sentence = len({m.group().lower() for m in _SENTENCE.finditer(said)}) >= _SEVERAL
        sentence = sentence or (marked and _FOR_LONG.search(said) is not None)
        if sentence and _TROUBLE.search(said) and not _WELL.search(said) and not _MAY_BE.search(said):
            slow = _SLOWER.search(said) and not _LAST_OUTPUT.search(said)
            yield "slow-words", at, f"{'' if slow else 'stands: '}{line.strip()}"
            return
