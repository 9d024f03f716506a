"""Where the real Prometheus is: the user's, the system's, or one we fetched once into our tool directory."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import IO

from trackwalker.errors import MissingToolError

OLDEST = (2, 40)  # older ones refuse overlapping blocks and do not know every flag and API we use
_REMEDY = "install Prometheus >= 2.40 or set TRACKWALKER_PROMETHEUS to its binary"


# Fetch Prometheus once: from the distribution's archive, else the official release with a pinned checksum.
# Both sources are laid out alike below the tool directory; Debian's tree also brings the web pages Prometheus serves.
HOME = "prometheus"
BINARY = f"{HOME}/usr/bin/prometheus"

VERSION = "2.53.4"
_RELEASES = "https://github.com/prometheus/prometheus/releases/download"
# Only checksums that two independent sources agree on; other machines install Prometheus themselves.
_SHA256 = {"amd64": "b8b497c4610d1b93208252b60c8f20f6b2e78596ae8df43397a2e805aa53d475"}
_ARCH = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

Say = Callable[[str], None]
Opener = Callable[[str], AbstractContextManager[IO[bytes]]]


class CannotInstall(Exception):
    """This source does not provide a Prometheus here; the message says why."""


def place(fetch: Callable[[Path, Say], None], tools: Path, unfit: Callable[[Path], str | None], say: Say) -> None:
    """Let `fetch` fill a scratch folder, check the binary by running it, and only then move it into place."""
    tools.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=tools) as scratch:
        tree = Path(scratch) / HOME
        tree.mkdir()
        fetch(tree, say)
        if why := unfit(Path(scratch) / BINARY):
            raise CannotInstall(f"the fetched program {why}")
        if (tools / HOME).exists():
            if not unfit(tools / BINARY):
                return  # another process of ours was faster
            os.rename(tools / HOME, Path(scratch) / "unfit")
        os.rename(tree, tools / HOME)


def from_apt(tree: Path, say: Say) -> None:
    """Unpack the distribution's package into `tree`."""
    # `apt-get download` + `dpkg-deb -x`, on purpose not `apt-get install`: installing the package would create a
    # system user and start a system-wide Prometheus service on port 9090.
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise CannotInstall("this system has no apt")
    say("fetching the Prometheus package of this distribution")
    package = apt_download("prometheus", tree.parent, say)
    _run(["dpkg-deb", "-x", str(package), str(tree)], tree)


def apt_download(name: str, folder: Path, say: Say) -> Path:
    """The distribution's package file of this name, fetched into a folder."""
    root = os.geteuid() == 0
    # apt's own download user cannot write into our private folder; as root it may work unsandboxed there.
    sandbox = ["-o", "APT::Sandbox::User=root"] if root else []
    command = ["apt-get", "-q", *sandbox, "-o", "Acquire::http::Timeout=20", "download", name]
    try:
        _run(command, folder)
    except CannotInstall:
        if not root:
            raise
        say("refreshing the package lists")
        _run(["apt-get", "-q", "-o", "Acquire::http::Timeout=20", "update"], folder)
        _run(command, folder)
    packages = sorted(folder.glob(f"{name}_*.deb"))
    if not packages:
        raise CannotInstall("apt-get download left no package")
    return packages[0]


def _run(command: list[str], folder: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{command[0]} took more than 300 s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        raise CannotInstall(lines[-1] if lines else f"{command[0]} failed with {done.returncode}")


def from_release(tree: Path, say: Say) -> None:
    """Download, check and unpack the official release for this machine into `tree`."""
    arch = _ARCH.get(platform.machine().lower(), platform.machine())
    if platform.system() != "Linux" or arch not in _SHA256:
        raise CannotInstall(f"no checksum is pinned for {platform.system().lower()}-{arch}, so nothing is downloaded")
    name = f"prometheus-{VERSION}.linux-{arch}"
    say(f"downloading {name}")
    unpack_release(f"{_RELEASES}/v{VERSION}/{name}.tar.gz", _SHA256[arch], tree)


def unpack_release(url: str, sha256: str, tree: Path, opener: Opener | None = None) -> None:
    """Download a release archive, refuse any but the expected bytes, and take the two programs out of it."""
    archive = tree.parent / "release.tar.gz"
    seen = hashlib.sha256()
    try:
        with (opener or _open)(url) as source, archive.open("wb") as out:
            while part := source.read(1 << 20):
                seen.update(part)
                out.write(part)
        if seen.hexdigest() != sha256:
            raise CannotInstall(f"checksum mismatch: {url} is not the expected file, it was thrown away")
        _unpack(archive, tree / "usr" / "bin")
    except (OSError, EOFError, zlib.error, tarfile.TarError) as e:
        raise CannotInstall(f"{url}: {e}") from e
    finally:
        archive.unlink(missing_ok=True)


def _open(url: str) -> AbstractContextManager[IO[bytes]]:
    import urllib.request  # here: `submit` needs neither HTTP nor TLS, and they take long to load

    stream: AbstractContextManager[IO[bytes]] = urllib.request.urlopen(url, timeout=30)  # noqa: S310 - a constant
    return stream


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            # Only these two, by their last name and as plain files: nothing in an archive chooses where it lands.
            name = Path(member.name).name
            source = tar.extractfile(member) if member.isfile() and name in ("prometheus", "promtool") else None
            if source is not None:
                with source, (folder / name).open("wb") as out:
                    shutil.copyfileobj(source, out)
                (folder / name).chmod(0o755)


def tool_dir() -> Path:
    """Our own directory for fetched programs."""
    if chosen := os.environ.get("TRACKWALKER_TOOLS"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "trackwalker" / "tools"


def find_prometheus() -> Path | None:
    """The first usable Prometheus: TRACKWALKER_PROMETHEUS, then PATH, then our tool directory."""
    if named := os.environ.get("TRACKWALKER_PROMETHEUS"):
        # Named on purpose: silently taking another one would hide the mistake.
        if why := _unfit(Path(named)):
            raise MissingToolError(f"TRACKWALKER_PROMETHEUS: {named} {why}; {_REMEDY}")
        return Path(named)
    on_path = shutil.which("prometheus")
    candidates = [Path(on_path)] if on_path else []
    candidates.append(tool_dir() / BINARY)
    return next((path for path in candidates if not _unfit(path)), None)


def ensure_prometheus(say: Callable[[str], None]) -> Path:
    """A usable Prometheus, fetched if there is none yet; `say` hears about anything that takes time."""
    if found := find_prometheus():
        return found
    target = tool_dir() / BINARY
    failures = []
    for source, fetch in (("apt", from_apt), ("download", from_release)):
        try:
            place(fetch, tool_dir(), _unfit, say)
        except (CannotInstall, OSError) as e:
            failures.append(f"{source}: {e}")
            continue
        say(f"Prometheus is ready: {target}")
        return target
    reasons = "; ".join(" ".join(f.split()) for f in failures)
    raise MissingToolError(f"Prometheus is missing and could not be fetched ({reasons}): {_REMEDY}")


def find_promtool(prometheus: Path) -> Path | None:
    """The promtool that came with this Prometheus."""
    beside = prometheus.resolve().with_name("promtool")
    return beside if os.access(beside, os.X_OK) else None


def version_of(binary: Path) -> tuple[int, int] | None:
    """Major and minor version, None where the program does not run or is not Prometheus."""
    try:
        return _ask_version(str(binary), binary.stat().st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=8)
def _ask_version(binary: str, _changed: int) -> tuple[int, int] | None:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"prometheus, version (\d+)\.(\d+)", done.stdout + done.stderr)
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None


def _unfit(binary: Path) -> str | None:
    """Why this binary cannot be used, None if it can."""
    if not (binary.is_file() and os.access(binary, os.X_OK)):
        return "is not an executable file"
    version = version_of(binary)
    if version is None:
        return "does not run as Prometheus"
    if version < OLDEST:
        return f"is version {version[0]}.{version[1]}, too old"
    return None
