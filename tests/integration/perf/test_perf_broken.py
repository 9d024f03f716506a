"""`trackwalker perf` on what is damaged, incomplete or does not belong together: a partial report that says so."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trace_maker import Recipe, write_one, write_ranks
from triage_logs import ending, header, steps
from typer.testing import CliRunner

from trackwalker.cli.app import app
from trackwalker.perf.formats.wire import fields
from trackwalker.perf.ranks.perfetto import block

SMALL = Recipe(gpus=4, steps=4, layers=2, kernels=3)
SIZES = {
    "base_emb_dim": 1024, "base_mlp_dim": 4096, "base_num_decoder_layers": 2, "base_num_query_heads": 16,
    "base_num_kv_heads": 16, "head_dim": 64, "vocab_size": 32000, "decoder_block": "llama2",
    "per_device_batch_size": 10, "max_target_length": 4096, "gradient_accumulation_steps": 1,
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the traces of a job lie; its log is whole."""
    job = tmp_path / "71-JAX-toy"
    made = job / "tensorboard" / "plugins" / "profile" / "2023_11_14_22_13_20"
    made.mkdir(parents=True)
    log = tmp_path / "71-JAX-toy.log"
    log.write_text(header(2, steps=40, **SIZES) + steps(39, 2, seconds=10.0) + ending(0))
    (job / "log").symlink_to(Path("..") / log.name)
    return made


def report(folder: Path) -> dict[str, Any]:
    """The report as a program and as people get it; each with exit code 0, and every gap with a reason and a remedy."""
    job = folder.parents[3]
    said = []
    for form in (["--json"], []):
        result = CliRunner().invoke(app, ["perf", str(job), *form], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert "Traceback" not in result.output
        said.append(result.stdout)
    found: dict[str, Any] = json.loads(said[0])
    for gap in found["missing"]:
        assert all(gap[name] for name in ("what", "why", "do"))
        assert "Error:" not in gap["why"], "a defect of ours, not of the file"
        assert gap["what"] in " ".join(said[1].split())
    assert found["throughput"]["seconds"]["mean"] == pytest.approx(10.0), "what the log tells stands in any case"
    return found


def gaps(found: dict[str, Any]) -> str:
    return "\n".join(f"{gap['what']}: {gap['why']}; {gap['do']}" for gap in found["missing"])


def test_a_whole_job_lacks_nothing_of_its_traces_and_its_model(folder: Path) -> None:
    write_ranks(SMALL, folder)
    found = report(folder)
    assert found["flops"] is not None
    assert {gap["what"] for gap in found["missing"]} <= {"GPU-hours"}


@pytest.mark.parametrize(("share", "devices"), [(0.0, 0), (0.001, 0), (0.2, 0), (0.5, 1), (0.8, 2), (0.999, 2)])
def test_a_truncated_trace_gives_its_whole_devices_and_says_where_it_breaks_off(
    folder: Path, share: float, devices: int
) -> None:
    path = folder / "host0.xplane.pb"
    write_one(replace(SMALL, gpus=2), path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    found = report(folder)
    assert len(found["trace"]["devices"] if found["trace"] else []) == devices
    assert "breaks off inside the plane" in gaps(found) or (share == 0 and "the trace is empty" in gaps(found))
    assert "copy" in gaps(found)


def test_a_truncated_gzip_gives_what_was_unpacked(folder: Path) -> None:
    path = folder / "host0.xplane.pb"
    write_one(replace(SMALL, gpus=2), path)
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name("host0.xplane.pb.gz").write_bytes(packed[: len(packed) // 2])
    found = report(folder)
    assert found["trace"]["devices"]
    assert "host0.xplane.pb.gz is cut or damaged" in gaps(found)


def without_devices(path: Path) -> None:
    kept = [(number, bytes(v)) for number, v in fields(memoryview(path.read_bytes())) if isinstance(v, memoryview)]
    path.write_bytes(b"".join(block(number, body) for number, body in kept if b"/device:GPU:" not in body[:40]))


def test_a_trace_without_a_device_plane_is_named_alone_and_among_others(folder: Path) -> None:
    _, paths = write_ranks(SMALL, folder)
    without_devices(paths[2])
    found = report(folder)
    assert len(found["trace"]["devices"]) == 3
    assert "host0.proc2.xplane.pb has no device plane" in gaps(found)
    assert "joins 4 devices, and 3 were traced" in gaps(found)
    for path in (paths[0], paths[1], paths[3]):
        path.unlink()
    alone = report(folder)
    assert alone["trace"] is None
    assert "where the step goes: no whole step" in gaps(alone)
    assert "with device tracing on" in gaps(alone)


def test_the_file_of_a_rank_that_is_missing_is_told_by_the_program(folder: Path) -> None:
    _, paths = write_ranks(replace(SMALL, slow={1: 1.5}), folder)
    paths[3].unlink()
    found = report(folder)
    assert found["trace"]["stragglers"][0]["device"] == "host0.proc1 gpu 0"
    assert "some of the ranks: all-gather-start.0 joins 4 devices, and 3 were traced; trace every" in gaps(found)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"layers": 3}, "host0.proc2 gpu 0 ran other collectives than most ranks: all-gather-start.2"),
        ({"kernels": 9}, "of its kernels' time is in kernels that host0.proc0.xplane.pb does not run"),
        ({"steps": 9}, "host0.proc2 gpu 0 has 9 whole steps in its trace, and most ranks 4"),
        ({"steps": 9, "markers": False}, "host0.proc2 gpu 0 has 9 whole steps in its trace, and most ranks 4"),
    ],
    ids=["other-collectives", "other-kernels", "more-steps", "more-steps-and-no-markers"],
)
def test_a_rank_that_does_not_belong_to_the_others_is_named_and_nobody_is_blamed(
    folder: Path, tmp_path: Path, other: dict[str, Any], says: str
) -> None:
    _, paths = write_ranks(SMALL, folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    _, odd = write_ranks(replace(SMALL, **other), elsewhere)
    odd[2].replace(paths[2])
    found = report(folder)
    assert len(found["trace"]["devices"]) == 4
    assert says in gaps(found)
    assert not found["trace"]["stragglers"]


def test_without_a_config_the_trace_and_the_log_stand_and_the_model_is_missing(folder: Path) -> None:
    write_ranks(SMALL, folder)
    log = folder.parents[3] / "log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "Config param" not in line))
    found = report(folder)
    assert found["trace"]["steps"] == 4
    assert found["flops"] is None
    assert "model FLOPs: the model's sizes are not known" in gaps(found)
    assert "keep MaxText's 'Config param' lines" in gaps(found)


def flipped(raw: bytes, chance: random.Random) -> bytes:
    out = bytearray(raw)
    for _ in range(chance.choice([1, 5, 50])):
        out[chance.randrange(len(out))] = chance.randrange(256)
    return bytes(out)


def torn(raw: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(raw))
    return raw[:begin] + raw[begin + chance.randrange(1, 4000) :]


@pytest.mark.parametrize("damage", [flipped, torn])
def test_no_damage_to_one_file_costs_the_ranks_beside_it(
    folder: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    _, paths = write_ranks(replace(SMALL, gpus=2), folder)
    whole = paths[1].read_bytes()
    for seed in range(8):
        paths[1].write_bytes(damage(whole, random.Random(seed)))
        result = CliRunner().invoke(app, ["perf", str(folder.parents[3]), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, seed
        devices = json.loads(result.stdout)["trace"]["devices"]
        assert "host0.proc0 gpu 0" in [row["device"] for row in devices], seed
