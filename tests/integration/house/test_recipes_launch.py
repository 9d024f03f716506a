"""Recipes of launching (submit flag, scheduler), performed in a scratch copy: two files, and the new thing works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from scratch_copy import Scratch


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    made = Scratch(tmp_path / "scratch")
    yield made
    made.few_places()


def test_a_submit_flag_is_declared_once_and_read_on_the_node(scratch: Scratch, tmp_path: Path) -> None:
    scratch.put_before(
        "cli/common/options.py",
        "    image: Image = None\n",
        '    grace: Annotated[float, typer.Option("--grace", help="Seconds to end in.")] = for_nodes(10.0)\n',
    )
    scratch.put_before(
        "node/stages/order.py",
        "    @property\n    def world(",
        '''    @property
    def grace(self) -> float:
        """Seconds that ranks have to end."""
        return float(self.flags.get("grace", self.grace_s))

''',
    )
    plan = json.loads(scratch.trackwalker("plan", "tiny", "--grace", "42", "--json", cwd=tmp_path))
    assert plan["flags"] == {"grace": 42.0}
    assert "--grace" in scratch.trackwalker("sweep", "batch", "--help")
    image = ("--on", "k8s", "--image", "a/b:1", "--no-apply")
    scratch.trackwalker("submit", "tiny", *image, "--grace", "42", cwd=tmp_path, K8S_PVC_NAME="shared")
    (order,) = (tmp_path / "outputs" / ".submissions").glob("*/order.json")
    read = (
        "import sys, pathlib, trackwalker.node.stages.order as o; print(o.load_order(pathlib.Path(sys.argv[1])).grace)"
    )
    assert scratch.python("-c", read, str(order)).strip() == "42.0"


def test_a_scheduler_is_a_file_and_a_row(scratch: Scratch, tmp_path: Path) -> None:
    scratch.add(
        "launch/schedulers/spool.py",
        '''"""A spool folder: whoever serves it starts what lies there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.launch.job_state import Standing


@dataclass(frozen=True)
class Wishes:
    """How many nodes."""

    nodes: int | None = None
    gpus_per_node: int | None = None


class Spool:
    """A file for each job."""

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return Path(os.environ["SPOOL"])

    def wishes(self, words, env):
        """-N NODES and nothing else."""
        if words and words[0] != "-N":
            raise UsageError(f"{words[0]}: a spool takes -N NODES")
        return Wishes(int(words[1]) if words else None)

    def shown(self, submission, wishes):
        """What is written into the spool."""
        return {"spooled": str(submission.folder)}

    def submit(self, submission, wishes):
        """Write it."""
        submission.write()
        job = str(9001 + len(list(self.folder.iterdir())))
        (self.folder / job).write_text(str(submission.folder))
        return job

    def state(self, job):
        """It waits as long as it lies there."""
        return Standing("pending", False, meaning="waits in the spool") if (self.folder / job.id).exists() else None

    def cancel(self, job):
        """Take it away."""
        (self.folder / job.id).unlink()


SCHEDULER = Spool()
''',
    )
    row = '    "spool": "trackwalker.launch.schedulers.spool",\n'
    scratch.put_before("launch/schedulers/__init__.py", '    "slurm": "', row)
    spool = tmp_path / "spool"
    spool.mkdir()

    def called(*words: str, code: int = 0) -> str:
        return scratch.trackwalker(*words, cwd=tmp_path, code=code, SPOOL=str(spool))

    planned = json.loads(called("plan", "tiny", "--on", "spool", "-N", "2", "--json"))
    assert planned["nodes"] == 2
    assert ".submissions" in planned["spooled"]
    assert called("submit", "tiny", "--on", "spool", "-N", "2").startswith("job 9001 ")
    folder = Path((spool / "9001").read_text())
    assert json.loads((folder / "order.json").read_text())["scheduler"] == "spool"
    told = json.loads(called("status", "9001", "--json"))
    assert (told["scheduler"], told["state"]) == ("spool", "pending")
    called("cancel", "9001")
    assert not (spool / "9001").exists()
    assert json.loads(called("jobs", "--json"))["jobs"][0]["id"] == "9001"
