"""From what a person types (id, id prefix, log, directory) to one job."""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
import re
from pathlib import Path

from trackwalker.errors import JobNotFoundError, NotAJobError
from trackwalker.job.layout import LOG_SUFFIXES, NAME_FORM, Job
from trackwalker.job.shorthand import nth, position, without_part

_LONGEST_PATH = 1024

_EVIDENCE = frozenset({".log", ".out", ".err", ".txt", ".json", ".dmesg", ".events", ".pickle", ".pkl"})
_MOST_FILES = 1 << 17  # a hundred thousand ranks
_OF_A_RANK = re.compile(r"(?:attempt|rank|node|worker|task|host)?[_-]?\d{1,5}$")
_SUBMIT_LOGS = ("submit.err", "submit.log", "artifact/submit.log")


def resolve(name: str, workspace: Path) -> Job:
    """The one job that `name` means; raises one clear error when there is none or more than one."""
    if (before := position(name)) is not None:
        return nth(list_jobs(workspace), before, workspace)
    given = Path(name)
    is_log = is_directory = False
    with contextlib.suppress(OSError, RuntimeError):  # a name too long for a file, a home directory nobody has
        given = given.expanduser()
        is_log = given.is_file() or (given.name == "log" and given.is_symlink())
        is_directory = given.is_dir()
    if is_log:
        return _from_log(given)
    if is_directory:
        return _from_directory(given)
    pattern = any(c in name for c in "*?[") and given.suffix in _EVIDENCE  # of file names
    if pattern and (matched := sorted(Path(p) for p in glob.glob(str(given)))):
        return several(matched)
    if "/" in name or given.suffix in LOG_SUFFIXES:
        raise JobNotFoundError(f"no such file or directory: {name}")
    return _from_id(name, workspace)


def several(paths: list[Path]) -> Job:
    """Several files of one job: the logs among them and what else tells of it, the largest log first."""
    files = [f for p in paths for f in (_files_in(p) if p.is_dir() else [p])]
    missing = next((p for p in files if not p.is_file()), None)
    if missing is not None:
        raise JobNotFoundError(f"no such file or directory: {missing}")
    if not files:
        raise NotAJobError(f"{paths[0]} holds no log")
    if len(files) == 1:
        return _from_log(files[0])
    logs = [f for f in files if f.suffix in (*LOG_SUFFIXES, ".txt", ".err", "")] or files
    # Rank 0 speaks for the run: by its file's name, or by its folder's as torchrun makes them.
    numbered = [f for f in logs if re.search(r"(?:rank|[_-])[_-]?0+(?=[._-]|$)", f.stem) or f.parent.name == "0"]
    main = max(numbered or logs, key=lambda f: (f.stat().st_size, f.name))
    return Job(_id_of(main.stem), main.absolute(), None, tuple(f.absolute() for f in files if f != main))


def _files_in(directory: Path) -> list[Path]:
    """The files of a folder, and of the folders that launchers make in it for attempts, ranks and nodes."""
    found: list[Path] = []
    open_folders = [directory]
    for _ in range(4):  # torchrun's: run, attempt, rank
        inside = [entry for folder in open_folders for entry in sorted(folder.iterdir())[:_MOST_FILES]]
        found += [e for e in inside if e.suffix in _EVIDENCE and e.is_file() and not e.name.startswith(".")]
        open_folders = [e for e in inside if _OF_A_RANK.match(e.name) and e.is_dir()]
    return found[:_MOST_FILES] if any(f.suffix in LOG_SUFFIXES for f in found) else []


def list_jobs(workspace: Path, skipped: list[str] | None = None) -> list[Job]:
    """Every job of a workspace, newest first. Shared checkpoint directories (no log) are not jobs.

    What this user may not read is passed over, and named in `skipped`: another's job must not hide one's own.
    """
    return jobs_among(_entries(workspace), skipped)


def jobs_among(entries: list[Path], skipped: list[str] | None = None) -> list[Job]:
    """The jobs that these logs and directories of a workspace, in the order of their names, belong to."""
    found: dict[str, Job] = {}
    for entry in entries:
        match = NAME_FORM.match(entry.stem if entry.suffix in LOG_SUFFIXES else entry.name)
        if not match:
            continue
        try:
            if entry.is_dir():
                os.stat(entry / ".")  # may be listed, but not entered
                log = _log_of(entry)
                if log is not None:
                    found[match["id"]] = Job(match["id"], log, entry)
            elif entry.suffix in LOG_SUFFIXES and entry.is_file() and match["id"] not in found:
                found[match["id"]] = Job(match["id"], entry, None)
        except OSError as e:
            if skipped is not None:
                skipped.append(f"{entry.name} is skipped: {e.strerror}")
    return sorted(found.values(), key=_age_key, reverse=True)


def _entries(workspace: Path) -> list[Path]:
    try:
        return sorted(workspace.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise JobNotFoundError(f"the workspace {workspace} cannot be read: {e.strerror}") from e


def _age_key(job: Job) -> tuple[float, str]:
    try:
        return (job.log.stat().st_mtime if job.log else 0.0, job.id)
    except OSError:
        return (0.0, job.id)


def _from_log(log: Path) -> Job:
    if log.name == "log":  # the link inside a job directory
        return _from_directory(log.parent)
    if log.is_symlink():
        log = log.resolve()
    log = log.absolute()
    sibling = log.with_suffix("")
    job_id = _id_of(log.stem)
    if sibling.is_dir():
        return Job(job_id, log, sibling)
    # A throughput tag may have renamed one of the two: the id prefix still joins them.
    dirs = [d for d in log.parent.glob(f"{job_id}-*") if d.is_dir()] if job_id != log.stem else []
    return Job(job_id, log, dirs[0] if len(dirs) == 1 else None)


def _from_directory(directory: Path) -> Job:
    directory = Path(os.path.abspath(directory))  # without '..', whose name says nothing
    log = _log_of(directory)
    if log is not None:
        return Job(_id_of(directory.name), log, directory)
    if NAME_FORM.match(directory.name):
        # A job that died before its first line may have left what the submitting side said about it.
        if said := next((f for name in _SUBMIT_LOGS if (f := directory / name).is_file()), None):
            return Job(_id_of(directory.name), said, directory)
        raise NotAJobError(
            f"{directory} has no log: neither a 'log' link nor {directory.name}.log beside it; "
            "the job died before it wrote one, or its log was moved"
        )
    for workspace in (directory, directory / "outputs"):
        jobs = list_jobs(workspace)
        if len(jobs) == 1:
            return jobs[0]
        if jobs:
            raise JobNotFoundError(f"{workspace} holds {len(jobs)} jobs; name one of: {_some(jobs)}")
    if not any(directory.glob("checkpoint*")) and len(logs := _files_in(directory)) >= 1:
        return several(logs)
    raise NotAJobError(
        f"{directory} is not a job: it has no 'log' link (a shared checkpoint directory looks like this)"
    )


def _from_id(name: str, workspace: Path) -> Job:
    jobs = list_jobs(workspace)
    exact = [j for j in jobs if j.id in (name, without_part(name))]
    if exact:
        return exact[0]
    begins = [j for j in jobs if j.id.startswith(name) or j.label.startswith(name)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise JobNotFoundError(f"'{name}' could be {len(begins)} jobs; name one of: {_some(begins)}")
    logless = [d for d in workspace.glob(f"{glob.escape(name)}-*") if d.is_dir()]
    if logless:
        return _from_directory(logless[0])  # raises the error that says the log is missing
    if not workspace.is_dir():
        raise JobNotFoundError(
            f"no job '{name}': the workspace {workspace} does not exist (set --workspace or JOB_WORKSPACE)"
        )
    near = difflib.get_close_matches(name, [j.id for j in jobs], n=1)
    hint = f"did you mean {near[0]}?" if near else "'trackwalker jobs' lists what is there"
    raise JobNotFoundError(f"no job '{name}' in {workspace}; {hint}")


def _id_of(stem: str) -> str:
    match = NAME_FORM.match(stem)
    return match["id"] if match else stem


def _log_of(directory: Path) -> Path | None:
    """The log of a job directory: its `log` link, its sibling, or, when either was renamed, the log with its id."""
    link = follow(directory / "log")
    if link is not None and link.is_file():
        return link
    for suffix in LOG_SUFFIXES:
        sibling = directory.parent / (directory.name + suffix)
        if sibling.is_file():
            return sibling
    match = NAME_FORM.match(directory.name)
    if match:
        renamed = [p for s in LOG_SUFFIXES for p in directory.parent.glob(f"{match['id']}-*{s}") if p.is_file()]
        if len(renamed) == 1:
            return renamed[0]
    return None


def follow(link: Path) -> Path | None:
    """Where a link of a job directory points.

    An archive or a version control system without symlinks turns a link into a small file that holds the path; such
    a file is followed too.
    """
    try:
        if link.is_symlink():
            return link.resolve()
        if not link.is_file() or link.stat().st_size > _LONGEST_PATH:
            return link if link.exists() else None
        text = link.read_text().strip()
        pointed = link.parent / text
        if text and "\n" not in text and pointed.exists():
            return pointed.resolve()
    except RuntimeError:  # a link that leads to itself
        return None
    except (OSError, UnicodeDecodeError):
        return link
    # What can only have been a link points at a log that was renamed or removed since.
    return None if text.startswith("../") and pointed.suffix in LOG_SUFFIXES and "\n" not in text else link


def _some(jobs: list[Job]) -> str:
    names = [j.id for j in jobs[:5]]
    return ", ".join(names) + (", …" if len(jobs) > len(names) else "")
