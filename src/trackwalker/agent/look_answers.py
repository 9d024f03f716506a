"""What the tools answer that look further than the verdict: changes, questions, recordings, last words, files."""

# ruff: noqa: RUF012 - pydantic copies defaults

from __future__ import annotations

from trackwalker.agent.answers import Answer, LogLine, Part, StackFile


class MetricRow(Part):
    """One recorded metric; hosts, series and times are told where few metrics are asked for."""

    name: str
    kind: str  # counter (compare its rate), gauge, state, windowed, info, timestamp
    unit: str = ""
    bad: str = ""  # the direction that means trouble: up, down, either
    hosts: int | None = None
    series: int | None = None
    first: str | None = None  # UTC
    last: str | None = None


class RecordedAnswer(Answer):
    """What a job's recording holds."""

    job: str
    start: str
    end: str
    scrape_s: float | None = None  # seconds between two samples
    hosts: int = 0
    total: int = 0
    metrics: list[MetricRow] = []
    hint: str | None = None
    damage: list[str] = []


class Window(Part):
    """What was compared with what: UTC times."""

    name: str
    window: list[list[str | None]]
    reference: list[list[str | None]]


class LogKind(Part):
    """Log lines that differ in numbers only, whose rate changed; `expected` is what the rate outside would give."""

    kind: str  # new, gone, more, fewer
    line: int
    inside: int
    expected: float
    score: float
    ranks: str = ""
    quote: str


class Change(Part):
    """One series that changed; without a host: most hosts together."""

    host: str | None = None
    part: str | None = None  # GPU or device
    alike: int = 0  # further hosts, GPUs or devices that changed in the same way
    metric: str
    labels: str = ""
    kind: str  # rose, fell, absent, frozen, restarted
    before: float | None = None
    after: float | None = None
    unit: str = ""
    since: str  # UTC
    score: float


class ChangedAnswer(Answer):
    """Every series and every kind of log line that is not what it was, the strongest first."""

    job: str
    compared: list[Window]
    metrics: int
    comparisons: int
    total: int
    changes: list[Change] = []
    log: list[LogKind] = []
    log_shown: str | None = None
    log_says: str | None = None
    hint: str | None = None
    not_compared: list[str] = []  # hosts that repeat old values or lack metrics: an empty table does not clear them
    damage: list[str] = []


class Question(Part):
    """One question: what it asks, when it fires, of which hosts it was asked, and its answer."""

    test: str
    role: str
    answer: str  # yes, no, unknown
    asks: str
    fires_when: str = ""
    window: str = ""
    asked_of: str = ""
    not_covered: str = ""
    names: str = ""
    missing: str = ""
    evidence: list[str] = []


class Examined(Part):
    """All questions about one cause, and what they come to: found, refuted, clean, untestable."""

    cause: str
    state: str
    tests: list[Question] = []


class TestsAnswer(Answer):
    """What the engine asked, cause by cause, and what it did not ask."""

    __test__ = False  # for pytest: no test

    job: str
    symptoms: list[str] = []
    evidence_ends: dict[str, str] = {}
    total: int
    asked: list[Examined] = []
    not_asked: dict[str, str] = {}  # and why
    not_asked_names: list[str] = []  # the same without reasons; ask for one cause to read its


class TailGroup(Part):
    """Ranks whose last meaningful lines differ in numbers only."""

    ranks: str
    count: int
    host: str | None = None
    file: str
    line: int | None = None
    quote: str


class TailsAnswer(Answer):
    """The last words of every rank, the smallest group first."""

    job: str
    ranks: int
    total: int
    groups: list[TailGroup] = []
    silent: str = ""  # ranks that wrote nothing that means anything
    says: str | None = None


class FilesAnswer(Answer):
    """The small files of a job, or the lines of one of them."""

    job: str
    total: int = 0
    files: list[StackFile] = []
    file: str | None = None
    lines: list[LogLine] = []
    left_out: str | None = None
