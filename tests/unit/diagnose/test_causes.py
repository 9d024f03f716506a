"""What is known about a cause stands in its own file; one that is forgotten is an error, never silently a crash."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

import trackwalker
from trackwalker.diagnose.causes.playbook import load_playbook
from trackwalker.errors import UsageError
from trackwalker.job.causes import About, Group, about, known, parsed
from trackwalker.lab.scoring.groups import ORDER
from trackwalker.logs.failures.signatures import load

SOURCE = Path(trackwalker.__file__).parent
FIELDS = {"retry": "hang", "sweep": "hang", "group": "stop", "topics": "[hang]", "about_host": "false"}


@pytest.mark.parametrize("cause", sorted(known()))
def test_every_cause_says_all_there_is_to_say(cause: str) -> None:
    assert about(cause) is not None


def test_a_cause_has_one_file() -> None:
    tested = {p.stem for p in (SOURCE / "playbooks").glob("*.md")}
    assert tested & yaml.safe_load((SOURCE / "playbooks" / "causes.yml").read_text()).keys() == set()


def test_a_cause_that_code_names_has_a_file() -> None:
    texts = [
        path.read_text()
        for path in SOURCE.rglob("*.py")
        if not {"lab", "sweep"} & set(path.relative_to(SOURCE).parts)  # sweeps' own words for what is no cause of a job
    ]
    named = {cause for text in texts for cause in re.findall(r"""\bcause="([a-z0-9-]+)[",]""", text)}
    compared = (SOURCE / "diagnose" / "deltas.yml").read_text()
    named |= set(re.findall(r"cause: ([a-z0-9-]+)", compared))
    assert len(named) > 5
    assert named - known() == set()


def test_the_scoreboard_has_a_row_for_every_group() -> None:
    assert set(get_args(Group)) <= set(ORDER)


@pytest.mark.parametrize("missing", FIELDS)
def test_a_cause_that_leaves_something_out_is_refused(tmp_path: Path, missing: str) -> None:
    said = "".join(f"{key}: {value}\n" for key, value in FIELDS.items() if key != missing)
    with pytest.raises(UsageError, match=f"x.yml: {missing}: Field required"):
        parsed("x.yml", said, lambda fields: About(**fields))
    path = tmp_path / "x.md"
    path.write_text(f"---\nid: x\ntitle: t\nsymptoms: [stall]\nsummary: s\ntests: []\n{said}---\n# X\n")
    with pytest.raises(UsageError, match=f"x.md: {missing}: Field required"):
        load_playbook(path)


def test_a_signature_of_a_cause_without_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.yml").write_text("- {id: gremlins, cause: gremlins, tier: 2, any: [gremlins in the works]}\n")
    with pytest.raises(ValueError, match="no file in playbooks/: gremlins"):
        load(tmp_path)


def test_somebody_elses_word_is_no_cause() -> None:
    assert about("../../etc/passwd") is None
    assert about("") is None
