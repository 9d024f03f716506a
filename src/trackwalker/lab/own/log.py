"""The merged log and the ranks' own logs as our agents write them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from trackwalker.lab.joblog import JobLog
from trackwalker.lab.own.ends import CANCELLED, Ending, agent_spec, ending_of, failed_stage, killed_by_kernel
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run
from trackwalker.launch.code.provenance import Provenance, git_summary
from trackwalker.node.agent.outcome import summary_block
from trackwalker.node.agent.output import label, stamp
from trackwalker.node.checks.result import PASS, SKIP, Result
from trackwalker.node.checks.result import lines as check_lines
from trackwalker.node.stages.order import STAGES

# When each stage began and ended, in seconds after the start: the same moments as in upstream's log.
STAGE_TIMES = {"preflight": (0.0, 40.0), "pull": (41.0, 52.0), "health": (53.0, 58.0)}
_LIMITS = {"preflight": "900s", "pull": "900s", "health": "300s", "train": "none"}
_THEIRS = ("[Node ", "[Ray]", "== ")  # words of upstream's supervisor and launcher: ours has its own
CODE = Provenance(
    commit="5c51f8443bd0a1ce", branch="## main", last_commit="5c51f84 Tune the learning rate", notes=[], packages={}
)


class OwnLog(JobLog):
    """Takes the same words from faults; what upstream's launcher and Ray would have added is left out."""

    def __init__(self, run: Run, sheet: Sheet) -> None:
        super().__init__(run)
        self.sheet = sheet
        self.ending: Ending | None = None  # known once written

    def write(self, path: Path, workers: Path | None) -> None:
        """Write the merged log and, under `workers`, every rank's own with UTC times."""
        run = self.run
        self.ending = ending_of(self, self.sheet, path.with_suffix(""))
        stopped_in = failed_stage(self)
        if not self.no_training:
            self._training()
        heard = sorted(line for line in self._lines if self._is_ours(*line))
        with path.open("w", encoding="utf-8", errors="surrogateescape") as f:
            f.writelines(f"{line}\n" for line in self._header())
            for title in STAGE_TIMES:
                said = [
                    self._node_words(title, rank, text)
                    for time, _, text, rank in heard
                    if rank is not None and self._stage_at(time) == title
                ]
                f.writelines(f"{line}\n" for line in self._stage(title, said, title == stopped_in))
                if title == stopped_in:
                    break
            else:
                f.write("== Training BEGIN (no timeout) ==\n")
            for time, _, text, rank in heard:
                if rank is None or time >= run.training_begin:
                    f.write((label(rank, len(run.hosts)) if rank is not None else "") + text + "\n")
            f.writelines(f"{line}\n" for line in self._last_words())
        if workers is not None and run.spec.worker_logs and not self.no_training:
            self._rank_logs(workers, heard)

    def _is_ours(self, time: float, order: int, text: str, rank: int | None) -> bool:
        run = self.run
        if text.startswith(_THEIRS) or time > run.end:
            return False
        return rank not in self.unheard or time <= run.training_begin + 45.0

    def _stage_at(self, time: float) -> str:
        since = time - self.run.start
        began = [key for key, (begin, _) in STAGE_TIMES.items() if begin <= since < 60.0]
        stopped_in = failed_stage(self)
        return stopped_in if stopped_in in STAGE_TIMES and began else began[-1] if began else ""

    def _rank_logs(self, folder: Path, heard: list[tuple[float, int, str, int | None]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mine: dict[int, list[bytes]] = {rank: [] for rank in range(len(self.run.hosts))}
        for time, _, text, rank in heard:
            if rank is not None and time >= self.run.training_begin:
                skew = self.run.spec.clock_skew_s.get(self.run.hosts[rank], 0.0)
                mine[rank].append(stamp(time + skew) + text.encode("utf-8", "surrogateescape") + b"\n")
        for rank, said in mine.items():
            if rank not in self.hide_workers | self.unheard:
                (folder / f"{rank}.log").write_bytes(b"".join(said))

    def _header(self) -> list[str]:
        return [
            *(line for line in super()._header() if not line.startswith("JAX_COORDINATOR_PORT")),
            *git_summary(CODE).splitlines(),
            '==STAGE TIMEOUTS (override: STAGE_TIMEOUTS="stage:seconds,...")==',
            *(f"  {name:<12} {limit}" for name, limit in _LIMITS.items()),
            "=" * 65,
        ]

    def _stage(self, key: str, said: list[str], failed: bool) -> Iterator[str]:
        title, (begin, end) = STAGES[key], STAGE_TIMES[key]
        yield f"== {title} BEGIN (timeout={_LIMITS[key]}) =="
        told = [line for line in said if "[CHECK_" in line]
        for host in self.run.hosts:
            yield from check_lines(self._checks(key, host, told))
        yield from said
        if not failed:
            yield f"== {title} END ({end - begin:.0f}s) =="
            return
        if self.ending is None:
            return
        for rank_end in self.ending.ends:
            yield f"{rank_end.rank}: NODE_EXIT host={rank_end.host} exit={rank_end.exit}"
        if "TIMEOUT" in self.reason:
            yield f"== {self.reason} =="
            yield f'  Hint: STAGE_TIMEOUTS="{key}:<seconds>" to adjust.'
        else:
            yield f"== {title} FAILED (exit={self.ending.outcome.code}, {end - begin:.0f}s) =="

    def _node_words(self, key: str, rank: int, text: str) -> str:
        """What a node says in a stage: no label stands before it, so where it matters it names itself."""
        engine = key == "pull" and not text.startswith("[")
        return f"[ERROR] {self.run.hosts[rank]}: {text}" if engine else text

    def _checks(self, key: str, host: str, told: list[str]) -> list[Result]:
        gpus = self.run.spec.gpus
        if key == "preflight":
            texts = {"gpus": f"{gpus} x {self.run.profile.name}", "gpus_free": "no process on them", "ipv6_rules": "8"}
            texts |= {"dcqcn": "8", "numa_balancing": "0"}
            # What a fault says of a check stands in its place.
            names = {name: f"{host} | [CHECK_{name.upper()}]" for name in texts}
            texts = {name: text for name, text in texts.items() if not any(names[name] in line for line in told)}
        else:
            texts = {"ecc": "no uncorrected errors"} if key == "health" else {}
        skipped = [Result("clock", SKIP, "the nodes share no clock to be compared with", host=host)]
        passed = [Result(name, PASS, text, host=host) for name, text in texts.items()]
        return [*passed, *(skipped if key == "preflight" else [])]

    def _training(self) -> None:
        run = self.run
        for rank in range(len(run.hosts)):
            begun = f"[jax-preinit] nprocs={len(run.hosts)} rank={rank} local_device=None "
            begun += f"heartbeat_timeout_s={run.spec.heartbeat_timeout_s} init_timeout_s=300"
            self.say(run.training_begin + 2, begun, rank)
        super()._training()
        if self.ending is None:
            return
        for end in self.ending.ends:
            if killed_by_kernel(end, self.sheet):
                # The agent says it, in the merged log only: the rank itself had no time for words.
                self.say(end.ended + 0.1, f"{label(end.rank, len(run.hosts))}kernel: {kernel_words(end.rank)}")
        if run.spec.ending == "heartbeat":
            self._heartbeat(run.end - 5)
        if run.spec.ending in CANCELLED:
            at = datetime.fromtimestamp(run.end - 4, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            why = {"cancelled": "", "walltime": " DUE TO TIME LIMIT", "preempted": " DUE TO PREEMPTION"}
            step = f"STEP {run.job_id}.0 ON {run.hosts[0]} CANCELLED AT {at}{why[run.spec.ending]}"
            self.say(run.end - 4.1, f"slurmstepd: error: *** {step} ***")
            if self.ending.outcome.first is None:
                self.say(run.end - 4, f"*** JOB {run.job_id} ON {run.hosts[0]} CANCELLED AT {at} ***")

    def _last_words(self) -> list[str]:
        if self.ending is None:
            return []
        outcome = self.ending.outcome
        text = outcome.text
        if self.ending.stage:
            seconds = int(self.run.end - self.run.start)
            text = summary_block(agent_spec(self, Path()), seconds, outcome.code, outcome.reason)
        lines = text.rstrip("\n").split("\n")
        if outcome.code:
            lines.append(f"srun: error: {self.run.hosts[0]}: task 0: Exited with exit code {outcome.code}")
        return lines


def kernel_words(rank: int) -> str:
    """What the kernel says of a trainer that it killed."""
    return (
        f"Out of memory: Killed process {pid_of(rank)} (python3) total-vm:2264924160kB, anon-rss:2109730816kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4128768kB oom_score_adj:0"
    )


def pid_of(rank: int) -> int:
    """A rank's process on its node."""
    return 30_305 + 31 * rank % 20_000
