"""Witnesses and the one they lost: what its own line, the scheduler or its silence says counts for more."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_logs import ending, header, steps, triage_text

WATCHDOG = (
    "{task}: [rank{rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=148210, OpType=_ALLGATHER_BASE, NumelIn=262, NumelOut=2516, Timeout(ms)=600000) ran for 600041\n"
)
BROKEN = "{rank}: node00{number}:9:9 [3] net_ib.cc:2195 NCCL WARN NET/IB: Got completion from peer 10.0.0.3<4> with status=12 vendor err 129\n"  # noqa: E501
CLOSED = "{rank}: node00{number}:9:9 [3] socket.cc:915 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.3<5>\n"  # noqa: E501
DOWN = "srun: error: Node failure on node003\n"


def waited(hosts: list[int], each: int, gpus: list[int]) -> str:
    return "".join(WATCHDOG.format(task=h, rank=each * h + g) for h in hosts for g in gpus)


@pytest.mark.parametrize("gpus", [[3], list(range(8))], ids=["one GPU speaks for a host", "every GPU speaks"])
def test_ranks_that_count_gpus_leave_nobody_out_when_every_host_waits(tmp_path: Path, gpus: list[int]) -> None:
    found = triage_text(tmp_path, header(nodes=8) + steps(20, nodes=8) + waited(list(range(8)), 8, gpus) + ending(134))
    assert found.primary is not None
    assert found.primary.cause != "collective-mismatch"


def test_a_host_none_of_whose_gpus_waits_never_joined(tmp_path: Path) -> None:
    came = [0, 1, 2, 3, 4, 6, 7]
    found = triage_text(tmp_path, header(nodes=8) + steps(20, nodes=8) + waited(came, 8, [0]) + ending(134))
    assert found.primary is not None
    assert (found.primary.cause, "host number 5" in found.primary.why) == ("collective-mismatch", True)


def test_what_peers_print_stands_behind_a_node_that_the_scheduler_calls_failed(tmp_path: Path) -> None:
    peers = "".join((CLOSED + BROKEN).format(rank=r, number=r + 1) for r in (0, 1, 3))
    found = triage_text(tmp_path, header() + steps(20) + peers + DOWN + ending(1))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("node-death", ("node003",))
    # A host that itself complains of broken transfers is no silent one: the scheduler may be late.
    alive = peers + BROKEN.format(rank=2, number=3)
    spoke = triage_text(tmp_path, header() + steps(20) + alive + DOWN + ending(1)).primary
    assert spoke is not None
    assert spoke.cause == "rdma-link-failure"


TRACE = '{rank}: Traceback (most recent call last):\n{rank}:   File "train.py", line 5, in <module>\n{rank}: {error}\n'


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 18274", "python-exception"),
        ("KeyError: 'input_ids'", "python-exception"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "peer-died"),
    ],
)
def test_an_error_that_no_lost_peer_makes_is_its_ranks_own_wherever_it_stands(
    tmp_path: Path, error: str, cause: str
) -> None:
    peers = "".join(CLOSED.format(rank=r, number=r + 1) for r in (0, 1, 3))
    found = triage_text(tmp_path, header() + steps(20) + peers + TRACE.format(rank=2, error=error) + ending(1))
    assert found.primary is not None
    assert found.primary.cause == cause


def test_what_the_run_outlived_does_not_name_who_died(tmp_path: Path) -> None:
    early = "3: kernel: Out of memory: Killed process 4242 (python3)\n"
    late = "1: kernel: Out of memory: Killed process 77 (python3)\n"
    found = triage_text(tmp_path, header() + steps(20) + early + steps(60, first=21) + late + ending(137))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("oom-host", ("node002",))


def test_text_that_an_evaluation_quotes_is_no_message(tmp_path: Path) -> None:
    quoted = '2: eval[long/4]: "…the worker was Killed. Out of memory: Killed process 4242 (python3)…" score 0.2\n'
    found = triage_text(tmp_path, header() + steps(20) + quoted)
    assert all(f.cause != "oom-host" for f in found.failures)


LIMIT = "{rank}: [launch] node00{number}: ulimit -l = {value}, /dev/shm = 1008G\n"
REGISTER = (
    "1: node002:1:1 [3] ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
)


def test_a_limit_that_is_none_accuses_nobody(tmp_path: Path) -> None:
    limits = "".join(LIMIT.format(rank=r, number=r + 1, value="8192 kB" if r == 1 else "unlimited") for r in range(4))
    found = triage_text(tmp_path, header() + limits + REGISTER + ending(1))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("memlock-limit", ("node002",))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer. Either the file is corrupted or",
            "python-exception",
        ),
        ("ValueError: the file model-00003.safetensors is corrupted", "checkpoint-corrupt"),
    ],
)
def test_a_damaged_shard_of_the_data_is_no_damaged_checkpoint(tmp_path: Path, error: str, cause: str) -> None:
    found = triage_text(tmp_path, header() + steps(20) + TRACE.format(rank=2, error=error) + ending(1))
    assert found.primary is not None
    assert found.primary.cause == cause


GLOO = "pod-{pod} main RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.1.27]:4368{pod}\n"
WELL = "".join(f"pod-0 main step={n} loss=2.{n} gnorm=0.5\n" for n in range(10, 20))
ODD = "pod-{pod} main grainfeed: sack 7 holds pebbles where oats are on the label\n"


def test_the_one_sentence_that_nobody_else_prints_stands_before_those_who_lost_somebody(tmp_path: Path) -> None:
    closed = [GLOO.format(pod=pod) for pod in (1, 2, 4)]
    found = triage_text(tmp_path, WELL + closed[0] + ODD.format(pod=3) + "".join(closed[1:])).primary
    assert found is not None
    assert (found.cause, "grainfeed" in found.text) == ("unclassified", True), "who lost a peer names no cause"
    alike = "".join(ODD.format(pod=pod) for pod in range(5))
    common = triage_text(tmp_path, WELL + closed[0] + alike + "".join(closed[1:])).primary
    assert common is not None
    assert common.id == "peer-died", "what all print tells nobody apart"


def test_a_broken_transfer_is_hearsay_beside_what_the_lost_rank_said_itself(tmp_path: Path) -> None:
    own = "2: ERROR laserd: cage 3 has gone dark, no path is left\n"
    peers = "".join(BROKEN.format(rank=r, number=r + 1) for r in (0, 1, 3))
    found = triage_text(tmp_path, header() + steps(20) + peers + own + ending(1)).primary
    assert found is not None
    assert (found.cause, found.rank) == ("unclassified", 2), "three ranks met a lost peer, one says what befell it"


def test_a_launchers_line_is_no_odd_sentence_where_ranks_are_labelled(tmp_path: Path) -> None:
    peers = "".join(CLOSED.format(rank=r, number=r + 1) for r in (0, 1, 3))
    found = triage_text(tmp_path, header() + steps(20) + peers + "the whole voyage is called off now\n" + ending(1))
    assert found.primary is not None
    assert found.primary.cause == "peer-died", "a line without a label is the launcher's"


ASKED = "{rank}: [rank{rank}]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank {rank}.\n"
STOPPED = (
    "srun: error: node003: task 2: Exited with exit code 143\nsrun: Terminating StepId=77.0\n"
    "srun: error: node001: tasks 0-1: Aborted (core dumped)\n"
)


def test_who_is_ended_before_the_launcher_ends_the_others_is_who_they_lost(tmp_path: Path) -> None:
    well = steps(20, nodes=4)
    found = triage_text(tmp_path, well + ASKED.format(rank=0) + ASKED.format(rank=1) + STOPPED).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("unclassified", 2, "node003")


FILES = (
    "==> logs/b.out <==\n{well}[rank3]:Traceback (most recent call last):\n"
    "[rank3]:feeder.SackError: sack 7 cannot be opened\n==> logs/a.out <==\n{more}"
)


def test_what_stands_above_the_steps_of_another_file_is_not_outlived(tmp_path: Path) -> None:
    well, more = (
        "".join(f"[rank{rank}]:step: {n}  loss: 2.5  grad_norm: 0.4  tps: 6,264\n" for n in range(1, 9))
        for rank in (3, 0)
    )
    found = triage_text(tmp_path, FILES.format(well=well, more=more)).primary
    assert found is not None
    assert (found.rank, "sack 7" in found.text) == (3, True)


PODS = "job-worker-0-{n}-{tail} 1/1 Running 0 5h 10.7.0.{n} gke-a3-88f4-{node}\n"
BEGAN = "[pod/job-worker-0-{n}-{tail}/jax] I0623 19:25:30.9 x.py:1] Connecting to job-worker-0-0.job:8476, process {n} of 3\n"  # noqa: E501
POD_TAILS = ("hrtpk", "msx2k", "9gx6v")


def test_a_pod_is_where_its_row_says_and_no_address_that_all_ranks_name(tmp_path: Path) -> None:
    rows = "".join(PODS.format(n=n, tail=tail, node=tail[::-1]) for n, tail in enumerate(POD_TAILS))
    began = "".join(BEGAN.format(n=n, tail=tail) for n, tail in enumerate(POD_TAILS))
    said = "[pod/job-worker-0-1-msx2k/jax] E0623 19:25:58.3 x.py:2] weir ERROR the sheaf list is empty\n"
    found = triage_text(tmp_path, rows + began + said).primary
    assert found is not None
    assert (found.rank, found.host) == (1, "gke-a3-88f4-k2xsm")


def test_a_symptom_stands_behind_an_error_whoever_it_is_about(tmp_path: Path) -> None:
    waited = "{rank}: [rank{rank}]:[E901 10:31:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType={op}, NumelIn=8) ran for 600011 milliseconds\n"  # noqa: E501
    peers = waited.format(rank=0, op="ALLREDUCE") + waited.format(rank=1, op="REDUCE_SCATTER")
    told = "2: [ERROR] [corvid.py:88:back] [Rank 3] corvid hook called fold on a perch, which has no such method\n"
    found = triage_text(tmp_path, header() + steps(20) + peers + told + ending(1)).primary
    assert found is not None
    assert found.cause == "unclassified", "ranks that wait in different collectives wait for somebody"


def test_a_folder_on_the_way_to_a_frame_is_no_host(tmp_path: Path) -> None:
    frame = '{n}: [Rank {n}] File "/opt/venv/lib/python3.10/site-packages/absl/app.py", line 308, in run\n'
    text = "".join(frame.format(n=n) for n in range(4)) + "2: ERROR laserd: cage 3 has gone dark\n"
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.host is None


def test_without_labels_what_no_lost_peer_raises_comes_first_wherever_it_stands(tmp_path: Path) -> None:
    """srun without -l: two ranks' tracebacks run into each other, and the one that lost its peer is printed first."""
    lost = "Traceback (most recent call last):\nConnectionResetError: [Errno 104] Connection reset by peer\n"
    ended = "srun: error: n2: task 1: Exited with exit code 1\nsrun: error: n1: task 0: Exited with exit code 1\n"
    own = "Traceback (most recent call last):\nValueError: the tokenizer has no such word\n"
    plain = "".join(f"completed step: {n}, seconds: 0.300, TFLOP/s/device: 1.0, loss: 1.0\n" for n in range(5))
    for text in (plain + lost + ended + own, plain + own + lost + ended):
        found = triage_text(tmp_path, text).primary
        assert found is not None
        assert (found.cause, "tokenizer" in found.text) == ("python-exception", True)
    # Whoever only lost a peer is still no cause.
    alone = triage_text(tmp_path, plain + lost + ended).primary
    assert alone is not None
    assert alone.cause != "peer-died"
