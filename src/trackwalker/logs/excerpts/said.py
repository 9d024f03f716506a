"""What a text says of trouble besides errors: a person's own sentence beside it, a state, a level, a wait said again.

Nobody cuts out a piece of a log or writes a sentence beside it for a run that is well. Asked last, where nothing else
is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.programs import ASIDE
from trackwalker.logs.excerpts.reports import A_RUN, A_STEP
from trackwalker.logs.excerpts.tables import Table
from trackwalker.logs.failures.structure import ERROR, NEEDLES, read, warns
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
_STATES = frozenset({"state", "status", "phase", "job status", "job_status", "final_status", "result", "health"})
_SLOWER = re.compile(
    r"(?i)\bslow\w*|\b(?:takes?|took|needs?) (?:about |only )?\d+|\bthan (?:before|usual|expected)\b|\bdrops?\b|util|%|\b(?:usually|normally|expected)\b"  # noqa: E501
)
_WORDS = 5
_LONG = 600
_TROUBLED = re.compile(
    r"(?i)\b(?:differs? from (?:rank|that of|the others?|expected)|out of sync|de-?sync\w*|no heartbeats?\b|miss(?:ed|ing) heartbeats?|heartbeats? (?:was |were )?missed"  # noqa: E501
    r"|stopping (?:the )?(?:job|run|gang)\b|(?:marked|is|became|as) (?:unhealthy|degraded|lost)\b|exit[ _]?codes?\W{1,4}\[[^\]]*[1-9]"  # noqa: E501
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
        if _SPEAKS.match(said) or not (set(ran) - {at} or _of_one_form(all_lines, at)):
            continue
        marked = line.lstrip().startswith(_MARKS)
        if not marked and ran and min(ran) < at < max(ran):  # the run went on after it
            continue
        sentence = len({m.group().lower() for m in _SENTENCE.finditer(said)}) >= _SEVERAL
        sentence = sentence or (marked and bool(_FOR_LONG.search(said) or _STRONG.search(said)))
        searched = _NOT_THAT.search(said) is not None  # who looked for why, and did not find it
        troubled_by = searched or (_TROUBLE.search(said) and not _WELL.search(said))
        if sentence and troubled_by and not _MAY_BE.search(said):
            slow = _SLOWER.search(said) and not _LAST_OUTPUT.search(said)
            yield "slow-words", at, f"{'' if slow else 'stands: '}{line.strip()}"
            return


def _of_one_form(lines: Sequence[str], aside: int) -> bool:
    """Whether a program wrote beside the sentence, all above it or all below: lines alike but for their numbers."""
    spoken = [(at, line.strip()) for at, line in enumerate(lines) if at != aside and line.strip()]
    forms: dict[str, dict[str, int]] = {}
    for at, line in spoken:
        forms.setdefault(_ALIKE.sub("#", line), {})[line] = at
    places = [at for form, told in forms.items() if "#" in form and len(told) >= _SEVERAL for at in told.values()]
    prose = sum(len({m.group().lower() for m in _SENTENCE.finditer(line, 0, _LONG)}) >= _SEVERAL for _, line in spoken)
    return bool(places) and not min(places) < aside < max(places) and 2 * prose <= len(spoken)
