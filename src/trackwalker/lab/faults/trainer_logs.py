"""The log as other trainers and launchers write it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.lab.faults.base import Place, Show, fault, rewritten
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run

_LABEL = re.compile(r"^( *\d+: )?(?:\(MaxTextTrainerActor [^)]*\) )?(.*)$")
_STEP = re.compile(r"^completed step: (\d+), seconds: ([\d.]+), TFLOP/s/device: ([\d.]+).*Tokens/s/device: ([\d.]+)")
_SAVED = re.compile(r"^Saved a checkpoint at step (\d+)\.")
_JAX_ONLY = re.compile(  # what only JAX and MaxText print
    r"^(Config param |Attempting to initialize the jax|Jax distributed system|Memstats: |\tUsing \(GB\)|"
    r"Synchronizing hosts|XLA_PYTHON_CLIENT|No existing checkpoints found|restoring from this run)|cuda_platform\.cc|"
    r"NCCL WARN MSCCL\+\+|Training subprocess started"
)
_RCCL_ONLY = re.compile(r"cuda_platform\.cc:51\] failed call to cuInit|NCCL WARN MSCCL\+\+")


def _stamp(run: Run, step: int) -> datetime:
    return datetime.fromtimestamp(float(run.ends[step - run.first]), UTC)


def _titan_step(run: Run, step: int, seconds: float, flops: float, tokens: float) -> str:
    when = _stamp(run, step).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    loss = run.loss[step - run.first]
    return (
        f"[rank0]:[titan] {when} - root - INFO - step: {step + 1:2}  loss: {loss:7.4f}  "
        f"grad_norm: {0.8 + 0.01 * (step % 7):7.4f}  memory: {0.86 * run.profile.vram_gb:5.2f}GiB(86.00%)  "
        f"tps: {tokens:,.0f}  tflops: {flops:,.2f}  mfu: {100 * flops / run.profile.peak_tflops:.2f}%"
    )


def _megatron_step(run: Run, step: int, seconds: float, flops: float, tokens: float) -> str:
    when = _stamp(run, step).strftime("%Y-%m-%d %H:%M:%S")
    loss = run.loss[step - run.first]
    return (
        f" [{when}] iteration {step + 1:8}/{run.spec.total:8} | consumed samples: {(step + 1) * 1024:12} | "
        f"elapsed time per iteration (ms): {1000 * seconds:.1f} | throughput per GPU (TFLOP/s/GPU): {flops:.1f} | "
        f"learning rate: 3.000000E-05 | global batch size:  1024 | lm loss: {loss:.6E} | loss scale: 1.0 | "
        f"grad norm: {0.8 + 0.01 * (step % 7):.3f} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    )


def _nemo_step(run: Run, step: int, seconds: float, flops: float, tokens: float) -> str:
    loss = run.loss[step - run.first]
    return (
        f"Training epoch 0, iteration {step}/{run.spec.total - 1} | lr: 3e-05 | global_batch_size: 1024 | "
        f"global_step: {step} | reduced_train_loss: {loss:.4g} | train_step_timing in s: {seconds:.4g} | "
        f"consumed_samples: {(step + 1) * 1024}"
    )


def _saved(trainer: str, run: Run, step: int) -> list[str]:
    if trainer == "torchtitan":
        when = _stamp(run, step).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        took = f"{run.spec.save_s:.2f} seconds."
        return [f"[rank0]:[titan] {when} - root - INFO - Finished saving the checkpoint in {took}"]
    if trainer == "megatron":
        return [f"  successfully saved checkpoint from iteration {step + 1:8} to /ckpt/run [ t 1/8, p 1/4 ]"]
    return [f"[NeMo I] Saved checkpoint at global_step={step} to /results/checkpoints/step={step}-last"]


def _apart(text: str) -> tuple[str, dict[int, list[str]]]:
    """Rank 0's and the launcher's lines, and each other rank's."""
    first: list[str] = []
    rest: dict[int, list[str]] = {}
    for line in text.split("\n"):
        label = re.match(r"^ *(\d+): (.*)$", line)
        if line.startswith("srun: "):
            continue
        line = re.sub(r"(Status: FAILED \(exit \d+\)).*", r"\1", line)  # pods' summaries carry no reason
        if label is None or int(label[1]) == 0:
            first.append(line if label is None else label[2])
        else:
            rest.setdefault(int(label[1]), []).append(label[2])
    return "\n".join(first), rest


@fault
def dialect(run: Run, trainer: str) -> Show:
    """The log as another trainer writes it: its own step and checkpoint lines, from the rank that prints them."""
    writers: dict[str, Callable[[Run, int, float, float, float], str]] = {
        "torchtitan": _titan_step,
        "megatron": _megatron_step,
        "nemo": _nemo_step,
    }
    if trainer not in writers:
        raise UsageError(f"no dialect '{trainer}'; known: {', '.join(writers)}")
    step_line = writers[trainer]

    def change(text: str, run: Run) -> str:
        printer = len(run.hosts) - 1 if trainer == "megatron" else 0  # Megatron's last rank holds the loss
        out: list[str] = []
        for line in text.split("\n"):
            found = _LABEL.match(line)
            label, said = (found[1] or "", found[2]) if found else ("", line)
            mine = bool(label) and int(label.strip(" :")) == printer
            step, saved = _STEP.match(said), _SAVED.match(said)
            if _JAX_ONLY.search(said):
                continue
            if step:
                if mine:
                    out.append(label + step_line(run, int(step[1]), float(step[2]), float(step[3]), float(step[4])))
            elif saved:
                if mine and int(saved[1]):
                    out += [label + words for words in _saved(trainer, run, int(saved[1]))]
            else:
                out.append(label + said)
        return "\n".join(out)

    return rewritten(change)


@fault
def pods(run: Run) -> Show:
    """A Kubernetes job: the log is rank 0's, every other rank has a file of its own, nobody labels lines."""

    def show(sheet: Sheet, log: JobLog) -> None:
        whole = log.write

        def write(path: Path, workers: Path | None) -> None:
            whole(path, workers)
            first, rest = _apart(path.read_text())
            path.write_text(first)
            if workers is not None:
                for rank, lines in rest.items():
                    (workers.parent / f"rank-{rank}.log").write_text("\n".join(lines) + "\n")

        log.write = write  # type: ignore[method-assign]

    return show


@fault
def deepspeed(run: Run, samples: int = 1024, overflows: list[Place] | None = None) -> Show:
    """The log as DeepSpeed's engine writes it: rank 0's step line and its throughput timer."""
    took: list[float] = []
    skips = [run.at(place) for place in overflows or []]

    def lines(step: int, seconds: float) -> list[str]:
        when = datetime.fromtimestamp(float(run.ends[step - run.first]), UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        took.append(seconds)
        later = took[2:] or took
        average, held = samples * len(later) / sum(later), 0.62 * run.profile.vram_gb
        number = step + 1
        return [
            f"[{when}] [INFO] [logging.py:107:log_dist] [Rank 0] step={number}, "
            f"skipped={sum(s < number for s in skips)}, lr=[3e-05], mom=[(0.9, 0.95)]",
            f"[{when}] [INFO] [timer.py:264:stop] epoch=0/micro_step={number * 4}/global_step={number}, "
            f"RunningAvgSamplesPerSec={average:.14f}, CurrSamplesPerSec={samples / seconds:.14f}, "
            f"MemAllocated={held:.2f}GB, MaxMemAllocated={1.35 * held:.2f}GB",
            f"steps: {number} loss: {run.loss[step - run.first]:.4f} iter time (s): {seconds:.3f} "
            f"samples/sec: {samples / seconds:.3f}",
        ]

    def change(text: str, _: Run) -> str:
        out: list[str] = []
        for line in text.split("\n"):
            found = _LABEL.match(line)
            label, said = (found[1] or "", found[2]) if found else ("", line)
            mine = bool(label) and int(label.strip(" :")) == 0
            step, saved = _STEP.match(said), _SAVED.match(said)
            if _JAX_ONLY.search(said):
                continue
            if step:
                out += [label + words for words in lines(int(step[1]), float(step[2]))] if mine else []
            elif saved:
                tag = int(saved[1])
                if mine and tag:
                    out.append(
                        f"{label}[INFO] [torch_checkpoint_engine.py:23:save] [Torch] Saved "
                        f"/ckpt/run/global_step{tag}/mp_rank_00_model_states.pt."
                    )
            else:
                out.append(label + said)
        return "\n".join(out)

    return rewritten(change)


@fault
def cuda_words(run: Run) -> Show:
    """A log of NVIDIA machines: none of the lines that only ROCm and RCCL print."""

    def show(sheet: Sheet, log: JobLog) -> None:
        plain = log.say

        def say(time: float, text: str, rank: int | None = None) -> None:
            if not _RCCL_ONLY.search(text):
                plain(time, text.replace("on rocm:0", "on cuda:0"), rank)

        log.say = say  # type: ignore[method-assign]

    return show


@fault
def coloured_log(run: Run) -> Show:
    """The merged log in colours, with rank labels of equal width."""

    def change(text: str, _: Run) -> str:
        wide = re.sub(r"^ *(\d+): ", lambda m: f"{int(m[1]):03d}: \x1b[36m", text, flags=re.MULTILINE)
        return "\n".join(line + "\x1b[0m" if "\x1b[" in line else line for line in wide.split("\n"))

    return rewritten(change)


@fault
def gpu_counts(run: Run) -> Show:
    """Lines that count the GPUs of the job say the right numbers in worlds of any size."""

    def show(sheet: Sheet, log: JobLog) -> None:
        plain, world = log.say, len(run.hosts) * run.spec.gpus

        def say(time: float, text: str, rank: int | None = None) -> None:
            text = text.replace("{world}", str(world)).replace("{joined}", str(world - run.spec.gpus))
            plain(time, text.replace("{model}", str(world // 2 + 16)), rank)

        log.say = say  # type: ignore[method-assign]

    return show
