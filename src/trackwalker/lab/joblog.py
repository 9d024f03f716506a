"""The merged log of all ranks as upstream's launcher writes it, with the worker logs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from trackwalker.lab.world import TFLOP_PER_TOKEN, Run

_LOST_HEARTBEAT = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
_CRASHED = (
    "The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) "
    "to debug further."
)
_TERMINATING = (
    "Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that "
    "another task died; see the other task logs for more details."
)


def glog(time: float) -> str:
    """Month, day and time as glog prints them."""
    return datetime.fromtimestamp(time, UTC).strftime("%m%d %H:%M:%S.%f")


@dataclass
class JobLog:
    """Lines by time; ranks interleave as they would under srun."""

    run: Run
    _lines: list[tuple[float, int, str, int | None]] = field(default_factory=list)  # time, order, text, rank
    exits: dict[int, int] = field(default_factory=dict)  # rank -> exit code, where not the cascade's
    accused: list[int] = field(default_factory=list)  # of a heartbeat kill
    mute: set[int] = field(default_factory=set)  # ranks that say nothing at the end
    summary: bool = True
    reason: str = ""
    no_training: bool = False  # the run ended before the trainer started
    hide_workers: set[int] = field(default_factory=set)  # ranks whose worker log was not kept
    unheard: set[int] = field(default_factory=set)  # ranks whose trainer reached neither log
    compile_lines: bool = False
    stages: bool = True  # False: the fault itself tells how far the stages came

    def say(self, time: float, text: str, rank: int | None = None) -> None:
        """One or more lines of one rank (or of the launcher)."""
        for line in text.split("\n"):
            self._lines.append((time, len(self._lines), line, rank))

    def everyone(self, time: float, text: str, but: set[int] | None = None) -> None:
        """The same lines from all ranks, a little apart."""
        for rank in range(len(self.run.hosts)):
            if rank not in (but or set()):
                self.say(time + float(self.run.rng.uniform(0, 1.5)), text, rank)

    def write(self, path: Path, workers: Path | None) -> None:
        """Write the merged log and, where Ray ran, every rank's own."""
        run = self.run
        if self.stages:
            self._stages()
        if not self.no_training:
            self._training()
        self._end()
        pids = {r: int(run.rng.integers(4000, 40000)) for r in range(len(run.hosts))}
        begin = run.training_begin + 45.0
        ordered = sorted(line for line in self._lines if run.spec.ending != "cut" or line[0] <= run.end)
        ordered = [line for line in ordered if line[3] not in self.unheard or line[0] <= begin]
        width = len(str(len(run.hosts) - 1))
        with path.open("w") as f:
            f.write("\n".join(self._header()) + "\n")
            for time, _, text, rank in ordered:
                if rank is None:
                    f.write(text + "\n")
                    continue
                actor = ""
                if run.spec.ray and time > begin and not text.startswith(("[INFO]", "NODE_EXIT", "[Ray]")):
                    where = "" if rank == 0 else f", ip=10.4.7.{rank % 250 + 4}"
                    actor = f"(MaxTextTrainerActor pid={pids[rank]}{where}) "
                f.write(f"{rank:>{width}}: {actor}{text}\n")
        if workers is not None and run.spec.ray and run.spec.worker_logs and not self.no_training:
            for rank, host in enumerate(run.hosts):
                if rank in self.hide_workers | self.unheard:
                    continue
                folder = workers / host
                folder.mkdir(parents=True, exist_ok=True)
                mine = [text for time, _, text, r in ordered if r == rank and time > begin]
                (folder / f"worker-{rank:032x}-01000000-{pids[rank]}.out").write_text("\n".join(mine) + "\n")

    @property
    def settings(self) -> dict[str, str]:
        """What was asked for on the command line."""
        spec = self.run.spec
        settings = {"steps": str(spec.total), "per_device_batch_size": "24"}
        if spec.checkpoint_period:
            settings |= {
                "enable_checkpointing": "true",
                "checkpoint_period": str(spec.checkpoint_period),
                "async_checkpointing": "false",
            }
        return settings | {"jax_distributed_heartbeat_timeout_seconds": str(spec.heartbeat_timeout_s)} | spec.config

    def _header(self) -> list[str]:
        run = self.run
        passed = " ".join(f"{k}={v}" for k, v in self.settings.items())
        return [
            f"JOB_ID={run.job_id}",
            f"JOB_NAME=JAX-{run.spec.model}",
            f"NNODES={len(run.hosts)}",
            f"JOB_NODELIST={','.join(run.hosts)}",
            f"JAX_COORDINATOR_PORT={20000 + int(run.job_id) % 20000}",
            f'PASSTHROUGH_ARGS="{passed}"',
            f"MODEL_NAME={run.spec.model}",
        ]

    def _stages(self) -> None:
        start, run = self.run.start, self.run
        self.say(start, "== Preflight BEGIN (timeout=900s) ==")
        for rank, host in enumerate(run.hosts):
            self.say(start + 5, "=== Pre-flight GPU cleanup ===\nNo GPU processes found - GPUs are free", rank)
            self.say(start + 30, f"{host} | [CHECK_IPV6_RULES] OK (8)\n{host} | [CHECK_DCQCN] OK (8)", rank)
        self.say(start + 40, "== Preflight END (40s) ==")
        self.say(start + 41, "== Docker pull BEGIN (timeout=900s) ==")
        self.say(start + 52, "== Docker pull END (12s) ==")
        self.say(start + 53, "== ECC check BEGIN (timeout=300s) ==")
        for rank, host in enumerate(run.hosts):
            self.say(start + 55, f"{host}: OK (no ECC/UMC errors reported)", rank)
        self.say(start + 58, "== ECC check END (6s) ==")
        self.say(run.training_begin, "== Training BEGIN (no timeout) ==")
        for rank in range(len(run.hosts)):
            environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".93", "NCCL_DEBUG": "WARN", **run.spec.env}
            self.say(run.training_begin + 2, "\n".join(f"{k}={v}" for k, v in environment.items()), rank)

    def _training(self) -> None:
        run, spec = self.run, self.run.spec
        begin = run.training_begin + 46.0
        config = {
            "model_name": spec.model,
            "enable_single_replica_ckpt_restoring": str(spec.single_replica_restore),
            **self.settings,
        }
        for rank, host in enumerate(run.hosts):
            self.say(begin, f"[Node {rank} @ {host}] Training subprocess started (pid={1000 + rank})", rank)
            self.say(
                begin + 2,
                f"E{glog(begin + 2)}   27562 cuda_platform.cc:51] failed call to cuInit: INTERNAL: "
                "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
                rank,
            )
            self.say(begin + 8, "Attempting to initialize the jax distributed system for GPU backend...", rank)
            self.say(begin + 12, "Jax distributed system initialized on GPU!", rank)
            self.say(begin + 20, "\n".join(f"Config param {k}: {v}" for k, v in config.items()), rank)
            self._restore(rank, begin + 30)
            if self.compile_lines or not run.zero_steps or run.spec.init_s > 120:
                gigabytes = run.profile.vram_gb * 0.93
                used = f"\n\tUsing (GB) {gigabytes * 0.55:.2f} / {gigabytes:.2f} (55.000000%) on rocm:"
                held = "".join(f"{used}{gpu}" for gpu in range(run.spec.gpus))
                self.say(begin + 40, f"Memstats: After params initialized:{held}", rank)
                self.say(begin + 45, "Synchronizing hosts before training loop", rank)
            self._waves(rank, host, begin)
        for i, end in enumerate(run.ends):
            for rank in range(len(run.hosts)):
                if rank not in self.mute or end < self.run.end:
                    self.say(float(end) + float(run.rng.uniform(0, 0.4)), self._step(i), rank)
        for _, end, step in run.saves:
            for rank in range(len(run.hosts)):
                self.say(end, f"Saved a checkpoint at step {step}.", rank)
        if spec.checkpoint_period and len(run.ends) and run.first == 0:
            self.everyone(float(run.ends[0]) + 1.0, "Saved a checkpoint at step 0.")

    def _restore(self, rank: int, time: float) -> None:
        if not self.run.spec.checkpoint_period:
            return
        if self.run.first == 0:
            self.say(time, "No existing checkpoints found, not restoring checkpoint.", rank)
        else:
            self.say(time, f"restoring from this run's directory step {self.run.first - 1}", rank)

    def _waves(self, rank: int, host: str, begin: float) -> None:
        """Communicator initialisations, visible as a harmless warning per wave; a restore broadcast adds some."""
        times = [begin + 25, begin + 70, begin + 95]
        if self.run.spec.single_replica_restore and self.run.first:
            times += [begin + 33, begin + 36]
        for t in times:
            stamp = datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S")
            self.say(
                t,
                f"[{stamp}] {host}:{1000 + rank}:37121 [0] /build/rccl/src/init.cc:2095 NCCL WARN "
                "MSCCL++: Feature not enabled. ENABLE_MSCCLPP must be defined at compile-time",
                rank,
            )

    def _step(self, i: int) -> str:
        run = self.run
        tokens = run.tgs(i)
        flops = tokens * TFLOP_PER_TOKEN
        loss = run.loss[i]
        shown = f"{loss:.3f}" if np.isfinite(loss) else "nan"
        return (
            f"completed step: {run.first + i}, seconds: {run.seconds[i]:.3f}, TFLOP/s/device: {flops:.3f}, "
            f"MFU: {100 * flops / run.profile.peak_tflops:.2f}%, Tokens/s/device: {tokens:.3f}, "
            f"total_weights: 6291456, loss: {shown}"
        )

    def _end(self) -> None:
        run, end = self.run, self.run.end
        ending = run.spec.ending
        if ending in ("silent", "cut"):
            return
        stamp = datetime.fromtimestamp(end - 4, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        head = run.hosts[0]
        step = f"{run.job_id}.3"
        code, reason = 1, self.reason or "Training FAILED (exit=1)"
        default = 143
        if ending == "completed":
            code, default = 0, 0
        elif ending in ("cancelled", "walltime", "preempted"):
            why = {"cancelled": "", "walltime": " DUE TO TIME LIMIT", "preempted": " DUE TO PREEMPTION"}[ending]
            self.say(end - 4, f"slurmstepd: error: *** STEP {step} ON {head} CANCELLED AT {stamp}{why} ***")
            code, reason = 143, "CANCELLED (scancel / SIGTERM)"
        elif ending == "heartbeat":
            self._heartbeat(end - 5)
            default, reason = 134, "Training FAILED (exit=134)"
        if self.run.exit_code is not None:
            code = self.run.exit_code
        for line in self._exits(default):
            self.say(end - 2, line)
        if self.summary:
            self.say(end, self._summary(code, reason))

    def _exits(self, default: int) -> Iterator[str]:
        order = sorted(range(len(self.run.hosts)), key=lambda r: (r not in self.exits, r))
        codes = [(r, self.exits.get(r, default)) for r in order]
        for rank, code in codes:
            if code:
                yield f"{rank}: NODE_EXIT host={self.run.hosts[rank]} exit={code}"
        for rank, code in codes:
            if code:
                yield f"srun: error: {self.run.hosts[rank]}: task {rank}: Exited with exit code {code}"

    def _heartbeat(self, time: float) -> None:
        tasks = "\n".join(f"/job:jax_worker/replica:0/task:{t}" for t in self.accused)
        self.say(
            time,
            f"E{glog(time)}   27562 coordination_service.cc:1146] Stopping coordination service after fatal error: "
            f"{_LOST_HEARTBEAT}\n{tasks}\n{_CRASHED}",
            0,
        )
        for rank in range(len(self.run.hosts)):
            if rank in self.mute:
                continue
            t = time + float(self.run.rng.uniform(0.1, 1.4))
            self.say(
                t,
                f"E{glog(t)}   27680 coordination_service_agent.cc:310] Polled error from coordination service: "
                f"{_LOST_HEARTBEAT}\n{tasks}\n{_CRASHED}",
                rank,
            )
            self.say(
                t + 0.01,
                f"F{glog(t + 0.01)}   27680 client.h:77] {_TERMINATING} absl::Status: {_LOST_HEARTBEAT}\n{tasks}",
                rank,
            )

    def _summary(self, code: int, reason: str) -> str:
        run = self.run
        wall = int(run.end - run.start)
        status = "SUCCESS (exit 0)" if code == 0 else f"FAILED (exit {code}) \u2014 {reason}"
        return "\n".join(
            [
                " JOB SUMMARY ".center(65, "="),
                f"  Job:    {run.job_id} (JAX-{run.spec.model})",
                f"  Model:  {run.spec.model}",
                f"  Nodes:  {len(run.hosts)}",
                f"  Wall:   {wall // 3600}h {wall // 60 % 60}m {wall % 60}s",
                f"  Status: {status}",
                "=" * 65,
            ]
        )
