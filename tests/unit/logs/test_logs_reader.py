"""Facts of a job log, on texts in upstream's formats and on damaged ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers import HEADER, step_line
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trackwalker.errors import EvidenceError
from trackwalker.logs.facts import LogFacts
from trackwalker.logs.scanning.index import index_logs

RAY = "(MaxTextTrainerActor pid=1275, ip=10.1.2.3) "
ABSL = "I1115 00:44:52.123456 139872 metric_logger.py:123] "
RULE = "=" * 65


def facts_of(tmp_path: Path, text: str | bytes) -> LogFacts:
    path = tmp_path / "12345-JAX-x.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return index_logs(path, every_rank=True).facts


class Told(NamedTuple):
    step: int
    seconds: float
    tgs: float | None
    loss: float | None
    line: int


def steps_of(facts: LogFacts) -> dict[int, list[Told]]:
    """What every rank's step lines say, None where a line does not say it."""
    out = {}
    for rank, steps in {facts.steps.rank or 0: facts.steps, **facts.steps.others}.items():
        told = steps.has_loss | np.isfinite(steps.loss)
        out[rank] = [
            Told(
                int(steps.step[i]),
                float(steps.seconds[i]),
                None if math.isnan(steps.tgs[i]) else float(steps.tgs[i]),
                float(steps.loss[i]) if told[i] else None,
                int(steps.line[i]),
            )
            for i in range(len(steps))
        ]
    return {rank: rows for rank, rows in out.items() if rows}


def summary(status: str, wall: str | None = "1h 2m 3s") -> str:
    rows = ["  Job:    12345 (JAX-x)", "  Model:  x", "  Nodes:  2", f"  Wall:   {wall}", f"  Status: {status}"]
    return "\n".join([" JOB SUMMARY ".center(65, "="), *(r for r in rows if wall or "Wall" not in r), RULE, ""])


def test_header_and_hosts(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, HEADER + "0: JOB_ID=99999\nSLURM_JOB_ID=7\nRAY_PORT=33333\n")
    assert facts.header["JOB_ID"] == "12345"  # the first, and not a rank's environment dump
    assert facts.header["PASSTHROUGH_ARGS"] == "steps=10 per_device_batch_size=8"
    assert facts.header["RAY_PORT"] == "33333"
    assert facts.hosts == ["node001", "node002"]
    assert facts.host_of(1) == "node002"
    assert facts.host_of(2) is None
    assert facts.host_of(-1) is None


def test_a_long_node_list_is_read_to_its_end(tmp_path: Path) -> None:
    names = [f"gpu-node-{7 * n:05d}" for n in range(1000)]
    assert facts_of(tmp_path, f"JOB_ID=1\nJOB_NODELIST={','.join(names)}\n").hosts == names


def test_legacy_and_local_headers(tmp_path: Path) -> None:
    legacy = facts_of(tmp_path, "SLURM_JOB_ID=7\nSLURM_JOB_NODELIST=n[1-2]\nSLURM_NNODES=2\n")
    assert (legacy.header["JOB_ID"], legacy.hosts) == ("7", ["n1", "n2"])
    line = "JOB_NAME=JAX-x-a  JOB_ID=local_1_1_ab  JOB_WORKSPACE=/ws\nLOG_FILE=/ws/x.log\n"
    local = facts_of(tmp_path, line + "JOB_ID=local_1_1_ab\nJOB_NAME=JAX-x-a\nJOB_NODELIST=box\n")
    assert (local.header["JOB_NAME"], local.header["JOB_ID"], local.hosts) == ("JAX-x-a", "local_1_1_ab", ["box"])


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("3: ", 3),
        (" 3: ", 3),
        ("03: ", 3),
        ("003: ", 3),
        ("00: ", 0),
        ("0: ", 0),
        ("  12: ", 12),
        ("", 0),
        ("12:34:56 ", 0),
    ],
)
@pytest.mark.parametrize("inner", ["", RAY, "(MaxTextTrainerActor pid=7) ", ABSL, f"\x1b[36m{RAY}\x1b[0m", RAY + ABSL])
def test_r41_prefixes_in_any_combination(tmp_path: Path, prefix: str, inner: str, rank: int) -> None:
    facts = facts_of(tmp_path, f"first\n{prefix}{inner}{step_line(7)}\nlast\n")
    (step,) = steps_of(facts)[rank]
    assert (step.step, step.seconds, step.tgs, step.loss, step.line) == (7, 12.345, 2034.567, 10.123, 2)


@pytest.mark.parametrize(
    ("line", "tgs", "loss"),
    [
        (step_line(1, loss="nan"), 2034.567, math.nan),
        (step_line(1, loss="inf"), 2034.567, math.inf),
        (step_line(1, loss="-1.5e-03"), 2034.567, -0.0015),
        (step_line(1, mfu=False), 2034.567, 10.123),
        (step_line(1) + ", lm_loss: 6.0, perplexity: 400.1", 2034.567, 10.123),
        (step_line(1) + ", main_model_loss: 9.5, mtp_loss: 0.7", 2034.567, 10.123),
        ("[Rampup Batch Size Phase], completed step: 1, seconds: 12.345, total_weights: 1, loss: 2.0", None, 2.0),
        ("completed step: 1, seconds: 12.345", None, None),
        ("completed step: 1, seconds: 12.345, TFLOP/s/device: 1.0, MFU: 2..5%, loss: ...", None, None),
        ("completed step: 1, seconds: 12.345.6, Tokens/s/device: 1.2.3, loss: 1.2.3", None, 1.2),
    ],
)
def test_r41_step_line_forms(tmp_path: Path, line: str, tgs: float | None, loss: float | None) -> None:
    ((step,),) = steps_of(facts_of(tmp_path, f"0: {line}\r\n")).values()
    assert (step.step, step.seconds, step.tgs) == (1, 12.345, tgs)
    assert str(step.loss) == str(loss)


@pytest.mark.parametrize(
    "line", ["completed step: x", "completed step: 1, seconds: .", "completed step: 1, seconds: nan"]
)
def test_step_words_without_numbers(tmp_path: Path, line: str) -> None:
    assert steps_of(facts_of(tmp_path, f"0: {line}\n")) == {}


def test_a_quoted_step_line_is_data(tmp_path: Path) -> None:
    """Also among real ones, also without a quote that ends it."""
    quoted = [f'0: sample {{"text": "{step_line(3)}"}}', f"0: prompt: {step_line(4)}"]
    assert steps_of(facts_of(tmp_path, "\n".join(quoted) + "\n")) == {}
    real = [f"0: {step_line(step)}" for step in range(20)]
    for each in quoted:
        facts = facts_of(tmp_path, "\n".join([*real[:10], each, *real[10:]]) + "\n")
        assert [s.step for s in steps_of(facts)[0]] == list(range(20))
        assert facts.steps.last == 19


@pytest.mark.parametrize(
    "words",
    [
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
        "NODE_EXIT host=node001 exit=137",
        "Traceback (most recent call last):",
        "*** JOB 12345 ON node001 CANCELLED AT 2026-02-24T19:59:35 DUE TO TIME LIMIT ***",
        "Saved a checkpoint at step 200.",
    ],
)
def test_words_of_launcher_and_service_in_quoted_data_are_data(tmp_path: Path, words: str) -> None:
    said, quoted = facts_of(tmp_path, f"0: {words}\n"), facts_of(tmp_path, f'0: batch[3] text="{words}"\n')
    parts = ("heartbeat", "exits", "tracebacks", "cancel", "saves")
    assert any(getattr(said, part) for part in parts)
    assert not any(getattr(quoted, part) for part in parts)


@pytest.mark.parametrize("keep", range(15, len(step_line(12)) + 1, 3))
def test_a_log_cut_inside_its_last_step_line_invents_no_number(tmp_path: Path, keep: int) -> None:
    facts = facts_of(tmp_path, f"0: {step_line(11)}\n0: {step_line(12)[:keep]}")
    assert facts.ends_mid_line
    assert facts.lines == 2
    first, *rest = steps_of(facts)[0]
    assert first.step == 11
    for step in rest:
        assert (step.step, step.seconds) == (12, 12.345)
        assert step.tgs in (None, 2034.567)
        assert step.loss in (None, 10.123)


def test_stages_exits_and_first_failure(tmp_path: Path) -> None:
    text = (
        "== Preflight BEGIN (timeout=900s) ==\n== Preflight END (12s) ==\n== Docker pull TIMEOUT (901s/900s) ==\n"
        "== Training BEGIN (no timeout) ==\n3: NODE_EXIT host=node003 exit=137\n 0: NODE_EXIT host=node000 exit=143\n"
        "1: == Training END (1s) ==\n"
        "FIRST_FAILURE rank=3 host=node003 exit=137 cause=killed by SIGKILL\n== Training FAILED (exit=137, 842s) ==\n"
    )
    facts = facts_of(tmp_path, text)
    assert [(s.name, s.what, s.seconds, s.exit) for s in facts.stages] == [
        ("Preflight", "BEGIN", None, None),
        ("Preflight", "END", 12, None),
        ("Docker pull", "TIMEOUT", 901, None),
        ("Training", "BEGIN", None, None),
        ("Training", "FAILED", 842, 137),
    ]
    assert [(e.rank, e.host, e.code, e.line) for e in facts.exits] == [(3, "node003", 137, 5), (0, "node000", 143, 6)]
    assert facts.first_failure is not None
    assert (facts.first_failure.rank, facts.first_failure.cause) == (3, "killed by SIGKILL")


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        ("SUCCESS (exit 0)", 0, ""),
        ("FAILED (exit 1) — Training FAILED (exit=137)", 1, "Training FAILED (exit=137)"),
        ("FAILED (exit 143) — CANCELLED (scancel / SIGTERM)", 143, "CANCELLED (scancel / SIGTERM)"),
        ("FAILED (exit 1)", 1, ""),
        ("\x1b[31mFAILED\x1b[0m (exit 1) — unknown", 1, "unknown"),
        ("\x1b[1m\x1b[32mSUCCESS (exit 0)\x1b(B\x1b[m", 0, ""),
    ],
)
@pytest.mark.parametrize(("wall", "seconds"), [("1h 2m 3s", 3723), ("3m 4s", 184), ("7s", 7), (None, None)])
def test_summary(tmp_path: Path, status: str, code: int, reason: str, wall: str | None, seconds: int | None) -> None:
    facts = facts_of(tmp_path, "  Status: FAILED (exit 9)\n" + summary(status, wall))
    assert facts.summary is not None
    assert (facts.summary.exit, facts.summary.reason, facts.summary.wall_s) == (code, reason, seconds)


def test_a_summary_cut_short_has_no_exit_code(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, summary("SUCCESS (exit 0)").split("  Status")[0])
    assert facts.summary is not None
    assert (facts.summary.exit, facts.summary.wall_s) == (None, 3723)
    assert facts_of(tmp_path, HEADER).summary is None


def test_heartbeat_claim(tmp_path: Path) -> None:
    glog = "E0224 19:59:35.664860   27562 coordination_service.cc:1146] "
    claim = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):"
    text = (
        "5: /job:jax_worker/replica:0/task:1 is connected\n"
        f"0: {RAY}{glog}Stopping coordination service after fatal error: {claim}\n"
        f"0: {RAY}/job:jax_worker/replica:0/task:4\n0: {RAY}/job:jax_worker/replica:0/task:16\n"
        f"4: {RAY}{glog}Polled error from coordination service: {claim}\n4: {RAY}/job:jax_worker/replica:0/task:4\n"
        "2: F0224 Terminating process because the JAX distributed service detected fatal errors.\n"
    )
    beat = facts_of(tmp_path, text).heartbeat
    assert beat is not None
    assert beat.accused == {4, 16}  # not the one that was named before anyone complained
    assert beat.claim is not None
    assert (beat.claim.rank, beat.claim.line) == (0, 2)
    assert beat.clock == (2, 24, 19, 59, 35.66486)
    assert {r: q.line for r, q in beat.own_death.items()} == {4: 5, 2: 7}
    assert [q.line for q in beat.named] == [3, 4]


def test_other_facts(tmp_path: Path) -> None:
    text = (
        "0: Config param steps: 10\n1: Config param steps: 99\n0: Config param loss_scale: 1e3\n"
        "0: Memstats: After params initialized:\n1: Synchronizing hosts before training loop\n"
        "0: Saved a checkpoint at step 200.\n0: Saved a checkpoint at step 400.\n"
        "0: restoring from this run's directory step 199\n1: Traceback (most recent call last):\n"
        "slurmstepd: error: *** JOB 12345 ON node001 CANCELLED AT 2026-02-24T19:59:35 DUE TO TIME LIMIT ***\n"
        "2: [Node 2 @ node003] Training subprocess killed by SIGSEGV (signal 11)\n"
    )
    facts = facts_of(tmp_path, text)
    assert (facts.setting("steps"), facts.number("steps"), facts.number("loss_scale")) == ("10", 10, 1000)
    assert facts.number("none") is None
    assert (facts.params_ranks, facts.barrier_ranks) == ({0}, {1})
    assert (facts.saves, facts.restored) == ({200, 400}, 199)
    assert [t.line for t in facts.tracebacks] == [9]
    assert facts.cancel_time == "2026-02-24T19:59:35"
    assert facts.cancel is not None
    assert facts.cancel.line == 10
    assert [q.rank for q in facts.signals] == [2]


def test_r41_a_rank_that_fell_silent_does_not_hide_the_steps_of_the_others(tmp_path: Path) -> None:
    lines = [f"{rank}: {step_line(step)}" for step in range(3) for rank in (2, 1)]
    lines += [f"2: {step_line(step)}" for step in range(3, 40)]
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + "\n")
    steps = index_logs(path).steps
    assert (steps.rank, steps.last, steps.step.tolist()) == (2, 39, list(range(40)))
    assert steps.last_by_rank == {1: 2, 2: 39}
    path.write_text("nothing\n")
    assert (index_logs(path).steps.last, len(index_logs(path).steps)) == (None, 0)


def test_a_five_megabyte_line_between_facts(tmp_path: Path) -> None:
    payload = "x" * 5_000_000
    facts = facts_of(
        tmp_path, f"0: {step_line(1)}\n0: {payload} completed step: 5, seconds: 1\n1: {step_line(2)} {payload}\n"
    )
    found = {r: [(s.step, s.line) for s in steps] for r, steps in steps_of(facts).items()}
    assert found == {0: [(1, 1)], 1: [(2, 3)]}
    assert facts.lines == 3


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    raw = b"\xff\xfe\0\x80\n0: \xf0\x28" + step_line(4).encode() + b" \xff\r\n"
    (step,) = steps_of(facts_of(tmp_path, raw))[0]
    assert (step.step, step.line) == (4, 2)


@pytest.mark.parametrize("kind", ["empty", "missing", "directory"])
def test_a_log_that_cannot_be_read_is_one_clear_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.log"
    if kind == "empty":
        path.write_text("")
    if kind == "directory":
        path.mkdir()
    with pytest.raises(EvidenceError, match=r"x\.log") as caught:
        index_logs(path)
    assert "\n" not in str(caught.value)


STEP, EXIT, STAGE = f"1: {step_line(5)}", "0: NODE_EXIT host=h exit=2", "== Training END (1s) =="
lines_of = st.lists(st.sampled_from([STEP, EXIT, STAGE, "", "x", "\r", "0: Status: = == /task:", "\x0b\x0c\x85\u2028"]))


@settings(deadline=None)
@given(lines=lines_of, finished=st.booleans())
@example(lines=["", ""], finished=False)
@example(lines=[STEP], finished=True)
def test_line_numbers_agree_with_a_naive_reader(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], finished: bool
) -> None:
    text = "\n".join(["first", *lines]) + "\n" * finished
    facts = facts_of(tmp_path_factory.getbasetemp(), text)
    naive = text.split("\n")
    assert facts.lines == len(naive) - (naive[-1] == "")
    assert facts.ends_mid_line == (naive[-1] != "")

    def numbers(line: str) -> list[int]:
        return [n for n, found in enumerate(naive, 1) if found == line]

    assert [s.line for s in steps_of(facts).get(1, [])] == numbers(STEP)
    assert [e.line for e in facts.exits] == numbers(EXIT)
    assert [s.line for s in facts.stages] == numbers(STAGE)
