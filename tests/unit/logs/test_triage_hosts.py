"""Which host a log's error belongs to: several ranks behind one label, disks, nodes that a scheduler names, pods."""

from __future__ import annotations

from pathlib import Path

from triage_logs import ending, header, steps, triage_text

from trackwalker.diagnose.triage import triage
from trackwalker.job.layout import Job

ECC = "[rank{n}]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"


def test_a_rank_inside_a_task_is_on_the_tasks_host(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(16) + steps(20, 16) + " 1: " + ECC.format(n=11) + ending())
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.primary.hosts) == ("gpu-hardware-fault", 11, ("node002",))
    assert found.roles.first_host == "node002"


def test_eight_tasks_a_node_fill_one_node_after_the_other(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(4) + steps(20, 32) + "11: " + ECC.format(n=11) + ending())
    assert found.primary is not None
    assert found.primary.hosts == ("node002",)


def test_a_number_of_tasks_that_does_not_fit_names_nobody(tmp_path: Path) -> None:
    found = triage_text(tmp_path, header(4) + steps(20, 30) + "11: " + ECC.format(n=11) + ending())
    assert found.primary is not None
    assert found.primary.hosts == ()


def test_the_kernel_that_loses_its_own_disk_names_its_host(tmp_path: Path) -> None:
    lines = "2: kernel: nvme nvme2: controller is down; will reset: CSTS=0xffffffff\n2: OSError: [Errno 5] Input/output error: '/nvme/x'\n"  # noqa: E501
    found = triage_text(tmp_path, header() + steps(20) + lines + ending())
    assert found.primary is not None
    assert (found.primary.cause, found.primary.local, found.primary.hosts) == ("storage-error", True, ("node003",))


def test_a_shared_store_names_no_host_as_its_own(tmp_path: Path) -> None:
    lines = "2: LustreError: 11-0: scratch-OST0012: operation ost_write failed: rc = -107\n"
    found = triage_text(tmp_path, header() + steps(20) + lines + ending())
    assert found.primary is not None
    assert found.primary.local is False


def test_an_assertion_of_a_file_systems_client_is_the_kernels_fault(tmp_path: Path) -> None:
    lines = "1: LustreError: 8:0:(osc_cache.c:1141:osc_extent_make_ready()) LBUG\n1: Kernel panic - not syncing: LBUG\n"
    found = triage_text(tmp_path, header() + steps(20) + lines + ending())
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("host-kernel-fault", ("node002",))


def test_a_store_that_throttles_is_no_overloaded_coordinator(tmp_path: Path) -> None:
    line = "W0212 19:58:10.0 8 gcs_grpc.cc:412] Retrying: RESOURCE_EXHAUSTED: x exceeded the rate limit for mutations\n"
    found = triage_text(tmp_path, header() + steps(20) + "0: " + line + ending())
    assert found.primary is not None
    assert found.primary.cause == "storage-rate-limit"


def test_a_pod_that_looks_for_a_lost_peer_is_told_from_one_that_never_met_it(tmp_path: Path) -> None:
    """The other ranks' files have line numbers of their own: a low one does not come before the first step."""
    job = tmp_path / "77-JAX-toy"
    job.mkdir()
    log = tmp_path / "77-JAX-toy.log"
    gone = "[events] Warning  NodeNotReady  node/node003.cluster.local  Node node003.cluster.local status is now: NodeNotReady\n"  # noqa: E501
    log.write_text(header() + steps(20, 1, label="") + gone + ending())
    for rank in (1, 3):
        (job / f"rank-{rank}.log").write_text(
            "x:1:2 [5] socket.cc:881 NCCL WARN socketPollConnect: connect to 10.4.7.6<4> returned No route to host\n"
        )
    found = triage(Job("77", log, job))
    assert found.primary is not None
    assert (found.primary.cause, found.primary.hosts) == ("node-death", ("node003",))


def test_whoever_refuses_a_credential_has_the_wrong_clock_unless_most_refuse(tmp_path: Path) -> None:
    def found(hosts: list[int], text: str) -> tuple[str, tuple[str, ...]]:
        lines = "".join(text.format(host=f"node00{n}") for n in hosts)
        primary = triage_text(tmp_path, header(8) + lines + ending()).primary
        assert primary is not None
        return primary.cause, primary.hosts

    heard = "srun: error: Task launch for 77.2 failed on node {host}: Job credential expired\n"
    daemon = "slurmd[{host}.cluster.local]: error: Munge decode failed: Expired credential\n"
    for text in (heard, daemon):
        assert found([6], text) == ("clock-skew", ("node006",))
        assert found([6, 2], text) == ("clock-skew", ("node006", "node002"))
        assert found([1, 2, 3, 4, 5, 6, 7], text) == ("clock-skew", ())
