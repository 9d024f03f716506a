"""Conditions of rules: read, never executed."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackwalker.errors import UsageError
from trackwalker.launch.request.models import load_model
from trackwalker.launch.request.resolved import Target, resolve
from trackwalker.launch.request.rules import holds, names_in

FACTS = {"pipeline": 2, "dropless": True, "nodes": 8, "vendor": "amd", "unset": None, "batch": 0.5}


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("pipeline > 1", True),
        ("pipeline <= 1", False),
        ("pipeline > 1 and dropless", True),
        ("pipeline > 1 and not dropless", False),
        ("not (pipeline > 4 or nodes < 2)", True),
        ("vendor == 'amd'", True),
        ("vendor != 'amd'", False),
        ("4 <= nodes < 16", True),
        ("4 <= nodes < 8", False),
        ("dropless == true", True),
        ("false", False),
        ("unset > 1", False),
        ("unset", False),
        ("nobody_knows == 3", False),
        ("batch < 1", True),
    ],
)
def test_conditions(condition: str, answer: bool) -> None:
    assert holds(condition, FACTS) is answer


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "pipeline >",
        "pipeline = 1",
        "__import__('os').system('true')",
        "nodes.real",
        "nodes + 1 > 2",
        "[1]",
        "nodes in (1, 2)",
        "nodes if 1 else 2",
        "(lambda: 1)()",
        "f'{nodes}'",
        "-nodes",
        "nodes := 3",
        "None",
        "1; 2",
        "x\0",
    ],
)
def test_nothing_but_conditions_is_read(condition: str) -> None:
    with pytest.raises(UsageError, match="condition"):
        holds(condition, FACTS)


@given(st.text(alphabet="abc()[]{}.,:=<>!&|'\"0123456789 \n\t_+-*/\\", max_size=40))
def test_any_text_gives_an_answer_or_one_clear_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert holds(text, FACTS) in (True, False)


def test_comparing_what_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match=re.escape("compares 'amd' with 3")):
        holds("vendor > 3", FACTS)


def test_names() -> None:
    assert names_in("pipeline > 1 and not sparse_matmul or true") == {"pipeline", "sparse_matmul"}


FSDP = "--xla_gpu_all_gather_combine_threshold_bytes=1073741824"
PIPELINE = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
DROPLESS = "--xla_gpu_enable_highest_priority_async_stream=true"


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ({}, {FSDP}),
        ({"dcn_pipeline_parallelism": "2", "sparse_matmul": "False"}, {PIPELINE}),
        ({"dcn_pipeline_parallelism": "2"}, {PIPELINE, DROPLESS}),
        ({"ici_pipeline_parallelism": "2", "ici_expert_parallelism": "4"}, {PIPELINE, DROPLESS}),
        (
            {"dcn_pipeline_parallelism": "2", "sparse_matmul": "0", "use_turbo_deepep_dispatch": "True"},
            {PIPELINE, DROPLESS},
        ),
    ],
)
def test_deepseeks_flags_follow_its_topology(words: dict[str, str], flags: set[str]) -> None:
    it = resolve(load_model("deepseek", {}), Target(16), words)
    assert set(it.env["XLA_FLAGS"].value.split()) == flags
    assert "rule" in it.env["XLA_FLAGS"].source


def test_a_rule_sets_config_and_the_command_line_beats_it() -> None:
    model = load_model("405b", {})
    four = resolve(model, Target(4)).config["per_device_batch_size"]
    assert (four.value, four.source) == (1, "rule four-nodes")
    eight = resolve(model, Target(8)).config["per_device_batch_size"]
    assert (eight.value, eight.source) == (3, "model llama3.1-405b")
    own = resolve(model, Target(4), {"per_device_batch_size": "2"})
    assert own.config["per_device_batch_size"].source == "command line"
    assert resolve(model, Target(4), {"steps": "3"}).settings_beyond_the_file() == {
        "per_device_batch_size": 1,
        "steps": "3",
    }
