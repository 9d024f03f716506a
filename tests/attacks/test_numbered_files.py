"""Attacks 1 to 6: somebody else's files in a shared workspace, and somebody else's bundles. On the public surface."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import bundle, link
from surface import Agent, Cluster, argv, environment, job_log, lands, own, put_job, tw, until

if TYPE_CHECKING:
    from strangers import Stranger

pytest_plugins = ("strangers",)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "slurm")


def plant(write: Any, workspace: Path, job: str) -> None:
    """A failed job that asks to be resumed, with a batch script of its author."""
    told = workspace / ".submissions" / f"20260101_000000_{job}"
    order = {"name": "JAX-tiny", "model": "tiny", "scheduler": "slurm", "workspace": str(workspace), "nodes": 1,
             "argv": ["python3", "x.py"]}  # fmt: skip
    record = {
        "schema": "trackwalker.run/1", "id": job, "name": "JAX-tiny", "model": "tiny", "scheduler": "slurm",
        "trainer": "tiny", "created": 1.0, "argv": ["submit", "tiny"], "command": [], "workspace": str(workspace),
        "auto_resume": 3, "submission": str(told),
    }  # fmt: skip
    crash = "1: Fatal Python error: Segmentation fault\n1: \n1: Current thread 0x00007f (most recent call first):\n"
    write(told / "order.json", json.dumps(order))
    write(told / "job.sh", f"#!/bin/sh\necho of {job}\n")
    write(told / "sbatch.json", "[]")
    write(workspace / f"{job}-JAX-tiny" / "run.json", json.dumps(record))
    end = {"v": 1, "t": time.time(), "stage": "train", "kind": "run-end", "data": {"exit": 139}}
    write(workspace / f"{job}-JAX-tiny" / "events.jsonl", json.dumps(end) + "\n")
    saved = '{"v":1,"t":1,"rank":0,"phase":"checkpoint","state":"end","step":10}\n'
    write(workspace / f"{job}-JAX-tiny" / "progress.jsonl", saved)
    write(workspace / f"{job}-JAX-tiny.log", job_log(crash, 139).replace("JOB_ID=77", f"JOB_ID={job}"))


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes half a minute of a watcher"
)
def test_a01_a_planted_failed_job_is_not_resumed_by_our_watcher(
    shared: Path, stranger: Stranger, cluster: Cluster, tmp_path: Path
) -> None:
    own(shared / ".submissions" / "x", "")
    (shared / ".submissions").chmod(0o1777)

    def handed() -> str:
        return "".join(Path(script).read_text() for script in cluster.scripts)

    config = tmp_path / "watch.yml"
    own(config, "resume:\n  jobs: all\n")
    with subprocess.Popen(
        argv("watch", "--all", "--config", config, "--workspace", shared), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env=environment(**cluster.env),
    ) as watcher:  # fmt: skip
        try:
            assert until((shared / ".watch").is_dir)
            time.sleep(2.0)  # the wait is the subject: jobs that end while it watches
            plant(stranger.puts, shared, "7")
            plant(own, shared, "8")
            assert until(lambda: "of 8" in handed(), 120), "our own is not resumed either"
            theirs = until(lambda: "of 7" in handed(), 6)
        finally:
            watcher.terminate()
    if theirs:
        lands("our watcher ran sbatch on another user's script, as us")


def test_a02_a_job_directory_that_waits_for_us_runs_no_plugin(
    shared: Path, stranger: Stranger, cluster: Cluster, tmp_path: Path
) -> None:
    told = cluster.submits(shared)
    marker = tmp_path / "ran"
    plugin = f"#!/bin/sh\nid -u > {marker}\necho 'x_total 1'\n"
    stranger.puts(shared / "4800-JAX-tiny/plugins/a_metrics_plugin.sh", plugin, "755")
    agent = Agent(told, "4800", "import time; time.sleep(15)", tmp_path)
    try:
        ran = until(lambda: marker.exists() or agent.process.poll() is not None, 30)
        assert ran, "neither refused nor attacked"
        if marker.exists():
            lands(f"our agent ran another user's plugin as user id {marker.read_text().strip()}")
    finally:
        agent.end()
    assert stranger.name in agent.errors.read_text()


def test_a03_a_blob_under_an_honest_hash_does_not_get_into_a_snapshot(
    shared: Path, stranger: Stranger, cluster: Cluster, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    own(code / "train.py", "print('honest')\n")
    digest = hashlib.sha256((code / "train.py").read_bytes()).hexdigest()
    blobs = shared / ".artifacts" / "blobs" / digest[:2]
    own(blobs / "x", "")
    for folder in (blobs, blobs.parent):
        folder.chmod(0o1777)
    stranger.puts(blobs / digest, "print('evil')\n", "444")
    cluster.submits(shared, "--code", code)
    frozen = [p.read_text() for p in (shared / ".artifacts").glob("*/train.py") if p.parent.name != "blobs"]
    assert frozen, "nothing was frozen"
    if "print('evil')\n" in frozen:
        lands("our snapshot holds another user's code under the honest hash")


def longer_than_a_path() -> list[tuple[str, bytes, dict[str, Any]]]:
    """Links whose resolved path is longer than the kernel takes: Python's own filter then gives up resolving them."""
    members: list[tuple[str, bytes, dict[str, Any]]] = []
    folder, names, path = "d" * 247, "abcdefghijklmnop", ""
    for name in names:
        members.append((f"{path}{folder}", b"", {"type": tarfile.DIRTYPE, "mode": 0o755}))
        members.append(link(f"{path}{name}", folder))
        path += f"{folder}/"
    far = "/".join(names) + "/" + "l" * 254
    members += [link(far, "../" * len(names)), link("escape", f"{far}/../..")]
    return [*members, ("escape/victim", b"evil", {})]


@pytest.mark.long(
    reason="its defence is tested from within at every landing; on the surface it takes a Python for each form"
)
def test_a04_a_chain_of_links_in_a_bundle_overwrites_nothing_outside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    right = bundle(tmp_path / "right.tar.gz", ("outputs/7-JAX-toy.log", b"x\n", {}))
    assert tw("lab", "add", right, "--to", tmp_path / "cases", "--family", "right").code == 0
    chains = (
        [link("d", "."), link("d/e", ".."), link("d/e/f", "../victim"), ("d/e/f", b"evil", {})],
        [link("a", "b"), link("b/c", "../../../victim"), ("a/c", b"evil", {})],
        [link("x/y", "../.."), ("x/y/../victim", b"evil", {})],
        [link("dir", "."), link("dir/up", ".."), link("dir/up/up2", ".."), ("dir/up/up2/victim", b"evil", {})],
        [link("l1", "l1/../.."), ("l1/victim", b"evil", {})],
        longer_than_a_path(),
    )
    for number, members in enumerate(chains):
        tw("lab", "add", bundle(tmp_path / f"{number}.tar.gz", *members), "--to", tmp_path / "cases", "--family", "f")
    if victim.read_text() != "mine":
        lands("a bundle overwrote a file outside of its folder")


@pytest.mark.long(reason="its defence is tested from within at every landing; on the surface it takes a command")
def test_a05_links_of_a_job_are_not_packed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0: of another folder\n")
    folder = put_job(tmp_path / "ws", job_log(code=0))
    (folder / "ranks").mkdir()
    (folder / "ranks" / "0.log").symlink_to(secret)
    done = tw("lab", "pack", "77", "--out", tmp_path / "b.tar.gz", "--workspace", tmp_path / "ws")
    assert done.code == 0, done.err
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        odd = [member.name for member in tar if not member.isreg()]
    held = gzip.decompress((tmp_path / "b.tar.gz").read_bytes())
    if b"of another folder" in held or odd:
        lands(f"the bundle holds what a link led to, or links: {odd}")


@pytest.mark.long(reason="its defence is tested from within at every landing; on the surface it takes 300 MB")
def test_a06_a_small_bundle_does_not_fill_the_disk(tmp_path: Path) -> None:
    made = bundle(tmp_path / "b.tar.gz", ("outputs/7-JAX-toy.log", bytes(300 << 20), {}))
    assert made.stat().st_size < 1 << 20
    tw("lab", "add", made, "--to", tmp_path / "cases", "--family", "f")
    size = sum(p.stat().st_size for p in (tmp_path / "cases").rglob("*") if p.is_file())
    if size > 50 << 20:
        lands(f"{made.stat().st_size >> 10} kB became {size >> 20} MB")
