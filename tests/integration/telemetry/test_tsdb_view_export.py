"""`trackwalker tsdb view` and `export` with a real Prometheus: every sample comes out, and no trace stays."""

from __future__ import annotations

import csv
import gzip
import io
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tsdb_jobs import HOSTS, call, end, leftovers, recorded_jobs, start
from worlds import START

from trackwalker.telemetry import export
from trackwalker.telemetry.store import open_database


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, prometheus: Path) -> Iterator[Path]:
    with recorded_jobs(tmp_path_factory.mktemp("outputs"), prometheus) as root:
        yield root


TOKENS: dict[str, str] = {}  # of the addresses that were said


def ports_said(process: subprocess.Popen[str], count: int) -> list[str]:
    """Where it serves; each address is followed by the way there from elsewhere."""
    assert process.stdout is not None
    found: list[str] = []
    tunnels: list[str] = []
    while len(tunnels) < count:
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        for url, token in re.findall(r"(http://127\.0\.0\.1:\d+)/\S*[?&]token=([\w-]+)", line):
            found.append(url)
            TOKENS[url] = token
        tunnels += re.findall(r"ssh -N -L (\d+):127\.0\.0\.1:\d+ \S+@\S+", line)
    assert [url.rpartition(":")[2] for url in found] == tunnels
    return found


def ask(url: str, promql: str, at: float) -> Any:
    asked = {"query": promql, "time": at, "token": TOKENS[url]}
    return httpx.get(f"{url}/api/v1/query", params=asked, trust_env=False).json()["data"]["result"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_view_two_jobs_by_two_people(workspace: Path, ending: signal.Signals) -> None:
    people = [start(workspace, "view", "5150", "5151") for _ in range(2)]
    try:
        for process in people:
            whole, gap = ports_said(process, 2)
            at = START + 900  # in the gap of the second job, with nothing within the lookback
            assert ask(whole, "count(up)", at)[0]["value"][1] == "3"
            assert ask(gap, "count(up)", at) == []
            assert len(ask(whole, "up", at)) == 3  # a second request
    finally:
        for process in people:
            process.send_signal(ending)
    for process in people:
        code, _, err = end(process)
        assert (code, err) == (0, "Ctrl-C ends\n")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{whole}/-/ready", trust_env=False)


def test_view_on_chosen_ports(workspace: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = call(workspace, "view", "5150", "--port", str(port))
        assert (code, out) == (2, "")
        assert re.fullmatch(rf"trackwalker: port {port} cannot be used .*\n", err)
    process = start(workspace, "view", "5150", "--port", str(port))
    try:
        assert ports_said(process, 1) == [f"http://127.0.0.1:{port}"]
    finally:
        process.terminate()
    assert end(process)[0] == 0


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.2])
def test_view_ended_while_it_opens(workspace: Path, after_s: float) -> None:
    process = start(workspace, "view", "5150", "5151", "5152")
    deadline = time.monotonic() + 20
    while not leftovers() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(after_s)  # the wait is the subject: the moment of the end
    process.terminate()
    code, _, err = end(process)
    assert code in (0, 130), err
    assert "Traceback" not in err
    assert not leftovers()


def test_export_has_every_sample_in_any_pieces(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all.csv.gz"
    code, _, err = call(workspace, "export", "5150", str(out))
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(out.read_bytes()).decode())))
    assert err.startswith(f"{len(rows)} samples of 4 metrics")
    database = workspace / "5150-JAX-granite-9b" / "prometheus"
    with open_database(database) as telemetry:
        stored = [
            (labels["__name__"], labels["host"], labels.get("gpu", ""), f"{t:.3f}", v)
            for labels, times, values in telemetry.raw('{__name__!=""}', *telemetry.range())
            for t, v in zip(times.tolist(), values.tolist(), strict=True)
        ]
        keys = ("metric", "host", "gpu", "time")
        assert sorted(stored) == sorted((*(row[k] for k in keys), float(row["value"])) for row in rows)
        assert {row["labels"] for row in rows if row["gpu"]} == {'{"shelf": "top"}'}
        monkeypatch.setattr(export, "_SAMPLES_AT_ONCE", 50)
        pieces = export.export(telemetry, tmp_path / "pieces.csv", "up|hw_.*")
    written = gzip.decompress(out.read_bytes()).decode().splitlines()
    chosen = [line for line in written if not line.startswith("tb_")]
    assert sorted((tmp_path / "pieces.csv").read_text().splitlines()) == sorted(chosen)
    assert pieces.samples == len(chosen) - 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.csv.gz", "pieces.csv"]


def test_export_replaces_only_when_told_and_as_a_whole(workspace: Path, tmp_path: Path) -> None:
    out = tmp_path / "up.csv"
    out.write_text("mine")
    words = ("export", "5150", str(out), "--metric", "up", "--start", f"{START + 60}", "--end", f"{START + 120}")
    code, _, err = call(workspace, *words)
    assert (code, out.read_text()) == (2, "mine")
    assert "--force" in err
    assert call(workspace, *words, "--force")[0] == 0
    times = [float(row["time"]) for row in csv.DictReader(out.open())]
    assert len(times) in range(10, 16)
    assert min(times) >= START + 60
    assert max(times) <= START + 120
    assert [p.name for p in tmp_path.iterdir()] == ["up.csv"]


def test_an_export_that_fails_leaves_nothing(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with open_database(workspace / "5150-JAX-granite-9b" / "prometheus") as telemetry:
        with pytest.raises(KeyboardInterrupt):
            export.export(telemetry, tmp_path / "x.csv.gz", progress=interrupted)
        assert list(tmp_path.iterdir()) == []


def test_parquet(workspace: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install -e '.[perf]'")
    out = tmp_path / "x.parquet"
    assert call(workspace, "export", "5150", str(out))[0] == 0
    table = parquet.read_table(out)
    assert table.column_names == list(export.COLUMNS)
    assert call(workspace, "export", "5150", str(tmp_path / "x.csv"))[0] == 0
    assert table.num_rows == len((tmp_path / "x.csv").read_text().splitlines()) - 1
    assert set(table["host"].to_pylist()) == set(HOSTS)
