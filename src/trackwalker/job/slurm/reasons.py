"""Why a job waits: which of Slurm's reasons pass by themselves, and what to change for the others."""

from __future__ import annotations

import re

# Reasons that no waiting mends: only the request, the partition or the account can change.
_NEVER: tuple[tuple[str, str], ...] = (
    (r"DependencyNeverSatisfied", "the job it waits for did not end as asked: submit without --dependency"),
    (r"PartitionNodeLimit", "it asks for more or fewer nodes than the partition allows: change -N or -p"),
    (r"PartitionTimeLimit", "it asks for more time than the partition allows: change --time or -p"),
    (r"PartitionConfig", "no node of the partition has what it asks for: change -N, --gpus-per-node, --mem or -p"),
    (r"BadConstraints", "no node satisfies its constraints: change --constraint, --gpus-per-node, --mem or -N"),
    (r"(QOS|Assoc|Association)\w*Max(Node|Cpu|CPU|GRES|Mem|Billing|BB|Energy|Lic\w*|Wall\w*)\w*PerJob\w*",
     "one job may not ask for that much: ask for less, or for another --qos or --account"),
    (r"(QOS|Assoc|Association)\w*MaxWall\w*", "its time limit is above what the QOS or account allows: change --time"),
    (r"QOS(Min\w+|NotAllowed)", "the QOS does not allow this request: change --qos"),
    (r"InvalidAccount|AccountNotAllowed", "the account may not be used here: change --account"),
    (r"InvalidQOS|QOSNotAllowed", "the QOS may not be used here: change --qos"),
    (r"ReservationDeleted", "its reservation is gone: submit without it, or with another --reservation"),
    (r"JobHoldMaxRequeue", "it was requeued too often: see why it fails, then 'scontrol release'"),
    (r"DeadLine", "its deadline cannot be met: change --deadline or --time"),
)  # fmt: skip
_HELP = (
    (r"JobHeldUser", "'scontrol release' lets it go"),
    (r"JobHeldAdmin", "an administrator holds it: only they can release it"),
    (r"launch.failed.requeued.held", "a node could not start it: see its prolog, then 'scontrol release'"),
    (r"PartitionDown|PartitionInactive", "its partition is closed by an administrator: wait, or change -p"),
    (r"ReqNodeNotAvail|Nodes required for job are DOWN", "a node it asked for by name is down or reserved"),
)  # fmt: skip


def never_clears(reason: str) -> bool:
    """Whether waiting is in vain."""
    return any(re.fullmatch(form, reason) for form, _ in _NEVER)


def advice(reason: str) -> str:
    """What to do about it in one phrase; empty for what passes by itself."""
    for form, text in (*_NEVER, *_HELP):
        if re.match(form, reason):
            return text
    return ""
