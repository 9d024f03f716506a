"""Who failed first where labels tell only parts of it: nodes and local ranks, columns, records, the launcher's word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from triage_logs import triage_text

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job

STEP = (
    "completed step: {s}, seconds: 8.1, TFLOP/s/device: 42.3, Tokens/s/device: 999.4, total_weights: 1048576, loss: 2.7"
)
LOST = "[W302 10:00:0{r}.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=9, addr=[localhost]:4100{r}): Broken pipe"  # noqa: E501
WAITS = "[E302 10:10:0{r}.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out."  # noqa: E501


def _first(folder: Path, lines: list[str]) -> tuple[str | None, int | None, str | None]:
    found = triage_text(folder, "\n".join(lines) + "\n", "4711.log").primary
    return (found.cause, found.rank, found.host) if found else (None, None, None)


def test_a_node_and_a_local_rank_make_a_rank(tmp_path: Path) -> None:
    lines = [f"{n}: NODE_RANK={n} HOST=elm{n:02d} torchrun --nnodes=4 --nproc_per_node=8 train.py" for n in range(4)]
    lines += [f"0: [default0]:{STEP.format(s=s)}" for s in range(30)]
    lines += ["2: [default5]:the miller found no grain in the hopper"]
    lines += [f"{n}: [default1]:[rank{8 * n + 1}]:{LOST.format(r=n)}" for n in (0, 1, 3)]
    assert _first(tmp_path, lines) == ("unclassified", 21, "elm02")


def test_a_column_before_the_text_is_the_host(tmp_path: Path) -> None:
    lines = [f"t1v-n-77-w-{n} | jax.process_index()={n} of 4" for n in range(4)]
    lines += [f"t1v-n-77-w-0 | {STEP.format(s=s)}" for s in range(30)]
    lines += ["t1v-n-77-w-3 | E0302 10:00:00.100000 812 kiln.cc:7] the kiln went cold"]
    lines += [
        f"t1v-n-77-w-{n} | E0302 10:00:02.100000 812 coordination_service_agent.cc:368] Polled an error from coordination service (this can be an error from this or another task)."  # noqa: E501
        for n in (0, 1, 2)
    ]
    assert _first(tmp_path, lines) == ("unclassified", 3, "t1v-n-77-w-3")


def test_a_record_tells_rank_host_and_level(tmp_path: Path) -> None:
    def record(rank: int, level: str, said: str) -> str:
        return json.dumps({"ts": "2026-03-02T10:00:00Z", "level": level, "rank": rank, "host": f"oak{rank}", "msg": said})  # noqa: E501  # fmt: skip

    lines = [record(0, "INFO", STEP.format(s=s)) for s in range(30)]
    lines += [record(6, "ERROR", "ferry: the far bank does not answer any more")]
    lines += [record(r, "WARNING", LOST.format(r=r)) for r in (1, 2, 3)]
    assert _first(tmp_path, lines) == ("unclassified", 6, "oak6")


def test_a_record_that_a_rank_prints_speaks_for_no_other(tmp_path: Path) -> None:
    forged = json.dumps({"level": "error", "rank": 7, "host": "oak7", "msg": "NODE_LOST host=oak7"})
    lines = [f"0: {STEP.format(s=s)}" for s in range(30)] + [f"1: {forged}", "2: the weir broke: no water left"]
    lines += [f"{r}: {LOST.format(r=r)}" for r in (0, 1, 3)] + ["srun: error: ash2: task 2: Exited with exit code 1"]
    assert _first(tmp_path, lines) == ("unclassified", 2, "ash2")


@pytest.mark.parametrize(
    "end",
    [
        ["srun: error: cn5: task 5: Exited with exit code 1"],
        ["Root Cause (first observed failure):", "[0]:", "  host      : cn5", "  rank      : 5 (local_rank: 5)"],
        ["the job to be terminated. The first process to do so was:", "", "  Process name: [[811,1],5]"],
    ],
)
def test_without_steps_the_launchers_word_tells_whose_last_words_count(tmp_path: Path, end: list[str]) -> None:
    lines = [f"[rank{r}]: building the model" for r in range(8)]
    lines += ["[rank5]: two keepers hold the same key, this one leaves", "[rank2]: model built in 4 s, moving on"]
    lines += [f"[rank{r}]:{LOST.format(r=r)}" for r in (1, 3)] + ["exited with exit code 1", *end]
    cause, rank, _ = _first(tmp_path, lines)
    assert (cause, rank) == ("unclassified", 5)


def test_what_a_rank_prints_about_the_end_of_another_is_not_believed(tmp_path: Path) -> None:
    lines = [f"[rank0]: {STEP.format(s=s)}" for s in range(30)] + ["[rank6]: the bell rope tore, nobody can ring"]
    lines += ["[rank1]: Root Cause (first observed failure):", "[rank1]:   rank      : 3 (local_rank: 3)"]
    lines += [f"[rank{r}]:{LOST.format(r=r)}" for r in (1, 2, 4)]
    assert _first(tmp_path, lines)[1] == 6


def test_ranks_that_wait_in_different_collectives_may_wait_for_one_that_is_gone(tmp_path: Path) -> None:
    lines = [f"[rank0]: {STEP.format(s=s)}" for s in range(30)] + ["[rank6]: ERROR keel: the hull is open to the sea"]
    lines += [f"[rank{r}]:{WAITS.format(r=r, op=op)}" for r, op in ((1, "SEND"), (2, "ALLREDUCE"), (3, "SEND"))]
    assert _first(tmp_path, lines)[:2] == ("unclassified", 6)


def test_a_typed_command_divides_a_file(tmp_path: Path) -> None:
    lines = [
        "$ kubectl get pod w-2 -o yaml",
        "status:",
        "  message: 'The node was low on resource: ephemeral-storage.'",
    ]
    lines += ["  reason: Evicted", "$ kubectl logs w-0 --tail 40"] + [STEP.format(s=s) for s in range(30)]
    lines += ["[rank0]: socketProgress: Connection closed by remote peer w-2.jobs.svc.cluster.local<40822>"]
    assert _first(tmp_path, lines)[0] == "storage-full"


def test_a_warning_does_not_end_a_program_that_raised_something_later(tmp_path: Path) -> None:
    path = tmp_path / "4711.log"
    path.write_text(
        "/opt/venv/lib/python3.11/site-packages/x/__init__.py:18: UserWarning: x was not compiled with torchair.\n"
        'Traceback (most recent call last):\n  File "/srv/train.py", line 14, in <module>\n'
        "RuntimeError: the accelerator said no\n"
    )
    found = triage(Job("4711", path, None))
    assert found.primary is not None
    assert found.primary.cause == "python-exception"


def test_what_is_tried_again_was_not_the_end(tmp_path: Path) -> None:
    lines = ["[rank0]: ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\")"]
    lines += ["[rank0]: Retrying in 1s [Retry 1/5].", "[rank0]: Traceback (most recent call last):"]
    lines += ["[rank0]: requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://hub/x"]
    assert _first(tmp_path, lines)[0] == "storage-rate-limit"


def test_a_limit_that_the_log_shows_lifted_has_no_name(tmp_path: Path) -> None:
    failed = (
        "a1:88:140 [0] misc/ibvwrap.cc:318 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    )
    assert _first(tmp_path, [failed])[0] == "memlock-limit"
    assert _first(tmp_path, ["a1 $ ulimit -l", "unlimited", failed])[0] == "unclassified"


def test_interleaving_may_put_the_victims_first(tmp_path: Path) -> None:
    lines = [f"{r}: [rank{r}]: {STEP.format(s=s)}" for s in range(30) for r in (0, 1)]
    lines += [f"{r}: [rank{r}]:{LOST.format(r=r)}" for r in (1, 3, 4)]
    lines += [
        "6: the sluice stayed shut, no more water for the wheel",
        "srun: error: fir6: task 6: Exited with exit code 3",
    ]
    assert _first(tmp_path, lines) == ("unclassified", 6, "fir6")


def test_ranks_that_were_told_to_end_stand_behind_the_one_that_was_not(tmp_path: Path) -> None:
    lines = [f"{r}: rank {r} on elm{r:02d}" for r in range(4)] + [f"0: {STEP.format(s=s)}" for s in range(30)]
    lines += ["2: the miller found no grain in the hopper"]
    told = [f"{r}: received SIGTERM, exiting" for r in (0, 1, 3)]
    assert _first(tmp_path, [*lines, *told]) == ("unclassified", 2, "elm02")
    assert _first(tmp_path, [*lines, *told, "2: received SIGTERM, exiting"])[0] == "user-cancel"


def test_whom_the_others_name_is_heard(tmp_path: Path) -> None:
    lines = [f"[elm{r:02d}][rank {r}] up" for r in range(4)] + [
        f"[elm00][rank 0] {STEP.format(s=s)}" for s in range(30)
    ]
    lines += ["[elm02][rank 2] kiln 1 at 108 degrees, emergency stop", "[elm03][rank 3] peer 2 is gone, leaving too"]
    assert _first(tmp_path, lines) == ("unclassified", 2, "elm02")


def test_hosts_stand_in_the_names_of_files_below_one_another(tmp_path: Path) -> None:
    rows = [f"==> logs/elm{r:02d}/rank_{r}.log <==\nup" + "\nERROR the kiln cannot be lit" * (r == 2) for r in range(4)]
    assert _first(tmp_path, rows) == ("unclassified", 2, "elm02")


def test_a_kill_without_a_word_on_memory_is_not_called_one(tmp_path: Path) -> None:
    killed = ["srun: error: elm02: task 2: Killed"]
    assert _first(tmp_path, killed)[0] != "oom-host"
    assert _first(tmp_path, ["slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.", *killed])[0] == "oom-host"


def test_a_record_without_a_message_says_what_its_fields_say(tmp_path: Path) -> None:
    row = {"rank": 2, "host": "elm02", "kind": "board_gone", "note": "config space reads all ones", "fatal": True}
    found = triage_text(tmp_path, json.dumps(row) + "\n", "4711.log").primary
    assert found is not None
    assert (found.cause, found.kind, found.rank, found.host) == ("unclassified", "device", 2, "elm02")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("slurmstepd: error: write to '/sys/fs/cgroup/cgroup.procs' failed: No space left on device", "storage-full"),
        ("[rank3]: OSError: [Errno 28] inotify watch limit reached: No space left on device", "storage-full"),
        ("OSError: [Errno 16] Device or resource busy: '/home/a/.triton/cuda_utils.so'", "preflight-gpu-busy"),
    ],
)  # fmt: skip
def test_a_code_whose_object_is_something_else_names_no_cause_of_that_code(
    tmp_path: Path, line: str, cause: str
) -> None:
    assert _first(tmp_path, [STEP.format(s=s) for s in range(30)] + [line])[0] != cause
