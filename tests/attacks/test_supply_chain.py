"""What is installed is what was looked at: by hash, and from a lock that tells nothing of anybody's registry."""

from __future__ import annotations

import platform
import re
import runpy
from pathlib import Path

import pytest

from trackwalker.observe import prometheus
from trackwalker.observe.prometheus import CannotInstall, from_release, unpack_release

ROOT = Path(__file__).parent.parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
PINS = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", LOCK, re.M))


def test_every_pinned_package_has_its_hashes_and_no_address() -> None:
    blocks = re.split(r"^(?=\S)", LOCK, flags=re.M)[1:]
    assert len(blocks) > 100
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert not re.search(r"://|--(?:extra-)?index|--find-links|@ ", LOCK)


def test_the_lock_has_the_versions_that_the_tests_ran_with() -> None:
    tested = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    assert {name: version for name, version in PINS.items() if tested.get(name, version) != version} == {}


def test_setup_installs_by_hash_only() -> None:
    installs = re.findall(r"pip install(?:[^\\\n]|\\\n)*", (ROOT / "scripts" / "setup").read_text())
    assert len(installs) == 2
    assert "--require-hashes" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]


def test_prometheus_is_downloaded_by_checksum_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for machine in ("aarch64", "riscv64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        with pytest.raises(CannotInstall, match="nothing is downloaded"):
            from_release(tmp_path / "tree", lambda text: None)
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in prometheus._SHA256.values())
    (tmp_path / "tree").mkdir()
    with pytest.raises(CannotInstall, match="checksum mismatch"):
        unpack_release("https://x.example/p.tar.gz", "0" * 64, tmp_path / "tree", lambda url: io.BytesIO(b"evil"))
    assert not list((tmp_path / "tree").rglob("*"))


def test_the_bill_of_materials_names_what_the_lock_pins() -> None:
    found = runpy.run_path(str(ROOT / "scripts" / "sbom"))["components"](LOCK)
    assert {(c["name"], c["version"]) for c in found} == {(n.lower().replace("_", "-"), v) for n, v in PINS.items()}
    assert all(c["hashes"] for c in found)
