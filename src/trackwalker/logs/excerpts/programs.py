"""What a program prints of its own slowness: waits for data, compilation again, slower steps, tests, networks.

A run that is slow did not fail: its own numbers say what it waits for, and words only that it is slow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from statistics import median

from trackwalker.logs.excerpts.curves import LOSS, jumps_in, measured
from trackwalker.logs.excerpts.machines import Shown, compiled_again
from trackwalker.logs.excerpts.tables import RATE, Table, number_of, per_second
from trackwalker.logs.failures.structure import warns

_TIMED = re.compile(
    r"(?P<name>[A-Za-z][\w+/.]*(?:[ _](?:time|wait|load(?:ing)?|t))?)(?: ?\(\w{0,3}\))? ?(?:[:=]\s*|\s{1,8})(?P<much>\d+\.\d+)"  # noqa: E501
)
_LAST = re.compile(r"[./]")
_INPUT = re.compile(
    r"(?i)^(?:(?:t_?)?data(?:_?(?:t|time|cost|load(?:er|ing)?|wait|fetch)\w*|[ _](?:time|wait|load(?:ing)?|t))?|(?:batch_)?load(?:er|ing)?(?:[ _](?:time|t))?"  # noqa: E501
    r"|rtime|fetch\w*|read(?:[ _]?time)|next(?:\(\w*\))?|input[ _](?:time|wait))$"
)
_WHOLE = re.compile(r"(?i)^(?:(?:batch|iter|step|total|i)?[ _]?(?:time|cost)|total|iter|step|batch[ _]?t?)$")
_WORK = re.compile(
    r"(?i)^(?:forward\S*|fwd\S*|compute\w*|gpu[ _]?time|model[ _]?time|train[ _]?time|fb\w*|backward\S*|net[ _]?time)$"
)
_MOSTLY, _SHOWN = 0.5, 4  # of a step's time; lines that show it
_BLOCK = 8  # lines that tell of one step
LOADS = re.compile(
    r"(?i)dataloader|data_?load|train_dataloader|_next\b.*data|get_train_batch|input_pipeline|IteratorGetNext"
)
_HALF = 50.0  # percent of the whole
_SETS_UP = 3  # lines at the end
_NCCL_TEST = re.compile(r"^#\s+nThread \d+ nGpus \d+|^(?:\$ )?.*\b\w+_perf +-b ")
_RESULT = re.compile(r"^\s+\d+\s+\d+\s+\w+\s+(?:\w+\s+(?:-?\d+\s+)?)?[\d.]+\s+(?P<alg>[\d.]+)\s+(?P<bus>[\d.]+)")
_ENDED = re.compile(
    r"# Avg bus bandwidth|Test NCCL failure|Test failure|(?i:error|abort|exception|denied|not found|refused)"
)
_MATRIX = re.compile(r"P2P=(?P<on>Enabled|Disabled) Bandwidth")
_MATRIX_ROW = re.compile(r"^\s*(?P<row>\d+)((?:\s+\d+(?:\.\d+)?){2,})\s*$")
_MEMBER = re.compile(
    r"(?i)(?:init|join|connect|rendezvous|start|register|distributed).{0,80}?\b(?:member|rank|worker|node|process)s?\b\W{0,3}(?P<who>\d+) ?(?:/|of|out of) ?(?P<of>\d+)\b"  # noqa: E501
)
_WORSE = 0.6
_LARGE, _POOR = 1 << 20, 1.5  # bytes; GB/s, less than one fast Ethernet port
_SLOW_WORDS = re.compile(
    r"(?i)\b\d+(?:\.\d+)?\s?(?:x|times|-fold) slow\w*|\b(?:much|very|extremely|too|so|getting|gets|became|become|is|runs?|training) slow(?:er|ly)?\b"  # noqa: E501
    r"|\bjitter(?:s|y|ing)?\b|\(downgraded\)|\bslow(?:er|s down|ed down)\b|\bslow training\b|\b(?:low|poor|bad|half the) (?:gpu )?(?:util\w*|bandwidth|throughput|performance|busbw)\b"  # noqa: E501
    r"|\b(?:drop\w*|fell|falls|decreas\w+|went down) (?:from .{1,40}? )?to \S|\bwaiting (?:for|on) (?:the )?(?:data|input|batch\w*|loader)\b"  # noqa: E501
    r"|\bgpu[ -]util\w*\W{1,4}(?:is |at |only |about |~ ?)*[1-4]?\d(?:-\d+)? ?%"
    r"|\b(?:from|was) (?:about )?\d+(?:\.\d+)? ?(?:m?s|sec\w*|min\w*)\b.{0,30}\b(?:to|now) (?:about )?\d+(?:\.\d+)? ?(?:m?s|sec\w*|min\w*)\b"  # noqa: E501
)
NO_MORE = re.compile(
    r"(?i)\b(?:hangs?|hung|freez\w+|frozen|stuck|stalls?|stalled)\b(?! (?:at|in) (?:a )?breakpoint)"
    r"|\bno (?:further|more|new) (?:output|progress|lines?|steps?|log)\b|\bnothing (?:more |else |further )?(?:is |was )?printed\b"  # noqa: E501
    r"|\bno (?:steps?|iterations?|batch(?:es)?) (?:(?:was|were|has|have|been) )*(?:finished|completed|done|made|seen)\b"
    r"|\bno available\b.{0,60}\b(?:in|for|after) \d+ ?(?:s|sec|seconds?)\b|\bno (?:output|progress|log|lines?) (?:for|since|after)\b|\bnothing (?:more|else|further|new)(?: (?:from|for|since|after|on|in)\b|\W{0,3}$)"  # noqa: E501
)

BY_HAND = re.compile(
    r"^\s*(?:\^[CZ\\])+|^(?:sudo )?(?:py-spy (?:dump|top)|gdb -p|pstack) |^Thread \S+ \(\w+\): \"MainThread\"|^(?:[\w.@-]+[:~][\w~/.-]*)?\s?[$#]\s(?:\w+; ?)*(?:sudo )?(?:ssh \S+ ['\"]?|kubectl exec \S+ .*?-- )?"  # noqa: E501
    r"(?:py-spy|gdb|nvidia-smi|rocm-smi|amd-smi|ps|top|htop|iostat|mpstat|dmesg|strace|pstack|ibstat|rdma|ethtool|cat /proc)\b"  # noqa: E501
)
ASIDE = re.compile(
    r"^\W*(?:#|--|==|\(|\*\*)|^\W*$|^[A-Za-z][\w ,'()-]{0,70}:\s*$"
)  # what a person writes between the lines
_TYPED = re.compile(r"^(?:[\w.@-]+[:~][\w~/.-]*)?\s?\$\s")
WAITS_FOR = re.compile(
    r"(?i)\bwaiting (?:for|until) .{0,40}\b(?:workers?|ranks?|peers?|nodes?|hosts?|process(?:es)?|members?|others|master|leader|server)\b"  # noqa: E501
)
_SHARE = re.compile(r"^\s*(?P<much>\d{1,3}(?:\.\d+)?)%\s+\S")
_AT_ITS_END = re.compile(
    r"(?i)\b(?:training|fine-?tuning|pre-?training|experiment)\b(?: (?:is|was|has|run|job|process))*(?: been)? (?:complete|completed|finished|done|ended)\b"  # noqa: E501
    r"|\b(?:finished|completed|done) (?:pre-?|fine-?)?training\b|destroy_process_group\(\) was not called before program exit"  # noqa: E501
    r"|\btrain\w*[^|]{0,30}:\s{1,2}100%\|[^|]*\| (?P<steps>\d+)/(?P=steps) |\bdriver shutting down\b"
    r"|^\{.*'train_runtime': |^wandb: (?:Run summary|Synced \d)"
)
_BEGINS_TO_SAVE = re.compile(r"(?i)\b(?:saving|writing|uploading|exporting|merging)\b")
_BAR = re.compile(r"%\|[^|]*\| (\d+)/(\d+) \[")  # of an outer loop a full one is a part
_MAY_BE = re.compile(
    r"(?i)\b(?:can|could|may|might|will|would|should|if|when|unless|to avoid|consider|please|often|usually|expect\w*)\b|WARN|^\W{0,2}W\b"  # noqa: E501
)


def slow_programs(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """What names a cause by numbers of its own."""
    yield from _waits(lines, found)
    yield from compiled_again(lines)
    yield from _nccl_tests(lines)
    yield from _members(lines)
    yield from _matrices(lines)


def ended_well(lines: Sequence[str]) -> Iterator[Shown]:
    """The last word of a program that came to its end, whatever its peers say of it afterwards."""
    bars = {m[2]: m[1] for line in lines for m in _BAR.finditer(line, 0, 400)}  # of each total, how far it came
    unfinished = any(int(done) < int(of) for of, done in bars.items())
    for at, line in enumerate(lines):
        if len(line) < 400 and (match := _AT_ITS_END.search(line)) and not (match["steps"] and unfinished):
            if _BEGINS_TO_SAVE.search(line):
                continue  # what comes after it is the save's
            yield "after-the-end", at, line.strip()
            return


def asked_about(lines: Sequence[str]) -> Iterator[Shown]:
    """Whoever ends a command by hand, or asks a machine what a program does, has seen it stop; or it waits itself."""
    typed = next((at for at, line in enumerate(lines) if BY_HAND.search(line, 0, 400)), None)
    last = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].strip() and not _TYPED.match(lines[at])), 0)
    if typed is not None:
        yield "slow-words", typed, lines[typed].strip()
    elif lines and WAITS_FOR.search(lines[last], 0, 400):
        yield "slow-words", last, lines[last].strip()


def slow_words(lines: Sequence[str]) -> Iterator[Shown]:
    """Words that tell of slowness or of an end without an error, and of no cause."""
    spoken = [at for at, line in enumerate(lines) if line.strip()]
    if spoken and all("NCCL INFO" in lines[at] for at in spoken[-_SETS_UP:]) and len(spoken) > _SETS_UP:
        yield "slow-words", spoken[-1], f"the last words are of NCCL's set-up: {lines[spoken[-1]].strip()}"
    for at, line in enumerate(lines):
        told = len(line) < 400 and (_SLOW_WORDS.search(line) or NO_MORE.search(line))
        if told and not warns(line) and not _MAY_BE.search(line):
            yield "slow-words", at, line.strip()


def _waits(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    waited: list[tuple[float, float, int]] = []
    alone: tuple[int, float] | None = None  # a wait that has a line for itself
    for at, line in enumerate(lines):
        told = [(_LAST.split(m["name"])[-1], float(m["much"])) for m in _TIMED.finditer(line, 0, 600)]
        waits = next((much for name, much in told if _INPUT.match(name)), None)
        whole = next((much for name, much in told if _WHOLE.match(name)), None)
        work = [much for name, much in told if _WORK.match(name)]
        if whole is None and not work and waits is not None:  # the step's own time has no name beside the wait's
            whole = max((float(m[1]) for m in _PLAIN.finditer(line, 0, 600)), default=None)
        total = whole if whole is not None else (waits or 0.0) + sum(work) if work else None
        if total is None and waits is not None:
            alone = at, waits
        elif waits is None and whole is not None and alone is not None and len(told) == 1:
            waits, total, alone = (alone[1] if at - alone[0] <= _BLOCK else None), whole, None
        if waits is not None and total and waits <= total:
            waited.append((waits, total, at))
    # All together: a loader that stalls now and then holds few steps up, each for long.
    spent = sum(total for _, total, _ in waited)
    if len(waited) >= _SHOWN and sum(waits for waits, _, _ in waited) >= _MOSTLY * spent:
        yield "input-stall", waited[-1][2], lines[waited[-1][2]].strip()
    for at, line in enumerate(lines):  # a profile by frames
        share = _SHARE.match(line)
        if share and _HALF <= float(share["much"]) <= 100 and LOADS.search(line, 0, 400):
            yield "input-stall", at, line.strip()
    for table in found:
        percent = [c for c in table.columns if "%" in c]
        for row in table.rows if percent else ():
            named = any(LOADS.search(cell) for cell in row.cells.values())
            if named and max((number_of(row.cells[c]) or 0.0) for c in percent) >= _HALF:
                yield "input-stall", row.line, row.text.strip()


def _nccl_tests(lines: Sequence[str]) -> Iterator[Shown]:
    """A test of collectives that printed no result: it hangs; where it works without P2P, that is what hangs."""
    begun = [at for at, line in enumerate(lines) if line.lstrip().startswith("#") and _NCCL_TEST.match(line.lstrip())]
    if not begun:
        return
    last = begun[-1]
    spoken = [line for line in lines if "NCCL INFO" not in line]
    ended = any(_RESULT.match(line) or line.startswith("# Avg") for line in lines)
    ended = ended or any(_ENDED.search(line) for line in spoken if not line.lstrip().startswith("#"))
    if not ended:
        yield "held-up", last, lines[last].strip()
    for at, line in enumerate(lines):
        match = _RESULT.match(line)
        if match and int(line.split()[0]) >= _LARGE and float(match["bus"]) < _POOR:
            yield "slow-words", at, f"bus bandwidth of a NCCL collective: {line.strip()}"
            break
    without = next((at for at, line in enumerate(lines) if "NCCL_P2P_DISABLE=1" in line), None)
    if without is not None and any(_RESULT.match(x) or "Avg bus" in x for x in lines[without:]):
        before = lines[:without]
        if any(_NCCL_TEST.match(x.lstrip()) for x in before) and not any(_RESULT.match(x) for x in before):
            yield "p2p-partial", without, lines[without].strip()


def _members(lines: Sequence[str]) -> Iterator[Shown]:
    """The last words are of members that came to a meeting, and they are fewer than all."""
    seen = [(at, match) for at, line in enumerate(lines) if (match := _MEMBER.search(line, 0, 300))]
    spoken = [at for at, line in enumerate(lines) if line.strip() and line.strip() != "^C"]
    if not seen or spoken[-1] - seen[-1][0] > _SETS_UP:
        return
    came, wanted = {m["who"] for _, m in seen}, {int(m["of"]) for _, m in seen}
    if len(wanted) == 1 and len(came) < max(wanted):
        yield "rendezvous-incomplete", seen[-1][0], lines[seen[-1][0]].strip()


def _matrices(lines: Sequence[str]) -> Iterator[Shown]:
    """The bandwidth between GPUs, with and without direct access: direct access that is slower does not work."""
    kind = ""
    speeds: dict[str, list[float]] = defaultdict(list)
    begun: dict[str, int] = {}
    for at, line in enumerate(lines):
        if match := _MATRIX.search(line):
            kind = match["on"]
            begun.setdefault(kind, at)
        elif kind and (match := _MATRIX_ROW.match(line)):
            values = [float(v) for v in match[2].split()]
            speeds[kind] += [v for other, v in enumerate(values) if other != int(match["row"])]
        elif kind and "D" not in line:
            kind = ""
    if speeds["Enabled"] and speeds["Disabled"] and median(speeds["Enabled"]) < _WORSE * median(speeds["Disabled"]):
        yield "p2p-partial", begun["Enabled"], lines[begun["Enabled"]].strip()


_A_STEP = re.compile(r"(?i)\b(?:it|iter|iters|iterations?|steps?|batch(?:es)?|epochs?)\b|it/s|/it\b")
_SECONDS = re.compile(
    r"(?i)\b(?:took|takes|time|elapsed|duration|dt|per (?:iteration|step|batch))\b(?: ?\((?:m?s|sec\w*)\))?\s?[:=]?\s?(?P<much>\d+(?:\.\d+)?)(?![\d:/])"  # noqa: E501
    r"|(?<![\d:.])(?P<rate>\d+\.\d+) ?(?:s|sec|ms|seconds)/(?:it|iter|iteration|step|batch)\b"
)
_FILLING = re.compile(r"\|[^|]*\|")  # of a bar
_DIGITS = re.compile(r"\s*\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_PLAIN = re.compile(r"(?<![\d:.])(\d+(?:\.\d+)?) ?(?:s|sec|secs|seconds)\b")
_NODES = re.compile(
    r"(?i)\b(?:[2-9]|\d\d+|two|four|eight) (?:nodes|hosts|machines)\b|\b(?:num_?nodes|nnodes|nodes)\W{1,3}(?:[2-9]|\d\d+)\b"  # noqa: E501
)
_MEMORY = re.compile(r"(?i)\b(?:gpu |max |peak )?mem(?:ory)?\w*\W{1,3}(\d+(?:\.\d+)?) ?(?:[KMGT]i?B?)\b")
_NOISE = 0.97
_RISEN, _FILLED, _RISES, _LEAST = 1.3, 1.25, 5, 0.5
_SO_FAR, _EVEN = re.compile(r"(?i)elapsed|total|wall|uptime|so far"), 1.25
_OFTEN_SLOW = 0.3  # of all steps
ODD = {  # what numbers show that no healthy run has, and its class
    "some steps are slow": "program", "slower than the other run": "program", "slower on more nodes": "network",
    "the loss rises": "program", "the loss jumps": "program", "used memory only rises": "memory",
    "less bandwidth than the others": "network", "far behind the others": "program", "busy and idle at once": "network",
    "held back by itself": "device", "its state": "program", "ended by 9": "memory", "the loss differs": "program",
    "held and idle": "program",
}  # fmt: skip
_FEWEST = 3  # before and after
_SLOWER = 1.5  # times the slowest before
_GROWN = 2.0  # times the first, where every one is slower than the one before
_MEMBERS = 4  # lines


def slower_steps(lines: Sequence[str]) -> Iterator[Shown]:
    """Steps of one form that from one line on take far longer than all before, or longer from line to line."""
    for told in chain(_series(lines, _SECONDS).values(), _by_rate(lines)):
        seconds = [much for _, much in told]
        for cut in range(_FEWEST, len(seconds) - _FEWEST + 1):
            if min(seconds[cut:]) >= _SLOWER * max(seconds[1:cut]) > 0:
                yield "slower", told[cut][0], lines[told[cut][0]].strip()
                return
        grows = len(seconds) >= _FEWEST and all(b > a for a, b in pairwise(seconds))
        if grows and seconds[-1] >= _GROWN * seconds[0] > 0:
            yield "slower", told[-1][0], lines[told[-1][0]].strip()
            return


def _series(lines: Sequence[str], form: re.Pattern[str]) -> dict[str, list[tuple[int, float]]]:
    """What lines about steps measure, by the words before it."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        match = form.search(line, 0, 400) if _A_STEP.search(line, 0, 400) else None
        if match is not None:
            series[_DIGITS.sub("#", line[: match.start()])].append((at, float(next(filter(None, match.groups())))))
    return {words: told for words, told in series.items() if not _counts_up(told, lines)}


def _counts_up(told: Sequence[tuple[int, float]], lines: Sequence[str]) -> bool:
    """Whether a time is the whole run's so far, which grows by as much from line to line."""
    grown = [b[1] - a[1] for a, b in pairwise(told)]
    even = len(grown) >= _FEWEST and min(grown) > 0 and max(grown) <= _EVEN * min(grown)
    return even and _SO_FAR.search(lines[told[0][0]]) is not None


def _by_rate(lines: Sequence[str]) -> Iterator[list[tuple[int, float]]]:
    """The time that a token or a sample took, of one run: what a person sets beside it is of another."""
    for told in _rates(lines):
        if not any(ASIDE.match(line) and line.strip() for line in lines[told[0][0] : told[-1][0]]):
            yield [(at, 1 / much) for at, much in told]


def _rates(lines: Sequence[str]) -> Iterator[list[tuple[int, float]]]:
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        if (match := RATE.search(line, 0, 600)) and (much := per_second(match)):
            series[_DIGITS.sub("#", _FILLING.sub("|", line[: match.start()]))].append((at, much))
        elif (match := _SECONDS.search(line, 0, 600)) and match["rate"] and float(match["rate"]):
            series[_DIGITS.sub("#", _FILLING.sub("|", line[: match.start()]))].append((at, 1 / float(match["rate"])))
    yield from series.values()


def _beside(told: Sequence[tuple[int, float]], lines: Sequence[str]) -> int | None:
    """The last line of the run that is far slower than another, which a person's words set beside it."""
    parts: list[list[tuple[int, float]]] = [[told[0]]]
    for before, each in pairwise(told):
        if any(ASIDE.match(line) and line.strip() for line in lines[before[0] : each[0]]):
            parts.append([])
        parts[-1].append(each)
    usual = [(median(much for _, much in part), part[-1][0]) for part in parts]
    (slow, at), (quick, _) = min(usual), max(usual)
    return at if slow * _GROWN <= quick else None


def odd_numbers(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """Numbers that no healthy run has, where nothing else is told: uneven steps, a loss or a memory that only rises."""
    for told in (*_series(lines, _SECONDS).values(), *_series(lines, _PLAIN).values(), *_by_rate(lines)):
        usual = sorted(much for _, much in told)[len(told) // 4]
        slow = [at for at, much in told if much >= _SLOWER * usual > 0]
        if len(slow) >= max(_FEWEST, _OFTEN_SLOW * len(told)) and slow[-1] > told[len(told) // 2][0]:
            yield "slow-words", slow[0], f"some steps are slow: {lines[slow[0]].strip()}"
            return
    for told in chain(_series(lines, _SECONDS).values(), _by_rate(lines)):
        much = [each for _, each in told]
        if (
            len(much) >= _RISES
            and all(b >= _NOISE * a for a, b in pairwise(much))
            and much[-1] >= _FILLED * much[0] > 0
        ):
            yield "slow-words", told[-1][0], f"some steps are slow: {lines[told[-1][0]].strip()}"
            return
        for cut in range(_FEWEST, len(much) - _FEWEST + 1):
            if min(much[cut:]) >= _FILLED * max(much[1:cut]) > 0:
                yield "slow-words", told[cut][0], f"some steps are slow: {lines[told[cut][0]].strip()}"
                return
    for told in _rates(lines):
        if (last := _beside(told, lines)) is not None:
            says = "slower on more nodes" if any(_NODES.search(x) for x in lines) else "slower than the other run"
            yield "slow-words", last, f"{says}: {lines[last].strip()}"
            return
    for form, least, says in ((LOSS, _RISEN, "the loss rises"), (_MEMORY, _FILLED, "used memory only rises")):
        for told in measured(lines, form).values():
            values = [much for _, much in told]
            if form is LOSS and (jumps := jumps_in(values)):
                yield "slow-words", told[jumps[0]][0], f"the loss jumps: {lines[told[jumps[0]][0]].strip()}"
                return
            rise = values[values.index(min(values)) :]
            if len(rise) >= _RISES and all(b > a for a, b in pairwise(rise)) and rise[-1] >= least * rise[0] >= _LEAST:
                yield "slow-words", told[-1][0], f"{says}: {lines[told[-1][0]].strip()}"
                return
    for table in found:
        column = next((c for c in table.columns if "busbw" in c or "gb/s" in c or "bandwidth" in c), None)
        if column is None or any("size" in c or "bytes" in c for c in table.columns):
            continue
        speeds = [(row, speed) for row in table.rows if (speed := number_of(row.cells[column])) is not None]
        usual = median(much for _, much in speeds) if len(speeds) >= _MEMBERS else 0.0
        behind = next((row for row, much in speeds if much < _WORSE * usual), None)
        if behind is not None:
            yield "slow-words", behind.line, f"less bandwidth than the others: {behind.text.strip()}"
            return
