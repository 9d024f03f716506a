"""Talking to Slurm: argument lists only, every call bounded, and silence is never taken for an ending."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trackwalker.errors import MissingToolError, TrackwalkerError, UsageError
from trackwalker.job.slurm.parse import (
    SACCT_FIELDS,
    fields,
    gone,
    job_of_sacct,
    jobs_of_scontrol,
    jobs_of_squeue,
    lost,
    prolog,
)
from trackwalker.job.slurm.states import PROLOG, JobState

_ASK_S = 15.0  # with the controller down a command gives up after 4 to 9 s by itself
_SUBMIT_S = 60.0  # a busy controller may take that long, and giving up early leaves a job that nobody knows of
_UNSTARTED_S = 5.0  # a job that ended so soon may have met a failing prolog
_MOST_AT_ONCE = 400  # a command line has an end
_JOB_ID = re.compile(r"\d+")
_FORGOTTEN = "invalid job id"
# What an outer allocation left in the environment would shape the new job; formats and filters would change answers.
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
_STRIPPED = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SACCT_", "SCONTROL_")


# Slurm's commands are installed, but nothing says where the controller is.
_NO_CLUSTER = r"configuration source|dns srv|unable to process configuration|fetch_config|slurm\.conf.*no such file"
NO_CLUSTER = (
    "no Slurm cluster is configured on this machine (no slurm.conf, and DNS names no controller); "
    "if there is one, set SLURM_CONF to the path of its slurm.conf"
)


class SlurmRefused(UsageError):
    """Slurm understood the request and said no."""


class SlurmUnreachable(TrackwalkerError):
    """Nobody answered; what was asked may still happen or have happened."""

    exit_code = 69


class SlurmDown(SlurmUnreachable):
    """The controller could not be connected to, so nothing was asked of it."""


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm has taken."""

    id: str
    cluster: str = ""  # of a federation


@dataclass(frozen=True)
class NodeState:
    """A node as the controller sees it."""

    name: str
    state: str
    reason: str = ""


def submit_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment that sbatch is called with, and that the job inherits: an outer allocation's traces are gone."""
    return {k: v for k, v in env.items() if not k.startswith(_STRIPPED) or k in _KEPT}


class Slurm:
    """The cluster that the environment names (SLURM_CONF, or the machine's own)."""

    def __init__(self, env: Mapping[str, str] | None = None, ask_s: float = _ASK_S) -> None:
        self._env = submit_environment(os.environ if env is None else env)
        self._ask_s = ask_s

    def submit(
        self, script: Path, options: Sequence[str] = (), words: Sequence[str] = (), own: bool = False
    ) -> Submitted:
        """Queue a batch script; raises one clear error when Slurm refuses it. A user's own inherits the whole shell."""
        argv = ["sbatch", "--parsable", *options, str(script), *words]
        done = self._asked("sbatch", argv, _SUBMIT_S, self._env if own else inherited(self._env))
        # Plugins may print first; a federation answers 'id;cluster'.
        last = done.stdout.strip().splitlines()[-1:] or [""]
        number, _, cluster = last[0].partition(";")
        if not _JOB_ID.fullmatch(number):
            raise SlurmUnreachable(f"sbatch answered '{last[0]}', not a job id; squeue --me shows whether it is queued")
        return Submitted(number, cluster)

    def test_only(self, script: Path, options: Sequence[str] = ()) -> str:
        """Ask whether a submission would be accepted, and when it would start; nothing is queued."""
        argv = ["sbatch", "--test-only", *options, str(script)]
        return _words(self._asked("sbatch --test-only", argv, _SUBMIT_S).stderr)

    def state(self, job: str) -> JobState:
        """How a job is doing; `unknown` when nobody answers, `forgotten` when Slurm no longer has it."""
        _check(job)
        try:
            done = self._call(["scontrol", "show", "job", "-o", job], self._ask_s)
        except (SlurmUnreachable, MissingToolError) as e:
            return JobState(job, "unknown", reason=str(e))
        if done.returncode == 0:
            # The first task of an array, and the first part of a heterogeneous job, come with all the others.
            found = [seen for seen in jobs_of_scontrol(done.stdout) if seen.id == job]
            if found:
                return self._with_nodes(self.cancelled_by(found[:1])[0])
        elif _FORGOTTEN not in done.stderr.lower():
            said = _words(done.stderr)
            return JobState(job, "unknown", reason=NO_CLUSTER if re.search(_NO_CLUSTER, said, re.I) else said)
        return self._remembered(job) or JobState(job, "forgotten")

    def queue(self) -> list[JobState]:
        """Every job the controller remembers, ended ones too."""
        done = self._call(["squeue", "--json"], self._ask_s)
        if done.returncode == 0:
            with contextlib.suppress(ValueError):
                return jobs_of_squeue(done.stdout)
        # A Slurm built without JSON, and one that does not answer, are asked in the plain way.
        return jobs_of_scontrol(self._asked("squeue", ["scontrol", "show", "job", "-o"]).stdout)

    def nodes(self) -> list[NodeState]:
        """Every node with its state and why it is not in service."""
        done = self._asked("scontrol show node", ["scontrol", "show", "node", "-o"])
        said = [fields(line) for line in done.stdout.splitlines() if line.startswith("NodeName=")]
        return [NodeState(n["NodeName"], n.get("State", "").lower(), n.get("Reason", "")) for n in said]

    def gres(self) -> list[tuple[str, str, str]]:
        """Node, partition (the default one with a star) and generic resources, for each node of each partition."""
        done = self._asked("sinfo", ["sinfo", "-h", "-N", "-o", "%N|%P|%G"])
        rows = [tuple(line.split("|", 2)) for line in done.stdout.splitlines() if line.count("|") >= 2]
        return [(node, partition, gres) for node, partition, gres in rows]

    def hostnames(self, nodes: str) -> list[str]:
        """The nodes of a list as n[1-4], by Slurm's own reading."""
        return self._asked("scontrol show hostnames", ["scontrol", "show", "hostnames", nodes]).stdout.split()

    def reservations(self) -> str:
        """The reservations as Slurm prints them, one a line."""
        return self._asked("scontrol show reservation", ["scontrol", "show", "reservation", "-o"]).stdout

    def cancel(self, job: str, name: str, owner: int) -> JobState:
        """End one of our jobs: it must carry our name and belong to us or to `owner`, who owns its job directory.

        Where everybody is root, the user id says nothing: the name of the job directory is what makes a job ours. A
        number may also be given out again after Slurm lost its state.
        """
        state = self.state(job)
        if state.state == "unknown":
            raise SlurmUnreachable(f"job {job} was not cancelled: {state.reason}; try again")
        if state.ended:
            return state
        if state.name != name:
            raise UsageError(f"Slurm's job {job} is '{state.name}', not '{name}' of this workspace: not cancelled")
        if state.uid is not None and state.uid not in (os.getuid(), owner):
            raise UsageError(f"job {job} belongs to user id {state.uid}, not to you: not cancelled")
        self._asked("scancel", ["scancel", job])
        return state

    def requeue(self, job: str, name: str, exclude: Sequence[str] = (), only: str = "") -> bool:
        """Queue a job of ours once more after its end, without some nodes or on given ones; False: Slurm forgot it."""
        _check(job)
        shown = self._call(["scontrol", "show", "job", "-o", job], self._ask_s)
        known = fields(shown.stdout.splitlines()[0]) if shown.returncode == 0 and shown.stdout.strip() else {}
        if known.get("JobName") != name or known.get("Requeue") != "1":
            return False  # forgotten, another's by now, or never meant to run twice
        if not self.state(job).ended:
            raise SlurmRefused(f"job {job} is not over: somebody else has started its next attempt")
        # Held first: it must not start before it is known where.
        self._asked(f"scontrol requeuehold {job}", ["scontrol", "requeuehold", job])
        before = known.get("ExcNodeList", "(null)").replace("(null)", "")
        left_out = ",".join(dict.fromkeys(host for host in [before, *exclude] if host))
        places = [f"ExcNodeList={left_out}"] if left_out else []
        places += [f"ReqNodeList={only}"] if only else []
        steps = [["scontrol", "update", f"JobId={job}", *places]] if places else []
        for argv in [*steps, ["scontrol", "release", job]]:
            self._asked(f"job {job} is held until 'scontrol release {job}': {argv[1]}", argv)
        return True

    def _remembered(self, job: str) -> JobState | None:
        """A job that left the controller's memory, with the nodes that it lost."""
        found = self.remembered([job]).get(job)
        return self._with_nodes(found) if found is not None else None

    def remembered(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Jobs that left the controller's memory, asked for at once; who is not in the answer is not known.

        By the accounting database, else by the completion log.
        """
        out: dict[str, JobState] = {}
        for source in ([], ["-c"]):
            found = self._accounting([job for job in jobs if job not in out], *source)
            out |= {job: state for job, state in found.items() if state.ended}
        return out

    def cancelled_by(self, seen: Sequence[JobState]) -> list[JobState]:
        """The same jobs; of cancelled ones also who did it, where there is an accounting: the controller keeps no name.

        One question for all. A row that has not reached the accounting yet leaves it open who it was.
        """
        known = self._accounting([s.id for s in seen if s.state == "cancelled" and s.by is None], "-X")
        return [replace(s, by=known[s.id].by) if s.id in known and known[s.id].by is not None else s for s in seen]

    def _accounting(self, jobs: Sequence[str], *options: str) -> dict[str, JobState]:
        """What sacct says of these jobs; nothing where it cannot be asked."""
        asked = [job for job in jobs if _JOB_ID.fullmatch(job)][:_MOST_AT_ONCE]
        if not asked:
            return {}
        try:
            done = self._call(["sacct", *options, "-P", "-n", "-j", ",".join(asked), "-o", SACCT_FIELDS], self._ask_s)
        except (SlurmUnreachable, MissingToolError):
            return {}
        found = {job: job_of_sacct(done.stdout, job) for job in asked} if done.returncode == 0 else {}
        return {job: state for job, state in found.items() if state is not None}

    def closer(self, seen: JobState) -> JobState:
        """What the list of all jobs leaves out: which nodes were lost, why a requeued job is held."""
        held = seen.state == "pending" and seen.stuck and seen.restarts > 0
        return self.state(seen.id) if held else self._with_nodes(seen)

    def _with_nodes(self, seen: JobState) -> JobState:
        """Which nodes were lost, or failed before the job could start: Slurm tells by the nodes themselves."""
        unstarted = seen.state == "cancelled" and (seen.end or 0.0) - (seen.start or 0.0) <= _UNSTARTED_S
        if not seen.nodes or not (seen.state == "node-fail" or unstarted):
            return seen
        with contextlib.suppress(SlurmUnreachable, MissingToolError):
            done = self._call(["scontrol", "show", "node", "-o", seen.nodes], self._ask_s)
            found = gone(done.stdout, seen.start, seen.end) if done.returncode == 0 else []
            if seen.state == "node-fail":
                return replace(seen, where=",".join(lost(found)))
            if failed := prolog(found):
                return replace(seen, state="failed", reason=PROLOG, where=",".join(failed), exit_code=1)
        return seen

    def _asked(
        self, what: str, argv: list[str], seconds: float | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Call, and raise where Slurm says no; `what` is how the error names it."""
        done = self._call(argv, seconds or self._ask_s, env)
        if done.returncode != 0:
            self._refuse(what, done.stderr)
        return done

    def _call(
        self, argv: list[str], seconds: float, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                argv,
                env=self._env if env is None else env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError:
            raise MissingToolError(f"'{argv[0]}' is not here: run this on a machine of the Slurm cluster") from None
        except OSError as e:  # an argument list longer than the kernel takes
            raise UsageError(f"cannot call {argv[0]}: {e.strerror}") from e
        except subprocess.TimeoutExpired:
            raise SlurmUnreachable(f"{argv[0]} did not answer within {seconds:g} s") from None

    def _refuse(self, what: str, stderr: str) -> None:
        said = _words(stderr)
        if re.search(r"connect(ion)? (failure|refused)", said, re.IGNORECASE):
            raise SlurmDown(f"{what}: {said}; the Slurm controller does not answer, try again")
        if re.search(r"unable to contact|timed out|zero bytes", said, re.IGNORECASE):
            raise SlurmUnreachable(f"{what}: {said}; the Slurm controller does not answer, try again")
        if re.search(_NO_CLUSTER, said, re.IGNORECASE):
            raise SlurmDown(f"{what}: {NO_CLUSTER}")
        raise SlurmRefused(f"{what}: {said or 'refused without a word'}")


def slurm_here(env: Mapping[str, str] | None = None) -> bool:
    """Whether this machine belongs to a Slurm: only then is it asked about jobs that others queued."""
    known = (os.environ if env is None else env).get("SLURM_CONF")
    places = [known] if known else ["/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf"]
    return any(Path(place).is_file() for place in places)


def _check(job: str) -> None:
    if not _JOB_ID.fullmatch(job):
        raise UsageError(f"'{job}' is not a Slurm job id")


def _words(text: str) -> str:
    """What a Slurm command complained about, without its prefixes, in one line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line).strip() for line in text.splitlines()]
    return "; ".join(line for line in lines if line)


_NAMES = frozenset(
    (
        "PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR",
        "TMP", "TEMP", "VIRTUAL_ENV", "LOADEDMODULES", "_LMFILES_", "MODULEPATH", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "REGISTRY_AUTH_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "FTP_PROXY",
    )
)  # fmt: skip
_FORMS = re.compile(
    r"LC_\w+|PYTHON\w*|CONDA_\w+|MAMBA_\w+|MODULE\w*|LMOD_\w+|BASH_FUNC_\S+|XDG_\w+|SSL_CERT_\w+|KRB5\w*|SLURM\w*|TRACKWALKER\w*"
    r"|DOCKER_\w+|PODMAN_\w+|APPTAINER_\w+|SINGULARITY_\w+|ENROOT_\w+|(CUDA|ROCM|HIP)_(HOME|PATH)|\w+_CACHE(_\w+)?"
)
# What people set in a shell in the belief that the trainer sees it; they are told that it does not.
_STEERS = re.compile(
    r"(XLA|JAX|NCCL|RCCL|TORCH|PYTORCH|GLOO|UCX|FI|IB|HSA|HIP|CUDA|ROCR|OMP|MKL|WANDB|HF|HUGGING_FACE|MAXTEXT|LIBTPU|TPU)_\w+"
)


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """What of the shell goes with the job."""
    return {name: value for name, value in env.items() if _passes(name)}


def left_behind(env: Mapping[str, str]) -> list[str]:
    """Names that would have steered the run and do not reach it; their values are nobody's business."""
    return sorted(name for name in env if _STEERS.fullmatch(name) and not _passes(name))


def _passes(name: str) -> bool:
    return name in _NAMES or name.upper() in _NAMES or _FORMS.fullmatch(name) is not None
