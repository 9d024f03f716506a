"""The tour of docs/start/tour.md: the commands of a newcomer, run in a real terminal (a pty), and the page."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "tour.md"
WIDE_PAGE = ROOT / "tests" / "data" / "tour-200.txt"
NARROW, WIDE = 80, 200
_LONGEST_S = 240.0
_PAGE_WIDTH = 118
_COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|10\d)[;\d]*m")
_CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
# In a terminal a line of progress replaces the one before it, and is gone at the end.
_PROGRESS = re.compile(r"^(?:[a-z-]+|step \d+/\d+  [^\n]*)\n", re.MULTILINE)
_NOTE = "note: Slurm was not asked"  # only where there is a Slurm, or where there is none


@dataclass(frozen=True)
class Stop:
    """One command of the tour: what it is for, how many lines of its answer the page shows, how these are compared."""

    says: str
    command: str
    lines: int = 40
    like: Callable[[str], str] = str  # what of the answer is the same on every machine
    once: bool = False  # it makes something: run before the others, outside the terminal
    head: str = ""  # a heading before it
    then: str = ""  # what is said below the answer; a line that begins with "- " is an item of a list


def rough(text: str) -> str:
    """An answer about a real run: the words count, the figures and their columns do not."""
    return " ".join(re.sub(r"\d[\d.:]*", "N", text).split())


def cited(text: str) -> str:
    """A verdict: its pieces of evidence are numbered anew whenever the engine asks one question more."""
    return " ".join(re.sub(r"\be\d+\b", "eN", text).split())


def looked_at(text: str) -> str:
    """What the doctor looks at: what it finds is the machine's own."""
    return " ".join(dict.fromkeys(line[8:20].strip() for line in text.splitlines()))


STOPS = (
    Stop("Which version is this?", "trackwalker version", head="Look around"),
    Stop(
        "What does this machine have, and what is missing? The tour needs Prometheus, which stores the recorded "
        "metrics: where it is missing, `trackwalker setup` installs it. Slurm, GPUs and RDMA may be missing: Slurm is "
        "needed only for `submit`, which queues a job on a cluster, GPUs and RDMA only for training at full size.",
        "trackwalker doctor",
        like=looked_at,
        then="An `extra` is an optional part of Trackwalker. The tour needs only `tiny`, the small trainer. (The "
        "extra `perf` lets `tsdb export` write Parquet files; the command `perf` works without it.) "
        "`pip install 'trackwalker[all]'` installs all extras.",
    ),
    Stop(
        "`trackwalker -h` lists all commands in groups; `help` explains one of them.",
        "trackwalker help status",
        lines=24,
    ),
    Stop(
        "Train the small built-in model `tiny` on this machine, without a scheduler. Settings after `--` are "
        "handed to the training program.",
        "trackwalker run tiny -- steps=10",
        like=rough,
        once=True,
        head="Run something",
    ),
    Stop(
        "List the jobs in the workspace, the folder that holds jobs; by default it is `outputs/` in the current "
        "folder.",
        "trackwalker jobs",
        like=rough,
        then="`s/step` is the median time of a step in seconds. `verdict` is the cause that `diagnose` found; it stays "
        "empty until you run `diagnose --save`. Where the terminal is too narrow, as here, the columns `nodes` and "
        "`model` are left out; `-o id,model,nodes` chooses columns.",
    ),
    Stop("If you name no job, a command uses the latest one.", "trackwalker status", like=rough),
    Stop("The last three lines of its log:", "trackwalker logs -n 3", like=rough),
    Stop("A misspelt setting is refused before anything starts.", "trackwalker run tiny -- stps=10"),
    Stop("So is a misspelt command.", "trackwalker diagnos"),
    Stop(
        "The lab simulates incidents: this one is a job on four nodes that becomes slow. The directory it writes "
        "looks like one of a real cluster, with a log and recorded metrics; `truth.json` names the injected fault.",
        "trackwalker lab simulate gpu-thermal-throttle --nodes 4 --out slow",
        once=True,
        head="Find out why a job is slow",
        then="`4925` is the id of the simulated job, and `ds-proxy` the name of the simulated model.",
    ),
    Stop(
        "Set the workspace once, so that you need not add `-w slow/outputs` to every command. It "
        "is used until you set another one; the end of this page shows how to undo it.",
        "trackwalker config set workspace slow/outputs",
        once=True,
    ),
    Stop(
        "Now all commands use that workspace. (Short ids leave room for all columns.)",
        "trackwalker jobs",
        like=rough,
    ),
    Stop(
        "Why was it slow? (It was cancelled later; `diagnose` says why it was slow before that.) The first lines say "
        "what happened, where, and what to do next; the evidence follows.",
        "trackwalker diagnose",
        lines=34,
        like=cited,
        then="- `pod3-1916/5` is GPU 5 of host `pod3-1916`; `± 35 s` says how exactly the time is known.\n"
        "- `DO NEXT` lists proposed actions. Trackwalker carries out none of them by itself. Those that change "
        "something are marked `[needs approval]`: you or the administrators of the cluster decide. Here "
        "`scontrol update` drains the node, so that Slurm starts no new job on it, and `trackwalker submit` starts "
        "the model again on other nodes; the trainer goes on from the last checkpoint if there is one. "
        "`costs: capacity`: the cluster has one node less until it is repaired.\n"
        "- Each piece of evidence has a number (`e24`), and below it the query or the log line that it comes from. "
        "`trackwalker diagnose --evidence e24` prints all its values. In these queries `sclk` is the clock of the "
        "GPU's compute units (NVIDIA: SM clock).",
    ),
    Stop(
        "Which metrics changed when the job became slow?",
        "trackwalker changed",
        lines=13,
        then="- Single GPUs and hosts come first: the cause is usually among them. What changed on `most hosts` is "
        "usually an effect: here they wait for GPU 5 of `pod3-1916`.\n"
        "- A single GPU is also listed if it changed much less than the others: the power of GPU 5 fell by 23 W, "
        "that of the others by 81 W.\n"
        "- `score` says how certain it is that a change is not chance, not how large it is; changes below 4 are not "
        "shown. It is the change divided by its standard error, on a compressed scale: when that ratio doubles, the "
        "score grows by less than a factor of two. For a single GPU or host, the change of the others is subtracted "
        "first.\n"
        "- Values are means over the time before and the time since. For a host, the mean of its GPUs is taken, and "
        "the sum of its network ports; `most hosts` shows the median of the hosts. Counters (names ending in "
        "`_total`) are shown as rates. `hw_rdma_ccl_tx_pkts_total` counts only packets of the collective library "
        "(NCCL, RCCL).",
    ),
    Stop(
        "Which metrics about GPU temperatures and clocks are there? The second argument is a regular expression; the "
        "job has to be given before it (here `latest`).",
        "trackwalker metrics latest 'gpu.*(temp|clock)'",
        then="`series` is the number of GPUs here; `first` and `last` are the times of the first and the last sample.",
    ),
    Stop(
        "Query the recorded metrics yourself, in PromQL (`tsdb`: time-series database). This is the highest "
        "temperature of each host in the last hour; `diagnose` above compared 80th percentiles, the "
        "command `changed` compared averages.",
        "trackwalker tsdb query latest 'max by (host) (max_over_time(hw_gpu_temperature_celsius[1h]))'",
    ),
    Stop(
        "Or ask in plain English; no AI model is needed.", 'trackwalker ask "which host is slow?"', lines=24, like=cited
    ),
    Stop(
        "How fast was it, and where did the time go? MFU is the share of the GPUs' peak FLOP/s that the model "
        "used. Goodput is the time that all steps would have taken at full speed, divided by the job's total time.",
        "trackwalker perf",
        lines=12,
        then="Left out are the first five steps, in which the program compiles; no step of this run saved a "
        "checkpoint. 90 of the other 175 steps were slow, so the median step of the whole run is a slow one. `set-up` "
        "is what the launcher does before training (image, checks), `start-up and teardown` what the training program "
        "does before its first step and after its last.",
    ),
    Stop(
        "Another incident: a job on eight nodes that fails at its start. A rank is a process; this job has "
        "one per node.",
        "trackwalker lab simulate oom-gpu --out failed",
        once=True,
        head="Find out why a job failed",
    ),
    Stop(
        "`triage` reads the log and nothing else, and takes a second. `-w` names another workspace for this one "
        "command. The main failure comes first, then what followed from it. `does not prove` says what that log line "
        "alone cannot show; `next` says what to do.",
        "trackwalker triage -w failed/outputs",
        lines=32,
    ),
    Stop(
        "Before you ask a cluster for eight nodes: would this job start, and would it fit into GPU memory? "
        "`plan` submits nothing: it prints the `sbatch` command that `submit` would run.",
        "trackwalker plan llama2-70b -N 8 --gpu MI355X",
        head="Plan a job",
    ),
    Stop(
        "A job's environment variables are set in several places, later ones winning: defaults, the GPU's vendor, the "
        "model, you. `explain` shows which place sets a variable, and why; it takes AMD for the vendor, unless the "
        "model or `--vendor` says otherwise (`plan` and `submit` know it from `--gpu`). Here `XLA_FLAGS` is made of "
        "two flags, both set by the vendor.",
        "trackwalker explain XLA_FLAGS llama2-70b -N 8",
    ),
)

HEAD = """# A tour in twenty-two commands

Trackwalker starts training jobs, records them, and finds out why a job is slow or why it failed. To follow the tour,
install it in a clone of the repository, and make a folder to work in:

```sh
make setup                  # Trackwalker, its lab and Prometheus
source .venv/bin/activate   # the command trackwalker, in this shell
mkdir ~/tour && cd ~/tour
```

Without a clone: `pip install 'trackwalker[tiny]' trackwalker-lab`, then `trackwalker setup`, which installs
Prometheus. The lab ([lab.md](../how-to/lab.md)) is needed only for the two simulated incidents.

The output below is what the commands printed when `scripts/tour` ran them, except that long output is cut
(`… (52 more lines)` marks a cut), the folders of that machine are written as `~`, ids and start times made by the run
are replaced by fixed ones, and lines of progress are left out. Ids, paths, times and speeds of your own runs will
differ.
"""
TAIL = """
## Next steps

- Undo what the tour set: `trackwalker config set workspace ''`.
- Record a run of your own: [any-cluster.md](any-cluster.md).
- On Slurm or Kubernetes: [launching.md](../how-to/launching.md).
- Job names, settings, shell completion, exit codes: [command-line.md](../reference/command-line.md).
- Glossary: [glossary.md](glossary.md).
- How the diagnosis works: [diagnosis.md](../why/diagnosis.md).
"""


class Walk:
    """A folder in which the tour is walked; what it makes is made once."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.made: dict[int, str] = {}

    def answers(self, columns: int, **settings: str) -> Iterator[tuple[Stop, str]]:
        """Each stop with what it prints in a terminal so wide; the settings are of the environment."""
        for number, stop in enumerate(STOPS):
            if not stop.once:
                yield stop, self._tidy(self._in_terminal(stop, columns, settings))
                continue
            if number not in self.made:
                self.made[number] = self._tidy(self._in_pipe(stop))
            elif " config " in stop.command:
                self._in_pipe(stop)
            yield stop, self.made[number]
        (self.place / ".config" / "trackwalker" / "config.toml").unlink()  # a second walk begins as the first did

    def _environment(self, settings: dict[str, str]) -> dict[str, str]:
        foreign = ("TRACKWALKER_", "SLURM_", "JOB_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_", "DOCKER_", "RAY")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**own, "TERM": "xterm-256color", "XDG_CONFIG_HOME": str(self.place / ".config"), **settings}

    def _argv(self, stop: Stop) -> list[str]:
        return [sys.executable, "-m", *shlex.split(stop.command)]

    def _in_pipe(self, stop: Stop) -> str:
        argv, env = self._argv(stop), self._environment({"COLUMNS": str(NARROW)})
        done = subprocess.run(
            argv, cwd=self.place, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=_LONGEST_S, check=True,
        )  # fmt: skip
        return _PROGRESS.sub("", done.stdout)

    def _in_terminal(self, stop: Stop, columns: int, settings: dict[str, str]) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        env = self._environment(settings)
        child = subprocess.Popen(
            self._argv(stop), cwd=self.place, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        said, deadline = b"", time.monotonic() + _LONGEST_S
        try:
            while time.monotonic() < deadline:
                if select.select([ours], [], [], 1.0)[0]:
                    try:
                        piece = os.read(ours, 65536)
                    except OSError:  # the terminal's other end is closed: Linux says so with EIO
                        break
                    if not piece:
                        break
                    said += piece
            assert child.wait(timeout=10) in (0, 2), (stop.command, said)
        finally:
            child.kill()
            child.wait()
            os.close(ours)
        text = said.decode("utf-8").replace("\r\n", "\n")
        assert "Traceback (most recent call last)\n  File" not in text, text
        if "NO_COLOR" in settings:
            assert not _COLOUR.search(text), (stop.command, text)
        return _CONTROL.sub("", re.sub(r"[^\n]*\r\x1b\[K", "", text))  # a line of progress is replaced and gone

    def _tidy(self, text: str) -> str:
        """The same wherever and whenever it is run: the folder, ids and times of real runs."""
        text = text.replace(str(self.place / ".config"), "~/.config").replace(str(self.place), "~/tour")
        text = text.replace(str(ROOT), "~/trackwalker").replace(str(Path.home()), "~")
        text = re.sub(r"local_\d{8}_\d{6}_\w{4}", "local_20261116_152019_9e9b", text)
        text = re.sub(r"\d{8}_\d{6}_[0-9a-f]{6}", "20261116_152019_d61a33", text)
        text = re.sub(r"(local_20261116_152019_9e9b )\d\d-\d\d \d\d:\d\d", r"\g<1>11-16 15:20", text)
        lines = [line.rstrip() for line in text.splitlines() if not line.startswith(_NOTE)]
        return "\n".join(lines).strip("\n")


def shown(stop: Stop, answer: str) -> str:
    """What of an answer is on the page."""
    lines = answer.splitlines()
    if len(lines) <= stop.lines + 3:
        return answer
    return "\n".join([*lines[: stop.lines], f"… ({len(lines) - stop.lines} more lines)"])


def page(answers: list[tuple[Stop, str]]) -> str:
    """docs/start/tour.md."""
    parts = [HEAD]
    for stop, answer in answers:
        if stop.head:
            parts.append(f"\n## {stop.head}\n")
        parts.append(f"\n{_filled(stop.says)}\n\n```console\n$ {stop.command}\n{shown(stop, answer)}\n```\n")
        if stop.then:
            parts.append(f"\n{_filled(stop.then)}\n")
    return "".join([*parts, TAIL])


def _filled(text: str) -> str:
    """Paragraphs and items of a list in lines as wide as the page."""
    wide = textwrap.TextWrapper(_PAGE_WIDTH, break_on_hyphens=False, break_long_words=False)
    item = textwrap.TextWrapper(_PAGE_WIDTH, break_on_hyphens=False, break_long_words=False, subsequent_indent="  ")
    return "\n".join((item if line.startswith("- ") else wide).fill(line) for line in text.splitlines())


def blocks(text: str) -> list[tuple[str, str]]:
    """The commands of a page with their answers."""
    found = re.findall(r"^```console\n\$ ([^\n]*)\n(.*?)\n?^```$", text, re.MULTILINE | re.DOTALL)
    return [(command, answer) for command, answer in found]
