"""Small inputs with large ideas: each is bounded in time, memory and threads."""

from __future__ import annotations

import gzip
import http.client
import os
import pickle
import random
import resource
import socket
import string
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trackwalker.agent.log_lines import CHUNK, Held
from trackwalker.errors import EvidenceError
from trackwalker.job.scrub import Scrubber
from trackwalker.logs.formats.flight_recorder import behind, load
from trackwalker.node.exporter.server import Exporter
from trackwalker.perf.formats.wire import Source
from trackwalker.perf.hlo.programs import read_program


def cpu(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def words(size: int) -> dict[str, str]:
    rng = random.Random(1)
    return {
        "one word": "a" * size,
        "letters": "".join(rng.choices(string.ascii_letters + string.digits, k=size)),
        "names": "a=" * (size // 2),
        "colons": ":" * size,
        "quotes": '"' * size,
        "schemes": "a://" * (size // 4),
        "at signs": "a@" * (size // 2),
        "dashes": "-" * size,
        "flags": "--a " * (size // 4),
        "dots": "a." * (size // 2),
        "keys begun": "-----BEGIN PRIVATE KEY-----\n" * (size // 28),
        "escapes": '\\"' * (size // 2),
        "spaces behind a name": "token=" + " " * size,
        "headers": "authorization: " * (size // 15),
        "secrets": "".join(f"A_TOKEN=s{i:07d}x\n" for i in range(size // 18)),
    }


@pytest.mark.parametrize("kind", list(words(1)))
def test_redaction_takes_time_in_proportion_to_the_text(kind: str) -> None:
    """A 300 kB word took over a minute."""
    small, large = words(30_000)[kind], words(300_000)[kind]

    def scrub(text: str) -> None:
        scrubber = Scrubber()
        scrubber.learn(text)
        scrubber.clean(text)

    scrub(small)
    assert cpu(lambda: scrub(large)) < max(1.0, 30 * cpu(lambda: scrub(small)))


def doubling(levels: int, last: bytes) -> bytes:
    """A pickle of a tuple of twice the tuple before, and so on: a few bytes for each doubling."""
    out = b"\x80\x02)q\x00"
    for n in range(levels):
        out += b"h%ch%c\x86q%c" % (n, n, n + 1)
    return out + last


@pytest.mark.parametrize(
    "data",
    [
        doubling(60, b"}h\x3cK\x01s."),  # as the key of a dictionary
        doubling(60, b"}X\x09\x00\x00\x00pg_configh\x3cs."),
        pickle.dumps({"pg_config": {"0": {"desc": 1, "ranks": "[0]"}}, "entries": []}),
    ],
)
def test_a_short_pickle_does_not_run_for_ever(data: bytes) -> None:
    assert len(data) < 600

    def read() -> None:
        try:
            behind({0: load(data), 1: {}, 2: {}})
        except EvidenceError:
            return

    done = threading.Thread(target=read, daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()


def test_a_description_that_is_no_text_is_not_written_out() -> None:
    deep: Any = ()
    for _ in range(60):
        deep = (deep, deep)
    entry = {"process_group": ["0", "d"], "collective_seq_id": 3, "state": "scheduled", "is_p2p": False}
    dump = {"pg_config": {"0": {"desc": deep, "ranks": "[0, 1]"}}, "entries": [entry]}
    done = threading.Thread(target=lambda: behind({0: dump, 1: {}, 2: {}}), daemon=True)
    done.start()
    done.join(10)
    assert not done.is_alive()


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A megabyte that becomes a gigabyte."""
    path = tmp_path_factory.mktemp("bomb") / "a.xplane.pb.gz"
    with gzip.open(path, "wb", compresslevel=9) as out:
        for _ in range(64):
            out.write(bytes(16 << 20))
    return path


def test_a_bomb_is_not_unpacked(bomb: Path, tmp_path: Path) -> None:
    assert bomb.stat().st_size < 2 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EvidenceError, match="times its size"):
        Source(bomb)
    program = tmp_path / "a.hlo.txt.gz"
    program.symlink_to(bomb)
    with pytest.raises(EvidenceError, match="times its size"):
        read_program(program)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700 << 10


def test_a_real_trace_is_unpacked_whole_and_a_cut_one_as_far_as_it_goes(tmp_path: Path) -> None:
    plain = random.Random(2).randbytes(3 << 20)
    path = tmp_path / "a.pb.gz"
    path.write_bytes(gzip.compress(plain[: 1 << 20]) + gzip.compress(plain[1 << 20 :]))  # two streams
    whole = Source(path)
    assert bytes(whole.view) == plain
    assert whole.gaps == []
    path.write_bytes(path.read_bytes()[:-100_000])
    cut = Source(path)
    assert plain.startswith(bytes(cut.view))
    assert "cut or damaged" in cut.gaps[0].why


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_silent_connections_do_not_take_the_exporter_away_from_its_scraper() -> None:
    exporter = Exporter("n1", [])
    port = exporter.start()
    try:
        scraper = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        scraper.request("GET", "/metrics")
        assert scraper.getresponse().read()
        before = threads()
        silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(300)]
        time.sleep(0.5)  # the wait is the subject: threads that may come late
        assert threads() - before <= 40, "a thread for each"
        scraper.request("GET", "/metrics")  # on the connection it had
        assert scraper.getresponse().read()
        late = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        late.request("GET", "/metrics")
        assert late.getresponse().status == 200
        for one in silent:
            one.close()
    finally:
        exporter.stop()


def test_with_a_token_the_exporter_answers_who_has_it() -> None:
    exporter = Exporter("n1", [], token="a-bearer-token-of-ours")  # noqa: S106
    port = exporter.start()
    try:
        for header, status in ((None, 401), ("Bearer no", 401), ("Bearer a-bearer-token-of-ours", 200)):
            asked = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            asked.request("GET", "/metrics", headers={"Authorization": header} if header else {})
            assert asked.getresponse().status == status
    finally:
        exporter.stop()


def test_the_token_of_the_agents_is_a_file_and_without_it_nothing_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    from trackwalker.observe.live import prometheus_config

    path = tmp_path / "token"
    path.write_text("a-bearer-token-of-ours\n")
    monkeypatch.setenv("TRACKWALKER_METRICS_TOKEN_FILE", str(path))
    path.chmod(0o644)
    with pytest.raises(OSError, match="chmod 600"):
        Exporter("n1", []).start()
    path.chmod(0o600)
    exporter = Exporter("n1", [])
    exporter.start()
    exporter.stop()
    assert exporter.token == "a-bearer-token-of-ours"  # noqa: S105
    made = yaml.safe_load(prometheus_config(tmp_path / "t", tmp_path / "r", None, str(path)))
    assert made["scrape_configs"][0]["authorization"] == {"credentials_file": str(path)}


def test_a_log_that_is_cut_while_it_is_read_costs_lines_and_no_process(tmp_path: Path) -> None:
    """A mapped file that becomes shorter kills its reader with SIGBUS."""
    path = tmp_path / "a.log"
    path.write_bytes(b"0: step\n" * (3 * CHUNK // 8))
    with path.open("rb") as file:
        data = Held(file.fileno())
        os.truncate(path, 100)
        assert data.find(b"\n", 2 * CHUNK) == -1
        assert data.part(CHUNK, CHUNK + 10) == b""
        assert data.rfind(b"\n", 50) == 47
        assert data.count(b"\n", 0, len(data)) == 12


def test_the_piecewise_file_agrees_with_bytes(tmp_path: Path) -> None:
    import re

    rng = random.Random(3)
    raw = (
        b"".join(rng.randbytes(rng.randrange(200_000)).replace(b"\n", b"x") + b"\n" for _ in range(30)) + b"WanTed end"
    )
    path = tmp_path / "a.log"
    path.write_bytes(raw)
    with path.open("rb") as file:
        data = Held(file.fileno())
        assert len(data) == len(raw)
        for at in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, len(raw) - 1, len(raw), *rng.sample(range(len(raw)), 50)]:
            assert data.find(b"\n", at) == raw.find(b"\n", at)
            assert data.rfind(b"\n", at) == raw.rfind(b"\n", 0, at)
            assert data.part(at, at + 5000) == raw[at : at + 5000]
        assert data.count(b"\n", 5, len(raw)) == raw.count(b"\n", 5)
        found = data.search(re.compile(b"wanted", re.IGNORECASE), 0, 6)
        assert found == (len(raw) - 10, len(raw) - 4)
