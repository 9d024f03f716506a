"""Bundles from strangers: what unpacks lies inside, is plain, and is not more than a job can be."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest
from archives import bundle, link
from triage_logs import ending, header, steps

from trackwalker.errors import UsageError
from trackwalker.job.layout import Job
from trackwalker.lab.bundle import add, pack


def test_a_right_bundle_is_added(tmp_path: Path) -> None:
    made = add(bundle(tmp_path / "b.tar.gz", ("outputs/7-JAX-toy.log", b"x\n", {})), tmp_path / "cases")
    assert (made / "outputs/7-JAX-toy.log").read_text() == "x\n"


@pytest.mark.parametrize(
    "members",
    [
        [link("a", "b"), link("b/c", "../../../victim"), ("a/c", b"evil", {})],
        [link("d", "."), link("d/e", ".."), link("d/e/f", "../victim"), ("d/e/f", b"evil", {})],
        [link("h", "truth.json", tarfile.LNKTYPE), ("h", b"evil", {})],
        [("../victim", b"evil", {})],
        [("/tmp/tw-victim", b"evil", {})],
        [("a/../../victim", b"evil", {})],
        [("fifo", b"", {"type": tarfile.FIFOTYPE})],
        [("dev", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
        [("a", b"1", {}), ("a", b"2", {})],
        [("a" * 5000, b"1", {})],
    ],
    ids=["chain", "up", "hard", "dots", "absolute", "inner", "fifo", "device", "twice", "long"],
)
def test_what_is_no_plain_file_inside_is_refused_whole(tmp_path: Path, members: list[Any]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with pytest.raises(UsageError):
        add(bundle(tmp_path / "b.tar.gz", *members), tmp_path / "cases")
    assert victim.read_text() == "mine"
    assert list((tmp_path / "cases").iterdir()) == []


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """1.5 MB became gigabytes."""
    bomb = bundle(tmp_path / "b.tar.gz", ("outputs/7-JAX-toy.log", bytes(300 << 20), {}))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(UsageError, match="times its size"):
        add(bomb, tmp_path / "cases")
    assert sum(p.stat().st_size for p in (tmp_path / "cases").rglob("*") if p.is_file()) == 0


def test_many_members_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackwalker.lab.bundle._MOST_MEMBERS", 50)
    many = [(f"f{n}", b"", {}) for n in range(60)]
    with pytest.raises(UsageError, match="more than 50"):
        add(bundle(tmp_path / "b.tar.gz", *many), tmp_path / "cases")


def test_links_of_a_job_are_not_packed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0: of another folder\n")
    folder = tmp_path / "ws" / "7-JAX-toy"
    (folder / "ranks").mkdir(parents=True)
    (folder.parent / "7-JAX-toy.log").write_text(header(2, steps=30) + steps(29, 2) + ending(0))
    (folder / "log").symlink_to("../7-JAX-toy.log")
    (folder / "ranks" / "0.log").symlink_to(secret)
    (folder / "stacks").symlink_to(tmp_path)
    packed = pack(Job("7", folder.parent / "7-JAX-toy.log", folder), tmp_path / "b.tar.gz")
    with tarfile.open(packed.path) as tar:
        assert all(member.isreg() for member in tar)
        assert "of another folder" not in "".join(
            file.read().decode() for m in tar.getmembers() if (file := tar.extractfile(m)) is not None
        )
    assert gzip.decompress(packed.path.read_bytes())
