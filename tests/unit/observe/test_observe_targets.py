"""Whom Prometheus scrapes: all nodes' agents, the dead ones too, and no stranger on an agent's port."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trackwalker.observe import targets as module
from trackwalker.observe.targets import Targets


class Bench:
    def __init__(self, root: Path) -> None:
        self.announced, self.live, self.said = root / "targets", root / "live.json", list[str]()
        self.announced.mkdir()
        self.answers: dict[str, str | None] = {}
        self.targets = Targets(self.announced, self.live, "job 1", self.said.append)

    def announce(self, node: str, target: str) -> None:
        groups = [{"targets": [target], "labels": {"job_id": "job 1"}}]
        (self.announced / f"{node}.json").write_text(json.dumps(groups))

    def scraped(self) -> list[str]:
        self.targets.look()
        return [t for g in json.loads(self.live.read_text()) for t in g["targets"]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    answers = bench.answers
    monkeypatch.setattr(module, "agent_at", lambda target: (answers[target], b"") if target in answers else None)
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    return bench


def test_every_node_has_its_own_file(bench: Bench) -> None:
    bench.targets.look()
    assert not bench.targets.found.is_set()
    for n in (2, 1):
        bench.announce(f"node{n}", f"10.0.0.{n}:9400")
        bench.answers[f"10.0.0.{n}:9400"] = "job%201"
    assert bench.scraped() == ["10.0.0.1:9400", "10.0.0.2:9400"]
    assert bench.targets.found.is_set()
    bench.announce("node1", "10.0.0.1:40001")  # moved: its port was taken
    assert bench.scraped() == ["10.0.0.1:40001", "10.0.0.2:9400"]
    (bench.announced / "node2.json").unlink()
    assert bench.scraped() == ["10.0.0.1:40001"]
    assert bench.said == []


@pytest.mark.parametrize("stranger", ["", "job%202"])
def test_who_answers_as_somebody_else_is_left_out_and_named_once(bench: Bench, stranger: str) -> None:
    bench.announce("a", "10.0.0.1:9400")
    bench.announce("b", "10.0.0.2:9400")
    assert bench.scraped() == ["10.0.0.1:9400", "10.0.0.2:9400"], "one that is silent is down, and that is recorded"
    bench.answers["10.0.0.1:9400"] = stranger
    assert bench.scraped() == bench.scraped() == ["10.0.0.2:9400"]
    assert len(bench.said) == 1
    assert "10.0.0.1:9400 is answered by another program" in bench.said[0]
    bench.answers["10.0.0.1:9400"] = "job%201"
    assert bench.scraped() == ["10.0.0.1:9400", "10.0.0.2:9400"]


@pytest.mark.parametrize("text", ["", "[{", "{}", '[{"targets": "x"}]', '[{"targets": ["host"]}]', "[3]", "null"])
def test_a_bad_file_costs_nobody_else_and_is_read_when_it_is_good(bench: Bench, text: str) -> None:
    bench.announce("a", "10.0.0.1:1")
    (bench.announced / "b.json").write_text(text)
    (bench.announced / "c.json.tmp").write_text("[]")
    assert bench.scraped() == ["10.0.0.1:1"]
    bench.announce("b", "10.0.0.2:1")
    assert bench.scraped() == ["10.0.0.1:1", "10.0.0.2:1"]
    (bench.announced / "b.json").write_text(text)
    assert bench.scraped()[:1] == ["10.0.0.1:1"]


def test_a_job_directory_that_is_away_is_not_no_targets(bench: Bench, tmp_path: Path) -> None:
    bench.announce("a", "10.0.0.1:1")
    bench.scraped()
    bench.announced.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        bench.targets.look()
    assert json.loads(bench.live.read_text())[0]["targets"] == ["10.0.0.1:1"]


def test_asking_nobody_a_stranger_and_noise(noise: Callable[[bytes], str]) -> None:
    assert module.agent_at(noise(b"HTTP/1.1 200 OK\r\nTrackwalker-Job: 7\r\nContent-Length: 2\r\n\r\nok")) == (
        "7",
        b"ok",
    )
    assert module.agent_at(noise(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) == ("", b"")
    assert module.agent_at(noise(b"SSH-2.0-OpenSSH_9.2\r\n")) is None
    assert module.agent_at("127.0.0.1:1") is None


@pytest.fixture
def noise() -> Callable[[bytes], str]:
    """A listener that says one thing to one caller."""
    import socket
    import threading

    def listen(answer: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with server, server.accept()[0] as caller:
                caller.recv(4096)
                caller.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    return listen
