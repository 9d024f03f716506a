"""One capsule of one node: collectors side by side, each with its own file, all within a time."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trackwalker.job.processes import all_pids, read_bytes, read_stat, threads
from trackwalker.job.whole import write_whole
from trackwalker.node.agent.ranks import Rank
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.collectors.kernel_log import parse_record
from trackwalker.node.collectors.netdev import NetdevCollector
from trackwalker.node.collectors.rank_net import sockets_of
from trackwalker.node.collectors.rdma import RdmaCollector
from trackwalker.node.evidence import nccl_ras
from trackwalker.node.evidence.rank_stacks import LISTENING, Subject, find_pyspy, read_native, read_stack

DONE = "done.json"
BEFORE_KILL_S = 3.0  # the scheduler's own patience is 30 s, often less
_LIMIT_S = 20.0
_APART_S = 2.0  # between two looks at counters and states
_MOST_FILE = 16 << 20
_KERNEL_RECORDS = 400
_FLIGHT_RECORDER = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


# What /proc says of a rank and of the whole node at one moment: states, where threads sleep, sockets, who else runs.
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


def moment(pid: int) -> Moment | None:
    """The process now; None when it is gone."""
    stat = read_stat(pid)
    if stat is None:
        return None
    return Moment(stat.state, _word(f"/proc/{pid}/wchan"), stat.ticks / _TICKS, len(threads(pid)))


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
        stat = read_stat(pid)
        if stat is not None:
            rss, cpu = stat.pages * _PAGE_KB, stat.ticks / _TICKS
            lines.append(f"{pid} {stat.parent} {stat.state} {rss} {cpu:.2f} {stat.name}")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _sockets(pid: int) -> list[str]:
    """The process's TCP connections: data that waits shows which peer does not take or does not send."""
    if not os.access(f"/proc/{pid}/fd", os.R_OK | os.X_OK):
        return ["(not readable by this user)"]
    own = {str(inode) for inode in sockets_of(pid)}
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


def _text(path: str) -> str:
    return (read_bytes(path) or b"").decode("utf-8", "replace").rstrip()


def _word(path: str) -> str:
    return " ".join(_text(path).split()) or "-"


class Collection:
    """One capsule: collectors side by side, a deadline, and an account of what each of them did."""

    def __init__(self, spec: AgentSpec, ranks: Sequence[Rank], folder: Path) -> None:
        self._spec, self._ranks, self._folder = spec, ranks, folder
        self._lock = threading.Lock()
        self._looked = threading.Event()  # both looks at the states are over
        self._closed = False
        self._account: dict[str, str] = {}
        self._files: dict[str, int] = {}
        self._notes: dict[int, list[str]] = {}
        self._places: set[bytes] = set()
        self._held = 0

    def collect(self, pause: bool, brief: bool, why: str) -> dict[str, Any]:
        """Write everything that is there within the time; returns what `done.json` holds."""
        began, began_at = time.monotonic(), time.time()
        deadline = began + (BEFORE_KILL_S - 0.5 if brief else _LIMIT_S)
        subjects = {rank.spec.rank: Subject(rank.spec.rank, trainer_of(rank), rank.stack_note) for rank in self._ranks}
        first = {number: moment(subject.pid) for number, subject in subjects.items()}
        work: dict[str, Callable[[], None]] = {}
        for rank in self._ranks:
            subject = subjects[rank.spec.rank]
            work[f"stack of rank {subject.rank}"] = partial(self._stack, rank, subject, pause, brief)
            work[f"proc of rank {subject.rank}"] = partial(self._describe, subject)
        if not brief:
            work |= {
                "kernel log": lambda: self._put("kernel.txt", kernel_tail()),
                "processes": lambda: self._put("processes.txt", process_table()),
                "network": self._network,
                "nccl ras": self._ras,
                "flight recorder": self._flight_recorder,
            }
        threads = [threading.Thread(target=self._run, args=item, daemon=True) for item in work.items()]
        for thread in threads:
            thread.start()
        if not brief:
            time.sleep(_APART_S)
        second = {number: None if brief else moment(subject.pid) for number, subject in subjects.items()}
        self._looked.set()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._closed = True
            account = {name: self._account.get(name, "did not end in its time") for name in work}
        told = [self._rank(rank, subjects[rank.spec.rank], first, second) for rank in self._ranks]
        done: dict[str, Any] = {
            "v": 1, "node": self._spec.node, "attempt": self._spec.attempt, "t": began_at, "why": why, "brief": brief,
            "seconds": round(time.monotonic() - began, 3), "ranks": told, "collectors": account, "files": self._files,
        }  # fmt: skip
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._folder / DONE, json.dumps(done, indent=1))
        return done

    def _rank(
        self,
        rank: Rank,
        subject: Subject,
        first: Mapping[int, Moment | None],
        second: Mapping[int, Moment | None],
    ) -> dict[str, Any]:
        number = rank.spec.rank
        now, later = first[number], second[number]
        return {
            "rank": number, "host": rank.spec.host, "pid": subject.pid,
            "now": asdict(now) if now else None, "later": asdict(later) if later else None,
            "notes": self._notes.get(number, []),
        }  # fmt: skip

    def _run(self, name: str, what: Callable[[], None]) -> None:
        try:
            what()
            said = "ok"
        except OSError as e:
            said = str(e.strerror or e)
        except Exception as e:  # one collector's trouble is its own
            said = str(e) or type(e).__name__
        with self._lock:
            self._account[name] = said[:200]

    def _put(self, name: str, text: bytes) -> None:
        """Write one file whole; what comes after the end of the capsule is dropped."""
        if not text:
            return
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.tmp")
        aside.write_bytes(text[:_MOST_FILE])
        with self._lock:
            if self._closed:
                aside.unlink()
                return
            os.replace(aside, path)
            self._files[name] = len(text)

    def _stack(self, rank: Rank, subject: Subject, pause: bool, brief: bool) -> None:
        pyspy = find_pyspy(rank.spec.argv, {**os.environ, **rank.spec.env})
        stack = read_stack(subject, pyspy)
        self._keep(subject, stack.files, stack.notes)
        text = stack.files.get("py-spy.txt")
        if text is not None and not brief:
            self._looked.wait(_LIMIT_S)  # seconds later, and a rank that is held is not taken for one somebody stopped
            self._keep(subject, {"py-spy-later.txt": read_stack(subject, pyspy).files.get("py-spy.txt", b"")}, [])
            if pause and self._may_hold(subject, text):
                native = read_native(subject, pyspy)
                self._keep(subject, native.files, native.notes)
        if not stack.files:
            raise RuntimeError("; ".join(stack.notes) or "no stack")

    def _may_hold(self, subject: Subject, text: bytes) -> bool:
        """Native stacks cost seconds of a core each: one for each place that ranks are in, more with more cores."""
        stat = read_stat(subject.pid)
        if stat is None or stat.state not in LISTENING:
            return False
        place = re.sub(rb"\d+", b"", text)
        with self._lock:
            if place in self._places and self._held >= (os.cpu_count() or 1) // 2:
                return False
            self._places.add(place)
            self._held += 1
            return True

    def _keep(self, subject: Subject, files: Mapping[str, bytes], notes: Sequence[str]) -> None:
        with self._lock:
            self._notes.setdefault(subject.rank, []).extend(notes)
        for ending, text in files.items():
            self._put(f"rank-{subject.rank}.{ending}", text)

    def _describe(self, subject: Subject) -> None:
        self._put(f"rank-{subject.rank}.proc.txt", describe(subject.pid))

    def _network(self) -> None:
        collectors = (NetdevCollector(self._spec.node), RdmaCollector(self._spec.node))

        def counters() -> dict[str, float]:
            return {
                f"{family.name}{{{','.join(f'{k}={v}' for k, v in sorted(labels.items()) if k != 'host')}}}": value
                for collector in collectors
                for family in collector.collect()
                if family.kind == "counter"
                for labels, value, _ in family.samples
            }

        before, at = counters(), time.monotonic()
        time.sleep(_APART_S)
        after, seconds = counters(), time.monotonic() - at
        grown = {name: value - before[name] for name, value in after.items() if name in before}
        told = {"seconds": round(seconds, 3), "grown": grown, "now": after}
        self._put("network.json", json.dumps(told, indent=1).encode())

    def _ras(self) -> None:
        env = {**os.environ, **(self._ranks[0].spec.env if self._ranks else {})}
        self._put("nccl-ras.txt", nccl_ras.ask(env))

    def _flight_recorder(self) -> None:
        """Dumps that PyTorch wrote because a collective timed out: `<prefix><rank>`."""
        for rank in self._ranks:
            prefix = rank.spec.env.get(_FLIGHT_RECORDER) or os.environ.get(_FLIGHT_RECORDER, "")
            path = Path(f"{prefix}{rank.spec.rank}")
            if prefix and path.is_file() and path.stat().st_size <= _MOST_FILE:
                self._put(f"flight-recorder/{rank.spec.rank}", path.read_bytes())


def trainer_of(rank: Rank) -> int:
    """The training process of a rank: the program itself, or, behind a container's client, the Python inside."""
    if _is_python(rank.main):
        return rank.main
    pythons = [pid for pid in rank.members() if _is_python(pid)]
    return min(pythons, key=lambda pid: (stat.start if (stat := read_stat(pid)) else 0, pid), default=rank.main)


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def kernel_tail(path: str = "/dev/kmsg") -> bytes:
    """The last records of the kernel log; raises OSError where it may not be read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines: list[str] = []
    try:
        while True:
            try:
                raw = os.read(fd, 1 << 14)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while we read: the next one is there
            if not raw:
                break
            record = parse_record(raw)
            if record is not None:
                lines.append(f"[{record.uptime:.6f}] <{record.level}> {record.text}")
                del lines[:-_KERNEL_RECORDS]
    finally:
        os.close(fd)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
