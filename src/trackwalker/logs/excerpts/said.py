"""What a text says of trouble besides errors: a person's own sentence beside it, a state, a level, a wait said again.

Nobody cuts out a piece of a log or writes a sentence beside it for a run that is well. Asked last, where nothing else
is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from statistics import median

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.programs import ASIDE, BY_HAND, NO_MORE
from trackwalker.logs.excerpts.tables import Table
from trackwalker.logs.failures.structure import ERROR, NEEDLES, read, warns
from trackwalker.logs.formats.stacks import RankStack, parse
from trackwalker.logs.scanning.lines import Body

_SEVERAL = 2
_LAST_OUTPUT = re.compile(r"(?i)\blast (?:output|lines?|words?|log)\b")
_MARKS = ("#", ">", "(", "--", "==")
_REMARK = re.compile(
    r"^\s*(?:#+|>+|--+|==+|\(|\*+|//|\[[a-z][a-z .-]{0,20}\](?=\s+\S+ ))?\s*(?P<said>[A-Za-z0-9'`\"].*)$"
)
_LOGGED = re.compile(
    r"^\W{0,3}\d{4}-\d\d|^\W{0,3}\d\d:\d\d|\b(?:INFO|DEBUG|WARN(?:ING)?|ERROR)\b|\]:? |\w=\S|^[\w.@-]+[:~]\S*[$#]|\$ |%\|"  # noqa: E501
)
_SPEAKS = re.compile(  # a program, by its name or its level before what it says
    r"^(?!(?:Subject|Re|Report\w*|Notes?|Problem|Symptoms?|Summary|Observed|Context|Question)\b)(?:\S+|(?i:error|warning|fatal)\b[^:]{0,40}): "  # noqa: E501
)
_SENTENCE = re.compile(
    r"\b(?:the|a|an|is|are|was|were|it|its|this|that|there|then|and|of|in|on|at|with|for|but|we|i|they|all|here|to|from|has|been|my|our)\b",
    re.IGNORECASE,
)
_TROUBLE = re.compile(
    r"(?i)\b(?:no (?:\w+ )?(?:output|lines?|progress|steps?|errors?|messages?|traceback|logs?|answer|reply|xids?|core|process(?:es)?|sign|reason|more|longer|further)"  # noqa: E501
    r"|not (?:\w+ )?(?:mov\w+|end\w*|finish\w*|respond\w*|answer\w*|come|came|start\w*|get|got|print\w*|progress\w*|chang\w+|any ?more|the case)|never|nobody|nothing|ends?|ended|stops?|stopped|stands?|stood|gone|dead|dies|died|killed|still|later|slow|slower|slowly|"  # noqa: E501
    r"(?:the|its) last|last (?:output|lines?|words?|log)|twice|third time|(?:takes?|took|needs?) (?:about |only )?\d+|left (?:it|running)|than (?:before|usual|expected)|drops?|dropped|idle|waits?|waiting"  # noqa: E501
    r"|for (?:\w+ )?(?:minutes?|min|hours?|h|days?)|(?:minutes|hours|days) (?:now|ago|already)|since \d\d:\d\d|normally|usually|expected|freez\w*|(?:fine|well|good|ok|works?|worked|runs?|ran|normal) until)\b"  # noqa: E501
)
_REPORTS = re.compile(  # a person, not a program
    r"(?i)\b(?:i|we|my|our|hi|hello)\b|\bworks?\b|\bsince (?:the|we|i|yesterday|last|an?)\b|\bafter (?:the|up\w+|i|we)\b|\b(?:every|each) (?:run|time|job|attempt)\b"  # noqa: E501
    r"|\balways\b|\b(?:does|do|did)(?: not|n'?t)\b|\binstead of\b|\b(?:looks?|is) the same\b|\bsame (?:on|with|for|again)\b|\bsits?\b|\byesterday\b|\bsince the restart\b"  # noqa: E501
)
_TEACHES = re.compile(r"^(?:To |Use |Note|See |Do not |Don't |Run |Set |Make )|`[^`]+`.*`[^`]+`")  # how to use it
_MACHINE = re.compile(
    r"\b(?:INFO|DEBUG|WARN\w*|ERROR)\b|^\s*[\[({]|\d\s?[|:=/]|[|:=/]\s?\d|==>|^\s+\S.*\(\S+:\d+\)|^\S+ \S+ \d|\d+ (?:ms|s|it/s)\b"  # noqa: E501
)
_WELL = re.compile(
    r"(?i)\b(?:healthy|fine(?!\W+(?:until|but|except|then|for|up to|with one))|as expected|looks good|all good|normal run|no (?:problem|issue)s?"  # noqa: E501
    r"|(?:with|had|gave|and|finished|completed|ended) no errors?|without (?:any )?(?:error|problem|issue)s?)\b"
)
# What was looked at and is not why.
_NOT_THAT = re.compile(
    r"(?i)\b(?:df|dmesg|ping|disks?|network|(?:nvidia-)?smi|cables?|temps?|temperatures?|memory|fabric|storage|nfs|ulimit|\w+[_-]tests?|ib\w*) "  # noqa: E501
    r"(?:is|are|was|were|looks?|seems?) (?:all )?(?:fine|ok|okay|clean|normal|good)\b"
)
_MAY_BE = re.compile(r"(?i)\b(?:can|could|may|might|will|would|should|if|when|unless|consider|please|example|usage)\b")
_RULE, _BOX_LINES = re.compile(r"^\s*-{40,}\s*$"), 30
_MPI = re.compile(r"\bmpi(?:run|exec)\b|\b(?:ORTE|PRTE|PRRTE|PMIx|Open MPI)\b|help message help-")
_ADVICE = re.compile(r"(?i)^\W*(?:\[\S+\] )?(?:warning|note|by default|as of)\b")
_FAILED_STATE = re.compile(
    r"(?i)^(?:[a-z]+[_-])?(?:fail|error|crash|dead|lost|unhealthy|unknown|stuck)[a-z]*(?:[_-]\w+)*$"
)
_FILE_HEAD = re.compile(r"^==> \S.* <==$")
_FAILED_TEST = re.compile(r"^\|\s*[A-Z][\w /()-]{2,40}\|\s*(?i:fail(?:ed)?)\b[^|]*\|")  # DCGM's
_STATES = frozenset({"state", "status", "phase", "job status", "job_status", "final_status", "result", "health"})
_SLOWER = re.compile(
    r"(?i)\bslow\w*|\b(?:takes?|took|needs?) (?:about |only )?\d+|\bthan (?:before|usual|expected)\b|\bdrops?\b|util|%|\b(?:usually|normally|expected)\b"  # noqa: E501
)
_WORDS = 5
_LONG = 600
_TROUBLED = re.compile(
    r"(?i)\b(?:differs? from (?:rank|that of|the others?|expected)|out of sync|de-?sync\w*|no heartbeats?\b|miss(?:ed|ing) heartbeats?|heartbeats? (?:was |were )?missed"  # noqa: E501
    r"|(?:not |un)successful\b|line \d+:\s+\d+ (?:Hangup|Quit|Stopped)\b|stopping (?:the )?(?:job|run|gang)\b|(?:marked|is|became|as) (?:unhealthy|degraded|lost)\b|exit[ _]?codes?\W{1,4}\[[^\]]*[1-9]"  # noqa: E501
    r"|lost (?:\w+-\d+|rank|worker|node|host|task|peer|replica|member)\b|\"?(?:event|status|state|phase|result)\"?\s?[:=]\s?\"?(?:[a-z]+_)?(?:fail|error|crash|lost)\w*\W)"  # noqa: E501
)
_FOR_LONG = re.compile(r"(?i)\b\d+ ?(?:min(?:utes?)?|h(?:ours?)?|days?)\b")
_AGAIN = re.compile(
    r"(?i)\bstill\b|\bwaiting\b|\bretry\w*|\btrying\b|\bpending\b|\bconnecting\b|\bnot (?:yet )?(?:ready|available|reachable|up)\b|\bqueued\b"  # noqa: E501
)
_ALIKE = re.compile(r"[\d.:,-]+")
_PROGRESS = re.compile(r"(?P<state>[\w.]+/[\w.]+) \[(?P<elapsed>\d+(?::\d\d)+)<")
_STOOD_S = 60.0
_STEP_LOSS = re.compile(
    r"(?i)\b(?:it|iter|iterations?|steps?)\W{0,3}(?P<step>\d+)\b.{0,40}?\bloss\W{1,4}(?P<loss>\d+\.\d+)"
)
_APART = 0.15  # of the larger one
_EACH = re.compile(r"(?<![\w.])(?P<who>[A-Za-z][A-Za-z_-]*\d+)\W{1,2}(?P<much>\d+(?:\.\d+)?)(?=[kKMG]?(?:[\s,;|)]|$))")
_MEMBERS, _BELOW = 4, 0.7
_STRONG = re.compile(r"(?i)\b(?:never|nobody|nothing|gone|died|dead)\b")
_STATUS_ASKED = re.compile(r"\becho \$\?\s*$")


def last_resort(lines: Sequence[str], found: Sequence[Table], harmless: Collection[int]) -> Iterator[Shown]:
    """Whatever says that something is wrong, where nothing else does; the first of it counts."""
    yield from boxed(lines)
    yield from failed_states(found)
    yield from side_by_side(lines)
    yield from diagnosed(lines)
    yield from bar_stands(lines)
    yield from said_again(lines)
    yield from ended_with_code(lines)
    yield from runs_differ(lines)
    yield from one_of_a_row(lines)
    yield from levels(lines, harmless)
    yield from troubled(lines, harmless)


def bar_stands(lines: Sequence[str]) -> Iterator[Shown]:
    """A bar that was drawn again long after, and had not moved."""
    drawn = [(at, m) for at, line in enumerate(lines) if (m := _PROGRESS.search(line, 0, 400))]
    for (_, before), (at, last) in pairwise(drawn):
        waited = _seconds(last["elapsed"]) - _seconds(before["elapsed"])
        if at == drawn[-1][0] and before["state"] == last["state"] and waited >= _STOOD_S:
            yield "slow-words", at, f"stands: {lines[at].strip()}"


def _seconds(clock: str) -> float:
    total = 0.0
    for part in clock.split(":"):
        total = 60 * total + float(part)
    return total


def runs_differ(lines: Sequence[str]) -> Iterator[Shown]:
    """Two runs below each other that a person named, whose losses are far apart at the same step."""
    told: dict[int, float] = {}
    named = 0
    for at, line in enumerate(lines):
        named += bool(line.strip() and ASIDE.match(line))
        match = _STEP_LOSS.search(line, 0, 400)
        if match is None:
            continue
        step, loss = int(match["step"]), float(match["loss"])
        before = told.setdefault(step, loss)
        if named and abs(loss - before) > _APART * max(abs(before), abs(loss)) > 0:
            yield "slow-words", at, f"the loss differs: {line.strip()}"
            return


def one_of_a_row(lines: Sequence[str]) -> Iterator[Shown]:
    """Lines that give one number of each member, of which the same is far below all others every time."""
    behind: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        told = [(m["who"], float(m["much"])) for m in _EACH.finditer(line, 0, 2000)]
        if len(told) < _MEMBERS or len({who for who, _ in told}) < len(told):
            continue
        (who, least), (_, next_to) = sorted(told, key=lambda each: each[1])[:2]
        if 0 < least < _BELOW * next_to:
            behind.setdefault(who, []).append(at)
    for each in behind.values():
        if len(behind) == 1 and len(each) >= _SEVERAL:
            yield "slow-words", each[0], f"far behind the others: {lines[each[0]].strip()}"


def ended_with_code(lines: Sequence[str]) -> Iterator[Shown]:
    """The shell's answer to the question how the last command ended."""
    for at, line in enumerate(lines[:-1]):
        if _STATUS_ASKED.search(line) and (code := lines[at + 1].strip()).isdigit() and int(code):
            signal = int(code) - 128 if int(code) > 128 else None
            yield "slow-words", at + 1, f"ended by {signal}: {code}" if signal == 9 else f"its state: {code}"


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


def side_by_side(lines: Sequence[str]) -> Iterator[Shown]:
    """The ends of several files below each other: somebody looked at who came how far."""
    parts = [at for at, line in enumerate(lines) if _FILE_HEAD.match(line)]
    if len(parts) >= _SEVERAL:
        yield "slow-words", parts[0], f"stands: {lines[parts[0]].strip()}"


def diagnosed(lines: Sequence[str]) -> Iterator[Shown]:
    """A row of a machine's own tests that failed."""
    for at, line in enumerate(lines):
        if _FAILED_TEST.match(line):
            yield "slow-words", at, f"held back by itself: {line.strip()}"
            return


def said_again(lines: Sequence[str]) -> Iterator[Shown]:
    """The last lines are one and the same but for their numbers, and tell of a wait."""
    spoken = [(at, line.strip()) for at, line in enumerate(lines) if line.strip()]
    last = spoken[-_SEVERAL:]
    alike = len({_ALIKE.sub("#", line) for _, line in last}) == 1 and len(last) == _SEVERAL
    if alike and _AGAIN.search(last[-1][1], 0, 400) and not A_STEP.search(last[-1][1], 0, 400):
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
    ran = [at for at, line in enumerate(all_lines) if A_RUN.search(line, 0, 400)]
    for at, line in enumerate(lines):
        match = _REMARK.match(line) if len(line) < 600 else None
        said = match["said"] if match else ""
        if len(said.split()) < _WORDS or (_LOGGED.search(said) and not line.lstrip().startswith(_MARKS)):
            continue
        marked = line.lstrip().startswith(_MARKS)
        comment = line.lstrip().startswith("#")  # of a script or a setting as well: a run must stand beside it
        if _SPEAKS.match(said) or _TEACHES.search(said):
            continue
        if not set(ran) - {at} and (comment or not _of_a_machine(all_lines, at)):
            continue
        if not marked and ran and min(ran) < at < max(ran):  # the run went on after it
            continue
        reports = not marked and _REPORTS.search(said) is not None
        trouble = _TROUBLE.search(said) is not None
        words = len({m.group().lower() for m in _SENTENCE.finditer(said)})
        sentence = words >= _SEVERAL or (reports and (trouble or words > 0))
        sentence = sentence or (marked and bool(_FOR_LONG.search(said) or _STRONG.search(said)))
        searched = _NOT_THAT.search(said) is not None  # who looked for why, and did not find it
        troubled_by = searched or ((trouble or reports) and not _WELL.search(said))
        if sentence and troubled_by and not _MAY_BE.search(said):
            slow = _SLOWER.search(said) and not _LAST_OUTPUT.search(said)
            yield "slow-words", at, f"{'' if slow else 'stands: '}{line.strip()}"
            return


def _of_a_machine(lines: Sequence[str], aside: int) -> bool:
    """Whether a program wrote beside the sentence, all above it or all below: lines of a machine, and hardly prose."""
    spoken = [(at, line) for at, line in enumerate(lines) if at != aside and line.strip()]
    places = [at for at, line in spoken if _MACHINE.search(line, 0, _LONG) and not _a_sentence(line)]
    prose = sum(_a_sentence(line) for _, line in spoken)
    return len(places) >= _SEVERAL and not min(places) < aside < max(places) and 2 * prose <= len(spoken)


def _a_sentence(line: str) -> bool:
    return len({m.group().lower() for m in _SENTENCE.finditer(line, 0, _LONG)}) >= _SEVERAL


_MAIN = re.compile(r"^Thread (?P<id>\S+) \([^)]*\): \"MainThread\"")
_SAVES = re.compile(r"(?i)checkpoint|\bsave|serializ|\bckpt")
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
A_STEP = re.compile(r"(?i)\b(?:it|iter|iters|iterations?|steps?)\b\W{0,3}\d")
_CLOCK, _FRONT = re.compile(r"(?<![\d:])([01]\d|2[0-3]):([0-5]\d):([0-5]\d(?:\.\d+)?)(?![\d:])"), 48
_FEWEST, _OFTEN, _LONG_S = 2, 20, 300.0  # spaces between steps; times the usual one; seconds
_SPINS, _LITTLE = 99, 0.45  # percent; of the limit: who computes draws more
_FILLED = re.compile(
    r"(?i)\b(?:cpu|host|system|node|virtual|ram)\b[^|]{0,40}?\b(?:mem(?:ory)?|ram|used)\b.{0,60}?(?<![\d.])(?P<much>\d{1,3}(?:\.\d+)?) ?%"  # noqa: E501
)
_FULL = 95.0  # percent of the host's memory
A_RUN = re.compile(
    r"(?i)\b(?:it|iter|iters|iterations?|steps?|epochs?)\b\W{0,3}\d|\d+/\d+ \[|\bloss\W{1,4}\d|(?:s|sec)/(?:it|step)\b|it/s\b|MiB /|\brank ?\d"  # noqa: E501
)


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
    elif len(idle) >= _SEVERAL and len(idle) == len(rows) and any(A_RUN.search(x, 0, 400) for x in lines):
        yield "slow-words", idle[0], f"held and idle: {lines[idle[0]].strip()}"


def looked_into(lines: Sequence[str]) -> Iterator[Shown]:
    """Below a run's lines somebody asks the machine, the scheduler or the store about it, by command or by heading."""
    ran = next((at for at, line in enumerate(lines) if A_RUN.search(line, 0, 400)), len(lines))
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
    steps = [(at, clock) for at, clock in told if A_STEP.search(lines[at], 0, 400)]
    gaps = [b - a for (_, a), (_, b) in pairwise(steps)]
    if len(gaps) < _FEWEST or min(gaps) < 0 or not told:
        return
    since = told[-1][1] - steps[-1][1]
    if told[-1][0] > steps[-1][0] and since >= max(_OFTEN * median(gaps), 3 * max(gaps), _LONG_S):
        at = steps[-1][0]
        yield "slow-words", at, f"stands: no step since {lines[at].strip()}"
