"""The runner, the policy, the comparison and the log lines; and the checks of storage and system on real files."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from dead_mount import dead_mount  # noqa: F401 - fixture
from fabric_trees import rdma
from sysfs_trees import put

from trackwalker.launch.code.bundle import build_agent
from trackwalker.node.checks.compare import NodeReport, compare
from trackwalker.node.checks.result import Check, Context, Result, failed, lines, passed, skipped, warned
from trackwalker.node.checks.runner import CHECKS, BadPolicy, gating, policy, run_checks
from trackwalker.node.checks.storage import filesystem, shared
from trackwalker.node.checks.system import clock, huge_pages, limits, numa_balancing

HERE = Context(host="n1")


def test_a_check_that_raises_or_hangs_is_unknown_and_holds_up_nothing() -> None:
    never = threading.Event()

    def hang(context: Context) -> Result:
        never.wait(60)
        return passed("too late")

    def broken(context: Context) -> Result:
        raise ZeroDivisionError("oh")

    checks = (
        Check("hangs", hang, gates=True, seconds=0.2),
        Check("breaks", broken, gates=True),
        Check("works", lambda context: failed("bad", "mend it"), gates=True),
    )
    begin = time.monotonic()
    hung, broke, works = run_checks(HERE, checks=checks)
    assert time.monotonic() - begin < 30
    never.set()
    assert (hung.id, hung.status, hung.data) == ("hangs", "warn", {"unknown": True})
    assert "no answer in 0.2 s" in hung.text
    assert (broke.status, broke.text) == ("warn", "unknown: ZeroDivisionError: oh")
    assert (works.status, works.host, works.remedy) == ("fail", "n1", "mend it")
    assert gating([hung, broke, works]) == [works]


def test_checks_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)  # one after the other, the first would wait in vain

    def meet(context: Context) -> Result:
        both.wait()
        return passed("met")

    results = run_checks(HERE, checks=(Check("a", meet, gates=True), Check("b", meet, gates=True)))
    assert [(r.id, r.status) for r in results] == [("a", "pass"), ("b", "pass")]


def test_the_policy_decides_what_gates() -> None:
    bad = Check("ecc", lambda context: failed("UE=1", "reset"), gates=True)
    assert run_checks(HERE, {}, (bad,))[0].status == "fail"
    assert run_checks(HERE, {"ecc": "warn"}, (bad,))[0].status == "warn"
    assert run_checks(HERE, {"ecc": "off"}, (bad,)) == []
    soft = Check("thp", lambda context: failed("always", "madvise"), gates=False)
    assert run_checks(HERE, {}, (soft,))[0].status == "warn"
    assert run_checks(HERE, {"thp": "fail"}, (soft,))[0].status == "fail"
    hint = Check("hint", lambda context: warned("hm"), gates=True)  # what a check itself calls a warning stays one
    assert run_checks(HERE, {"hint": "fail"}, (hint,))[0].status == "warn"


def test_a_wrong_policy_is_refused_in_one_line() -> None:
    assert policy()["ecc"] == "fail"
    assert policy({"thp": "fail", "uniform_kernel": "off"})["uniform_kernel"] == "off"
    with pytest.raises(BadPolicy, match=r"'ec' is no check; there are clock, .*ecc"):
        policy({"ec": "off"})
    with pytest.raises(BadPolicy, match="ecc: 'maybe' is no decision; use fail, warn or off"):
        policy({"ecc": "maybe"})


def test_lines_are_in_the_form_that_triage_reads() -> None:
    def named(name: str, result: Result) -> Result:
        return Result(**{**asdict(result), "id": name, "host": "n7"})

    assert lines(
        [
            named("ipv6_rules", failed("7 (expected 8)", "restore the rules")),
            named("dcqcn", warned("5 enabled (expected 8)")),
            named("dcqcn", passed("8")),
            named("rdma", skipped("no RDMA devices")),
            named("shared_fs", passed("two\nlines")),
        ]
    ) == [
        "FATAL: n7 | [CHECK_IPV6_RULES] 7 (expected 8); restore the rules",
        "WARNING: n7 | [CHECK_DCQCN] 5 enabled (expected 8)",
        "n7 | [CHECK_DCQCN] OK (8)",
        "n7 | [CHECK_RDMA] skipped (no RDMA devices)",
        "n7 | [CHECK_SHARED_FS] OK (two lines)",
    ]


@pytest.mark.starts_processes
def test_all_checks_on_this_machine(tmp_path: Path) -> None:
    results = run_checks(Context(job_dir=str(tmp_path), nodes=2))
    assert [r.id for r in results] == [c.id for c in CHECKS]
    assert not [r for r in results if r.data.get("unknown")]
    assert [Result(**json.loads(json.dumps(asdict(r)))) for r in results] == results
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    found = {r.id: r for r in results}
    assert found["shared_fs"].data["write_s"] > 0
    assert found["versions"].data["kernel"]


@pytest.mark.starts_processes
def test_shared_file_system(tmp_path: Path) -> None:
    good = shared(Context(job_dir=str(tmp_path)))
    assert good.status in ("pass", "warn")
    assert good.data["free"] > 0
    assert good.data["type"]
    missing = shared(Context(job_dir=str(tmp_path / "none")))
    assert (missing.status, missing.data["error"]) == ("fail", "stat: No such file or directory")
    (tmp_path / "file").write_text("")
    assert shared(Context(job_dir=str(tmp_path / "file"))).status == "fail"
    read_only = shared(Context(job_dir="/proc/sys"))  # a folder in which nothing can be made, not even by root
    assert read_only.status == "fail"
    assert str(read_only.data["error"]).startswith("create: ")
    assert shared(Context()).status == "skip"


@pytest.mark.starts_processes
def test_a_file_system_that_hangs_is_given_up(
    dead_mount: tuple[Path, int],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trackwalker.node.checks.storage.CHILD_S", 0.3)
    begin = time.monotonic()
    found = shared(Context(job_dir=str(dead_mount[0])))
    assert time.monotonic() - begin < 10
    assert (found.status, found.data["hangs"]) == ("fail", True)
    assert "(fuse.dead) does not answer" in found.text


def test_which_file_system_holds_a_path(tmp_path: Path) -> None:
    table = "/dev/sda1 / ext4 rw 0 0\nnas:/jobs /shared nfs4 rw 0 0\nx /shared/my\\040jobs lustre rw 0 0\n"
    put(tmp_path, {"self/mounts": table})
    assert filesystem("/shared/a/b", str(tmp_path)) == {"type": "nfs4", "source": "nas:/jobs", "mount": "/shared"}
    assert filesystem("/shared/my jobs/a", str(tmp_path))["type"] == "lustre"
    assert filesystem("/sharedwith", str(tmp_path))["type"] == "ext4"


@pytest.mark.starts_processes
def test_clock_against_the_file_server(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    put(tmp_path, {"self/mounts": f"nas:/jobs {job} nfs4 rw 0 0\n"})
    found = clock(Context(job_dir=str(job), proc=str(tmp_path)))
    assert abs(found.data["offset_s"]) <= found.data["offset_error_s"] + 0.05  # our own kernel's stamp here
    assert "offset_s" not in clock(Context(job_dir=str(job))).data  # not NFS: the stamp would be our own


def test_memory_settings(tmp_path: Path) -> None:
    here = Context(sys=str(tmp_path / "sys"), proc=str(tmp_path / "proc"))
    assert huge_pages(here).status == numa_balancing(here).status == "skip"
    thp = tmp_path / "sys/kernel/mm/transparent_hugepage"
    put(thp, {"enabled": "always [madvise] never", "defrag": "always defer defer+madvise [madvise] never"})
    put(tmp_path / "proc/sys/kernel", {"numa_balancing": 0})
    assert huge_pages(here).status == numa_balancing(here).status == "pass"
    put(thp, {"enabled": "[always] madvise never"})
    put(tmp_path / "proc/sys/kernel", {"numa_balancing": 1})
    assert huge_pages(here).data == {"enabled": "always", "defrag": "madvise"}
    assert huge_pages(here).status == numa_balancing(here).status == "fail"
    assert (thp / "enabled").read_text() == "[always] madvise never\n"  # reported, not changed


def test_limits(tmp_path: Path) -> None:
    here = Context(sys=str(tmp_path))
    before = {what: resource.getrlimit(what) for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)}
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[resource.RLIMIT_NOFILE][1]))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, before[resource.RLIMIT_MEMLOCK][1]))
        assert (limits(here).status, limits(here).text) == ("fail", "nofile 4096 (expected 65536)")
        rdma(tmp_path, 0)
        assert limits(here).text.endswith("memlock 64 KiB (RDMA needs unlimited)")
    finally:
        for what, values in before.items():
            resource.setrlimit(what, values)


def report(host: str, **checks: dict[str, object]) -> NodeReport:
    return NodeReport(host, [Result(name, "pass", "", data) for name, data in checks.items()], image="sha256:aa")


def like(host: str, **versions: object) -> NodeReport:
    usual = {
        "kernel": "6.8.0-60",
        "driver": {"amdgpu": "6.12.12"},
        "firmware": ["vbios 113"],
        "nic_firmware": ["1.117"],
    }
    return report(
        host,
        gpus={"count": 8},
        versions={**usual, **versions},
        rdma={"active": {f"ionic_{n}": 400.0 for n in range(8)}},
    )


def test_nodes_that_are_alike() -> None:
    results = compare([like(f"n{n}") for n in range(4)])
    assert {r.status for r in results} == {"pass", "skip"}
    assert [r.id for r in results if r.status == "skip"] == ["uniform_clock"]
    assert compare([like("n0")]) == []


@pytest.mark.parametrize(
    ("odd", "check", "status", "text"),
    [
        (like("n9", kernel="6.8.0-45"), "uniform_kernel", "warn", "kernel: 6.8.0-45 on n9 (others: 6.8.0-60)"),
        (like("n9", driver={"amdgpu": "6.10.5"}), "uniform_driver", "warn", "amdgpu 6.10.5 on n9"),
        (like("n9", firmware=["vbios 112"]), "uniform_firmware", "warn", "vbios 112 on n9"),
        (like("n9", nic_firmware=["1.110", "1.117"]), "uniform_nic_firmware", "warn", "1.110, 1.117 on n9"),
        (report("n9", gpus={"count": 7}), "uniform_gpus", "fail", "GPUs: 7 on n9 (others: 8)"),
        (report("n9", rdma={"active": {"ionic_0": 200.0}}), "uniform_speed", "warn", "1 x 200 on n9 (others: 8 x 400)"),
        (NodeReport("n9", [], image="sha256:bb"), "uniform_image", "fail", "sha256:bb on n9"),
        (report("n9"), "uniform_driver", "warn", "not known on n9"),
    ],
)
def test_the_odd_host_is_named(odd: NodeReport, check: str, status: str, text: str) -> None:
    nodes = [like("n1"), odd, like("n2"), like("n3")]
    found = {r.id: r for r in compare(nodes)}[check]
    assert (found.status, text in found.text) == (status, True), found.text
    assert check not in {r.id for r in compare(nodes, {check: "off"})}


def test_clocks_that_are_apart() -> None:
    def at(host: str, offset: float, error: float = 0.01) -> NodeReport:
        return report(host, clock={"offset_s": offset, "offset_error_s": error})

    def verdict(*nodes: NodeReport) -> Result:
        return {r.id: r for r in compare(nodes)}["uniform_clock"]

    assert verdict(at("n1", 3.0), at("n2", 3.1), at("n3", 3.0)).status == "pass"  # the server's own clock may be off
    odd = verdict(at("n1", 0.0), at("n2", 0.01), at("n3", -2.0))
    assert (odd.status, "n3 -2.0 s" in odd.text) == ("warn", True)
    assert verdict(at("n1", 0.0), at("n2", 0.0), at("n3", 1.0, error=2.0)).status == "pass"  # not proven
    late = NodeReport("n2", [], written_at=1000.0, seen_at=997.0)
    early = NodeReport("n3", [], written_at=990.0, seen_at=997.0)  # seen late, or behind: nobody can tell
    found = verdict(at("n1", 0.0), late, early)
    assert "n2 is at least 3.0 s ahead" in found.text
    assert "n3" not in found.text


@pytest.mark.starts_processes
def test_the_checks_run_from_the_zipapp(tmp_path: Path) -> None:
    agent = build_agent(tmp_path / "agent.pyz")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from trackwalker.node.checks.result import Context\n"
        "from trackwalker.node.checks.runner import run_checks\n"
        "print({r.id: r.status for r in run_checks(Context(job_dir=sys.argv[2]))}['shared_fs'])\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", code, str(agent), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() in ("pass", "warn"), done.stderr
