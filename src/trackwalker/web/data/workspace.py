"""The workspace as the pages see it: jobs by id, nothing outside of it, and what was worked out once kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from trackwalker.agent.ask.ask import Answered
from trackwalker.agent.workspace import Workspace, signature
from trackwalker.diagnose.compare.compare import Comparison, compare
from trackwalker.diagnose.compare.config_diff import Change
from trackwalker.diagnose.engine import diagnose as diagnose_job
from trackwalker.diagnose.saved import place_of, saved_verdict, standing, standing_diagnosis
from trackwalker.diagnose.triage import Triage
from trackwalker.diagnose.triage import triage as triage_job
from trackwalker.diagnose.verdict import Verdict
from trackwalker.diagnose.views.asked import Diagnosis
from trackwalker.errors import EvidenceError, TrackwalkerError
from trackwalker.fleet.examine import Examined, GivenUp
from trackwalker.fleet.index import JobIndex, stamp
from trackwalker.fleet.scan import newest
from trackwalker.job.layout import Job
from trackwalker.job.processes import is_live
from trackwalker.job.sharing import apart, copies_of
from trackwalker.record.read import Answer
from trackwalker.report.story.background import changes_between
from trackwalker.telemetry.client import Telemetry
from trackwalker.telemetry.store import KERNEL, compile_ahead, is_compiled, is_large
from trackwalker.web.data.cache import Cache
from trackwalker.web.data.databases import Databases

_KEPT_VERDICTS = 12
_KEPT_TRIAGES = 64  # a fifth of a megabyte each, of a run of some hundred steps
_KEPT_BADGES = 1000
_KEPT_ANSWERS = 32
_NAMES_S = 2.0  # how long a name is believed to mean the same job
_BEAT_S = 60.0
_LONG_LOG = 3 << 20  # bytes; to read more takes so long that a page is painted without it, and others would wait
_LOOKED_AT = 50  # jobs, the newest: whether one of them has a large database
_AT_ONCE = 2  # diagnoses: each keeps a core and a Prometheus busy
_NICE = 10  # of one that nobody waits for


class WebWorkspace:
    """Read-only; every method may be called from any thread."""

    def __init__(self, root: Path, kept: Path | None = None) -> None:
        self.agent: Workspace = _Shared(root, self)  # the ask box needs it whole; pages need its names and its walls
        self.index: JobIndex | None = None  # which knows a job by its id without looking at all of them
        self.databases = Databases()
        self._names: Cache[Job] = Cache(256)
        self._diagnoses: Cache[Diagnosis] = Cache(_KEPT_VERDICTS)
        self._triages: Cache[Triage] = Cache(_KEPT_TRIAGES)
        self._saved: Cache[Verdict | None] = Cache(256)
        self._comparisons: Cache[Comparison] = Cache(8)
        self._changes: Cache[list[Change]] = Cache(256)
        self._told: dict[str, tuple[int, Verdict]] = {}
        self._count = self._waited_for = 0
        self._lock = threading.Lock()
        self.examined = Examined(self.agent.root, kept)
        self.model_answers: Cache[Answered] = Cache(_KEPT_ANSWERS)  # a reload must not pay for one again
        self._hard_work = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def root(self) -> Path:
        """The folder."""
        return self.agent.root

    def jobs(self) -> list[Job]:
        """Every job of the workspace, newest first."""
        return self.index.jobs() if self.index is not None else self.agent.jobs()[0]

    def job(self, name: str) -> Job:
        """The job of an id, or of the beginning of one; never a path."""
        # A page asks for a dozen things at once, and finding a job walks the whole workspace.
        found = self._names.get(name, int(time.monotonic() / _NAMES_S), lambda: self.agent.job(name))
        # One that was taken away meanwhile is no job any more, rather than one whose log cannot be read.
        return found if any(part.exists() for part in (found.log, found.dir) if part) else self.agent.job(name)

    def triage(self, job: Job, sacct: Answer | None = None) -> Triage:
        """What the log alone says; a log is read once, for the list and for all who visit."""

        def make() -> Triage:
            return apart(triage_job, job, None, sacct) if is_long(job) else triage_job(job, sacct=sacct)

        return self._triages.get(job.id, (signature(job), _beat(job)), make)

    def known_triage(self, job: Job) -> Triage | None:
        """What the log says where it was read already: a first paint does not wait for a long one."""
        return self._triages.peek(job.id, (signature(job), _beat(job)))

    def diagnosis(self, job: Job, beside: GivenUp | None = None) -> Diagnosis:
        """The full verdict and its story; seconds, once for each state of the evidence.

        `beside`: nobody waits for it, until somebody asks for the same; it ends when this says so.
        """

        def make() -> Diagnosis:
            with self._at_work() if beside is None else nullcontext():
                seen = self.triage(job) if job.log else None  # shown before the rest is there
                if beside is not None:
                    made = apart(diagnose_job, job, None, None, seen, nice=_NICE, given_up=beside)
                elif is_long(job):  # the charts that one looks at meanwhile do not wait for it
                    made = apart(diagnose_job, job, None, None, seen)
                else:  # with the Prometheus that the charts use, too
                    made = diagnose_job(job, opener=self.databases.open, seen=seen)
            with self._lock:
                self._count += 1
                self._told[job.id] = (self._count, made.verdict)
                while len(self._told) > _KEPT_BADGES:
                    del self._told[next(iter(self._told))]
            return made

        made = self._diagnoses.get(job.id, (signature(job), _beat(job)), make)
        return standing_diagnosis(made, self.saved_verdict(job))

    def known_diagnosis(self, job: Job) -> Diagnosis | None:
        """The verdict where it is there already: a first paint does not wait for it."""
        made = self._diagnoses.peek(job.id, (signature(job), _beat(job)))
        return standing_diagnosis(made, self.saved_verdict(job)) if made is not None else None

    def marks(self) -> Mapping[str, str]:
        """By job, what changes with each verdict that this server makes about it."""
        with self._lock:
            told = {name: str(count) for name, (count, _) in self._told.items()}
        return {**self.examined.marks(), **told}

    def verdict(self, job: Job) -> Verdict | None:
        """What holds of a job: the latest verdict of a visit or the background, unless the saved one saw more."""
        with self._lock:
            told = self._told.get(job.id, (0, None))[1]
        made, saved = told or self.examined.verdict(job), self.saved_verdict(job)
        return standing(made, saved) if made is not None else saved

    def inside(self, path: Path) -> bool:
        """Whether a path lies in the workspace once every link is followed."""
        return self.agent.inside(path)

    def saved_verdict(self, job: Job) -> Verdict | None:
        """The verdict that `diagnose --save` left in the job directory; it may be older than the evidence."""
        return self._saved.get(job.id, stamp(place_of(job)), lambda: saved_verdict(job, self.inside))

    def comparison(self, a: Job, b: Job) -> Comparison:
        """Job B against job A."""

        def make() -> Comparison:
            with self._at_work():
                return compare(a, b)

        return self._comparisons.get((a.id, b.id), (signature(a), signature(b)), make)

    def changes(self, reference: Job, job: Job) -> list[Change]:
        """What a job was told differently from a reference run; both logs are read for it, once."""

        def make() -> list[Change]:
            return changes_between(reference, job, self.agent.scrubber(job))

        state = tuple((signature(each), stamp(each.run_json)) for each in (reference, job))
        return self._changes.get((reference.id, job.id), state, make)

    def known_comparison(self, a: Job, b: Job) -> Comparison | None:
        """The comparison where it is there already."""
        return self._comparisons.peek((a.id, b.id), (signature(a), signature(b)))

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a diagnosis or a comparison: what nobody waits for stands back then."""
        return self._waited_for > 0

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            self._waited_for += 1
        try:
            with self._hard_work:
                yield
        finally:
            with self._lock:
                self._waited_for -= 1

    @contextmanager
    def metrics(self, job: Job) -> Iterator[Telemetry]:
        """The job's metrics behind a private Prometheus that stays open for the next question."""
        if job.database is None:
            raise EvidenceError(f"job {job.id} was not recorded: it has no metrics")
        with self.databases.open(job.database) as telemetry:
            yield telemetry

    def close(self) -> None:
        """Close every database; the workspace can be used again."""
        self.databases.close()
        self.agent.close()


class _Shared(Workspace):
    """The workspace as agents see it; what a page has worked out is not worked out again for a question."""

    def __init__(self, root: Path, owner: WebWorkspace) -> None:
        super().__init__(root)
        self._owner = owner

    def job(self, name: str) -> Job:
        known = self._owner.index.job(name) if self._owner.index is not None else None
        if known is None or not (known.log or known.dir or Path("/nonexistent")).exists():
            return super().job(name)
        self._check(known)
        return known

    def verdict(self, job: Job) -> Diagnosis:
        return self._owner.diagnosis(job)

    def comparison(self, a: Job, b: Job) -> Comparison:
        return self._owner.comparison(a, b)


def get_ready(root: Path) -> None:
    """Have the processes for long logs begin with everything imported, and what reads large databases compiled.

    Where such databases are and it was compiled before, it is loaded here and now: whoever looks at one would wait for
    it, and the first paint beside it.
    """
    if is_compiled() and _holds_large(root):
        copies_of("trackwalker.diagnose.engine", KERNEL)
        compile_ahead()
        return
    copies_of("trackwalker.diagnose.engine")
    threading.Thread(target=_compile, daemon=True, name="trackwalker-compile").start()


def _holds_large(root: Path) -> bool:
    with suppress(TrackwalkerError):
        return any(is_large(job.database) for job in newest(root, _LOOKED_AT)[0] if job.database is not None)
    return False


def _compile() -> None:
    with suppress(TrackwalkerError):  # a server that ends meanwhile
        apart(compile_ahead)


def is_long(job: Job) -> bool:
    """Whether a job's log is so long that it is read in a process of its own."""
    try:
        return job.log is not None and job.log.stat().st_size > _LONG_LOG
    except OSError:
        return False


def _beat(job: Job) -> int | None:
    """Changes by itself while a job runs: one that hangs writes nothing, and is judged by the time that passes."""
    return int(time.time() / _BEAT_S) if is_live(job.state) else None
