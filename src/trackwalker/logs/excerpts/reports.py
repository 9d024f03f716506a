"""What somebody who reports a run shows: stacks of ranks that wait, GPUs that only spin, commands, long silence.

Nobody cuts out a piece of a log or looks at stacks for a run that is well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.programs import BY_HAND, NO_MORE
from trackwalker.logs.formats.stacks import RankStack, parse

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
