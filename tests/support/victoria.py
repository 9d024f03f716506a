"""A real VictoriaMetrics, the store that tests send samples to; unpacked from the distribution, never installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from trackwalker.observe.prometheus import CannotInstall, apt_download, tool_dir

PACKAGE = "victoria-metrics"
USER, PASSWORD = "walker", "s3cret-of-the-store"  # of a store that lives for one test


def find_victoria() -> Path:
    """The program: on PATH, in our tool folder, or fetched there; without apt the test is skipped."""
    return unpacked(PACKAGE)


def unpacked(package: str) -> Path:
    """The program of a package of the distribution with the package's own name; fetched once, never installed."""
    if found := shutil.which(package):
        return Path(found)
    home = tool_dir() / package
    if not (home / "usr" / "bin" / package).exists():
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            pytest.skip(f"no {package} and no apt to fetch it")
        tool_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=tool_dir()) as scratch:
            try:
                file = apt_download(package, Path(scratch), print)
            except CannotInstall as e:
                if os.environ.get("CI"):  # there the archive is known to answer: a failure is ours
                    raise
                pytest.skip(f"{package} cannot be fetched: {e}")
            tree = Path(scratch) / "tree"
            subprocess.run(["dpkg-deb", "-x", file, tree], check=True)
            shutil.rmtree(home, ignore_errors=True)
            tree.rename(home)
    return home / "usr" / "bin" / package


class Victoria:
    """One store on a port of its own; it can be stopped and started again with what it has."""

    def __init__(self, binary: Path, folder: Path, port: int) -> None:
        self._binary, self._folder, self._port = binary, folder, port
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{port}"

    def start(self, *more: str) -> None:
        argv = [self._binary, f"-httpListenAddr=127.0.0.1:{self._port}", f"-storageDataPath={self._folder / 'data'}"]
        argv += ["-retentionPeriod=100y"]  # what a test sends may be of any time
        argv += more
        argv += [f"-httpAuth.username={USER}", f"-httpAuth.password={PASSWORD}"]
        with (self._folder / "victoria.log").open("ab") as out:
            self._process = subprocess.Popen(argv, stdout=out, stderr=out)
        deadline = time.monotonic() + 30
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "victoria.log").read_text()
            assert time.monotonic() < deadline, "VictoriaMetrics does not come up"
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()  # it has no write-ahead log: only a polite end keeps all it was given
            self._process.wait(30)
            self._process = None

    def samples(self, metric: str) -> list[float]:
        """The stored values of a metric in order of time; all series together."""
        found = []
        for line in self._get(f"/api/v1/export?match[]={metric}").splitlines():
            series = json.loads(line)
            found += list(zip(series["timestamps"], series["values"], strict=True))
        return [value for _, value in sorted(found)]

    def _answers(self) -> bool:
        try:
            return bool(self._get("/health"))
        except OSError:
            return False

    def _get(self, path: str) -> str:
        logins = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        logins.add_password(None, self.url, USER, PASSWORD)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPBasicAuthHandler(logins)
        )
        with opener.open(self.url + path, timeout=10) as answer:
            text: str = answer.read().decode()
        return text
