"""What a request is refused for, before anything is queued."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import load_model, model_files
from trackwalker.launch.request.validate import DEFAULTS, Asked, check, parse_timeouts

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "models.md").read_text()
WRONG = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", PAGE.partition("## Requests that are rejected")[2], re.M)
SHIPPED = {name: load_model(name, {}) for name in model_files({})}
OPTIONS = {"--gpu": "gpu", "--fabric": "fabric", "--stage-timeouts": "stage_timeouts", "--image": "image"}


def asked(request: str) -> Asked:
    """The words of a request as the command line reads them."""
    words = shlex.split(request)
    before, behind = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = dict(zip(before[1::2], before[2::2], strict=True))
    workspace = options.pop("--workspace", None)
    return Asked(
        before[0],
        behind,
        int(options.pop("-N", "1")),
        workspace=Path(workspace) if workspace else None,
        models={},
        **{OPTIONS[name]: value for name, value in options.items()},  # type: ignore[arg-type]
    )


def test_the_page_lists_at_least_twenty_wrong_requests() -> None:
    assert len(WRONG) >= 20
    assert len({request for request, _ in WRONG}) == len(WRONG)


@pytest.mark.parametrize(("request_", "line"), WRONG, ids=[r for r, _ in WRONG])
def test_each_wrong_request_is_rejected_with_one_line(request_: str, line: str) -> None:
    (problem,) = [p for p in check(asked(request_)).problems if p.level == "error"]
    assert line.strip() in problem.text
    assert "\n" not in problem.text


@pytest.mark.parametrize(("name", "nodes"), [(n, count) for n, m in SHIPPED.items() for count in m.about.nodes])
def test_every_shipped_model_is_accepted_on_each_documented_node_count(name: str, nodes: int, tmp_path: Path) -> None:
    request = Asked(name, [], nodes, workspace=tmp_path / "new", image="rocm/jax-training:maxtext-v26.2", models={})
    checked = check(request)
    assert checked.problems == []
    if SHIPPED[name].about.trainer == "maxtext":
        assert checked.resolved is not None
        assert checked.resolved.mesh is not None
        assert checked.resolved.mesh.devices == nodes * 8


def test_all_problems_are_told_at_once() -> None:
    words = ["remat_polcy=full", "steps", "_env_A-B=1", "ici_fsdp_parallelism=5"]
    request = Asked("70b:a/b", words, 0, gpu="H1000", image="UPPER", stage_timeouts="train:0", models={})
    about = [p.about for p in check(request).problems]
    assert sorted(about) == sorted(["model", "words", "words", "nodes", "stage timeouts", "image"])
    request = Asked("70b", words, 0, gpu="H1000", image="UPPER", stage_timeouts="train:0", models={})
    more = {p.about for p in check(request).problems}
    assert more == {"words", "nodes", "stage timeouts", "image", "config", "gpu", "mesh"}


def test_a_newline_in_a_word_stays_inside_one_line() -> None:
    (problem,) = check(Asked("70b", ["new\nline=1"], models={})).problems
    assert "\n" not in problem.text


def test_secrets_for_the_trainer_are_no_problem_and_are_not_told() -> None:
    token = "hf_" + "x" * 30
    assert check(Asked("70b", [f"hf_access_token={token}", f"_env_HF_TOKEN={token}"], models={})).problems == []
    for word in (f"run_name={token}", f"token={token}"):
        (problem,) = check(Asked("70b", [word], models={})).problems
        assert token not in problem.text


def test_a_config_that_probably_does_not_fit_is_a_warning() -> None:
    (tight,) = check(Asked("70b", ["per_device_batch_size=8"], gpu="MI300X", models={})).problems
    assert (tight.level, tight.about) == ("warning", "memory")
    assert "may not fit" in tight.text
    (unlikely,) = check(Asked("70b", ["per_device_batch_size=16"], models={})).problems
    assert "probably does not fit" in unlikely.text


def test_a_workspace_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackwalker.launch.request.validate.os.access", lambda *_: False)  # root may write anywhere
    (problem,) = check(Asked("70b", workspace=tmp_path / "a" / "b", models={})).problems
    assert problem.text == f"workspace {tmp_path}/a/b cannot be written: no permission in {tmp_path}"


def test_keys_of_a_file_and_its_rules_are_checked_too(tmp_path: Path) -> None:
    block = "trackwalker:\n  rules: [{name: r, when: pipline > 1, config: {step: 3}}]\n"
    (tmp_path / "mine.yml").write_text(f"{block}attention_typo: x\nvocab_size: 512\n")
    texts = [p.text for p in check(Asked("mine", models={"TRACKWALKER_MODELS": str(tmp_path)})).problems]
    assert len(texts) == 3
    assert any("mine.yml: unknown key 'attention_typo'" in t for t in texts)
    assert any("rule 'r': unknown key 'step' for maxtext; did you mean 'steps'?" in t for t in texts)
    assert any("rule 'r': unknown key 'pipline'" in t for t in texts)
    known = block.replace("pipline", "pipeline").replace("step:", "steps:") + "  keys: [attention_typo]\n"
    (tmp_path / "mine.yml").write_text(f"{known}attention_typo: x\nvocab_size: 512\n")
    assert check(Asked("mine", models={"TRACKWALKER_MODELS": str(tmp_path)})).problems == []


def test_the_small_trainers_keys_are_its_own() -> None:
    assert check(Asked("tiny", ["data_slow_rank=1"], models={})).problems == []
    (problem,) = check(Asked("tiny", ["ici_fsdp_parallelism=1"], models={})).problems
    assert "unknown key 'ici_fsdp_parallelism' for tiny" in problem.text


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {}),
        ("preflight:600,train:none", {"preflight": 600.0, "train": None}),
        (" ecc : 60 , PULL:-1", {"health": 60.0, "pull": None}),
        ("train:86400", {"train": 86400.0}),
        ("train:NONE,train:5", {"train": 5.0}),
    ],
)
def test_stage_timeouts(text: str, changed: dict[str, float | None]) -> None:
    assert parse_timeouts(text) == {**DEFAULTS, **changed}


@pytest.mark.parametrize(
    "text", ["train:0", "train:", "train", "train:-5", "train:1.5", "x:5", "train:٣", ",", "train:5,"]
)
def test_r14_bad_stage_timeouts_are_rejected_before_submission(text: str) -> None:
    with pytest.raises(UsageError, match="stage timeouts"):
        parse_timeouts(text)
    assert [p.about for p in check(Asked("70b", stage_timeouts=text, models={})).problems] == ["stage timeouts"]
