"""What a program prints of its own slowness: waits for data, compilation again, slower steps, tests, networks.

A run that is slow did not fail: its own numbers say what it waits for, and words only that it is slow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from trackwalker.logs.excerpts.machines import Shown
from trackwalker.logs.excerpts.tables import Table, number_of
from trackwalker.logs.failures.kinds import kind_of
from trackwalker.logs.failures.structure import warns

_TIMED = re.compile(
    r"(?P<name>[A-Za-z][\w+/.]*(?:[ _](?:time|wait|load(?:ing)?|t))?(?:\(\w*\))?) ?(?:[:=]\s*|\s{1,8})(?P<much>\d+\.\d+)"  # noqa: E501
)
_LAST = re.compile(r"[./]")
_INPUT = re.compile(
    r"(?i)^(?:(?:t_?)?data(?:_?(?:t|time|load(?:er|ing)?|wait|fetch)\w*|[ _](?:time|wait|load(?:ing)?|t))?|(?:batch_)?load(?:er|ing)?(?:[ _](?:time|t))?"  # noqa: E501
    r"|rtime|fetch\w*|read(?:[ _]?time)|next\(\w*\)|input[ _](?:time|wait))$"
)
_WHOLE = re.compile(r"(?i)^(?:(?:batch|iter|step|total|i)?[ _]?time|total|iter|step|batch[ _]?t?)$")
_WORK = re.compile(
    r"(?i)^(?:forward\S*|fwd\S*|compute\w*|gpu[ _]?time|model[ _]?time|train[ _]?time|fb\w*|backward\S*|net[ _]?time)$"
)
_MOSTLY, _SHOWN = 0.5, 4  # of a step's time; lines that show it
_LOADS = re.compile(
    r"(?i)dataloader|data_?load|train_dataloader|_next\b.*data|get_train_batch|input_pipeline|IteratorGetNext"
)
_HALF = 50.0  # percent of the whole
_COMPILES = re.compile(
    r"(?i)\b(?:re)?(?:compiling|tracing)\b(?: function| module)? [`'\"]?(?P<what>[A-Za-z_][\w.<>]*)\b(?P<shapes>.{0,400})"  # noqa: E501
)
_COMPILE_ID = re.compile(r"\] \[(?P<frame>\d+)/(?P<count>\d+)\] ")
_OUT_OF = re.compile(r"(?P<much>\d+) out of the last \d+ calls to .{1,200}retrac")
_METRIC = re.compile(r"^(?:Metric|Counter): (?P<name>\w+)")
_VALUE = re.compile(r"^\s+(?:TotalSamples|Value): (?P<much>\d+)")
_SETS_UP = 3  # lines at the end
_AGAIN = 3  # times, in different shapes
_OFTEN = 8  # compilations of one frame
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
    r"|\(downgraded\)|\bslow(?:er|s down|ed down)\b|\bslow training\b|\b(?:low|poor|bad|half the) (?:gpu )?(?:util\w*|bandwidth|throughput|performance|busbw)\b"  # noqa: E501
    r"|\b(?:drop\w*|fell|falls|decreas\w+|went down) (?:from .{1,40}? )?to \S|\bwaiting (?:for|on) (?:the )?(?:data|input|batch\w*|loader)\b"  # noqa: E501
    r"|\bgpu[ -]util\w*\W{1,4}(?:is |at |only |about |~ ?)*[1-4]?\d(?:-\d+)? ?%"
    r"|\b(?:from|was) (?:about )?\d+(?:\.\d+)? ?(?:m?s|sec\w*|min\w*)\b.{0,30}\b(?:to|now) (?:about )?\d+(?:\.\d+)? ?(?:m?s|sec\w*|min\w*)\b"  # noqa: E501
)
_NO_MORE = re.compile(
    r"(?i)\b(?:hangs?|hung|freez\w+|frozen|stuck|stalls?|stalled)\b(?! (?:at|in) (?:a )?breakpoint)"
    r"|\bno (?:further|more|new) (?:output|progress|lines?|steps?|log)\b|\bnothing (?:more |else |further )?(?:is |was )?printed\b"  # noqa: E501
    r"|\bno (?:output|progress|log|lines?) (?:for|since|after)\b|\bnothing (?:more|else|further|new)(?: (?:from|for|since|after|on|in)\b|\W{0,3}$)"  # noqa: E501
)

_BY_HAND = re.compile(
    r"^\s*(?:\^C)+|^(?:[\w.@-]+[:~][\w~/.-]*)?\s?[$#]\s(?:sudo )?(?:ssh \S+ ['\"]?|kubectl exec \S+ .*?-- )?"
    r"(?:py-spy|gdb|nvidia-smi|rocm-smi|amd-smi|ps|top|htop|iostat|mpstat|dmesg|strace|pstack|ibstat|rdma|ethtool|cat /proc)\b"  # noqa: E501
)
_SLOW_KINDS = frozenset({"time", "data", "device", "network", "storage", "memory"})
_SLOW_PART = re.compile(r"(?i)\bslow")
_ASIDE = re.compile(r"^\W*(?:#|--|==|\(|\*\*)|^\W*$")  # what a person writes between the lines
_PROMPT = re.compile(r"^(?:[\w.@-]+[:~][\w~/.-]*)?\s?[$]\s|^\d\d:\d\d \$ ")
_WRITES = re.compile(r"(?i)\b(?:sav(?:e|ing)|writ(?:e|ing)|flush(?:ing)?|commit(?:ting)?|upload(?:ing)?)\b.{0,60}(?:checkpoint|ckpt|model|state|weights|/)|\b(?:checkpoint|ckpt)\w*.{0,30}\b(?:sav|writ)(?:e|ing)\b")  # noqa: E501
_READS_DATA = re.compile(r"(?i)^\W*(?:map|filter|generating|tokeniz\w+|loading)\b.{0,40}(?:\d+%\||data ?set|data|examples|split)|data_?loader|first batch")  # noqa: E501
_STACK = re.compile(r"^\s+(?:File \"|[\w<>.]+ \(|#\d+ |at )")
_MEETS = re.compile(r"(?i)rendezvous|init_process_group|process group|\bwaiting for .{0,40}(?:workers?|ranks?|peers?|nodes?|hosts?|processes|members|master|leader)\b|master_addr|\b(?:re)?join(?:ed|ing)?\b|init_distributed|distributed init")  # noqa: E501
_SPINS = re.compile(r"(?<![\d.])(?:9[0-9]|100) ?%")  # several GPUs: that is how waiting for a collective looks
_IDLES = re.compile(r"(?<![\d.])0 ?%.*\d ?MiB|\d ?MiB.*(?<![\d.])0 ?%")
_TOGETHER = re.compile(
    r"(?i)\b[nr]ccl\b|gloo\b|all_?-?(?:reduce|gather)|reduce_?scatter|broadcast|\ball-?to-?all|barrier|sync_global|collective|\bmpi(?:run|exec)\b"  # noqa: E501
    r"|torchrun|\bsrun\b|\bdeepspeed\b|accelerate launch|\b(?:ddp|fsdp)\b|\[rank ?[1-9]|\brank[ :=]?[1-9]|\btask=[1-9]|\b(?:n_?nodes|num_nodes|world_?size|num_processes)\W{1,3}(?:[2-9]|\d\d)"  # noqa: E501
    r"|\b(?:two|both|four|[2-9]|\d\d+) (?:nodes|hosts|machines)\b|weight sync|xccl|/NET/"
)
_SHARE = re.compile(r"^\s*(?P<much>\d{1,3}(?:\.\d+)?)%\s+\S")
_AT_ITS_END = re.compile(
    r"(?i)\b(?:training|fine-?tuning|pre-?training|experiment)\b(?: (?:is|was|has|run|job|process))*(?: been)? (?:complete|completed|finished|done|ended)\b"  # noqa: E501
    r"|\b(?:finished|completed|done) (?:pre-?|fine-?)?training\b|destroy_process_group\(\) was not called before program exit"  # noqa: E501
    r"|\btrain\w*[^|]{0,30}: 100%\|[^|]*\| (\d+)/\1 |\bdriver shutting down\b"
)
_MAY_BE = re.compile(
    r"(?i)\b(?:can|could|may|might|will|would|should|if|when|unless|to avoid|consider|please|often|usually|expect\w*)\b|WARN|^\W{0,2}W\b"  # noqa: E501
)


def slow_programs(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """What names a cause by numbers of its own."""
    yield from _waits(lines, found)
    yield from _compiled_again(lines)
    yield from _nccl_tests(lines)
    yield from _members(lines)
    yield from _matrices(lines)


def ended_well(lines: Sequence[str]) -> Iterator[Shown]:
    """The last word of a program that came to its end, whatever its peers say of it afterwards."""
    for at, line in enumerate(lines):
        if len(line) < 400 and _AT_ITS_END.search(line):
            yield "after-the-end", at, line.strip()
            return


def asked_about(lines: Sequence[str]) -> Iterator[Shown]:
    """Whoever ends a command by hand, or asks a machine what a program does, has seen it stop."""
    typed = next((at for at, line in enumerate(lines) if _BY_HAND.search(line, 0, 400)), None)
    if typed is not None:
        yield "slow-words", typed, lines[typed].strip()


def slow_words(lines: Sequence[str]) -> Iterator[Shown]:
    """Words that tell of slowness or of an end without an error, and of no cause."""
    spoken = [at for at, line in enumerate(lines) if line.strip()]
    if spoken and all("NCCL INFO" in lines[at] for at in spoken[-_SETS_UP:]) and len(spoken) > _SETS_UP:
        yield "slow-words", spoken[-1], f"the last words are of NCCL's set-up: {lines[spoken[-1]].strip()}"
    for at, line in enumerate(lines):
        told = len(line) < 400 and (_SLOW_WORDS.search(line) or _NO_MORE.search(line))
        if told and not warns(line) and not _MAY_BE.search(line):
            yield "slow-words", at, line.strip()


def class_shown(lines: Sequence[str], at: int, text: str) -> str:
    """The class that an excerpt speaks for in which a run is slow or does not get on, told in the line `at`.

    That line is a person's words or command: what a run that stands was doing, the last line of its own says, and
    whether others take part in it, all lines. Where neither does, its program is asked first, as for what is slow
    the time.
    """
    stops = (_NO_MORE.search(text) or _BY_HAND.search(text) or "NCCL's set-up" in text) and not _SLOW_PART.search(text)
    if not stops:
        return kind if (kind := kind_of([text])) in _SLOW_KINDS else "time"
    own = [line for line in lines[: at + 1] if not _NO_MORE.search(line) and not _BY_HAND.search(line)]
    own = [line for line in own if line.strip() and not _ASIDE.match(line) and not _PROMPT.match(line)]
    last = own[-1] if own else ""
    if _WRITES.search(last):
        return "storage"
    if any(_LOADS.search(line) for line in lines if _STACK.match(line)) or _READS_DATA.search(last):
        return "data"
    if _MEETS.search(last):
        return "rendezvous"
    busy = sum(1 for line in lines if _SPINS.search(line, 0, 400))
    idle = sum(1 for line in lines if _IDLES.search(line, 0, 400))
    if idle > 1 and not busy:
        return "program"  # whoever waits in a collective keeps his GPU busy with it
    return "network" if busy > 1 or any(_TOGETHER.search(line, 0, 1000) for line in lines) else "program"


def _waits(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    waited: list[tuple[float, float, int]] = []
    for at, line in enumerate(lines):
        told = [(_LAST.split(m["name"])[-1], float(m["much"])) for m in _TIMED.finditer(line, 0, 600)]
        waits = next((much for name, much in told if _INPUT.match(name)), None)
        whole = next((much for name, much in told if _WHOLE.match(name)), None)
        work = [much for name, much in told if _WORK.match(name)]
        total = whole if whole is not None else (waits or 0.0) + sum(work) if work else None
        if waits is not None and total and waits <= total:
            waited.append((waits, total, at))
    # All together: a loader that stalls now and then holds few steps up, each for long.
    spent = sum(total for _, total, _ in waited)
    if len(waited) >= _SHOWN and sum(waits for waits, _, _ in waited) >= _MOSTLY * spent:
        yield "input-stall", waited[-1][2], lines[waited[-1][2]].strip()
    for at, line in enumerate(lines):  # a profile by frames
        share = _SHARE.match(line)
        if share and _HALF <= float(share["much"]) <= 100 and _LOADS.search(line, 0, 400):
            yield "input-stall", at, line.strip()
    for table in found:
        percent = [c for c in table.columns if "%" in c]
        for row in table.rows if percent else ():
            named = any(_LOADS.search(cell) for cell in row.cells.values())
            if named and max((number_of(row.cells[c]) or 0.0) for c in percent) >= _HALF:
                yield "input-stall", row.line, row.text.strip()


def _compiled_again(lines: Sequence[str]) -> Iterator[Shown]:
    shapes: dict[str, set[str]] = defaultdict(set)
    frames: dict[str, set[int]] = defaultdict(set)
    metrics: dict[str, list[tuple[int, int]]] = defaultdict(list)
    name = ""
    for at, line in enumerate(lines):
        if match := _COMPILES.search(line, 0, 300):
            known = shapes[match["what"]]
            known.add(match["shapes"])
            if len(known) == _AGAIN:
                yield "recompilation", at, line.strip()
        if match := _COMPILE_ID.search(line, 0, 200):
            frames[match["frame"]].add(int(match["count"]))
            if max(frames[match["frame"]]) >= _OFTEN and len(frames[match["frame"]]) == _AGAIN:
                yield "recompilation", at, line.strip()
        if (match := _OUT_OF.search(line, 0, 300)) and int(match["much"]) >= _AGAIN:
            yield "recompilation", at, line.strip()
        if match := _METRIC.match(line):
            name = match["name"]
        elif name and (match := _VALUE.match(line)):
            metrics[name].append((int(match["much"]), at))
            name = ""
    compiles = metrics["UncachedCompile"] or metrics["CompileTime"] or [(0, 0)]
    ran = (metrics["ExecuteTime"] or [(0, 0)])[-1][0]
    compiled, at = compiles[-1]
    again = len(compiles) >= _AGAIN and all(b[0] > a[0] for a, b in pairwise(compiles))  # in every report
    if again or (compiled >= 2 * _OFTEN and compiled >= _MOSTLY * ran):
        yield "recompilation", at - 1, f"{lines[at - 1].strip()} {lines[at].strip()}"


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


_BY_TCP = re.compile(
    r"NCCL INFO (?:NET/IB ?: No device found|Using network Socket|NET/Socket ?: Using)|via NET/Socket/"
)
_BY_RDMA = re.compile(r"NCCL INFO Using network (?!Socket)|via NET/(?!Socket)\w+/")
_THERE = re.compile(
    r"\b(?:mlx[45]_(?:bond_)?\d+|bnxt_re\d+|rdmap\w+|irdma\d+|hfi1_\d+|efa_\d+|ionic_\d+)\b|\bhca_id:|\b(?:InfiniBand|RoCE|NDR|HDR)\b"
)


def unused_rdma(lines: Sequence[str]) -> Iterator[Shown]:
    """NCCL goes by TCP where the text shows RDMA devices; of runs beside each other the one that goes by TCP."""
    slow = next((at for at, line in enumerate(lines) if _BY_TCP.search(line, 0, 400)), None)
    there = any(_THERE.search(line, 0, 400) for line in lines)
    if slow is not None and (there or any(_BY_RDMA.search(line, 0, 400) for line in lines)):
        yield "rdma-misconfigured", slow, lines[slow].strip()


_A_STEP = re.compile(r"(?i)\b(?:it|iter|iters|iterations?|steps?|batch(?:es)?|epochs?)\b|it/s|/it\b")
_SECONDS = re.compile(
    r"(?i)\b(?:took|takes|time|elapsed|duration|dt|per (?:iteration|step|batch))\b(?: ?\((?:m?s|sec\w*)\))?\s?[:=]?\s?(?P<much>\d+(?:\.\d+)?)(?![\d:/])"  # noqa: E501
    r"|(?<![\d:.])(?P<rate>\d+\.\d+) ?(?:s|sec|ms|seconds)/(?:it|iter|iteration|step|batch)\b"
)
_DIGITS = re.compile(r"\s*\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FEWEST = 3  # before and after
_SLOWER = 1.5  # times the slowest before
_GROWN = 2.0  # times the first, where every one is slower than the one before
_SAVES = re.compile(
    r"(?i)(?:sav(?:e|ed|ing)|checkpoint\w*|ckpt).{0,90}?(?:\bin|took|taking|time|after|[:=])\W{0,2}(?P<much>\d+(?:\.\d+)?) ?(?:s|sec|secs|seconds)\b"  # noqa: E501
    r"|(?:time|timing)\w*/\w*(?:save|checkpoint|ckpt)\w*\W{1,3}(?P<seconds>\d+\.\d+)"
)
_LONG_S = 300.0  # of one save
_READS = re.compile(r"(?i)restor|load|read")  # how much was read is not told: minutes may be what it takes
_WHO = re.compile(r"(?i)\b(?:rank|dev(?:ice)?|gpu|cuda|worker|host|node)s?[ =:]{0,2}[\w.:-]*\d[\w.:-]*")
_MEASURE = re.compile(
    r"(?i)\b(?:mean|avg|average|median|time|took|elapsed|fwd|forward|step|compute)\w*\W{0,3}(?P<much>\d+(?:\.\d+)?) ?(?:ms|s|sec|seconds)\b"  # noqa: E501
)
_WORD = re.compile(r"\S*\d\S*")
_MEMBERS, _AGREE = 4, 1.15  # lines; times the usual one


def slower_steps(lines: Sequence[str]) -> Iterator[Shown]:
    """Steps of one form that from one line on take far longer than all before, or longer from line to line."""
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        match = _SECONDS.search(line, 0, 400) if _A_STEP.search(line, 0, 400) else None
        if match is not None:
            series[_DIGITS.sub("#", line[: match.start()])].append((at, float(match["much"] or match["rate"])))
    for told in series.values():
        seconds = [much for _, much in told]
        for cut in range(_FEWEST, len(seconds) - _FEWEST + 1):
            if min(seconds[cut:]) >= _SLOWER * max(seconds[1:cut]) > 0:
                yield "slower", told[cut][0], lines[told[cut][0]].strip()
                return
        grows = len(seconds) >= _FEWEST and all(b > a for a, b in pairwise(seconds))
        if grows and seconds[-1] >= _GROWN * seconds[0] > 0:
            yield "slower", told[-1][0], lines[told[-1][0]].strip()
            return


def one_far_behind(lines: Sequence[str]) -> Iterator[Shown]:
    """Of the same measure of many ranks, devices or hosts, one that takes far longer while the others agree."""
    forms: dict[str, list[tuple[int, tuple[str, ...], float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        who = tuple(m.group() for m in _WHO.finditer(line, 0, 300))
        much = _MEASURE.search(line, 0, 400) if who else None
        if much is not None:
            forms[_WORD.sub("#", line[: much.start()])].append((at, who, float(much["much"])))
    for told in forms.values():
        ranked = sorted(told, key=lambda each: each[2])
        if len(told) < _MEMBERS or len({who for _, who, _ in told}) < len(told):
            continue
        usual, next_to, worst = ranked[len(ranked) // 2][2], ranked[-2][2], ranked[-1]
        if worst[2] >= _SLOWER * next_to and next_to <= _AGREE * usual:
            yield "slow-words", worst[0], lines[worst[0]].strip()


def long_saves(lines: Sequence[str]) -> Iterator[Shown]:
    """Checkpoints whose writing took minutes, by their own line."""
    for at, line in enumerate(lines):
        match = _SAVES.search(line, 0, 1000)
        if match and not _READS.search(match[0]) and float(match["much"] or match["seconds"]) >= _LONG_S:
            yield "storage-slow", at, line.strip()
