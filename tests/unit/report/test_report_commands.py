"""The command beside an action: one that begins it, whatever the run is doing."""

from __future__ import annotations

from pathlib import Path

import pytest
from web_client import accusing

from trackwalker.diagnose.verdict import Action
from trackwalker.report.commands import command_of, drain_of


@pytest.mark.parametrize(
    ("do", "status", "launched", "command"),
    [
        ("restart-job", "hanging", True, "trackwalker cancel 8308"),  # it has to end before it can be resumed
        ("restart-job", "failed", True, "trackwalker resume 8308"),
        ("restart-job", "hanging", False, "trackwalker changed 8308"),  # somebody else's run is not ours to end
        ("restart-exporter", "hanging", True, "trackwalker changed 8308"),
        ("restart-exporter", "completed", True, "trackwalker changed 8308"),  # the run was well: nothing to do again
        ("read-traceback", "failed", True, "trackwalker logs 8308"),
    ],
)
def test_what_to_type_depends_on_whether_the_run_goes_on(
    tmp_path: Path, do: str, status: str, launched: bool, command: str
) -> None:
    verdict = accusing("8308", "x")
    verdict.job.dir, verdict.status = str(tmp_path), status  # type: ignore[assignment]
    if launched:
        (tmp_path / "run.json").write_text("{}")
    assert command_of(Action(do=do, hosts=[], why="y", risk="none", needs_approval=True), verdict) == command


@pytest.mark.parametrize(
    ("job", "do", "hosts", "command"),
    [
        ("8308", "drain-node", ["n1", "n2"], "scontrol update nodename=n1,n2 state=drain reason={cause}"),
        ("k8s-ds-1", "drain-node", ["n1", "n2"], "kubectl cordon n1 n2"),
        ("local_20261115_031007_bf37", "drain-node", ["box"], ""),  # no scheduler
        ("8308", "drain-node", ["n1; reboot"], ""),
        ("8308", "exclude-nodes", ["n1"], ""),
    ],
)
def test_only_the_scheduler_drains_a_node(job: str, do: str, hosts: list[str], command: str) -> None:
    verdict = accusing(job, "x")
    action = Action(do=do, hosts=hosts, why="y", risk="capacity", needs_approval=True)
    assert drain_of(action, verdict) == command.format(cause=verdict.roots[0].cause)
