"""Finding and fetching Prometheus: nothing unverified is ever left behind."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from trackwalker.errors import MissingToolError
from trackwalker.observe import prometheus
from trackwalker.observe.prometheus import BINARY, CannotInstall, place, unpack_release

NEW = b'#!/bin/sh\necho "prometheus, version 2.53.4 (branch: HEAD)"\n'
OLD = NEW.replace(b"2.53.4", b"2.31.0")


def release(**files: bytes) -> bytes:
    """A release archive with the given members below its usual folder."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"prometheus-2.53.4.linux-amd64/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return raw.getvalue()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A local web site: its URL and the folder it serves."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Prometheus and without apt; returns the tool directory."""
    monkeypatch.delenv("TRACKWALKER_PROMETHEUS", raising=False)
    monkeypatch.setenv("TRACKWALKER_TOOLS", str(tmp_path / "tools"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "tools"


def program(path: Path, content: bytes = NEW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def test_a_download_with_the_wrong_checksum_is_refused_and_leaves_nothing(site: tuple[str, Path], bare: Path) -> None:
    url, folder = site
    (folder / "p.tar.gz").write_bytes(release(prometheus=NEW))
    with pytest.raises(CannotInstall, match="checksum mismatch"):
        place(lambda tree, say: unpack_release(f"{url}/p.tar.gz", "0" * 64, tree), bare, lambda p: None, print)
    assert list(bare.iterdir()) == []


@pytest.mark.starts_processes
def test_a_good_download_is_unpacked_and_only_its_two_programs(site: tuple[str, Path], bare: Path) -> None:
    url, folder = site
    archive = release(prometheus=NEW, promtool=NEW, **{"prometheus.yml": b"x", "../../evil": b"x"})
    (folder / "p.tar.gz").write_bytes(archive)
    sha = hashlib.sha256(archive).hexdigest()
    place(lambda tree, say: unpack_release(f"{url}/p.tar.gz", sha, tree), bare, prometheus._unfit, print)
    files = {str(p.relative_to(bare)) for p in bare.rglob("*") if p.is_file()}
    assert files == {BINARY, "prometheus/usr/bin/promtool"}
    assert prometheus.find_prometheus() == bare / BINARY
    assert prometheus.find_promtool(bare / BINARY) == bare / "prometheus/usr/bin/promtool"


def test_a_cut_archive_is_refused_and_leaves_nothing(site: tuple[str, Path], bare: Path) -> None:
    url, folder = site
    archive = release(prometheus=NEW * 1000)[:-20]
    (folder / "p.tar.gz").write_bytes(archive)
    sha = hashlib.sha256(archive).hexdigest()
    with pytest.raises(CannotInstall):
        place(lambda tree, say: unpack_release(f"{url}/p.tar.gz", sha, tree), bare, lambda p: None, print)
    assert list(bare.iterdir()) == []


@pytest.mark.starts_processes
def test_what_does_not_run_is_not_installed_and_what_is_broken_is_replaced(bare: Path) -> None:
    def broken(tree: Path, say: object) -> None:
        program(tree / "usr/bin/prometheus", b"#!/bin/sh\nexit 1\n")

    with pytest.raises(CannotInstall, match="does not run"):
        place(broken, bare, prometheus._unfit, print)
    assert list(bare.iterdir()) == []

    program(bare / BINARY, b"#!/bin/sh\nexit 1\n")
    place(lambda tree, say: program(tree / "usr/bin/prometheus") and None, bare, prometheus._unfit, print)
    assert prometheus.version_of(bare / BINARY) == (2, 53)
    assert [p.name for p in bare.iterdir()] == ["prometheus"]


@pytest.mark.starts_processes
def test_search_order_is_variable_then_path_then_tools(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prometheus.find_prometheus() is None
    in_tools = program(bare / BINARY)
    assert prometheus.find_prometheus() == in_tools
    on_path = program(tmp_path / "bin" / "prometheus")
    assert prometheus.find_prometheus() == on_path
    program(on_path, OLD)
    assert prometheus.find_prometheus() == in_tools, "too old: the next one is taken"
    named = program(tmp_path / "mine")
    monkeypatch.setenv("TRACKWALKER_PROMETHEUS", str(named))
    assert prometheus.find_prometheus() == named
    monkeypatch.setenv("TRACKWALKER_PROMETHEUS", str(tmp_path / "typo"))
    with pytest.raises(MissingToolError, match="typo is not an executable file"):
        prometheus.find_prometheus()


def test_when_nothing_works_one_line_says_what_to_do(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(url: str) -> None:
        raise OSError("Name or service\nnot known")

    monkeypatch.setattr(prometheus, "_open", unreachable)
    with pytest.raises(MissingToolError) as caught:
        prometheus.ensure_prometheus(lambda text: None)
    message = str(caught.value)
    assert "\n" not in message
    assert "no apt" in message
    assert "not known" in message or "no checksum" in message
    assert "install Prometheus >= 2.40 or set TRACKWALKER_PROMETHEUS" in message
    assert not bare.exists() or list(bare.iterdir()) == []


def test_a_machine_without_a_pinned_checksum_downloads_nothing(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(prometheus, "_open", lambda url: pytest.fail("must not download"))
    with pytest.raises(MissingToolError, match="no checksum is pinned for linux-riscv64"):
        prometheus.ensure_prometheus(lambda text: None)
