"""Which rank runs on which host, from what launchers and libraries print about it at the start and at the end.

A line that a rank wrote speaks for that rank only: what it says about others is not believed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from trackwalker.logs.failures.owners import (
    Label,
    actors_shown,
    hosts_listed,
    hosts_shown,
    label_of,
    named_by,
    rows_shown,
)
from trackwalker.logs.failures.reactions import reacts
from trackwalker.logs.failures.roster import counted_below, read_tables, started_below
from trackwalker.logs.formats.blocks import HERE, Sections
from trackwalker.logs.scanning.labels import learn_forms
from trackwalker.logs.scanning.lines import LAUNCHERS, PROMPTS, Body, clean, parse

_HOST = r"(?P<host>(?=[\w.-]*\d)[A-Za-z][\w.-]{1,63})"
_RANK = r"(?P<rank>\d{1,6})"
_FORMS = (
    re.compile(rf"^{_HOST}:\d{{1,8}}:\d{{1,8}} \[\d+\] NCCL INFO .*?\brank {_RANK}\b"),
    re.compile(
        rf"(?i)(?<!local_)(?<!local )(?<!node )\brank['\"]?[ =:#]{{1,3}}{_RANK}\b[^\n]{{0,60}}?\b(?:host(?:name)?|node(?:name)?|on|at|@)['\"]?[ =:]{{1,3}}['\"]?{_HOST}"  # noqa: E501
    ),
    re.compile(
        rf"(?i)\b(?:host(?:name)?|node(?:name)?)['\"]?[ =:]{{1,3}}['\"]?{_HOST}[^\n]{{0,60}}?(?<!local_)(?<!local )(?<!node )\brank['\"]?[ =:#]{{1,3}}{_RANK}\b"  # noqa: E501
    ),
    re.compile(rf"\[Node {_RANK} @ {_HOST}\]"),
    re.compile(  # JAX's processes
        rf"(?i)\bprocess(?:_index|_id| index| id)?[ =:#]{{1,3}}{_RANK}\b[^\n]{{0,80}}?\b(?:host(?:name)?|node(?:name)?|on|at|@)['\"]?[ =:]{{1,3}}['\"]?{_HOST}"  # noqa: E501
    ),
)
_TASKS = re.compile(rf"^srun: error: {_HOST}: tasks? (?P<tasks>[\d,-]+): ")
_ELASTIC_HOST = re.compile(rf"^\s*host\s+: {_HOST}\s*$")
_ELASTIC_RANK = re.compile(rf"^\s*rank\s+: {_RANK} \(local_rank")
_MAP_HOST = re.compile(rf"^\s*Data for node: {_HOST}\s")  # Open MPI's map of the job
_MAP_RANK = re.compile(rf"^\s*Process OMPI jobid: \S+ App: \d+ Process rank: {_RANK}\b")
_OWN_RANK = re.compile(
    r"(?<!\w)(?<!node )(?<!local )(?:(?:global_|world_)?rank|process_index(?:\(\))?)[=: ]{1,2}(\d{1,6})\b"
)
_PER_NODE = re.compile(
    rb"\b(?:nproc[_-]per[_-]node|(?:PET_)?NPROC_PER_NODE|GPUS_PER_NODE|num_local_procs)[= ](\d{1,3})\b"
)
_NODE_HOST = re.compile(rb"(?m)^ *(\d{1,6}): .{0,80}?\bHOST(?:NAME)?=([A-Za-z][\w.-]{1,63})")
_POD_NODE = re.compile(rb"(?m)^\[pod/([\w.-]+)/[\w.-]+\] .{0,200}?\bNODE_RANK=(\d{1,6})\b")
_RAY_RANK = re.compile(r"\bip=(?P<ip>[\w.:-]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d{1,6})\b")
_DIGITS = re.compile(r"\d+")
_NUMBERED = re.compile(r"([A-Z]* ?)\[(\d{1,5})\] ")  # below a pod's or a host's label: a rank of its own
_SLASHED = re.compile(rf"(?:[\d:.,]{{8,15}} )?{_HOST}[/#@]{_RANK}\s")
_HOST_LABEL = re.compile(r"^([A-Za-z][\w.-]{1,63}):(?: |$)")
_ADDRESS = re.compile(  # of a named host: a line of the launcher tells both
    rf"(?i)\b(?:host(?:name)?|node(?:name)?)[ =:]{{1,2}}['\"]?{_HOST}['\"]?[ ,;]{{1,3}}(?:ip|addr(?:ess)?)[ =:]{{1,2}}['\"]?(?P<ip>(?:\d{{1,3}}\.){{3}}\d{{1,3}})\b"  # noqa: E501
)
_UNLIMITED = re.compile(rb"ulimit -l[^\n]{0,80}\n(?:[^\n]*\n){0,2}?unlimited\n|--ulimit memlock=-1\b")
# No line without one of them tells who runs where.
_WORDS = (b"ank", b"ost", b"srun", b"@ ", b"kernel", b"ode: ", b"process_")
_PER = (b"per_node", b"per-node", b"PER_NODE", b"num_local_procs")  # found faster than the expression
_RULES = frozenset({b"==", b"--", b"##", b"**", b"~~", b">>", b"++"})
_NODE_RANK = re.compile(rb"(?i)\bnode_rank[=: ](\d{1,5})\b")
_A_DEVICE = re.compile(r"(?i)^(?:gpu|cuda|hip|npu|card)[:_]?\d+$")
_TIME = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):([0-5]\d):([0-5]\d(?:\.\d+)?)(?![\d:])")
_DATE = re.compile(rb"\b20\d\d-([01]\d)-([0-3]\d)[T ]")
_MOST = 1 << 17  # ranks
_MOST_LEARNED = 600  # lines from which the form of labels is learned
_LABELLED = 0.6  # of the lines at the front: then labels are the rule
_UNLABELLED = 0.3  # of the lines: below that a launcher's labels are all there is
_MOST_OF_A_RANK = 100  # such lines at the front, and at the end, of a file that is one rank's: it tells its own host


@dataclass
class Places:
    """Who is who in one job: what the front of its log tells of labels, nodes and ranks."""

    actors: dict[str, int] = field(default_factory=dict)  # a process's or a pod's label -> rank
    per_node: int = 1  # ranks that one task or pod of the launcher holds
    locals: bool = False  # labels below those of nodes count from 0 on each node
    node_hosts: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)  # a pod -> its number among the nodes
    ended_first: int | None = None  # the rank that the launcher says ended first
    accused: int | None = None  # the one rank that others name as gone and that names nobody
    missed: set[int] = field(default_factory=set)  # ranks that speak, behind the last step, of one they lost
    reported: bool = False  # something was printed over and over before the end: a healthy part to hold the end against
    counted: bool = False  # something counted on before the end: steps of a trainer that nobody knows
    first_host: str = ""  # where that rank ran
    prompts: list[int] = field(default_factory=list)  # lines that somebody typed: each begins another command's output
    unlimited: bool = False  # it shows that memory may be locked without limit
    of_host: dict[str, list[int]] = field(default_factory=dict)  # the ranks of a host, as tables tell them
    own: list[Label] = field(default_factory=list)  # the forms of the log's own labels, where no launcher's is known
    labelled: bool = False  # nearly all lines carry a rank: those that carry none are the launcher's
    names: dict[str, str] = field(default_factory=dict)  # of hosts, by their addresses
    named: dict[int, str] = field(default_factory=dict)  # the host a rank speaks of: its own, unless all name one
    day: float = 0.0  # of the first line that tells a date, in seconds: lines that tell only the hour are of that day
    sections: Sections = field(default_factory=Sections)  # blocks of the main log that quote one rank

    @property
    def first(self) -> int | None:
        """Who ended first, by the launcher's word or by those who lost it."""
        return self.ended_first if self.ended_first is not None else self.accused

    def front(self, text: bytes, main: bool = True) -> None:
        """Read the beginning of a file."""
        if main:
            self.unlimited = _UNLIMITED.search(text) is not None
            self._headings(text)
            if match := _DATE.search(text):
                self.day = (int(match[1]) * 31 + int(match[2])) * 86400.0
            self.prompts = [text.count(b"\n", 0, m.start()) + 1 for m in PROMPTS.finditer(text)]
        if any(word in text for word in _PER) and (match := _PER_NODE.search(text)):
            self.per_node = int(match[1])
        if self.per_node == 1:
            self.per_node, told = started_below(text)
            self.node_hosts |= told
        if self.per_node > 1:
            self.node_hosts |= {int(m[1]): m[2].decode() for m in _NODE_HOST.finditer(text)}
            self.nodes |= {m[1].decode(): int(m[2]) for m in _POD_NODE.finditer(text)}

    def _headings(self, text: bytes) -> None:
        """The headings of blocks: a line that names a rank or a host, or a host's name between two rules (dshbak)."""
        lines = text.split(b"\n")
        per = int(match[1]) if (match := _PER_NODE.search(text)) else 1
        for number, line in enumerate(lines, 1):
            if self.sections.lines and PROMPTS.match(line):
                self.sections.host(number, "", None)
            elif line[:2] in _RULES:
                name = clean(lines[number][:80]).strip() if number < len(lines) else ""
                if (
                    name
                    and " " not in name
                    and line == b"".join(lines[number + 1 : number + 2])
                    and not line.strip(b"-=")
                ):
                    told = _NODE_RANK.search(b"\n".join(lines[number + 2 : number + 5]))
                    self.sections.host(number + 1, name, int(told[1]) * per if told else None)
                else:
                    self.sections.head(number, clean(line[:200]))

    def labels(self, text: bytes, known: dict[int, str]) -> int:
        """Learn from the beginning of a file how its lines are labelled, and what its tables tell of ranks and hosts.

        Returns the highest number of a launcher's label.
        """
        held = text.split(b"\n")[:_MOST_LEARNED]
        parsed = [(raw, parse(raw[:600])) for raw in held if raw]
        bodies = [b for _, b in parsed if b is not None]
        shown = [(b.text, b.host) if b is not None else (clean(raw[:600]), "") for raw, b in parsed]
        texts = [text for text, _ in shown]  # also what somebody typed: it names hosts
        for rank, host in (*read_tables(texts, [host for _, host in shown]).items(), *hosts_shown(texts).items()):
            if not _A_DEVICE.match(host):
                known.setdefault(rank, host)
        raws = [clean(raw[:600]) for raw in held if raw]
        actors = {b.actor for b in bodies if b.actor and not b.labelled}
        self.actors = {**actors_shown(actors, raws), **self.actors} if len(actors) > 1 else self.actors
        nobodys = [b for b in bodies if not b.labelled and b.actor not in self.actors]
        if not self.own and len(nobodys) > _UNLABELLED * len(bodies):
            records = [clean(raw) for raw in held if raw[:1] == b"{"]
            forms = learn_forms([*records, *(whole for b in nobodys if (whole := _whole(b))[:1] != "{")])
            self.own = [label for form in forms if (label := label_of(form, texts, known)) is not None]
            most = max((len(label.form.seen) for label in self.own), default=0)
            # A form that tells fewer writers apart than another tells where a line is from, not whose it is.
            self.own = [label if len(label.form.seen) == most else label.of_hosts() for label in self.own]
            for label in self.own:
                self.names |= label.names
        bodies = [self._owned(b) or b for b in bodies]
        each, self.locals = counted_below(bodies)
        self.per_node = each if self.per_node == 1 else self.per_node
        bodies = [self.placed(b) for b in bodies]
        world = max((b.rank for b in bodies if b.rank is not None), default=-1) + 1
        for body in bodies:
            if body.labelled and body.rank is not None and body.host:
                known.setdefault(body.rank, body.host)
        said = [f"rank {b.rank} {b.text}" for b in bodies if b.labelled and b.rank is not None and not b.host]
        for rank, host in hosts_shown(said).items() if world > len(known) else ():
            known.setdefault(rank, host)  # a rank's own word on where it is
        elastic = ""
        for body in bodies if world > len(known) else ():
            elastic = _one(body, known, elastic, self.per_node if self.locals else 1)
        if world > max(known, default=-1) + 1:
            told = rows_shown(texts, world) or ({} if known else hosts_listed(texts, world))
            known.update({rank: host for rank, host in told.items() if rank not in known})
        pods = {b.host for b in bodies if b.host and b.host == b.actor and b.host.count("-") > 1}
        self.names = {**(named_by(pods, raws) if len(pods) > 1 else {}), **self.names}
        addresses = {b.host for b in bodies if b.host[:1].isdigit()} | {h for h in known.values() if h[:1].isdigit()}
        self.names = {**named_by(addresses, raws), **self.names}
        self.labelled = sum(b.labelled for b in bodies) >= _LABELLED * max(len(bodies), 1)
        for body in bodies:  # its own host and rank, behind a launcher's label
            if body.labelled and (match := _SLASHED.match(body.text)) and int(match["rank"]) == body.rank:
                known.setdefault(body.rank, match["host"])
        told = read_tables([b.text for b in bodies], [b.host for b in bodies])
        known.update({rank: host for rank, host in told.items() if rank not in known and not _A_DEVICE.match(host)})
        for rank, host in sorted(known.items()):
            ranks = self.of_host.setdefault(host, [])
            ranks += [rank] if rank not in ranks else []
        return max((b.task for b in bodies if b.task is not None), default=-1)

    def read(self, raw: bytes, above: bytes = b"", rank: int | None = None) -> Body | None:
        """A line taken apart, with the rank of the whole job."""
        body = self._of_record(raw, above) if raw[:1] == b"{" and rank is None else None
        label = _HOST_LABEL.match(clean(raw[:80])) if rank is None and body is None else None
        if label is not None and len(self.of_host.get(label[1], ())) > 1:  # the rest says which rank of that host
            inner = parse(raw.partition(b": ")[2], above)
            body = None if inner is None else replace(inner, host=inner.host or label[1])
        elif (body := body or parse(raw, above, rank)) is not None:
            body = self._owned(self._of_process(body, above), above)
        if body is not None and body.clock is None and (match := _TIME.search(clean(raw[:90]))):
            body = replace(body, clock=self.day + int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3]))
        return None if body is None else self.placed(body)

    def _of_record(self, raw: bytes, above: bytes) -> Body | None:
        """A record whose fields the log itself showed to tell who wrote it."""
        for label in self.own:
            if label.form.kind == "json" and (told := label.split(clean(raw))) and told[0] is not None:
                inner = parse(told[2].encode(), above)
                return None if inner is None else replace(inner, rank=told[0], host=told[1], labelled=True)
        return None

    def _of_process(self, body: Body, above: bytes) -> Body:
        """A line of a journal as that of the rank which the process says it is, without the process's name."""
        name = body.actor.partition(" ")[2]
        if body.actor not in self.actors or not name or not body.text.startswith(f"{name}: "):
            return body
        inner = parse(body.text[len(name) + 2 :].encode(), above)
        if inner is None:
            return body
        rank = inner.rank if inner.labelled else self.actors[body.actor]
        return replace(inner, rank=rank, host=body.host, actor=body.actor, clock=body.clock, labelled=True)

    def _owned(self, body: Body, above: bytes = b"") -> Body | None:
        """A line without the log's own label, as whose it is; None where what it labels is no output."""
        owned = body.labelled or body.actor in self.actors or LAUNCHERS.match(body.text)
        forms = () if owned else self.own
        told = next((told for label in forms if (told := label.split(_whole(body))) is not None), None)
        if told is None:
            return self._below_a_host(body, above)
        if (inner := parse(told[2].encode(), above)) is None:
            return None
        rank, host, _ = told
        if (match := _NUMBERED.match(inner.text)) and int(match[2]) in self.of_host.get(host, ()):
            inner = replace(inner, rank=int(match[2]), text=match[1] + inner.text[match.end() :], labelled=True)
        rank = inner.rank if inner.labelled else rank  # a pod's number may be a node's
        return replace(
            inner, rank=rank if rank is not None else body.rank, host=host or body.host or body.label, actor=body.actor,
            clock=inner.clock if inner.clock is not None else body.clock, task=body.task, labelled=rank is not None,
        )  # fmt: skip

    def _below_a_host(self, body: Body, above: bytes) -> Body | None:
        """A line as that of the host whose name, known from elsewhere, stands before it."""
        match = _HOST_LABEL.match(body.text)
        if match is None or body.labelled or match[1] not in self.of_host:
            return body
        inner = parse(body.text[match.end() :].encode(), above)
        return None if inner is None else replace(inner, host=match[1], clock=inner.clock or body.clock)

    def is_firsts(self, body: Body) -> bool:
        """Whether a line without a rank may be of the one that ended first: of its host, or of nobody's."""
        host = body.host or body.label
        nobodys = body.rank is None and body.task is None and not (self.labelled and host == "") and not body.actor
        return self.ended_first is not None and nobodys and host in ("", self.first_host)

    def placed(self, body: Body) -> Body:
        """A line with the rank of the whole job, where its labels tell only parts of it."""
        if not body.labelled and body.actor in self.actors:
            return replace(body, rank=self.actors[body.actor])
        ranks = self.of_host.get(body.host or body.label, [])
        if body.rank is None and len(ranks) > 1 and (match := HERE.match(body.text)) and int(match[1]) < len(ranks):
            # A place on the host, right behind its name.
            return replace(body, rank=sorted(ranks)[int(match[1])], text=body.text[match.end() :], labelled=True)
        here = self.of_host.get(body.host or body.label, []) if body.local is not None and body.task is None else []
        if body.local is not None and body.local < len(here) and body.local not in here[1:]:
            return replace(body, rank=sorted(here)[body.local])
        local = body.rank if body.local is None and body.below and self.locals else body.local
        if self.per_node < 2 or not (body.outer or local is not None):
            return replace(body, task=None) if self.locals and not body.outer else body
        node = self.nodes.get(body.actor, body.task if body.task is not None else _number(body.actor))
        if node is None:
            return body
        rank = None if local is None else node * self.per_node + local
        host = body.host or self.node_hosts.get(node, "")
        # Where a task is a whole node, its number counts hosts; a name says that better.
        return replace(body, rank=rank, host=host, task=None if host or rank is not None else body.task)

    def join(self, later: Places) -> None:
        """What files gave that come after these, read with what these had given."""
        self.actors = {**later.actors, **self.actors}
        self.per_node = later.per_node if later.per_node > 1 else self.per_node
        self.own = self.own or later.own
        self.of_host = {**later.of_host, **self.of_host}
        self.node_hosts |= later.node_hosts
        self.nodes |= later.nodes
        self.names = {**later.names, **self.names}
        self.named = {**later.named, **self.named}


def _whole(body: Body) -> str:
    """A line with the host that stood before it: what follows may count within that host only."""
    host = body.host or body.label
    return body.text if not host or body.text.startswith(host) else f"{host}: {body.text}"


def _number(pod: str) -> int | None:
    ending = pod.rpartition("-")[2]
    return int(ending) if ending.isdigit() else None


def learn(
    raws: Iterable[bytes], known: dict[int, str], file_rank: int | None = None, places: Places | None = None
) -> set[str]:
    """Add what some lines tell (`telling` chooses them); returns the hosts that wrote them, where they say so."""
    places = places or Places()
    actors, elastic = places.actors, ""
    wrote: set[str] = set()
    labelled: dict[int, str] = {}
    named = places.named
    for raw in raws:
        body = places.read(raw[:600], b"", file_rank)
        if body is None or len(known) >= _MOST:
            continue
        if body.host:
            wrote.add(body.host)
        elif match := _ADDRESS.search(body.text):
            places.names.setdefault(match["ip"], match["host"])
        if match := _RAY_RANK.search(body.text):  # Ray Train's own table
            actors.setdefault(f"pid={match['pid']}, ip={match['ip']}", int(match["rank"]))
            actors.setdefault(f"pid={match['pid']}", int(match["rank"]))
            known.setdefault(int(match["rank"]), match["ip"])
        elif body.actor and places.per_node == 1 and (match := _OWN_RANK.search(body.text)) and not reacts(body.text):
            actors.setdefault(body.actor, int(match[1]))
        if body.label and body.rank is not None:
            labelled.setdefault(body.rank, body.label)
        if body.labelled and body.rank is not None and body.named and not body.host:
            named.setdefault(body.rank, body.named)
        elastic = _one(body, known, elastic, places.per_node if places.locals else 1)
    for rank, name in named.items() if len(set(named.values())) > 1 else ():
        known.setdefault(rank, name)
    # A word before the text is a host's name where others like it stand before other ranks' lines.
    stems = Counter(_DIGITS.sub("", name) for name in set(labelled.values()))
    for rank, name in labelled.items():
        if stems[_DIGITS.sub("", name)] > 1:
            known.setdefault(rank, name)
    return wrote


def telling(front: bytes, tail: bytes, of_one_rank: bool) -> list[bytes]:
    """The lines of the front and the end of a file that may tell who runs where."""
    first, last = _with_words(front), _with_words(tail)
    return [*first[:_MOST_OF_A_RANK], *last[-_MOST_OF_A_RANK:]] if of_one_rank else [*first, *last]


def _with_words(text: bytes) -> list[bytes]:
    """Its lines that hold one of the words, found word by word: most lines hold none and are never looked at."""
    starts: set[int] = set()
    for word in _WORDS:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind(b"\n", 0, at) + 1)
            end = text.find(b"\n", at)
            at = text.find(word, end) if end >= 0 else -1
    return [text[at:end] if (end := text.find(b"\n", at)) >= 0 else text[at:] for at in sorted(starts)]


def _one(body: Body, known: dict[int, str], elastic: str, each: int) -> str:
    """What one line tells; where ranks are labelled below nodes, what only a node's label holds is a launcher's."""
    text = body.text if body.payload_from is None else body.text[: body.payload_from]
    own = body.task if each == 1 else None
    if own is None and (match := _TASKS.match(text)):
        for task in _numbers(match["tasks"]):
            known.update({r: match["host"] for r in range(task * each, (task + 1) * each) if r not in known})
        return ""
    if own is None and (match := _ELASTIC_HOST.match(text) or _MAP_HOST.match(text)):
        return match["host"]
    if own is None and elastic and (match := _ELASTIC_RANK.match(text) or _MAP_RANK.match(text)):
        known.setdefault(int(match["rank"]), elastic)
        return elastic if "Process" in match[0] else ""  # the map of a job has many ranks below one host
    for form in _FORMS:
        if (match := form.search(text)) and (own is None or own == int(match["rank"])):
            known.setdefault(int(match["rank"]), match["host"])
            break
    if body.rank is not None and body.host:
        known.setdefault(body.rank, body.host)
    return elastic


def _numbers(text: str) -> list[int]:
    out: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            out += range(int(low), min(int(high or low), int(low) + 1024) + 1)
    return out
