"""A small real PyTorch training run: a transformer, one GPU (or slice of one) per rank, lines as torchtitan's.

Usage: python torch_trainer.py OUTPUT STEPS; RANK and WORLD_SIZE say which rank it is. One rank has NCCL's all-reduce;
several have gloo's, because NCCL does not join slices of one GPU. Rank 0 writes
OUTPUT/torch.pt.trace.json.gz (three steps, torch.profiler) and
OUTPUT/flight-recorder-0 (the collectives of the run, as PyTorch keeps them).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")  # read when the process group is made
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")

import torch
import torch.distributed as dist
from torch import nn

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
_GPU = (8, 2048, 16, 8, 1024, 32768)  # layers, width, heads, rows, length, words
_SLICE = (4, 512, 8, 32, 1024, 4096)  # small enough for gradients that go through the host
_CPU = (1, 64, 2, 2, 32, 128)
_ROUNDS = 1 if WORLD == 1 else 6  # batches between two all-reduces
_TRACED = (20, 23)


def main(output: Path, steps: int) -> int:
    """Train, tell of each step, leave a trace and a flight record."""
    gpu = torch.cuda.is_available()
    device, kind = ("cuda" if gpu else "cpu"), ("nccl" if gpu and WORLD == 1 else "gloo")
    layers, width, heads, rows, length, words = (_GPU if WORLD == 1 else _SLICE) if gpu else _CPU
    dist.init_process_group(kind, rank=RANK, world_size=WORLD)
    block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    body = nn.Sequential(nn.Embedding(words, width), nn.TransformerEncoder(block, layers), nn.Linear(width, words))
    model = nn.parallel.DistributedDataParallel(body.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=gpu)
    tokens = torch.randint(words, (rows, length + 1), device=device)
    profiler = _profiler(output)
    print(
        f"[rank{RANK}]: world size {WORLD}, {sum(p.numel() for p in model.parameters()):,} parameters on {device}",
        flush=True,
    )
    last = time.perf_counter()
    for step in range(1, steps + 1):
        if step == _TRACED[0]:
            profiler.start()
        for left in reversed(range(_ROUNDS)):
            with model.no_sync() if left else contextlib.nullcontext():
                with torch.autocast(device, dtype=torch.bfloat16):
                    scores = model(tokens[:, :-1])
                    loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()  # waits for the step
        if _TRACED[0] <= step < _TRACED[1]:
            profiler.step()
        if step == _TRACED[1]:
            profiler.stop()
        if step == _TRACED[1] and RANK == 0:
            profiler.export_chrome_trace(str(output / "torch.pt.trace.json.gz"))
        now = time.perf_counter()
        rate, last = _ROUNDS * rows * length / (now - last), now
        held = torch.cuda.max_memory_reserved() / 2**30 if gpu else 0.0
        print(f"[rank{RANK}]:step: {step:2}  loss: {value:7.4f}  memory: {held:5.2f}GiB  tps: {rate:,.0f}", flush=True)
    print(f"[rank{RANK}]:Training completed", flush=True)
    if kind == "nccl":
        with contextlib.suppress(AttributeError, RuntimeError):  # no public way to it; a timed-out collective writes it
            (output / "flight-recorder-0").write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
    dist.destroy_process_group()
    return 0


def _profiler(output: Path) -> torch.profiler.profile:
    output.mkdir(parents=True, exist_ok=True)
    return torch.profiler.profile(record_shapes=False, with_stack=False)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
