"""A recorded command and whoever started it cannot tell: exit codes, signals, streams, terminals."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# What `trackwalker record` does with the command, without what runs beside it.
WRAP = (
    "import os, sys; from pathlib import Path; from trackwalker.launch.wrapped import Wrapped, end_as;"
    "sys.exit(end_as(Wrapped(sys.argv[2:], os.environ, Path(sys.argv[1])).wait(lambda: None)))"
)


def wrapped(tmp_path: Path, *argv: str) -> list[str]:
    return [sys.executable, "-c", WRAP, str(tmp_path / "0"), *argv]


def test_exit_codes_are_the_commands(tmp_path: Path) -> None:
    for code in (0, 1, 3, 126, 137, 255):
        done = subprocess.run(wrapped(tmp_path, "sh", "-c", f"exit {code}"), check=False)
        assert done.returncode == code
        assert (tmp_path / "0.exit").read_text() == str(code)


def test_a_command_that_dies_of_a_signal_takes_us_with_it_by_the_same(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        done = subprocess.run(wrapped(tmp_path, "sh", "-c", f"kill -{int(number)} $$"), check=False)
        assert done.returncode == -number
        assert (tmp_path / "0.exit").read_text() == str(128 + number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_us_reaches_the_command_once(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import signal, sys, time\nseen = []\n"
        f"signal.signal({int(number)}, lambda *_: seen.append(1))\n"
        "print('ready', flush=True)\n"
        "end = time.time() + 20\n"
        "while not seen and time.time() < end: time.sleep(0.02)\n"
        "time.sleep(0.3)\nprint(len(seen), flush=True)\nsys.exit(7)\n"
    )
    started = subprocess.Popen(wrapped(tmp_path, sys.executable, "-c", script), stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    started.send_signal(number)
    assert started.stdout.read() == b"1\n"
    assert started.wait(20) == 7
    assert (tmp_path / "0.told").exists() == (number != signal.SIGUSR1)


def test_killed_with_us(tmp_path: Path) -> None:
    started = subprocess.Popen(wrapped(tmp_path, "sh", "-c", "echo $$; exec sleep 60"), stdout=subprocess.PIPE)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.kill()
    started.wait(10)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")
    assert not (tmp_path / "0.exit").exists()


def test_streams_are_byte_for_byte_and_apart(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    script = "import sys; d = sys.stdin.buffer.read(); sys.stderr.buffer.write(d[::-1]); sys.stdout.buffer.write(d)"
    done = subprocess.run(wrapped(tmp_path, sys.executable, "-c", script), input=data, capture_output=True, check=True)
    assert done.stdout == data
    assert done.stderr == data[::-1]
    assert len((tmp_path / "0.out").read_bytes()) == 2 * len(data)


def test_one_file_for_both_streams_keeps_their_order(tmp_path: Path) -> None:
    script = "import os\nfor i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)"
    with (tmp_path / "both").open("wb") as both:
        subprocess.run(wrapped(tmp_path, sys.executable, "-c", script), stdout=both, stderr=both, check=True)
    wanted = b"".join(b"%d\n" % i for i in range(2000))
    assert (tmp_path / "both").read_bytes() == wanted
    assert (tmp_path / "0.out").read_bytes() == wanted


def test_a_reader_that_leaves_ends_the_command_as_without_us(tmp_path: Path) -> None:
    started = subprocess.Popen(wrapped(tmp_path, "yes"), stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.read(10)
    started.stdout.close()
    assert started.wait(20) == -signal.SIGPIPE


def test_a_child_left_behind_keeps_its_output(tmp_path: Path) -> None:
    script = "(sleep 1.5; echo late) & echo early"
    began = time.monotonic()
    started = subprocess.Popen(wrapped(tmp_path, "sh", "-c", script), stdout=subprocess.PIPE)
    assert started.wait(20) == 0
    assert started.stdout is not None
    assert started.stdout.read() == b"early\nlate\n"
    assert time.monotonic() - began > 1.4


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    script = (
        "import os, sys; a = [os.isatty(n) for n in (0, 1, 2)]; print(a, os.get_terminal_size(1), flush=True);"
        "print('got', input())"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        argv = wrapped(tmp_path, sys.executable, "-c", script)
        os.execv(argv[0], argv)  # noqa: S606
    os.write(terminal, b"typed\n")
    said = b""
    try:
        while b"got typed" not in said:
            said += os.read(terminal, 4096)
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"[True, True, True] os.terminal_size" in said
    assert b"got typed\r\n" in said or said.rstrip().endswith(b"got typed")
    assert b"got typed\n" in (tmp_path / "0.out").read_bytes()


def test_control_c_on_a_terminal_comes_once(tmp_path: Path) -> None:
    script = (
        "import signal, time\nseen = []\nsignal.signal(2, lambda *_: seen.append(1))\nprint('ready', flush=True)\n"
        "end = time.time() + 20\nwhile not seen and time.time() < end: time.sleep(0.02)\n"
        "time.sleep(0.3)\nprint('seen', len(seen), flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        argv = wrapped(tmp_path, sys.executable, "-c", script)
        os.execv(argv[0], argv)  # noqa: S606
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    try:
        while re.search(rb"seen \d", said) is None:  # a terminal may give half a line
            said += os.read(terminal, 4096)
    except OSError:
        pass
    assert b"seen 1" in said
    os.waitpid(pid, 0)


def on_a_terminal(argv: list[str]) -> tuple[bytes, int]:
    """All that a command writes to a terminal, and how it ends."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)  # noqa: S606
    said = b""
    try:
        while chunk := os.read(terminal, 65536):
            said += chunk
    except OSError:
        pass  # everybody has closed it
    os.close(terminal)
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_terminal_gets_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "def out(b):\n    while b: b = b[os.write(1, b):]\n"
        "out(b'\\x1b[31mred\\x1b[0m\\ttab\\rback\\n')\n"
        "for i in range(20000): out(b'%6d \\xc3\\xa4 line\\n' % i)\n"
        "os.write(2, b'to the other\\n'); out(b'no end of line')\n"
        "sys.exit(9)"
    )
    plain = [sys.executable, "-c", script]
    assert on_a_terminal(wrapped(tmp_path, *plain)) == on_a_terminal(plain)


@pytest.mark.parametrize(("script", "code"), [("echo out; exit 7", 7), ("echo out; kill -9 $$", -9)])
def test_the_whole_command_with_all_that_runs_beside_it(script: str, code: int, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "trackwalker", "record", "--no-metrics", "--no-verdict", "--workspace", str(tmp_path)]
    done = subprocess.run([*argv, "--", "sh", "-c", script], capture_output=True, check=False, timeout=60)
    assert done.returncode == code
    assert done.stdout == b"out\n"
    assert all(line.startswith(b"trackwalker: ") for line in done.stderr.splitlines())


@pytest.mark.long(reason="a gigabyte through a pipe, twice")
def test_a_gigabyte(tmp_path: Path) -> None:
    script = (
        "import os\nb = bytes(range(256)) * 4096\nfor i in range(1024):\n    v = b\n    while v: v = v[os.write(1, v):]"
    )
    started = subprocess.Popen(wrapped(tmp_path, sys.executable, "-c", script), stdout=subprocess.PIPE)
    assert started.stdout is not None
    digest, size = hashlib.sha256(), 0
    while chunk := started.stdout.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
    wanted = hashlib.sha256()
    for _ in range(1024):
        wanted.update(bytes(range(256)) * 4096)
    assert started.wait(60) == 0
    assert (size, digest.hexdigest()) == (1 << 30, wanted.hexdigest())
