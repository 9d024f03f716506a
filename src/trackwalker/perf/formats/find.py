"""Where a job's profiles and compiled programs lie: ours and every layout of upstream's.

Folder names are not believed (they are local time, and several jobs may share one folder): a profile says itself when
it was taken.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from trackwalker.job.layout import Job
from trackwalker.job.resolve import follow
from trackwalker.record.event_files import shared_folder

TRACES = (".xplane.pb", ".xplane.pb.gz", ".pt.trace.json", ".pt.trace.json.gz")  # JAX's, PyTorch's
CAPPED = ".trace.json.gz"  # what JAX writes beside its own: cut to the first million events
_JSON = (".json", ".json.gz")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[|^\s*\[\s*\{[^{}]*"ph"\s*:')
_HEAD = 64 << 10  # bytes in which a trace's events begin
_PROFILES = ("tensorboard", "*/tensorboard", "*/*/tensorboard", ".", "profile", "profiles")
_DUMPS = ("xla_dump", "*/xla_dump", "artifact/xla_dump", "xla_dumps")
_MOST_FILES = 4096


@dataclass
class Found:
    """Files of a job, as candidates: which of the profiles are this job's is decided by their own clock."""

    traces: list[Path] = field(default_factory=list)
    shared: bool = False  # the folder may hold other jobs' profiles
    programs: list[Path] = field(default_factory=list)


def is_trace(path: Path) -> bool:
    """Whether a file that a user names is a profile: by its name, or as JSON by what is in it."""
    return path.name.endswith(TRACES) or (path.name.endswith(_JSON) and _holds_events(path))


def find_files(job: Job, tensorboard_dir: str | None) -> Found:
    """Look in the job's directory, then where a checkpointing run shares its TensorBoard folder with others."""
    out = Found()
    if job.dir is None:
        return out
    roots = [job.dir]
    artifact = follow(job.dir / "artifact")
    if artifact is not None and artifact.is_dir():
        roots.append(artifact)
    for root in roots:
        folders = [folder for place in _PROFILES for folder in _folders(root, place)]
        _add_traces(out, folders)
        for place in _DUMPS:
            for folder in _folders(root, place):
                out.programs += _dumps(folder)
    if not out.traces:
        shared = shared_folder(job.dir.parent, tensorboard_dir)
        if shared is not None:
            _add_traces(out, [shared])
            out.shared = bool(out.traces)
    return out


def traces_in(path: Path) -> list[Path]:
    """The profiles of a folder (or the one file) that a user names."""
    if path.is_file():
        return [path]
    files = [p for p in path.rglob("*") if p.is_file()]
    named = [p for p in files if p.name.endswith(TRACES)]
    return sorted(named or [p for p in files if is_trace(p)])[:_MOST_FILES]


def _folders(root: Path, place: str) -> list[Path]:
    if place == ".":
        return [root]
    return sorted(p for p in root.glob(place) if p.is_dir())


def _add_traces(out: Found, folders: list[Path]) -> None:
    seen: set[Path] = {p.resolve() for p in out.traces}
    capped: list[Path] = []
    for folder in folders:
        for place in ("", "plugins/profile/*", "*"):
            base = sorted(folder.glob(place)) if place else [folder]
            for each in base:
                if not each.is_dir():
                    continue
                for path in sorted(each.iterdir()):
                    if not path.name.endswith((*TRACES, CAPPED)) or path.resolve() in seen:
                        continue
                    seen.add(path.resolve())
                    (out.traces if path.name.endswith(TRACES) else capped).append(path)
    out.traces = (out.traces or capped)[:_MOST_FILES]  # the cut form only where there is nothing better


def _holds_events(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD)
    except (OSError, zlib.error):
        return False
    return _EVENTS.search(head) is not None


def _dumps(folder: Path) -> list[Path]:
    """The optimised train step of a dump, the proto before the text: it has more in it."""
    files = [p for p in folder.iterdir() if "after_optimizations" in p.name and "buffer" not in p.name]
    steps = [p for p in files if "train_step" in p.name] or files
    protos = [p for p in steps if p.name.endswith((".hlo.pb", ".hlo.pb.gz"))]
    texts = [p for p in steps if p.name.endswith((".txt", ".txt.gz", ".hlo"))]
    return sorted(protos or texts)
