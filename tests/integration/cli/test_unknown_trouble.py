"""Trouble that no playbook describes is located; runs without a culprit accuse nobody."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from unknown_worlds import ALL_ALONG, HELD_OUT, NOBODY, TUNED, make

from trackwalker.cli.app import main
from trackwalker.diagnose.causes.confidence import calibration
from trackwalker.diagnose.engine import diagnose

pytestmark = [pytest.mark.usefixtures("prometheus")]
KINDS = TUNED | HELD_OUT
MORE = pytest.mark.long(reason="a world each; a landing keeps a known and a plug-in's metric, a link, a burst")
assert set(ALL_ALONG) == {"narrow-link", "plugin-slow-cpu"}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("pcie-errors-one-gpu", "unclassified"),
        ("plugin-cpu-steal", "cpu-contention"),  # what a stolen CPU is has a name, whoever measures it
        pytest.param("plugin-supply-sags", "unclassified", marks=MORE),
    ],
)
def test_the_host_is_named_with_the_metric_and_a_next_step(tmp_path: Path, kind: str, cause: str) -> None:
    job, culprits = make(KINDS[kind], tmp_path, seed=21, nodes=6, gpus=2)
    verdict = diagnose(job).verdict
    assert verdict.outcome == "incident"
    (root,) = verdict.roots
    assert (root.cause, root.hosts) == (cause, culprits)
    strongest = next(d for d in verdict.deviations if d.host in culprits)
    assert strongest.metric in verdict.summary
    assert verdict.actions[0].hosts == culprits
    assert "closer look" in verdict.actions[0].why
    assert not verdict.actions[0].needs_approval


@pytest.mark.parametrize("kind", ["narrow-link", pytest.param("plugin-slow-cpu", marks=MORE)])
def test_whoever_is_unlike_all_peers_from_the_first_step_on_is_named(tmp_path: Path, kind: str) -> None:
    job, culprits = make(ALL_ALONG[kind], tmp_path, seed=24, slow=False, nodes=6, gpus=2)
    verdict = diagnose(job).verdict
    (root,) = verdict.roots
    assert (verdict.outcome, root.cause, root.hosts) == ("incident", "unclassified", culprits)
    assert "from the first step on" in verdict.summary
    assert "what it costs is not known" in verdict.summary


def test_in_a_hang_that_no_test_names_anybody_for_whoever_stands_out_is_the_blocking_host(tmp_path: Path) -> None:
    job, culprits = make(KINDS["plugin-health-flag"], tmp_path, seed=25, nodes=6, gpus=2, hang=True)
    verdict = diagnose(job).verdict
    (root,) = verdict.roots
    assert (root.cause, root.hosts) == ("collective-hang", culprits)
    assert f"Blocking host: {culprits[0]}" in verdict.summary
    assert any("switch_asic_ok" in e.says for e in verdict.evidence if e.id in root.evidence)


def test_a_hang_in_which_nobody_stands_out_names_nobody(tmp_path: Path) -> None:
    job, _ = make(NOBODY["healthy"][1], tmp_path, seed=26, nodes=6, gpus=2, hang=True)
    assert [c.hosts for c in diagnose(job).verdict.roots] == [[]]


@pytest.mark.parametrize("kind", [pytest.param("healthy-one-burst", marks=MORE), "slow-one-burst", "slow-all-alike"])
def test_nobody_is_accused_where_nobody_is_to_blame(tmp_path: Path, kind: str) -> None:
    slow, lay = NOBODY[kind]
    job, _ = make(lay, tmp_path, seed=22, slow=slow, nodes=6, gpus=2)
    verdict = diagnose(job).verdict
    assert [h for c in verdict.causes for h in c.hosts] == []
    # What rose fiftyfold everywhere as the run became slow is worth telling, as unsure as a root can be.
    expected = {
        "slow-one-burst": ("insufficient-evidence", []),
        "slow-all-alike": ("incident", [calibration().levels[0].confidence]),
    }
    told = (verdict.outcome, [c.confidence for c in verdict.roots])
    assert told == expected.get(kind, ("healthy", []))


def test_changed_prints_the_same_table_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job, (culprit,) = make(KINDS["nic-receive-errors"], tmp_path, seed=23, nodes=6, gpus=2)

    def changed(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["trackwalker", "changed", str(job.dir), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(str(ended.value.code or 0)), capsys.readouterr().out

    code, out = changed("--json")
    told = json.loads(out)
    assert (code, told["schema"]) == (0, "trackwalker.changed/1")
    row = told["deviations"][0]
    assert (row["host"], row["device"], row["metric"]) == (culprit, "eno0", "hw_net_rx_errors_total")
    assert row["from"] < 1 < row["to"]
    assert {e["id"] for e in told["evidence"]} >= {d["evidence"] for d in told["deviations"]}
    code, out = changed("--from", "5", "--to", "30", "--hosts", culprit)
    assert code == 0
    assert "hw_net_rx_errors_total rose" not in out
    assert changed("--from", "never")[0] == 2
