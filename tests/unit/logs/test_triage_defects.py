"""Upstream's defects that concern logs (spec section 12), one test each: none of them is ours.

D-25 and D-33 (what the scheduler calls an end) are in test_triage_accounting.py, D-29 (where event files are) in
test_triage_sources.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from triage_logs import CANCEL, HEARTBEAT, NCCL, ending, header, role, steps, triage_text

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job


@pytest.mark.parametrize(
    "label",
    [
        "{rank:02d}: ",
        "{rank:2d}: ",
        "{rank}: ",
        "{rank}: (MaxTextTrainerActor pid=9, ip=10.0.0.1) ",
        "{rank:02d}: \x1b[36m(MaxTextTrainerActor pid=9, ip=10.0.0.1)\x1b[0m ",
        "2026-02-11T16:00:49.123Z {rank}: ",
        "{rank}: I1115 00:44:52.123456 139872 metric_logger.py:123] ",
        "{rank}: (pid=7{rank}, ip=10.0.0.1) I1115 00:44:52.123456 139872 metric_logger.py:123] ",
        "(MaxTextTrainerActor pid=7{rank}, ip=10.0.0.{rank}) ",
        "\x1b[36m(RayTrainWorker pid=7{rank}, ip=10.0.0.{rank})\x1b[0m ",
    ],
)
def test_d01_training_time_is_one_ranks(tmp_path: Path, label: str) -> None:
    """D-01: no rank 10 or 20 is taken for rank 0."""
    text = header(nodes=24, steps=9) + steps(8, nodes=24, label=label) + ending(0)
    found = triage_text(tmp_path, text)
    assert found.progress.training_s == pytest.approx(90.0)
    assert len(found.index.steps.last_by_rank) == 24
    assert found.status == "completed"


def test_d02_same_bytes_same_answer(tmp_path: Path) -> None:
    """D-02."""
    text = header() + steps(20) + NCCL.format(rank=0) + HEARTBEAT + CANCEL + ending()
    one, two = (triage_text(tmp_path, text).to_dict() for _ in range(2))
    assert {**one, "cost": 0} == {**two, "cost": 0}


def test_d03_d36_gpu_memory_is_not_host_memory(tmp_path: Path) -> None:
    """D-03, D-36: the specific class wins over the wrappers printed around it."""
    text = (
        "1: Traceback (most recent call last):\n1: jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying "  # noqa: E501
        "to allocate 9 bytes\n1: [Node 1 @ node002] Training subprocess exited with code 1\n1: [Node 1] Actor failed: x\n"  # noqa: E501
    )
    found = triage_text(tmp_path, header() + steps(20) + text + ending(wall="0h 5m 0s"))
    assert found.primary is not None
    assert found.primary.id == "oom-gpu"
    assert {role(found, n) for n in ("python-traceback", "subprocess-fail", "actor-fail")} <= {"consequence"}


def test_d05_an_unknown_checkpoint_period_stays_unknown(tmp_path: Path) -> None:
    """D-05."""
    found = triage_text(tmp_path, header() + steps(20) + ending(wall="0h 5m 0s"))
    assert found.progress.checkpoint_period is None
    assert found.progress.last_checkpoint is None
    assert found.progress.steps_lost is None


def test_d07_a_chatty_hang_is_seen_by_its_steps(tmp_path: Path) -> None:
    """D-07: a hung run that still prints is not alive because its file grows."""
    chat = "".join(f"0: 2026-02-11T{h:02d}:00:00 heartbeat ok\n" for h in range(3, 9))
    found = triage_text(tmp_path, header() + steps(20) + chat)
    assert found.status == "hanging"
    assert found.primary is not None
    assert found.primary.id == "hang"


@pytest.mark.parametrize(("code", "cause"), [(135, "segfault"), (139, "segfault"), (137, "peer-died")])
def test_d14_d34_exit_codes_mean_signals(tmp_path: Path, code: int, cause: str) -> None:
    """D-14, D-34: one process per GPU prints no "killed by" line; the code alone tells."""
    text = header() + steps(20) + f"2: NODE_EXIT host=node003 exit={code}\n" + ending(wall="0h 5m 0s")
    found = triage_text(tmp_path, text)
    assert found.primary is not None
    assert found.primary.cause == cause
    assert found.roles.first_rank == 2


def test_d22_a_long_save_is_no_hang(tmp_path: Path) -> None:
    """D-22: a step of 772 s is inside its own seconds."""
    slow = steps(20) + steps(21, first=21, seconds=772.0) + steps(30, first=22)
    found = triage_text(tmp_path, header(checkpoint_period=20) + slow + CANCEL + ending(143, "x", "0h 30m 0s"))
    assert found.primary is not None
    assert found.primary.cause == "user-cancel"


def test_d23_nan_and_lines_without_mfu_count(tmp_path: Path) -> None:
    """D-23."""
    text = header() + "0: completed step: 0, seconds: 3.5, loss: 9.1\n0: completed step: 1, seconds: 3.5, loss: nan\n"
    found = triage_text(tmp_path, text)
    assert found.progress.last_step == 1
    assert found.primary is not None
    assert found.primary.cause == "loss-divergence"


def test_d24_a_summary_without_status_is_no_success(tmp_path: Path) -> None:
    """D-24."""
    cut = ending().split("  Status")[0]
    assert triage_text(tmp_path, header() + steps(20) + cut).status == "indeterminate"


@pytest.mark.parametrize(("fraction", "advice"), [(".85", "raise XLA"), (".93", "do not raise XLA")])
def test_d04_the_memory_fraction_in_force_is_read(tmp_path: Path, fraction: str, advice: str) -> None:
    """D-04: upstream advises to raise to .93 what its own launcher has already set to .93."""
    text = header() + f"2: XLA_PYTHON_CLIENT_MEM_FRACTION={fraction}\n" + steps(20)
    found = triage_text(tmp_path, text + "1: CUDA out of memory\n" + ending(wall="0h 5m 0s"))
    (said,) = (step for step in found.next if step.startswith(advice))
    assert f"{float(fraction):g}" in said
    assert found.next[0].startswith(("raise XLA", "use a smaller batch"))


def test_d11_a_flat_offset_is_not_a_slide(tmp_path: Path) -> None:
    """D-11: a restore leak costs the same from the first step on; only a reference shows it."""
    noise = 1 + 0.003 * np.random.default_rng(3).standard_normal((2, 200))
    jobs = []
    for number, level in ((1, 10.0), (2, 10.2)):
        text = "".join(steps(n, 1, n, level * noise[number - 1][n]) for n in range(200))
        log = tmp_path / f"{number}-JAX-toy.log"
        log.write_text(header(steps=200) + text + ending(0, wall="1h 0m 0s"))
        jobs.append(Job(str(number), log, None))
    assert triage(jobs[1]).pattern.name == "constant"
    assert triage(jobs[1], triage(jobs[0]).speed).pattern.name == "slow-from-start"


def test_d12_one_shape_one_name(tmp_path: Path) -> None:
    """D-12: "constant" and "one-time" drops look the same; the shape is named, a cause is not."""
    text = "".join(steps(n, 1, n, 10.0 if n < 100 else 12.0) for n in range(200))
    found = triage_text(tmp_path, header(steps=200) + text + ending(0, wall="1h 0m 0s"))
    assert found.pattern.name == "constant-drop"
    assert found.primary is not None
    assert found.primary.cause == "tgs-degradation"
    assert "does not name a cause" in found.primary.proves_not


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("rocdevice.cpp:3020: HSA_STATUS_ERROR_OUT_OF_RESOURCES Available Free mem : 24 MB", "collective-alloc-fail"),
        ("RCCL: Failed to CUDA calloc 6291456 bytes", "collective-alloc-fail"),
        ("Queue aborting with error : HSA_STATUS_ERROR_EXCEPTION", "gpu-hardware-fault"),
        ("Queue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", "unclassified"),
    ],
)
def test_d15_a_full_pool_is_not_broken_hardware(tmp_path: Path, line: str, cause: str) -> None:
    found = triage_text(
        tmp_path, header() + f"1: {line}\n1: NODE_EXIT host=node002 exit=134\n" + ending(wall="0h 5m 0s")
    )
    assert found.primary is not None
    assert found.primary.cause == cause


def test_d26_profiled_steps_do_not_count_for_the_speed(tmp_path: Path) -> None:
    """D-26: upstream's steady window holds the profiler's steps."""
    config = {"profiler": "xplane", "skip_first_n_steps_for_profiler": 6, "profiler_steps": 4}
    text = "".join(steps(n, 1, n, 17.0 if 6 <= n <= 11 else 10.0) for n in range(15))
    found = triage_text(tmp_path, header(steps=15, **config) + text + ending(0, wall="0h 5m 0s"))
    assert found.progress.step_time_s == 10.0
    assert found.progress.tgs == 4096.0


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("FATAL: node003 | [CHECK_IPV6_RULES] 3 (expected 8)", "preflight-ipv6-rules"),
        ("ERROR: Failed to free GPUs on node003", "preflight-gpu-busy"),
        ("DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cuda:global_topology", "rendezvous-incomplete"),
        ("ionic_comp_msn: cqe with error 12 for 0x3f", "rdma-link-failure"),
        (
            "E0211 16:00:49.0 7 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_no_such",
            "xla-unknown-flag",
        ),
    ],
)
def test_d35_what_the_launcher_and_the_runtime_say_early_is_classified(tmp_path: Path, line: str, cause: str) -> None:
    found = triage_text(tmp_path, header() + f"2: {line}\n2: NODE_EXIT host=node003 exit=1\n" + ending(wall="0h 3m 0s"))
    assert found.primary is not None
    assert found.primary.cause == cause


@pytest.mark.parametrize(
    ("reached", "cause"),
    [
        ("", "collective-hang"),
        ("0: Memstats: After params initialized:\n", "silent-compile-oom"),
        (
            "0: Memstats: After params initialized:\n0: Synchronizing hosts before training loop\n",
            "collective-hang",
        ),
    ],
)
def test_d37_no_first_step_has_two_readings(tmp_path: Path, reached: str, cause: str) -> None:
    """D-37: compiler out of memory (never retry) or first collective (retry): said as what cannot be decided here."""
    text = header() + reached + CANCEL + ending(143, "CANCELLED (scancel / SIGTERM)", "2h 0m 0s")
    found = triage_text(tmp_path, text)
    assert found.primary is not None
    assert (found.primary.id, found.primary.cause) == ("hang", cause)
    assert "whether the first collective never met or the compiler" in found.primary.proves_not
    assert bool(reached) == any("look at the GPUs" in step for step in found.next)
    soon = triage_text(
        tmp_path, header() + reached + CANCEL + ending(143, "CANCELLED (scancel / SIGTERM)", "0h 20m 0s")
    )
    assert soon.primary is not None
    assert soon.primary.cause == "user-cancel"  # within what start-up may take
