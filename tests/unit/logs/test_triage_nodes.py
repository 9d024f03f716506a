"""Labels of nodes above labels of ranks, and what the ranks then say: whose line it is, and which of them is the cause."""  # noqa: E501

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from triage_logs import triage_text

from trackwalker.logs.failures.kinds import kind_of_cause
from trackwalker.logs.failures.lastwords import accused

STEP = "[titan] 2026-11-02 15:26:{s:02},225 - root - INFO - step: {s}  loss:  4.6872  grad_norm:  1.4352  memory: 47.11GiB\n"  # noqa: E501
HOSTS = ("rack4n03", "rack4n04", "rack4n05")
OWN = "weft: thread 12 of the pattern is spun the wrong way round, cannot weave on\n"
EXITS = "".join(f"srun: error: {host}: task {node}: Exited with exit code 1\n" for node, host in enumerate(HOSTS))
TOO_LONG = "loom.beat.TooLong: 1200 s where 600 s are allowed"
BARRIER = (
    "jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [orbax]:save_begin:54::1. "
    "This usually happens because a task triggered the barrier too early.\n"
)


def _labelled(label: str, ranks: int) -> str:
    lines = (f"{n}: [{label}{r}]:{STEP.format(s=s)}" for s in range(9) for n in range(3) for r in range(ranks))
    return "".join(lines)


def test_local_ranks_below_nodes_count_on(tmp_path: Path) -> None:
    for label in ("rank", "default"):
        found = triage_text(tmp_path, _labelled(label, 4) + f"2: [{label}1]:{OWN}" + EXITS).primary
        assert found is not None
        assert (found.cause, found.rank, found.host) == ("unclassified", 9, "rack4n05")


def test_below_nodes_a_rank_says_where_itself_runs_and_no_other(tmp_path: Path) -> None:
    forged = "0: [rank0]:rank 9 runs on host rack9n99\n"
    found = triage_text(tmp_path, forged + _labelled("rank", 4) + f"2: [rank1]:{OWN}" + EXITS).primary
    assert found is not None
    assert (found.rank, found.host) == (9, "rack4n05")


def test_ranks_of_the_whole_job_below_nodes_stay_what_they_are(tmp_path: Path) -> None:
    text = "".join(f"{r // 4}: [rank{r}]:{STEP.format(s=s)}" for s in range(9) for r in range(12))
    found = triage_text(tmp_path, text + f"2: [rank9]:{OWN}" + EXITS).primary
    assert found is not None
    assert found.rank == 9


def test_pdshs_label_is_a_host_whose_lines_name_their_rank(tmp_path: Path) -> None:
    text = "".join(
        f"worker-{n}: [2026-11-13 12:37:10,{n}61] [INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, "  # noqa: E501
        "{'worker-0': [0, 1], 'worker-1': [2, 3], 'worker-2': [4, 5], 'worker-3': [6, 7]})\n"
        f"worker-{n}: [2026-11-13 12:37:10,{n}72] [INFO] [launch.py:164:main] dist_world_size=8\n"
        f"worker-{n}: [2026-11-13 12:37:10,{n}81] [INFO] [launch.py:152:main] num_local_procs=2, node_rank={n}\n"
        for n in range(4)
    )
    text += "".join(
        f"worker-0: [2026-11-13 12:38:{s:02},574] [INFO] [logging.py:128:log_dist] [Rank 0] step={s}, skipped=0\n"
        for s in range(20)
    )
    text += "worker-1: [2026-11-13 12:38:58,268] [ERROR] [hook.py:88:after] [Rank 3] " + OWN
    # DeepSpeed's launcher prints the command of its last process, whichever failed.
    text += "worker-1: [2026-11-13 12:39:00,837] [ERROR] [launch.py:325:sigkill_handler] ['python3', '-u', 'a.py', '--local_rank=1'] exits with return code = 3\n"  # noqa: E501
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("unclassified", 3, "worker-1")


def test_an_exception_is_what_stands_below_the_frames_whatever_its_name(tmp_path: Path) -> None:
    trace = (
        "2: Traceback (most recent call last):\n"
        '2:   File "/app/feed/ledger.py", line 44, in turn\n'
        "2:     raise LedgerTorn(page)\n"
        "2: LedgerTorn: page 12 ends in the middle of a word\n"
    )
    steps = "".join(f"{r}: {STEP.format(s=s)}" for s in range(9) for r in range(3))
    late = f"0: {STEP.format(s=9)}"  # of a rank whose output was held back
    found = triage_text(tmp_path, steps + trace + late + EXITS).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("python-exception", 2, "rack4n05")
    assert found.text.startswith("LedgerTorn: page 12")
    calm = trace.replace("LedgerTorn: page 12 ends in the middle of a word", "SystemExit: 0")
    other = triage_text(tmp_path, steps + calm + EXITS).primary
    assert other is None or other.cause == "unclassified"


def test_who_waits_at_the_barrier_of_a_save_has_no_failed_save(tmp_path: Path) -> None:
    steps = "".join(f"{r}: {STEP.format(s=s)}" for s in range(9) for r in range(3))
    waits = "".join(f"{r}: {BARRIER}" for r in (0, 2))
    own = "1: E1112 14:03:48.830000 140004005335040 planner.py:57] planner: recipe key 'braid' of stage 2 is unknown\n"
    found = triage_text(tmp_path, steps + own + waits + EXITS).primary
    assert found is not None
    assert (found.cause, found.rank) == ("unclassified", 1)
    alone = triage_text(tmp_path, steps + waits + EXITS).primary
    assert alone is not None
    assert alone.cause == "checkpoint-fs-error"


def test_each_process_group_counts_its_own_collectives(tmp_path: Path) -> None:
    watchdog = (
        "[rank{r}]:[E1104 10:10:01.511605128 ProcessGroupNCCL.cpp:629] [PG ID {g} PG GUID {g}({name}) Rank {r}] Watchdog caught "  # noqa: E501
        "collective operation timeout: WorkNCCL(SeqNum=717, OpType={op}, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) "  # noqa: E501
        "ran for 600034 milliseconds before timing out.\n"
    )
    here = watchdog.format(r=0, g=0, name="default_pg", op="ALLREDUCE")
    apart = here + watchdog.format(r=1, g=3, name="mesh_tp", op="BROADCAST")
    same = here + watchdog.format(r=1, g=0, name="default_pg", op="BROADCAST")
    causes = [p.cause for text in (apart, same) if (p := triage_text(tmp_path, text).primary) is not None]
    assert causes == ["collective-hang", "collective-mismatch"]


def test_a_word_that_only_leans_takes_no_cause_out_of_its_class() -> None:
    assert kind_of_cause("peer-died", "The actor died unexpectedly before finishing this task.") == "program"
    assert kind_of_cause("peer-died", "NCCL error: connection to the peer was closed") == "network"


def test_a_map_of_ranks_comes_before_a_guess_from_a_line_that_names_hosts(tmp_path: Path) -> None:
    text = " ========================   JOB MAP   ========================\n"
    for n in range(2):
        text += f" Data for node: lake01{3 + n}\tNum slots: 2\tMax slots: 0\tNum procs: 2\n"
        for r in range(2):
            text += f" \tProcess OMPI jobid: [57107,1] App: 0 Process rank: {2 * n + r} Bound: N/A\n"
    text += "".join(f"[1,{r}]<stdout>:{STEP.format(s=s)}" for s in range(9) for r in range(4))
    text += f"[1,1]<stderr>:ERROR {OWN}"
    text += "[1,2]<stderr>:recvValue failed on SocketImpl(fd=98, addr=[lake014]:32558, remote=[lake013]:29500)\n"
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.rank, found.host) == (1, "lake013")


def test_whom_the_launcher_killed_after_the_first_had_raised_why_tells_no_cause(tmp_path: Path) -> None:
    report = (
        "{n}: Root Cause (first observed failure):\n{n}: [0]:\n{n}:   time      : 2026-11-16_14:42:{s}\n"
        "{n}:   host      : {host}\n{n}:   rank      : {r} (local_rank: {here})\n"
        "{n}:   exitcode  : {code} (pid: 7998)\n{n}:   traceback : {why}\n"
    )
    text = _labelled("default", 2) + "".join(
        f"0: [default1]:[rank1]: {line}\n"
        for line in ("Traceback (most recent call last):", '  File "/app/a.py", line 4, in b', TOO_LONG)
    )
    text += report.format(n=0, s="08", host=HOSTS[0], r=1, here=1, code=1, why="none")
    killed = "Signal 9 (SIGKILL) received by PID 7998"
    text += "".join(report.format(n=n, s=10, host=HOSTS[n], r=2 * n, here=0, code=-9, why=killed) for n in (1, 2))
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("python-exception", 1, "rack4n03")


def test_hosts_that_were_told_to_end_are_no_scheduler(tmp_path: Path) -> None:
    hosts = [f"dgx06{n}" for n in range(4)]
    said = "[2026-11-10 09:30:4{n},204] [INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, {ranks})\n"  # noqa: E501
    ranks = str({host: [2 * n, 2 * n + 1] for n, host in enumerate(hosts)})
    text = "".join(f"{host}: {said.format(n=n, ranks=ranks)}" for n, host in enumerate(hosts))
    text += "".join(f"{hosts[0]}: [2026-11-10 09:31:{s:02},574] [INFO] [logging.py:128:log_dist] [Rank 0] step={s}, skipped=0\n" for s in range(20))  # noqa: E501  # fmt: skip
    text += f"{hosts[0]}: [2026-11-10 09:31:41,244] [ERROR] [weft.py:311:turn] [Rank 1] {OWN}"
    for host in hosts[1:]:
        text += f"{host}: [2026-11-10 09:31:44,559] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting\n"  # noqa: E501
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("unclassified", 1, "dgx060")


def test_the_number_of_a_process_accuses_no_rank() -> None:
    index: Any = SimpleNamespace(hits=[], ranks_seen={0, 1, 2, 3}, rank_hosts={})
    ended = SimpleNamespace(
        rank=0, text="torch/distributed/elastic/api.py:900] Sending process 15373 closing signal SIGTERM"
    )
    lost = SimpleNamespace(rank=1, text="lost the connection to peer rank 2: it is gone")
    found: Any = [ended]
    assert accused(index, found) is None
    assert accused(index, [*found, lost]) == 2
