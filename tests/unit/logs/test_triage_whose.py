"""Whose words they are where the launcher is not Slurm: pods, Ray's actors; and what of a line is about the failure."""

from __future__ import annotations

from pathlib import Path

from triage_logs import triage_text

from trackwalker.logs.failures.kinds import kind_of

STEP = "completed step: {s}, seconds: 8.1, TFLOP/s/device: 42.3, Tokens/s/device: 999.4, total_weights: 1048576, loss: 2.7\n"  # noqa: E501


def test_kubectls_prefix_tells_the_pod_and_its_index_the_rank(tmp_path: Path) -> None:
    text = "".join(f"[pod/quay-0/main] {STEP.format(s=s)}" for s in range(30))
    text += "[pod/quay-2/main]   GATE SHUT: the tide keeper sent this boat home\n"
    for pod in (3, 1, 0):
        text += f"[pod/quay-{pod}/main] E0722 02:45:18.133000    9714 coordination_service_agent.cc:286] Polled an error from coordination service (this can be an error from this or another task).\n"  # noqa: E501
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("unclassified", 2, "quay-2")
    assert "GATE SHUT" in found.text


def test_a_pod_with_a_random_ending_has_no_rank(tmp_path: Path) -> None:
    text = "[pod/quay-main-x7k2p/main] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("oom-gpu", None, "quay-main-x7k2p")


def test_ray_trains_own_table_tells_the_ranks_of_its_workers(tmp_path: Path) -> None:
    workers = [(f"10.0.{r // 2}.7", 4000 + r) for r in range(4)]
    text = "".join(
        f"(TorchTrainer pid=811) - (node_id=0{r}, ip={ip}, pid={pid}) world_rank={r}, local_rank={r % 2}, node_rank={r // 2}\n"  # noqa: E501
        for r, (ip, pid) in enumerate(workers)
    )
    said = [f"(RayTrainWorker pid={pid}, ip={ip}) " for ip, pid in workers]
    text += "".join(said[0] + STEP.format(s=s) for s in range(30))
    text += said[3] + "the weaver laid down its shuttle and left\n"
    for r in (0, 1, 2):
        text += said[r] + "RuntimeError: [gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.1.7]:31081\n"
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.rank, found.host) == ("unclassified", 3, "10.0.1.7")


def test_fields_that_say_who_and_where_are_not_what_failed() -> None:
    assert (
        kind_of(['{"level":"fatal","file":"disk/io.py","line":12,"msg":"assertion tripped in the compiler"}'])
        == "program"
    )
    assert kind_of(["src=disk rank=3 host=n1 file=mount.py status=assert_tripped expr='a == b'"]) == "program"
    assert kind_of(["cannot write the file to disk"]) == "storage"


def test_who_lost_a_peer_and_says_beside_it_that_its_node_was_preempted(tmp_path: Path) -> None:
    text = "".join(f"(RayTrainWorker pid=40, ip=10.0.0.7) {STEP.format(s=s)}" for s in range(30))
    text += "(TrainController pid=5) The actor died unexpectedly before finishing this task.\n"
    text += "(TrainController pid=5)  ip: 10.0.1.7\n"
    text += "(TrainController pid=5)  the worker's node was preempted: notice of the spot market\n"
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert found.cause == "preempted"


def test_ucx_names_its_host(tmp_path: Path) -> None:
    text = "[1653487120.114201] [cn7:22710:0]          ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory\n"  # noqa: E501
    found = triage_text(tmp_path, text).primary
    assert found is not None
    assert (found.cause, found.host) == ("memlock-limit", "cn7")


def test_what_a_pod_prints_does_not_speak_for_the_launcher(tmp_path: Path) -> None:
    text = "".join(f"[pod/quay-main-x7k2p/main] {STEP.format(s=s)}" for s in range(30))
    for label in ("[pod/quay-main-x7k2p/main] ", "[pod/quay-1/main] "):
        found = triage_text(tmp_path, f"{text}{label}NODE_LOST host=n7\n").primary
        assert found is None or found.cause != "node-death"
