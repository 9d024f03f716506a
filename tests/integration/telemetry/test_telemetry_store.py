"""Opening metrics databases behind a real Prometheus: the numbers, the damage, and that nothing is left behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from trackwalker.errors import EvidenceError, MissingToolError
from trackwalker.job.processes import read_stat
from trackwalker.observe.prometheus import find_promtool
from trackwalker.observe.tsdb import list_parts
from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.client import QueryError
from trackwalker.telemetry.store import open_database
from trackwalker.telemetry.wal import PAGE, crc32c

T0 = 1_700_000_000  # not on a block's border
STEP, COUNT = 10, 1500  # a little over four hours: three blocks
HOSTS = ("n1", "n2", "n3")
SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "samples"


@pytest.fixture(scope="module")
def blocks_made(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    promtool = find_promtool(prometheus)
    if promtool is None:
        pytest.skip("this Prometheus came without promtool: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("blocks")
    lines = ["# TYPE sent_bytes counter"]
    for i, host in enumerate(HOSTS):
        lines += [f'sent_bytes_total{{host="{host}"}} {k * (i + 1)} {T0 + k * STEP}' for k in range(COUNT)]
    lines.append("# TYPE heat gauge")
    for host in HOSTS:
        lines += [f'heat{{instance="{host}:9400",gpu="{g}"}} {40 + g} {T0}' for g in range(2)]
    (folder / "in.txt").write_text("\n".join([*lines, "# EOF\n"]))
    make = [promtool, "tsdb", "create-blocks-from", "openmetrics", folder / "in.txt", folder / "db"]
    subprocess.run(make, check=True, capture_output=True)
    return folder / "db"


@pytest.fixture
def blocks(blocks_made: Path, tmp_path: Path) -> Path:
    """A database of three blocks, free to be damaged."""
    return Path(shutil.copytree(blocks_made, tmp_path / "db"))


@pytest.fixture
def wal(prometheus: Path, tmp_path: Path) -> Path:
    """A database that is only a write-ahead log: three series, one record for each of 3000 scrapes."""
    return log_of(tmp_path / "db", b"load")


def log_of(folder: Path, metric: bytes) -> Path:
    (folder / "wal").mkdir(parents=True)
    out = bytearray()

    def write(body: bytes) -> None:
        if PAGE - len(out) % PAGE < len(body) + 7:
            out.extend(bytes(PAGE - len(out) % PAGE))
        crc = int(crc32c(body, np.array([0]), np.array([len(body)]))[0])
        out.extend(b"\x01" + struct.pack(">HI", len(body), crc) + body)

    series = b"\x01"
    for ref, host in enumerate(HOSTS, 1):
        texts = [b"__name__", metric, b"host", host.encode()]
        series += struct.pack(">Q", ref) + b"\x02" + b"".join(bytes([len(x)]) + x for x in texts)
    write(series)
    for k in range(3000):
        # The first sample carries reference and time, the others are told relative to it (zigzag varints).
        body = b"\x02" + struct.pack(">QQ", 1, (T0 + k) * 1000)
        write(body + b"".join(bytes([2 * i, 0]) + struct.pack(">d", k + i) for i in range(len(HOSTS))))
    (folder / "wal" / "00000000").write_bytes(out)
    return folder


def fingerprint(folder: Path) -> dict[str, tuple[int, int, str]]:
    out = {}
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        out[str(path.relative_to(folder))] = (stat.st_mtime_ns, stat.st_nlink, digest)
    return out


def views() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"trackwalker-view-{os.getuid()}-{os.getpid()}-*"))


def flip(path: Path, at: int, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for i in range(count):
        data[at + i] ^= 0x55
    path.write_bytes(data)


def total(folder: Path, metric: str) -> tuple[int, list[str]]:
    """How many samples can be read, and what is said about the rest."""
    with open_database(folder) as t:
        return sum(len(values) for _, _, values in t.raw(metric, T0, T0 + STEP * COUNT)), t.damage


def test_a_large_log_is_written_as_a_block_of_the_view_and_read_from_it(wal: Path) -> None:
    before = fingerprint(wal)
    with open_database(wal) as theirs, open_database(wal, direct_from=0) as ours:
        assert ours._direct is not None
        assert theirs._direct is None
        assert (ours.range(), ours.metrics()) == (theirs.range(), theirs.metrics())
        for promql in ("load", "sum by (host) (rate(load[5m]))", "avg_over_time(load[77s])", "topk(1, load)"):
            assert ours.instant(promql, T0 + 2000) == theirs.instant(promql, T0 + 2000)
        for (name, times, values), (own_name, own_times, own_values) in zip(
            theirs.raw("load", T0, T0 + 3000), ours.raw("load", T0, T0 + 3000), strict=True
        ):
            assert name == own_name
            assert np.array_equal(times, own_times)
            assert np.array_equal(values, own_values)
    assert fingerprint(wal) == before


@pytest.mark.parametrize("kind", ["log", "blocks", "large"])
def test_what_other_exporters_call_otherwise_is_there_in_our_names(prometheus: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "db"
    if kind == "log":
        log_of(folder, b"DCGM_FI_DEV_GPU_TEMP")
    else:
        writer = BlockWriter(folder, 1)
        stamps = (T0 + np.arange(3000)) * 1000
        for i, host in enumerate(HOSTS):
            name = labels("DCGM_FI_DEV_GPU_TEMP", Hostname=f"{host}.site", gpu="3")
            writer.add([name], stamps, np.arange(3000.0)[None, :] + i)
        writer.close()
    before = fingerprint(folder)
    ours = "max by (host) (hw_gpu_temperature_celsius)"
    with open_database(folder, *((0,) if kind == "large" else ())) as t:
        assert t.renamed == {"DCGM_FI_DEV_GPU_TEMP"}
        assert t.metrics() == {"DCGM_FI_DEV_GPU_TEMP", "hw_gpu_temperature_celsius"}
        assert t.by_host(ours, T0 + 2999) == {"n1": 2999, "n2": 3000, "n3": 3001}
        assert len(t.instant("DCGM_FI_DEV_GPU_TEMP", T0 + 2999)) == 3  # what was stored is there as it was
        assert t.by_host(ours, T0 + 9) == {"n1": 9, "n2": 10, "n3": 11}
    with open_database(folder, ours=False) as t:
        assert t.metrics() == {"DCGM_FI_DEV_GPU_TEMP"}
    assert fingerprint(folder) == before


def test_the_numbers_are_right_and_the_database_untouched(blocks: Path) -> None:
    before = fingerprint(blocks)
    end = T0 + STEP * (COUNT - 1)
    with open_database(blocks) as t:
        assert t.damage == []
        assert t.metrics() == {"sent_bytes_total", "heat"}
        assert t.range() == (T0, end)
        assert t.by_host("sent_bytes_total", end) == {"n1": COUNT - 1, "n2": 2 * (COUNT - 1), "n3": 3 * (COUNT - 1)}
        rate = t.by_host("rate(sent_bytes_total[10m])", end)
        assert rate == pytest.approx({"n1": 0.1, "n2": 0.2, "n3": 0.3})
        assert t.by_host("sum by (instance) (heat)", T0) == {"n1": 81, "n2": 81, "n3": 81}
        assert t.by("avg by (gpu) (heat)", T0, "gpu") == {"0": 40, "1": 41}
        m = t.matrix("sent_bytes_total", T0 - 100, T0 + 100, 10)
        assert [x["host"] for x in m.labels] == list(HOSTS)
        assert np.isnan(m.values[:, :10]).all()
        np.testing.assert_array_equal(m.values[2, 10:], 3 * np.arange(11))
        raw = t.raw("sent_bytes_total", T0, T0 + 8000)  # across a border of blocks
        assert [labels["host"] for labels, _, _ in raw] == list(HOSTS)
        np.testing.assert_array_equal(raw[0][1], T0 + STEP * np.arange(801))
        np.testing.assert_array_equal(raw[0][2], np.arange(801))
        with pytest.raises(QueryError, match="parse error"):
            t.instant("sum(", T0)
        with pytest.raises(QueryError, match="matrix"):
            t.instant("heat[5m]", T0)
        assert len(views()) == 1
    assert views() == set()
    assert fingerprint(blocks) == before


def test_a_log_is_read_without_being_repaired_in_place(wal: Path) -> None:
    with (wal / "wal" / "00000000").open("ab") as f:
        f.write(b"\x01\x00\x40tor")  # the writer was killed in the middle of a record
    before = fingerprint(wal)
    with open_database(wal) as t:
        assert t.damage == [], "an unfinished end is normal"
        assert t.range() == (T0, T0 + 2999)
        assert t.by_host("load", T0 + 2999) == {"n1": 2999, "n2": 3000, "n3": 3001}
    assert fingerprint(wal) == before


def test_a_bad_spot_in_the_log_costs_its_records_and_is_told(wal: Path) -> None:
    segment = wal / "wal" / "00000000"
    flip(segment, segment.stat().st_size // 2)
    with open_database(wal) as t:
        [(_, times, _), *_] = t.raw("load", T0, T0 + 3000)
        assert 2990 <= len(times) < 3000
        assert times[-1] == T0 + 2999, "what comes after the bad spot is kept"
        assert len(t.damage) == 1
        assert "wal/00000000" in t.damage[0]


def test_a_lost_series_record_is_told_with_its_cost(wal: Path) -> None:
    flip(wal / "wal" / "00000000", 20)
    with pytest.raises(EvidenceError, match="9000 samples left out, the names of their series were lost"):
        total(wal, "load")


def test_a_bad_checkpoint_does_not_cost_the_log_behind_it(wal: Path) -> None:
    # Prometheus' own repair would throw away every segment, or not start at all.
    data = (wal / "wal" / "00000000").read_bytes()
    (wal / "wal" / "checkpoint.00000004").mkdir()
    (wal / "wal" / "checkpoint.00000004" / "00000000").write_bytes(data[:PAGE])
    (wal / "wal" / "00000005").write_bytes(data[PAGE:])
    flip(wal / "wal" / "checkpoint.00000004" / "00000000", PAGE // 2)
    with open_database(wal) as t:
        [(_, times, _), *_] = t.raw("load", T0, T0 + 3000)
        assert 2990 <= len(times) < 3000
        assert times[-1] == T0 + 2999
        assert len(t.damage) == 1
        assert t.damage[0].startswith("wal/checkpoint.00000004/00000000: ")


def test_holes_in_the_log_are_told_and_bridged(wal: Path) -> None:
    data = (wal / "wal" / "00000000").read_bytes()
    (wal / "wal" / "00000000").write_bytes(data[: 2 * PAGE])
    (wal / "wal" / "00000002").write_bytes(data[3 * PAGE :])
    with open_database(wal) as t:
        [(_, times, _), *_] = t.raw("load", T0, T0 + 3000)
        assert times[-1] == T0 + 2999
        assert t.damage == ["wal: segment 00000001 missing"]


@pytest.mark.parametrize("part", ["meta.json", "index", "chunks"])
def test_a_bad_block_is_left_out_and_told_and_the_rest_is_there(blocks: Path, part: str) -> None:
    name = list_parts(blocks).blocks[1]
    if part == "chunks":
        shutil.rmtree(blocks / name / "chunks")
    else:
        os.truncate(blocks / name / part, 100)
    before = fingerprint(blocks)
    count, damage = total(blocks, "sent_bytes_total")
    assert 0 < count < COUNT * len(HOSTS)
    assert len(damage) == 1
    assert damage[0].startswith(f"{name}: ")
    assert "left out" in damage[0]
    assert "/tmp" not in damage[0]
    assert fingerprint(blocks) == before


def test_a_flipped_bit_costs_one_series_of_one_block(blocks: Path) -> None:
    name = list_parts(blocks).blocks[1]
    chunks = blocks / name / "chunks" / "000001"
    flip(chunks, chunks.stat().st_size // 2)
    samples = json.loads((blocks / name / "meta.json").read_text())["stats"]["numSamples"]
    count, damage = total(blocks, "sent_bytes_total")
    assert count == COUNT * len(HOSTS) - samples // len(HOSTS)
    assert len(damage) == 1
    assert damage[0].startswith(
        f'{name}/chunks: samples of 1 series are unreadable and left out, first {{__name__="sent'
    )


def test_unreadable_deletions_do_not_cost_the_block(blocks: Path) -> None:
    name = list_parts(blocks).blocks[0]
    (blocks / name / "tombstones").write_bytes(b"xx")
    count, damage = total(blocks, "sent_bytes_total")
    assert count == COUNT * len(HOSTS)
    assert damage == [f"{name}/tombstones: unreadable, left out; deleted samples may show again"]


def test_nothing_to_open_is_one_clear_line(blocks: Path, tmp_path: Path) -> None:
    for name in list_parts(blocks).blocks:
        os.truncate(blocks / name / "index", 10)
    (tmp_path / "none").mkdir()
    for folder, word in ((blocks, "unreadable"), (tmp_path / "none", "empty"), (tmp_path / "no", "does not exist")):
        with pytest.raises(EvidenceError, match=word) as caught:
            total(folder, "x")
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
    assert views() == set()


def test_without_prometheus_the_message_says_what_to_do(
    blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TRACKWALKER_TOOLS", str(tmp_path))
    monkeypatch.delenv("TRACKWALKER_PROMETHEUS", raising=False)
    with pytest.raises(MissingToolError, match="run 'trackwalker setup'"), open_database(blocks):
        pass


def test_a_killed_reader_leaves_no_process_and_the_next_one_removes_its_view(blocks: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from trackwalker.telemetry.store import open_database\n"
        "with open_database(Path(sys.argv[1])) as t: print('open', flush=True); time.sleep(60)"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, str(blocks)], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"open\n"
        children = Path(f"/proc/{reader.pid}/task/{reader.pid}/children").read_text().split()
        assert len(children) == 1
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    [left] = Path(tempfile.gettempdir()).glob(f"trackwalker-view-{os.getuid()}-{reader.pid}-*")
    deadline = time.monotonic() + 3
    while (stat := read_stat(int(children[0]))) is not None and stat.state not in "ZX":
        assert time.monotonic() < deadline, "Prometheus outlived its reader"
        time.sleep(0.02)
    with open_database(blocks), open_database(blocks) as second:
        assert not left.exists()
        assert len(views()) == 2, "but never the view of a living reader"
        assert second.metrics()
    assert views() == set()


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample jobs are not beside this checkout")
@pytest.mark.parametrize("name", ["rdma-phased", "collective-hang", "healthy", "heartbeat-false-positive"])
def test_every_metric_quoted_in_a_sample_answer_is_found_again(prometheus: Path, name: str) -> None:
    [folder] = (SAMPLES / name / "outputs").glob("*/prometheus")
    before = fingerprint(folder)
    answer = json.loads((SAMPLES / name / "ANSWER.json").read_text())
    quoted = [e for e in answer["evidence"] if e["kind"] == "metric" and e.get("values")]
    assert quoted
    with open_database(folder) as t:
        assert t.damage == []
        first, last = t.range()
        assert 2000 < last - first < 10_000
        for evidence in quoted:
            label = evidence["source"].partition("by (")[2].partition(")")[0]
            if label in ("host", "instance"):
                assert t.by_host(evidence["source"], last) == pytest.approx(evidence["values"], rel=1e-3, abs=6e-4), (
                    evidence
                )
            elif label:
                assert t.by(evidence["source"], last, label) == pytest.approx(evidence["values"], rel=1e-3, abs=6e-4), (
                    evidence
                )
        if name == "rdma-phased":
            query = "sum by (host) (increase(hw_rdma_tx_retx_pkts_total[20m] @ 1771959244))"
            found = t.by_host(query, last)
            assert found.pop("chi2834") == pytest.approx(1311018.3, abs=0.1)
            assert set(found.values()) == {0.0}
    assert fingerprint(folder) == before
