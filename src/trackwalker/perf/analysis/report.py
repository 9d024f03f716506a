"""One report from everything a job left behind; a part that fails is listed as missing, and the others stand."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from trackwalker.diagnose.saved import saved_verdict
from trackwalker.diagnose.triage import Triage, triage
from trackwalker.errors import EvidenceError
from trackwalker.job.layout import Job
from trackwalker.job.run import RunRecord, load_run
from trackwalker.logs.facts import LogFacts
from trackwalker.perf.analysis.fixes import fixes_for
from trackwalker.perf.analysis.result import Attempts, GoodputPart, JobPart, PerfReport
from trackwalker.perf.analysis.traces import Traces, read_traces
from trackwalker.perf.formats.find import Found, find_files, traces_in
from trackwalker.perf.throughput.flops import Flops, model_flops
from trackwalker.perf.throughput.goodput_cost import goodput_part
from trackwalker.perf.throughput.settings import Settings, settings_of
from trackwalker.perf.throughput.speed import measure
from trackwalker.perf.throughput.utilisation import Logged, find_peak, flops_part, logged_flops, utilisation
from trackwalker.record.masks import masks
from trackwalker.record.speeds import figure

# A report written down earlier, read again: only what this version wrote is believed.
NAME = "perf.json"
_UPSTREAM = "analysis.json"
_TOLD_LOSS = 0.005  # of the time: less is rounding beside a percentage


def upstream_tgs(directory: Path | None) -> float | None:
    """The steady tokens/s/device that upstream's own analysis left in the job directory."""
    try:
        said = json.loads((directory / _UPSTREAM).read_bytes()) if directory else {}
        return float(said["tgs"]["steady"]["mean"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or not upstream's


def load_report(path: Path) -> PerfReport:
    """The report in a perf.json."""
    try:
        return PerfReport.model_validate_json(path.read_bytes())
    except OSError as e:
        raise EvidenceError(f"cannot read {path}: {e.strerror}") from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "file"
        raise EvidenceError(f"{path} is no report of trackwalker perf ({where}: {first['msg']}); make it again") from e


@dataclass(frozen=True)
class Options:
    """What a user may add to what the job says itself."""

    traces: list[Path] = field(default_factory=list)  # files or folders, instead of those found
    gpu: str | None = None
    peak: float | None = None  # TFLOP/s of one device
    price: float | None = None  # of one GPU-hour
    with_traces: bool = True
    ops: int = 200  # rows of the table of operations
    ray: str | None = None  # a Ray cluster that reduces the ranks' traces


def analyse(job: Job, options: Options | None = None) -> PerfReport:
    """Read a job and say how fast it was and where its time went; nothing of the job is changed."""
    return Analysis(job, options or Options()).report()


class Analysis(Attempts):
    """One analysis while it is made: each part is tried on its own."""

    def __init__(self, job: Job, options: Options) -> None:
        super().__init__()
        self.job, self.options = job, options
        self.began = time.perf_counter()

    def report(self) -> PerfReport:
        """Every part that can be made, and why the others cannot."""
        seen = self.attempt("log", self._triage, "give a job with a log: throughput and goodput are read from it")
        run = self.attempt("run.json", lambda: load_run(self.job.run_json), "the launch record is damaged: restore it")
        facts = seen.index.facts if seen else LogFacts(self.job.log or Path())
        settings = settings_of(facts, run)
        traces = self._traces(facts, seen)
        out = PerfReport(job=self._job(seen, run, settings, traces), config=settings.about_speed())
        if traces is not None:
            out.trace, out.program = traces.part, traces.program
            out.config |= traces.versions
            self.missing += traces.missing
        if seen is not None:
            self._throughput(out, seen, settings, traces)
            saved = saved_verdict(self.job)  # which may have counted GPUs in a recording
            spent = seen.goodput.with_recorded(saved.job.gpus if saved is not None else None)
            price = self.options.price
            out.goodput = self.attempt("goodput", lambda: goodput_part(spent, price), "report this as a defect")
            self._explain_goodput(out)
        self._flops(out, facts, settings, traces)
        out.fixes = self.attempt("what to fix first", lambda: fixes_for(out), "report this as a defect") or []
        out.headline = headline(out)
        out.missing = self.missing
        out.seconds = round(time.perf_counter() - self.began, 3)
        if out.throughput is None and out.trace is None and out.goodput is None:
            raise EvidenceError(f"{self.job.label}: {'; '.join(m.why for m in self.missing) or 'nothing to analyse'}")
        return out

    def _triage(self) -> Triage | None:
        return triage(self.job, every_rank=True) if self.job.log is not None else None

    def _traces(self, facts: LogFacts, seen: Triage | None) -> Traces | None:
        if not self.options.with_traces:
            return None
        work = partial(find_traces, self.job, self.options, facts.setting("tensorboard_dir"))
        # What the user names has to be there; what we look for may not.
        found = work() if self.options.traces else self.attempt("profiles", work, "check the folder's permissions")
        found = found or Found()
        if not found.traces:
            why = "no *.xplane.pb in the job's directory"
            do = "trackwalker perf capture JOB while it runs, or profiler=xplane in the config; --trace FILE names one"
            self.lacks("traces", why, do)
        if not found.traces and not found.programs:
            return None
        span = None
        if found.shared and seen is not None and seen.record.table.first_end is not None:
            span = (seen.record.table.first_end - 3600.0, seen.record.table.last_end or time.time())
        return self.attempt(
            "traces", lambda: read_traces(found, span, self.options.ops, self.options.ray), "a trace may be damaged"
        )

    def _throughput(self, out: PerfReport, seen: Triage, settings: Settings, traces: Traces | None) -> None:
        def work() -> None:
            table, facts = seen.record.table, seen.record.facts
            if not len(table):
                raise EvidenceError("neither the log nor progress records nor an event file tell of a step")
            lead = table.lead().once()
            slow = masks(
                lead.step, lead.seconds, facts, line=lead.line, end=lead.column("end"), pauses=table.pauses,
                traced=traces.windows if traces else (), restarts=seen.record.restarts,
            )  # fmt: skip
            out.throughput = measure(table, slow, facts, settings.tokens_per_step, seen.progress, seen.record.phases)
            if out.throughput is None:
                raise EvidenceError("no step was timed")
            if seen.progress.recompiled:
                said_of = f"{seen.progress.recompiled} steps after the first waited for a compilation"
                out.throughput.notes.append(f"recompiled: {said_of}")
            if (said := upstream_tgs(self.job.dir)) is not None:
                out.throughput.notes.append(f"upstream's analysis.json says {said:.6g} tokens/s/device")
            if out.throughput.agreement is not None and not out.throughput.agreement.agrees:
                out.throughput.notes.append(f"disagreement: {out.throughput.agreement.says}")

        self.attempt("throughput", work, "the run has to complete a few steps first")

    def _explain_goodput(self, out: PerfReport) -> None:
        if out.goodput is None:
            return
        if out.goodput.wall_h is None:
            why = "neither the log's summary nor the scheduler tells how long the run lasted"
            self.lacks("shares of the wall time", why, "analyse the job when it has ended")
        if out.goodput.gpus is None:
            why = "nothing says how many GPUs the run held"
            self.lacks("GPU-hours", why, "keep MaxText's memory banner in the log, or sacct")

    def _flops(self, out: PerfReport, facts: LogFacts, settings: Settings, traces: Traces | None) -> None:
        tokens = settings.tokens_per_step
        logged = self.attempt("logged FLOPs", lambda: logged_flops(facts, tokens), "the log is odd") or Logged()
        flops: Flops | None = None
        if not settings.untold:
            flops = self.attempt("model FLOPs", lambda: model_flops(settings.values), "a setting is no number: see why")
        elif out.throughput is not None:
            why = f"the model's sizes are not known ({', '.join(settings.untold[:3])})"
            why += f"; {settings.contradicts}" if settings.contradicts else ""
            do = "keep MaxText's 'Config param' lines, or put the model's file where TRACKWALKER_MODELS points"
            self.lacks("model FLOPs", why, do)
        if flops is not None:
            out.flops = flops_part(flops, logged)
        step_s = out.throughput.seconds.mean if out.throughput else out.trace.step_s if out.trace else None
        known = find_peak(settings, logged, traces.devices if traces else [], self.options.gpu, self.options.peak)
        if known is None:
            if self.options.gpu is not None:
                raise EvidenceError(f"--gpu {self.options.gpu}: not in the table of peaks; give --peak TFLOPS instead")
            why = "the kind of device is not known, so there is no peak to measure against"
            self.lacks("MFU", why, "give --gpu NAME or --peak TFLOPS")
        elif step_s:
            executed = traces.executed if traces else None
            dtype = str(settings.told.get("dtype") or "bfloat16")
            out.utilisation = utilisation(flops, executed, known, step_s, logged, dtype)
            out.job.device = out.job.device or known.device
            if out.utilisation.mfu is not None and out.utilisation.mfu > 1.0:
                share = f"{100 * out.utilisation.mfu:.0f} % of the peak"
                why = f"{share} is impossible: the peak or the config is not the run's"
                self.lacks("MFU", why, "give --gpu NAME or --peak TFLOPS")
                out.utilisation.mfu = None
            elif out.utilisation.mfu is None and flops is not None:
                kinds = ", ".join(sorted({k for k in flops.dtypes.values() if known.tflops.get(k) is None}))
                why = f"no peak for {kinds} on {known.device}"
                self.lacks("MFU", why, "give --peak TFLOPS")

    def _job(self, seen: Triage | None, run: RunRecord | None, settings: Settings, traces: Traces | None) -> JobPart:
        return JobPart(
            id=self.job.id,
            name=self.job.name,
            dir=str(self.job.dir or self.job.log or ""),
            model=settings.model,
            status=seen.status if seen else None,
            nodes=seen.record.nodes if seen else len({r.node for r in run.ranks}) or None if run else None,
            ranks=seen.record.ranks if seen else len(run.ranks) or None if run else None,
            devices=traces.ranks or None if traces else None,
            last_step=seen.progress.last_step if seen else None,
        )


def find_traces(job: Job, options: Options, tensorboard_dir: str | None = None) -> Found:
    """The profiles that the user names, or else those of the job."""
    if options.traces:
        for path in options.traces:
            if not path.exists():
                raise EvidenceError(f"--trace {path}: no such file or folder")
        return Found(traces=[p for path in options.traces for p in traces_in(path)])
    return find_files(job, tensorboard_dir)


def headline(report: PerfReport) -> str:
    """The report in a few sentences: the whole run, the stretch whose rates are given, the largest loss."""
    whole: list[str] = []
    rates: list[str] = []
    stretch = None
    through, used = report.throughput, report.utilisation
    if through is not None:
        if through.step_s is not None:
            of = f"median of {through.step_s_of} steps without saves and compilations"
            whole.append(f"{through.step_s:.4g} s a step ({of})")
        if through.tgs is not None:
            rates.append(f"{figure(through.tgs.median)} tokens/s/device")
        stretch = next((x for x in through.levels if x.steady and len(through.levels) > 1), None)
    elif report.trace is not None:
        whole.append(f"{1000 * report.trace.step_s:.4g} ms a step (traced)")
    if used is not None and used.mfu is not None:
        rates.append(f"{100 * used.mfu:.1f} % MFU")
    good = [_goodput(report.goodput)] if report.goodput is not None and report.goodput.goodput is not None else []
    if stretch is None or not rates:
        said = ", ".join([*whole, *rates, *good])
    else:
        slow = " (slow)" if stretch.slow else ""
        steps = f"Steps {stretch.first_step} to {stretch.last_step}{slow}"
        said = f"Whole run: {', '.join([*whole, *good])}. {steps}: {stretch.seconds:.4g} s a step, {', '.join(rates)}"
    if not report.fixes:
        return f"{said}; nothing stands out to fix." if report.trace else f"{said}; a trace would show where it goes."
    first = report.fixes[0]
    return f"{said}. Largest loss: {first.says}."


def _goodput(part: GoodputPart) -> str:
    """Goodput, and where the rest of the time went."""
    losses = [(r.what, r.share) for r in part.rows if r.what != "train" and r.share and r.share >= _TOLD_LOSS]
    rest = ", ".join(f"{what} {100 * share:.1f} %" for what, share in losses)
    return f"goodput {100 * (part.goodput or 0.0):.1f} %" + (f" (the rest: {rest})" if rest else "")
