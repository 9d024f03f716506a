"""What an agent may do where a policy lets it: submit, cancel its own job, leave nodes out, ask for stacks.

Each action runs in two steps. The first call checks everything and answers with an approval that waits for a person.
The second, with that approval and the same arguments, does it. No command text is ever run:
programs get argument lists.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from trackwalker.agent.answers import ActionAnswer, short
from trackwalker.agent.policy import EXPIRES_S, Action, Approvals, Policy
from trackwalker.agent.workspace import Workspace
from trackwalker.errors import RefusedError, UsageError
from trackwalker.job.redact import is_secret
from trackwalker.job.whole import write_whole
from trackwalker.launch import ledger
from trackwalker.launch.job_state import cancel, standing
from trackwalker.launch.request.words import parse_model_spec, parse_passthrough
from trackwalker.node.evidence.capsule import REQUESTS
from trackwalker.node.stages.incidents import Incident

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,79}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,254}")
_SUBMIT_S = 180.0
_MOST_HOSTS = 64

Approval = Annotated[str, Field(description="The approval that a person confirmed; leave it away to ask.")]


@dataclass(frozen=True)
class Office:
    """Where actions are decided: the workspace, the policy, the approvals, and who asks."""

    ws: Workspace
    policy: Policy
    approvals: Approvals
    who: str = "mcp"

    def decide(
        self, action: Action, args: Mapping[str, Any], approval: str, do: Callable[[str], dict[str, Any]]
    ) -> ActionAnswer:
        """Ask for the approval, or use it up and do what was approved; `do` hears who said yes."""
        bound = {"workspace": str(self.ws.root), **args}
        if not approval:
            nonce = self.approvals.ask(action, bound, self.who, self.policy.approvers)
            how = f"nothing was done yet: a person reads and confirms it with 'trackwalker mcp approve {nonce}'"
            says = f"{how}; then call again with the same arguments and approval={nonce}"
            return ActionAnswer(
                action=action, state="needs-approval", says=says, approval=nonce, expires_s=int(EXPIRES_S)
            )
        given = self.approvals.take(approval, action, bound)
        if not self.policy.may_approve(given.confirmed_by):
            raise RefusedError(f"{given.confirmed_by} is not an approver of this policy: nothing was done")
        result = do(given.confirmed_by)
        return ActionAnswer(action=action, state="done", says=f"approved by {given.confirmed_by}", result=result)

    def check(self, action: Action) -> None:
        """Refuse what the policy does not let this caller ask for."""
        if not self.policy.allowed(action, self.who):
            raise RefusedError(f"the policy does not let {self.who} ask for '{action}': nothing was done")


def submit_job(
    office: Office,
    model: Annotated[str, Field(description="Model as model[[:alias]:tag]; no file.")],
    nodes: Annotated[int, Field(ge=1, description="How many nodes.")],
    settings: Annotated[list[str] | None, Field(description="Trainer settings as key=value, _env_NAME=VALUE.")] = None,
    on: Annotated[Literal["slurm", "k8s"], Field(description="The scheduler.")] = "slurm",
    time_limit: Annotated[str, Field(description="As 30, 2:00:00 or 1-0.")] = "",
    partition: Annotated[str, Field(description="Slurm partition.")] = "",
    exclude: Annotated[list[str] | None, Field(description="Hosts to leave out, with those of exclude_nodes.")] = None,
    image: Annotated[str, Field(description="Container image.")] = "",
    observe: Annotated[bool, Field(description="Record metrics.")] = True,
    approval: Approval = "",
) -> ActionAnswer:
    """Queue a training run. Needs an approval by a person; secrets cannot be passed."""
    office.check("submit")
    if nodes > office.policy.most_nodes:
        raise RefusedError(f"{nodes} nodes: the policy allows {office.policy.most_nodes} for one job")
    words = list(settings or [])
    _check_request(model, words, {"time_limit": time_limit, "partition": partition}, image)
    left_out = sorted({*_hosts(exclude or []), *(s.host for s in ledger.to_exclude(office.ws.root))})
    options = ["--workspace", str(office.ws.root), "--on", on, "--json"]
    options += ["--observe"] * observe + (["--image", image] if image else [])
    options += [f"--nodes={nodes}"]
    if on == "slurm":
        options += [f"--time={time_limit}"] if time_limit else []
        options += [f"--partition={partition}"] if partition else []
        options += [f"--exclude={','.join(left_out)}"] if left_out else []
    elif time_limit or partition or exclude:
        raise UsageError("time_limit, partition and exclude are for Slurm")
    argv = [sys.executable, "-m", "trackwalker", "submit", model, *options, "--", *words]
    return office.decide("submit", {"argv": argv[3:]}, approval, lambda _: _submit(argv))


def cancel_job(
    office: Office,
    job: Annotated[str, Field(description="The whole id of a job of your own.")],
    approval: Approval = "",
) -> ActionAnswer:
    """End a running job of your own. Needs an approval by a person; other users' jobs are refused."""
    office.check("cancel")
    found = office.ws.own_job(job)

    def do(_: str) -> dict[str, Any]:
        before = cancel(found)
        return {"job": found.id, "told": not before.ended, "before": before.state}

    return office.decide("cancel", {"job": found.id}, approval, do)


def exclude_nodes(
    office: Office,
    hosts: Annotated[list[str], Field(min_length=1, max_length=_MOST_HOSTS, description="Hosts to leave out.")],
    why: Annotated[str, Field(max_length=200, description="The reason, with its evidence.")],
    job: Annotated[str, Field(description="The job that showed it.")] = "",
    approval: Approval = "",
) -> ActionAnswer:
    """Note hosts in the workspace's node ledger, so that submits leave them out for 7 days. Needs an approval."""
    office.check("exclude-nodes")
    names = sorted(set(_hosts(hosts)))
    shown = office.ws.job(job).id if job else "-"
    reason = short(why, 200)

    def do(who: str) -> dict[str, Any]:
        now = time.time()
        what = f"approved by {who} at {time.strftime('%Y-%m-%dT%H:%MZ', time.gmtime(now))}"
        ledger.note(office.ws.root, [Incident(now, host, shown, 0, ledger.EXCLUDED, what, reason) for host in names])
        return {"hosts": names, "days": int(ledger.WINDOW_S // 86400)}

    return office.decide("exclude-nodes", {"hosts": names, "why": reason, "job": shown}, approval, do)


def stack_dump(
    office: Office,
    job: Annotated[str, Field(description="The whole id of a running job of your own.")],
    pause: Annotated[
        bool, Field(description="Hold each rank for a moment, for whole stacks; only if it hangs.")
    ] = False,
    approval: Approval = "",
) -> ActionAnswer:
    """Ask the nodes of a running job for the stacks of its ranks; `stacks` reads them. Needs an approval."""
    office.check("stack-dump")
    found = office.ws.own_job(job)
    seen = standing(found)
    if seen.ended or found.dir is None:
        raise RefusedError(f"job {found.id} {seen.meaning}: only a running job has stacks to take")
    folder = found.dir / REQUESTS

    def do(who: str) -> dict[str, Any]:
        now = time.time()
        incident = f"asked-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{incident}.json", json.dumps({"v": 1, "t": now, "pause": pause, "by": who}))
        return {"job": found.id, "incident": incident, "read_with": "stacks, after half a minute"}

    return office.decide("stack-dump", {"job": found.id, "pause": pause}, approval, do)


def _check_request(model: str, words: list[str], plain: Mapping[str, str], image: str) -> None:
    """Everything that can be refused before a person is bothered."""
    spec = parse_model_spec(model)
    if "/" in model or spec.model.endswith((".yml", ".yaml")):
        raise RefusedError("a model is named, not given as a file: see 'trackwalker config list'")
    asked = parse_passthrough(words)
    hidden = [name for name in (*asked.config, *asked.env) if is_secret(name)]
    if hidden:
        raise RefusedError(f"{short(hidden[0], 60)} is a secret: set it where the job runs, not through an agent")
    for name, value in plain.items():
        if value and not _WORD.fullmatch(value):
            raise UsageError(f"{name} '{short(value, 60)}' is not one plain word")
    if image and not _IMAGE.fullmatch(image):
        raise UsageError(f"image '{short(image, 60)}' is not the name of an image")


def _hosts(hosts: list[str]) -> list[str]:
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(f"'{short(host, 60)}' is not a host name")
    return hosts


def _submit(argv: list[str]) -> dict[str, Any]:
    """Run our own `submit`, as a person would; its words are a list, no shell reads them."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_SUBMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UsageError(f"submit did not end within {_SUBMIT_S:g} s: it may be queued, ask list_jobs") from None
    said = done.stderr.strip().splitlines()
    if not done.stdout.strip():
        raise UsageError(f"not queued: {short(said[-1] if said else f'exit code {done.returncode}', 400)}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result | ({"warnings": [short(line, 200) for line in said[:5]]} if said else {})
