"""Ranks against each other, on jobs whose every picosecond is known."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trace_maker import US, Recipe, Timeline, simulate, without_stragglers, write_one, write_ranks

from conftest import ROOT
from trackwalker.perf.formats.model import PS_PER_S, Step
from trackwalker.perf.formats.reader import read_trace
from trackwalker.perf.formats.wire import fields, text
from trackwalker.perf.ranks.calls import Calls
from trackwalker.perf.ranks.compare import Across, compare
from trackwalker.perf.ranks.gather import RankTable, gather, reduce_file
from trackwalker.perf.ranks.perfetto import write_perfetto

DATA = ROOT.parent / "shared" / "data"
Made = Callable[[Recipe], tuple[Timeline, list[RankTable], Across]]


@pytest.fixture
def by_rank(tmp_path: Path) -> Made:
    """Write a job as one file for each rank, gather it and compare the ranks."""

    def make(recipe: Recipe) -> tuple[Timeline, list[RankTable], Across]:
        timeline, paths = write_ranks(recipe, tmp_path)
        tables, gaps = gather(paths)
        assert not gaps
        return timeline, tables, compare(tables)

    return make


def saved(recipe: Recipe) -> int:
    """What the job would save with all ranks alike."""
    return simulate(recipe).span - without_stragglers(recipe).span


def test_buckets_of_every_rank_are_those_that_were_played(tmp_path: Path) -> None:
    timeline = write_one(Recipe(gpus=4, slow={1: 1.2}, late_us={2: 30}, jitter=0.1), tmp_path / "host0.xplane.pb")
    for rank, table in enumerate(reduce_file(tmp_path / "host0.xplane.pb")):
        truth = timeline.truth(rank)
        total = sum(table.buckets[1:], table.buckets[0])
        copy = timeline.recipe.copy_us * US  # before the first step begins
        assert total.compute == truth["compute"]
        assert total.exposed_comm == truth["exposed_comm"]
        assert total.overlapped_comm == truth["overlapped_comm"]
        assert total.copy == truth["copy"] - copy
        assert total.host_gap == truth["host_gap"]
        assert total.idle == truth["idle"]
        assert total.total == truth["span"] - copy


def test_the_rank_with_slow_kernels_is_named_with_what_the_job_loses(by_rank: Made) -> None:
    recipe = Recipe(slow={5: 1.3}, clock_error_us={1: 700, 5: -3000})
    _, _, across = by_rank(recipe)
    (straggler,) = across.stragglers
    assert straggler.rank == 5
    assert straggler.last == straggler.of == 27
    assert straggler.cause == "compute"
    assert straggler.slower == pytest.approx(1.3)
    assert straggler.gain_ps == saved(recipe)
    assert "rank 5" in straggler.says
    assert "1.30 times" in straggler.says
    assert across.played_ps - across.even_ps == saved(recipe)


def test_the_rank_whose_host_is_late_is_told_from_one_with_slow_kernels(by_rank: Made) -> None:
    recipe = Recipe(late_us={2: 400}, group=2, steps=6, clock_error_us={2: -9000})
    _, _, across = by_rank(recipe)
    (straggler,) = across.stragglers
    assert (straggler.rank, straggler.cause) == (2, "host")
    assert straggler.gain_ps == saved(recipe)
    assert straggler.step_ps == 400 * US


def test_nobody_is_named_where_the_ranks_differ_by_chance(by_rank: Made) -> None:
    _, _, across = by_rank(Recipe(jitter=0.2, steps=5))
    assert across.stragglers == []
    assert 0 < across.arrivals.last.sum(axis=1).max() < 30, "somebody is last nearly every time, but not the same one"


def test_two_slow_ranks_that_hide_each_other_are_both_named(by_rank: Made) -> None:
    recipe = Recipe(slow={1: 1.3, 6: 1.3})
    _, _, across = by_rank(recipe)
    assert {s.rank: s.together for s in across.stragglers} == {1: [6], 6: [1]}
    assert {s.gain_ps for s in across.stragglers} == {saved(recipe)}
    assert all(s.slower == pytest.approx(1.3) and s.cause == "compute" for s in across.stragglers)
    assert "fixed as well" in across.stragglers[0].says


def test_clocks_are_set_by_collectives_even_when_they_run_at_different_speeds(by_rank: Made) -> None:
    recipe = Recipe(
        steps=20, layers=2, kernels=3, kernel_us=400, drift_ppm={3: 50.0, 4: -20.0}, clock_error_us={3: 500, 6: -20_000}
    )
    _, _, across = by_rank(recipe)
    assert across.alignment.residual_ps is not None
    assert across.alignment.residual_ps < US / 10
    assert across.alignment.drift * 1e6 == pytest.approx([0, 0, 0, -50, 20, 0, 0, 0], abs=0.5)
    apart = across.end.max(axis=0) - across.end.min(axis=0)
    assert apart.max() < US, "all leave together"


def test_a_rank_that_was_traced_a_step_longer_is_matched_by_time(by_rank: Made, tmp_path: Path) -> None:
    recipe = Recipe(gpus=4, steps=5, slow={3: 1.4}, markers=False)
    _, tables, _ = by_rank(recipe)
    cut = tables[2]
    begin = cut.steps[1].start
    tables[2] = replace(
        cut, steps=cut.steps[1:], buckets=cut.buckets[1:], calls=cut.calls.take(cut.calls.start >= begin)
    )
    tables[2].calls.step = tables[2].calls.step - 1
    across = compare(tables)
    assert [s.rank for s in across.stragglers] == [3]
    assert (across.meetings.present.sum(axis=1) == [45, 45, 36, 45]).all()
    assert across.gaps == []


def test_bandwidth_is_that_of_the_transfer_and_waiting_is_apart(by_rank: Made) -> None:
    recipe = Recipe(slow={0: 1.5}, group=4, bytes=1 << 26)
    _, _, across = by_rank(recipe)
    row = next(c for c in across.collectives if c.kind == "reduce-scatter")
    assert (row.members, row.bytes, row.count) == (4, 1 << 26, 1.0)
    assert row.transfer_ps == recipe.transfer_us * US
    assert row.algbw_gb_s == pytest.approx((1 << 26) / (recipe.transfer_us * 1e-6) / 1e9)
    assert row.busbw_gb_s == pytest.approx(row.algbw_gb_s * 3 / 4)
    assert row.wait_ps > 0
    whole = sum(c.exposed_ps for c in across.collectives)
    mean = np.mean([simulate(recipe).truth(rank)["exposed_comm"] for rank in range(8)]) / recipe.steps
    assert whole == pytest.approx(mean, rel=1e-6)


def test_ranks_that_run_another_program_and_ranks_that_are_missing_are_told(tmp_path: Path) -> None:
    _, paths = write_ranks(Recipe(gpus=4), tmp_path)
    (tmp_path / "odd").mkdir()
    _, odd = write_ranks(Recipe(gpus=4, layers=5), tmp_path / "odd")
    tables, _ = gather([paths[0], paths[1], odd[2]])
    across = compare(tables)
    told = " ".join(gap.why for gap in across.gaps)
    assert "host0.proc2" in told
    assert "joins 4 devices, and 3 were traced" in told


def test_one_rank_alone_and_a_damaged_file_give_what_there_is(tmp_path: Path) -> None:
    _, paths = write_ranks(Recipe(gpus=2), tmp_path)
    paths[1].write_bytes(b"")
    tables, gaps = gather(paths)
    assert [gap.what for gap in gaps] == ["the ranks of host0.proc1.xplane.pb"]
    across = compare(tables)
    assert across.stragglers == []
    assert across.arrivals.decided.sum(axis=1).tolist() == [0]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_few_collectives_and_groups_without_a_second_rank_are_compared_all_the_same(by_rank: Made) -> None:
    recipe = Recipe(gpus=4, steps=3, layers=2, kernels=2, group=2, slow={1: 1.5}, clock_error_us={1: 100_000})
    _, tables, whole = by_rank(recipe)
    assert whole.collectives
    gathers = [place for place, op in enumerate(tables[0].ops) if op.startswith("all-gather")]
    tables[1].calls = tables[1].calls.take(tables[1].calls.step != 1)
    tables[3].calls = tables[3].calls.take(~np.isin(tables[3].calls.op, gathers))
    for left in (tables, tables[:2], [tables[0], tables[2]], [*tables[:1], *tables[3:]]):
        found = compare(left)
        assert len(found.arrivals.last) == len(left)
        assert all(row.wait_ps >= 0 and row.transfer_ps < PS_PER_S for row in found.collectives)
    for table in tables:
        table.calls = table.calls.take(slice(0, 1))
    assert len(compare(tables).collectives) == 1


def test_of_a_trace_with_very_many_steps_the_last_are_compared_and_nothing_else_changes(
    by_rank: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(gpus=4, steps=12, layers=2, kernels=3, slow={2: 1.4}, jitter=0.05)
    _, every, whole = by_rank(recipe)
    monkeypatch.setattr("trackwalker.perf.ranks.gather.MOST_CALLS", 33)  # five collectives a step
    _, few, part = by_rank(recipe)
    assert [len(table.calls) for table in few] == [30] * 4
    assert [table.steps for table in few] == [table.steps for table in every]
    assert [table.buckets for table in few] == [table.buckets for table in every]
    assert [s.rank for s in part.stragglers] == [s.rank for s in whole.stragglers] == [2]
    assert part.stragglers[0].step_ps == pytest.approx(whole.stragglers[0].step_ps, rel=0.1)
    assert sorted((c.op, c.count) for c in part.collectives) == sorted((c.op, c.count) for c in whole.collectives)
    monkeypatch.setattr("trackwalker.perf.ranks.gather.MOST_CALLS", 1)
    assert [len(table.calls) for table in by_rank(recipe)[1]] == [10] * 4, "two steps at least"


def test_what_travels_is_small(tmp_path: Path) -> None:
    write_one(Recipe(gpus=2, steps=60, layers=8), tmp_path / "host0.xplane.pb")
    tables = reduce_file(tmp_path / "host0.xplane.pb")
    size = (tmp_path / "host0.xplane.pb").stat().st_size
    assert len(pickle.dumps(tables)) < size / 8
    again = pickle.loads(pickle.dumps(tables))  # noqa: S301 - our own bytes
    assert compare(again).played_ps == compare(tables).played_ps


def test_the_merged_trace_opens_with_balanced_bars_on_one_clock(by_rank: Made, tmp_path: Path) -> None:
    recipe = Recipe(gpus=3, steps=2, layers=1, clock_error_us={1: 5000})
    _, tables, across = by_rank(recipe)
    trace = read_trace(Path(tables[0].path))
    out = tmp_path / "job.perfetto-trace"
    write_perfetto(out, tables, across, {0: (trace, trace.devices[0])})
    names: dict[int, str] = {}
    tracks: dict[int, str] = {}
    bars: dict[int, list[tuple[int, int, str]]] = {}
    flows: dict[int, list[int]] = {}
    open_bars: dict[int, tuple[int, str]] = {}
    for _, raw in fields(memoryview(out.read_bytes())):
        assert isinstance(raw, memoryview)
        packet = dict(fields(raw))
        if 12 in packet:
            for _, row in fields(packet[12]):  # type: ignore[arg-type]
                pair = dict(fields(row))  # type: ignore[arg-type]
                names[pair[1]] = text(pair[2])  # type: ignore[index]
        if 60 in packet:
            descriptor = dict(fields(packet[60]))  # type: ignore[arg-type]
            tracks[descriptor[1]] = text(descriptor.get(2, ""))  # type: ignore[index]
        if 11 in packet:
            event = dict(fields(packet[11]))  # type: ignore[arg-type]
            track, time = event[11], packet[8]
            assert track in tracks
            if event[9] == 1:
                assert track not in open_bars, "bars of one track do not overlap"
                open_bars[track] = time, names[event[10]]  # type: ignore[assignment,index]
                flows.setdefault(event.get(47, 0), []).append(track)  # type: ignore[arg-type]
            else:
                begin, name = open_bars.pop(track)  # type: ignore[arg-type]
                bars.setdefault(track, []).append((begin, time, name))  # type: ignore[arg-type,index]
    assert not open_bars
    kinds = [title for track, title in tracks.items() if track in bars]
    assert kinds.count("steps") == 3
    assert kinds.count("collectives") == 3
    assert "Stream #14(Compute)" in kinds
    del flows[0]
    assert all(len(joined) == 3 for joined in flows.values()), "arrows join the three ranks of each collective"
    collectives = [rows for track, rows in bars.items() if tracks[track] == "collectives"]
    for rows in zip(*collectives, strict=True):
        assert len({name for _, _, name in rows}) == 1
        assert max(end for _, end, _ in rows) - min(end for _, end, _ in rows) <= 1


@pytest.mark.skipif(not (DATA / "xplane").is_dir(), reason="the synthetic 8-GPU trace is not on this machine")
def test_the_straggler_of_the_shared_trace_is_found_with_its_truth() -> None:
    truth = json.loads((DATA / "xplane" / "synthetic_8gpu_straggler5.truth.json").read_text())["truth"]
    tables = reduce_file(DATA / "xplane" / "synthetic_8gpu_straggler5.xplane.pb")
    for name, row in truth.items():
        total = sum(tables[int(name[-1])].buckets, start=type(tables[0].buckets[0])())
        assert total.compute == row["compute_us"] * US
        assert total.exposed_comm == row["exposed_comm_us"] * US
        assert total.exposed_comm + total.overlapped_comm == row["total_comm_us"] * US
    (straggler,) = compare(tables).stragglers
    assert straggler.rank == 5
    assert straggler.gain_ps == (truth["GPU:5"]["compute_us"] - truth["GPU:0"]["compute_us"]) * US


def production(name: str, stage: int) -> list[RankTable]:
    """One pipeline stage of a recorded production job, its data-parallel replicas as ranks."""
    pq = pytest.importorskip("pyarrow.parquet")
    ops = ["embedding-grads-all-reduce", "grads-reduce-scatter", "params-all-gather"]
    wanted = [("stage", "=", stage), ("optype", "in", ops)]
    columns = pq.read_table(DATA / "straggler" / f"trace-{name}.parquet", filters=wanted).to_pydict()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    numbers = sorted({row["step"] for row in rows})
    tables = []
    for replica in sorted({row["dp_rank"] for row in rows}):
        mine = [row for row in rows if row["dp_rank"] == replica]
        places = {number: i * 1000 for i, number in enumerate(numbers)}  # seconds: steps were recorded from zero each
        found = sorted(
            (
                places[row["step"]] + row["start_ts"],
                row["duration"],
                ops.index(row["optype"]),
                numbers.index(row["step"]),
            )
            for row in mine
        )
        begin, length, op, step = (np.array(column) for column in zip(*found, strict=True))
        calls = Calls.of(
            len(found), start=np.rint(begin * PS_PER_S), end=np.rint((begin + length) * PS_PER_S), op=op, step=step,
            nth=np.zeros(len(found)), exposed=np.rint(length * PS_PER_S),
        )  # fmt: skip
        steps = [Step(n, places[n] * PS_PER_S, (places[n] + 1000) * PS_PER_S) for n in numbers]
        tables.append(RankTable("job.xplane.pb", replica, "gpu", 0, steps, [], ops, calls, []))
    return tables


needs_production = pytest.mark.skipif(
    not (DATA / "straggler").is_dir(), reason="the recorded production traces are not on this machine"
)


@needs_production
def test_the_injected_slow_worker_of_a_production_job_is_named_with_the_published_gain() -> None:
    published = json.loads((DATA / "straggler" / "mw-AR.json").read_text())
    across = compare(production("AR", stage=1))
    (straggler,) = across.stragglers
    assert straggler.rank == 0
    gain = straggler.step_ps / PS_PER_S
    assert gain == pytest.approx(published["tori"] - published["trem"], rel=0.1)


@needs_production
def test_a_production_job_with_uneven_sequences_names_no_rank() -> None:
    published = json.loads((DATA / "straggler" / "mw-SE.json").read_text())
    assert published["Mw"] < 0.05, "mending the slowest workers gains nearly nothing: another one is last each time"
    across = compare(production("SE", stage=1))
    assert across.stragglers == []
    assert across.played_ps > across.even_ps > 0
    last, decided = (each.sum(axis=1) for each in (across.arrivals.last, across.arrivals.decided))
    assert last.max() < 0.3 * decided.max()
