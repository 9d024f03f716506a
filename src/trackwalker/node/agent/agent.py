"""The node agent: starts the ranks, keeps their logs, serves their metrics, reports how they ended."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trackwalker.job.journal import Journal, event_record
from trackwalker.job.processes import read_stat
from trackwalker.node.agent.guest import carry_over, rank_of, told_by_launchers, told_signal
from trackwalker.node.agent.outcome import Course, Suspects, end_of, judge, kernel_kill, why_ended
from trackwalker.node.agent.output import RankOutput, Sink, Tail, complain, label, limit_text
from trackwalker.node.agent.peers import Crew, RankEnd
from trackwalker.node.agent.ranks import Rank, describe_exit, members_of
from trackwalker.node.agent.services import SmallFiles, address_of, announce
from trackwalker.node.agent.spec import AgentSpec
from trackwalker.node.agent.workers import Workers
from trackwalker.node.collectors.foreign import EVERY_S, ForeignCpuCollector
from trackwalker.node.collectors.identity import IdentityCollector, Place
from trackwalker.node.collectors.kernel_log import KernelLogCollector
from trackwalker.node.collectors.lane import Lane, LaneCollector
from trackwalker.node.collectors.machine import machine_collectors
from trackwalker.node.collectors.rank_net import RankNetCollector
from trackwalker.node.collectors.tensorboard import TensorboardCollector
from trackwalker.node.collectors.training import TrainingCollector, last_records, parse_step_line
from trackwalker.node.evidence.capsule import Capsules
from trackwalker.node.exporter.backlog import Backlog
from trackwalker.node.exporter.plugins import PluginFolder
from trackwalker.node.exporter.server import Exporter

_TICK_S = 0.2
_SAVE_S = _TENSORBOARD_S = 1.0
_IDENTITY_S = _RANK_NET_S = 2.0
_LAST_SCRAPE_S = 3.0  # for the last steps to be fetched; only where somebody has been scraping
_TRAINING_S = 0.25  # only remembers what it was fed: no reason to lag behind the steps
_SILENT_S = 60.0  # a run cancelled after such a silence may have been hanging: its ranks are read first


class Agent:
    """One node's agent: bad files cost it lines, never its life; its own death costs the ranks nothing."""

    def __init__(self, spec: AgentSpec, crew: Crew | None = None) -> None:
        self._spec = spec
        self._crew = crew or Crew()
        for folder in (spec.job_dir / "ranks", spec.ranks_dir):
            folder.mkdir(parents=True, exist_ok=True)
        self._ranks = [rank_of(r, spec.ranks_dir) for r in spec.ranks]
        self._merged = Sink(spec.log)
        self._events = Journal(spec.journal("events.jsonl"))
        self._progress = Journal(spec.journal("progress.jsonl"))
        self._backlog = Backlog()
        self._training = TrainingCollector(self._backlog, spec.node)
        self._hooked: set[int] = set()  # ranks whose trainer reports by itself
        self._outputs: dict[int, RankOutput] = {}
        self._hooks: dict[int, Tail] = {}
        self._offsets: dict[str, int] = {}
        self._saved: list[object] = []
        self._saved_at = 0.0
        self._files = SmallFiles(spec.job_dir / "agent")
        self._started = time.time()
        self._port = 0
        self._stop_signal: int | None = None
        self._stop_why = ""
        self._stop_sent: float | None = None
        self._first_bad: RankEnd | None = None
        self._suspects = Suspects([])
        self._killed = self._timed_out = False
        self._lanes: dict[int, Lane] = {}
        self._kernel: KernelLogCollector | None = None
        self._capsules = Capsules(spec, self._ranks, self._event)
        self._workers = None if spec.owns else Workers(spec, self._save)

    def run(self, adopt: bool, stop: bool = False) -> int:
        """Run the ranks to their end and return the job's exit code; with `stop`, end them at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A closed terminal is no reason to stop training; and what is ignored, not handled, the ranks would inherit.
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        self._take_over() if adopt else self._launch()
        if stop:
            self._on_signal(signal.SIGTERM, None)
        self._outputs = {r.spec.rank: self._output(r, cut=adopt) for r in self._ranks}
        self._hooks = {r.spec.rank: Tail(r.progress, self._offsets.get(f"p{r.spec.rank}", 0)) for r in self._ranks}
        lanes = [Lane(r.spec.rank, r.spec.host, r.pid, r.main, r.workload) for r in self._ranks]
        self._lanes = {lane.rank: lane for lane in lanes}
        about = {"job_id": self._spec.job_id, "attempt": str(self._spec.attempt)}
        exporter = Exporter(self._spec.node, [LaneCollector(lambda: lanes, self._spec.node)], about, self._backlog)
        places = [Place(r.spec.rank, r.spec.host, r.main, {**os.environ, **r.spec.env}) for r in self._ranks]
        gpus = partial(exporter.labels, "hw_gpu_info")
        exporter.add(IdentityCollector(self._spec.node, places, gpus), _IDENTITY_S)
        exporter.add(RankNetCollector(lanes), _RANK_NET_S)
        folders, members = [str(self._spec.job_dir)], partial(members_of, self._ranks)
        sessions, unmarked = ([r.pid for r in self._ranks], tuple) if self._spec.owns else ([], members)
        foreign = ForeignCpuCollector(self._spec.node, sessions, folders[0], unmarked)
        exporter.add(foreign, EVERY_S)
        exporter.add(self._training, _TRAINING_S)
        bridge = self._bridge()
        if bridge is not None:
            exporter.add(bridge, _TENSORBOARD_S)
        for collector, interval_s in machine_collectors(self._spec.node, folders, members=members):
            exporter.add(collector, interval_s)
            if isinstance(collector, KernelLogCollector):
                self._kernel = collector
        folder = Path(os.environ.get("TRACKWALKER_PLUGINS") or self._spec.job_dir / "plugins")
        plugins = PluginFolder(folder, self._spec.node, exporter, complain)
        try:
            address = address_of(self._spec)
            self._port = exporter.start(self._port, address)
            announce(self._spec, self._files, address, self._port, exporter.path)
            plugins.start()
        except OSError as e:
            complain(f"cannot serve metrics: {e.strerror}")
        self._capsules.start(self._started)
        while True:
            done = self._poll_ranks()
            moved = self._pump(done)
            self._save()
            self._hear()
            if self._workers is not None:
                self._workers.look()
            if done and not moved and self._crew.finish(self._ends(), self._stop_sent is not None):
                break
            self._enforce_stop()
            time.sleep(0 if moved and done else _TICK_S)
        self._capsules.close()
        code = self._finish()
        plugins.stop()
        if bridge is not None and bridge.finish():
            exporter.refresh(bridge.name)
        exporter.refresh(self._training.name)
        self._backlog.wait_sent(_LAST_SCRAPE_S, expected=adopt)  # whoever scraped the agent before us comes back
        exporter.stop()
        for rank in self._ranks:
            output = self._outputs[rank.spec.rank]
            output.close()
            self._hooks[rank.spec.rank].close()
            if not self._merged.lost and not output.log.lost:  # with lines lost, the raw files are the evidence
                rank.tidy()
        return code

    def _launch(self) -> None:
        if self._crew.is_head:
            self._merged.write(f"== Training BEGIN ({limit_text(self._spec.limit_s)}) ==\n".encode())
            self._event("stage-begin", name="Training")
        for rank in self._ranks:
            rank.launch(dict(os.environ))
            self._save()  # from here on a later agent can find what this one started
            self._event("rank-start", rank=rank, pid=rank.main)

    def _take_over(self) -> None:
        state = json.loads(self._spec.state_file.read_text())
        self._started, self._offsets, self._port = state["started"], state["offsets"], state["port"]
        by_rank = {r["rank"]: r for r in state["ranks"]}
        for rank in self._ranks:
            rank.adopt(by_rank.get(rank.spec.rank, {}))
        stop = state["stop"]
        self._stop_signal, self._stop_why = stop["signal"], stop["why"]
        self._stop_sent = time.monotonic() if stop["sent"] else None
        self._first_bad = RankEnd(**stop["first_bad"]) if stop["first_bad"] else None
        self._suspects = Suspects(self._ranks)
        carry_over(self._offsets, self._ranks)
        if len(self._ranks) == self._spec.world or self._spec.nodes == 1:  # nobody else writes there
            self._merged.cut_back(self._offsets["log"])
            self._progress.cut_back(self._offsets["progress"])
        self._training.restore(state.get("training", {}))
        self._training.replay(last_records(self._spec.job_dir / "progress.jsonl"))
        self._event("agent-restart" if self._spec.owns else "ranks-found", pid=os.getpid())

    def _output(self, rank: Rank, cut: bool) -> RankOutput:
        number = rank.spec.rank
        log = self._spec.job_dir / "ranks" / f"{number}.log"
        offset = self._offsets.get(f"o{number}", 0)
        output = RankOutput(number, self._spec.world, rank.raw, log, self._merged, offset, rank.spec.old)
        if cut:  # what the last agent wrote after it last saved is read again
            output.log.cut_back(self._offsets.get(f"l{number}", 0))
        return output

    def _bridge(self) -> TensorboardCollector | None:
        rank = next((r.spec for r in self._ranks if r.spec.rank == 0), None)
        if rank is None:  # only the first rank writes event files
            return None
        job_dir = self._spec.job_dir
        return TensorboardCollector(
            self._spec.tensorboard or job_dir / "tensorboard",
            {"host": rank.host, "rank": "0"},
            self._backlog,
            job_dir / "agent" / "tensorboard.json",
            self._started,
            lambda: self._training.reported(0),
        )

    def _save(self) -> None:
        tails = [*(o.tail for o in self._outputs.values()), *self._hooks.values()]
        urgent: list[object] = [*(r.saved() for r in self._ranks), self._stop_signal, self._stop_sent, self._first_bad]
        mark = [*urgent, self._port, *(t.offset for t in tails)]
        if mark == self._saved:  # ten times a second nothing has happened: that must cost nothing
            return
        # How far we have read may be a second old: a later agent takes back what was written since, and reads it again.
        if urgent == self._saved[: len(urgent)] and time.monotonic() - self._saved_at < _SAVE_S:
            return
        self._saved_at = time.monotonic()
        me = read_stat(os.getpid())
        state: dict[str, Any] = {
            "v": 1,
            "agent": {"pid": os.getpid(), "start": me.start if me else 0},
            "started": self._started,
            "port": self._port,  # a later agent takes it over: Prometheus needs seconds to notice a new one
            "ranks": [r.saved() for r in self._ranks],
            "stop": {
                "signal": self._stop_signal,
                "why": self._stop_why,
                "sent": self._stop_sent is not None,
                "first_bad": asdict(self._first_bad) if self._first_bad else None,
            },
            "training": self._training.saved(),
            "offsets": {
                "log": self._merged.size(),
                "progress": self._progress.size(),
                **{f"o{n}": o.tail.offset for n, o in self._outputs.items()},
                **{f"l{n}": o.log.size() for n, o in self._outputs.items()},
                **{f"p{n}": h.offset for n, h in self._hooks.items()},
            },
        }
        if self._files.replace(self._spec.state_file.name, json.dumps(state)):
            self._saved = mark

    def _pump(self, final: bool) -> bool:
        now, moved = time.time(), False
        for rank in self._ranks:
            number = rank.spec.rank
            for line in self._hooks[number].lines(final):
                moved = True
                self._take_progress(rank, line)
            for raw in self._outputs[number].pump(now, final):
                moved = True
                if number not in self._hooked:
                    record = parse_step_line(raw.decode("utf-8", "replace"))
                    if record:
                        self._note_progress({"t": now, "rank": number, "host": rank.spec.host, **record})
        return moved

    def _take_progress(self, rank: Rank, line: bytes) -> None:
        try:
            record = json.loads(line)
            record = {**record, "rank": rank.spec.rank, "host": rank.spec.host, "t": float(record["t"])}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return  # a torn or foreign line in the trainer's own file
        if not math.isfinite(record["t"]):
            return
        self._hooked.add(rank.spec.rank)
        self._note_progress(record)

    def _note_progress(self, record: dict[str, Any]) -> None:
        self._training.feed(record)
        try:
            self._progress.append(record)
        except OSError:
            self._merged.lost += 1

    def _poll_ranks(self) -> bool:
        before = [r for r in self._ranks if r.exit is None]
        ended = [r for r in before if r.poll() is not None]
        for rank in sorted(ended, key=lambda r: (r.ended or 0.0, r.spec.rank)):
            code = rank.exit or 0
            self._event("rank-exit", rank=rank, **({} if rank.unseen else {"exit": code, "cause": describe_exit(code)}))
            if code == 128 + signal.SIGKILL and not self._killed:
                self._ask_the_kernel(rank)
            if code != 0:
                self._suspects.waiting.append(rank)
        self._judge_suspects()
        return len(ended) == len(before) and not self._suspects.waiting

    def _judge_suspects(self) -> None:
        if self._stop_signal is not None:
            self._suspects.waiting.clear()  # they were told to end
        guilty = self._suspects.guilty(time.time(), self._ranks)
        if guilty is not None:
            end = end_of(guilty)
            self._event("first-failure", rank=guilty, exit=end.exit, cause=end.cause)
            self._crew.tell(end)
            self._end_for(end)

    def _hear(self) -> None:
        """A failure on another node ends the ranks of this one, and so does a note of the scheduler's."""
        note = self._spec.stop_note
        if not self._spec.owns and self._stop_signal is None and (told := told_signal(self._ranks)):
            self._on_signal(told, None)
        if note is not None and self._crew.is_head and self._stop_signal is None and note.exists():
            self._on_signal(signal.SIGTERM, None)
        word = self._crew.look(time.monotonic())
        if word is not None and self._first_bad is None and self._stop_signal is None:
            self._end_for(word.failure) if word.failure else self._on_signal(signal.SIGTERM, None)

    def _end_for(self, end: RankEnd) -> None:
        self._first_bad = end
        self._stop_signal, self._stop_why = signal.SIGTERM, f"rank {end.rank} {end.cause}"

    def _ends(self) -> list[RankEnd]:
        return [end_of(rank) for rank in self._ranks]

    def _ask_the_kernel(self, rank: Rank) -> None:
        """A rank that the kernel killed for want of memory is told apart from one that somebody killed."""
        if self._kernel is None:
            return
        self._kernel.collect()  # what it wrote as it killed; its next turn would come too late
        lane = self._lanes[rank.spec.rank]
        text = kernel_kill(self._kernel.recent(), [rank.main, *lane.members], self._started)
        if text is not None:
            self._event("kernel-kill", rank=rank, text=text)
            self._merged.write(f"{label(rank.spec.rank, self._spec.world)}kernel: {text}\n".encode())

    def _on_signal(self, number: int, frame: object) -> None:
        if self._stop_signal is None and not self._spec.attached:  # that was meant for those we only look at
            self._stop_signal = number
            self._stop_why = "cancelled"

    def _enforce_stop(self) -> None:
        limit = self._spec.limit_s
        if self._stop_signal is None and limit is not None and time.time() - self._started > limit:
            self._timed_out = True
            self._stop_signal, self._stop_why = signal.SIGTERM, f"still running after {limit:.0f} s"
        if self._stop_signal is None:
            return
        if self._stop_sent is None:
            wanted = self._first_bad or self._timed_out or self._training.silent_s(time.time()) > _SILENT_S
            if wanted and self._capsules.holding(self._stop_why):
                return  # where the survivors stand is written down before they are ended
            self._stop_sent = time.monotonic()
            self._save()
            if self._spec.owns or self._first_bad is None:
                self._event("stop", signal=int(self._stop_signal), why=self._stop_why)
            self._crew.tell(self._first_bad)
            # As Slurm marks it: what ranks print from here on is how a cancel sounds.
            if self._first_bad is None and self._crew.is_head:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
                self._merged.write(
                    f"*** JOB {self._spec.job_id} ON {self._spec.node} CANCELLED AT {stamp} ***\n".encode()
                )
            for rank in self._ranks:
                if rank.exit is None:
                    rank.signal(self._stop_signal)
        elif self._spec.owns and not self._killed and time.monotonic() - self._stop_sent > self._spec.grace_s:
            self._killed = True
            self._event("kill", why=f"still there {self._spec.grace_s:.0f} s after the signal")
            for rank in self._ranks:
                if rank.exit is None:
                    rank.signal(signal.SIGKILL)

    def _finish(self) -> int:
        elapsed = int(time.time() - self._started)
        for rank, text in told_by_launchers(self._ranks):
            self._event("error-file", rank=rank, text=text)
            mark = label(rank.spec.rank, self._spec.world)
            self._merged.write("".join(f"{mark}{line}\n" for line in text.splitlines()).encode())
        if not self._crew.is_head:
            self._event("node-end", seconds=elapsed)
            return 0  # how its ranks ended the first node knows, and says so for the job
        stopped_by = int(self._stop_signal) if self._stop_sent is not None and self._stop_signal else None
        ends, missing = [*self._ends(), *self._crew.all_ends()], self._crew.missing()
        warned = self._spec.warning is not None and self._spec.warning.exists()
        last, late = self._training.last_step(0), self._timed_out
        word = why_ended() if stopped_by is not None and self._first_bad is None and not late else ""
        course = Course(ends, self._first_bad, stopped_by, warned, late, missing, elapsed, last, word)
        outcome = judge(self._spec, course)
        self._merged.write(outcome.text.encode())
        first = asdict(outcome.first) if outcome.first else None
        code = None if outcome.unseen else outcome.code
        self._event("run-end", exit=code, reason=outcome.reason, seconds=elapsed, missing=missing, first=first)
        return outcome.code

    def _event(self, kind: str, rank: Rank | None = None, **data: Any) -> None:
        place: dict[str, Any] = {"rank": rank.spec.rank, "host": rank.spec.host} if rank else {}
        try:
            self._events.append(event_record(kind, self._spec.node, data, **place))
        except OSError as e:
            complain(f"cannot write events.jsonl: {e.strerror}")
