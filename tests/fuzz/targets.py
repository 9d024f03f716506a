"""What reads other people's bytes, each with right inputs: whatever is done to them, only our own errors come out."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tb_writer import event, record, simple

from conftest import ROOT
from trackwalker.errors import TrackwalkerError
from trackwalker.job.journal import read as read_journal
from trackwalker.job.run import load_run
from trackwalker.job.tfevents import EventFile
from trackwalker.lab.bundle import SCHEMA, add
from trackwalker.logs.formats.flight_recorder import behind, load
from trackwalker.logs.formats.tfevents import read_events
from trackwalker.observe.prometheus import find_prometheus
from trackwalker.observe.tsdb import read_block
from trackwalker.perf.analysis.detail import read_detail, window_of
from trackwalker.perf.hlo.programs import program_part, read_program
from trackwalker.perf.ranks.gather import gather
from trackwalker.telemetry.blocks import BlockWriter, labels
from trackwalker.telemetry.direct.index import BlockIndex
from trackwalker.telemetry.direct.unxor import DamagedError, Place, counts_of, decode
from trackwalker.telemetry.probe import count_chunks
from trackwalker.telemetry.store import open_database
from trackwalker.telemetry.wal import salvage, torn_at_end
from trackwalker.telemetry.xor import encode_chunks

PERF = ROOT / "tests" / "data" / "perf"


@dataclass(frozen=True)
class Target:
    """One reader: `feed` raises what it must not, `seeds` makes right inputs, `pack` is the container around them."""

    feed: Callable[[bytes, Path], None]
    seeds: Callable[[Path], list[bytes]]
    pack: Callable[[bytes], bytes] = field(default=lambda data: data)


def _put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _trace(name: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        path = _put(folder, name, data)
        gather([path])
        for look in (window_of, read_detail):
            with suppress(TrackwalkerError):
                look(path)

    return feed


def _program(name: str) -> Callable[[bytes, Path], None]:
    def feed(data: bytes, folder: Path) -> None:
        with suppress(TrackwalkerError):
            program_part(read_program(_put(folder, name, data)))

    return feed


def _tfevents(data: bytes, folder: Path) -> None:
    path = _put(folder, "events.out.tfevents.1.box", data)
    file = EventFile(path)
    for _ in range(20):
        file.read()
    read_events([path])


def _flight(data: bytes, folder: Path) -> None:
    with suppress(TrackwalkerError):
        value = load(data)
        behind({0: value, 1: value, 2: {}})


def _run_json(data: bytes, folder: Path) -> None:
    with suppress(TrackwalkerError):
        load_run(_put(folder, "run.json", data))


def _journal(data: bytes, folder: Path) -> None:
    read_journal(_put(folder, "events.jsonl", data))


def _bundle(data: bytes, folder: Path) -> None:
    with suppress(TrackwalkerError):
        add(_put(folder, "b.tar.gz", data), folder / "cases")


def _wal(data: bytes, folder: Path) -> None:
    torn_at_end(data[:32768])
    for newest in (False, True):
        salvage(_put(folder, "00000000", data), newest)


def _meta(data: bytes, folder: Path) -> None:
    with suppress(ValueError):  # its documented answer to a bad one
        read_block(_put(folder, f"{_BLOCK}/meta.json", data).parent)


def _chunks(data: bytes, folder: Path) -> None:
    count_chunks(_put(folder, "chunks/000001", data).parent)


def _chunk_data(data: bytes, folder: Path) -> None:
    """Two chunks side by side, below the checksum that keeps most damage out."""
    raw = np.frombuffer(data, np.uint8)
    half = len(raw) // 2
    with suppress(DamagedError):
        place = Place(raw, np.array([0, half]), np.array([half, len(raw) - half]))
        decode(
            [place], np.zeros(int(counts_of(raw, place.starts).sum())), np.cumsum([0, counts_of(raw, place.starts)[0]])
        )


def _index(data: bytes, folder: Path) -> None:
    (folder / "chunks").mkdir(exist_ok=True)
    with suppress(DamagedError):
        block = BlockIndex(_put(folder, "index", data).parent)
        for name in block.metrics:
            block.entries(name)


def _make_chunks(folder: Path) -> list[bytes]:
    times = 1_700_000_000_000 + 1000 * np.tile(np.arange(60), (2, 1)) + np.array([[0], [7]])
    return [b"".join(encode_chunks(times, np.random.default_rng(4).integers(0, 9, times.shape) / 8.0))]


def _database(data: bytes, folder: Path) -> None:
    """A whole database behind a real Prometheus; the input is an archive of its files."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                if member.isreg() and ".." not in member.name and not member.name.startswith("/"):
                    held = tar.extractfile(member)
                    _put(folder / "prometheus", member.name, held.read() if held else b"")
    except (tarfile.TarError, OSError, EOFError, ValueError, UnicodeError):
        return  # the archive is ours, not the reader's
    with suppress(TrackwalkerError), open_database(folder / "prometheus") as telemetry:
        for name in sorted(telemetry.metrics())[:5]:
            telemetry.raw(f'{{__name__="{name}"}}', *telemetry.range())


_BLOCK = "01HZZZZZZZZZZZZZZZZZZZZZZZ"


def _make_database(folder: Path) -> Path:
    made = Path(tempfile.mkdtemp(dir=folder))
    writer = BlockWriter(made, seed=0)
    times = np.arange(1_700_000_000_000, 1_700_000_060_000, 1000, dtype=np.int64)
    for host in ("a", "b", "c"):
        writer.add([labels("up", host=host)], times, np.linspace(0.0, 9.0, len(times))[None, :])
    writer.close()
    return made


def _make_wal(folder: Path) -> list[bytes]:
    from unit.telemetry.test_telemetry_wal import encode  # the reference writer of its own tests

    rng = random.Random(1)
    return [encode([rng.randbytes(rng.randrange(1, 40_000)) for _ in range(6)]), encode([b"x" * 50] * 40)]


def _tar_of(root: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            tar.add(path, str(path.relative_to(root)))
    return out.getvalue()


def _make_bundle(folder: Path) -> list[bytes]:
    texts = {
        "bundle.json": json.dumps({"schema": SCHEMA, "job": "77-JAX-toy", "samples": 0, "secrets_hidden": 0}),
        "truth.json": json.dumps({"outcome": "healthy", "causes": []}),
        "verdict.json": "{}",
        "outputs/77-JAX-toy.log": "JOB_ID=77\n" * 40,
        "outputs/77-JAX-toy/events.jsonl": '{"v":1}\n',
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("outputs/77-JAX-toy/log")
        link.type, link.linkname = tarfile.SYMTYPE, "../77-JAX-toy.log"
        tar.addfile(link)
    return [out.getvalue()]


def _make_run(folder: Path) -> list[bytes]:
    made = {
        "schema": "trackwalker.run/1", "id": "7", "name": "n", "model": "m", "scheduler": "slurm", "trainer": "tiny",
        "created": 1.5, "argv": ["a"], "command": ["b"], "config": {"steps": {"value": 3, "source": "x"}},
        "ranks": [{"rank": 0, "host": "h", "node": "n"}], "workspace": "/w", "attempts": [{"class": "node"}],
    }  # fmt: skip
    return [json.dumps(made).encode()]


def _make_flight(folder: Path) -> list[bytes]:
    entry = {"process_group": ["0", "d"], "collective_seq_id": 3, "state": "scheduled", "is_p2p": False}
    dump = {"version": "2", "pg_config": {"0": {"desc": "d", "ranks": "[0, 1]"}}, "entries": [entry] * 4}
    return [pickle.dumps(dump, protocol) for protocol in (2, 4, 5)] + [json.dumps(dump).encode()]


def _make_events(folder: Path) -> list[bytes]:
    return [b"".join(record(event(n, 5.0 + n, simple("perf/step_time_seconds", 1.5))) for n in range(20))]


def _unzipped(*names: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [gzip.decompress((PERF / name).read_bytes()) for name in names]


def _small_kineto(folder: Path) -> list[bytes]:
    from kineto_maker import TorchJob, text

    return [text(TorchJob(), 0)]


def _journal_seed(folder: Path) -> list[bytes]:
    return [
        b"".join(
            json.dumps({"v": 1, "t": n, "kind": "rank-exit", "data": {"code": n}}).encode() + b"\n" for n in range(9)
        )
    ]


def _hlo_proto(folder: Path) -> list[bytes]:
    from trackwalker.perf.formats.reader import open_trace

    path = PERF / "h200_fresh" / "copy.xplane.pb.gz"
    return [bytes(raw) for raw in open_trace(path).trace.programs.values()][:3]


TARGETS: dict[str, Target] = {
    "xplane": Target(_trace("a.xplane.pb"), _unzipped("h200_fresh/copy.xplane.pb.gz", "h200_fresh/host.xplane.pb.gz")),
    "xplane-gz": Target(_trace("a.xplane.pb.gz"), lambda f: [(PERF / "h200_fresh/copy.xplane.pb.gz").read_bytes()]),
    "kineto": Target(_trace("a.pt.trace.json"), _small_kineto),
    "hlo-text": Target(_program("a.hlo.txt"), lambda f: [(PERF / "train_step.hlo.txt").read_bytes()]),
    "hlo-proto": Target(_program("a.hlo.pb"), _hlo_proto),
    "tfevents": Target(_tfevents, _make_events),
    "flight": Target(_flight, _make_flight),
    "run-json": Target(_run_json, _make_run),
    "journal": Target(_journal, _journal_seed),
    "bundle": Target(_bundle, _make_bundle, pack=lambda data: gzip.compress(data, 1)),
    "wal": Target(_wal, _make_wal),
    "block-meta": Target(_meta, lambda f: [p.read_bytes() for p in _make_database(f).glob("*/meta.json")]),
    "block-index": Target(_index, lambda f: [p.read_bytes() for p in _make_database(f).glob("*/index")]),
    "xor-chunks": Target(_chunk_data, _make_chunks),
    "block-chunks": Target(_chunks, lambda f: [p.read_bytes() for p in _make_database(f).glob("*/chunks/*")]),
    **({"database": Target(_database, lambda f: [_tar_of(_make_database(f))])} if find_prometheus() else {}),
}
