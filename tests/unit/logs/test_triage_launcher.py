"""What our own launcher writes before, instead of and at the end of training, as triage reads it: cause and host."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps, triage_text

BEGIN = "JOB_ID=77\nJOB_NAME=JAX-toy\nNNODES=4\nJOB_NODELIST=n[1-4]\n== Preflight BEGIN (timeout=900s) ==\n"
CANCELLED = "*** JOB 77 ON node001 CANCELLED AT 2026-11-15T10:00:00 ***\n0: NODE_EXIT host=node001 exit=143\n"


@pytest.mark.parametrize(
    ("check", "cause"),
    [
        ("GPUS", "no-gpu"),
        ("GPUS_FREE", "preflight-gpu-busy"),
        ("ECC", "gpu-hardware-fault"),
        ("SHARED_FS", "storage-error"),
        ("RDMA", "rdma-link-failure"),
        ("REACH", "rendezvous-incomplete"),
        ("IPV6_RULES", "preflight-ipv6-rules"),
    ],
)
def test_a_check_that_fails_is_the_cause_and_its_host_is_named(tmp_path: Path, check: str, cause: str) -> None:
    fails = f"FATAL: n3 | [CHECK_{check}] what was seen; what to do\n2: NODE_EXIT host=n3 exit=1\n"
    passes = f"n1 | [CHECK_{check}] OK (8)\nWARNING: n2 | [CHECK_{check}] fewer than could be\n"
    end = "== Preflight FAILED (exit=1, 3s) ==\n" + ending(1, "Preflight FAILED (exit=1)")
    found = triage_text(tmp_path, BEGIN + passes + fails + end)
    assert found.status == "failed"
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host, found.primary.hosts) == (cause, "n3", ("n3",))
    assert triage_text(tmp_path, BEGIN + passes + header() + steps(99) + ending(0)).primary is None


def test_a_stage_without_an_answer_names_who_was_silent(tmp_path: Path) -> None:
    line = "FATAL: Preflight: no word from n3, n4\n== Preflight TIMEOUT (5s/4s) ==\n"
    found = triage_text(tmp_path, BEGIN + line + ending(124, "Preflight TIMEOUT (5s/4s)")).primary
    assert found is not None
    assert (found.cause, found.hosts) == ("preflight-timeout", ("n3", "n4"))


def test_a_node_that_never_spoke_again(tmp_path: Path) -> None:
    line = "NODE_LOST host=node003: its agent never said how its ranks ended\n== Training FAILED (exit=1, 50s) ==\n"
    found = triage_text(tmp_path, header() + steps(5) + line + ending(1, "Training FAILED (lost node003)")).primary
    assert found is not None
    assert (found.cause, found.host) == ("node-death", "node003")


@pytest.mark.parametrize(
    ("code", "reason", "status", "cause"),
    [
        (143, "CANCELLED (time limit)", "cancelled", "walltime"),
        (143, "CANCELLED (scancel / SIGTERM)", "cancelled", "user-cancel"),
        (124, "Training TIMEOUT (51s/50s)", "failed", "train-timeout"),
    ],
)
def test_three_ways_to_be_ended_are_told_apart(tmp_path: Path, code: int, reason: str, status: str, cause: str) -> None:
    stage = f"== {reason} ==\n" if "TIMEOUT" in reason else ""
    found = triage_text(tmp_path, header() + steps(5) + CANCELLED + stage + ending(code, reason))
    assert found.primary is not None
    assert (found.status, found.primary.cause) == (status, cause)
