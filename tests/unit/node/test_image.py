"""Images: one spelling for every command, one content for every node, and a reason when there is none."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from trackwalker.node.runtimes.apptainer import Apptainer
from trackwalker.node.runtimes.docker import Docker
from trackwalker.node.runtimes.image import (
    Credentials,
    ImageError,
    Ready,
    credentials_from,
    ensure_image,
    normalise,
    pull_cause,
)
from trackwalker.node.runtimes.native import Native
from trackwalker.node.runtimes.podman import Podman

pytestmark = pytest.mark.starts_processes

ONE, TWO, ID = (f"sha256:{c * 64}" for c in "12f")


@pytest.mark.parametrize(
    ("given", "registry", "means"),
    [
        ("ubuntu", "docker.io", "docker.io/library/ubuntu:latest"),
        ("rocm/jax-training:maxtext-v26.2", "docker.io", "docker.io/rocm/jax-training:maxtext-v26.2"),
        ("docker.io/ubuntu", "docker.io", "docker.io/library/ubuntu:latest"),
        ("index.docker.io/rocm/x", "docker.io", "docker.io/rocm/x:latest"),
        ("rocm/jax:1", "registry.lab:5000", "registry.lab:5000/rocm/jax:1"),
        ("jax", "registry.lab/mirror/", "registry.lab/mirror/jax:latest"),
        ("ghcr.io/a/b:c", "registry.lab:5000", "ghcr.io/a/b:c"),  # a name of its own registry stays as it is
        ("localhost/x", "docker.io", "localhost/x:latest"),
        ("host:5000/x", "docker.io", "host:5000/x:latest"),
        (f"rocm/jax:1@{ONE}", "docker.io", f"docker.io/rocm/jax@{ONE}"),
        (f"rocm/jax@{ONE}", "docker.io", f"docker.io/rocm/jax@{ONE}"),
    ],
)
def test_r32_every_image_has_one_name(given: str, registry: str, means: str) -> None:
    assert str(normalise(given, registry)) == means
    assert str(normalise(means)) == means  # and it stays that


@pytest.mark.parametrize(
    "wrong", ["", "A/B", "a b", "x:", "x@sha256:12", "x:-1", "/x", "x/", "http://x/y", "x::1", "$(id)"]
)
def test_what_is_no_reference_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(ImageError, match="is no reference") as error:
        normalise(wrong)
    assert error.value.kind == "reference"


class Node:
    """A machine with a docker or podman of its own: what it has, what the registry gives, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "have").mkdir()
        (folder / "registry").mkdir()
        self.program = str(folder / "runtime")
        Path(self.program).write_text(f"""#!/bin/sh
cd {folder}
echo "$@" >> asked
key() {{ printf %s "$1" | tr '/:@' '___'; }}
case "$1" in
image) cat "have/$(key "$3")" ;;
pull) k=$(key "$3"); [ -n "$DOCKER_CONFIG" ] && cp "$DOCKER_CONFIG/config.json" auth.json
      if [ -f "private" ] && [ -z "$DOCKER_CONFIG" ]; then echo 'unauthorized: authentication required' >&2; exit 1; fi
      if [ -f "registry/$k" ]; then cp "registry/$k" "have/$k"; else cat says >&2; exit 1; fi ;;
load) cat says; exit 0 ;;
esac
""")
        Path(self.program).chmod(0o755)
        (folder / "says").write_text("Error: manifest unknown\n")

    def put(self, where: str, ref: str, digests: list[str]) -> None:
        told = [{"Id": ID, "RepoDigests": digests}]
        name = ref.translate(str.maketrans("/:@", "___"))
        (self.folder / where / name).write_text(json.dumps(told))

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_r32_inspect_pull_and_run_use_the_same_name(node: Node) -> None:
    name = "registry.lab:5000/rocm/jax:1"
    node.put("registry", name, [f"registry.lab:5000/rocm/jax@{ONE}"])
    lines: list[str] = []
    ready = ensure_image(Podman(node.program), "rocm/jax:1", "registry.lab:5000", say=lines.append)
    assert ready == Ready(f"registry.lab:5000/rocm/jax@{ONE}", ONE)
    assert {line.split()[-1] for line in node.asked()} == {name}
    assert lines == [f"[INFO] Image not found locally. Pulling {name} ..."]


def test_a_local_image_is_not_pulled_again_and_is_pinned(node: Node) -> None:
    node.put("have", "docker.io/rocm/jax:1", [f"rocm/jax@{ONE}"])  # docker leaves the hub's name out
    lines: list[str] = []
    ready = ensure_image(Docker(node.program), "rocm/jax:1", say=lines.append)
    assert ready == Ready(f"docker.io/rocm/jax@{ONE}", ONE)
    assert lines == ["[INFO] Image already exists locally. Skipping pull of docker.io/rocm/jax:1 ."]


def test_a_tag_that_means_another_content_here_does_not_count_as_present(node: Node) -> None:
    node.put("have", "docker.io/rocm/jax:1", [f"rocm/jax@{TWO}"])
    node.put("registry", f"docker.io/rocm/jax@{ONE}", [f"rocm/jax@{ONE}"])
    ready = ensure_image(Docker(node.program), "rocm/jax:1", expected=ONE, say=lambda line: None)
    assert ready == Ready(f"docker.io/rocm/jax@{ONE}", ONE)
    assert f"pull --quiet docker.io/rocm/jax@{ONE}" in node.asked()


def test_a_registry_that_gives_another_content_is_an_error(node: Node) -> None:
    node.put("registry", f"docker.io/rocm/jax@{ONE}", [f"rocm/jax@{TWO}"])
    with pytest.raises(ImageError) as error:
        ensure_image(Docker(node.program), "rocm/jax:1", expected=ONE, say=lambda line: None)
    assert error.value.kind == "digest"


def test_a_local_build_is_known_by_its_content(node: Node) -> None:
    node.put("have", "docker.io/library/mine:dev", [])
    assert ensure_image(Docker(node.program), "mine:dev", say=lambda line: None) == Ready(ID, ID)
    with pytest.raises(ImageError):  # another node, with another build of the same name
        ensure_image(Docker(node.program), "mine:dev", expected=ONE, say=lambda line: None)


def test_credentials_serve_one_pull_and_are_gone(node: Node, tmp_path: Path) -> None:
    (tmp_path / "private").touch()
    node.put("registry", "docker.io/rocm/jax:1", [f"rocm/jax@{ONE}"])
    lines: list[str] = []
    who = credentials_from({"DOCKER_USERNAME": "me", "DOCKER_TOKEN": "s3cret"})
    assert ensure_image(Docker(node.program), "rocm/jax:1", credentials=who, say=lines.append).digest == ONE
    assert lines[-1] == "[INFO] Anonymous pull failed. Logging in to docker.io as me ..."
    told = json.loads((tmp_path / "auth.json").read_text())["auths"]["https://index.docker.io/v1/"]["auth"]
    assert base64.b64decode(told) == b"me:s3cret"
    assert "s3cret" not in (tmp_path / "asked").read_text() + "".join(lines)


def test_a_pull_that_fails_with_credentials_says_so(node: Node) -> None:
    lines: list[str] = []
    with pytest.raises(ImageError, match="manifest unknown; check the image's name") as error:
        ensure_image(Docker(node.program), "rocm/none:1", credentials=Credentials("me", "x"), say=lines.append)
    assert error.value.kind == "not-found"
    assert lines[-1] == "[ERROR] Authenticated pull failed for docker.io/rocm/none:1."


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "Error response from daemon: manifest for rocm/jax:nope not found: manifest unknown: manifest unknown",
            "not-found",
        ),
        ("denied: requested access to the resource is denied\nunauthorized: authentication required", "auth"),
        ("pull access denied for rocm/secret, repository does not exist or may require 'docker login'", "auth"),
        ("failed to register layer: write /usr/lib/x.so: no space left on device", "disk-full"),
        ('Get "https://r.example/v2/": dial tcp: lookup r.example on 10.0.0.1:53: no such host', "network"),
        ("initializing source: pinging container registry: dial tcp 10.1.1.1:443: i/o timeout", "network"),
        ("toomanyrequests: You have reached your pull rate limit.", "rate-limit"),
        ("something new", "other"),
    ],
)
def test_a_failed_pull_has_a_cause(node: Node, text: str, kind: str) -> None:
    (node.folder / "says").write_text(text + "\n")
    lines: list[str] = []
    with pytest.raises(ImageError) as error:
        ensure_image(Docker(node.program), "rocm/jax:nope", say=lines.append)
    assert error.value.kind == kind == pull_cause(text)[0]
    assert lines[-1] == "[ERROR] Pull failed for docker.io/rocm/jax:nope."
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "answer",
    ["Loaded image: docker.io/rocm/jax:1", "Loaded image(s): docker.io/rocm/jax:1", f"Loaded image ID: {ID}"],
)
def test_an_archive_is_loaded_and_known_by_its_content(node: Node, tmp_path: Path, answer: str) -> None:
    archive = tmp_path / "image.tar"
    archive.touch()
    (tmp_path / "says").write_text(answer + "\n")
    node.put("have", "docker.io/rocm/jax:1", [])
    node.put("have", ID, [])
    assert ensure_image(Docker(node.program), str(archive), say=lambda line: None) == Ready(ID, ID)
    with pytest.raises(ImageError, match="on the first node"):
        ensure_image(Docker(node.program), str(archive), expected=ONE, say=lambda line: None)


def test_an_archive_that_cannot_be_used_says_why(node: Node, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="shared file system"):
        ensure_image(Docker(node.program), "/nowhere/image.tar")
    (tmp_path / "x.sif").touch()
    with pytest.raises(ImageError, match="apptainer's format"):
        ensure_image(Docker(node.program), str(tmp_path / "x.sif"))
    (tmp_path / "x.tar").touch()
    (tmp_path / "says").write_text("done\n")
    lines: list[str] = []
    with pytest.raises(ImageError, match="docker save"):
        ensure_image(Docker(node.program), str(tmp_path / "x.tar"), say=lines.append)
    assert lines[-1].startswith("[ERROR] Unable to determine image name or ID")


def test_apptainer_images_are_files_known_by_their_content(tmp_path: Path) -> None:
    program = tmp_path / "apptainer"
    program.write_text('#!/bin/sh\necho "$4" > "$3"\n')
    program.chmod(0o755)
    runtime = Apptainer(str(tmp_path), str(program))
    first = ensure_image(runtime, "rocm/jax:1", say=lambda line: None)
    assert first.ref == "docker.io/rocm/jax:1"
    assert Path(runtime.image(first.ref)).read_text() == "docker://docker.io/rocm/jax:1\n"
    again: list[str] = []
    assert ensure_image(runtime, "rocm/jax:1", expected=first.digest, say=again.append) == first
    assert "already exists" in again[0]
    Path(runtime.image(first.ref)).write_text("another")
    with pytest.raises(ImageError, match="shared file system"):
        ensure_image(runtime, "rocm/jax:1", expected=ONE, say=lambda line: None)


def test_without_a_container_there_is_no_image() -> None:
    assert ensure_image(Native(), "") == Ready("", "")
