"""Real text: what Slurm (srun with one file a task, its accounting, the kernel) left of jobs whose end is known.

Recorded for this project on a real cluster of three nodes with limits on memory; hosts and paths were renamed.
`elastic` is torchrun's own output and error files of PyTorch 2.14 with one rank raising; `gpu` was recorded on an H200
(driver 580, PyTorch 2.11); `kubernetes` is what the real kubectl 1.32 prints of objects that we wrote; `journal` and
`core` are journalctl's and coredumpctl's (systemd 252) words about entries put into a journal: the kernel's own, and a
crash.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.job.resolve import several
from trackwalker.logs.formats.forms import form_of

DATA = Path(__file__).parents[2] / "data" / "triage" / "captured"


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


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("kubernetes/oom-describe.txt", "oom-host"),
        ("kubernetes/oom-pod.yaml", "oom-host"),
        ("kubernetes/lost-events.txt", "node-death"),
        ("kubernetes/lost-events.yaml", "node-death"),
        ("kubernetes/lost-describe.txt", "node-death"),
        ("kubernetes/pull-describe.txt", "container-pull-fail"),
        ("kubernetes/pull-events.txt", "container-pull-fail"),
        ("journal/journal-n2.txt", "oom-host"),
        ("core/core-n2.txt", "segfault"),
    ],
)
def test_what_clusters_tools_print_alone_names_cause_and_host(name: str, cause: str) -> None:
    found = of(DATA / name).primary
    assert found is not None
    assert (found.cause, found.host) == (cause, "n2")


@pytest.mark.parametrize("what", ["", "torchrun.out", "attempt_0/1/error.json"])
def test_torchruns_summary_and_error_files_name_the_rank_that_raised(what: str) -> None:
    path = DATA / "elastic" / what
    found = of(*(sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path])).primary
    assert found is not None
    assert (found.cause, found.rank) == ("python-exception", 1)
    assert "KeyError: 'tray_9'" in found.text
    assert "t.py:15 in main" in found.subject


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("oom.out", "oom-gpu"),
        ("assert.out", "python-exception"),
        ("illegal.out", "segfault"),
        ("same-gpu.out", "config-error"),
        ("dmesg-vm.txt", "segfault"),
    ],
)
def test_what_a_gpu_left(name: str, cause: str) -> None:
    found = of(DATA / "gpu" / name).primary
    assert found is not None
    assert found.cause == cause


@pytest.mark.parametrize("name", ["smi.txt", "smi-q.txt", "ras.txt"])
def test_reports_of_a_healthy_gpu_accuse_nobody(tmp_path: Path, name: str) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"step: {s} loss: 2.1 time: 0.8\n" for s in range(9)) + "ValueError: the tray is empty\n")
    alone = of(log).primary
    beside = of(log, DATA / "gpu" / name).primary
    assert alone is not None
    assert beside is not None
    assert (beside.cause, beside.text, beside.file) == (alone.cause, alone.text, "train.log")


def test_a_counted_error_in_nvidia_smis_report_is_found(tmp_path: Path) -> None:
    report = (DATA / "gpu" / "smi-q.txt").read_text()
    sick = tmp_path / "smi-q.txt"
    sick.write_text(
        report.replace(
            "DRAM Uncorrectable                         : 0", "DRAM Uncorrectable                         : 3"
        )
    )
    assert sick.read_text() != report
    found = of(sick).primary
    assert found is not None
    assert found.cause == "gpu-hardware-fault"
