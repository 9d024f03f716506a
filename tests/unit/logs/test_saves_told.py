"""Saves as trainers print them: what ends one, and what does not."""

from __future__ import annotations

import pytest

from trackwalker.logs.formats.dialect import NEEDLES, SAVED


@pytest.mark.parametrize(
    "line",
    [
        "Saved a checkpoint at step 40.",
        "  successfully saved checkpoint from iteration      40 to /ckpt",
        "[2026-01-09 06:42:18,636] [INFO] [engine.py:33:commit] [Torch] Checkpoint global_step40 is ready now!",
        "Saving model checkpoint to out/run/checkpoint-40",
        "Async checkpoint save for step 40 (/ckpt/last.ckpt) finalized successfully.",
    ],
)
def test_a_save_is_known_in_the_words_of_each_trainer(line: str) -> None:
    match = SAVED.search(line)
    assert match is not None
    assert match[1] == "40"
    assert any(needle in line.encode() for needle in NEEDLES)


def test_what_begins_or_fails_is_no_save() -> None:
    assert SAVED.search("[Torch] Checkpoint global_step81 is about to be saved!") is None
    assert SAVED.search("Async checkpoint save for step 40 (/ckpt/last.ckpt) failed") is None
