"""`trackwalker shell`: the run's environment, the run's container, a printed command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from trackwalker.cli import app
from trackwalker.errors import UsageError
from trackwalker.job.run import RunRecord, Setting
from trackwalker.launch.shell import Shell, open_shell


def shell(what: str | None, workspace: Path, image: str | None = None, runtime: str = "") -> tuple[Shell, list[str]]:
    notes: list[str] = []
    made = open_shell(what, image, runtime, False, workspace, workspace, dry_run=True, say=notes.append)
    return made, notes


@pytest.fixture
def job(tmp_path: Path) -> str:
    folder = tmp_path / "8308-JAX-tiny"
    folder.mkdir()
    (tmp_path / "8308-JAX-tiny.log").write_text("JOB_ID=8308\n")
    env = {"NCCL_DEBUG": Setting(value="a b\n'c'", source="x"), "HF_TOKEN": Setting(value="***", source="x")}
    record = RunRecord(
        id="8308", name="JAX-tiny", model="tiny", scheduler="slurm", trainer="tiny", created=0, argv=[], command=[],
        env=env, workspace=str(tmp_path),
    )  # fmt: skip
    record.save(folder / "run.json")
    return "8308"


def test_a_jobs_shell_has_its_environment_and_says_what_is_missing(job: str, tmp_path: Path) -> None:
    made, notes = shell(job, tmp_path, "rocm/jax:1", "docker")
    assert made.argv[:2] == ["docker", "run"]
    assert made.argv[made.argv.index("--entrypoint") + 2] == "docker.io/rocm/jax:1"
    assert {"--interactive", "--tty"} < set(made.argv)
    assert "--privileged" not in made.argv
    assert made.env["NCCL_DEBUG"] == "a b\n'c'"
    assert made.env["JOB_ID"] == "8308"
    assert "HF_TOKEN" not in shlex.join(made.argv)
    assert "not set, as secrets are not recorded: HF_TOKEN" in notes
    assert "label=trackwalker.job" not in shlex.join(made.argv)  # the job's end must not end a person's shell


def test_a_models_shell_has_the_environment_it_would_get(tmp_path: Path) -> None:
    made, _ = shell("llama2-70b", tmp_path, "rocm/jax:1", "podman")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in made.argv
    assert made.env["XLA_PYTHON_CLIENT_MEM_FRACTION"]


def test_r33_every_shell_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = {(argv := shell(None, tmp_path, "x", "docker")[0].argv)[argv.index("--name") + 1] for _ in range(20)}
    assert len(names) == 20


def test_without_an_image_it_is_a_shell_on_this_machine(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    made, _ = shell(job, tmp_path)
    assert made.argv == ["/bin/sh"]
    assert made.env["NCCL_DEBUG"] == "a b\n'c'"
    with pytest.raises(UsageError, match="needs an image"):
        shell(job, tmp_path, None, "docker")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-model"], "unknown model 'no-such-model'"),
        (["999999"], "no job '999999'"),
        (["--image", "Not A Name", "--runtime", "docker"], "is no reference"),
        (["--image", "x", "--runtime", "enroot"], "no runtime 'enroot': podman, docker, apptainer, native"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trackwalker", "shell", *words, "--dry-run", "--workspace", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        app.main()
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert says in error
    assert error.count("\n") == 1
