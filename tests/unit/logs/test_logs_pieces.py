"""Logs are read in pieces; what is found depends on none of them; a watcher that reads on finds the record's steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import HEADER, step_line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trackwalker.logs.scanning import chunk, scan
from trackwalker.logs.scanning.index import LogIndex, index_logs
from trackwalker.watch.detect.logtail import LogTail

LINES = [
    *(f"{rank:02d}: {step_line(step)}\n" for step in range(3) for rank in (0, 1, 11)),
    "03: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "=== GIT SUMMARY BEGIN ===\nSegmentation fault\n=== GIT SUMMARY END ===\n",
    "5: n1:1:1 [0] NCCL WARN something odd\n",
    '0: {"text": "' + "x" * 9000 + ' CUDA out of memory"}\n',
    "\r" + "1/9 [00:01<00:02, 1.5s/it, loss=2.1]\r" * 300 + "Segmentation fault (core dumped)\n",
    "2: NODE_EXIT host=node003 exit=137\n",
    "no newline",
    "\n",
    "\xff\x00 junk \x1b[31m",
    "y" * 5000,
]


def plain(index: LogIndex) -> dict[str, Any]:
    """Everything of an index that can be compared."""
    steps = {name: getattr(index.steps, name).tolist() for name in ("step", "line")}
    steps |= {name: [repr(v) for v in getattr(index.steps, name).tolist()] for name in ("seconds", "tgs", "loss")}
    rest = {k: v for k, v in vars(index).items() if k not in ("facts", "hits")}
    rest["facts"] = {k: v for k, v in vars(index.facts).items() if k != "steps"}
    hits = [{**vars(h), "signature": h.signature.id} for h in index.hits]
    return {**rest, "hits": hits, "steps": steps, "last": index.steps.last_by_rank, "dialect": index.steps.dialect}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=60), size=st.sampled_from([1 << 12, 1 << 14, 1 << 15])
)
def test_the_size_of_a_piece_changes_nothing_that_is_found(tmp_path: Path, lines: list[str], size: int) -> None:
    path = tmp_path / "1-JAX-x.log"
    path.write_bytes((HEADER + "".join(lines)).encode("utf-8", "surrogateescape"))
    whole = plain(index_logs(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "CHUNK", size)
        patch.setattr(scan, "CHUNK", size)
        pieces = plain(index_logs(path))
    # Whose steps are read is settled by the first piece that has some, so steps may be another rank's.
    for name in ("hits", "harmless", "facts", "lines", "size", "skipped", "silent_s"):
        assert pieces[name] == whole[name], name


def told(index: LogIndex) -> list[tuple[int, int, str]]:
    """Rank, step and duration of every step line, in the order of the log."""
    tables = {index.steps.rank or 0: index.steps, **index.steps.others}
    rows = [
        (line, rank, step, repr(seconds))
        for rank, own in tables.items()
        for line, step, seconds in zip(own.line.tolist(), own.step.tolist(), own.seconds.tolist(), strict=True)
    ]
    return [(rank, step, seconds) for _, rank, step, seconds in sorted(rows)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from([line for line in LINES if line.endswith("\n")]), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 200_000), max_size=8),
)
def test_a_watcher_reads_in_any_growth_of_a_log_the_steps_of_the_record(
    tmp_path: Path, lines: list[str], cuts: list[int]
) -> None:
    path = tmp_path / "1-JAX-x.log"
    path.unlink(missing_ok=True)
    data = (HEADER + f"00: {step_line(0)}\n" + "".join(lines)).encode("utf-8", "surrogateescape")
    tail, seen = LogTail(path), list[tuple[int, int, str]]()
    for end in sorted({c % len(data) for c in cuts if c % len(data)} | {len(data)}):
        with path.open("ab") as f:
            f.write(data[f.tell() : end])
        seen += [(r["rank"], r["step"], repr(r["seconds"])) for r in tail.new(2e9)]
    assert seen == told(index_logs(path, every_rank=True))


def test_an_emptied_log_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"0: {step_line(step)}\n" for step in range(5)) + "==== JOB SUMMARY ====\n")
    tail = LogTail(path)
    assert [r["step"] for r in tail.new(2e9)] == [0, 1, 2, 3, 4]
    assert tail.ended
    path.write_text(f"0: {step_line(7, loss='nan')}\n")
    assert [(r["step"], r["loss"]) for r in tail.new(2e9)] == [(7, "nan")]
    assert not tail.ended
