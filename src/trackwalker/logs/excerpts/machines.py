"""Machines that hold a run up, by their own tools: GPUs slower than they could be, disks, processors, memory.

Of GPUs the numbers and flags of `nvidia-smi`, whatever form it was asked for; of hosts `iostat`, `vmstat`, `top` and
`free`; of networks, NCCL's own choice beside the devices that are there; of compilers, what is compiled again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from trackwalker.logs.excerpts.tables import RATE, Row, Table, blocks, number_of, per_second

_BOX = re.compile(
    r"\bP(?P<state>\d{1,2})\s+(?P<draw>\d+)W\s*/\s*(?P<cap>\d+)W\s*\|\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*\|\s*(?P<busy>\d+)%"
)
_CARD = re.compile(r"(?i)^\W{0,2}\d{1,2}\s+.*?\s(?P<clock>\d{1,4})mhz\s+\d{1,4}mhz\s.*\s(?P<busy>\d{1,3})%\s*$")
_WORKS, _CRAWLS = 90, 300  # percent; MHz: no card computes at that clock
_PROCESS = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+(?:\S+\s+\S+\s+)?(?P<pid>\d+)\s+C(?:\+G)?\s+(?P<name>\S.*?)\s+(?P<used>\d+)MiB\s*\|\s*$"
)
_SHARE = 500  # MiB: less is what a display or a tool takes
_LOWERED = 0.95  # of the default limit
_SLOW = 0.7  # of the highest clock, or of the other GPUs'
_BUSY = 30  # percent: an idle GPU lowers its clock by itself
_LITTLE = 0.01  # of the memory
_ON_CPU = re.compile(r"(?i)\b(?:us(?:e|ing)|running on|device(?: is| used)?)\W{1,3}(?:device\W{1,3})?cpu\b")
Shown = tuple[str, int, str]  # a failure class, the line, what it says


_OF_MOST = re.compile(r"(?i)(?P<clock>\d{2,4}) ?MHz\W{1,3}(?:max|of|maximum|peak|/)\W{1,3}(?P<most>\d{3,4}) ?MHz")
_REASON = re.compile(
    r"(?i)throttl\w*.{0,40}?\b(?:HW_|SW_)?(?P<heat>THERMAL)|throttl\w*.{0,40}?\b(?:HW_|SW_)?(?P<power>POWER)"
)


def slow_gpus(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """Limits, clocks and reasons, of blocks and of tables."""
    for block in blocks(lines):
        merged = {name: value for row in block for name, value in row.cells.items()}
        first = block[0].line
        yield from _judge(Row(first, lines[first], merged), (), {n: r.line for r in block for n in r.cells}, lines)
    for table in found:
        if any("clock" in c or "clk" in c or "power" in c or "throttle" in c for c in table.columns):
            for row in table.rows:
                yield from _judge(row, table.rows, {}, lines)
    for at, line in enumerate(lines):
        if (match := _REASON.search(line, 0, 400)) and "ctive" not in line:
            yield ("throttled" if match["heat"] else "power-capped"), at, line.strip()
        elif (match := _OF_MOST.search(line, 0, 400)) and float(match["clock"]) < _SLOW * float(match["most"]):
            yield "clock-degraded", at, line.strip()
    yield from _boxes(lines)
    yield from _cards(lines)
    yield from _others(lines)


def _judge(row: Row, others: Sequence[Row], at: dict[str, int], lines: Sequence[str]) -> Iterator[Shown]:
    def shown(signature: str, *words: str) -> Shown:
        line = next((place for name, place in at.items() if all(w in name for w in words)), row.line)
        return signature, line, lines[line].strip()

    active = [n for n, value in row.cells.items() if value.strip().lower() == "active"]
    if any("thermal" in n for n in active):
        yield shown("throttled", "thermal slowdown")
    if any("brake" in n for n in active):
        yield shown("power-capped", "brake")
    if any(n.endswith("hw slowdown") for n in active) and not any("thermal" in n or "brake" in n for n in active):
        at_row = shown("slow-words", "hw slowdown")  # heat or power: the flag of both
        yield at_row[0], at_row[1], f"held back by itself: {at_row[2]}"
    limit = row.number("power", "limit", without=("default", "max", "min", "requested"))
    usual = row.number("default", "limit")
    if limit is not None and usual and limit < _LOWERED * usual:
        yield shown("power-capped", "power", "limit")
    clock = _clock(row)
    highest = row.number("max", "sm") or row.number("max", "graphics")
    peers = [c for other in others if other is not row and (c := _clock(other)) is not None]
    usual_clock = highest or (median(peers) if len(peers) > 1 else None)
    busy = next((n for w in (("util", "gpu"), ("gpu%",)) if (n := row.number(*w)) is not None), None)
    busy = number_of(row.cells["sm"]) if busy is None and "pclk" in row.cells and "sm" in row.cells else busy
    if number_of(row.cells.get("tviol", "")):
        yield shown("throttled")
    works = busy is None or busy >= _BUSY
    idle = any(n.rpartition("/")[2] in ("idle", "gpu_idle") or n.endswith("gpu_idle") for n in active)
    if clock and usual_clock and clock < _SLOW * usual_clock and works and not idle and (busy is not None or active):
        yield shown("clock-degraded", "sm")


def _clock(row: Row) -> float | None:
    for name in ("pclk", "sclk"):
        if name in row.cells:
            return number_of(row.cells[name])
    without = ("max", "throttle", "reason", "application", "default", "deferred")
    for word in ("sm", "graphics", "gr"):
        for name, cell in row.cells.items():
            if "clock" in name and re.search(rf"[./ ]{word}\b", name) and not any(w in name for w in without):
                return number_of(cell)
    return None


def _cards(lines: Sequence[str]) -> Iterator[Shown]:
    """Rows of `rocm-smi`, whatever columns it has: busy cards far below the clock of others, or of any card."""
    rows = [(at, m) for at, line in enumerate(lines) if (m := _CARD.match(line)) and int(m["busy"]) >= _WORKS]
    fastest = max((int(m["clock"]) for _, m in rows), default=0)
    for at, match in rows:
        if int(match["clock"]) < max(_CRAWLS, _SLOW * fastest if len(rows) > 1 else 0):
            yield "clock-degraded", at, lines[at].strip()


def _boxes(lines: Sequence[str]) -> Iterator[Shown]:
    """The table that `nvidia-smi` prints without options: one GPU limited below its peers; all idle while steps run."""
    for at, line in enumerate(lines):
        if line.startswith("|") and "ERR!" in line:  # a reading that the driver could not take
            yield "gpu-driver-fault", at, line.strip()
    rows = [(at, match) for at, line in enumerate(lines) if (match := _BOX.search(line))]
    caps = [int(match["cap"]) for _, match in rows]
    for at, match in rows:
        if len(rows) > 2 and int(match["cap"]) < _LOWERED * median(caps) and int(match["busy"]) >= _BUSY:
            yield "power-capped", at, lines[at].strip()
    unused = rows and all(int(m["used"]) <= _LITTLE * int(m["total"]) and m["busy"] == "0" for _, m in rows)
    told = next((at for at, line in enumerate(lines) if _ON_CPU.search(line)), None) if unused else None
    if told is not None:
        yield "no-gpu", told, lines[told].strip()


def _others(lines: Sequence[str]) -> Iterator[Shown]:
    """Two programs on one GPU, by the table of processes; a program's own ranks have one name."""
    seen: dict[str, set[str]] = {}
    for at, line in enumerate(lines):
        match = _PROCESS.match(line)
        if match is None or int(match["used"]) < _SHARE:
            continue
        names = seen.setdefault(match["gpu"], set())
        names.add(match["name"].split()[0].rpartition("/")[2])
        if len(names) == 2:
            yield "gpu-shared", at, line.strip()


_CPU = re.compile(r"^%?\s?Cpu(?P<which>\d*|\(s\))\s*:?\s.*?(?P<idle>[\d.]+)[ %]*id\b")
_PROCESSORS = re.compile(
    r"(?i)^(?:on-line )?cpu\(s\):\s+(\d+)\s*$|\b(\d+) (?:\w+ )?(?:cores|cpus|vcpus)\b|\bnproc\W{1,3}(\d+)\b"
)
_ASKS_PROCESSORS = re.compile(r"^[^|>]*\bnproc\b")
_LOAD = re.compile(
    r"^\s*(?P<bare>\d+\.\d+) \d+\.\d+ \d+\.\d+ \d+/\d+ \d+\s*$|load average: (?P<average>\d+\.\d+), \d+\.\d+, \d+\.\d+"
)
_CROWDED = 2.0  # times the processors: each waits as long as it runs
_AFFINITY = re.compile(r"affinity list: (?P<cpus>[\d,-]+)\s*$")
_WAITS = re.compile(r"(?P<waits>[\d.]+)[ %]*wa\b")
_STOPPED_FOR_DISKS = 30.0  # percent of all processors' time
_FULL_DISK, _LONG_WAIT = 90.0, 20.0  # percent; milliseconds: a fast disk is busy all the time and answers at once
_IDLE, _PINNED = 80.0, 90.0
_PERIODS, _OF_PERIODS = re.compile(r"^\s*nr_(periods|throttled)\s+(\d+)\s*$"), 0.25  # a cgroup's cpu.stat
_CORES = 4
_SAMPLES = 4
_GROWS = 1.5  # times the first
_OF_ALL = 0.25  # of the memory, between the first sample and the last
_RESIDENT = re.compile(
    r"(?i)\b(?:max[ _]?)?(?:rss|(?:cpu|host|system|process)[ _-]?(?:ram|mem(?:ory)?)(?:[ _]us(?:ed|age))?|ram(?:[ _]us(?:ed|age))?)(?: of (?:rank|worker|process) \d+)?\W{1,4}"  # noqa: E501
    r"(?P<much>\d+(?:\.\d+)?) ?(?P<unit>[KMGT])?i?B?\b"
)
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


def busy_hosts(lines: Sequence[str], found: Sequence[Table]) -> Iterator[Shown]:
    """What tables of the host's own tools show."""
    for table in found:
        for row in table.rows:
            waits = [n for c in table.columns if c.endswith("await") and (n := row.number(c)) is not None]
            used = row.number("%util")
            if used is not None and waits and used >= _FULL_DISK and max(waits) >= _LONG_WAIT:
                yield "storage-slow", row.line, row.text.strip()
            share = row.number("%iowait") if "%iowait" in table.columns else None
            if share is None and {"wa", "id", "us"} <= set(table.columns):
                share = row.number("wa")
            if share is not None and share >= _STOPPED_FOR_DISKS:
                yield "storage-slow", row.line, row.text.strip()
    yield from _processors(lines)
    yield from _more_than_cores(lines)
    yield from _pinned(lines)
    yield from _held_by_a_quota(lines)
    yield from _memory(lines)


def _processors(lines: Sequence[str]) -> Iterator[Shown]:
    cores: list[tuple[int, float]] = []
    for at, line in enumerate(lines):
        match = _CPU.match(line)
        if match is None:
            continue
        waits = _WAITS.search(line)
        idle = float(match["idle"])
        if waits and float(waits["waits"]) >= _STOPPED_FOR_DISKS:
            yield "storage-slow", at, line.strip()
        elif match["which"].isdigit():
            cores.append((at, idle))
    busy = [at for at, idle in cores if 100 - idle >= _PINNED]
    if len(cores) >= _CORES and len(busy) == 1 and all(idle >= _IDLE for at, idle in cores if at not in busy):
        yield "cpu-throttled", busy[0], lines[busy[0]].strip()


def _more_than_cores(lines: Sequence[str]) -> Iterator[Shown]:
    """Far more that runs, on average, than there are processors to run on."""
    counts = [float(next(filter(None, m.groups()))) for line in lines if (m := _PROCESSORS.search(line, 0, 200))]
    asked = [at + 1 for at, line in enumerate(lines[:-1]) if _ASKS_PROCESSORS.search(line)]
    counts += [float(lines[at]) for at in asked if lines[at].strip().isdigit()]
    for at, line in enumerate(lines) if counts else ():
        match = _LOAD.search(line, 0, 200)
        if match and float(match["bare"] or match["average"]) >= _CROWDED * max(counts):
            yield "cpu-throttled", at, line.strip()
            return


def _held_by_a_quota(lines: Sequence[str]) -> Iterator[Shown]:
    """Processes that used up their share of the processors in a good part of all periods."""
    told = {m[1]: (at, int(m[2])) for at, line in enumerate(lines) if (m := _PERIODS.match(line))}
    if {"periods", "throttled"} <= told.keys() and told["throttled"][1] >= _OF_PERIODS * told["periods"][1] > 0:
        at = told["throttled"][0]
        yield "cpu-throttled", at, lines[at].strip()


def _pinned(lines: Sequence[str]) -> Iterator[Shown]:
    """Many processes that may only use the same few processors."""
    lists = [(at, m["cpus"]) for at, line in enumerate(lines) if (m := _AFFINITY.search(line))]
    for cpus, count in Counter(cpus for _, cpus in lists).items():
        if "-" not in cpus and count > 2 * (cpus.count(",") + 1):
            at = next(at for at, each in lists if each == cpus)
            yield "cpu-throttled", at, lines[at].strip()


def _memory(lines: Sequence[str]) -> Iterator[Shown]:
    """Used memory that only rises: rows of `free`, or what steps print of their process."""
    free = [(at, line.split()) for at, line in enumerate(lines) if line.startswith("Mem:")]
    samples = [(at, float(w[2]), float(w[1])) for at, w in free if len(w) > 3 and w[1].isdigit() and w[2].isdigit()]
    if _rises([used for _, used, _ in samples]) and samples[-1][1] - samples[0][1] >= _OF_ALL * samples[0][2]:
        yield "memory-leak", samples[-1][0], lines[samples[-1][0]].strip()
    told = [(at, m) for at, line in enumerate(lines) if (m := _RESIDENT.search(line, 0, 400))]
    sizes = [float(m["much"]) * _UNITS.get((m["unit"] or "M").upper(), 1.0) for _, m in told]
    if _rises(sizes) and sizes[-1] >= _GROWS * sizes[0]:
        yield "memory-leak", told[-1][0], lines[told[-1][0]].strip()


def _rises(values: Sequence[float]) -> bool:
    """Whether every value is above the one before and the last step is no smaller than a quarter of the usual one."""
    if len(values) < _SAMPLES or any(b <= a for a, b in pairwise(values)):
        return False
    return values[-1] - values[-2] >= 0.25 * (values[-1] - values[0]) / (len(values) - 1)


_FILE_SYSTEM = re.compile(
    r"^\S+\s+(?:\w+\s+)?(?:[\d.]+[KMGTP]?i?\s+){3}(?P<used>\d{1,3})%\s+(?P<where>/\S*)\s*$"  # a row of df
)
_NO_STORE = re.compile(r"^/(?:dev|proc|sys|run|boot|snap)\b")


def full_disks(lines: Sequence[str]) -> Iterator[Shown]:
    """A file system of which nothing is free, by the table of them."""
    for at, line in enumerate(lines):
        match = _FILE_SYSTEM.match(line)
        if match and int(match["used"]) >= 100 and not _NO_STORE.match(match["where"]):
            yield "storage-full", at, line.strip()


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


_WHO = re.compile(r"(?i)\b(?:rank|dev(?:ice)?|gpu|cuda|worker|host|node)s?[ =:]{0,2}[\w.:-]*\d[\w.:-]*")
_MEASURE = re.compile(
    r"(?i)\b(?:mean|avg|average|median|time|took|elapsed|fwd|forward|step|compute)\w*\W{0,3}(?P<much>\d+(?:\.\d+)?) ?(?:ms|s|sec|seconds)\b"  # noqa: E501
)
_WORD = re.compile(r"\S*\d\S*")
_MEMBERS, _AGREE, _BEHIND = 4, 1.15, 1.5  # lines; times the usual one; times the next


def one_far_behind(lines: Sequence[str]) -> Iterator[Shown]:
    """Of the same measure of many ranks, devices or hosts, one that takes far longer while the others agree."""
    forms: dict[str, list[tuple[int, tuple[str, ...], float]]] = defaultdict(list)
    for at, line in enumerate(lines):
        who = tuple(m.group() for m in _WHO.finditer(line, 0, 300))
        much = _MEASURE.search(line, 0, 400) if who else None
        rate = RATE.search(line, 0, 400) if who and much is None else None
        if much is not None:
            forms[_WORD.sub("#", line[: much.start()])].append((at, who, float(much["much"])))
        elif rate is not None and (value := per_second(rate)):
            forms[_WORD.sub("#", line[: rate.start()])].append((at, who, 1 / value))
    for told in forms.values():
        ranked = sorted(told, key=lambda each: each[2])
        if len(told) < _MEMBERS or len({who for _, who, _ in told}) < len(told):
            continue
        usual, next_to, worst = ranked[len(ranked) // 2][2], ranked[-2][2], ranked[-1]
        if worst[2] >= _BEHIND * next_to and next_to <= _AGREE * usual:
            yield "slow-words", worst[0], f"far behind the others: {lines[worst[0]].strip()}"


_SAVES = re.compile(
    r"(?i)(?:sav(?:e|ed|ing)|checkpoint\w*|ckpt).{0,90}?(?:\bin|took|taking|time|after|[:=])\W{0,2}(?P<much>\d+(?:\.\d+)?) ?(?:s|sec|secs|seconds)\b"  # noqa: E501
    r"|(?:time|timing)\w*/\w*(?:save|checkpoint|ckpt)\w*\W{1,3}(?P<seconds>\d+\.\d+)"
)
_LONG_S = 300.0  # of one save
_READS = re.compile(r"(?i)restor|load|read")  # how much was read is not told: minutes may be what it takes


def long_saves(lines: Sequence[str]) -> Iterator[Shown]:
    """Checkpoints whose writing took minutes, by their own line."""
    for at, line in enumerate(lines):
        match = _SAVES.search(line, 0, 1000)
        if match and not _READS.search(match[0]) and float(match["much"] or match["seconds"]) >= _LONG_S:
            yield "storage-slow", at, line.strip()


_COMPILES = re.compile(
    r"(?i)\b(?:re)?(?:compiling|tracing)\b(?: function| module)? [`'\"]?(?P<what>[A-Za-z_][\w.<>]*)\b(?P<shapes>.{0,400})"  # noqa: E501
)
_COMPILE_ID = re.compile(r"\] \[(?P<frame>\d+)/(?P<count>\d+)\] ")
_OUT_OF = re.compile(r"(?P<much>\d+) out of the last \d+ calls to .{1,200}retrac")
_METRIC = re.compile(r"^(?:Metric|Counter): (?P<name>\w+)")
_VALUE = re.compile(r"^\s+(?:TotalSamples|Value): (?P<much>\d+)")
_AGAIN = 3  # times, in different shapes
_OFTEN = 8  # compilations of one frame
_MOSTLY = 0.5  # of a step's time
_A_STEP = re.compile(r"(?i)\b(?:it|iter|iteration|step|epoch)s?\b\W{0,3}\d")
_ROUNDS = 4  # times: the first ones of a training step, an evaluation and a shorter last batch are none


def compiled_again(lines: Sequence[str]) -> Iterator[Shown]:
    """One function in many shapes, or again and again after other work; counters of compilations."""
    yield from _in_rounds(lines)
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


def _in_rounds(lines: Sequence[str]) -> Iterator[Shown]:
    """One function that is compiled anew each time other work was done: several ranks compile it at one time."""
    seen: dict[str, int] = defaultdict(int)
    last: dict[str, int] = {}
    work = 0
    for at, line in enumerate(lines):
        if match := _COMPILES.search(line, 0, 300):
            if last.get(match["what"]) != work:
                last[match["what"]] = work
                seen[match["what"]] += 1
                if seen[match["what"]] == _ROUNDS:
                    yield "recompilation", at, line.strip()
        elif _A_STEP.search(line, 0, 300):
            work += 1
