"""A growing log read piece by piece gives what one reading of the whole gives; renamed, replaced, emptied ones too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import HEADER, step_line
from trackwalker.logs import chunk, scan
from trackwalker.logs.follow import FollowedScan
from trackwalker.logs.index import LogIndex, index_logs

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


def plain(index: LogIndex | None) -> dict[str, Any]:
    """Everything of an index that can be compared."""
    assert index is not None
    steps = {name: getattr(index.steps, name).tolist() for name in ("step", "line")}
    steps |= {name: [repr(v) for v in getattr(index.steps, name).tolist()] for name in ("seconds", "tgs", "loss")}
    rest = {k: v for k, v in vars(index).items() if k not in ("facts", "hits")}
    rest["facts"] = {k: v for k, v in vars(index.facts).items() if k != "steps"}
    hits = [{**vars(h), "signature": h.signature.id} for h in index.hits]
    return {**rest, "hits": hits, "steps": steps, "last": index.steps.last_by_rank, "dialect": index.steps.dialect}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so small that a short log has many."""
    for module in (chunk, scan):
        monkeypatch.setattr(module, "CHUNK", 1 << 14)
    monkeypatch.setattr("trackwalker.logs.follow.CHUNK", 1 << 14)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from(LINES), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 200_000), max_size=8),
)
def test_any_growth_gives_what_one_reading_gives(
    small_pieces: None, tmp_path: Path, lines: list[str], cuts: list[int]
) -> None:
    path = tmp_path / "1-JAX-x.log"
    path.unlink(missing_ok=True)
    data = (HEADER + "".join(lines)).encode("utf-8", "surrogateescape")
    followed = FollowedScan(path)
    for end in sorted({c % len(data) for c in cuts if c % len(data)} | {len(data)}):
        with path.open("ab") as f:
            f.write(data[f.tell() : end])
        assert plain(followed.update()) == plain(index_logs(path))
    followed.close()


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


OOM = "3: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
FAULT = "4: Segmentation fault (core dumped)\n"


def ids(index: LogIndex | None) -> list[str]:
    assert index is not None
    return [h.signature.id for h in index.hits]


def test_a_renamed_log_is_followed_and_a_new_one_under_its_name_is_begun(tmp_path: Path) -> None:
    path, moved = tmp_path / "x.log", tmp_path / "x.log.1"
    followed = FollowedScan(path)
    assert followed.update() is None
    path.write_text("")
    assert followed.update() is None
    writer = path.open("a")
    writer.write(f"0: {step_line(1)}\n")
    writer.flush()
    assert ids(followed.update()) == []
    path.rename(moved)
    writer.write(OOM)
    writer.close()
    assert ids(followed.update()) == ["oom-gpu"]
    path.write_text(FAULT)
    fresh = followed.update()
    assert (ids(fresh), fresh and fresh.lines) == (["segfault"], 1)
    followed.path = moved
    assert ids(followed.update()) == ["oom-gpu"]
    followed.close()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("refilled", [0, 60_000])
def test_an_emptied_log_is_begun_again(tmp_path: Path, refilled: int) -> None:
    path = tmp_path / "x.log"
    path.write_text(OOM + "x\n" * 30_000)
    followed = FollowedScan(path)
    assert ids(followed.update()) == ["oom-gpu"]
    before = os.stat(path).st_ino
    path.write_text(FAULT + "y\n" * refilled)  # the same file, cut to nothing first
    assert os.stat(path).st_ino == before
    assert ids(followed.update()) == ["segfault"]
    followed.close()


def test_what_was_read_is_not_read_again(tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"{n % 3:02d}: {step_line(n // 3)}\n" for n in range(3000)))
    followed = FollowedScan(path)
    followed.update()
    looked: list[int] = []
    look = scan.Reading._look
    monkeypatch.setattr(
        scan.Reading, "_look", lambda self, number, *label: looked.append(number) or look(self, number, *label)
    )
    with path.open("a") as f:
        f.write(OOM)
    assert ids(followed.update()) == ["oom-gpu"]
    assert min(looked) >= scan.chunks(path.stat().st_size) - 2
    followed.close()
