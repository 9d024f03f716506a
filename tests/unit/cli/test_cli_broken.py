"""What a new user found broken in 0.1.0, each as the command that showed it (issue 29)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_here import call_here
from hostile_jobs import ID, STEP, make_job

from trackwalker.cli.launching.run import Ending

HERE = {**os.environ, "COLUMNS": "100"}
TRACKWALKER = [sys.executable, "-m", "trackwalker"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["steps=abc"], "key 'steps' must be a whole number, got 'abc'"),
        (["stps=3"], "unknown key 'stps' for tiny; did you mean 'steps'?"),
        (["steps=0"], "key 'steps' must be at least 1"),
        (["dtype=int4"], "key 'dtype' must be float32 or bfloat16"),
        (["num_experts_per_tok=3"], "must not exceed num_experts"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_settings_that_the_trainer_would_refuse_make_no_job(
    command: str, words: list[str], says: str, tmp_path: Path
) -> None:
    done = call_here(HERE, command, "tiny", "--workspace", str(tmp_path / "ws"), "--", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ws").exists()


def test_settings_that_only_together_make_sense_are_taken(tmp_path: Path) -> None:
    words = ["num_experts_per_tok=2", "num_experts=4"]
    assert call_here(HERE, "plan", "tiny", "--workspace", str(tmp_path), "--", *words).returncode == 0


def test_a_trainer_that_is_not_installed_is_named_before_there_is_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackwalker.launch.request.keys.find_spec", lambda name: None)
    done = call_here(HERE, "run", "tiny", "-w", str(tmp_path / "ws"))
    assert done.returncode == 2
    assert "pip install 'trackwalker[tiny]'" in done.stderr
    assert not (tmp_path / "ws").exists()


@pytest.mark.parametrize("words", [["jobs"], ["triage", "--all"], ["tsdb", "list"], ["watch", "--all", "--once"]])
def test_a_workspace_that_is_not_there_is_an_error(words: list[str], tmp_path: Path) -> None:
    done = call_here(HERE, *words, "-w", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "does not exist" in done.stderr


def test_watching_nothing_says_so(tmp_path: Path) -> None:
    done = call_here(HERE, "watch", "--all", "--once", "-w", str(tmp_path))
    assert done.returncode == 0
    assert "nothing to watch" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "llama2-70b", "--observ"], "no option --observ; did you mean --observe?"),
        (["plan", "llama2-70b", "--imag", "x"], "no option --imag; did you mean --image?"),
        (["submit", "llama2-70b", "--privilegd"], "did you mean --privileged?"),
        (["plan", "lama2-70b"], "unknown model 'lama2-70b'; did you mean 'llama2-70b'"),
        (["plan", "lama3.1"], "unknown model 'lama3.1'"),
    ],
)
def test_a_misspelt_word_is_not_handed_on(words: list[str], says: str, tmp_path: Path) -> None:
    done = call_here(HERE, *words, "--workspace", str(tmp_path))
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("word", ["--mem=3G", "--comment=x", "--gres=gpu:8", "--image-new=3", "--qos=high"])
def test_options_of_the_scheduler_are_its_own(word: str, tmp_path: Path) -> None:
    done = call_here(HERE, "plan", "tiny", "--workspace", str(tmp_path), word, "--json")
    assert (done.returncode, word in done.stdout) == (0, True)


def test_an_error_names_the_help_of_its_command() -> None:
    assert "(see trackwalker jobs --help)" in call_here(HERE, "jobs", "--nosuch").stderr
    assert "(see trackwalker tsdb list --help)" in call_here(HERE, "tsdb", "list", "--nosuch").stderr


@pytest.mark.starts_processes
def test_a_report_is_written_although_nobody_reads_the_rest(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    page = tmp_path / "report.html"
    line = f"{' '.join(TRACKWALKER)} diagnose {folder} --html {page} --save 2>err | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert page.stat().st_size > 1000
    assert (folder / "verdict.json").is_file()
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert "BrokenPipe" not in (tmp_path / "err").read_text()
    assert done.stdout.strip() in ("0", "3")


def test_triage_and_diagnose_of_the_log_alone_are_the_same(tmp_path: Path) -> None:
    make_job(tmp_path)
    for how in ([], ["--md"]):
        one, other = (
            call_here(HERE, *words, *how, "-w", str(tmp_path)) for words in (["triage"], ["diagnose", "--log-only"])
        )
        assert (one.returncode, one.stdout) == (0, other.stdout)
    done = call_here(HERE, "diagnose", "--log-only", "--save", "-w", str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.starts_processes
@pytest.mark.parametrize("words", [["diagnose"], ["triage"], ["diagnose", "--md"]])
def test_the_c_locale_ends_no_command(words: list[str], tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    env = {**HERE, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    log = tmp_path / f"{folder.name}.log"
    log.write_text(log.read_text() + "1: RuntimeError: größer → 3 … done\n", encoding="utf-8")
    done = subprocess.run([*TRACKWALKER, *words, str(folder)], env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, 3)
    assert b"internal error" not in done.stderr
    done.stdout.decode("utf-8")


@pytest.mark.starts_processes
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root and setpriv (util-linux) are needed")
def test_a_job_of_somebody_else_does_not_hide_ones_own(tmp_path: Path) -> None:
    make_job(tmp_path)
    secret = make_job(tmp_path, "local_20260101_000001_beef")
    os.chown(secret, 65534, 65534)
    secret.chmod(0o700)
    # Root without its right to read everything is an ordinary user here.
    ordinary = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    said = {}
    for words in (["jobs"], ["triage", "--all"], ["diagnose", ID], ["status", ID]):
        argv = [*ordinary, *TRACKWALKER, *words, "-w", str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 3), (words, done.stderr)
        assert "internal error" not in done.stderr
        said[words[0]] = done
    assert ID in said["jobs"].stdout
    for command in ("jobs", "triage"):
        assert said[command].stderr.count("local_20260101_000001_beef-JAX-tiny is skipped: Permission denied") == 1


@pytest.mark.starts_processes
def test_slurm_that_is_installed_but_unreachable(tmp_path: Path) -> None:
    """Stand-ins that say what Debian's Slurm 22.05 says without a slurm.conf; where it is installed, it says so."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("scontrol", "squeue", "sacct", "sbatch"):
        (tools / name).write_text(
            f"#!/bin/sh\necho '{name}: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host' >&2\n"
            f"echo '{name}: error: fetch_config: DNS SRV lookup failed' >&2\n"
            f"echo '{name}: fatal: Could not establish a configuration source' >&2\nexit 1\n"
        )
        (tools / name).chmod(0o755)
    env = {**HERE, "PATH": f"{tools}:{os.environ['PATH']}"}
    refused = call_here(env, "submit", "tiny", "--workspace", str(tmp_path / "ws"))
    assert refused.returncode == 69
    assert "no Slurm cluster is configured" in refused.stderr
    assert "res_nsearch" not in refused.stderr

    (tmp_path / "ws2").mkdir()
    log = tmp_path / "ws2" / "8308-JAX-ds.log"
    cancel = "slurmstepd: error: *** STEP 8308.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***"
    log.write_text("\n".join([*(f"0: {STEP.format(n=n)}" for n in range(20)), cancel]) + "\n")
    status = call_here(env, "status", "8308", "-w", str(tmp_path / "ws2"))
    assert (status.returncode, "was cancelled" in status.stdout) == (0, True)
    waited = call_here(env, "wait", "8308", "--timeout", "5", "-w", str(tmp_path / "ws2"))
    assert (waited.returncode, "was cancelled" in waited.stdout) == (143, True)


@pytest.mark.parametrize(
    ("code", "by_user", "says"),
    [
        (
            0,
            False,
            "completed: 7 of 10 steps, 0.25 s per step; to see where the time went: trackwalker perf 8308",
        ),
        (1, False, "failed with exit code 1: 7 of 10 steps, 0.25 s per step; why: trackwalker diagnose 8308"),
        (
            130,
            True,
            "ended by you (Ctrl-C): 7 of 10 steps, 0.25 s per step; to continue: trackwalker resume 8308",
        ),
    ],
)
def test_a_run_ends_with_how_far_how_fast_and_what_next(code: int, by_user: bool, says: str) -> None:
    assert Ending(code, by_user, 7, "10", 0.25).sentence("8308") == says
