"""run.json, events.jsonl and progress.jsonl of a simulated run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trackwalker.job.journal import encode
from trackwalker.job.run import RankPlace, RunRecord, Setting
from trackwalker.lab.own.ends import killed_by_kernel
from trackwalker.lab.own.log import CODE, STAGE_TIMES, OwnLog, kernel_words, pid_of
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import TFLOP_PER_TOKEN, Floats, Run
from trackwalker.node.stages.order import STAGES

Record = dict[str, Any]
_OVERDUE_S = 5.0  # after which a trainer says that its batch has not come


def run_record(log: OwnLog, workspace: Path) -> RunRecord:
    """The record that `submit` would have written."""
    run, spec = log.run, log.run.spec
    settings = {k: Setting(value=v, source="command line") for k, v in log.settings.items()}
    words = [f"{k}={v}" for k, v in log.settings.items()]
    env = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".93", "NCCL_DEBUG": "WARN"}
    layers = {k: Setting(value=v, source="base") for k, v in env.items()}
    own = {k: Setting(value=v, source="command line") for k, v in spec.env.items()}
    return RunRecord(
        id=run.job_id,
        name=f"JAX-{spec.model}",
        model=spec.model,
        scheduler="slurm",
        trainer="maxtext",
        created=round(run.start - 20.0, 3),
        argv=["submit", spec.model, "-N", str(len(run.hosts)), "--observe", "--", *words],
        command=["python3", "-u", "agent.pyz", "maxtext", "config.yml", *words],
        config={"model_name": Setting(value=spec.model, source=f"model {spec.model}"), **settings},
        env=layers | own,
        ranks=[RankPlace(rank=r, host=h, node=h) for r, h in enumerate(run.hosts)],
        observe=spec.ray,
        workspace=workspace.name,  # never a path of the machine that simulates
        code=CODE.facts(),
    )


def write_journals(log: OwnLog, job: Path, scalars: dict[str, Floats]) -> None:
    """Write both journals in the order in which the first node would have merged them."""
    (job / "events.jsonl").write_bytes(b"".join(encode(e) for e in sorted(_events(log), key=lambda e: float(e["t"]))))
    if log.no_training:
        return
    merged: list[tuple[float, Record]] = []
    for rank, host in enumerate(log.run.hosts):
        silent = log.run.training_begin + 45.0 if rank in log.unheard else log.run.end
        until = min(log.sheet.gone_at.get(host, silent), log.sheet.idle_after(host), silent)
        skew = log.run.spec.clock_skew_s.get(host, 0.0) + 0.0007 * (rank % 50)
        for record in rank_records(log.run, log.sheet, host, scalars):
            if record["t"] <= until:
                merged.append((record["t"] + 0.0007 * (rank % 50), _stamped(record, rank, host, skew)))
    merged.sort(key=lambda each: each[0])
    (job / "progress.jsonl").write_bytes(b"".join(encode(record) for _, record in merged))


def rank_records(run: Run, sheet: Sheet, host: str, scalars: dict[str, Floats]) -> Iterator[Record]:
    """What one host's trainer reports, by time: its phases, every step, every save."""
    records = [*_start(run), *_steps(run, host, scalars), *_saves(run, sheet.run)]
    records.sort(key=lambda record: float(record["t"]))
    yield from records


def _stamped(record: Record, rank: int, host: str, skew: float) -> Record:
    return {
        "t": round(record["t"] + skew, 6),
        "rank": rank,
        "host": host,
        **{k: v for k, v in record.items() if k != "t"},
    }


def _start(run: Run) -> Iterator[Record]:
    begin = run.training_begin + 46.0
    yield {"t": begin + 8.0, "phase": "init", "state": "begin"}
    yield {"t": begin + 25.0, "phase": "init", "state": "end", "seconds": 17.0}
    if run.spec.checkpoint_period:
        yield {"t": begin + 30.0, "phase": "restore", "state": "begin"}
        took = 8.0 if run.first else 0.01
        restored = {"restored": bool(run.first), "seconds": took}
        yield {"t": begin + 30.0 + took, "phase": "restore", "state": "end", **restored}
    compiling = max(begin + 45.0, run.steps_from)
    if compiling < run.end:
        yield {"t": compiling, "phase": "compile", "state": "begin"}
    if len(run.ends):
        took = min(run.spec.compile_s, 0.95 * float(run.seconds[0]))
        yield {"t": compiling + took, "phase": "compile", "state": "end", "seconds": round(took, 6)}


def _steps(run: Run, host: str, scalars: dict[str, Floats]) -> Iterator[Record]:
    waits = run.data_wait_of(host)
    for i, end in enumerate(run.ends.tolist()):
        tokens = run.tgs(i)
        flops = tokens * TFLOP_PER_TOKEN
        yield {
            "t": end,
            "phase": "train",
            "step": run.first + i,
            "seconds": round(float(run.seconds[i]), 6),
            "loss": float(scalars["learning_loss"][i]),
            "grad_norm": float(scalars["learning_grad_norm"][i]),
            "tokens_per_s": round(tokens, 3),
            "tflops": round(flops, 6),
            "mfu": round(flops / run.profile.peak_tflops, 6),
            "data_wait_s": round(0.0011 + float(waits[i]), 6),
        }
    if run.batch_never_comes:
        yield {"t": run.work_end + _OVERDUE_S, "phase": "data_wait", "state": "begin"}
    if run.spec.ending == "completed":
        yield {"t": run.work_end + 0.5, "phase": "done"}


def _saves(run: Run, played: Run) -> Iterator[Record]:
    for begin, end, step in played.saves:
        yield {"t": begin, "phase": "checkpoint", "state": "begin", "step": step, "background": False}
        if end < run.end - 1.0:
            seconds = {"seconds": round(end - begin, 6), "background": False}
            yield {"t": end, "phase": "checkpoint", "state": "end", "step": step, **seconds}
    if played.last_save_begins is not None:
        step = run.first + len(run.ends) - 1
        yield {"t": played.last_save_begins, "phase": "checkpoint", "state": "begin", "step": step, "background": False}


def _events(log: OwnLog) -> Iterator[Record]:
    run, ending = log.run, log.ending
    head, nodes = run.hosts[0], len(run.hosts)
    yield _event(run.start, "launch", head, "attempt-begin", attempt=0, nodes=nodes)
    for key, (begin, end) in STAGE_TIMES.items():
        failed = ending is not None and ending.stage == key
        yield _event(run.start + begin, key, head, "stage-begin", name=STAGES[key])
        about: Record = {"name": STAGES[key], "seconds": int(end - begin), "ok": not failed, "exit": 0, "exits": {}}
        bad = ending.ends if ending is not None and failed else []
        if ending is not None and failed:
            about |= {"exit": ending.outcome.code, "exits": {str(e.rank): e.exit for e in bad}}
            about["reason"] = ending.outcome.reason
        hosts = [e.host for e in bad]
        yield _event(run.start + end, key, head, "stage-end", **about, hosts=hosts, nodes=nodes)
        if failed and ending is not None:
            out = ending.outcome
            yield _event(
                run.end, "launch", head, "run-end", exit=out.code, reason=out.reason, seconds=int(run.end - run.start)
            )
            return
    yield _event(run.training_begin, "train", head, "stage-begin", name=STAGES["train"])
    for rank, host in enumerate(run.hosts):
        begun = run.training_begin + 0.01 + 0.0005 * rank
        yield _event(begun, "train", host, "rank-start", rank, host, pid=pid_of(rank))
    yield from _end_events(log)


def _end_events(log: OwnLog) -> Iterator[Record]:
    run, ending = log.run, log.ending
    if ending is None:
        return
    out, head, seconds = ending.outcome, run.hosts[0], int(run.end - run.training_begin)
    for end in ending.ends:
        said = {"exit": end.exit, "cause": end.cause}
        yield _event(end.ended + 0.05, "train", end.host, "rank-exit", end.rank, end.host, **said)
        if out.first is not None and out.first.rank == end.rank:
            yield _event(end.ended + 0.25, "train", end.host, "first-failure", end.rank, end.host, **said)
        if killed_by_kernel(end, log.sheet):
            text = kernel_words(end.rank)
            yield _event(end.ended + 0.1, "train", end.host, "kernel-kill", end.rank, end.host, text=text)
        if end.host != head:
            yield _event(run.end - 0.5, "train", end.host, "node-end", seconds=seconds)
    if ending.stop_at is not None:
        why = f"rank {out.first.rank} {out.first.cause}" if out.first is not None else "cancelled"
        yield _event(ending.stop_at, "train", head, "stop", signal=15, why=why)
    first = asdict(out.first) if out.first is not None else None
    about: Record = {
        "exit": out.code,
        "reason": out.reason,
        "seconds": seconds,
        "missing": ending.missing,
        "first": first,
    }
    yield _event(run.end, "train", head, "run-end", **about)


def _event(
    time: float, stage: str, node: str, kind: str, rank: int | None = None, host: str | None = None, **data: Any
) -> Record:
    where = {"stage": stage, "node": node, "rank": rank, "host": host}
    return {"t": round(time, 6), **where, "kind": kind, "data": data}
