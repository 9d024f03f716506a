"""What can be said about a database without Prometheus, times people write, and where an export may go."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from helpers import make_job
from rich.console import Console

from conftest import tree_hash
from trackwalker.errors import UsageError
from trackwalker.logs.formats.nodelist import nodes_in_header
from trackwalker.report.tsdb import render_list, size
from trackwalker.telemetry import export, serve
from trackwalker.telemetry.catalogue import list_databases
from trackwalker.telemetry.query import Answer, Series, number, parse_time

PAGE = '<link href="./static/a.css" rel="stylesheet"><script type="module" src="./static/a.js?v=1"></script>'
ULID = "01HZZZZZZZZZZZZZZZZZZZZZZ"


def block(database: Path, last: str, first_ms: int, end_ms: int, sources: tuple[str, ...] = ()) -> Path:
    folder = database / (ULID + last)
    (folder / "chunks").mkdir(parents=True)
    meta = {"ulid": folder.name, "version": 1, "minTime": first_ms, "maxTime": end_ms}
    (folder / "meta.json").write_text(json.dumps({**meta, "compaction": {"sources": [ULID + s for s in sources]}}))
    (folder / "index").write_bytes(bytes(100))
    return folder


def glance(workspace: Path) -> list[dict[str, object]]:
    before = tree_hash(workspace)
    rows = [e.to_dict() for e in list_databases(workspace, nodes_in_header, fast=True)]
    assert tree_hash(workspace) == before
    return rows


def test_a_fast_look_reads_block_descriptions(tmp_path: Path) -> None:
    job, _ = make_job(tmp_path, "12345-JAX-x")
    make_job(tmp_path, "12346-JAX-unrecorded")
    block(job / "prometheus", "A", 1000, 5001)
    block(job / "prometheus", "B", 5001, 9001)
    (row,) = glance(tmp_path)
    assert (row["id"], row["first"], row["last"], row["seconds"]) == ("12345", 1.0, 9.0, 8.0)
    assert (row["integrity"], row["hosts_expected"], row["hosts_seen"], row["gaps"]) == ("unchecked", 2, None, None)
    assert row["bytes"] == sum(p.stat().st_size for p in (job / "prometheus").rglob("*") if p.is_file())
    assert row["open_end"] is False


def test_a_fast_look_does_not_pretend_to_know_the_end_of_a_log(tmp_path: Path) -> None:
    job, _ = make_job(tmp_path, "1-JAX-x")
    block(job / "prometheus", "A", 1000, 5001)
    (job / "prometheus" / "wal").mkdir()
    (job / "prometheus" / "wal" / "00000000").write_bytes(b"x")
    (row,) = glance(tmp_path)
    assert (row["last"], row["open_end"]) == (5.0, True)


def test_a_bad_block_is_damage_unless_a_merged_one_replaced_it(tmp_path: Path) -> None:
    job, _ = make_job(tmp_path, "1-JAX-x")
    (block(job / "prometheus", "A", 1000, 5001) / "meta.json").write_text("{")
    (row,) = glance(tmp_path)
    assert row["integrity"] == "damaged"
    assert row["damage"] == (f"{ULID}A: meta.json is not readable",)
    assert row["first"] is None
    block(job / "prometheus", "B", 1000, 9001, sources=("A",))
    (row,) = glance(tmp_path)
    assert (row["integrity"], row["first"]) == ("unchecked", 1.0)


@pytest.mark.parametrize("name", ["1-JAX-x", "1-JAX-this is empty: no"])
def test_an_empty_database_is_a_row_and_shows_as_one(tmp_path: Path, name: str) -> None:
    job, _ = make_job(tmp_path, name)
    (job / "prometheus").mkdir()
    (row,) = glance(tmp_path)
    assert row["integrity"] == "empty"
    console = Console(width=300, record=True)
    render_list(list_databases(tmp_path, nodes_in_header, fast=True), console)
    assert "empty: metrics database" in console.export_text()


def test_the_launched_ranks_come_before_the_header(tmp_path: Path) -> None:
    job, _ = make_job(tmp_path, "1-JAX-x")
    (job / "prometheus").mkdir()
    ranks = [{"rank": r, "host": f"n{r % 3}", "node": "m"} for r in range(6)]
    record = {"id": "1", "name": "x", "model": "x", "scheduler": "local", "trainer": "tiny", "created": 1.0}
    run = {**record, "argv": [], "command": [], "workspace": "w", "ranks": ranks}
    (job / "run.json").write_text(json.dumps(run))
    assert glance(tmp_path)[0]["hosts_expected"] == 3
    (job / "run.json").write_text("{")  # damaged: the header is asked
    assert glance(tmp_path)[0]["hosts_expected"] == 2


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("NNODES=16\n", 16),
        ("SLURM_NNODES=4\nJOB_NODELIST=a[1-9]\n", 4),
        ("JOB_NODELIST=node[001-012],x\n", 13),
        ("NNODES=zero\n", None),
        ("0: NNODES=3\n", None),
        ("", None),
    ],
)
def test_nodes_in_a_header(tmp_path: Path, text: str, nodes: int | None) -> None:
    (tmp_path / "log").write_text(text)
    assert nodes_in_header(tmp_path / "log") == nodes


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1780300800", 1780300800.0),
        ("1780300800.25", 1780300800.25),
        ("2026-06-01T08:00:00Z", 1780300800.0),
        ("2026-06-01 08:00:00", 1780300800.0),
        ("2026-06-01T10:00:00+02:00", 1780300800.0),
    ],
)
def test_times(text: str, time: float) -> None:
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "1780300800000", "-5", "2026-13-01", "9999-99-99T00:00Z"])
def test_what_is_not_a_time(text: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        parse_time(text)


def test_answers_as_json_and_rows() -> None:
    inf = float("inf")
    series = [Series({"__name__": "m", "host": 'a,"b'}, [(1.0, 2.5), (2.0, -inf)]), Series({"gpu": "0"}, [(1.0, 3.0)])]
    answer = Answer("m", 1.0, 2.0, 1.0, series)
    assert json.loads(json.dumps(answer.to_dict(), allow_nan=False))["series"][0]["points"] == [
        [1.0, 2.5],
        [2.0, "-Inf"],
    ]
    assert list(answer.rows()) == [
        ["metric", "gpu", "host", "time", "value"],
        ["m", "", 'a,"b', "1.000", "2.5"],
        ["m", "", 'a,"b', "2.000", "-Inf"],
        ["", "0", "", "1.000", "3"],
    ]


def test_numbers_and_sizes() -> None:
    assert [number(v) for v in (3.0, 0.1, 1e300, float("nan"), float("inf"))] == ["3", "0.1", "1e+300", "NaN", "+Inf"]
    assert [size(n) for n in (0, 1023, 1536, 5 << 30, 3 << 50)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3072.0 TiB"]


def test_where_an_export_may_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_pyarrow", lambda: None)
    database = tmp_path / "prometheus"
    database.mkdir()
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    for out, complaint in [
        ("x.txt", "has to end in"),
        ("x.parquet", r"pip install 'trackwalker\[perf\]'"),
        ("no/x.csv", "no folder"),
        ("folder.csv", "is a folder"),
        ("there.csv", "--force"),
        ("prometheus/x.csv", "inside the database"),
    ]:
        with pytest.raises(UsageError, match=complaint):
            export.check_target(tmp_path / out, database, force=False)
    export.check_target(tmp_path / "there.csv", database, force=True)
    export.check_target(tmp_path / "new.csv.gz", database, force=False)
    assert (tmp_path / "there.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("files", "there"),
    [
        ({"graph": PAGE, "static/a.css": "", "static/a.js": ""}, True),
        ({"graph": PAGE, "static/a.css": ""}, False),  # as Debian's package unpacked without those it depends on
        ({"graph": "error opening React index.html"}, False),
        ({}, False),
    ],
)
def test_whether_a_prometheus_has_its_page(tmp_path: Path, files: dict[str, str], there: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert serve.has_page(f"http://127.0.0.1:{server.server_port}") is there
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_page_opens_on_the_time_of_the_job() -> None:
    url = serve.page_url(9090, "up", 1780300800.0, 1780306230.5)
    asked = parse_qs(urlsplit(url).query)
    assert url.startswith("http://127.0.0.1:9090/graph?")
    assert asked["g0.expr"] == ["up"]
    assert asked["g0.range_input"] == ["91m"]
    assert asked["g0.end_input"] == ["2026-06-01 09:30:31"]
