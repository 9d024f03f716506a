"""Podman for real: what is ordered is what runs inside, and its end is ours to decide and nobody else's.

Needs a podman that can run a container here (root, runc) and a static busybox; skips with the reason otherwise.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import random
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trackwalker.node.runtimes.container import JOB_LABEL, ContainerOrder, Mount, own_name
from trackwalker.node.runtimes.image import ImageError, Ready, ensure_image
from trackwalker.node.runtimes.lifetime import STOP_BUDGET_S, own_containers, remove_stale, stop_container
from trackwalker.node.runtimes.podman import Podman, podman_here

IMAGE = "localhost/trackwalker-test-busybox:1"
APPLETS = ("sh", "cat", "env", "sleep", "printf", "id", "ls", "grep", "touch", "kill", "stat")
PROGRAM = """#!/bin/sh
for step in 0 1 2; do
  echo "completed step: $step, seconds: 0.100, TFLOP/s/device: 1.0, Tokens/s/device: 9.0, loss: 1.0"
done
printf '%s|' "$NODE_RANK" "$@"
"""
HARD_VALUES = {
    "TW_PLAIN": "a b",
    "TW_QUOTES": 'it\'s "quoted" `x` $(id) $HOME ${HOME} %s %% \\n \\',
    "TW_LINES": "one\ntwo\n\n three\n",
    "TW_UNICODE": "Zürich 日本 🚂",
    "TW_EMPTY": "",
    "TW_TOKEN": "hf_secret",
    "TW_EQUALS": "=a=b,c;d",
    "PATH": "/bin:/with space",  # would steer the client if it stood in its environment
    "LD_LIBRARY_PATH": "/opt/rocm/lib",
}


def podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or busybox is None:
        pytest.skip(
            "podman or busybox is missing: apt-get install podman runc busybox-static (scripts/setup-tests does it)"
        )
    folder = tmp_path_factory.mktemp("image")
    settings = folder / "containers.conf"
    if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin"):  # crun needs more of the kernel than a sandbox has
        settings.write_text('[engine]\nruntime = "runc"\n')
    with pytest.MonkeyPatch.context() as patch:
        if settings.exists():
            patch.setenv("CONTAINERS_CONF", str(settings))
        archive = folder / "root.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(busybox, "bin/busybox")
            for applet in APPLETS:
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
            program = tarfile.TarInfo("bin/python3")  # enough of it to stand for a trainer's
            program.size, program.mode = len(PROGRAM), 0o755
            tar.addfile(program, io.BytesIO(PROGRAM.encode()))
            for name in ("tmp", "proc", "sys", "dev", "etc"):
                made = tarfile.TarInfo(name)
                made.type, made.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(made)
        try:
            podman("import", str(archive), IMAGE)
        except (subprocess.SubprocessError, OSError) as e:
            pytest.skip(f"podman cannot import an image here: {e}")
        found = podman_here()
        ready = ensure_image(found, IMAGE, say=lambda line: None)
        probe = run(found, ContainerOrder(ready.ref, f"trackwalker-probe-{os.getpid()}", ["sh", "-c", ":"]))
        try:
            if probe.returncode != 0:
                pytest.skip(f"podman cannot run a container here: {probe.stderr.decode().strip()[-200:]}")
            yield found
        finally:
            subprocess.run(["podman", "rmi", "--force", IMAGE], capture_output=True, timeout=60, check=False)


@pytest.fixture
def job_id(runtime: Podman) -> Iterator[str]:
    number = f"{os.getpid()}{time.monotonic_ns() % 100000}"
    yield number
    for name in own_containers(runtime, number, 20.0) or []:
        subprocess.run(runtime.remove_argv(name), capture_output=True, timeout=60, check=False)


@pytest.fixture
def image(runtime: Podman) -> str:
    return ensure_image(runtime, IMAGE, say=lambda line: None).ref


def run(runtime: Podman, order: ContainerOrder) -> subprocess.CompletedProcess[bytes]:
    env = runtime.run_env(order, os.environ)
    return subprocess.run(runtime.run_argv(order), env=env, capture_output=True, timeout=60)


def start(runtime: Podman, order: ContainerOrder) -> subprocess.Popen[bytes]:
    env = runtime.run_env(order, os.environ)
    process = subprocess.Popen(runtime.run_argv(order), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n", process.stdout.read()
    return process


def deaf(job_id: str, image: str, rank: int = 0) -> ContainerOrder:
    """A container that says when it is up and then ignores TERM."""
    words = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]
    return ContainerOrder(image, own_name(job_id, rank), words, labels={JOB_LABEL: job_id})


def test_r04_environment_and_words_arrive_byte_for_byte(runtime: Podman, job_id: str, image: str) -> None:
    chance = random.Random(7)
    letters = "ab \t\n\r'\"`$\\%=,;:*?~#&|<>(){}[]!^-/\x02\x7fü€日🚂\u200b"
    drawn = ["".join(chance.choices(letters, k=chance.randrange(40))) for _ in range(200)]
    env = {**HARD_VALUES, **{f"TW_{n}": value for n, value in enumerate(drawn[:100])}}
    words = ["a b", "it's", "", "-x", "--env", *drawn[100:]]
    script = 'for n in {}; do eval "printf %s \\"\\$$n\\""; printf "\\001"; done; '
    script += 'for w in "$@"; do printf "%s\\001" "$w"; done'
    order = ContainerOrder(
        image,
        own_name(job_id, 0),
        ["/bin/sh", "-c", script.format(" ".join(env)), "sh", *words],
        env=env,
        labels={JOB_LABEL: job_id},
    )
    done = run(runtime, order)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(b"\1")[:-1] == [v.encode() for v in [*env.values(), *words]]
    assert "hf_secret" not in " ".join(runtime.run_argv(order))


def test_folders_limits_and_exit_codes_are_as_ordered(runtime: Podman, job_id: str, image: str, tmp_path: Path) -> None:
    data, out = tmp_path / "da,ta:x", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    (data / "file").write_text("read me")
    script = "cat /data/file; touch /data/no 2>/dev/null && echo wrote; touch here; ulimit -c; exit 7"
    order = ContainerOrder(
        image,
        own_name(job_id, 0),
        ["sh", "-c", script],
        labels={JOB_LABEL: job_id},
        mounts=[Mount(str(data), "/data", read_only=True), Mount(str(out), "/o u t")],
        workdir="/o u t",
        ulimits={"memlock": -1, "nofile": 1 << 20, "core": 0},
        groups=["12"],
    )
    done = run(runtime, order)
    assert (done.returncode, done.stdout) == (7, b"read me0\n"), done.stderr
    assert (out / "here").exists()
    assert own_containers(runtime, job_id, 20.0) == []  # --rm


def test_an_image_is_known_by_its_digest(runtime: Podman, tmp_path: Path) -> None:
    lines: list[str] = []
    ready = ensure_image(runtime, IMAGE, say=lines.append)
    assert ready.ref == f"localhost/trackwalker-test-busybox@{ready.digest}"
    assert "already exists" in lines[0]
    assert ensure_image(runtime, IMAGE, expected=ready.digest, say=lines.append) == ready
    with pytest.raises(ImageError) as error:  # there is no registry on localhost
        ensure_image(runtime, IMAGE, expected="sha256:" + "0" * 64, say=lines.append)
    assert error.value.kind in ("network", "not-found")
    archive = tmp_path / "saved.tar"
    podman("save", "--output", str(archive), IMAGE)
    loaded = ensure_image(runtime, str(archive), say=lines.append)
    assert loaded == Ready(loaded.digest, loaded.digest)
    done = run(runtime, ContainerOrder(loaded.ref, f"trackwalker-loaded-{os.getpid()}", ["sh", "-c", "echo ok"]))
    assert done.stdout == b"ok\n"


def test_term_reaches_the_process_inside(runtime: Podman, job_id: str, image: str) -> None:
    words = ["sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done"]
    client = start(runtime, ContainerOrder(image, own_name(job_id, 0), words, labels={JOB_LABEL: job_id}))
    # In the first instants podman's client has no handler yet: it ends with code 0 and leaves the container running
    # (seen in 1 of 7 starts). That is why a job's end asks for its containers, whatever the clients said.
    time.sleep(1.0)  # the wait is the subject: there is no sign by which to see that the handler is there
    client.send_signal(signal.SIGTERM)
    assert client.communicate(timeout=30)[0] == b"bye\n"
    assert client.returncode == 3


def test_r18_r35_stop_ends_ours_and_no_other(runtime: Podman, job_id: str, image: str) -> None:
    ours = start(runtime, deaf(job_id, image))
    other = f"{job_id}9"
    foreign = start(runtime, deaf(other, image))
    try:
        assert own_containers(runtime, job_id, 20.0) == [own_name(job_id, 0)]
        assert not remove_stale(runtime, job_id, own_name(other, 0))
        stop_container(runtime, job_id, own_name(other, 0))  # not of this job: untouched
        ended = stop_container(runtime, job_id, own_name(job_id, 0), grace_s=0.0)
        assert ended.left == ()
        ours.communicate(timeout=30)
        assert own_containers(runtime, job_id, 20.0) == []
        assert own_containers(runtime, other, 20.0) == [own_name(other, 0)]
        assert foreign.poll() is None
    finally:
        subprocess.run(runtime.remove_argv(own_name(other, 0)), capture_output=True, timeout=60, check=False)
        foreign.communicate(timeout=30)


def test_r18_a_container_ends_within_15_s_although_podman_hangs(
    runtime: Podman, job_id: str, image: str, tmp_path: Path
) -> None:
    hangs = tmp_path / "podman"
    hangs.write_text('#!/bin/sh\ncase "$1" in stop|kill|rm) exec sleep 60;; *) exec podman "$@";; esac\n')
    hangs.chmod(0o755)
    client = start(runtime, deaf(job_id, image))
    begin = time.monotonic()
    ended = stop_container(Podman(str(hangs), init=runtime.init, hard=runtime.hard), job_id, own_name(job_id, 0))
    seconds = time.monotonic() - begin
    assert (ended.how, ended.left) == ("by signals", ())
    assert seconds < STOP_BUDGET_S
    assert client.wait(30) == 128 + signal.SIGKILL
    client.communicate()


def test_a_container_that_an_earlier_attempt_left_makes_room(runtime: Podman, job_id: str, image: str) -> None:
    first = start(runtime, deaf(job_id, image))
    first.kill()  # the client only: the container lives on, as after a node's agent was killed
    first.communicate()
    assert own_containers(runtime, job_id, 20.0) == [own_name(job_id, 0)]
    assert remove_stale(runtime, job_id, own_name(job_id, 0))
    again = ContainerOrder(image, own_name(job_id, 0), ["sh", "-c", "echo again"], labels={JOB_LABEL: job_id})
    assert run(runtime, again).stdout == b"again\n"


class Terminal:
    """A person at a keyboard: `trackwalker shell` on a pseudo terminal."""

    def __init__(self, workspace: Path) -> None:
        words = [sys.executable, "-m", "trackwalker", "shell", "--image", IMAGE, "--runtime", "podman"]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(workspace)
            os.execv(sys.executable, [*words, "--workspace", str(workspace)])  # noqa: S606

    def say_until(self, words: str, wanted: bytes, seconds: float = 60.0) -> bytes:
        os.write(self.fd, words.encode())
        seen, deadline = b"", time.monotonic() + seconds
        while wanted not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([self.fd], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    seen += os.read(self.fd, 4096)
        return seen

    def close(self) -> int:
        os.write(self.fd, b"exit 5\n")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    os.read(self.fd, 4096)
                except OSError:  # the other end is closed
                    break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_r33_two_interactive_shells_coexist(runtime: Podman, tmp_path: Path) -> None:
    shells = [Terminal(tmp_path), Terminal(tmp_path)]
    for number, shell in enumerate(shells):
        said = shell.say_until(f"echo in-$TRACKWALKER_CONTAINER-$(({number}+40))\n", f"-{number + 40}\r\n".encode())
        assert b"in-trackwalker-shell-" in said
    names = podman("ps", "--filter", "label=trackwalker.shell", "--format", "{{.Names}}").split()
    assert len(set(names)) == 2
    assert [shell.close() for shell in shells] == [5, 5]


def node_agent(tmp_path: Path, job_id: str, script: str, **more: object) -> subprocess.Popen[str]:
    """The agent of a job of one node with two ranks, as Slurm starts it."""
    submission = tmp_path / "submission"
    submission.mkdir()
    order = {
        "name": "JAX-box",
        "model": "box",
        "scheduler": "slurm",
        "workspace": str(tmp_path / "ws"),
        "nodes": 1,
        "procs": 2,
        "argv": ["sh", "-c", script, "trainer"],
        "settings": ["text=a 'b' \"c\" $d\n%e ü"],
        "workdir": str(tmp_path / "ws"),
        "overrides": {"TW_VALUE": HARD_VALUES["TW_QUOTES"], "TW_TOKEN": "hf_secret"},
        "expected_gpus": 0,
        "timeouts": {"pull": 60.0},
        "container": {"runtime": "podman", "image": IMAGE},
        **more,
    }
    (tmp_path / "ws").mkdir()
    (submission / "order.json").write_text(json.dumps(order))
    slurm = {"SLURM_JOB_ID": job_id, "SLURM_NODEID": "0", "SLURMD_NODENAME": "box1"}
    words = [sys.executable, "-m", "trackwalker.node", "node", str(submission / "order.json")]
    return subprocess.Popen(
        words, env={**os.environ, **slurm}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_job_runs_in_podman_from_its_order_to_its_summary(runtime: Podman, job_id: str, tmp_path: Path) -> None:
    script = 'printf "%s|" "$GLOBAL_RANK" "$TW_VALUE" "$@"; echo; cat /proc/1/comm; exit $((GLOBAL_RANK * 9))'
    agent = node_agent(tmp_path, job_id, script)
    log = agent.communicate(timeout=120)[0]
    assert f"0|{HARD_VALUES['TW_QUOTES']}|text=a 'b' \"c\" $d" in log, log
    assert "%e ü|" in log
    assert "== Docker pull END" in log
    assert "[INFO] Image already exists locally." in log
    assert "1: NODE_EXIT host=box1 exit=9" in log
    assert "Status: FAILED (exit 9)" in log
    assert "hf_secret" not in log
    assert agent.returncode == 9
    assert own_containers(runtime, job_id, 20.0) == []


def test_r17_r18_a_cancelled_job_leaves_no_container(runtime: Podman, job_id: str, tmp_path: Path) -> None:
    up = tmp_path / "ws" / "up"
    script = f"trap '' TERM; touch {up}$GLOBAL_RANK; while :; do sleep 1; done"
    agent = node_agent(tmp_path, job_id, script, grace_s=1.0)
    deadline = time.monotonic() + 60
    while not (Path(f"{up}0").exists() and Path(f"{up}1").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    begin = time.monotonic()
    agent.send_signal(signal.SIGTERM)
    log = agent.communicate(timeout=60)[0]
    assert time.monotonic() - begin < 1.0 + STOP_BUDGET_S
    assert agent.returncode == 143
    assert "CANCELLED (scancel / SIGTERM)" in log
    assert own_containers(runtime, job_id, 20.0) == []


def test_run_in_an_image_on_this_machine(runtime: Podman, tmp_path: Path) -> None:
    words = ["run", "tiny", "--image", IMAGE, "--runtime", "podman", "--workspace", str(tmp_path), "--", "run_name=a b"]
    argv = [sys.executable, "-m", "trackwalker", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = tmp_path.glob("local_*.log")
    text = log.read_text()
    assert "0: completed step: 2" in text
    assert "|run_name=a b|" in text
    assert "SUCCESS (exit 0)" in text
    record = json.loads((log.with_suffix("") / "run.json").read_text())
    assert record["image"] == IMAGE
    assert record["image_digest"].startswith("sha256:")
    assert own_containers(runtime, record["id"], 20.0) == []
