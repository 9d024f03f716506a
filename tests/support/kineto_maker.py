"""Makes PyTorch traces (Kineto's Chrome JSON) of a small data-parallel job, with the truth beside them.

Written from the documented fields: no PyTorch runs here. Times are whole microseconds, so what the reader finds can be
compared exactly. One step of a rank on its device:

    copy in | attention | MLP | backward of both ........... | optimiser |  the host sleeps
                                            | all-reduce ... |
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

US = 1_000_000  # picoseconds
BASE_NS = 1_743_521_598_000_000_000
FIRST_US = 198_093_488_368  # Kineto's base lies days before the trace
COPY, LAYER, BACKWARD, HIDDEN, TRANSFER, OPTIMISER, SLEEP = 10, 100, 200, 50, 120, 40, 300
NELEMS = 1_048_576
_MAIN, _AUTOGRAD, _PID = 4242, 4343, 4242
_LEAD, _LATE = 30, 5  # how long before a kernel its launch begins


@dataclass
class TorchJob:
    """What the job does; `slow` is the rank whose kernels take that much longer."""

    ranks: int = 1
    steps: int = 3
    slow: tuple[int, int] = (-1, 1)
    hip: bool = False
    pair: bool = False  # one more all-reduce, between neighbours
    base: int | None = BASE_NS
    first_us: float = FIRST_US
    group: dict[str, Any] = field(default_factory=dict)  # more arguments of the big all-reduce

    def factor(self, rank: int) -> int:
        """How much longer a rank's kernels take."""
        return self.slow[1] if rank == self.slow[0] else 1


class _Events:
    """The events of one rank, joined by correlation numbers."""

    def __init__(self, job: TorchJob, rank: int) -> None:
        self.job, self.rank = job, rank
        self.rows: list[dict[str, Any]] = []
        self._correlation = 0

    def host(self, cat: str, name: str, start: float, end: float, thread: int = _MAIN, **args: Any) -> None:
        self._add("X", cat, name, _PID, thread, start, end - start, args)

    def device(self, cat: str, name: str, start: float, end: float, stream: int, **args: Any) -> None:
        """A kernel or a copy, with its launch; RCCL's kernels have no correlation number."""
        lead, thread = args.pop("lead", _LEAD), args.pop("thread", _MAIN)
        self._correlation += 1
        number = self._correlation
        call = {"kernel": "LaunchKernel", "gpu_memcpy": "MemcpyAsync"}[cat]
        prefix = "hip" if self.job.hip else "cuda"
        self.host("cuda_runtime", prefix + call, start - lead, start - lead + 3, thread, cbid=211, correlation=number)
        lost = self.job.hip and "nccl" in name
        told = {"device": 0, "context": 1, "stream": stream, "correlation": 0 if lost else number, **args}
        if cat == "kernel":
            told |= {"grid": [1024, 1, 1], "block": [256, 1, 1], "registers per thread": 64}
        self._add("X", cat, name, 0, stream, start, end - start, told)
        flow = {"cat": "ac2g", "name": "ac2g", "id": number}
        self.rows.append({"ph": "s", **flow, "pid": _PID, "tid": thread, "ts": self._ts(start - lead)})
        self.rows.append({"ph": "f", **flow, "pid": 0, "tid": stream, "ts": self._ts(start), "bp": "e"})

    def _add(
        self, ph: str, cat: str, name: str, pid: int, tid: int, start: float, dur: float, args: dict[str, Any]
    ) -> None:
        row = {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self._ts(start), "dur": dur}
        self.rows.append({**row, "args": {"External id": len(self.rows), **args}})

    def _ts(self, at: float) -> float:
        return self.job.first_us + at


def rank_events(job: TorchJob, rank: int) -> list[dict[str, Any]]:
    """All events of one rank."""
    made, at = _Events(job, rank), 1000.0
    slowest = max(job.factor(r) for r in range(job.ranks))
    for step in range(job.steps):
        at = _step(made, at, 10 + step, job.factor(rank), slowest)
    made.rows.append({"ph": "M", "name": "thread_name", "pid": _PID, "tid": _MAIN, "args": {"name": "main thread"}})
    made.rows.append({"ph": "M", "name": "process_labels", "pid": _PID, "tid": 0, "args": {"labels": "CPU"}})
    return made.rows


def _step(made: _Events, at: float, number: int, factor: int, slowest: int) -> float:
    """One step that begins with its copy at `at`; when the next one does."""
    layer, backward = LAYER * factor, BACKWARD * factor
    attention = at + COPY
    mlp, back = attention + layer, attention + 2 * layer
    arrive = back + backward - HIDDEN
    leave = at + COPY + (2 * LAYER + BACKWARD) * slowest - HIDDEN + TRANSFER
    done = leave + OPTIMISER
    sequence = 100 * number
    made.host("user_annotation", f"ProfilerStep#{number}", at - _LATE - 3, done + SLEEP - _LATE - 4)
    made.host("python_function", "train.py(12): step", at - _LATE - 2, done + SLEEP - _LATE - 5)
    made.device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at, at + COPY, 7, lead=_LATE, bytes=4096)
    for place, module, start in ((0, "LlamaAttention_0", attention), (1, "LlamaMLP_0", mlp)):
        # At the first kernel the host is still a little late itself: its launch overlaps the copy.
        begin = max(start - _LEAD, at - _LATE + 4 + place)
        made.host("python_function", f"nn.Module: {module}", begin, begin + 0.9)
        made.host("cpu_op", "aten::linear", begin + 0.1, begin + 0.8, **{"Sequence number": sequence + place})
        made.device("kernel", "sm90_xmma_gemm_bf16_tn_n", start, start + layer, 7, lead=start - begin - 0.2)
    for place, start in ((1, back), (0, back + backward / 2)):
        node = {"Sequence number": sequence + place, "Fwd thread id": 1}
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        made.host("cpu_op", name, start - _LEAD - 1, start - _LEAD + 4, _AUTOGRAD, **node)
        made.device("kernel", "sm90_xmma_gemm_bf16_nt_n", start, start + backward / 2, 7, thread=_AUTOGRAD)
    everyone = {
        "Collective name": "allreduce", "In msg nelems": NELEMS, "Out msg nelems": NELEMS, "dtype": "BFloat16",
        "Group size": made.job.ranks, "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(made.job.ranks))),
    } | made.job.group  # fmt: skip
    kernel = "ncclDevKernel_Generic_4(Args)" if made.job.hip else "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    if made.job.pair:  # the last part of the transfer is a second collective, between neighbours
        mates = [made.rank // 2 * 2, made.rank // 2 * 2 + 1]
        near = everyone | {"Group size": 2, "Process Group Name": f"pair{mates[0]}", "Process Group Ranks": str(mates)}
        near |= {"Process Group Description": "undefined", "In msg nelems": 64, "Out msg nelems": 64}
        made.device("kernel", kernel, leave - 20, leave, 20, **near)
    made.device("kernel", kernel, arrive, leave - (20 if made.job.pair else 0), 20, **everyone)
    made.host("user_annotation", "Optimizer.step#AdamW.step", leave - _LEAD - 1, leave - _LEAD + 8)
    made.device("kernel", "void at::native::multi_tensor_apply_kernel<AdamFunctor>", leave, done, 7)
    made.host("python_function", "<built-in function sleep>", done - 20, done + SLEEP - _LATE - 6)
    return done + SLEEP


def truth(job: TorchJob, rank: int) -> list[dict[str, int]]:
    """The buckets of each step of a rank, in picoseconds."""
    slowest = max(job.factor(r) for r in range(job.ranks))
    mine = (2 * LAYER + BACKWARD) * job.factor(rank)
    waited = (2 * LAYER + BACKWARD) * slowest - mine
    row = {
        "compute": mine + OPTIMISER, "exposed_comm": waited + TRANSFER - HIDDEN, "copy": COPY, "host_gap": SLEEP,
        "idle": 0, "overlapped_comm": HIDDEN,
    }  # fmt: skip
    rows = [{name: us * US for name, us in row.items()} for _ in range(job.steps)]
    rows[-1]["host_gap"] = 0  # the trace ends with the last kernel
    return rows


def text(job: TorchJob, rank: int, wrapped: bool = True, base_last: bool = False) -> bytes:
    """The file of one rank."""
    events = rank_events(job, rank)
    if not wrapped:
        return json.dumps(events).encode()
    name = "AMD Instinct MI300X" if job.hip else "NVIDIA H100 80GB HBM3"
    properties = {"id": 0, "name": name, "totalGlobalMem": 85_017_755_648, "computeMajor": 9, "computeMinor": 0}
    whole: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [properties | {"numSms": 132}]}
    if job.ranks > 1:
        whole["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": job.ranks}
    base = {} if job.base is None else {"baseTimeNanoseconds": job.base}
    whole |= {} if base_last else base
    whole["traceEvents"] = events
    whole["traceName"] = "trace.json"
    return json.dumps(whole | (base if base_last else {}), indent=1).encode()


def write(job: TorchJob, folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """A file for each rank, the second half of them packed."""
    paths = []
    for rank in range(job.ranks):
        name = names[rank] if names else f"host_{900 - rank}.{rank}.pt.trace.json"
        packed = 2 * rank >= job.ranks > 1
        content = text(job, rank)
        paths.append(folder / (name + ".gz" if packed else name))
        paths[-1].write_bytes(gzip.compress(content, 1) if packed else content)
    return paths
