"""How a name finds a model, and what a model file may say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import find_model, load_model, model_files, read_model
from trackwalker.launch.request.words import parse_model_spec

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = re.findall(
    r"^\| `([\w.-]+)` \| ([^|]*) \| [\d.]+B \| ([^|]*) \|", (ROOT / "docs/how-to/models.md").read_text(), re.M
)
# The words that upstream's pages and users say.
SPOKEN = {
    "70b": "llama2-70b",
    "llama2": "llama2-70b",
    "405b": "llama3.1-405b",
    "mixtral": "mixtral-8x22b",
    "deepseek": "deepseek3-671b",
    "grok": "grok-1",
    "kimi": "kimi-k2-1t",
    "qwen": "qwen3-14b",
    "default": "default",
    "tiny": "tiny",
}


def folder(path: Path, **texts: str) -> dict[str, str]:
    path.mkdir(exist_ok=True)
    for name, text in texts.items():
        (path / f"{name}.yml").write_text(text)
    return {"TRACKWALKER_MODELS": str(path)}


@pytest.mark.parametrize(("word", "model"), SPOKEN.items())
def test_r01_the_words_people_say_mean_one_model(word: str, model: str) -> None:
    assert load_model(word, {}).name == model


def test_r01_every_model_named_in_the_pages_is_found() -> None:
    ours = r"trackwalker (?:submit|plan|run|repro|config show|config check|explain \w+)"
    command = rf"(?:^|`)(?:\w+=\S+ )*(?:{ours}|submit\.sh|run_local\.sh|k8s_submit\.sh) ([a-z0-9][\w.:-]*)"
    said = {word for page in PAGES for word in re.findall(command, page.read_text(), re.M) if not word.endswith(".yml")}
    assert {"70b", "405b", "deepseek", "tiny"} <= said
    for word in said:
        load_model(parse_model_spec(word).model, {})


def test_r01_every_declared_alias_means_its_own_model_and_is_on_the_page() -> None:
    listed = {name: (re.findall(r"`([^`]+)`", also), [int(n) for n in nodes.split(",")]) for name, also, nodes in TABLE}
    shipped = {name: read_model(path) for name, path in model_files({}).items()}
    assert set(listed) == {n for n, m in shipped.items() if m.about.trainer == "maxtext"}
    for name, model in shipped.items():
        for alias in model.about.aliases:
            assert load_model(alias, {}).name == name
        if name in listed:
            assert listed[name] == (model.about.aliases, model.about.nodes)


def test_r02_an_exact_name_beats_aliases_and_names_that_contain_it(tmp_path: Path) -> None:
    env = folder(tmp_path, proxy="a: 1", **{"proxy-big": "trackwalker: {aliases: [small]}", "small": "b: 2"})
    assert find_model("proxy", env).name == "proxy.yml"
    assert find_model("small", env).name == "small.yml"
    assert find_model("proxy-b", env).name == "proxy-big.yml"
    assert load_model("tiny", {}).name == "tiny"


def test_r02_an_alias_beats_names_that_begin_with_it(tmp_path: Path) -> None:
    env = folder(tmp_path, abc="x: 1", abd="x: 1", zzz="trackwalker: {aliases: [ab]}")
    assert find_model("ab", env).name == "zzz.yml"


def test_the_beginning_of_a_name_beats_its_middle() -> None:
    assert load_model("tiny-m", {}).name == "tiny-moe"
    assert load_model("8x22b", {}).name == "mixtral-8x22b"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("llama", "it could be 'llama2-70b', 'llama3-70b', 'llama3.1-405b' or 'llama3.1-70b'"),
        ("tniy", "did you mean 'tiny'"),
        ("deepsek", "did you mean 'deepseek3-671b'"),
        ("LLAMA2-70B", "did you mean 'llama2-70b'"),
        ("zzzzzz", "unknown model 'zzzzzz'; models: deepseek3-671b, "),
        ("llama2*", "unknown model"),
        ("[a-z]iny", "unknown model"),
        ("????", "unknown model"),
        ("/no/such/file.yml", "no model file"),
        ("nosuch.yml", "no model file"),
    ],
)
def test_words_that_mean_no_model_or_several(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        find_model(word, {})


def test_folders_of_ones_own(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    folder(first, mine="x: 1", tiny="x: 2")
    folder(second, mine="x: 3", **{"other.gpu": "x: 4"})
    env = {"TRACKWALKER_MODELS": f"{first}:{second}:{tmp_path}/nowhere"}
    assert load_model("mine", env).config == {"x": 1}
    assert load_model("tiny", env).config == {"x": 2}
    assert load_model("other", env).path == second / "other.gpu.yml"
    assert load_model(str(second / "mine.yml"), {}).config == {"x": 3}
    assert parse_model_spec(f"{second}/mine.yml:tag").model == f"{second}/mine.yml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trackwalker: {alias: [x]}", "trackwalker.alias: Extra inputs"),
        ("trackwalker: {nodes: []}", "trackwalker.nodes"),
        ("trackwalker: {trainer: torch}", "trackwalker.trainer"),
        ("trackwalker: {rules: [{name: r, when: 'import os'}]}", "cannot be read"),
        ("- a", "must hold key: value pairs"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "m.yml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(says)) as e:
        read_model(path)
    assert str(path) in str(e.value)


def test_two_models_with_one_alias(tmp_path: Path) -> None:
    env = folder(tmp_path, a="trackwalker: {aliases: [same]}", b="trackwalker: {aliases: [same]}")
    with pytest.raises(UsageError, match="alias 'same' is declared by a and by b"):
        find_model("same", env)


@pytest.mark.parametrize("name", model_files({}))
def test_the_trainer_never_sees_our_block(name: str) -> None:
    model = load_model(name, {})
    text = model.trainer_yaml()
    assert yaml.safe_load(text) == model.config
    assert "trackwalker" not in model.config
    assert "aliases" not in text


def test_the_rest_of_a_file_reaches_the_trainer_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "m.yml"
    path.write_text("# top\na: 1  # why\ntrackwalker:\n  env:\n\n    # inside\n    A: b\n\nb: 'x'\n# end\n")
    assert read_model(path).trainer_yaml() == "# top\na: 1  # why\nb: 'x'\n# end\n"
