"""Grafana boards: valid dashboards whose every query a real Prometheus understands, about metrics that exist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from promql import known_metrics, metrics_in, recorded_names

from trackwalker.observe.grafana import all_boards, write_dashboards
from trackwalker.observe.server import Server

BOARDS = all_boards()


def queries(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


@pytest.fixture(scope="module")
def server(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus with an empty database."""
    root = tmp_path_factory.mktemp("empty")
    (root / "data").mkdir()
    (root / "prometheus.yml").write_text("global: {}\n")
    server = Server(prometheus, root / "data", root / "prometheus.yml", root / "log")
    try:
        assert server.wait_ready(30)
        yield server
    finally:
        server.stop()


def test_there_is_one_for_each_view() -> None:
    assert set(BOARDS) == {"job", "node", "gpu", "network"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_a_dashboard(name: str) -> None:
    board = BOARDS[name]
    assert board["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert {v["name"] for v in board["templating"]["list"]} == {"datasource", "job_id", "host"}
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in _rows(place)}
        assert place["x"] + place["w"] <= 24
        assert not mine & cells, f"{panel['title']} lies over another panel"
        cells |= mine
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"], panel["title"]


def _rows(place: dict[str, int]) -> range:
    return range(place["y"], place["y"] + place["h"])


@pytest.mark.parametrize("name", BOARDS)
def test_panels_ask_for_metrics_that_someone_collects_or_records_and_for_one_job(name: str) -> None:
    known = known_metrics() | recorded_names()
    for query in queries(BOARDS[name]):
        assert metrics_in(query) - known == set(), query
        assert 'job_id="$job_id"' in query, query


@pytest.mark.parametrize("name", BOARDS)
def test_prometheus_understands_every_query(name: str, server: Server) -> None:
    asked = queries(BOARDS[name])
    assert len(asked) > 5
    with httpx.Client(base_url=server.url, trust_env=False) as http:
        for query in asked:
            filled = query.replace("$job_id", "7").replace("$host", ".*")
            assert "$" not in filled
            answer = http.get("/api/v1/query", params={"query": filled}).json()
            assert answer["status"] == "success", (query, answer)


def test_the_command_writes_boards_and_what_finds_them(tmp_path: Path) -> None:
    folder = tmp_path / "grafana"
    files = write_dashboards(folder, "http://prom:9090")
    assert sorted(p.stem for p in (folder / "dashboards").iterdir()) == sorted(BOARDS)
    for path in files:
        if path.suffix == ".json":
            assert json.loads(path.read_text()) == BOARDS[path.stem]
    provider = yaml.safe_load((folder / "provisioning" / "dashboards" / "trackwalker.yml").read_text())
    assert provider["providers"][0]["options"]["path"] == str(folder / "dashboards")
    source = yaml.safe_load((folder / "provisioning" / "datasources" / "trackwalker.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prom:9090"
    assert write_dashboards(folder, "http://prom:9090") == files, "a second time replaces them"


def test_a_login_in_the_address_goes_where_grafana_encrypts_it_and_nobody_else_reads_it(tmp_path: Path) -> None:
    write_dashboards(tmp_path, "http://trackwalker:a%2Fb@127.0.0.1:9090")
    path = tmp_path / "provisioning" / "datasources" / "trackwalker.yml"
    assert path.stat().st_mode & 0o777 == 0o600
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    assert source["url"] == "http://127.0.0.1:9090"
    assert (source["basicAuth"], source["basicAuthUser"]) == (True, "trackwalker")
    assert source["secureJsonData"] == {"basicAuthPassword": "a/b"}


def test_the_reader_of_queries_finds_names_and_nothing_else() -> None:
    query = """sum by (job_id, host) (label_replace(rate(hw_x_total{a="b_c"}[5m]), "kind", "k", "", "") or up offset 5m)
        > 2e12 unless on (x) group_left () job:b:c"""
    assert metrics_in(query) == {"hw_x_total", "up", "job:b:c"}
    assert "hw_gpu_power_watts" in known_metrics()
