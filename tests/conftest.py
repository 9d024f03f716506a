"""What tests share: where the project is, what this machine has, and worlds to diagnose."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from durations import Durations
from hypothesis import HealthCheck, settings
from slurm_cluster import SlurmCluster, need_slurm
from unit_rules import UnitRules

from trackwalker.diagnose.causes import examine
from trackwalker.observe.prometheus import ensure_prometheus

examine.STRICT = True  # an error inside a playbook's test is a failure here, not a question less
ROOT = Path(__file__).parent.parent
UNIT = ROOT / "tests" / "unit"
# The longest files first, so that no worker is left alone with one at the end; and those that mostly wait (for Slurm's
# clock, a scrape, a mirror's pass) between those that compute, so that two cores are neither idle nor fought over.
LONGEST = [
    "watch_slurm", "acceptance_recorder", "acceptance_training", "web_jobs", "recorder", "tiny_trainer",
    "web_misleading", "launch_matrix", "supervise_slurm", "auto_resume", "lab", "slurm_launch", "watch_real",
    "sweep_slurm", "losses", "tour", "record_slurm", "ask", "ray", "remote_write", "lab_own_format",
    "web_list_truth", "telemetry_store", "web_axis_browser", "web_hostile", "small_worlds", "numbered_secrets",
    "unknown_trouble", "diagnose_worlds", "record_tensorboard", "allocation", "endings", "sweep_resume",
    "mcp_actions", "web_report_file", "survival", "web_log_ways", "completion_shells", "report_browser", "agent",
    "robustness", "web_fleet_browser", "compare", "tunnel", "real_faults", "mcp",
]  # fmt: skip
NOT_UNIT = ("starts_processes", "real_clock", "long")
_MARKED = re.compile(rf"mark\.({'|'.join(NOT_UNIT)})\b")
SAMPLES = ROOT.parent / "shared" / "data" / "samples"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-table", default="", metavar="NAME", help="keep build/test-durations/NAME.tsv")
    parser.addoption("--list-long", action="store_true", help="print the long tests with their reasons, run nothing")


# Byte code is kept whatever the environment says: without it every worker compiles every test file (20 s of CPU),
# and every program that a test starts compiles what it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# A property is about answers: how long a busy machine takes to draw an example is none of them.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(config))
    config.pluginmanager.register(UnitRules())
    _keep_compiled()
    # A run put into the background by a script ignores Ctrl-C, and all that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_compiled() -> None:
    """Every rank of every run compiles the same few programs: a third of a short run's CPU time, paid once.

    Set before any test file is imported: JAX reads these as it is imported.
    """
    folder = Path(tempfile.gettempdir()) / f"trackwalker-test-compile-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where no unit test is wanted, files of nothing else are not imported: that is 10 s of CPU in every worker."""
    if "not unit" not in str(config.getoption("-m")) or UNIT not in collection_path.parents:
        return None
    only_unit = collection_path.suffix == ".py" and not _MARKED.search(collection_path.read_text(encoding="utf-8"))
    return True if only_unit else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only a test that says why other load can disturb it is run a second time; the summary counts those."""
    first = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.name, len(first)))
    for item in items:
        if UNIT in item.path.parents and not any(item.get_closest_marker(name) for name in NOT_UNIT):
            item.add_marker(pytest.mark.unit)
        for name in ("long", "disturbed_by_load"):
            mark = item.get_closest_marker(name)
            if mark is not None and not mark.kwargs.get("reason"):
                raise pytest.UsageError(f"{item.nodeid}: the marker {name} needs a reason")
        if item.get_closest_marker("disturbed_by_load") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """The list of long tests, one line for each test and reason however many parameters it has."""
    if not config.getoption("list_long"):
        return []
    long = {(i.nodeid.partition("[")[0], m.kwargs["reason"]) for i in items if (m := i.get_closest_marker("long"))}
    items.clear()
    return [f"{nodeid}: {reason}" for nodeid, reason in sorted(long)]


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
