"""What the attacks share: a second real user of this machine, and a workspace that everybody can write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Stranger:
    """Another user of this machine."""

    name: str
    uid: int
    gid: int

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a program as that user."""
        return subprocess.run(
            argv, user=self.uid, group=self.gid, extra_groups=[], cwd="/", env={"PATH": os.environ["PATH"]},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def puts(self, path: Path, text: str, mode: str = "644") -> None:
        """Write a file, with the folders it needs, as that user; world-readable, as an attacker would have it."""
        script = 'umask 022; mkdir -p "$(dirname "$0")" && printf %s "$1" > "$0" && chmod "$2" "$0"'
        done = self.run("sh", "-c", script, str(path), text, mode)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def stranger() -> Iterator[Stranger]:
    """A user made for the tests and removed after them."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("a second user can be made by root only")
    name = f"twatk{os.getpid()}"
    subprocess.run(["useradd", "--system", "--no-create-home", "--user-group", name], check=True, capture_output=True)
    try:
        ids = [int(subprocess.check_output(["id", flag, name], text=True)) for flag in ("-u", "-g")]
        yield Stranger(name, *ids)
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A workspace as clusters have them: sticky, everybody may add to it."""
    root = Path(tempfile.mkdtemp(prefix="tw-attack-", dir="/tmp"))
    root.chmod(0o1777)
    yield root
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o700)
    shutil.rmtree(root, ignore_errors=True)
