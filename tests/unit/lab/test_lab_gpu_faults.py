"""Faults of a GPU: the right settings for the right card, strangers that start and end, everything put back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.job.processes import alive, read_stat
from trackwalker.lab.real import undo as undo_module
from trackwalker.lab.real.inject import Victim, inject
from trackwalker.lab.real.undo import NotHereError, pending

pytestmark = pytest.mark.starts_processes

MOCK = Path(__file__).parents[2] / "data" / "cuda_mock.c"
SMI = """#!/bin/sh
case "$1" in --query-gpu=*)
    echo '0, GPU-a, 700.00, 700.00, 200.00, 1980'
    echo '1, GPU-b, 500.00, 700.00, 200.00, 1980'
    exit 0;;
esac
[ -n "$SMI_REFUSES" ] && { echo 'Insufficient Permissions'; exit 4; }
echo "$*" >> "$SMI_CALLS"
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in nvidia-smi with two GPUs; the file its changes are written to."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SMI_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(undo_module, "_folder", lambda: tmp_path / "notes")
    return tmp_path / "calls"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}
    child = subprocess.Popen(["sleep", "60"], start_new_session=True, env=env)
    while (
        b"CUDA_VISIBLE_DEVICES=1" not in Path(f"/proc/{child.pid}/environ").read_bytes()
    ):  # until it is no fork of ours
        time.sleep(0.01)
    stat = read_stat(child.pid)
    assert stat is not None
    job = tmp_path / "job"
    (job / "agent").mkdir(parents=True)
    entry = {"rank": 0, "host": "box-r0", "pid": child.pid, "start": stat.start, "main": child.pid}
    (job / "agent" / "state.json").write_text(json.dumps({"ranks": [entry]}))
    yield Victim(0, "box-r0", child.pid, job)
    child.kill()
    child.wait()


@pytest.mark.parametrize(
    ("fault", "strength", "done", "undone"),
    [
        ("power-cap", 0.4, "-i GPU-b -pl 300", "-i GPU-b -pl 500"),
        ("power-cap", 0.9, "-i GPU-b -pl 200", "-i GPU-b -pl 500"),  # no lower than the board goes
        ("lock-clocks", 0.5, "-i GPU-b -lgc 990,990", "-i GPU-b -rgc"),
    ],
)
def test_settings_of_the_rank_s_own_gpu_are_changed_and_put_back(
    smi: Path, victim: Victim, fault: str, strength: float, done: str, undone: str
) -> None:
    with inject(fault, victim, strength):
        assert smi.read_text().splitlines() == [done]
    assert smi.read_text().splitlines() == [done, undone]
    assert pending(victim.job_dir) == []


def test_a_killed_injector_is_undone_at_once(smi: Path, victim: Victim, tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom trackwalker.lab.real import undo\n"
        f"undo._folder = lambda: Path({str(tmp_path / 'notes')!r})\n"
        "from trackwalker.lab.real.inject import Victim, inject\n"
        f"with inject('power-cap', Victim(0, 'box-r0', {victim.pid}, Path({str(victim.job_dir)!r})), 0.4):\n"
        "    print('in place', flush=True)\n    time.sleep(60)\n"
    )
    injector = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert injector.stdout is not None
    assert injector.stdout.readline() == b"in place\n"
    injector.send_signal(signal.SIGKILL)
    injector.communicate()
    deadline = time.monotonic() + 10
    while len(smi.read_text().splitlines()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert smi.read_text().splitlines() == ["-i GPU-b -pl 300", "-i GPU-b -pl 500"]


def test_a_refusal_is_told_in_one_line(smi: Path, victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMI_REFUSES", "1")
    with pytest.raises(NotHereError, match="Insufficient Permissions"), inject("power-cap", victim):
        pass
    with pytest.raises(UsageError, match="above 0"), inject("power-cap", victim, 0.0):
        pass


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the stand-in CUDA library cannot be built")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(MOCK)], check=True
    )
    monkeypatch.setenv("TRACKWALKER_CUDA", str(library))


@pytest.mark.usefixtures("smi", "cuda")
@pytest.mark.parametrize("fault", ["gpu-hog", "busy-wait", "gpu-memory-hog"])
def test_a_stranger_comes_and_goes(victim: Victim, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with inject(fault, victim, 0.5) as began:
        (note,) = pending(victim.job_dir)
        ((verb, pid, start),) = json.loads(note.path.read_text())
        assert verb == "end"
        assert alive(pid, start)
        assert began <= time.time()
        assert b"CUDA_VISIBLE_DEVICES=GPU-b" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert not alive(pid, start)
    monkeypatch.setenv("MOCK_NO_DEVICE", "1")
    with pytest.raises(NotHereError, match="cuInit answered 100"), inject(fault, victim):
        pass


def test_late_data_while_the_fault_lasts(smi: Path, victim: Victim) -> None:
    config = {"base_output_directory": {"value": str(victim.job_dir)}, "run_name": {"value": "tiny"}}
    (victim.job_dir / "run.json").write_text(json.dumps({"config": config}))
    knob = victim.job_dir / "tiny" / "data-delay-r0"
    with inject("data-stall", victim, 0.25):
        assert float(knob.read_text()) == 0.25
    assert not knob.exists()
