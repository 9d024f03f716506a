"""A process that really crashes: its core is found, named, kept and read; and a run is repeated until it does."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trackwalker.node.evidence import coredump

CRASH = "import ctypes; ctypes.string_at(0)"


@pytest.fixture(autouse=True)
def _cores_are_files() -> None:
    pattern = coredump.read_pattern()
    if pattern.startswith("|"):
        pytest.skip(f"the kernel pipes cores to a program here ({pattern})")
    if "/" in pattern:
        pytest.skip(f"the kernel writes cores into a folder of its own here ({pattern})")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("the limit of core files is 0 here and cannot be raised")


def test_a_crash_leaves_a_core_and_a_backtrace(tmp_path: Path) -> None:
    work, job = tmp_path / "work", tmp_path / "8308-JAX-x"
    work.mkdir()
    job.mkdir()
    started = time.time()
    limit = "import resource; h = resource.getrlimit(4)[1]; resource.setrlimit(4, (h, h)); "
    process = subprocess.Popen([sys.executable, "-c", limit + CRASH], cwd=work)
    assert process.wait(60) == -signal.SIGSEGV
    lines: list[str] = []
    found = coredump.collect(job, "8308", "node1", started, {process.pid: 5}, [work], lines.append)
    assert len(found) == 1, lines
    core = found[0]
    assert core.whole
    assert core.core.pid == process.pid
    assert Path(core.core.program).resolve() == Path(sys.executable).resolve()
    assert core.path.parent == job
    assert core.path.name.startswith("core.8308.")
    assert core.path.name.endswith(f".5.node1.{core.core.name.replace('.', '_')}.{process.pid}")
    assert not list(work.iterdir())
    if shutil.which("gdb") is None:
        assert any("gdb is not installed" in line for line in lines)
    else:
        assert core.backtrace == core.path.with_name(core.path.name + ".txt")
        assert "SIGSEGV" in core.backtrace.read_text()
        assert "#0" in lines[-1]


def test_repro_runs_until_the_crash_and_keeps_its_core(tmp_path: Path) -> None:
    # In the place of the trainer: it ends well at once the first time, and crashes the second time.
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import os, pathlib\nonce = pathlib.Path({str(tmp_path / 'once')!r})\n"
        f"if 'NODE_RANK' in os.environ:\n    if once.exists():\n        {CRASH}\n    once.touch()\n    os._exit(0)\n"
    )
    words = [sys.executable, "-m", "trackwalker", "repro", "tiny", "--most", "5", "--workspace", str(tmp_path / "out")]
    done = subprocess.run(
        [*words, "--", f"_env_PYTHONPATH={site}"], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    said = done.stdout.splitlines()
    assert done.returncode != 0, done.stdout + done.stderr
    assert "Starting iteration #2" in said
    assert "Starting iteration #3" not in said
    assert "Exit code: 0" in said
    assert "Loop terminated after 2 iteration(s)" in said
    assert f"tiny crashed with exit code {done.returncode}. Stopping loop." in said
    cores = [Path(line.split(" ", 1)[1]) for line in said if line.startswith("core ")]
    assert len(cores) == 1, done.stdout
    assert cores[0].is_file()
    assert cores[0].parent.parent == tmp_path / "out"
    log = next(Path(line.rpartition("  log ")[2]) for line in reversed(said) if "  log " in line)
    assert "exit=139" in log.read_text()


def test_repro_stopped_by_hand_ends_its_run(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import os, pathlib, time\nif 'NODE_RANK' in os.environ:\n    pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        "    time.sleep(100)\n"
    )
    words = [sys.executable, "-m", "trackwalker", "repro", "tiny", "--workspace", str(tmp_path / "out")]
    process = subprocess.Popen([*words, "--", f"_env_PYTHONPATH={site}"], cwd=tmp_path, stdout=-1, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0].splitlines()
    assert "Stopped by hand." in said
    assert said[-1].startswith("Loop terminated after 1 iteration(s)")
    assert process.returncode in (130, 143)


def test_repro_that_never_fails_gives_up_when_told(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nif 'NODE_RANK' in os.environ:\n    os._exit(0)\n")
    words = [sys.executable, "-m", "trackwalker", "repro", "tiny", "--most", "2", "--workspace", str(tmp_path / "out")]
    done = subprocess.run([*words, "--", f"_env_PYTHONPATH={site}"], cwd=tmp_path, stdout=-1, text=True, timeout=200)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "Loop terminated after 2 iteration(s)"
