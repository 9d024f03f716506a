"""`trackwalker tsdb list` and `query` with a real Prometheus: what they say about real databases."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tsdb_jobs import GAP, HOSTS, MAIN, call, recorded_jobs
from worlds import EVERY_S, START

from conftest import tree_hash
from trackwalker.observe.tsdb import list_parts
from trackwalker.telemetry.coverage import find_gaps
from trackwalker.telemetry.store import open_database


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Iterator[Path]:
    with recorded_jobs(tmp_path_factory.mktemp("outputs"), prometheus) as root:
        yield root


def test_list(workspace: Path) -> None:
    code, out, err = call(workspace, "list", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["schema"] == "trackwalker.tsdb-list/1"
    rows = {row["id"]: row for row in answer["jobs"]}
    assert list(rows) == ["5154", "5153", "5152", "5151", "5150"]  # newest first, the unrecorded one is none
    whole = rows["5150"]
    assert (whole["integrity"], whole["hosts_seen"], whole["hosts_expected"], whole["gaps"]) == ("ok", 3, 3, [])
    assert START <= whole["first"] < START + EVERY_S
    assert abs(whole["seconds"] - 1600) < 3 * EVERY_S
    ((begin, finish),) = rows["5151"]["gaps"]
    assert GAP[0] - EVERY_S <= begin <= GAP[0]
    assert GAP[1] <= finish <= GAP[1] + EVERY_S
    assert rows["5152"]["gaps"] == []  # another metric went on
    assert (rows["5153"]["integrity"], rows["5154"]["integrity"]) == ("unreadable", "empty")
    assert list_parts(workspace / "5153-JAX-granite-9b" / "prometheus").blocks[0] in rows["5153"]["damage"][0]
    assert rows["5154"]["first"] is None


def test_list_as_a_table_and_fast(workspace: Path) -> None:
    code, out, _ = call(workspace, "list")
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 6
    assert re.search(r"5151 .* 3/3 +1 \(0h08m\d\ds\) ", lines[4]), out
    _, out, _ = call(workspace, "list", "--fast", "--json")
    assert {row["integrity"] for row in json.loads(out)["jobs"]} == {"unchecked", "empty"}


def test_gap_edges_are_samples_and_a_late_start_is_none(workspace: Path) -> None:
    with open_database(workspace / "5151-JAX-granite-9b" / "prometheus") as telemetry:
        times = sorted(t for _, ts, _ in telemetry.raw('{__name__!=""}', *telemetry.range()) for t in ts.tolist())
        wide = [(a, b) for a, b in itertools.pairwise(times) if b - a > 5 * EVERY_S]
        assert find_gaps(telemetry) == wide


def test_query_is_at_the_end_unless_told(workspace: Path) -> None:
    code, out, _ = call(workspace, "query", "5150", "count(up)", "--json")
    answer = json.loads(out)
    assert (code, answer["schema"]) == (0, "trackwalker.tsdb-query/1")
    assert START + 1500 < answer["at"] < START + 1650
    assert answer["series"][0]["points"][0][1] == 3
    moment = "2026-06-01T08:10:00Z"  # in the gap: more than a lookback after the last sample only at its end
    code, out, _ = call(workspace, "query", "5151", "count_over_time(up[1m])", "--at", moment, "--json")
    assert (json.loads(out)["at"], json.loads(out)["series"]) == (START + 600, [])
    code, out, _ = call(workspace, "query", "5150", "up")
    assert all(host in out for host in HOSTS)


def test_query_over_a_range(workspace: Path) -> None:
    code, out, _ = call(
        workspace, "query", "5150", "sum by (host) (up)", "--start", f"{START + 60}", "--step", "60", "--csv"
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert {row["host"] for row in rows} == set(HOSTS)
    assert sorted({float(row["time"]) for row in rows})[:3] == [START + 60, START + 120, START + 180]
    assert {row["value"] for row in rows} == {"1"}
    _, out, _ = call(workspace, "query", "5150", "sum(up)", "--end", f"{START + 1000}", "--json")
    whole = json.loads(out)
    assert (whole["step"], whole["end"]) == (4.0, START + 1000)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["query", "5150", "sum(up"], "parse error"),
        (["query", "5150", "up[5m]"], "not one number for each series"),
        (["query", "5150", "up", "--at", "noon"], "is not a time"),
        (["query", "5150", "up", "--at", "1", "--step", "5"], "one or the other"),
        (["query", "5150", "up", "--step", "0"], "--step is the seconds"),
        (["query", "5150", "up", "--step", "0.001"], "too many"),
        (["query", "5150", "up", "--start", "9", "--end", "8"], "before the start"),
        (["query", "5155", "up"], "was not recorded"),
        (["query", "5154", "up"], "is empty"),
        (["query", "99", "up"], "no job '99'"),
        (["view", "5155"], "was not recorded"),
        (["view", "5150", "--port", "70000"], "not between 1 and 65535"),
        (["export", "5150", "no/where.csv"], "no folder"),
        (["export", "5150", "x.csv", "--metric", "("], "not a regular expression"),
        (["export", "5150", "x.csv", "--metric", "hw"], "no metric matches"),
    ],
)
def test_mistakes_are_one_line(
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trackwalker", "tsdb", *words])
    monkeypatch.setenv("JOB_WORKSPACE", str(workspace))
    with pytest.raises(SystemExit) as done:
        exec(MAIN, {})  # noqa: S102 - our own text, in this process as it is quicker
    out, err = capsys.readouterr()
    assert (done.value.code, out) == (2, "")
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_damage_is_said_and_is_an_exit_code(workspace: Path, tmp_path: Path) -> None:
    for path in workspace.glob("5150-*"):
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name, symlinks=True)
        else:
            shutil.copy(path, tmp_path)
    database = tmp_path / "5150-JAX-granite-9b" / "prometheus"
    (chunks,) = (database / list_parts(database).blocks[0] / "chunks").iterdir()
    data = bytearray(chunks.read_bytes())
    data[len(data) // 2] ^= 0x55
    chunks.write_bytes(data)
    before = tree_hash(tmp_path)
    (row,) = json.loads(call(tmp_path, "list", "--json")[1])["jobs"]
    assert (row["integrity"], row["hosts_seen"]) == ("damaged", 3)
    code, out, err = call(tmp_path, "query", "5150", "count(up)", "--json")
    assert (code, json.loads(out)["damage"]) == (3, row["damage"])
    assert err == f"trackwalker: damaged evidence: {row['damage'][0]}\n"
    assert tree_hash(tmp_path) == before


@pytest.mark.parametrize("command", ["", "list", "query", "view", "export"])
def test_help_has_an_example(workspace: Path, command: str) -> None:
    code, out, _ = call(workspace, *filter(None, [command]), "--help")
    assert code == 0
    assert f"Example: trackwalker tsdb {command}" in out
