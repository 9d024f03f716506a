"""Other people's forms, several files of one job: each is read as what it is, and all of them give one answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trackwalker.diagnose.triage import Triage, triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.resolve import resolve, several
from trackwalker.logs.formats.forms import form_of

STEP = "[2026-11-16 10:{m:02d}:00,123] [INFO] iteration {s}/ 1000 | elapsed time per iteration (ms): 800.0 | lm loss: 2.1\n"  # noqa: E501
PEER = "[2026-11-16 10:06:10] [rank{r}]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"  # noqa: E501


def of(*paths: Path) -> Triage:
    return triage(several(list(paths)))


def logs(
    folder: Path, ranks: int = 4, ends: dict[int, str] | None = None, name: str = "slurm-812_{rank}.out"
) -> list[Path]:
    """One log a rank, as `slurm-%j_%t.out` makes them."""
    out = []
    for rank in range(ranks):
        path = folder / name.format(rank=rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        told = "".join(STEP.format(m=m, s=100 + m) for m in range(1, 6))
        path.write_text(f"rank {rank} on host n2{rank}\n{told}{(ends or {}).get(rank, '')}")
        out.append(path)
    return out


def test_one_log_a_rank_by_folder_and_by_pattern(tmp_path: Path) -> None:
    ends = {r: PEER.format(r=r) for r in (0, 1, 3)}
    ends[2] = "[2026-11-16 10:06:01] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    logs(tmp_path, ends=ends)
    for name in (str(tmp_path), str(tmp_path / "slurm-812_*.out")):
        found = triage(resolve(name, tmp_path / "none"))
        assert found.primary is not None
        assert (found.primary.cause, found.primary.rank, found.primary.host) == ("oom-gpu", 2, "n22")
        assert found.primary.file == "slurm-812_2.out"
        assert len(found.index.files) == 4


def test_torchrun_folders_with_the_same_file_names(tmp_path: Path) -> None:
    ends = {3: "[2026-11-16 10:06:01] ERROR quill store: cannot unseal the tray\n"}
    logs(tmp_path, ends=ends, name="attempt_0/{rank}/stderr.log")
    found = of(tmp_path)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.primary.file) == ("unclassified", 3, "3/stderr.log")


def test_a_kernel_log_explains_the_lost_peer(tmp_path: Path) -> None:
    files = logs(tmp_path, ends={r: PEER.format(r=r) for r in (0, 1, 3)})
    kernel = tmp_path / "journal-n22.log"
    kernel.write_text(
        "Nov 16 10:05:58 n22 kernel: python3 invoked oom-killer: gfp_mask=0x140dca, order=0, oom_score_adj=0\n"
        "Nov 16 10:05:59 n22 kernel: Out of memory: Killed process 41233 (python3) total-vm:812345678kB, anon-rss:498123456kB\n"  # noqa: E501
        "Nov 16 10:06:00 n22 systemd[1]: session-4.scope: A process of this unit has been killed by the OOM killer.\n"
    )
    found = of(*files, kernel)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host) == ("oom-host", "n22")


def test_dmesg_alone(tmp_path: Path) -> None:
    path = tmp_path / "dmesg-n22.txt"
    path.write_text(
        "[ 1843.308145] pcieport 0000:b0:02.0: AER: Uncorrectable (Fatal) error message received from 0000:b3:00.0\n"
        "[ 1843.439662] NVRM: Xid (PCI:0000:b3:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    )
    found = triage(resolve(str(path), tmp_path))
    assert found.primary is not None
    assert found.primary.cause == "gpu-hardware-fault"


@pytest.mark.parametrize(
    ("state", "code", "cause"),
    [
        ("OUT_OF_MEMORY", "0:125", "oom-host"),
        ("TIMEOUT", "0:0", "walltime"),
        ("NODE_FAIL", "0:0", "node-death"),
        ("PREEMPTED", "0:0", "preempted"),
        ("CANCELLED by 1012", "0:0", "user-cancel"),
    ],
)
def test_slurms_accounting_as_a_file(tmp_path: Path, state: str, code: str, cause: str) -> None:
    table = tmp_path / "sacct.txt"
    table.write_text(
        "JobID|JobName|State|ExitCode|Start|End|Elapsed|NodeList\n"
        f"812|train|{state}|{code}|2026-11-16T09:00:00|2026-11-16T10:06:00|01:06:00|n[20-23]\n"
        f"812.batch|batch|{state.split()[0]}|{code}|2026-11-16T09:00:00|2026-11-16T10:06:00|01:06:00|n20\n"
        "812.extern|extern|COMPLETED|0:0|2026-11-16T09:00:00|2026-11-16T10:06:00|01:06:00|n[20-23]\n"
    )
    assert form_of(table).name == "sacct"
    found = of(*logs(tmp_path), table)
    assert found.primary is not None
    assert found.primary.cause == cause
    assert "sacct: JobID=812" in found.primary.text


def test_a_described_pod(tmp_path: Path) -> None:
    path = tmp_path / "describe-worker-2.txt"
    path.write_text(
        "Name:             train-worker-2\nNamespace:        ml\nNode:             n22/10.4.0.22\nStatus:           Failed\n"  # noqa: E501
        "Containers:\n  trainer:\n    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"  # noqa: E501
        "      Started:      Mon, 16 Nov 2026 09:00:11 +0000\n      Finished:     Mon, 16 Nov 2026 10:05:59 +0000\n"
        "    Last State:     Terminated\n    Ready:          False\n    Restart Count:  0\nEvents:\n"
        "  Type     Reason     Age   From     Message\n  Normal   Pulled     66m   kubelet  Successfully pulled image\n"
    )
    found = of(*logs(tmp_path, ends={0: PEER.format(r=0)}), path)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host) == ("oom-host", "n22")


def test_events_of_a_namespace(tmp_path: Path) -> None:
    path = tmp_path / "events.txt"
    path.write_text(
        "LAST SEEN   TYPE      REASON                 OBJECT              MESSAGE\n"
        "12m         Normal    Scheduled              pod/train-worker-2  Successfully assigned ml/train-worker-2 to n22\n"  # noqa: E501
        "4m          Warning   NodeNotReady           pod/train-worker-2  Node is not ready\n"
        "3m50s       Warning   NodeNotReady           node/n22            Node n22 status is now: NodeNotReady\n"
    )
    found = of(*logs(tmp_path, ends={0: PEER.format(r=0)}), path)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host) == ("node-death", "n22")


def test_a_torchelastic_error_file(tmp_path: Path) -> None:
    path = tmp_path / "attempt_0" / "3" / "error.json"
    path.parent.mkdir(parents=True)
    stack = "Traceback (most recent call last):\n  File \"/job/train.py\", line 81, in main\n    step(batch)\nKeyError: 'tray_9'\n"  # noqa: E501
    message = {"message": "KeyError: 'tray_9'", "extraInfo": {"py_callstack": stack, "timestamp": "1763287561"}}
    path.write_text(json.dumps({"message": message}))
    assert form_of(path).name == "elastic-error"
    found = of(*logs(tmp_path), path)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.primary.host) == ("python-exception", 3, "n23")
    assert "train.py:81 in main" in found.primary.subject


def test_flight_recorders_name_who_holds_the_others_up(tmp_path: Path) -> None:
    files = logs(tmp_path)
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    for rank in range(4):
        last = 40 if rank == 2 else 41
        entries = [
            {
                "process_group": ["0", "default_pg"], "collective_seq_id": number, "is_p2p": False, "profiling_name": "nccl:all_reduce",  # noqa: E501
                "state": "completed" if number <= 40 else "scheduled",
            }
            for number in range(38, last + 1)
        ]  # fmt: skip
        path = tmp_path / f"nccl_trace_rank_{rank}.json"
        path.write_text(json.dumps({"version": "2.4", "pg_config": group, "entries": entries}))
        files.append(path)
    found = of(*files)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.rank, found.primary.host) == ("collective-hang", 2, "n22")


def test_nccl_ras_names_the_process_that_is_behind(tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    path.write_text(
        "NCCL version 2.24.3 compiled with CUDA 12.6\nJob summary\n===========\n\nCommunicators... (0.00s)\n=============\n\n"  # noqa: E501
        "Errors\n======\n\nWarnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different collective operation counts\n"
        "  3 ranks have launched up to operation 41\n"
        "  Rank 2 has launched up to operation 40 -- GPU 2 managed by process 41233 on node n22\n"
    )
    found = of(*logs(tmp_path), path)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host) == ("collective-hang", "n22")


def test_a_core_dumps_summary(tmp_path: Path) -> None:
    path = tmp_path / "core.txt"
    path.write_text(
        "           PID: 41233 (python3)\n           UID: 1012 (ann)\n        Signal: 11 (SEGV)\n"
        "     Timestamp: Mon 2026-11-16 10:05:58 UTC (4min ago)\n  Command Line: python3 train.py\n    Executable: /usr/bin/python3\n"  # noqa: E501
        "      Hostname: n22\n       Storage: /var/lib/systemd/coredump/core.python3.zst (present)\n"
        "       Message: Process 41233 (python3) of user 1012 dumped core.\n"
    )
    found = of(*logs(tmp_path, ends={0: PEER.format(r=0)}), path)
    assert found.primary is not None
    assert (found.primary.cause, found.primary.host) == ("segfault", "n22")


def test_nothing_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrackwalkerError):
        several([tmp_path / "no.log", tmp_path / "none.log"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrackwalkerError):
        resolve(str(tmp_path / "empty"), tmp_path)
