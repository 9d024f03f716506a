"""What tests share: where the project is, what this machine has, and worlds to diagnose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import SlurmCluster, need_slurm
from trackwalker.diagnose import examine
from trackwalker.observe.prometheus import ensure_prometheus

examine.STRICT = True  # an error inside a playbook's test is a failure here, not a question less
ROOT = Path(__file__).parent.parent
SAMPLES = ROOT.parent / "shared" / "data" / "samples"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on the real clock of a shared machine may lose a race once; twice in a row is a failure."""
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The real Prometheus, installed when missing."""
    return ensure_prometheus(lambda text: None)


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    """One real Slurm of four nodes for all tests that leave its nodes alive."""
    need_slurm()
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The shared Slurm, idle before the test; the test's jobs are ended after it."""
    slurm_session.wait_idle()
    yield slurm_session
    slurm_session.cancel_all()


@pytest.fixture(scope="session")
def samples() -> Path:
    """The public sample jobs; a user's clone does not have them."""
    if not SAMPLES.is_dir():
        pytest.skip("the sample jobs are kept outside the repository and are not here")
    return SAMPLES


def tree_hash(root: Path) -> str:
    """Every name, every byte and every link below a folder."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path.relative_to(root)).encode())
        if path.is_symlink():
            digest.update(str(path.readlink()).encode())
        elif path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.fixture
def unchanged() -> Iterator[list[Path]]:
    """Folders appended to this list must be the same, byte for byte, when the test ends."""
    folders: list[Path] = []
    hashes: dict[Path, str] = {}

    class Watched(list[Path]):
        def append(self, folder: Path) -> None:
            hashes[folder] = tree_hash(folder)
            super().append(folder)

    yield Watched(folders)
    for folder, before in hashes.items():
        assert tree_hash(folder) == before, f"{folder} was changed by reading it"
