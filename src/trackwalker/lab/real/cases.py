"""Real incidents: what is broken in a real four-process run, and what a right diagnosis of its recording says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from trackwalker.job.processes import short_hostname
from trackwalker.lab.real import stage
from trackwalker.lab.real.leaky import CONFINED
from trackwalker.lab.real.stage import Stage
from trackwalker.lab.scenario import Kind, TrueCause, Truth

PROCS = 4
VICTIM_RANK = 2
# A model that keeps one GPU busy: a tenth of a second a step on an H200, at its power limit.
GPU_MODEL = {
    "base_emb_dim": "2048", "base_num_decoder_layers": "8", "base_num_query_heads": "16", "base_mlp_dim": "8192",
    "max_target_length": "1024", "per_device_batch_size": "8", "vocab_size": "32768", "dtype": "bfloat16",
    "enable_checkpointing": "false",
}  # fmt: skip
Runner = Callable[[Path], Path]  # workspace -> job directory


@dataclass(frozen=True)
class RealCase:
    """One fault in one real run, with its truth."""

    name: str
    about: str
    cause: str | None  # None: nothing is wrong with the training
    outcome: Kind = "incident"
    procs: int = PROCS
    rank: int = VICTIM_RANK  # whom it hits
    gpu: bool = False  # the ranks train on GPUs of this machine; else on its processors
    accused: bool = True  # whether that rank's lane is the culprit, or nobody is
    live: str | None = None  # a fault of lab/real/inject.py for the running job
    stage: Stage | None = None  # what is arranged before the run begins
    config: Mapping[str, str] = field(default_factory=dict)
    begins: Literal["steady", "early", "start"] = "steady"  # when it is injected, or shows
    noticed: bool = True  # whether it stops, slows or ends the run: else only the recording shows it
    speaks_s: float = 12.0  # how long the fault is left to show before anyone asks
    ends: bool = False  # whether the run ends by itself
    undone_early: bool = False  # the fault is over before the run is
    must_not: tuple[str, ...] = ()

    @property
    def culprits(self) -> list[str]:
        """The lanes a right verdict accuses."""
        return [f"{short_hostname()}-r{self.rank}"] if self.cause and self.accused else []

    @property
    def truth(self) -> Truth:
        """What a right verdict says."""
        roots = [TrueCause(cause=self.cause, hosts=self.culprits)] if self.cause else []
        # Beside others' processes a run without a fault may be slow for their sake: then they are the answer.
        busy = [Truth(outcome="incident", roots=[TrueCause(cause="cpu-contention")])] if not self.cause else []
        innocent = [f"host:{short_hostname()}-r{r}" for r in range(self.procs) if not self.cause or r != self.rank]
        return Truth(outcome=self.outcome, roots=roots, must_not=[*innocent, *self.must_not], alternatives=busy)


def _on_gpu(name: str, about: str, cause: str) -> RealCase:
    return RealCase(
        name, about, cause, procs=1, rank=0, gpu=True, live=name, stage=stage.gpu, config=GPU_MODEL, speaks_s=20.0
    )


_SLOW_DATA = {"data_slow_from_step": "40", "data_slow_rank": str(VICTIM_RANK)}

_CASES = (
    RealCase("none", "nothing is broken", None, "healthy", config={"steps": "150"}, ends=True),
    RealCase("stop", "one rank is stopped (SIGSTOP)", "collective-hang", live="stop"),
    RealCase("kill", "one rank is killed (SIGKILL)", "peer-died", live="kill", begins="early", ends=True),
    RealCase("segfault", "one rank crashes (SIGSEGV)", "segfault", live="segfault", begins="early", ends=True),
    RealCase("cpu", "busy loops take one rank's CPU time", "cpu-contention", live="cpu", speaks_s=15.0),
    RealCase(
        "slow-data",
        "one rank's batches come late",
        "input-stall",
        config={**_SLOW_DATA, "data_slow_seconds": "0.8"},
        begins="early",
        must_not=("cpu-contention",),
    ),
    RealCase("data-stall", "one rank's batches become late", "input-stall", live="data-stall", speaks_s=15.0),
    RealCase(
        "data-hang",
        "one rank's next batch never comes",
        "dataloader-hang",
        config={**_SLOW_DATA, "data_slow_seconds": "86400"},
        begins="early",
        speaks_s=8.0,
    ),
    RealCase(
        "failing-data",
        "one rank's data pipeline raises in the middle of the run",
        "python-exception",
        accused=False,  # a record is damaged, not the machine that read it
        config={"data_fails_at_step": "40", "data_fails_rank": str(VICTIM_RANK)},
        begins="early",
        ends=True,
    ),
    RealCase(
        "divergent-program",
        "one rank compiles another program than the rest",
        "collective-mismatch",
        accused=False,  # two sizes do not fit; which of them is wrong, no message says
        stage=stage.other_program("base_mlp_dim=256"),
        begins="start",
        ends=True,
    ),
    RealCase(
        "packet-loss",
        "one rank's link loses packets",
        "network-degradation",
        stage=stage.own_network,
        live="packet-loss",
        speaks_s=20.0,
    ),
    RealCase(
        "packet-delay",
        "one rank's link delays packets",
        "network-degradation",
        stage=stage.own_network,
        live="packet-delay",
        speaks_s=20.0,
    ),
    RealCase(
        "link-down",
        "one rank's link goes down",
        "network-link-down",
        stage=stage.own_network,
        live="link-down",
        begins="early",
        speaks_s=6.0,
    ),
    RealCase(
        "leak",
        "one rank leaks memory",
        "host-memory-leak",
        stage=stage.leaking("5", 24.0),
        begins="early",
        noticed=False,
        speaks_s=20.0,
    ),
    RealCase(
        "oom",
        "one rank suddenly needs more than its control group has",
        "oom-host",
        stage=stage.leaking(CONFINED, 80.0),
        live="oom",
        begins="early",
        ends=True,
    ),
    RealCase(
        "slow-disk",
        "the disk takes checkpoints at a crawl",
        "storage-degradation",
        rank=0,
        accused=False,  # the disk is slow, not the rank that writes to it
        live="slow-disk",
        config={"checkpoint_period": "15"},
        begins="early",
        noticed=False,
        speaks_s=35.0,
    ),
    RealCase(
        "full-disk",
        "the third checkpoint does not fit any more",
        "storage-full",
        rank=0,
        accused=False,
        stage=stage.small_disk,
        config={"checkpoint_period": "15"},
        begins="early",
        ends=True,
    ),
    RealCase(
        "nan",
        "a batch holds a NaN",
        "loss-divergence",
        accused=False,
        config={"nan_at_step": "30"},
        begins="early",
        noticed=False,
        speaks_s=5.0,
    ),
    RealCase(
        "busy-port",
        "the coordinator's port is taken",
        "port-fail",
        rank=0,
        accused=False,
        stage=stage.taken_port,
        begins="start",
        ends=True,
    ),
    RealCase(
        "lost-library",
        "one rank cannot load a shared library",
        "missing-library",
        accused=False,  # it was the first to load it and ended the run: nobody knows whether the others could
        stage=stage.lost_library,
        begins="start",
        ends=True,
    ),
    RealCase(
        "kill-recorder",
        "the recorder is killed and comes back",
        None,
        "healthy",
        live="kill-recorder",
        config={"steps": "120"},
        begins="early",
        ends=True,
    ),
    RealCase(
        "freeze-exporter",
        "the agent is stopped for a while; the ranks train on",
        None,
        "healthy",
        live="freeze-exporter",
        config={"steps": "150"},
        begins="early",
        undone_early=True,
        ends=True,
    ),
    _on_gpu("power-cap", "the power limit of the rank's GPU is lowered", "gpu-power-cap"),
    _on_gpu("lock-clocks", "the clock of the rank's GPU is locked", "gpu-clock-degraded"),
    _on_gpu("gpu-hog", "somebody else computes on the rank's GPU", "gpu-shared"),
    _on_gpu("busy-wait", "somebody else's kernel spins on the rank's GPU", "gpu-shared"),
)
CASES = {case.name: case for case in _CASES}


def real_cases() -> list[tuple[str, Runner, Truth]]:
    """Every real incident as name, runner (workspace to job directory) and truth, for the scorer."""
    from trackwalker.lab.real.demo import run_case

    return [(case.name, partial(run_case, case), case.truth) for case in _CASES]
