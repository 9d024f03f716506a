"""What triage makes of words no signature knows: python bench/invented.py [--texts FILE] [--show] [--keep DIR]

Puts each invented message of invented.yml (written before any signature file was read) into the log of one of eight
trainers on 16 ranks of four hosts: a healthy part, the message on one rank, the other ranks' reactions, the launcher's
last words. Prints how often the first rank, its host and the generic class are right, and how many specific causes were
named that the words do not carry. A Python traceback called python-exception is true and counts by its class.
Exits 1 when a target is missed.
"""
# ruff: noqa: E501

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trackwalker.diagnose.triage import triage
from trackwalker.errors import TrackwalkerError
from trackwalker.job.layout import Job

TEXTS = Path(__file__).with_suffix(".yml")
RANKS, PER_HOST, STEPS = 16, 4, 24
HOSTS = ("gpu-a11", "gpu-a12", "gpu-b03", "gpu-b07")
IPS = ("10.0.3.11", "10.0.3.12", "10.0.4.3", "10.0.4.7")


@dataclass(frozen=True)
class Case:
    """One log with its truth."""

    name: str
    log: str
    rank: int
    host: str
    classes: tuple[str, ...]
    fits: tuple[str, ...]


def clock(second: float, pattern: str = "2026-11-14 {h:02d}:{m:02d}:{s:02d}") -> str:
    """A time of day of the run."""
    whole = int(second)
    return pattern.format(h=9 + whole // 3600, m=whole // 60 % 60, s=whole % 60)


def spoken(message: dict[str, Any], at: float, package: str) -> list[str]:
    """The failing process's own lines, without any label."""
    text, form = message["text"], message["form"]
    if form == "raise":
        kind, _, rest = text.partition(": ")
        return [
            "Traceback (most recent call last):",
            f'  File "/opt/{package}/train.py", line 412, in <module>',
            "    main()",
            f'  File "/opt/{package}/loop.py", line 188, in main',
            "    engine.advance(batch)",
            f'  File "/opt/{package}/engine.py", line 77, in advance',
            "    self._go(batch)",
            f"{package}.engine.{kind}: {rest}",
        ]
    if form == "glog":
        return [f"E{clock(at, '1114 {h:02d}:{m:02d}:{s:02d}')}.412233   31877 core_runtime.cc:418] {text}"]
    if form == "rust":
        return ["thread 'worker-3' panicked at src/feed.rs:217:9:", text]
    if form == "json":
        return [json.dumps({"ts": clock(at, "2026-11-14T{h:02d}:{m:02d}:{s:02d}Z"), "level": "error", "msg": text})]
    if form == "log":
        return [f"{clock(at)},412 ERROR {package}.core: {text}"]
    return [text]


def flat(lines: list[str]) -> Iterator[str]:
    """One line each."""
    for line in lines:
        yield from line.split("\n")


def torchelastic(rank: int, at: float) -> list[str]:
    """The summary torchrun prints when a worker failed."""
    host, local = HOSTS[rank // PER_HOST], rank % PER_HOST
    stamp = clock(at, "2026-11-14_{h:02d}:{m:02d}:{s:02d}")
    return [
        f"E{clock(at, '1114 {h:02d}:{m:02d}:{s:02d}')}.880000 2201 torch/distributed/elastic/multiprocessing/api.py:869] "
        f"failed (exitcode: 1) local_rank: {local} (pid: {4000 + rank}) of binary: /opt/env/bin/python",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "============================================================",
        "train.py FAILED",
        "------------------------------------------------------------",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {stamp}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {local})",
        "  exitcode  : 1 (pid: " + str(4000 + rank) + ")",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "============================================================",
    ]


def reset_by_peer(rank: int) -> str:
    """What a rank of PyTorch says when a peer went away."""
    return (
        f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, "
        "remote process exited or there was a network error, NCCL version 2.27.3"
    )


def step_line(trainer: str, step: int, at: float, chance: random.Random) -> str:
    """A healthy step line as that trainer prints it."""
    loss, ms = 9.1 - 0.05 * step + chance.uniform(-0.02, 0.02), 4000 + chance.uniform(-40, 40)
    if trainer == "maxtext":
        return f"completed step: {step}, seconds: {ms / 1000:.3f}, TFLOP/s/device: 310.2, Tokens/s/device: 2048.1, loss: {loss:.3f}"
    if trainer == "megatron":
        return (f" [{clock(at)}] iteration {step:8d}/    5000 | consumed samples: {step * 256:12d} | elapsed time per iteration (ms): {ms:.1f} | "
                f"learning rate: 1.0E-04 | global batch size:   256 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.203 | "
                "number of skipped iterations:   0 | number of nan iterations:   0 |")  # fmt: skip
    if trainer == "torchtitan":
        return f"[titan] {clock(at)},120 - root - INFO - step: {step:2d}  loss: {loss:.4f}  memory: 61.22GiB(77.3%)  tps: 5,120  tflops: 331.2  mfu: 33.5%"
    if trainer == "nemo":
        return f"Training epoch 0, iteration {step}/4999 | lr: 1e-04 | global_batch_size: 256 | global_step: {step} | reduced_train_loss: {loss:.3f} | train_step_timing in s: {ms / 1000:.3f}"
    if trainer == "deepspeed":
        return f"[{clock(at)},311] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]"
    if trainer == "lightning":
        return f"Epoch 0:   {step // 2}%|▏         | {step}/5000 [{step * 4 // 60:02d}:{step * 4 % 60:02d}<5:32:10,  0.25it/s, v_num=3, train_loss={loss:.3f}]"
    if trainer == "huggingface":
        return f"{{'loss': {loss:.4f}, 'grad_norm': 1.21, 'learning_rate': 0.0001, 'epoch': {step / 5000:.3f}}}"
    return f"step {step}: loss {loss:.4f}, time {ms:.2f}ms"


def srun_labelled(trainer: str, message: dict[str, Any], rank: int, chance: random.Random) -> list[str]:
    """MaxText, NeMo and Lightning under srun --label: the task's number before each line, the node list at the top."""
    lines = [
        "SLURM_JOB_ID=88121",
        "SLURM_JOB_NODELIST=gpu-a[11-12],gpu-b[03,07]",
        "SLURM_NTASKS=16",
        "SLURM_NTASKS_PER_NODE=4",
    ]
    for step in range(STEPS):
        shown = range(RANKS) if trainer == "maxtext" else (0,)
        lines += [f"{r}: {step_line(trainer, step, step * 4, chance)}" for r in shown]
    lines += [f"{rank}: {line}" for line in flat(spoken(message, STEPS * 4 + 2, "lumen"))]
    others = [r for r in chance.sample(range(RANKS), 5) if r != rank]
    if trainer == "maxtext":
        lines += [f"{r}: E1114 09:01:52.118231   40{r:02d} coordination_service_agent.cc:774] Polled an error from coordination service "
                  f"(this can be an error from this or another task): UNAVAILABLE: task {rank} disconnected" for r in others]  # fmt: skip
    else:
        lines += [f"{r}: {reset_by_peer(r)}" for r in others]
    lines += [f"srun: error: {HOSTS[rank // PER_HOST]}: task {rank}: Exited with exit code 1",
              "srun: launch/slurm: _step_signal: Terminating StepId=88121.0",
              "slurmstepd: error: *** STEP 88121.0 ON gpu-a11 CANCELLED AT 2026-11-14T09:02:10 ***"]  # fmt: skip
    return lines


def torchrun(trainer: str, message: dict[str, Any], rank: int, chance: random.Random) -> list[str]:
    """Megatron-LM, torchtitan and Hugging Face under torchrun: [rankN]: before what a rank writes."""
    lines = [f"[rank{r}]: using host {HOSTS[r // PER_HOST]}, local rank {r % PER_HOST}" for r in range(RANKS)]
    label = "[rank0]:" if trainer == "torchtitan" else ""
    lines += [label + step_line(trainer, step, step * 4, chance) for step in range(STEPS)]
    lines += [f"[rank{rank}]: {line}" for line in flat(spoken(message, STEPS * 4 + 2, "lumen"))]
    lines += [reset_by_peer(r) for r in chance.sample(range(RANKS), 5) if r != rank]
    return lines + torchelastic(rank, STEPS * 4 + 9)


def deepspeed(trainer: str, message: dict[str, Any], rank: int, chance: random.Random) -> list[str]:
    """DeepSpeed through pdsh: the host's name before each line."""
    lines = [f"{host}: [2026-11-14 08:59:40,101] [INFO] [launch.py:256:main] process {4000 + r} spawned with rank={r} local_rank={r % PER_HOST}"
             for r, host in ((r, HOSTS[r // PER_HOST]) for r in range(RANKS))]  # fmt: skip
    lines += [f"{HOSTS[0]}: {step_line(trainer, step, step * 4, chance)}" for step in range(STEPS)]
    host = HOSTS[rank // PER_HOST]
    lines += [f"{host}: [rank{rank}]: {line}" for line in flat(spoken(message, STEPS * 4 + 2, "lumen"))]
    lines += [f"{HOSTS[r // PER_HOST]}: {reset_by_peer(r)}" for r in chance.sample(range(RANKS), 5) if r != rank]
    lines += [f"{host}: [{clock(STEPS * 4 + 9)},233] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {4000 + rank}",
              f"{host}: [{clock(STEPS * 4 + 9)},240] [ERROR] [launch.py:325:sigkill_handler] ['/opt/env/bin/python', '-u', 'train.py', "
              f"'--local_rank={rank % PER_HOST}'] exits with return code = 1",
              f"pdsh@login1: {host}: ssh exited with exit code 1"]  # fmt: skip
    return lines


def ray(trainer: str, message: dict[str, Any], rank: int, chance: random.Random) -> list[str]:
    """Ray Train: the worker's pid and address before each line; hosts are addresses."""

    def said(r: int, text: str) -> str:
        return f"(RayTrainWorker pid={4000 + r}, ip={IPS[r // PER_HOST]}) {text}"

    lines = [said(r, f"Setting up process group for: env:// [rank={r}, world_size={RANKS}]") for r in range(RANKS)]
    lines += [said(0, step_line(trainer, step, step * 4, chance)) for step in range(STEPS)]
    lines += [said(rank, line) for line in flat(spoken(message, STEPS * 4 + 2, "lumen"))]
    lines += [said(r, reset_by_peer(r)) for r in chance.sample(range(RANKS), 5) if r != rank]
    return [
        *lines,
        f"{clock(STEPS * 4 + 9)},001\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_8c1d2_00000",
    ]


TRAINERS: dict[str, Callable[[str, dict[str, Any], int, random.Random], list[str]]] = {
    "maxtext": srun_labelled, "megatron": torchrun, "torchtitan": torchrun, "nemo": srun_labelled,
    "deepspeed": deepspeed, "lightning": srun_labelled, "huggingface": torchrun, "ray": ray,
}  # fmt: skip


def cases(texts: Path, seed: int = 1) -> list[Case]:
    """Every message in one trainer's log; which one, and on which rank, is drawn once from the seed."""
    chance = random.Random(seed)  # noqa: S311
    messages = yaml.safe_load(texts.read_text(encoding="utf-8"))
    chance.shuffle(messages)
    made = []
    for number, message in enumerate(messages):
        trainer = list(TRAINERS)[number % len(TRAINERS)]
        rank = chance.randrange(1, RANKS)
        log = "\n".join(TRAINERS[trainer](trainer, message, rank, chance)) + "\n"
        host = (IPS if trainer == "ray" else HOSTS)[rank // PER_HOST]
        made.append(Case(f"{number:02d}-{trainer}", log, rank, host, tuple(message["is"]), tuple(message["fits"])))
    return made


def judge(case: Case, folder: Path) -> dict[str, Any]:
    """What triage says of one log, against the truth."""
    log = folder / f"{case.name}.log"
    log.write_text(case.log, encoding="utf-8")
    try:
        primary = triage(Job(case.name, log, None)).primary
    except TrackwalkerError:
        primary = None
    said = primary.cause if primary else None
    kind = getattr(primary, "kind", "") or ("program" if said == "python-exception" else "")
    generic = said in (None, "unclassified", "unknown-death", "python-exception")
    return {
        "said": said, "kind": kind, "ranks": list(primary.ranks)[:1] if primary else [], "hosts": list(primary.hosts)[:1] if primary else [],
        "rank": bool(primary and case.rank in list(primary.ranks)[:1]), "host": bool(primary and case.host in list(primary.hosts)[:1]),
        "class": kind in case.classes or said in case.fits, "wrong": not generic and said not in case.fits,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="each case that is not right in everything")
    parser.add_argument("--keep", type=Path, help="write the logs there")
    options = parser.parse_args()
    made = cases(options.texts, options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = [(case, judge(case, folder)) for case in made]
    for case, row in found:
        if options.show and not (row["rank"] and row["host"] and row["class"]):
            print(
                f"{case.name}: rank {case.rank} {case.host} {'/'.join(case.classes)}; said {row['said']} ({row['kind']}) {row['ranks']} {row['hosts']}"
            )
    count = len(found)
    share = {key: sum(row[key] for _, row in found) for key in ("rank", "host", "class", "wrong")}
    print(
        f"of {count}: first rank {share['rank']}, host {share['host']}, class {share['class']}, a wrong specific cause {share['wrong']}"
    )
    met = min(share["rank"], share["host"]) >= 0.9 * count and share["class"] >= 0.7 * count and not share["wrong"]
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
