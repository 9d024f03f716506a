"""Excerpts of runs that are slow, stopped or were ended, in our own wording: what their tables and numbers decide."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.triage_logs import triage_text

from trackwalker.logs.excerpts.tables import blocks, number_of, tables


def smi(*rows: tuple[int, int, int, int]) -> str:
    """The table of nvidia-smi: draw, limit, memory used, busy."""
    form = "|  {}  Accelerator X     On | 00000000:1{}:00.0 Off |   0 |\n| N/A   50C    P0   {}W / {}W |  {}MiB / 81920MiB |    {}%      Default |"  # noqa: E501
    return "\n".join(form.format(i, i, draw, cap, used, busy) for i, (draw, cap, used, busy) in enumerate(rows))


SMI_Q = """GPU 00000000:17:00.0
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : {idle}
        SW Thermal Slowdown               : Not Active
    Power Readings
        Current Power Limit               : {limit}.00 W
        Default Power Limit               : 700.00 W
    Utilization
        Gpu                               : 99 %
    Clocks
        SM                                : {clock} MHz
    Max Clocks
        SM                                : 1980 MHz"""
CSV = "index, pstate, clocks.current.sm [MHz], clocks.max.sm [MHz], utilization.gpu [%]\n0, P0, 1400 MHz, 1410 MHz, 99 %\n1, P0, {} MHz, 1410 MHz, {} %\n"  # noqa: E501
IOSTAT = "Device  r/s  rkB/s  r_await  w_await  aqu-sz  %util\nsdb  120.0  9000.0  {}  0.00  31.0  99.80\n"
VMSTAT = " r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st\n 1 31  0 912 120 4012  0  0 20112 120 912 812  3  2 18 {}  0\n"  # noqa: E501
FREE = "".join(
    f"Mem:            503         {used}         10           8         112         10\n"
    for used in (100, 180, 260, 350)
)  # noqa: E501, RUF100
NCCL_TEST = "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5\n#  Rank  0 on n1 device 0\nn1:5:5 [0] NCCL INFO Using network X\n"  # noqa: E501
RESULT = "    67108864      16777216     float     sum      -1    901.1   74.40  {}      0\n"
P2P = "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D   0   1\n  0 670.1 13.1\n  1 13.0 671.0\nUnidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D   0   1\n  0 670.1 {0}\n  1 {0} 671.0\n"  # noqa: E501
EVENTS = "LAST SEEN   TYPE      REASON   OBJECT    MESSAGE\n"
CASES = {
    "a limit below the default": (SMI_Q.format(idle="Not Active", limit=400, clock=1900), "gpu-power-cap"),
    "a low clock under load": (SMI_Q.format(idle="Not Active", limit=700, clock=345), "gpu-clock-degraded"),
    "an idle GPU": (SMI_Q.format(idle="Active", limit=700, clock=345), None),
    "full speed": (SMI_Q.format(idle="Not Active", limit=700, clock=1980), None),
    "one of a table": (CSV.format(300, 99), "gpu-clock-degraded"),
    "one that does nothing": (CSV.format(300, 0), None),
    "a GPU limited below its peers": (
        smi((390, 400, 70000, 99), (249, 250, 70000, 99), (391, 400, 70000, 99)), "gpu-power-cap",
    ),
    "GPUs unused while the program says so": (f"Using device: cpu\nepoch 1\n{smi((20, 300, 3, 0))}", "no-gpu"),
    "GPUs unused": (f"epoch 1\n{smi((20, 300, 3, 0))}", None),
    "columns of another tool": (
        "GPU  Temp  AvgPwr  SCLK  GPU%\n0  70c  548W  1950Mhz  100%\n1  70c  551W  1945Mhz  99%\n2  52c  201W  500Mhz  100%\n",  # noqa: E501
        "gpu-clock-degraded",
    ),
    "two programs on one GPU": (
        "|    0   N/A  N/A     311      C   python      4037MiB |\n|    0   N/A  N/A     551      C   /usr/bin/serve      3821MiB |",  # noqa: E501
        "gpu-shared",
    ),
    "a disk that answers late": (IOSTAT.format("210.5"), "storage-degradation"),
    "a disk that answers at once": (IOSTAT.format("0.08"), None),
    "processors that wait for disks": (VMSTAT.format(77), "storage-degradation"),
    "one processor does all": (
        "\n".join(f"%Cpu{i}  :  0.0 us,  0.0 sy, {idle} id,  0.0 wa" for i, idle in enumerate((0.3, 99.7, 99.0, 99.9))),
        "cpu-contention",
    ),
    "memory that only rises": (FREE, "host-memory-leak"),
    "memory that rises until the kill": (
        "\n".join([*(f"step {i} rss {20 + 15 * i}.5 GB" for i in range(5)), "Killed"]), "host-memory-leak",
    ),
    "steps that wait for their data": (
        "".join(f"step {i}; rtime 3.9{i}; itime 5.1{i}; loss = 2.0\n" for i in range(5)), "input-stall",
    ),
    "a profile of the loader": (
        "|  Action  |  Calls  |  Percentage %  |\n|  run_training_batch  |  380  |  15.5  |\n|  train_dataloader_next  |  380  |  80.4  |\n",  # noqa: E501
        "input-stall",
    ),
    "one function in many shapes": (
        "".join(f"step {i}\nCompiling train_step with global shapes [int32[16,{2000 - i}]]\n" for i in range(4)), "recompilation",  # noqa: E501
    ),
    "one frame compiled on and on": (
        "".join(f"I0210 x.py:3192] [8/{n}] create_env\n" for n in (47, 48, 49)), "recompilation",
    ),
    "more compilations than runs": (
        "Metric: CompileTime\n  TotalSamples: 212\nMetric: ExecuteTime\n  TotalSamples: 240\n", "recompilation",
    ),
    "a test without a result": (NCCL_TEST, "collective-hang"),
    "a test with one": (NCCL_TEST + RESULT.format("139.50"), None),
    "a test that is slow": (NCCL_TEST + RESULT.format("0.12"), "unclassified"),
    "a test that ends without P2P only": (
        f"$ ./all_reduce_perf -b 8 -g 2\n{NCCL_TEST}^C\n$ NCCL_P2P_DISABLE=1 ./all_reduce_perf -b 8 -g 2\n{RESULT.format('9.50')}",  # noqa: E501
        "p2p-unavailable",
    ),
    "direct access that is slower": (P2P.format("1.6"), "p2p-unavailable"),
    "direct access that is faster": (P2P.format("90.0"), None),
    "an event of preemption": (
        EVENTS + "14s  Warning  Evict  pod/w-1  Pod is evicted, because of preempt\n12s  Warning  FailedScheduling  pod/w-1  2/4 tasks in gang unschedulable\n",  # noqa: E501
        "preempted",
    ),
    "a pod that waits": (EVENTS + "12s  Warning  FailedScheduling  pod/w-1  0/8 nodes are available: 8 Insufficient nvidia.com/gpu.\n", "unclassified"),  # noqa: E501
    "a condition of an object": ("  - lastTransitionTime: x\n    reason: Preempted\n    type: Evicted\n", "preempted"),
    "a person's request": ("[job7][0]: User requested to stop the framework\n", "user-cancel"),
    "steps from one on slower": (
        "\n".join(f"iteration {i} took {t} s" for i, t in enumerate((9.9, 0.9, 0.91, 0.92, 4.1, 4.0, 4.2))), "tgs-degradation",  # noqa: E501
    ),
    "steps alike": ("\n".join(f"iteration {i} took 0.9{i} s" for i in range(7)), None),
    "a save that took long": ("step 4 loss 2.0\nFinished saving the checkpoint in 402.1 seconds.\n", "storage-degradation"),  # noqa: E501
    "a loader that stalls now and then": (
        "".join(f"Epoch: [0][{i}/50]\tTime {t} (8.01)\tData {d} (7.72)\n" for i, (t, d) in enumerate(((0.154, 0.001), (0.154, 0.001), (67.6, 67.5), (0.16, 0.001)))),  # noqa: E501
        "input-stall",
    ),
    "compilations in every report": (
        "".join(f"Metric: CompileTime\n  TotalSamples: {n}\nMetric: ExecuteTime\n  TotalSamples: {4 * n}\n" for n in (2, 5, 8)), "recompilation",  # noqa: E501
    ),
    "a state of a job": ("  JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n  2 gpu t u NF 2:55 1 n231\n", "node-death"),  # noqa: E501
    "a state that a rank prints": ("[rank0]: JOBID NAME ST NODELIST\n[rank0]: 2 t NF n231\n", None),
    "a job that waits": ("  JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n  2 gpu t u PD 0:00 1 (Resources)\n", "unclassified"),  # noqa: E501
    "members that are fewer than all": ("initializing: GLOBAL_RANK: 0, MEMBER: 1/4\ninitializing: GLOBAL_RANK: 1, MEMBER: 2/4\n", "rendezvous-incomplete"),  # noqa: E501
    "members that all came": ("initializing: GLOBAL_RANK: 0, MEMBER: 1/2\ninitializing: GLOBAL_RANK: 1, MEMBER: 2/2\n", None),  # noqa: E501
    "TCP where RDMA is": ("n1:3:4 [0] NCCL INFO NET/IB : No device found.\n$ ls /sys/class/infiniband\nmlx5_0  mlx5_1\n", "rdma-misconfigured"),  # noqa: E501
    "TCP where nothing else is": ("n1:3:4 [0] NCCL INFO NET/IB : No device found.\nstep 1 loss 2.0\n", None),
    "processes pinned together": ("".join(f"pid {i}'s current affinity list: 0,1\n" for i in range(51, 57)), "cpu-contention"),  # noqa: E501
    "processes with a CPU each": ("".join(f"pid {i}'s current affinity list: {i}\n" for i in range(51, 57)), None),
    "frames of the loader": ("step 1 loss 2.0\n 81.0%  __next__ (torch/utils/data/dataloader.py:673)\n 12.0%  forward (m.py:3)\n", "input-stall"),  # noqa: E501
    "frames of the model": ("step 1 loss 2.0\n 81.0%  forward (m.py:3)\n 12.0%  __next__ (torch/utils/data/dataloader.py:673)\n", None),  # noqa: E501
    "one of many far behind": (
        "".join(f"fwd host=h-{h} dev=cuda:{d} mean={1.31 if (h, d) == (2, 1) else 0.4}s\n" for h in range(3) for d in range(2)),  # noqa: E501
        "unclassified",
    ),
    "a restore without its size": ("step 4 loss 2.0\ncheckpoint restored in 402.1 seconds.\n", None),
    "ended by hand": ("step 4 loss 2.0\n^C^C\n", "unclassified"),
    "somebody asks": ("step 4 loss 2.0\n$ py-spy dump --pid 12\nThread 12 (idle): wait (x.py:3)\n", "unclassified"),
    "somebody looks": ("$ head -3 train.log\nstep 4 loss 2.0\n", None),
    "a scan that found none": ("scanning labels: 1184 images, 0 corrupt: done\nstep 4 loss 2.0\n", None),
    "words alone": ("training is 4x slower since Monday\n", "unclassified"),
    "words of advice": ("this setting can make training slower\n", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_excerpt_says_what_its_numbers_decide(tmp_path: Path, name: str) -> None:
    text, cause = CASES[name]
    primary = triage_text(tmp_path, f"{text}\n").primary
    assert (primary.cause if primary else None) == cause


def test_an_error_stands_before_what_a_table_shows(tmp_path: Path) -> None:
    text = (
        f"{CASES['a low clock under load'][0]}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    found = triage_text(tmp_path, text)
    assert found.primary is not None
    assert found.primary.cause == "oom-gpu"


def test_an_end_before_all_complaints_is_the_cause(tmp_path: Path) -> None:
    lost = "[rank1]:[W1 x TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=30): failed to recv, got 0 bytes\n"
    found = triage_text(tmp_path, f"step 9 loss 2.0\nTraining complete. Saved last.pt\n{lost}")
    assert found.primary is not None
    assert found.primary.cause == "teardown-crash"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('  File "a.py", line 8, in load_samples\n    x = pickle.load(f)\n_pickle.UnpicklingError: truncated\n', "python-exception"),  # noqa: E501
        ('  File "a.py", line 8, in load_model\n    x = pickle.load(f)\n_pickle.UnpicklingError: truncated\n', "checkpoint-corrupt"),  # noqa: E501
        ("[31.6] worker7[33]: segfault at 65 ip 0000 sp 0000 error 4 in worker7[55d2]\n", "unclassified"),
        ("[31.6] python3[33]: segfault at 65 ip 0000 sp 0000 error 4 in x.so[55d2]\n", "segfault"),
        ("*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n", "unclassified"),
    ],
)  # fmt: skip
def test_a_name_needs_its_own_words(tmp_path: Path, text: str, said: str) -> None:
    frames = text if "File" not in text else f"Traceback (most recent call last):\n{text}"
    found = triage_text(tmp_path, frames)
    assert found.primary is not None
    assert found.primary.cause == said


def test_tables_are_read_by_their_header() -> None:
    (table,) = tables(["a, b [W], c", "1, 2.5 W, x", "2, 3.5 W, y"])
    assert [row.number("b [w]") for row in table.rows] == [2.5, 3.5]
    assert number_of("12,345 MiB") == 12345
    assert number_of("Active") is None
    (block,) = blocks(["GPU 00000000:17:00.0", "    Clocks", "        SM    : 345 MHz"])
    assert block[0].cells == {"clocks/sm": "345 MHz"}
