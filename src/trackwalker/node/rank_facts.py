"""What /proc says of a rank and of the whole node at one moment: states, where threads sleep, sockets, who else runs.

Command lines and environments are left out on purpose: they hold secrets, and reading them can hang on a process that
hangs in the kernel.
"""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import asdict, dataclass

from trackwalker.job.processes import all_pids, read_bytes, read_stat
from trackwalker.node.proc import threads

_MOST_THREADS = 2000
_MOST_SOCKETS = 500
_MOST_PROCESSES = 5000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
_TCP = {
    1: "established", 2: "syn-sent", 3: "syn-received", 4: "fin-wait-1", 5: "fin-wait-2", 6: "time-wait",
    7: "close", 8: "close-wait", 9: "last-ack", 10: "listen", 11: "closing",
}  # fmt: skip
_STATUS = ("Name", "State", "Tgid", "NSpid", "PPid", "TracerPid", "Threads", "VmRSS", "SigPnd", "ShdPnd", "SigCgt")


@dataclass(frozen=True)
class Moment:
    """A process at one moment: its state, where in the kernel its main thread sleeps, the CPU time it has used."""

    state: str
    wchan: str
    cpu_s: float
    threads: int

    def record(self) -> dict[str, object]:
        """For the capsule's own account."""
        return asdict(self)


def moment(pid: int) -> Moment | None:
    """The process now; None when it is gone."""
    stat = read_stat(pid)
    if stat is None:
        return None
    return Moment(stat.state, _word(f"/proc/{pid}/wchan"), _cpu_s(pid), len(threads(pid)))


def describe(pid: int) -> bytes:
    """All that /proc tells of a process without asking the process: a text for people."""
    status = (read_bytes(f"/proc/{pid}/status") or b"").decode("utf-8", "replace").splitlines()
    lines = [f"== process {pid}", *(line for line in status if line.partition(":")[0] in _STATUS)]
    lines += [f"wchan: {_word(f'/proc/{pid}/wchan')}", f"syscall: {_word(f'/proc/{pid}/syscall')}"]
    lines += ["", "== kernel stack of the main thread", _text(f"/proc/{pid}/stack") or "(not readable by this user)"]
    lines += ["", "== threads: id, state, wchan, name"]
    for tid in sorted(threads(pid))[:_MOST_THREADS]:
        stat = read_stat(pid, tid)
        task = f"/proc/{pid}/task/{tid}"
        if stat is not None:
            lines.append(f"{tid} {stat.state} {_word(f'{task}/wchan')} {_word(f'{task}/comm')}")
    lines += ["", "== TCP: state, local, remote, bytes waiting to be sent, bytes waiting to be read", *_sockets(pid)]
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def process_table() -> bytes:
    """Every process of the node: pid, parent, state, resident KiB, CPU seconds, name."""
    lines = ["pid ppid state rss_kb cpu_s name"]
    for pid in sorted(all_pids())[:_MOST_PROCESSES]:
        raw = read_bytes(f"/proc/{pid}/stat") or b""
        words = raw[raw.rfind(b")") + 2 :].split()
        name = raw[raw.find(b"(") + 1 : raw.rfind(b")")].decode("utf-8", "replace")
        if len(words) > 21:
            rss = int(words[21]) * _PAGE_KB
            cpu = (int(words[11]) + int(words[12])) / _TICKS
            lines.append(f"{pid} {words[1].decode()} {words[0].decode()} {rss} {cpu:.2f} {name}")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _sockets(pid: int) -> list[str]:
    """The process's TCP connections: data that waits shows which peer does not take or does not send."""
    own = set()
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            if target.startswith("socket:["):
                own.add(target[8:-1])
    except OSError:
        return ["(not readable by this user)"]
    found: list[str] = []
    for name in ("tcp", "tcp6"):
        for line in _text(f"/proc/{pid}/net/{name}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[9] in own and len(found) < _MOST_SOCKETS:
                sending, _, reading = words[4].partition(":")
                state = _TCP.get(int(words[3], 16), words[3])
                ends = f"{_address(words[1])} {_address(words[2])}"
                found.append(f"{state} {ends} {int(sending, 16)} {int(reading, 16)}")
    return found


def _address(text: str) -> str:
    digits, _, port = text.partition(":")
    # The kernel prints each 32-bit word of the address as a number of this machine's byte order.
    raw = b"".join(struct.pack("=I", int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return f"{socket.inet_ntop(family, raw)}:{int(port, 16)}"


def _cpu_s(pid: int) -> float:
    raw = read_bytes(f"/proc/{pid}/stat") or b""
    words = raw[raw.rfind(b")") + 2 :].split()
    return (int(words[11]) + int(words[12])) / _TICKS if len(words) > 12 else 0.0


def _text(path: str) -> str:
    return (read_bytes(path) or b"").decode("utf-8", "replace").rstrip()


def _word(path: str) -> str:
    return " ".join(_text(path).split()) or "-"
