"""Labels of nodes above labels of ranks, and what the ranks then say: whose line it is, and which of them is the cause."""  # noqa: E501

from __future__ import annotations

from pathlib import Path

from triage_logs import triage_text

from trackwalker.logs.failures.kinds import kind_of_cause

STEP = "[titan] 2026-11-02 15:26:{s:02},225 - root - INFO - step: {s}  loss:  4.6872  grad_norm:  1.4352  memory: 47.11GiB\n"  # noqa: E501
HOSTS = ("rack4n03", "rack4n04", "rack4n05")
OWN = "weft: thread 12 of the pattern is spun the wrong way round, cannot weave on\n"
EXITS = "".join(f"srun: error: {host}: task {node}: Exited with exit code 1\n" for node, host in enumerate(HOSTS))
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


def test_ranks_of_the_whole_job_below_nodes_stay_what_they_are(tmp_path: Path) -> None:
    text = "".join(f"{r // 4}: [rank{r}]:{STEP.format(s=s)}" for s in range(9) for r in range(12))
    found = triage_text(tmp_path, text + f"2: [rank9]:{OWN}" + EXITS).primary
    assert found is not None
    assert found.rank == 9


def test_pdshs_label_is_a_host_whose_lines_name_their_rank(tmp_path: Path) -> None:
    text = "".join(
        f"worker-{n}: [2026-11-13 12:37:10,{n}61] [INFO] [launch.py:163:main] global_rank_mapping=defaultdict(<class 'list'>, "  # noqa: E501
        "{'worker-0': [0, 1], 'worker-1': [2, 3], 'worker-2': [4, 5]})\n"
        for n in range(3)
    )
    text += "".join(
        f"worker-0: [2026-11-13 12:38:{s:02},574] [INFO] [logging.py:128:log_dist] [Rank 0] step={s}, skipped=0\n"
        for s in range(20)
    )
    text += "worker-1: [2026-11-13 12:38:58,268] [ERROR] [hook.py:88:after] [Rank 2] " + OWN
    # DeepSpeed's launcher prints the command of its last process, whichever failed.
    text += "worker-1: [2026-11-13 12:39:00,837] [ERROR] [launch.py:325:sigkill_handler] ['python3', '-u', 'a.py', '--local_rank=1'] exits with return code = 3\n"  # noqa: E501
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("unclassified", 2, "worker-1")


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
