"""The stand-in NVIDIA driver (tests/data/nvml_mock.c) and how tests drive it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trackwalker.node.collectors.gpu_nvidia import NvidiaCollector
from trackwalker.node.exporter.exposition import Family

SOURCE = Path(__file__).parents[1] / "data" / "nvml_mock.c"
NOT_SUPPORTED, NO_PERMISSION, LOST, UNKNOWN, HANGS = 3, 4, 15, 999, 1000
GIB = 1 << 30


def compile_mock(target: Path, *flags: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the stand-in driver cannot be built")
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags, "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_mock(tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1")


class Driver:
    """The test's side of one stand-in driver. A copy of the file is a driver of its own: no state is shared."""

    def __init__(self, path: Path, gpus: int) -> None:
        self.path = path
        self.lib = ctypes.CDLL(str(path))
        self.lib.mock_gpus(gpus)

    def value(self, key: str, value: int, gpu: int = -1) -> None:
        self.lib.mock_value(key.encode(), gpu, ctypes.c_ulonglong(value))

    def fail(self, call: str, code: int, gpu: int = -1) -> None:
        self.lib.mock_fail(call.encode(), gpu, code)

    def calls(self, call: str, gpu: int = -1) -> int:
        return int(self.lib.mock_calls(call.encode(), gpu))

    def event(self, gpu: int, data: int, kind: int = 8) -> None:
        self.lib.mock_event(gpu, ctypes.c_ulonglong(kind), ctypes.c_ulonglong(data))


@pytest.fixture
def driver(built: Path, tmp_path: Path) -> Driver:
    return Driver(Path(shutil.copy(built, tmp_path / "driver.so")), 2)


class DriverFile:
    """A stand-in driver for another process (an agent): what it says stands in a file, which may change any time."""

    def __init__(self, library: Path, folder: Path, gpus: int, node: str = "") -> None:
        shared = folder / "driver.txt"
        self._path, self._gpus = folder / f"driver.txt.{node}" if node else shared, gpus
        self._values: dict[tuple[str, int], int] = {}
        self.env = {"TRACKWALKER_NVML": str(library), "TRACKWALKER_NVML_MOCK_FILE": str(shared)}
        self.set()

    def set(self, gpu: int = -1, **values: int) -> None:
        """Change what one GPU says (-1: all)."""
        self._values |= {(key.replace("__", "."), gpu): value for key, value in values.items()}
        lines = [f"gpus 0 {self._gpus}", *(f"{key} {gpu} {value}" for (key, gpu), value in self._values.items())]
        fresh = self._path.with_name(f"{self._path.name}.new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self._path)


Opened = Callable[..., NvidiaCollector]


@pytest.fixture
def opened(driver: Driver, tmp_path: Path) -> Iterator[Opened]:
    made: list[NvidiaCollector] = []

    def open_it(timeout: float = 5.0) -> NvidiaCollector:
        made.append(NvidiaCollector("n1", library=str(driver.path), timeout=timeout, sysfs=str(tmp_path)))
        assert made[-1].available()
        eventually(lambda: driver.calls("nvmlEventSetWait_v2") > 0)  # the XID watch has begun
        return made[-1]

    yield open_it
    driver.lib.mock_release()
    for collector in made:
        collector.close()


def flat(families: list[Family]) -> dict[str, float]:
    """name{labels without the host} -> value."""
    out = {}
    for family in families:
        for labels, value, _ in family.samples:
            assert labels["host"] == "n1"
            rest = ",".join(f"{k}={v}" for k, v in labels.items() if k != "host")
            out[f"{family.name}{{{rest}}}"] = value
    return out


def of_gpu(samples: dict[str, float], gpu: int) -> dict[str, float]:
    return {k: v for k, v in samples.items() if f"gpu={gpu}" in k}


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)
