"""Real text: what Slurm (srun with one file a task, its accounting, the kernel) left of jobs whose end is known.

Recorded for this project on a real cluster of three nodes with limits on memory; hosts and paths were renamed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.job.resolve import several
from trackwalker.logs.forms import form_of

DATA = Path(__file__).parent.parent / "data" / "triage" / "captured"


def of(*paths: Path) -> Triage:
    return triage(several([p for path in paths for p in (sorted(path.iterdir()) if path.is_dir() else [path])]))


@pytest.mark.parametrize(
    ("how", "causes"),
    [
        ("segv", {"segfault"}),
        ("exit", {"python-exception"}),
        ("oom", {"oom-host"}),
        ("data", {"python-exception"}),
        ("cancel", {"user-cancel"}),
    ],
)
def test_all_files_of_one_job(how: str, causes: set[str]) -> None:
    found = of(DATA / how)
    assert found.primary is not None
    assert found.primary.cause in causes
    if how != "cancel":  # whoever was ended is no culprit
        assert (found.primary.rank, found.primary.host) in {(1, "n2"), (None, "n2")}


@pytest.mark.parametrize("how", ["exit", "data"])
def test_the_traceback_of_one_task_is_quoted_with_its_frame(how: str) -> None:
    found = of(DATA / how).primary
    assert found is not None
    assert (found.rank, found.file) == (1, next(DATA.joinpath(how).glob("slurm-*_1.out")).name)
    assert "t.py:" in found.subject
    assert found.kind == {"exit": "configuration", "data": "storage"}[how]


@pytest.mark.parametrize(("how", "cause"), [("oom", "oom-host"), ("cancel", "user-cancel")])
def test_slurms_accounting_alone(how: str, cause: str) -> None:
    path = DATA / how / "sacct.txt"
    assert form_of(path).name == "sacct"
    found = of(path)
    assert found.primary is not None
    assert found.primary.cause == cause


def test_accounting_that_knows_only_that_it_failed_names_no_cause() -> None:
    for how in ("segv", "exit", "data"):
        found = of(DATA / how / "sacct.txt")
        assert found.primary is None or found.primary.cause in ("unclassified", "unknown-death", "python-exception"), (
            how
        )


def test_the_kernels_own_log() -> None:
    found = of(DATA / "oom" / "dmesg-n2.txt")
    assert found.primary is not None
    assert (found.primary.cause, found.primary.kind) == ("oom-host", "memory")


def test_sruns_words_alone() -> None:
    for how, cause in (("segv", "segfault"), ("oom", "oom-host")):
        found = of(next(DATA.joinpath(how).glob("slurm-?.out")))
        assert found.primary is not None
        assert (found.primary.cause, found.primary.host) == (cause, "n2")
