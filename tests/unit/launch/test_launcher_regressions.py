"""The 44 regressions of the launcher: every number has its tests, wherever they live; those without another home."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from helpers import step_line

from trackwalker.launch.kubernetes.settings import read_settings
from trackwalker.launch.request.validate import Asked
from trackwalker.launch.schedulers.kubernetes import plan_pod_batch
from trackwalker.launch.schedulers.slurm import plan_batch
from trackwalker.launch.slurm.options import SubmitOptions
from trackwalker.launch.submission import How, Submission, plan_submission
from trackwalker.logs.scanning.index import index_logs
from trackwalker.node.checks.result import output
from trackwalker.node.collectors.training import parse_step_line

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"^(?:async )?def (test_((?:r\d\d_)+)\w*)", re.MULTILINE)


def numbered(folder: Path) -> dict[int, list[str]]:
    """Tests by the regressions they are named after, read without running them."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for match in NAMED.finditer(path.read_text()):
            for number in re.findall(r"\d\d", match[2]):
                found[int(number)].append(f"{path.relative_to(folder)}::{match[1]}")
    return found


def test_every_regression_has_a_test_of_its_number() -> None:
    found = numbered(ROOT / "tests")
    assert [n for n in range(1, 45) if n not in found] == []
    assert [n for n in found if n not in range(1, 45)] == []


def test_the_page_names_the_files_of_every_regression() -> None:
    rows = re.findall(
        r"^\| (\d+) \| .+? \| (.+?) \|", (ROOT / "docs" / "reference" / "regressions.md").read_text(), re.MULTILINE
    )
    told = {int(number): set(re.findall(r"test_\w+\.py", files)) for number, files in rows}
    found = {n: {Path(test.partition("::")[0]).name for test in tests} for n, tests in numbered(ROOT / "tests").items()}
    assert sorted(told) == list(range(1, 45))
    assert {n: files for n, files in told.items() if not files or not files <= found[n]} == {}


def planned(workspace: Path, *words: str, spec: str = "tiny", scheduler: str = "slurm") -> Submission:
    asked = Asked(spec, list(words), nodes=2, workspace=workspace)
    return plan_submission(asked, How(scheduler, ["submit", spec, "-N2", "--", *words], python=sys.executable))


def test_r05_arguments_of_any_length_leave_the_name_short(tmp_path: Path) -> None:
    words = [f"_env_LONG_{i}={'x' * 200}" for i in range(50)] + [f"run_name={'y' * 300}"]
    submission = planned(tmp_path, *words, spec="tiny:exp")
    assert submission.order.name == "JAX-tiny-exp"
    batch = plan_batch(submission, SubmitOptions(nodes=2), None, sys.executable)
    assert all(len(Path(word).name) < 255 for word in [*batch.argv(), *batch.script.split()])
    settings = read_settings(["-N2"], {"K8S_PVC_NAME": "shared", "K8S_PVC_MOUNT": str(tmp_path)})
    pods = plan_pod_batch(planned(tmp_path, *words, scheduler="kubernetes"), settings, "image", tmp_path)
    assert all(len(manifest["metadata"]["name"]) <= 63 for manifest in pods.manifests())


def test_r06_a_secret_is_in_the_order_and_nowhere_else(tmp_path: Path) -> None:
    words = ["_env_HF_TOKEN=hush-1", "hf_access_token=hush-2", "_env_WANDB_API_KEY=hush-3"]
    submission = planned(tmp_path, *words, spec="default")
    batch = plan_batch(submission, SubmitOptions(nodes=2), None, sys.executable)
    submission.write()
    submission.open_job("17")
    told = [str(path) for path in tmp_path.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert told == [str(submission.folder / "order.json")]
    assert (submission.folder / "order.json").stat().st_mode & 0o077 == 0
    assert "hush" not in " ".join([*batch.argv(), batch.script, *submission.order.header, submission.order.name])
    assert submission.order.overrides["HF_TOKEN"].startswith("hush"), "the trainer does get it"


@pytest.fixture
def keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model whose own file switches checkpoints on."""
    text = (ROOT / "src" / "trackwalker" / "models" / "default.yml").read_text()
    text = re.sub(r"(?m)^enable_checkpointing:.*$", "enable_checkpointing: true", text)
    assert "enable_checkpointing: true" in text
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "keeps.yml").write_text(re.sub(r"(?m)^  aliases:.*$", "  aliases: []", text))
    monkeypatch.setenv("TRACKWALKER_MODELS", str(tmp_path / "models"))
    return "keeps"


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
def test_r09_checkpoints_are_kept_in_one_place_whoever_asked_for_them(tmp_path: Path, keeps: str, word: str) -> None:
    by_file = planned(tmp_path, spec=keeps)
    by_words = planned(tmp_path, f"enable_checkpointing={word}", spec="default")
    assert by_file.order.output == str(tmp_path / "keeps")
    assert by_words.order.output == str(tmp_path / "default")
    assert planned(tmp_path, spec=f"{keeps}:mine:").order.output == str(tmp_path / "mine")
    assert planned(tmp_path, f"enable_checkpointing={word}", spec="default:mine:t").order.output == str(
        tmp_path / "mine"
    )
    assert planned(tmp_path, "enable_checkpointing=False", spec=keeps).order.output == ""
    assert planned(tmp_path, spec="default").order.output == ""


PREFIXES = ["", "3: ", "(MaxTextTrainerActor pid=7) ", "I1115 00:44:52.123456 139872 metric_logger.py:123] "]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("loss", ["10.123", "nan", "inf"])
@pytest.mark.parametrize("mfu", [True, False])
def test_r41_the_agent_reads_every_form_of_a_step_line(prefix: str, loss: str, mfu: bool) -> None:
    record = parse_step_line(prefix + step_line(7, mfu=mfu, loss=loss))
    assert record is not None
    assert (record["step"], record["seconds"], str(record["loss"])) == (7, 12.345, loss)


def test_r41_steps_without_speed_and_hidden_steps() -> None:
    ramp = parse_step_line("[Rampup Batch Size Phase], completed step: 3, seconds: 1.5, total_weights: 9, loss: 2.0")
    assert ramp is not None
    assert (ramp["step"], ramp["loss"]) == (3, 2.0)
    hidden = "completed profiler activation/deactivation step: 8, total_weights: 9, loss: 2.0"
    assert parse_step_line(hidden) is None, "it says nothing about how long the step took"


def test_r41_a_restored_run_begins_where_it_begins(tmp_path: Path) -> None:
    lines = [
        "0: restoring from this run's directory step 199",
        *(f"{r}: {step_line(s)}" for s in (200, 201) for r in (1, 0)),
    ]
    hidden = "0: completed profiler activation/deactivation step: 202, total_weights: 9, loss: 2.0"
    path = tmp_path / "7-JAX-x.log"
    path.write_text("\n".join([*lines, hidden, f"0: {step_line(203)}"]) + "\n")
    steps = index_logs(path, every_rank=True).steps
    assert steps.others[1].step.tolist() == [200, 201]
    assert {200, 201, 203} <= set(steps.step.tolist())
    assert steps.last == 203


def test_r44_no_shell_reads_what_somebody_wrote() -> None:
    """Upstream's bridge ran `allowed; evil` through a shell. Ours are verbs with argument lists: there is no shell."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        if not re.search("system|popen|spawn|output|shell", text):
            continue  # no such call can be in it, and need not be looked for node by node
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert not re.fullmatch(
                    r"os\.(system|popen|spawn\w+)|subprocess\.get(status)?output|pty\.spawn", name
                ), path
                assert not any(word.arg == "shell" for word in node.keywords), path


def test_r44_words_of_the_user_are_words_for_sbatch_and_pods(tmp_path: Path) -> None:
    evil = "a; touch evil $(id) `id` | sh"
    submission = planned(tmp_path, f"_env_X={evil}", f"run_name={evil}")
    batch = plan_batch(submission, SubmitOptions(nodes=2, extra=[f"--comment={evil}"]), None, sys.executable)
    assert f"--comment={evil}" in batch.argv(), "one word of an argument list"
    assert "evil" not in batch.script
    assert f"run_name={evil}" in submission.order.settings


@pytest.mark.starts_processes
def test_r44_what_a_command_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = f"import subprocess as s; p = s.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(str(p.pid)); p.wait()"
    began = time.monotonic()
    assert output([sys.executable, "-c", code], timeout=2.0) is None
    assert time.monotonic() - began < 20
    child = int(note.read_text())
    deadline = time.monotonic() + 5
    while (
        os.path.exists(f"/proc/{child}") and "Z" not in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2][:3]
    ):
        assert time.monotonic() < deadline, "the command's own child outlived it"
        time.sleep(0.02)


def test_r44_what_the_nodes_read_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are files here too: a reader sees all of one or none of it."""
    from trackwalker.job.whole import write_whole

    write_whole(tmp_path / "note.json", json.dumps({"old": True}))
    seen: list[str] = []
    replace = os.replace

    def look(source: str, target: Path) -> None:
        seen.append(target.read_text())
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_whole(tmp_path / "note.json", json.dumps({"new": "x" * 100_000}))
    assert seen == ['{"old": true}'], "until the very end the old text stands there, whole"
    assert json.loads((tmp_path / "note.json").read_text())["new"].startswith("x")
    assert [p.name for p in tmp_path.iterdir()] == ["note.json"]
