"""What is kept between two starts: made once, never believed when it is broken or somebody else's, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import hyperscan
import pytest

from trackwalker.logs.scanning import needles
from trackwalker.logs.scanning.disk_cache import folder, kept


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def made_once(source: bytes = b"source") -> list[bytes]:
    calls: list[bytes] = []

    def make() -> bytes:
        calls.append(source)
        return b"made of " + source

    assert kept("thing", source, make) == b"made of " + source
    assert kept("thing", source, make) == b"made of " + source
    return calls


def test_it_is_made_once_for_each_source() -> None:
    assert len(made_once()) == 1
    assert len(made_once(b"another")) == 1


def test_a_broken_file_is_made_again() -> None:
    made_once()
    (path,) = folder().iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert len(made_once()) == 1
    assert path.read_bytes().endswith(b"source")


def test_a_file_that_others_may_write_is_not_believed() -> None:
    made_once()
    (path,) = folder().iterdir()
    path.chmod(0o666)
    assert len(made_once()) == 1


def test_a_cache_that_cannot_be_written_is_no_error(own_cache: Path) -> None:
    (own_cache / "trackwalker").write_text("a file where the folder would be")
    assert len(made_once()) == 2


def test_old_files_are_removed() -> None:
    for number in range(60):
        kept("thing", b"%d" % number, lambda: b"x")
        os.utime(folder())
    assert len(list(folder().iterdir())) == 40


def test_a_search_compiled_elsewhere_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    load, refused = hyperscan.loadb, []

    def refuse_once(data: bytes, mode: int) -> hyperscan.Database:
        if not refused:
            refused.append(data)
            raise hyperscan.DatabasePlatformError("compiled for another processor")
        return load(data, mode)

    monkeypatch.setattr(hyperscan, "loadb", refuse_once)
    finder = needles.Finder([b"out of memory"], frozenset())
    assert list(finder.find(memoryview(b"cuda: Out of Memory")).places) == [6]
    assert refused
