"""Every stored sample of a job as one table, for other tools: CSV, CSV.gz, or Parquet where pyarrow is there."""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from trackwalker.errors import UsageError
from trackwalker.telemetry.client import Floats, Labels, Telemetry
from trackwalker.telemetry.query import number

# What the collectors and Ray put on most series; other labels are in the column `labels`, as JSON.
OWN_COLUMNS = ("host", "instance", "job", "rank", "gpu", "device", "port", "type")
COLUMNS = ("metric", *OWN_COLUMNS, "labels", "time", "value")
_SUFFIXES = (".csv", ".csv.gz", ".parquet")
_SAMPLES_AT_ONCE = 250_000  # decoded, about 50 MB

Progress = Callable[[int, int, str], None]  # (done, of, metric)


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    metrics: int
    samples: int


class _Sink(Protocol):
    def write(self, labels: Labels, times: Floats, values: Floats) -> None: ...


def check_target(out: Path, database: Path, force: bool) -> None:
    """Refuse a file that cannot or must not be written, before any work is done."""
    if not out.name.endswith(_SUFFIXES):
        raise UsageError(f"{out}: the name has to end in one of {', '.join(_SUFFIXES)}")
    if out.suffix == ".parquet" and _pyarrow() is None:
        raise UsageError("Parquet needs pyarrow: pip install 'trackwalker[perf]', or export to .csv.gz")
    if not out.parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}")
    if out.is_dir():
        raise UsageError(f"{out} is a folder")
    if out.exists() and not force:
        raise UsageError(f"{out} exists: choose another name, or --force to replace it")
    if out.resolve().is_relative_to(database.resolve()):
        raise UsageError(f"{out} is inside the database, which is evidence and stays as it is")


def choose_metrics(telemetry: Telemetry, pattern: str | None) -> list[str]:
    """The metrics whose whole name matches, as in PromQL."""
    try:
        wanted = re.compile(pattern if pattern is not None else ".*")
    except re.error as e:
        raise UsageError(f"--metric {pattern}: not a regular expression ({e})") from None
    chosen = sorted(name for name in telemetry.metrics() if wanted.fullmatch(name))
    if not chosen:
        raise UsageError(f"no metric matches {pattern!r}; the pattern has to match the whole name, as in 'hw_.*'")
    return chosen


def export(
    telemetry: Telemetry,
    out: Path,
    pattern: str | None = None,
    start: float | None = None,
    end: float | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write the samples from start to end; the file appears when it is complete, or not at all."""
    first, last = telemetry.range()
    start, end = first if start is None else start, last if end is None else end
    if end < start:
        raise UsageError("the end lies before the start")
    metrics = choose_metrics(telemetry, pattern)
    samples = 0
    try:
        with _open_sink(out) as sink:
            for done, metric in enumerate(metrics):
                if progress is not None:
                    progress(done, len(metrics), metric)
                for labels, times, values in stored(telemetry, metric, start, end):
                    sink.write(labels, times, values)
                    samples += len(times)
    except OSError as e:
        raise UsageError(f"cannot write {out}: {e.strerror or e}") from e
    return Exported(out, len(metrics), samples)


def stored(telemetry: Telemetry, metric: str, start: float, end: float) -> Iterator[tuple[Labels, Floats, Floats]]:
    """A metric's series in pieces of time, so that no answer grows with the length of the job."""
    selector = f"{{__name__={json.dumps(metric, ensure_ascii=False)}}}"
    first, last = round(start * 1000), round(end * 1000)
    counted = telemetry.instant(f"sum(count_over_time({selector}[{last - first + 1}ms]))", last / 1000)
    pieces = max(1, math.ceil(sum(s.value for s in counted) / _SAMPLES_AT_ONCE))
    span = max(1, math.ceil((last - first + 1) / pieces))
    for begin in range(first, last + 1, span):
        yield from telemetry.raw(selector, begin / 1000, min(last, begin + span - 1) / 1000)


@contextmanager
def _open_sink(out: Path) -> Iterator[_Sink]:
    """A writer into a file beside `out` that takes its place at the end, or is removed."""
    handle, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent)
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(os.fdopen(handle, "wb"))
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(raw.fileno(), 0o666 & ~umask)
            if out.suffix == ".parquet":
                sink: _Sink = stack.enter_context(contextlib.closing(_Parquet(raw)))
            else:
                sink = _Csv(stack.enter_context(io.TextIOWrapper(_packed(out, raw, stack), "utf-8", newline="")))
            yield sink
        os.replace(name, out)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _packed(out: Path, raw: IO[bytes], stack: ExitStack) -> Any:
    if out.suffix != ".gz":
        return raw
    # Without a name and a time in it, the same samples give the same bytes.
    return stack.enter_context(gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=raw, mtime=0))


def _split(labels: Labels) -> list[str]:
    """Metric, own columns, and the rest as JSON (empty where there is no rest)."""
    own = [labels.get(name, "") for name in ("__name__", *OWN_COLUMNS)]
    rest = {k: v for k, v in sorted(labels.items()) if k != "__name__" and k not in OWN_COLUMNS}
    return [*own, json.dumps(rest, ensure_ascii=False) if rest else ""]


class _Csv:
    def __init__(self, out: io.TextIOWrapper) -> None:
        self._out = out
        csv.writer(out, lineterminator="\n").writerow(COLUMNS)

    def write(self, labels: Labels, times: Floats, values: Floats) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(_split(labels))
        front = text.getvalue()
        pairs = zip(times.tolist(), values.tolist(), strict=True)
        self._out.write("".join(f"{front},{time:.3f},{number(value)}\n" for time, value in pairs))


class _Parquet:
    """Row groups of many series: one for each would be all headers. The file format itself stores each text once."""

    def __init__(self, out: IO[bytes]) -> None:
        self._pa = pa = _pyarrow()
        fields = [(name, pa.string()) for name in COLUMNS[:-2]] + [(name, pa.float64()) for name in COLUMNS[-2:]]
        self._schema = pa.schema(fields)
        self._writer = importlib.import_module("pyarrow.parquet").ParquetWriter(out, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._rows = 0

    def write(self, labels: Labels, times: Floats, values: Floats) -> None:
        pa, count = self._pa, len(times)
        texts = [pa.repeat(t, count) if t else pa.nulls(count, pa.string()) for t in _split(labels)]
        self._waiting.append(pa.Table.from_arrays([*texts, pa.array(times), pa.array(values)], schema=self._schema))
        self._rows += count
        if self._rows >= _SAMPLES_AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(self._pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0


def _pyarrow() -> Any:
    """The library, None where it is not installed."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        return None
