"""The account of what is new since 0.1.0 names only what is there, and each line once."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "trackwalker"
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "rooms"))
TOLD = SCRIPT["claims"](ROOT)


def test_every_file_that_is_named_exists() -> None:
    named = {path for feature in TOLD["features"].values() for path in [*feature["files"], *feature["parts"]]}
    named |= {path for each in TOLD["replaced"].values() for path in each["now"]}
    assert sorted(path for path in named if not (SOURCE / path).is_file()) == []


def test_every_definition_that_is_named_exists() -> None:
    missing = [
        f"{path} {part}"
        for feature in TOLD["features"].values()
        for path, parts in feature["parts"].items()
        for part in set(parts) - {"*"} - {name for name, _, _ in SCRIPT["definitions"]((SOURCE / path).read_text())}
    ]
    assert missing == []


def test_no_line_belongs_to_two_features() -> None:
    claims: Counter[tuple[str, str]] = Counter()
    for feature in TOLD["features"].values():
        claims.update({(path, "*"): 1 for path in feature["files"]})
        claims.update({(path, part): 1 for path, parts in feature["parts"].items() for part in parts})
    whole = {path for path, part in claims if part == "*"}
    assert [claim for claim, times in claims.items() if times > 1] == []
    assert [claim for claim in claims if claim[1] != "*" and claim[0] in whole] == []


def test_every_feature_says_why() -> None:
    assert [name for name, feature in TOLD["features"].items() if "issue" not in feature["why"]] == []


def test_a_definition_takes_what_stands_before_it_and_its_methods() -> None:
    text = "import a\n\n# why\nB = 1\n\n\nclass C:\n    def d(self):\n        return 1\n"
    assert list(SCRIPT["definitions"](text)) == [("B", 2, 4), ("C", 5, 9), ("C.d", 8, 9)]
