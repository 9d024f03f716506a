"""Names that Kubernetes accepts: objects, label values, node counts in every spelling."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime

from trackwalker.errors import UsageError

LONGEST = 63  # of a DNS label and of a label value
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def new_job_id(now: float) -> str:
    """`k8s-<date>-<time>-<4 hex>`, the form that every reader of job directories knows."""
    return f"k8s-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def object_name(model: str, job_id: str, room: int) -> str:
    """`jax-<model>-<id>` as a DNS label that leaves `room` characters for what Kubernetes appends to it.

    A pod's host name is the job's name and its index: a name that is legal by itself can still give pods that are not.
    """
    tail = "-" + _dns(job_id.removeprefix("k8s-"))
    head = _dns(f"jax-{model}")
    most = LONGEST - room - len(tail)
    if most < 1:
        raise UsageError(f"no room for the job id {job_id} in a Kubernetes name of {LONGEST} characters")
    return head[:most].rstrip("-") + tail


def label_value(text: str) -> str:
    """`text` as a label value: itself where it can be, otherwise its legal part and a hash, so that two stay two."""
    if not text or (len(text) <= LONGEST and _LABEL_VALUE.fullmatch(text)):
        return text
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[: LONGEST - 9].rstrip("-._")
    mark = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{kept}-{mark}" if kept else mark


def check_dns_label(text: str, what: str) -> str:
    """`text`, when it is a legal object name; one clear error when it is not."""
    if len(text) > LONGEST or not _LABEL.fullmatch(text):
        raise UsageError(
            f"{what} '{text}': Kubernetes takes {LONGEST} lower-case letters, digits and '-', a letter first"
        )
    return text


def _dns(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
