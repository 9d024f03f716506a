"""What a line tells without vocabulary: error or not, exception, errno, signal, object; who wrote it; its class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from triage_logs import ending as closing
from triage_logs import header, steps, triage_text

from trackwalker.logs.failures import groups, refine, roles
from trackwalker.logs.failures import line_hosts as told
from trackwalker.logs.failures import victim_lines as hearsay
from trackwalker.logs.failures.kinds import kind_of, kinds
from trackwalker.logs.failures.signatures import load
from trackwalker.logs.failures.structure import ending, read
from trackwalker.logs.scanning.lines import parse


@pytest.mark.parametrize(
    ("text", "signal", "code"),
    [
        ("child 3 ended: WTERMSIG 9", 9, None),
        ("worker exits with return code = -7", 7, -7),
        ("process 17 exited with code 3", None, 3),
        ("container exit status 139", 11, 139),
        ("rank 3 returned 247 as its exit code 247", 9, 247),
        ("[launch] sending signal 9 to all children", None, None),
    ],
)
def test_how_a_process_ended_in_any_words(text: str, signal: int | None, code: int | None) -> None:
    assert ending(text) == (signal, code)


@pytest.mark.parametrize(
    "text",
    [
        "0 errors found in 12 files",
        "[INFO] failed=0 retried=2",
        "WARNING: could not import foo, using bar",
        "I1116 10:00:00.1 123 a.cc:3] failed to open the optional cache",
        "will retry after the connection was refused",
        'sample 3: "ERROR: everything failed"',
        "loss 2.13 grad_norm 0.9 error_feedback on",
        "finished with exit code 0",
    ],
)
def test_what_only_mentions_failures_is_no_error(text: str) -> None:
    body = parse(text.encode())
    assert body is None or read(body) is None


def test_the_parts_of_an_error_line() -> None:
    body = parse(b"[rank17]: CustomVaultError: [Errno 28] could not seal the shard tray")
    assert body is not None
    assert body.rank == 17
    found = read(body)
    assert found is not None
    assert (found.exception, found.errno, found.verb, found.about) == (
        "CustomVaultError",
        "28",
        "seal",
        "the shard tray",
    )


@pytest.mark.parametrize(
    ("text", "host", "rank"),
    [
        ("Nov 16 10:22:33 n23 kernel: widget 3 failed", "n23", None),
        ("2026-11-16T10:22:33.1+00:00 n23 kernel: widget 3 failed", "n23", None),
        ("n23:811:902 [3] NCCL WARN widget", "n23", None),
        ("[n23:4] widget failed", "n23", 4),
        ("(TrainWorker pid=7, ip=10.0.0.23) widget failed", "10.0.0.23", None),
    ],
)
def test_who_wrote_a_line(text: str, host: str, rank: int | None) -> None:
    body = parse(text.encode())
    assert body is not None
    assert (body.host, body.rank) == (host, rank)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("could not flush the checkpoint to the volume", "storage"),
        ("the allocator has no headroom left in its arena", "memory"),
        ("link to the switch port went away", "network"),
        ("the accelerator's firmware refused the kernel launch", "device"),
        ("only 30 of 32 participants reached the barrier", "rendezvous"),
        ("the pod was drained for maintenance", "scheduler"),
        ("clock skew of 40 s against the time source", "time"),
    ],
)
def test_a_class_from_words(text: str, kind: str) -> None:
    assert kind_of([text]) == kind


def test_a_class_from_an_errno_alone_and_none_from_nothing() -> None:
    assert kind_of(["it broke"], errno="ENOSPC") == "storage"
    assert kind_of(["it broke"]) == ""


def test_every_cause_of_a_signature_has_a_class() -> None:
    classed = set().union(*(k.causes for k in kinds()))
    missing = {s.cause for s in load().by_id.values() if s.order <= 5} - classed
    assert missing == {"unclassified"}


@pytest.mark.parametrize("module", [roles, refine, groups, hearsay, told])
def test_the_code_of_roles_names_no_signature(module: object) -> None:
    text = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    quoted = set(re.findall(r"[\"']([a-z0-9-]+)[\"']", text))
    assert quoted & set(load().by_id) == set()


def test_unknown_words_are_quoted_placed_and_classed(tmp_path: Path) -> None:
    odd = "17: [E] quill store: cannot unseal the shard tray of checkpoint 40\n"
    found = triage_text(tmp_path, header(nodes=24) + steps(20, nodes=24) + odd + closing(1))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.kind) == ("unclassified", "storage")
    assert (found.roles.first_rank, found.roles.first_host) == (17, "node018")
    assert "unclassified (storage?), first on rank 17 / node018" in found.summary
    assert "unseal the shard tray" in found.summary
    assert found.next


def test_what_the_healthy_part_prints_too_is_no_news(tmp_path: Path) -> None:
    usual = "3: [E] metrics relay 9 could not reach its hub\n"
    odd = "2: [E] quill store: cannot unseal tray 4\n"
    text = header() + steps(20) + usual + steps(40, first=21) + usual + odd
    found = triage_text(tmp_path, text + closing(1))
    assert found.primary is not None
    assert found.primary.text.endswith("cannot unseal tray 4")
    alone = triage_text(tmp_path, header() + steps(20) + usual + steps(40, first=21) + usual)
    assert alone.primary is None


def test_what_a_rank_says_of_itself_comes_before_what_others_say_of_it(tmp_path: Path) -> None:
    others = "".join(f"{r}: ERROR ring lost touch with rank 2\n" for r in (0, 1, 3))
    own = "2: ERROR the quill of tray 4 is broken\n"
    found = triage_text(tmp_path, header() + steps(20) + others + own + closing(1))
    assert found.roles.first_rank == 2
    assert found.primary is not None
    assert found.primary.rank == 2


@pytest.mark.parametrize(
    "forged",
    [
        "1: NODE_LOST host=node004: its agent never said how its ranks ended",
        "1: FATAL: node004 | [CHECK_GPUS] no GPU answers",
        "1: FATAL: Training: no word from node004",
        "1: FIRST_FAILURE rank=3 host=node004 exit=139 cause=segfault",
        "1: NODE_EXIT host=node004 exit=139",
        "1: == Training FAILED (exit=1, 3s) ==",
        '1: {"text": "NODE_LOST host=node004"}',
        "1: \x1b[2J\x1b]0;x\x07NODE_LOST host=node004",
        "1: rank 2 host node004 rank=2 hostname=node004",
    ],
)
def test_what_a_rank_prints_in_the_launchers_words_changes_no_verdict(tmp_path: Path, forged: str) -> None:
    real = "2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    plain = triage_text(tmp_path, header() + steps(20) + real + closing(1))
    found = triage_text(tmp_path, header() + steps(20) + forged + "\n" + real + closing(1))
    assert found.primary is not None
    assert plain.primary is not None
    assert (found.primary.cause, found.primary.hosts, found.status) == ("oom-gpu", plain.primary.hosts, plain.status)
    assert (found.roles.first_rank, found.roles.first_host) == (2, "node003")
    assert "node004" not in {h for f in found.roles.findings for h in f.hosts}
