"""Values that something on the way to the trainer may want to read: drawn at random, many to a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

_TROUBLE = [
    " ",
    "\n",
    "\t",
    "'",
    '"',
    "`",
    "$",
    "$$",
    "$(id)",
    "${HOME}",
    "%",
    "%j",
    "\\",
    "=",
    ",",
    ";",
    "#",
    "*",
    "é",
    "日本",
    "🚂",
]
_ANY_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
# Bytes that are no UTF-8 arrive in Python's words as surrogates, and leave them as the bytes they were.
_ANY_BYTES = st.binary(max_size=6).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"\xff")))
VALUES = st.lists(
    st.lists(st.sampled_from(_TROUBLE) | _ANY_TEXT | _ANY_BYTES, max_size=6).map("".join), min_size=25, max_size=50
)
_PROGRAM = """
import json, os, sys
seen = {"argv": [os.fsencode(word).hex() for word in sys.argv[2:]]}
seen["env"] = {os.fsdecode(k): v.hex() for k, v in os.environb.items() if k.startswith(b"VALUE_")}
with open(sys.argv[1] + "-" + os.environ["NODE_RANK"], "w") as out:
    json.dump(seen, out)
"""


def few_runs(examples: int) -> settings:
    """Each example is a whole run: few of them, and none is shrunk."""
    return settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def environment(values: Sequence[str]) -> dict[str, str]:
    """The values as variables."""
    return {f"VALUE_{n}": value for n, value in enumerate(values)}


def settings_words(values: Sequence[str]) -> list[str]:
    """The values as the trainer's key=value."""
    return [f"key_{n}={value}" for n, value in enumerate(values)]


def stand_in(seen: Path) -> list[str]:
    """A trainer that writes down what reached it."""
    return [sys.executable, "-c", _PROGRAM, str(seen)]


def check(seen: Path, rank: int, values: Sequence[str]) -> None:
    """Everything arrived at a rank, byte for byte."""
    found = json.loads(Path(f"{seen}-{rank}").read_text())
    assert found["argv"][-len(values) :] == [os.fsencode(word).hex() for word in settings_words(values)]
    assert found["env"] == {name: os.fsencode(value).hex() for name, value in environment(values).items()}
