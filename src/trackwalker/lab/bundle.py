"""Records that travel: a job as one file without secrets, and from such a file a regression case."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from pydantic import ValidationError

from trackwalker.diagnose.engine import diagnose
from trackwalker.errors import TrackwalkerError, UsageError
from trackwalker.job.layout import Job
from trackwalker.job.resolve import resolve
from trackwalker.job.scrub import Scrubber, as_document
from trackwalker.lab.scenario import Truth
from trackwalker.lab.scoring.cases import CASE_FILE
from trackwalker.report.text import one_line
from trackwalker.telemetry.blocks import BlockWriter
from trackwalker.telemetry.export import choose_metrics, stored
from trackwalker.telemetry.store import open_database

SCHEMA = "trackwalker.bundle/1"
# What a diagnosis reads. Everything else (the code snapshot, core files, checkpoints) stays at home.
_TEXTS = ("run.json", "events.jsonl", "progress.jsonl", "ranks/*.log", "ray_logs/**/*", "stacks/**/*")
# Read for the names of secrets, never packed: what the nodes were told holds values that a log may repeat nameless.
_TELLING = ("provenance.json", "config.yml", "agent/spec.json")
_TOLD = ("order.json", "config.yml")  # in the run's folder of .submissions
_LARGEST_TEXT = 512 << 20
# A job is thousands of files at most (a stack for each rank); logs pack 5:1 to 60:1, and deflate ends at 1032:1.
_MOST_MEMBERS = 100_000
_RATIO, _ALWAYS = 200, 64 << 20
_LONGEST_NAME = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Packed:
    """What went into a bundle."""

    path: Path
    files: int
    samples: int
    hidden: int


def pack(job: Job, out: Path, truth: Path | None = None, metric: str | None = None) -> Packed:
    """Write a bundle of a job; the job is not changed, the file appears when it is complete."""
    if not out.name.endswith(".tar.gz"):
        raise UsageError(f"{out}: the name has to end in .tar.gz")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}")
    if out.exists():
        raise UsageError(f"{out} exists: choose another name")
    known = read_truth(truth) if truth is not None else None
    with tempfile.TemporaryDirectory(prefix="trackwalker-pack-") as held:
        stage = Path(held)
        scrubber = Scrubber()
        name = job.dir.name if job.dir else job.log.stem if job.log else job.id
        folder = stage / "outputs" / name
        folder.mkdir(parents=True)
        _pack_texts(job, folder, scrubber)
        samples = _pack_metrics(job, folder, scrubber, metric)
        verdict = diagnose(resolve(str(folder), folder.parent)).verdict  # of what is in the bundle
        (stage / "verdict.json").write_text(verdict.to_json() + "\n")
        if known is not None:
            (stage / "truth.json").write_text(known.model_dump_json(indent=1) + "\n")
        about = {"schema": SCHEMA, "job": name, "samples": samples, "secrets_hidden": scrubber.hidden}
        (stage / "bundle.json").write_text(json.dumps(about, indent=1) + "\n")
        files = _archive(stage, out)
    return Packed(out, files, samples, scrubber.hidden)


def add(bundle: Path, to: Path, family: str | None = None, about: str = "") -> Path:
    """Unpack a bundle with its truth as a case of its own; returns the case's folder."""
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".adding-", dir=to) as held:
        stage = Path(held)
        _unpack(bundle, stage)
        held_by = as_document(_text(stage / "bundle.json"))
        if not isinstance(held_by, dict) or held_by.get("schema") != SCHEMA:
            raise UsageError(f"{bundle} is not a bundle of 'lab pack' ({SCHEMA})")
        if not (stage / "truth.json").is_file():
            raise UsageError(f"{bundle} does not hold the truth: pack it again with --truth truth.json")
        name = family or str(held_by.get("job"))
        if not _NAME.fullmatch(name):
            raise UsageError(f"'{name}' cannot name a case: letters, digits, '.', '_' and '-' only")
        case = to / name
        if case.exists():
            raise UsageError(f"{case} exists: choose another --family")
        truth = read_truth(stage / "truth.json").model_dump(exclude_defaults=True)
        held_case = {"family": name, "split": "tune", "about": about, "truth": truth}
        (stage / CASE_FILE).write_text(yaml.safe_dump(held_case, sort_keys=False))
        for extra in ("truth.json", "bundle.json"):
            (stage / extra).unlink()
        case.mkdir()
        for path in stage.iterdir():
            path.rename(case / path.name)
    return case


def _pack_texts(job: Job, folder: Path, scrubber: Scrubber) -> None:
    texts: list[tuple[Path, Path]] = []
    if job.log is not None:
        texts.append((job.log, folder.with_name(folder.name + ".log")))
    if job.dir is not None:
        found = sorted({p for pattern in _TEXTS for p in job.dir.glob(pattern)})
        home = job.dir.resolve()  # a link, or a folder that is one, may lead anywhere
        inside = [p for p in found if p.is_file() and p.resolve() == home / p.relative_to(job.dir)]
        texts += [(p, folder / p.relative_to(job.dir)) for p in inside]
    for source in [*(source for source, _ in texts), *_telling(job)]:
        text = _read(source)
        document = as_document(text) if source.suffix == ".json" else None
        scrubber.learn(text) if document is None else scrubber.learn_document(document)
    for source, target in texts:
        text = _read(source)
        document = as_document(text) if source.suffix == ".json" else None
        cleaned = scrubber.clean(text) if document is None else json.dumps(scrubber.clean_document(document), indent=1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(cleaned.encode("utf-8", "surrogateescape"))


def _telling(job: Job) -> list[Path]:
    if job.dir is None:
        return []
    record = as_document(_text(job.dir / "run.json"))
    folder = record.get("submission") if isinstance(record, dict) else None
    told = [Path(folder) / name for name in _TOLD] if isinstance(folder, str) and folder else []
    return [path for path in [*(job.dir / name for name in _TELLING), *told] if path.is_file()]


def _read(path: Path) -> str:
    """A text whole: a private key goes over many lines."""
    if path.stat().st_size > _LARGEST_TEXT:
        raise UsageError(f"{path} is larger than {_LARGEST_TEXT >> 20} MiB: pack a copy of the job without it")
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _pack_metrics(job: Job, folder: Path, scrubber: Scrubber, pattern: str | None) -> int:
    """Samples written anew: what a label says is cleaned, and nothing of the old files comes along."""
    if job.database is None:
        return 0
    try:
        with open_database(job.database, ours=False) as telemetry:
            writer = BlockWriter(folder / "prometheus", seed=0)
            start, end = telemetry.range()
            for metric in choose_metrics(telemetry, pattern):
                for labels, times, values in stored(telemetry, metric, start, end):
                    held = tuple(sorted((k, v if k == "__name__" else scrubber.clean(v)) for k, v in labels.items()))
                    writer.add([held], np.round(times * 1000).astype(np.int64), values[None, :])
            return writer.close()
    except TrackwalkerError as e:
        if isinstance(e, UsageError):
            raise
        shutil.rmtree(folder / "prometheus", ignore_errors=True)
        return 0


def _archive(stage: Path, out: Path) -> int:
    paths = sorted(p for p in stage.rglob("*") if p.is_file() and not p.is_symlink())
    partial = out.with_name(f".{out.name}.tmp")
    try:
        # Without names and times of this machine in it, the same job gives the same bytes.
        with (
            partial.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for path in paths:
                info = tarfile.TarInfo(str(path.relative_to(stage)))
                info.size, info.mode = path.stat().st_size, 0o644
                with path.open("rb") as file:
                    tar.addfile(info, file)
        partial.replace(out)
    except OSError as e:
        raise UsageError(f"cannot write {out}: {e.strerror or e}") from e
    finally:
        partial.unlink(missing_ok=True)
    return len(paths)


def _unpack(bundle: Path, to: Path) -> None:
    """Write the members ourselves: plain files below `to` only, and not more than a bundle can hold."""
    left, count = max(_ALWAYS, _RATIO * _size(bundle)), 0
    try:
        with tarfile.open(bundle, "r|gz") as tar:  # as a stream: nothing is read twice, nothing is looked up
            for member in tar:
                count += 1
                if count > _MOST_MEMBERS:
                    raise UsageError(f"{bundle} holds more than {_MOST_MEMBERS} files: this is no bundle of one job")
                if member.isdir() or (member.issym() and member.name.endswith("/log")):
                    continue  # the log's link, as older bundles have it: the log beside the folder is found without it
                source = tar.extractfile(member) if member.isreg() else None
                if source is None:
                    raise UsageError(
                        f"{bundle} holds {one_line(member.name)[:80]}, which is no plain file: not unpacked"
                    )
                left -= member.size
                if left < 0:
                    raise UsageError(f"{bundle} unpacks to more than {_RATIO} times its size: not unpacked")
                target = _place(member.name, to, bundle)
                with source, target.open("xb") as file:
                    shutil.copyfileobj(source, file)
    except (OSError, tarfile.TarError, EOFError, zlib.error, ValueError) as e:
        raise UsageError(f"cannot unpack {bundle}: {one_line(str(e))[:200]}") from e


def _place(name: str, to: Path, bundle: Path) -> Path:
    """Where a member goes: inside, by a name that says so itself."""
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts) or len(name) > _LONGEST_NAME:
        raise UsageError(f"{bundle} names a file outside of itself ({one_line(name)[:80]}): not unpacked")
    target = to.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _size(bundle: Path) -> int:
    try:
        return bundle.stat().st_size
    except OSError as e:
        raise UsageError(f"cannot read {bundle}: {e.strerror}") from e


def read_truth(path: Path) -> Truth:
    """A truth from its file."""
    try:
        return Truth.model_validate_json(path.read_text())
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from e
    except (ValidationError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} is no truth: {' '.join(str(e).split())[:200]}") from e


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
