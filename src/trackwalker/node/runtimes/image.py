"""Which image, exactly: one spelling for every command, one content for every node."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trackwalker.node.runtimes.container import OrderError, Runtime
from trackwalker.node.sensors.commands import Answer, ask

HUB = "docker.io"
_HUB_KEYS = ("docker.io", "index.docker.io", "https://index.docker.io/v1/")  # its names in files of credentials
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
_REGISTRY = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]+)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LOADED = re.compile(r"^Loaded image(?:\(s\))?:\s*(\S+)|^Loaded image ID:\s*(\S+)", re.MULTILINE)
_INSPECT_S = 600.0  # apptainer reads the whole file

# What registries and runtimes say, most telling first; the name of the class is what records keep.
_CAUSES = (
    ("disk-full", r"no space left on device|disk quota exceeded|not enough space", "free space where images are kept"),
    ("rate-limit", r"toomanyrequests|too many requests|rate limit", "log in, or use a mirror or a tar archive"),
    (
        "network",
        r"no such host|i/o timeout|connection refused|connection reset|network is unreachable|tls handshake|"
        r"temporary failure in name resolution|context deadline exceeded|deadline exceeded|x509|no route to host",
        "check that this node reaches the registry, or give the image as a .tar",
    ),
    ("not-found", r"manifest unknown|not found|name unknown|does not exist: ", "check the image's name and tag"),
    (
        "auth",
        r"unauthorized|authentication required|denied|\b401\b|\b403\b|invalid username/password",
        "set DOCKER_USERNAME and DOCKER_TOKEN, or log in on this node",
    ),
)


class ImageError(OrderError):
    """No usable image; `kind` says why: auth, not-found, disk-full, network, rate-limit, digest, reference, other."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class ImageRef:
    """A fully-qualified image name."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def base(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        if self.digest:  # a tag beside a digest says nothing more, and not every runtime reads both
            return f"{self.base}@{self.digest}"
        return f"{self.base}:{self.tag}"


@dataclass(frozen=True)
class Credentials:
    """Who pulls where no anonymous pull is allowed."""

    username: str
    token: str


@dataclass(frozen=True)
class Ready:
    """An image that is here: what to run it as, and its content, which is the same on every node."""

    ref: str
    digest: str


def normalise(text: str, registry: str = HUB) -> ImageRef:
    """`name[:tag][@digest]`, of `registry` (it may have a path) unless the name begins with a registry of its own."""
    rest, _, digest = text.partition("@")
    head, slash, tail = rest.rpartition("/")
    tail, _, tag = tail.partition(":")
    path = f"{head}{slash}{tail}"
    first, slash, after = path.partition("/")
    if not (slash and ("." in first or ":" in first or first == "localhost")):
        first, _, prefix = registry.rstrip("/").partition("/")
        after = f"{prefix}/{path}" if prefix else path
    if first == "index.docker.io":
        first = HUB
    if first == HUB and "/" not in after:
        after = f"library/{after}"
    good = _REGISTRY.fullmatch(first) and _REPOSITORY.fullmatch(after) and (not tag or _TAG.fullmatch(tag))
    if not good or ("@" in text and not _DIGEST.fullmatch(digest)) or tail == "" or rest.endswith(":"):
        raise ImageError(
            "reference",
            f"image '{text}' is no reference: the form is [registry[:port]/]name[:tag][@sha256:…], in lower case",
        )
    return ImageRef(first, after, tag or ("" if digest else "latest"), digest)


def is_archive(text: str) -> bool:
    """Whether an image is given as a file: a tar archive, or apptainer's own format."""
    return text.endswith((".tar", ".tar.gz", ".tgz", ".sif"))


def ensure_image(
    runtime: Runtime,
    image: str,
    registry: str = HUB,
    expected: str = "",
    credentials: Credentials | None = None,
    say: Callable[[str], None] = print,
    timeout_s: float = 900.0,
) -> Ready:
    """Have the image here, pulling only if its content is not; `expected` is what the first node found."""
    if not runtime.digest_argv(image):  # no container, no image
        return Ready("", "")
    if is_archive(image):
        return _from_file(runtime, os.path.abspath(image), expected, say, timeout_s)
    ref = normalise(image, registry)
    pinned = ImageRef(ref.registry, ref.repository, digest=expected) if expected and runtime.keeps_images else ref
    here = _here(runtime, pinned, expected) or _here(runtime, ref, expected)
    if here is not None:
        say(f"[INFO] Image already exists locally. Skipping pull of {pinned} .")
        return here
    say(f"[INFO] Image not found locally. Pulling {pinned} ...")
    _pull(runtime, pinned, credentials, say, timeout_s)
    here = _here(runtime, pinned, expected)
    if here is None:
        shared = "" if runtime.keeps_images else "; keep apptainer's images on a shared file system"
        raise ImageError("digest", f"{pinned} on this node is not {expected or 'to be seen'} after the pull{shared}")
    return here


def _here(runtime: Runtime, ref: ImageRef, expected: str) -> Ready | None:
    """The image as it is here, if it is the expected one: a tag alone may mean another image on every node."""
    answer = ask(runtime.digest_argv(str(ref)), _INSPECT_S)
    if answer.code != 0:
        return None
    found = runtime.identity(answer.output)
    if not runtime.keeps_images:
        return Ready(str(ref), found.content) if expected in ("", found.content) else None
    wanted = expected or ref.digest
    for known in map(_repo_digest, found.names):
        if known is not None and known.base == ref.base and wanted in ("", known.digest):
            return Ready(str(known), known.digest)
    # A local build has no other name than its content.
    return Ready(found.content, found.content) if wanted in ("", found.content) else None


def _repo_digest(text: str) -> ImageRef | None:
    """Docker leaves the hub's name out where podman writes it: both mean the same."""
    try:
        return normalise(text) if "@" in text else None
    except ImageError:
        return None


def _from_file(runtime: Runtime, path: str, expected: str, say: Callable[[str], None], timeout_s: float) -> Ready:
    if not os.path.isfile(path):
        raise ImageError("not-found", f"image file {path} is not on this node: put it on a shared file system")
    if path.endswith(".sif") and runtime.keeps_images:
        raise ImageError(
            "reference", f"{path} is apptainer's format; {runtime.name} needs a .tar or a registry's image"
        )
    ref = path if path.endswith(".sif") else _load(runtime, path, say, timeout_s)
    answer = ask(runtime.digest_argv(ref), _INSPECT_S)
    content = runtime.identity(answer.output).content if answer.code == 0 else ""
    if not content or expected not in ("", content):
        raise ImageError("digest", f"{path} holds {content or 'no image'} here, but {expected} on the first node")
    return Ready(content if runtime.keeps_images else ref, content)


def _load(runtime: Runtime, path: str, say: Callable[[str], None], timeout_s: float) -> str:
    say(f"[INFO] Loading image from {path} ...")
    answer = ask(runtime.load_argv(path), timeout_s)
    if answer.code != 0:
        say(f"[ERROR] Pull failed for {path}.")
        raise _failure(f"cannot load {path}", answer)
    if not runtime.keeps_images:
        return path.lstrip("/")  # as `load_argv` named its file
    names: list[str] = [name or content for name, content in _LOADED.findall(answer.output)]
    if not names:
        say(f"[ERROR] Unable to determine image name or ID from {path}")
        raise ImageError("other", f"{runtime.name} loaded {path} but did not say what: is it made by 'docker save'?")
    return names[-1]


def _pull(
    runtime: Runtime, ref: ImageRef, credentials: Credentials | None, say: Callable[[str], None], timeout_s: float
) -> None:
    answer = ask(runtime.pull_argv(str(ref)), timeout_s)
    if answer.code == 0:
        return
    failure = _failure(str(ref), answer)
    # A private image looks missing to a stranger, so that "not found" is worth a second try, too.
    if credentials is None or failure.kind not in ("auth", "not-found", "rate-limit"):
        say(f"[ERROR] Pull failed for {ref}.")
        raise failure
    say(f"[INFO] Anonymous pull failed. Logging in to {ref.registry} as {credentials.username} ...")
    with tempfile.TemporaryDirectory(prefix="trackwalker-auth-") as folder:  # for us only, and gone after the pull
        auth_file = _write_auth(folder, ref.registry, credentials)
        answer = ask(runtime.pull_argv(str(ref)), timeout_s, {**os.environ, **runtime.auth_env(auth_file)})
    if answer.code != 0:
        say(f"[ERROR] Authenticated pull failed for {ref}.")
        raise _failure(str(ref), answer)


def _write_auth(folder: str, registry: str, credentials: Credentials) -> str:
    word = base64.b64encode(f"{credentials.username}:{credentials.token}".encode()).decode()
    keys = _HUB_KEYS if registry == HUB else (registry,)
    path = os.path.join(folder, "config.json")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump({"auths": {key: {"auth": word} for key in keys}}, out)
    return path


def _failure(what: str, answer: Answer) -> ImageError:
    text = answer.error.strip() or answer.output.strip()
    last = text.splitlines()[-1].strip() if text else f"exit code {answer.code}"
    if answer.code is None:
        return ImageError("network", f"{what}: {last}; raise STAGE_TIMEOUTS=pull:<seconds> or use a mirror")
    kind, advice = pull_cause(text)
    return ImageError(kind, f"{what}: {last}" + (f"; {advice}" if advice else ""))


def pull_cause(text: str) -> tuple[str, str]:
    """Why a pull failed, from what the runtime said, and what to do about it."""
    for kind, pattern, advice in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return kind, advice
    return "other", ""


def credentials_from(env: Mapping[str, str]) -> Credentials | None:
    """DOCKER_USERNAME and DOCKER_TOKEN, when both are set."""
    username, token = env.get("DOCKER_USERNAME", ""), env.get("DOCKER_TOKEN", "")
    return Credentials(username, token) if username and token else None
