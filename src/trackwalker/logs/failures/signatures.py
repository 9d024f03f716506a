"""Failure signatures as data: `signatures/*.yml`, read once, matched against lines the scanner found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trackwalker.job.causes import Swept, known
from trackwalker.job.yaml_files import read_yaml
from trackwalker.logs.failures import codes
from trackwalker.logs.failures.structure import GUESSES, counted_none
from trackwalker.logs.scanning.disk_cache import kept
from trackwalker.logs.scanning.lines import Body
from trackwalker.logs.scanning.needles import SHORTEST

FOLDER = Path(__file__).parents[1] / "signatures"
NOTE = 9  # the tier of what is worth saying and never the failure
_AROUND = 1500  # characters on both sides of a literal that its expression may look at: a hostile line stays cheap


class Pattern(BaseModel):
    """A literal that must stand in the line, or a code, and where that is not enough an expression that must match."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    has: str = ""
    errno: str = ""
    gpu: int | None = None  # CUDA's and HIP's number
    http: int | None = None
    xid: list[int] = []
    expression: str | None = Field(default=None, alias="re")
    case: bool = False
    every: bool = False  # every rank's line counts, however many there are: who does not print it is missed

    @model_validator(mode="after")
    def _one_thing(self) -> Pattern:
        if sum((bool(self.has), bool(self.errno), self.gpu is not None, self.http is not None, bool(self.xid))) != 1:
            raise ValueError("a pattern has one literal or one code")
        if self.has and len(self.has.encode()) < SHORTEST:
            raise ValueError(f"{self.has!r} is shorter than {SHORTEST} bytes: the scanner cannot find it")
        return self

    @property
    def name(self) -> str:
        """The literal or the code, for a report."""
        if self.has:
            return self.has
        named = {"errno": self.errno, "gpu": self.gpu, "http": self.http, "xid": " ".join(map(str, self.xid))}
        return next(f"{sort} {code}" for sort, code in named.items() if code)

    @property
    def spellings(self) -> list[codes.Spelling]:
        """The literals that find it, each with the expression that the line must match besides."""
        if self.errno:
            return list(codes.errno(self.errno))
        if self.gpu is not None:
            return list(codes.gpu(self.gpu))
        if self.http is not None:
            return list(codes.http(self.http))
        return list(codes.xid(self.xid)) if self.xid else [codes.Spelling(self.has, None, self.case)]


class Harmless(BaseModel):
    """What looks like a failure and is none."""

    model_config = ConfigDict(extra="forbid")

    id: str
    why: str
    any: list[Pattern | str]


Trait = Literal[
    "before-training", "absent-file", "at-the-end", "checkpoint-frame", "saving-frame",
    "collective-wait", "connecting-failed", "coordinator-call", "damaged-file", "disk-or-mount",
    "end-by-signal", "end-of-process", "ended-itself", "exception", "exit-word", "hearsay", "heartbeat", "host-memory", "interface",  # noqa: E501
    "kill", "lacks-library", "lasting", "locked-memory",
    "lost-peer", "meeting", "names-its-host", "needs-room", "no-device", "no-room",
    "no-witness", "orphan", "outlived-the-end", "own-end", "pending", "refused-credential", "request-to-end",
    "scheduler-lost-it", "somebody-absent", "speaks-of-peers", "stage-word", "teardown", "traceback", "transfer",
    "transport-of-mpi", "victim", "wrapper",
]  # fmt: skip
# What else a log can show about a failure class: refine.py says when one holds, the signature what follows from it.
Condition = Literal[
    "accused-died", "accused-silent", "another-program", "before-first-step", "coordinator-mute", "crash-code", "different-collectives",  # noqa: E501
    "from-its-parent", "had-worked", "image-stage", "limit-lifted", "never-worked", "no-kubernetes", "no-python",
    "no-shared-memory-told", "no-timeout-told", "not-well-before",
    "no-transport-told", "of-the-data", "others-lived",
    "scheduler-ended-it", "never-finished", "somebody-never-joined", "training-began", "while-loading",
    "while-saving",
]  # fmt: skip


class Becomes(BaseModel):
    """What a failure class turns out to be where a condition holds."""

    model_config = ConfigDict(extra="forbid")

    cause: str
    tier: int | None = None


class Signature(BaseModel):
    """One failure class: what it looks like, how much it means, what it does not prove, what to do."""

    model_config = ConfigDict(extra="forbid")

    id: str
    cause: str
    tier: Literal[0, 1, 2, 3, 4, 5, 6, 7, "note"]
    any: list[Pattern | str] = []
    fc: str | None = None
    unless: list[str] = []
    beats: list[str] = []
    first_only: bool = False  # counts as its tier only when nothing else failed before it
    generic: bool = False  # loses against every failure class that knows more about the same line
    info: bool = False  # also counts on lines that call themselves information
    launcher: bool = False  # only the launcher says it, on a line without a label: a rank that prints it proves nothing
    traits: list[Trait] = []  # what roles.py and refine.py need to know of it
    says: int = 0  # among wrappers: the higher says more about why
    becomes: dict[Condition, Becomes] = {}
    priority: int = 0  # among equals of one tier, the higher comes first
    signals: list[int] = []  # it is what the end of a process by one of these signals means, in whatever words
    exits: bool = False  # it is what the end of a process with a code that is no signal means, in whatever words
    states: list[str] = []  # Slurm's states of a job that mean it
    dumps: bool = False  # it is what a flight recorder or NCCL's RAS says of a rank that holds the others up
    exceptions: bool = False  # it is what the last line of a traceback means, whatever the exception is called
    unnamed: bool = False  # the class of error lines that nothing else here knows
    proves_not: str = ""
    next: list[str] = []
    sweep: Swept | None = None  # what a sweep is told, where the line knows more than its cause's file says
    may_be_chance: bool = False  # likewise

    @property
    def order(self) -> int:
        """The tier as a number: lower is nearer to the cause."""
        return NOTE if self.tier == "note" else self.tier


@dataclass
class _Rule:
    owner: str
    literal: str
    patterns: tuple[str, ...]  # that must match around the literal
    case: bool
    asked: int  # the number of the pattern, whose spelling this is, among all

    @cached_property
    def expressions(self) -> list[re.Pattern[str]]:
        """Compiled when first needed: most logs need few of them."""
        return [re.compile(p, 0 if self.case else re.IGNORECASE) for p in self.patterns]

    def place(self, body: str, lower: str) -> int:
        """Where the rule matches, -1 when it does not."""
        at = body.find(self.literal) if self.case else lower.find(self.literal)
        if at < 0 and self.literal.endswith("\n"):  # the end of the line stands for the newline
            head = self.literal.rstrip("\n")
            at = body.rfind(head) if self.case and body.rstrip().endswith(head) else -1
        if at < 0 or counted_none(body, at + len(self.literal)):
            return -1
        for expression in self.expressions:
            match = expression.search(body, max(0, at - _AROUND), at + _AROUND)
            if match is None:
                return -1
            at = min(at, match.end())
        return at


class Signatures:
    """All signatures, ready to match; needle numbers are positions in `literals`."""

    def __init__(self, signatures: list[Signature], harmless: list[Harmless]) -> None:
        self.by_id = {s.id: s for s in signatures}
        self.harmless = {h.id: h for h in harmless}
        self.literals: list[bytes] = []
        self.every: set[int] = set()  # needles of which no line is passed over
        self.rules: list[_Rule] = []
        self._unless: dict[str, list[re.Pattern[str]]] = {}
        self.by_signal = {number: s for s in signatures for number in s.signals}
        self.by_exit = next((s for s in signatures if s.exits), None)
        self.by_state = {state: s for s in signatures for state in s.states}
        self.by_dump = next((s for s in signatures if s.dumps), None)
        self.by_exception = next((s for s in signatures if s.exceptions), None)
        self.unnamed = next((s for s in signatures if s.unnamed), None)
        self.patterns: list[tuple[str, Pattern]] = [  # with the failure class, in the order in which they are asked
            (owner, pattern if isinstance(pattern, Pattern) else Pattern(has=pattern))
            for owner, each in [(h.id, h.any) for h in harmless] + [(s.id, s.any) for s in signatures]
            for pattern in each
        ]
        for number, (owner, pattern) in enumerate(self.patterns):
            self._add(owner, pattern, number)

    def _add(self, owner: str, pattern: Pattern, number: int) -> None:
        for literal, own, case in pattern.spellings:
            wanted = tuple(e for e in (own, pattern.expression) if e)
            self.rules.append(_Rule(owner, literal if case else literal.lower(), wanted, case, number))
            if pattern.every:
                self.every.add(len(self.literals))
            self.literals.append(literal.encode())

    def match(self, body: Body, needles: tuple[int, ...]) -> tuple[list[Signature], list[str]]:
        """The signatures a line carries, the beaten ones removed, and the harmless patterns it carries."""
        text = body.text
        lower = text.lower()
        found: dict[str, Signature] = {}
        harmless = []
        for number in needles:
            rule = self.rules[number]
            if rule.owner in found:
                continue
            at = rule.place(text, lower)
            if at < 0 or body.in_payload(at) or GUESSES.search(text, 0, at):
                continue
            if rule.owner in self.harmless:
                harmless.append(rule.owner)
            elif not any(u.search(text) for u in self._exclusions(rule.owner)):
                signature = self.by_id[rule.owner]
                forged = signature.launcher and (body.rank is not None or body.task is not None)
                if (signature.info or not body.informs) and not forged:
                    found[signature.id] = signature
        if harmless:
            return [], harmless
        beaten = {loser for s in found.values() for loser in s.beats}
        if any(not s.generic and s.order < NOTE for s in found.values()):
            beaten |= {s.id for s in found.values() if s.generic}
        return [s for s in found.values() if s.id not in beaten], []

    def _exclusions(self, owner: str) -> list[re.Pattern[str]]:
        if owner not in self._unless:
            self._unless[owner] = [re.compile(u, re.IGNORECASE) for u in self.by_id[owner].unless]
        return self._unless[owner]


@cache
def load(folder: Path = FOLDER) -> Signatures:
    """Every signature of a folder; a malformed file is a defect of ours and raises."""
    signatures: list[Signature] = []
    harmless: list[Harmless] = []
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yml"))]
    for item in orjson.loads(kept("signatures", "\0".join(texts).encode(), lambda: _as_json(texts))):
        if "why" in item:
            harmless.append(Harmless.model_validate(item))
        else:
            signatures.append(Signature.model_validate(item))
    ids = [s.id for s in signatures]
    if len(set(ids)) < len(ids):
        raise ValueError(f"signature ids are not unique: {sorted({i for i in ids if ids.count(i) > 1})}")
    if strange := {s.cause for s in signatures} - known():
        raise ValueError(f"signatures name causes that have no file in playbooks/: {', '.join(sorted(strange))}")
    return Signatures(signatures, harmless)


def _as_json(texts: list[str]) -> bytes:
    return orjson.dumps([item for text in texts for item in read_yaml(text)])
