"""What a plan says will run, what it writes down, and what it keeps to itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trackwalker.errors import UsageError
from trackwalker.job.layout import ID_FORM
from trackwalker.job.run import load_run
from trackwalker.launch.code import bundle
from trackwalker.launch.plan import How, Plan, plan_local
from trackwalker.launch.request.words import ModelSpec, parse_passthrough
from trackwalker.launch.schedulers import local
from trackwalker.launch.schedulers.local import LocalRun
from trackwalker.logs.scanning.index import index_logs


def plan(tmp_path: Path, procs: int = 1, words: list[str] | None = None, spec: ModelSpec | None = None) -> Plan:
    passthrough = parse_passthrough(words or [])
    argv = ["run", "tiny", "-n", str(procs), "--", *(words or [])]
    return plan_local(spec or ModelSpec("tiny"), passthrough, tmp_path, How("local", argv, procs))


@pytest.fixture(autouse=True)
def _named_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKWALKER_NODE", "box")


def test_one_process(tmp_path: Path) -> None:
    it = plan(tmp_path, spec=ModelSpec("tiny", "shared", "exp"))
    assert ID_FORM.match(it.record.id)
    assert it.record.name == "JAX-tiny-exp"
    assert it.agent.job_dir == tmp_path / f"{it.record.id}-JAX-tiny-exp"
    assert it.agent.log == tmp_path / f"{it.record.id}-JAX-tiny-exp.log"
    (rank,) = it.agent.ranks
    assert rank.host == "box-r0"
    assert rank.env["NNODES"] == "1"
    assert "JAX_COORDINATOR_IP" not in rank.env
    assert "JOB_NODELIST=box-r0\n" in it.header
    assert "MODEL_NAME_ALIAS=shared\nEXP_TAG=exp\n" in it.header


def test_four_processes(tmp_path: Path) -> None:
    it = plan(tmp_path, 4, ["steps=7", "_env_NCCL_DEBUG=INFO"])
    assert [r.host for r in it.agent.ranks] == [p.host for p in it.record.ranks] == [f"box-r{r}" for r in range(4)]
    assert [r.env["NODE_RANK"] for r in it.agent.ranks] == ["0", "1", "2", "3"]
    ports = {r.env["JAX_COORDINATOR_PORT"] for r in it.agent.ranks}
    assert len(ports) == 1
    assert f"JAX_COORDINATOR_PORT={ports.pop()}\n" in it.header
    assert len({tuple(r.argv) for r in it.agent.ranks}) == 1
    assert it.agent.ranks[0].argv[-1] == "steps=7"
    assert it.env == {"NCCL_DEBUG": "INFO"}
    assert it.record.env["NCCL_DEBUG"].source == "command line"
    assert it.record.config["steps"].model_dump() == {"value": "7", "source": "command line"}
    assert it.record.config["vocab_size"].source == "model tiny"
    log = tmp_path / "x.log"
    log.write_text(it.header)
    facts = index_logs(log).facts
    assert facts.hosts == [f"box-r{r}" for r in range(4)]
    assert facts.header["PASSTHROUGH_ARGS"] == "steps=7 _env_NCCL_DEBUG=INFO"


@pytest.mark.parametrize("procs", [0, -1, 65])
def test_impossible_numbers_of_processes(tmp_path: Path, procs: int) -> None:
    with pytest.raises(UsageError, match=f"-n {procs}: between 1 and 64"):
        plan(tmp_path, procs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], None),
        (["enable_checkpointing=true"], "tiny"),
        (["--enable_checkpointing=True"], "tiny"),
        (["enable_checkpointing=false"], None),
    ],
)
def test_r09_checkpointing_runs_share_a_directory(tmp_path: Path, words: list[str], folder: str | None) -> None:
    it = plan(tmp_path, words=words)
    value = it.record.config["base_output_directory"].value
    assert value == str(tmp_path / folder if folder else it.agent.job_dir)
    assert f"base_output_directory={value}" in it.agent.ranks[0].argv
    assert it.agent.tensorboard == Path(str(value), "tiny", "tensorboard"), "where the trainer will write it"


def test_a_maxtext_model_has_its_layers_its_file_and_the_hook(tmp_path: Path) -> None:
    words = ["steps=7", "_env_NCCL_DEBUG=INFO"]
    it = plan(tmp_path, words=words, spec=ModelSpec("70b"))
    (rank,) = it.agent.ranks
    job_dir = it.agent.job_dir
    assert rank.argv[1:5] == ["-u", str(job_dir / "agent" / "agent.pyz"), "maxtext", str(job_dir / "config.yml")]
    assert "steps=7" in rank.argv
    assert "trackwalker:" not in it.config_yaml
    assert "model_name" in it.config_yaml
    assert (it.record.model, it.record.trainer) == ("llama2-70b", "maxtext")
    assert it.env["NCCL_DEBUG"] == "INFO"
    assert it.record.env["XLA_PYTHON_CLIENT_MEM_FRACTION"].source == "base"
    with pytest.raises(UsageError, match="did you mean 'remat_policy'"):
        plan(tmp_path, words=["remat_polcy=full"], spec=ModelSpec("70b"))


SECRETS = [
    "_env_HF_TOKEN=hush-1",
    "hf_access_token=hush-2",
    "--api_key=hush-3",
    "_env_AWS_SECRET_ACCESS_KEY=hush-4",
    "--key=hush-5",
]


def start_without_an_agent(it: Plan, monkeypatch: pytest.MonkeyPatch) -> LocalRun:
    monkeypatch.setattr(local.LocalRun, "_start_agent", lambda self, *extra: None)
    return LocalRun.start(it)


def test_r06_secrets_stay_out_of_everything_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = plan(tmp_path, 2, [*SECRETS, "tokens_per_s=5"])
    run = start_without_an_agent(it, monkeypatch)
    assert "hush-2" in " ".join(it.agent.ranks[0].argv)  # the trainer does get them
    assert "hush-1" in it.env.values()
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        if b"hush" in path.read_bytes():
            assert path.name == "spec.json", f"{path} tells a secret"
            assert path.stat().st_mode & 0o077 == 0, (
                "the agent's orders hold the words of the command: for the owner only"
            )
            assert b"hush-1" not in path.read_bytes(), "the environment does not travel by file"
    assert not any("hush" in p.name for p in tmp_path.rglob("*"))
    record = load_run(run.job_dir / "run.json")
    assert record is not None
    assert record.config["hf_access_token"].value == "***"
    assert record.env["HF_TOKEN"].value == "***"
    assert record.config["tokens_per_s"].value == "5"
    assert "--api_key=***" in record.argv
    assert "--key=***" in record.argv
    assert "hf_access_token=***" in record.command


@pytest.mark.parametrize("value", ["a b", 'it\'s "x" $HOME %s', "ü 漢", "two\nlines", "\udcff\udcfe"])
def test_any_value_reaches_the_trainer_and_leaves_a_readable_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    it = plan(tmp_path, words=[f"note={value}", f"_env_NOTE={value}"])
    run = start_without_an_agent(it, monkeypatch)
    orders: dict[str, Any] = json.loads((run.job_dir / "agent" / "spec.json").read_text())
    assert orders["ranks"][0]["argv"][-1] == f"note={value}"
    assert it.env["NOTE"] == value
    record = load_run(run.job_dir / "run.json")
    assert record is not None
    assert record.config["note"].value == (value if value.isprintable() or "\n" in value else "\\xff\\xfe")
    facts = index_logs(it.agent.log).facts
    assert facts.header["MODEL_NAME"] == "tiny"  # a newline in a value does not break the header
    assert facts.lines == len(it.header.splitlines())
    assert (run.job_dir / "log").resolve() == it.agent.log


def test_a_workspace_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the job directory"):
        LocalRun.start(plan(tmp_path / "file"))


@pytest.mark.starts_processes
def test_r16_stale_coordinator_variables_do_not_reach_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COORDINATOR_IP", "10.0.0.1")
    run = LocalRun(plan(tmp_path))
    code = "import os; print([k for k in os.environ if 'COORDINATOR' in k], os.environ['KEPT'])"
    monkeypatch.setenv("KEPT", "yes")
    run._spawn([sys.executable, "-c", code], tmp_path / "out", {}).wait()
    assert (tmp_path / "out").read_text() == "[] yes\n"


class Ended:
    """An agent process that is gone."""

    returncode = 1

    def poll(self) -> int:
        return 1


def test_an_agent_that_ends_between_two_looks_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LocalRun(plan(tmp_path))
    answers = iter([None, 1])
    monkeypatch.setattr(run, "_run_end", lambda: next(answers))
    monkeypatch.setattr(run, "_start_agent", lambda *extra: pytest.fail("started a second agent on a finished run"))
    run._agent = Ended()  # type: ignore[assignment]
    run.plan.agent.state_file.parent.mkdir(parents=True)
    run.plan.agent.state_file.write_text("{}")
    assert run.supervise() == 1


@pytest.mark.starts_processes
def test_the_bundle_holds_the_agent_only_and_runs_on_bare_python(tmp_path: Path) -> None:
    target = bundle.build_agent(tmp_path / "deep" / "agent.pyz")
    names = zipfile.ZipFile(target).namelist()
    assert "trackwalker/node/agent/agent.py" in names
    assert not [n for n in names if "__pycache__" in n or "launch" in n or "resolve" in n]
    bare = [sys.executable, "-I", "-S", str(target)]
    answer = subprocess.run(bare, capture_output=True, text=True, check=False, cwd="/", env={"PATH": os.defpath})
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("usage: agent.pyz SPEC.json")
    everything = (
        "import sys; sys.path.insert(0, sys.argv[1]); import trackwalker.node.agent.agent; print(len(sys.modules))"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", everything, str(target)], check=True, capture_output=True)


@pytest.mark.starts_processes
def test_byte_code_of_another_python_is_passed_over(tmp_path: Path) -> None:
    whole, foreign = bundle.build_agent(tmp_path / "agent.pyz"), tmp_path / "foreign.pyz"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(foreign, "w") as target:
        assert {n for n in source.namelist() if n.endswith(".py")} == {
            *(n.removesuffix("c") for n in source.namelist() if n.endswith(".pyc")),
            "__main__.py",
        }
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, b"\0\0\r\n" + data[4:] if name.endswith(".pyc") else data)
    for path in (whole, foreign):
        answer = subprocess.run([sys.executable, "-I", "-S", str(path)], capture_output=True, text=True, check=False)
        assert answer.stderr.startswith("usage: agent.pyz SPEC.json"), answer.stderr
