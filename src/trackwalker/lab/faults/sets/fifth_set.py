"""What the seventh held-out set needs beyond the rest: other trainers' logs, pods, ends told by many clocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trackwalker.errors import UsageError
from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, rewritten
from trackwalker.lab.joblog import JobLog, glog
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


def filled(run: Run, text: str, host: str, time: float) -> str:
    """A line as this host writes it: with its own clock, its task and the rank of its fourth GPU."""
    rank, clock = run.hosts.index(host), time + run.spec.clock_skew_s.get(host, 0.0)
    moment = datetime.fromtimestamp(clock, UTC)
    names = {
        "host": host,
        "rank": str(rank),
        "grank": str(rank * run.spec.gpus + 3),
        "ip": f"10.4.7.{rank % 250 + 4}",
        "job": run.job_id,
        "step": str(run.first + len(run.ends)),
        "glog": glog(clock),
        "iso": moment.strftime("%Y-%m-%d %H:%M:%S,%f")[:-3],
        "sys": moment.strftime("%b %d %H:%M:%S"),
    }
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    return text.rstrip("\n")


def _about(run: Run, text: str, peer: str) -> str:
    """A line that names the one who failed, as its peers know it."""
    rank = run.hosts.index(peer)
    known = {"peer_ip": f"10.4.7.{rank % 250 + 4}", "peer_grank": str(rank * run.spec.gpus + 3), "peer_rank": str(rank)}
    for name, value in known.items():
        text = text.replace("{" + name + "}", value)
    return text


@fault
def says(
    run: Run,
    text: str,
    hosts: Hosts | None = None,
    at: Place | None = None,
    after_s: float = 1.0,
    launcher: bool = False,
) -> Show:
    """Lines of some hosts (or all) without consequence: at a step, or so long after the last one."""

    def show(sheet: Sheet, log: JobLog) -> None:
        time = (run.work_end if at is None else run.time_of(run.at(at))) + after_s
        for host in many(hosts) if hosts else run.hosts:
            moment = time + float(run.rng.uniform(0, 0.5))
            log.say(moment, filled(run, text, host, moment), None if launcher else run.hosts.index(host))

    return show


@fault
def breaks(
    run: Run,
    text: str = "",
    host: Hosts | None = None,
    at: Place | None = None,
    code: int = 1,
    others: str = "",
    others_code: int | None = None,
    others_after_s: float = 3.0,
    delay_s: float = 8.0,
    before_steps: bool = False,
    silent: bool = False,
    vanishes: bool = False,
) -> Show:
    """Some ranks (or all) fail with `text`, the rest complain; `silent`: they say nothing afterwards; `vanishes`: the
    host answers nobody any more."""
    if at is not None:
        run.hang_step = run.at(at)
    run.zero_steps = run.zero_steps or before_steps
    run.silent_s = max(run.silent_s, delay_s + others_after_s + 25.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        fails = run.work_end + delay_s
        guilty = many(host) if host else run.hosts
        for number, name in enumerate(run.hosts):
            mine = name in guilty
            said, ends = (text, code) if mine else (others, others_code)
            moment = fails + float(run.rng.uniform(0, 0.5)) + (0.0 if mine else others_after_s)
            if said:
                log.say(moment, filled(run, _about(run, said, guilty[0]), name, moment), number)
            if ends is not None:
                log.exits[number] = ends
                sheet.process_gone(name, moment + (0.0 if mine else 6.0))
            if mine and (silent or vanishes):
                log.mute.add(number)
            if mine and vanishes:
                sheet.gone(name, moment)
                log.hide_workers.add(number)

    return show


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
