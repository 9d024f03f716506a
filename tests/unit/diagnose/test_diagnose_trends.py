"""What grows slowly: a leak that fills memory before the planned end, a disk that fills, on one host or on all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triage_logs import triage_text

from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.deviations.limits import limits_ahead
from trackwalker.diagnose.episodes.symptoms import Span, Symptoms
from trackwalker.diagnose.facts.trend_facts import disk_fills, memory_grows
from trackwalker.job.layout import Job
from trackwalker.logs.facts import LogFacts, Quote
from trackwalker.record.timeline import Timeline
from trackwalker.telemetry.client import Matrix, Sample

GB = 1e9
MOMENT = re.compile(r"@ (\d+\.\d+)")


class Memory:
    """Memory in use (or free space) by host as functions of time, and its limit."""

    def __init__(self, used: dict[str, Any], total: float = 1000 * GB, metric: str = "ray_node_mem_used") -> None:
        self.used, self.total, self.metric = used, total, metric

    def metrics(self) -> frozenset[str]:
        return frozenset({self.metric, "ray_node_mem_total"})

    def range(self) -> tuple[float, float]:
        return 0.0, 1e6

    def matrix(self, query: str, start: float, end: float, step: float) -> Matrix:
        times = np.arange(start, end + 1e-6, step)
        rows = [[float(of(t)) for t in times] for of in self.used.values()]
        return Matrix([{"host": h, "mount": "/x"} for h in self.used], times, np.array(rows))

    def instant(self, query: str, at: float) -> list[Sample]:
        if "total" in query:
            return [Sample({"host": h}, self.total, at) for h in self.used]
        return [Sample({"host": h}, of(at) / GB, at) for h, of in self.used.items()]

    def by_host(self, query: str, at: float) -> dict[str, float]:
        now, then = (float(t) for t in MOMENT.findall(query))
        return {h: (of(now) - of(then)) / GB for h, of in self.used.items()}


def case_of(folder: Path, recording: Memory, steps: int) -> tuple[Case, Symptoms]:
    """A run at full speed that was asked for `steps` and did 120 of them in two hours."""
    done = 120
    seconds = np.full(done, 60.0)
    ends = 1000.0 + np.cumsum(seconds)
    timeline = Timeline(np.arange(done), ends, seconds, np.full(done, np.nan), True, "job.log")
    facts = LogFacts(Path("job.log"))
    facts.config = {"steps": (str(steps), Quote(0, 1, f"Config param steps: {steps}"))}
    hosts = list(recording.used)
    case = Case(Job("1", None, None), facts, None, [], None, timeline, hosts, 900.0, float(ends[-1]), False)
    case.telemetry = recording  # type: ignore[assignment]
    case.seen = triage_text(folder, f"0: Config param steps: {steps}\n")
    return case, Symptoms(frozenset(), windows={"whole": [Span(900.0, float(ends[-1]))]})


def leak(from_gb: float, mb_per_s: float) -> Any:
    return lambda t: from_gb * GB + mb_per_s * 1e6 * (t - 1000.0) + 1e7 * np.sin(t)


@pytest.mark.parametrize(("steps", "told"), [(2000, True), (200, False)], ids=["before-the-end", "after-the-end"])
def test_a_leak_on_all_hosts_matters_when_it_fills_memory_before_the_planned_end(
    tmp_path: Path, steps: int, told: bool
) -> None:
    # 6.5 MB/s: 47 GB in the two hours so far, far below a tenth of the memory; full 31 h after the start.
    case, symptoms = case_of(tmp_path, Memory({h: leak(200, 6.5) for h in ("a", "b", "c", "d")}), steps)
    book = EvidenceBook()
    answer = memory_grows(case, symptoms, book)
    assert (answer.fired, answer.hosts) == (told, ())
    if told:
        projection = book.items[1]
        assert projection.values["full_in_h"] < projection.values["left_h"]
        assert f"full in {projection.values['full_in_h']:.3g} h" in projection.says


def test_one_leaking_host_is_named(tmp_path: Path) -> None:
    case, symptoms = case_of(tmp_path, Memory({"a": leak(200, 30), "b": leak(200, 0), "c": leak(200, 0)}), 500)
    assert memory_grows(case, symptoms, EvidenceBook()).hosts == ("a",)


def test_who_drifts_as_all_others_do_though_more_steadily_leaks_nothing(tmp_path: Path) -> None:
    def wavy(t: float) -> float:
        return float((200 + 0.02 * t + 60 * np.sin(t / 500)) * GB)

    hosts = {"a": leak(200, 30), "b": wavy, "c": wavy, "d": wavy}
    case, symptoms = case_of(tmp_path, Memory(hosts), 500)
    assert memory_grows(case, symptoms, EvidenceBook()).fired is False
    far = {**hosts, "b": leak(200, 0), "c": leak(200, 0), "d": leak(200, 0)}
    case, symptoms = case_of(tmp_path, Memory(far), 500)
    assert memory_grows(case, symptoms, EvidenceBook()).hosts == ("a",)


def test_the_only_host_needs_no_peers(tmp_path: Path) -> None:
    case, symptoms = case_of(tmp_path, Memory({"a": leak(200, 30)}), 500)
    assert memory_grows(case, symptoms, EvidenceBook()).fired is True


def test_a_copy_kept_after_the_first_save_is_no_leak(tmp_path: Path) -> None:
    kept = lambda t: (200 if t < 2500 else 800) * GB + 1e7 * np.sin(t)  # noqa: E731
    case, symptoms = case_of(tmp_path, Memory({"a": kept, "b": leak(200, 0)}), 5000)
    assert memory_grows(case, symptoms, EvidenceBook()).fired is False


def test_memory_that_fills_before_the_first_step_is_not_judged(tmp_path: Path) -> None:
    case, _ = case_of(tmp_path, Memory({"a": leak(200, 30)}), 500)
    loading = Symptoms(frozenset({"unfinished-start"}), windows={"whole": [Span(900.0, 8000.0)]})
    assert memory_grows(case, loading, EvidenceBook()).fired is None


@pytest.mark.parametrize(
    ("steps", "pace", "told"),
    [(2000, 8e6, True), (130, 8e6, False), (2000, 4e6, False)],
    ids=["before the end", "after it", "later than two hours of data tell of"],
)
def test_a_disk_that_is_full_before_the_run_is_done(tmp_path: Path, steps: int, pace: float, told: bool) -> None:
    free = lambda t: 100 * GB - pace * (t - 1000.0) + 1e7 * np.sin(t)  # noqa: E731
    case, symptoms = case_of(tmp_path, Memory({"a": free}, metric="hw_fs_free_bytes"), steps)
    assert disk_fills(case, symptoms, EvidenceBook()).fired is told


class Keys(Memory):
    """The share of its keys that each host has used, with a gauge for their limit."""

    renamed: frozenset[str] = frozenset()
    names = frozenset({"kernel_keys", "kernel_keys_max"})

    def metrics(self) -> frozenset[str]:
        return self.names

    def by_host(self, query: str, at: float) -> dict[str, float]:
        return {h: float(of(at)) for h, of in self.used.items()}


@pytest.mark.parametrize(
    ("steps", "grow", "hosts"),
    [(400, 0.5, ("a",)), (150, 0.5, ()), (400, 0.0, ())],
    ids=["before-the-end", "after-the-end", "level"],
)
def test_who_grows_towards_a_limit_of_its_own_is_told_before_it_is_there(
    tmp_path: Path, steps: int, grow: float, hosts: tuple[str, ...]
) -> None:
    still = lambda t: 0.1 + 0.002 * np.sin(t)  # noqa: E731
    grows = lambda t: still(t) + grow * (t - 1000.0) / 7200.0  # noqa: E731
    case, _ = case_of(tmp_path, Keys({"a": grows, "b": still, "c": still}), steps)
    book = EvidenceBook()
    found = limits_ahead(case, book)
    assert (found.hosts if found is not None else ()) == hosts
    if hosts:
        assert "kernel_keys grows all along" in book.items[0].says


@pytest.mark.parametrize("names", [{"nfct_entries", "nfct_table_limit"}, {"fdtable_open_files", "fdtable_limit"}])
def test_a_limit_may_say_more_or_less_of_what_it_limits(tmp_path: Path, names: set[str]) -> None:
    used = lambda t: 0.1 + 0.5 * (t - 1000.0) / 7200.0  # noqa: E731
    keys = Keys({"a": used, "b": lambda t: 0.1, "c": lambda t: 0.1})
    keys.names = frozenset(names)
    found = limits_ahead(case_of(tmp_path, keys, 400)[0], EvidenceBook())
    assert found is not None
    assert found.hosts == ("a",)


@pytest.mark.parametrize(("lost", "steps", "told"), [(0.6, 400, True), (0.6, 130, False), (0.3, 4000, False)])
def test_what_runs_out_on_one_host_is_told_where_most_of_it_is_gone(
    tmp_path: Path, lost: float, steps: int, told: bool
) -> None:
    keys = Keys({"a": lambda t: 0.9 - lost * (t - 1000.0) / 7200.0, "b": lambda t: 0.9, "c": lambda t: 0.9})
    keys.names = frozenset({"reservoir_level_ratio"})
    found = limits_ahead(case_of(tmp_path, keys, steps)[0], EvidenceBook())
    assert (found is not None) == told
