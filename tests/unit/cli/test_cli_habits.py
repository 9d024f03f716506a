"""What people expect of a command line: groups, -h, short names for jobs, columns, a config file, a doctor, rm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from command_here import call_here
from hostile_jobs import ID, make_job

from trackwalker.cli.commands import COMMANDS, GROUPS, load
from trackwalker.cli.common.completion import candidates
from trackwalker.cli.common.waiting import clock, since, span
from trackwalker.cli.common.words import earlier_jobs
from trackwalker.errors import UsageError

HERE = {**os.environ, "COLUMNS": "120"}
OLD, MIDDLE, NEW = "local_20260101_000000_aaaa", "local_20260102_000000_bbbb", "local_20260103_000000_cccc"


def say(*words: str, cwd: Path | None = None, **env: str) -> str:
    done = call_here({**HERE, **env}, *words, cwd=cwd)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Three jobs; the oldest was written to last."""
    for at, name in enumerate((MIDDLE, NEW, OLD)):
        folder = make_job(tmp_path, name)
        record = json.loads((folder / "run.json").read_text())
        record["created"] = 1767225600.0 + 86400 * (OLD, MIDDLE, NEW).index(name)
        (folder / "run.json").write_text(json.dumps(record))
        os.utime(tmp_path / f"{folder.name}.log", (at + 1e9, at + 1e9))
    return tmp_path


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names.split()]
    assert set(COMMANDS) <= set(grouped), "name the group of every command in cli/commands.py"
    assert len(grouped) == len(set(grouped))
    said = say("-h")
    places = [said.index(f"─ {group} ─") for group in GROUPS]
    assert places == sorted(places)


@pytest.mark.parametrize("words", [["jobs", "-h"], ["jobs", "--help"], ["help", "jobs"]])
def test_three_ways_to_help(words: list[str]) -> None:
    assert "Usage: trackwalker jobs" in say(*words)


def test_the_version_is_a_word_too() -> None:
    assert say("version") == say("--version")


def test_help_shows_no_types_of_flags_and_what_goes_behind() -> None:
    said = " ".join(say("submit", "-h").split())
    assert "<bool>" not in said
    assert "<str>" not in said
    assert "[-N NODES] [-p PARTITION] [--time T]" in said
    assert "[-- KEY=VALUE" in said


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("latest", NEW),
        ("-", MIDDLE),
        ("-1", MIDDLE),
        ("-2", OLD),
        ("local_20260102", MIDDLE),
    ],
)
def test_short_names_of_jobs(name: str, means: str, three: Path) -> None:
    assert f"job {means} " in say("status", name, "-w", str(three))
    assert means in say("triage", name, "-w", str(three))


def test_no_name_is_the_latest(three: Path) -> None:
    assert f"job {NEW} " in say("status", "-w", str(three))
    assert "completed step: 29" in say("logs", "-n", "1", "-w", str(three))
    done = call_here(HERE, "status", "-7", "-w", str(three))
    assert (done.returncode, "there are only 3 jobs" in done.stderr) == (2, True)
    assert "there is no job in" in call_here(HERE, "status", "-w", str(three / ".ledger")).stderr


def test_more_commands_that_need_no_name(three: Path) -> None:
    assert f"job {NEW}" in say("perf", "-w", str(three)).splitlines()[0]
    assert "completed step: 29" in say("rank-tails", "-w", str(three))


def test_no_words_at_all_is_help_and_no_complaint() -> None:
    for words in ([], ["tsdb"]):
        done = call_here(HERE, *words)
        assert (done.returncode, "Usage: trackwalker" in done.stdout, done.stderr) == (2, True, "")


def test_the_help_of_everything_has_every_command() -> None:
    said = say("--help-all")
    assert [name for name in COMMANDS if f"Usage: trackwalker {name} " not in said] == []
    assert "Usage: trackwalker tsdb query " in said


@pytest.mark.parametrize("name", ["8308", "8308_4", "8308.0", "8308.batch", "8308+1", "8308_[1-4%2]"])
def test_ids_as_slurm_prints_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "8308-JAX-x.log").write_text("0: hello\n")
    assert say("logs", name, "-w", str(tmp_path)) == "0: hello\n"


def test_a_value_of_an_option_is_no_job() -> None:
    assert earlier_jobs(["logs", "8308", "-n", "-1"]) == ["logs", "8308", "-n", "-1"]
    assert earlier_jobs(["diagnose", "-2", "--", "-3"]) == ["diagnose", "latest~2", "--", "-3"]


def test_jobs_as_squeue_lists_them(three: Path) -> None:
    (three / f"{NEW}-JAX-tiny" / "verdict.json").write_text(
        json.dumps({"outcome": "incident", "causes": [{"cause": "peer-died", "role": "root"}]})
    )
    wide = say("jobs", "-w", str(three), COLUMNS="150").splitlines()
    assert " ".join(wide[0].split()) == "id started elapsed model nodes step s/step state verdict"
    row = next(line for line in wide if line.startswith(NEW))
    for cell in ("tiny", "30/30 ", " 1 ", "failed", "A rank died"):
        assert cell in row
    narrow = say("jobs", "-w", str(three), COLUMNS="80").splitlines()
    assert max(map(len, narrow)) <= 80
    assert next(line for line in narrow if line.startswith(NEW)).split()[-4:] == ["failed", "A", "rank", "died"]
    assert say("jobs", "-w", str(three), "-o", "id,state").splitlines()[1].split()[1] == "failed"
    assert say("jobs", "-w", str(three), "-o", "id,speed").splitlines()[0].split() == ["id", "s/step"]
    assert MIDDLE not in say("jobs", "-w", str(three), "--since", "2026-01-03")
    assert "no jobs that are running" in say("jobs", "-w", str(three), "--state", "running")
    assert len(json.loads(say("jobs", "-w", str(three), "--limit", "2", "--json"))["jobs"]) == 2
    assert "no column 'x'" in call_here(HERE, "jobs", "-w", str(three), "-o", "x").stderr


def test_status_says_how_far(three: Path) -> None:
    said = say("status", "-w", str(three))
    assert "step 30 of 30, 1 s per step" in said
    assert f"log {three}" in said
    assert json.loads(say("status", "-w", str(three), "--json"))["step"] == 30


def test_flags_beat_environment_beats_project_beats_user(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    below = project / "a" / "b"
    below.mkdir(parents=True)
    env = {"XDG_CONFIG_HOME": str(home), "JOB_WORKSPACE": "", "DOCKER_IMAGE": ""}
    for name in ("user", "theirs", "env", "flag"):
        make_job(tmp_path / name)
    words = ["jobs", "--json"]

    def workspace(*more: str, **extra: str) -> str:
        return Path(json.loads(say(*words, *more, cwd=below, **{**env, **extra}))["workspace"]).name

    say("config", "set", "workspace", str(tmp_path / "user"), cwd=below, **env)
    assert workspace() == "user"
    say("config", "set", "workspace", "../theirs", "--project", cwd=project, **env)
    assert workspace() == "theirs"
    assert workspace(JOB_WORKSPACE=str(tmp_path / "env")) == "env"
    assert workspace("-w", str(tmp_path / "flag"), JOB_WORKSPACE=str(tmp_path / "env")) == "flag"
    shown = say("config", "show", "--origin", cwd=below, **env)
    assert "trackwalker.toml" in next(line for line in shown.splitlines() if line.startswith("workspace"))
    assert say("config", "get", "workspace", cwd=below, **env).strip().endswith("theirs")
    assert str(home / "trackwalker" / "config.toml") in say("config", "path", cwd=below, **env)
    say("config", "set", "workspace", "", "--project", cwd=project, **env)
    assert workspace() == "user"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("worksapce = 'x'", "no setting 'worksapce'; did you mean 'workspace'?"),
        ("workspace = 3", "workspace must be text"),
        ("workspace =", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_config_file_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "trackwalker.toml").write_text(text)
    done = call_here({**HERE, "XDG_CONFIG_HOME": str(tmp_path)}, "jobs", cwd=tmp_path)
    assert (done.returncode, says in done.stderr, len(done.stderr.splitlines())) == (2, True, 1)


def test_a_config_file_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    make_job(tmp_path / "ws")
    path = tmp_path / "trackwalker.toml"
    path.write_text("workspace = '/elsewhere'\n")
    path.chmod(0o666)
    env = {**HERE, "XDG_CONFIG_HOME": str(tmp_path), "JOB_WORKSPACE": ""}
    done = call_here(env, "jobs", "-w", str(tmp_path / "ws"), cwd=tmp_path)
    assert done.returncode == 0
    assert "is ignored: " in done.stderr


def test_the_doctor_says_how_a_workspace_is_shared(tmp_path: Path) -> None:
    from trackwalker.cli.doctor import _shared

    def told(mode: int) -> tuple[str, str]:
        tmp_path.chmod(mode)
        (found,) = _shared(tmp_path)
        return found.state, f"{found.says} {found.do}"

    assert told(0o755) == ("ok", f"nobody else can write to {tmp_path} ")
    assert told(0o777)[0] == "problem"
    assert "chmod +t" in told(0o777)[1]
    assert told(0o1777) == ("ok", "shared and sticky ")
    (tmp_path / ".submissions").mkdir(mode=0o755)
    assert told(0o1777)[0] == "problem"
    assert "install -d -m 1777" in told(0o1777)[1]
    assert list(_shared(tmp_path / "none")) == []


@pytest.mark.starts_processes
def test_the_doctor_names_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    said = call_here(HERE, "doctor", "-w", str(tmp_path))
    assert said.returncode in (0, 1)
    for about in ("Python", "Prometheus", "Slurm", "containers", "GPUs", "RDMA", "extra", "disk", "clock"):
        assert any(line[8:].startswith(about) for line in said.stdout.splitlines()), about
    found = json.loads(call_here(HERE, "doctor", "--json", "-w", str(tmp_path)).stdout)["findings"]
    assert {each["state"] for each in found} <= {"ok", "missing", "problem"}


def test_removing_a_job_takes_its_whole_id(three: Path) -> None:
    asked = call_here(HERE, "rm", NEW, "-w", str(three))
    assert (asked.returncode, "nobody can be asked here" in asked.stderr) == (2, True)
    short = call_here(HERE, "rm", "latest", "--yes", "-w", str(three))
    assert (short.returncode, f"is job {NEW}" in short.stderr) == (2, True)
    assert say("rm", NEW, "--yes", "-w", str(three)) == f"job {NEW} is removed\n"
    left = sorted(path.name[:24] for path in three.iterdir() if path.name.startswith("local"))
    assert NEW[:24] not in left
    assert len(left) == 4


def test_a_job_that_is_not_over_is_not_removed(tmp_path: Path) -> None:
    folder = make_job(tmp_path)
    (folder / "events.jsonl").write_text("")
    done = call_here(HERE, "rm", ID, "--yes", "-w", str(tmp_path))  # it runs on another machine, for all we know
    assert (done.returncode, "is not over" in done.stderr) == (2, True)
    assert folder.is_dir()


def test_old_jobs_are_listed_and_removed_on_request(three: Path) -> None:
    fresh = make_job(three, "local_20260104_000000_dddd")
    record = json.loads((fresh / "run.json").read_text())
    (fresh / "run.json").write_text(json.dumps({**record, "created": time.time()}))
    assert say("clean", "--older-than", "30d", "-w", str(three)).count("OLD ") == 3
    assert (three / f"{OLD}-JAX-tiny").is_dir()
    say("clean", "--older-than", "30d", "--yes", "-w", str(three))
    assert [path.name for path in three.glob("local*") if path.is_dir()] == [fresh.name]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["dia"], ["diagnose"]),
        (["tsdb", "qu"], ["query"]),
        (["plan", "llama2"], ["llama2-70b"]),
        (["jobs", "--st"], ["--state"]),
        (["status", "local_20260103"], [NEW]),
        (["tsdb", "query", NEW, "hw_gpu_stal"], ["hw_gpu_stalled"]),
        (["completion", "z"], ["zsh"]),
        (["help", "versi"], ["version"]),
        (["nosuch", "x"], []),
    ],
)
def test_what_a_tab_offers(typed: list[str], found: list[str], three: Path) -> None:
    assert candidates(typed, three) == found


def test_spans() -> None:
    assert (span("90s"), span("2h"), span("1.5d")) == (90, 7200, 129600)
    assert abs(since("1h") - (time.time() - 3600)) < 5
    assert since("2026-01-01") == 1767225600
    assert [clock(s) for s in (5, 65, 3665, 90061, None)] == ["0:05", "1:05", "1:01:05", "1-01:01:01", ""]
    with pytest.raises(UsageError):
        span("soon")


@pytest.mark.parametrize("name", COMMANDS)
def test_metavars_are_the_same_everywhere(name: str) -> None:
    command = load(name)
    jobs = [p for p in command.params if p.param_type_name == "argument" and p.name == "job"]
    assert all(p.metavar == "JOB" for p in jobs), name
