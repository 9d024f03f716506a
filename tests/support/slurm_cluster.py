"""A real Slurm on this machine: a controller and several nodes, each with a daemon of its own, ready in a second.

All state is in one temporary folder, every port is its own, and nothing is written outside: two clusters run beside
each other, and beside a Slurm that the machine may belong to.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slurm_accounting
from netns_nodes import NodeNetwork
from ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_MEMORY = Path("/sys/fs/cgroup/memory")
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # where an ordinary user's PATH does not look

_CONF = """
ClusterName=trackwalker
SlurmctldHost={host}({at})
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge/socket,cred_expire=5
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout={slurmd_timeout}
MessageTimeout=20
KillWait=5
OverTimeLimit=0
ReturnToService=2
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={dir}/jobcomp.log
{extra}
"""


class SlurmCluster:
    """A running cluster; `env` is what a client needs to find it."""

    def __init__(
        self,
        nodes: int = 4,
        *,
        gpus: int = 0,
        gpu_nodes: int | None = None,
        prolog: str = "",
        conf: str = "",
        slurmd_timeout: int = 10,
        memory_mb: int = 0,
        network: NodeNetwork | None = None,
        accounting: bool = False,
        partitions: str = "",
    ) -> None:
        # A node's control group has the node's name, and the kernel has one tree of them: no two clusters may share it.
        prefix = f"t{os.getpid()}x" if memory_mb else "n"
        self.names = [f"{prefix}{i}" for i in range(1, nodes + 1)]
        self._memory_mb = memory_mb  # of each node; jobs are held to what they asked for
        self._network = network  # of the nodes; without one they share this machine's
        self._accounting = accounting  # with a slurmdbd and its database
        self._partitions = partitions  # further lines of slurm.conf behind the nodes; {nodes} are their names
        self._dbd_ports = (0, 0)
        self._gpus = gpus  # on each node, as Slurm counts them; nothing is behind them
        self._gpu_nodes = self.names[:gpu_nodes]  # those that have them; all
        self._slurmd_timeout = slurmd_timeout
        self.dir = Path(tempfile.mkdtemp(prefix="tw-slurm-", dir="/tmp"))  # short: a socket's path may have 107 bytes
        self.conf = self.dir / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._prolog = prolog
        self._more_conf = conf  # further lines of slurm.conf
        own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN", "SACCT", "SQUEUE"))}
        path = os.pathsep.join([own.get("PATH", ""), *_SBIN])
        self.env = {**own, "PATH": path, "SLURM_CONF": str(self.conf)}

    def __enter__(self) -> SlurmCluster:
        try:
            # A port that was free when we looked may be somebody's by now.
            if not self._start() and not self._start() and not self._start():
                raise AssertionError(f"a daemon of the Slurm cluster does not stay; {self._last_words()}")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def client(self, *argv: str, check: bool = True, timeout: float = 30.0) -> str:
        """What a Slurm command prints."""
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0 or not check, f"{argv}: {done.stderr}{done.stdout}"
        return done.stdout

    def wait_idle(self, seconds: float = 20.0) -> None:
        """Until every node takes jobs, and no job is left."""
        self.wait_for(lambda: self.node_states() == dict.fromkeys(self.names, "idle"), "idle nodes", seconds)

    def node_states(self) -> dict[str, str]:
        """What the controller thinks of each node."""
        rows = self.client("sinfo", "-h", "-N", "-o", "%N %T", check=False).split("\n")
        return dict(row.split() for row in rows if row.strip())

    def wait_for(self, ready: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
        """The first true answer."""
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {seconds:g} s; {self._last_words()}")
            time.sleep(0.2)  # most of these questions start a program
        return found

    def kill_node(self, name: str) -> None:
        """The node is gone at once: its daemon and everything it runs."""
        daemon = self._daemons.pop(name)
        tasks = [pid for pid in self._belonging() if _node_of(pid) == name]
        keepers = {_parent(pid) for pid in tasks} & {
            p for p in self._belonging() if "slurmstepd" in _read(p, "cmdline")
        }
        for pid in [daemon.pid, *keepers, *tasks]:
            _kill(pid)
        daemon.wait()

    def daemon(self, name: str) -> int:
        """The process of a node's daemon: what it starts inherits its limits."""
        return self._daemons[name].pid

    def restart_node(self, name: str) -> None:
        """The node comes back with nothing running on it."""
        self._start_node(name)
        self.wait_for(lambda: "down" not in self.node_states().get(name, "down"), f"{name} back")

    def stop_controller(self) -> None:
        """The controller goes, having saved what it knows; jobs go on."""
        daemon = self._daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait(20)

    def start_controller(self) -> None:
        """The controller is back, with the jobs it knew."""
        self._spawn("slurmctld", "slurmctld", "-D")
        self.wait_for(lambda: self.node_states(), "controller")

    def close(self) -> None:
        """Ends jobs, daemons and whatever they started; leaves no file."""
        if "slurmctld" in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                self.cancel_all()
        self._stop()
        for name in self.names if self._memory_mb else []:
            _remove_groups(_MEMORY / f"slurm_{name}")
        shutil.rmtree(slurm_accounting.data_of(self.dir), ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    def cancel_all(self) -> None:
        """Ends every job and waits until none is left."""
        self.client("scancel", "-u", getpass.getuser(), check=False)
        self.wait_for(lambda: not self.client("squeue", "-h", check=False).strip(), "empty queue")

    def leftovers(self) -> list[int]:
        """Processes of jobs: what runs for this cluster and is none of its daemons."""
        daemons = {d.pid for d in self._daemons.values()}
        return [p for p in self._belonging() if p not in daemons and "slurmscriptd" not in _read(p, "cmdline")]

    def _start(self) -> bool:
        """Starts every daemon; false when one of them ended at once."""
        self._stop()
        for name in ("munge", "state", "spool", "dev"):
            shutil.rmtree(self.dir / name, ignore_errors=True)
            (self.dir / name).mkdir(mode=0o755)
        key = self.dir / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self._configure()
        munge = self.dir / "munge"
        files = [f"--{what}={munge}/{what}" for what in ("socket", "pid-file", "log-file", "seed-file")]
        # --force: munged would rather not have its files below a folder that others may write to.
        self._spawn("munged", "munged", "-F", "--force", "--num-threads=2", f"--key-file={key}", *files)
        self.wait_for((munge / "socket").exists, "munge socket")
        if self._accounting:
            self._start_accounting()
        self._spawn("slurmctld", "slurmctld", "-D")
        for name in self.names:
            self._start_node(name)
        idle = dict.fromkeys(self.names, "idle")
        self.wait_for(lambda: self._has_lost() or self.node_states() == idle, "idle nodes", 30)
        return not self._has_lost()

    def _start_accounting(self) -> None:
        """The database, slurmdbd on top of it, and this cluster's name in it."""
        port, sql_port = self._dbd_ports
        shutil.rmtree(slurm_accounting.data_of(self.dir), ignore_errors=True)
        password = slurm_accounting.configure(self.dir, socket.gethostname(), port, sql_port)
        self._spawn("mariadbd", *slurm_accounting.database_argv(self.dir, sql_port, password, self.env))
        self.wait_for(lambda: _listens(sql_port), "database", 30)
        self._spawn("slurmdbd", "slurmdbd", "-D")
        self.wait_for(lambda: _listens(port), "slurmdbd", 60)  # it makes its tables first
        self.client("sacctmgr", "-i", "add", "cluster", "trackwalker", timeout=60)

    def stop_accounting(self) -> None:
        """slurmdbd goes; the controller keeps what it would have told it."""
        daemon = self._daemons.pop("slurmdbd")
        daemon.terminate()
        daemon.wait(20)

    def _start_node(self, name: str) -> None:
        enter = self._network.enter(self.names.index(name), name) if self._network else []
        self._spawn(name, *enter, "slurmd", "-D", "-N", name)

    def _has_lost(self) -> bool:
        return any(daemon.poll() is not None for daemon in self._daemons.values())

    def _stop(self) -> None:
        """Ends the daemons and everything they started."""
        for _ in range(50):
            left = self._belonging()
            if not left:
                break
            for pid in left:
                _kill(pid)
            time.sleep(0.1)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._daemons.clear()

    def _configure(self) -> None:
        ports = free_ports(3 + len(self.names))
        self._dbd_ports = (ports.pop(), ports.pop())
        host = socket.gethostname()
        extra = [self._more_conf, "GresTypes=gpu" if self._gpus else "", self._holding_to_memory()]
        if self._prolog:
            script = self.dir / "prolog.sh"
            script.write_text(self._prolog)
            script.chmod(0o755)
            extra.append(f"Prolog={script}\nPrologFlags=Alloc")
        if self._network:
            self._network.name_nodes(self.names)
        for i, (name, port) in enumerate(zip(self.names, ports[1:], strict=True)):
            at = self._network.address(i) if self._network else "127.0.0.1"
            has = f" Gres=gpu:{self._gpus}" if self._gpus and name in self._gpu_nodes else ""
            has += f" RealMemory={self._memory_mb}" if self._memory_mb else ""
            extra.append(f"NodeName={name} NodeHostname={host} NodeAddr={at} Port={port} CPUs=2{has}")
        nodes = ",".join(self.names)
        extra.append(f"PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP")
        extra.append(self._partitions.format(nodes=nodes, first=self.names[0], dir=self.dir))
        extra += [slurm_accounting.controller_conf(self.dir, self._dbd_ports[0])] if self._accounting else []
        conf = _CONF.format(
            host=host,
            at=self._network.controller if self._network else "127.0.0.1",
            user=getpass.getuser(),
            dir=self.dir,
            controller_port=ports[0],
            slurmd_timeout=self._slurmd_timeout,
            extra="\n".join(extra),
        )
        self.conf.write_text(conf)
        if self._gpus:
            devices = [self.dir / "dev" / f"gpu{i}" for i in range(self._gpus)]
            for i, device in enumerate(devices):
                os.mknod(device, 0o20666, os.makedev(195, i))
            where = f"NodeName={','.join(self._gpu_nodes)} Name=gpu"
            (self.dir / "gres.conf").write_text("".join(f"{where} File={device}\n" for device in devices))

    def _holding_to_memory(self) -> str:
        if not self._memory_mb:
            return "TaskPlugin=task/none"
        (self.dir / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\nMinRAMSpace=10\n"
        )
        return "TaskPlugin=task/cgroup\nSelectTypeParameters=CR_CPU_Memory"

    def _spawn(self, name: str, *argv: str) -> None:
        with (self.dir / f"{name}.log").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                argv, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/"
            )

    def _last_words(self) -> str:
        tails = {p.stem: p.read_text(errors="replace")[-600:] for p in sorted(self.dir.glob("*.log"))}
        return "\n".join(f"--- {name}\n{text}" for name, text in tails.items())

    def _belonging(self) -> list[int]:
        """Processes that name our folder in their environment or command, or hold a file of it open."""
        mark = str(self.dir)
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            pid = int(name)
            if mark in _read(pid, "environ") or mark in _read(pid, "cmdline") or mark in _open_files(pid):
                found.append(pid)
        return found


def _listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1.0)
        return s.connect_ex(("127.0.0.1", port)) == 0


def missing() -> str:
    """Why a cluster cannot run here; empty when it can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    absent = [p for p in PROGRAMS if shutil.which(p, path=path) is None]
    if absent:
        return f"Slurm is not installed ({', '.join(absent)} missing): apt-get install slurm-wlm munge"
    return "" if os.getuid() == 0 else "a Slurm of several nodes on one machine needs root: run the tests as root"


def need_slurm() -> None:
    """Skips the test, with the reason, where a cluster cannot run."""
    if why := missing():
        pytest.skip(why)


def no_memory_limits() -> str:
    """Why a cluster cannot hold jobs to their memory here; empty when it can."""
    if not (_MEMORY / "release_agent").exists():
        return f"no memory control groups of version 1 at {_MEMORY}: Slurm cannot hold jobs to their memory"
    return "" if os.access(_MEMORY, os.W_OK) else f"{_MEMORY} is read-only: Slurm cannot hold jobs to their memory"


def _remove_groups(top: Path) -> None:
    for _ in range(50):  # the kernel takes a moment to let go of a group whose last member was killed
        for folder, _folders, _files in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if not top.exists():
            return
        time.sleep(0.1)


def _read(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _node_of(pid: int) -> str:
    words = [w for w in _read(pid, "environ").split("\0") if w.startswith("SLURMD_NODENAME=")]
    return words[0].partition("=")[2] if words else ""


def _parent(pid: int) -> int:
    return int((_read(pid, "stat").rpartition(")")[2].split() or ["", "0"])[1])


def _open_files(pid: int) -> str:
    out = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                out.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return "\n".join(out)


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
