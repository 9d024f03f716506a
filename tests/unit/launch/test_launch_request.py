"""The words of a run request."""

from __future__ import annotations

import pytest

from trackwalker.errors import UsageError
from trackwalker.launch.request.words import ModelSpec, job_name, parse_model_spec, parse_passthrough


@pytest.mark.parametrize(
    ("text", "model", "alias", "tag"),
    [
        ("tiny", "tiny", None, None),
        ("tiny:exp1", "tiny", None, "exp1"),
        ("tiny:my-run:", "tiny", "my-run", None),
        ("tiny:my-run:exp1", "tiny", "my-run", "exp1"),
        ("tiny:", "tiny", None, None),
        ("tiny::exp1", "tiny", None, "exp1"),
        ("llama3.1-70b:a_b+c", "llama3.1-70b", None, "a_b+c"),
    ],
)
def test_r03_a_spec_is_read_from_the_right(text: str, model: str, alias: str | None, tag: str | None) -> None:
    assert parse_model_spec(text) == ModelSpec(model, alias, tag)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a:b:c:d", "too many ':'"),
        ("", "names no model"),
        (":tag", "names no model"),
        ("-n", "letters, digits"),
        ("tiny:../up", "letters, digits"),
        ("tiny:a b", "letters, digits"),
        ("tiny:tag\n", "letters, digits"),
        ("tiny\n", "letters, digits"),
        ("tiny:ü", "letters, digits"),
        ("tiny:*", "letters, digits"),
    ],
)
def test_r03_bad_model_specs(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_model_spec(text)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a b",
        "it's",
        'say "x"',
        "$HOME `id` $(id)",
        "100%s %d",
        "ü 漢字 \U0001f600",
        "two\nlines\r\n",
        "a=b=c",
        "-- x",
        "\udcff",
        "\t",
    ],
)
def test_values_are_kept_byte_for_byte(value: str) -> None:
    got = parse_passthrough([f"key={value}", f"_env_NAME={value}"])
    assert (got.config, got.env) == ({"key": value}, {"NAME": value})


def test_passthrough_forms() -> None:
    got = parse_passthrough(["--", "", "steps=1", "--dashed=2", "steps=3", "_env_A=x", "--"])
    assert got.config == {"steps": "3", "dashed": "2"}  # the last word wins, as for the trainer
    assert got.env == {"A": "x"}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("steps", "neither key=value"),
        ("=5", "neither key=value"),
        ("--=5", "neither key=value"),
        ("_env_=x", "does not name an environment variable"),
        ("_env_A-B=x", "does not name an environment variable"),
        ("_env_1A=x", "does not name an environment variable"),
        ("_env_A\n=x", "does not name an environment variable"),
        ("_env_A=x\0y", "NUL byte"),
        ("key=x\0y", "NUL byte"),
    ],
)
def test_words_that_cannot_be_passed_on(word: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_passthrough([word])


def test_job_names() -> None:
    assert job_name(ModelSpec("tiny")) == "JAX-tiny"
    assert job_name(ModelSpec("tiny", "alias", "tag")) == "JAX-tiny-tag"
    assert len(job_name(ModelSpec("tiny", tag="x" * 191))) == 200
    with pytest.raises(UsageError, match="more than 200; shorten the tag"):
        job_name(ModelSpec("tiny", tag="x" * 192))
