"""An excerpt in which nothing failed: what it shows of why a run is slow, stopped or was ended, as hits.

Only a short text is read so: it is what a person cut out to show it. A long log is told by its lines, steps and ends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from trackwalker.logs.excerpts.curves import diverged
from trackwalker.logs.excerpts.machines import (
    Shown,
    busy_hosts,
    full_disks,
    long_saves,
    one_far_behind,
    slow_gpus,
    unused_rdma,
)
from trackwalker.logs.excerpts.programs import (
    ASIDE,
    BY_HAND,
    LOADS,
    NO_MORE,
    ODD,
    WAITS_FOR,
    asked_about,
    ended_well,
    odd_numbers,
    slow_programs,
    slow_words,
    slower_steps,
)
from trackwalker.logs.excerpts.said import (
    filled_before_the_kill,
    last_resort,
    looked_into,
    no_step_since,
    remarks,
    spinning,
    stood_together,
)
from trackwalker.logs.excerpts.schedulers import ended_by_schedulers, not_placed, states
from trackwalker.logs.excerpts.tables import tables
from trackwalker.logs.failures.kinds import kind_of
from trackwalker.logs.failures.structure import warns
from trackwalker.logs.scanning.gathered import Hit
from trackwalker.logs.scanning.lines import clean

if TYPE_CHECKING:
    from trackwalker.logs.failures.signatures import Signature
    from trackwalker.logs.scanning.scan import Scan

_LONGEST = 1 << 16  # bytes
_SLOWS = 7  # the tier of what slows a run and does not end it
_QUOTED = 400
_LAST_FEW = 3  # lines
_LOADER = "dataloader-hang"  # of the stacks of ranks that wait and of one that does not, the latter is why
_KILLS = ("host-memory-leak", "oom-host")
_BY_HAND = re.compile(
    r"\^C|\bsignal:? 2\b|\b2 death signal|SIGINT"
    r"|(?i:keyboard ?interrupt|killed by user|\bby hand\b|\bmanually\b|\bctrl[ +-]?c\b)"
)
_BARE = re.compile(r"(?i)SIGTERM|\bsignal:? 15\b|\b15 death signal|\bTerminated\b")
_WHOSE = re.compile(r"(?i)\b(?:by|user|uid|scancel|admin\w*|operator)\b")
_LAST_OUTPUT = re.compile(r"(?i)\blast (?:output|lines?|words?|steps?|log)\b|\bno step since\b")
_LABEL = re.compile(r"^(?:\[(?:rank ?|default|\d,)?\d{1,6}\](?:<\w+>)?:?|\s*\d{1,6}: )\s?")

_SLOW_KINDS = frozenset({"data", "device", "network", "storage", "memory"})
_STANDS = ("stands: ", "the last words are of NCCL's set-up")
_AN_ERROR = re.compile(r"^\W*(?:ERROR|FATAL|CRITICAL)\b")
_A_STATE = "its state: "
_SCHEDULERS = re.compile(r"(?i)\b(?:FAILED_(?:CONTROLLER|PRECHECKS|NO_RESOURCE)|node_?fail|evict\w*|lost)\b")
_SOCKETS = re.compile(r"Using network Socket|\[send\] via NET/Socket")
_SLOW_PART = re.compile(r"(?i)\bslow")
_PROMPT = re.compile(r"^(?:[\w.@-]+[:~][\w~/.-]*)?\s?[$]\s|^\d\d:\d\d \$ ")
_WRITES = re.compile(
    r"(?i)\b(?:sav(?:e|ing)|writ(?:e|ing)|flush(?:ing)?|creating (?:tmp|temp\w*)|commit(?:ting)?|upload(?:ing)?)\b.{0,60}(?:checkpoint|ckpt|model|state|weights|/)|\b(?:checkpoint|ckpt)\w*.{0,30}\b(?:sav|writ)(?:e|ing)\b"  # noqa: E501
    r"|\b(?:restoring|loading|resuming)\b(?!.*\b100 ?%).{0,40}(?:checkpoint|ckpt|weights|safetensors)"
)
_READS_DATA = re.compile(
    r"(?i)^\W*(?:map|filter|generating|tokeniz\w+|loading)\b.{0,40}(?:\d+%\||data ?set|data|examples|split)|data_?loader|first batch"  # noqa: E501
)
_FETCHES = re.compile(r"(?i)^\W*(?:download|fetch|pull)\w*\b.*\d%\||\d%\|.*\d ?[kMG]i?B/s\b")
_STACK = re.compile(r"^\s+(?:File \"|[\w<>.]+ \(|#\d+ |at )")
_SAVES_NOW = re.compile(
    r"(?i)torch/serialization|\bsave_?(?:checkpoint|state|model)\w* \(|checkpointer?\w*\.py|orbax|tensorstore"
)
_MEETS = re.compile(
    r"(?i)rendezvous|init_process_group|process group|\bwaiting for .{0,40}(?:workers?|ranks?|peers?|nodes?|hosts?|processes|members|master|leader)\b|master_addr|\b(?:re)?join(?:ed|ing)?\b|init_distributed|distributed init|distributed service|\bconnecting to \S+:\d"  # noqa: E501
)
_ASKS_NETWORK = re.compile(r"[$#] (?:sudo )?(?:ibstat|ibv_\w+|ethtool|rdma|ping|netstat|ss|ip|iperf3?|ib_\w+)\b")
_ASKS_STORE = re.compile(r"[$#] (?:sudo )?(?:iostat|df|du|lfs|nfsstat|mount|gsutil|aws s3)\b")
_IN_STORE = re.compile(  # a process that cannot be interrupted, and what in the kernel it waits for
    r"\sD[slN+<L]{0,4}\s+(?:\S+\s+){0,2}?\w*(?:nfs|rpc_wait|cl_|ll_|lustre|fuse|xfs|ext4|jbd2|btrfs|ceph|gpfs|io_schedule|folio|wait_on_page|osc_|mdc_)"
)
_SPINS = re.compile(r"(?<![\d.])(?:9[0-9]|100) ?%")  # several GPUs: that is how waiting for a collective looks
_IDLES = re.compile(r"(?<![\d.])0 ?%.*\d ?MiB|\d ?MiB.*(?<![\d.])0 ?%")
_TOGETHER = re.compile(
    r"(?i)\b[nr]ccl\b|gloo\b|all_?-?(?:reduce|gather)|reduce_?scatter|broadcast|\ball-?to-?all|barrier|sync_global|collective|\bmpi(?:run|exec)\b"
    r"|torchrun|\bsrun\b|\bdeepspeed\b|accelerate launch|\b(?:ddp|fsdp)\b|\[rank ?[1-9]|\brank[ :=]?[1-9]|\btask=[1-9]|\b(?:n_?nodes|num_nodes|world_?size|num_processes)\W{1,3}(?:[2-9]|\d\d)"  # noqa: E501
    r"|\b(?:two|both|four|[2-9]|\d\d+) (?:nodes|hosts|machines)\b|weight sync|xccl|/NET/|\bdistributed\b"
)


def shown(scan: Scan, hits: Sequence[Hit], known: Mapping[str, Signature], harmless: Collection[int] = ()) -> list[Hit]:
    """Hits of classes that no line has brought up; the words of slowness only where nothing else is known."""
    if scan.size > _LONGEST or len(scan.tail) < scan.size:
        return []
    texts = [clean(raw) for raw in scan.tail.split(b"\n")]
    lines = [_LABEL.sub("", text) for text in texts]
    own = ["" if _LABEL.match(text) else text for text in texts]  # what a rank prints is no scheduler's word
    taken = {hit.signature.id for hit in hits}
    found = list(tables(lines))
    said: dict[str, list[Shown]] = {}
    by_state = {state: name for name, signature in known.items() for state in signature.states}
    ended = chain(ended_by_schedulers(own), states(tables(own), by_state))
    machines = chain(slow_gpus(lines, found), busy_hosts(lines, found))
    members = chain(long_saves(lines), one_far_behind(lines), unused_rdma(lines))
    killed = any("kill" in hit.signature.traits for hit in hits)
    reported = chain(stood_together(lines), filled_before_the_kill(lines) if killed else ())
    refused = any("disk-or-mount" in hit.signature.traits for hit in hits)
    full = full_disks(lines) if refused else ()
    for each in chain(ended, machines, slow_programs(lines, found), members, reported, full):
        if each[0] not in taken:
            said.setdefault(each[0], []).append(each)
    for each in chain(slower_steps(lines), diverged(lines, found)) if not said else ():
        said.setdefault(each[0], []).append(each)
    # An end by hand is what somebody did about it: what was wrong is asked further.
    ended_by_hand = any(by_hand(hit) for hit in hits)
    traceback = {"traceback"} if ended_by_hand else set()  # it shows where the interrupt met the program
    others = (h for h in hits if not by_hand(h) and not ended_bare(h) and not traceback & set(h.signature.traits))
    if all(_ends_by_hand(known[name], told) for name, told in said.items()) and not any(
        hit.signature.order <= _SLOWS and not _advises(hit) for hit in others
    ):
        for each in chain(not_placed(own, found), slow_words(lines)):
            said.setdefault(each[0], []).append(each)
        for each in asked_about(lines) if "slow-words" not in said else ():
            said.setdefault(each[0], []).append(each)
        for each in odd_numbers(lines, found) if "slow-words" not in said else ():
            said.setdefault(each[0], []).append(each)
        for each in (
            chain(spinning(lines), remarks(own, texts), looked_into(lines), no_step_since(lines))
            if "slow-words" not in said
            else ()
        ):
            said.setdefault(each[0], []).append(each)
        nothing = "slow-words" not in said and not any(hit.signature.order <= _SLOWS for hit in hits)
        for each in last_resort(lines, found, harmless) if nothing else ():
            said.setdefault(each[0], []).append(each)
    for each in ended_well(lines) if hits else ():
        said.setdefault(each[0], []).append(each)
    kinds = {"slow-words": class_shown(lines, *said["slow-words"][0][1:])} if "slow-words" in said else {}
    whole = {"storage-full", _LOADER} | {name for name in said if killed and known[name].cause in _KILLS}
    return [_hit(known[name], told, scan.path.name, name in whole, kinds.get(name, "")) for name, told in said.items()]


def class_shown(lines: Sequence[str], at: int, text: str) -> str:
    """The class that an excerpt speaks for in which a run is slow or does not get on, told in the line `at`.

    That line is a person's words or command: what a run that stands was doing, the last line of its own says, and
    whether others take part in it, all lines. Where neither does, its program is asked first, as for what is slow
    the time.
    """
    remark = text.startswith("stands: ")
    if odd := ODD.get(text.partition(":")[0]):
        whose = _SCHEDULERS.search(text) if text.startswith(_A_STATE) else None
        return "scheduler" if whose else "network" if odd == "program" and _over_sockets(lines) else odd
    stops = (
        NO_MORE.search(text) or WAITS_FOR.search(text) or BY_HAND.search(text) or text.startswith(_STANDS)
    ) and not _SLOW_PART.search(text)
    if not stops:
        said = {*_SLOW_KINDS, "scheduler"} if _AN_ERROR.match(text) else _SLOW_KINDS
        return kind if (kind := kind_of([text])) in said else "program"
    # A remark stands anywhere beside the run's own words, which end where another command is typed.
    until = next((n for n, x in enumerate(lines) if n > at and _PROMPT.match(x)), len(lines)) if remark else at + 1
    told = [line for n, line in enumerate(lines[:until]) if not remark or n != at]
    own = [line for line in told if not NO_MORE.search(line) and not BY_HAND.search(line)]
    own = [line for line in own if line.strip() and not ASIDE.match(line) and not _PROMPT.match(line)]
    last = own[-1] if own else ""
    if any(LOADS.search(line) for line in lines if _STACK.match(line)):
        return "data"  # where it stands now says more than what it told last
    if any(_SAVES_NOW.search(line) for line in lines if _STACK.match(line)):
        return "storage"
    if any(_IN_STORE.search(line) for line in lines):
        return "storage"
    if _WRITES.search(last) or (remark and any(_WRITES.search(line) for line in own[-_LAST_FEW:])):
        return "storage"
    if _FETCHES.search(last):
        return "network"
    if _READS_DATA.search(last):
        return "data"
    if remark or BY_HAND.search(text):  # what somebody asks tells where he searches
        if _ASKS_NETWORK.search(text):
            return "network"
        if _ASKS_STORE.search(text):
            return "storage"
    if _MEETS.search(last) or WAITS_FOR.search(last):
        return "rendezvous"
    busy = sum(1 for line in lines if _SPINS.search(line, 0, 400))
    idle = sum(1 for line in lines if _IDLES.search(line, 0, 400))
    if idle and not busy:
        return "program"  # whoever waits in a collective keeps his GPU busy with it
    return "network" if busy > 1 or any(_TOGETHER.search(line, 0, 1000) for line in lines) else "program"


def _over_sockets(lines: Sequence[str]) -> bool:
    """Whether NCCL goes over TCP between hosts, which a slow run of several is asked about first."""
    return any(_SOCKETS.search(line, 0, 400) for line in lines) and any(_TOGETHER.search(x, 0, 1000) for x in lines)


def by_hand(hit: Hit) -> bool:
    """Whether a line tells that a person ended the run from his terminal."""
    ends = hit.signature.unnamed or "request-to-end" in hit.signature.traits
    return ends and _BY_HAND.search(hit.text) is not None


def _advises(hit: Hit) -> bool:
    """Whether a line only warns of what may slow a run: somebody's own words on it say more."""
    return hit.signature.order == _SLOWS and warns(hit.text)


def ended_bare(hit: Hit) -> bool:
    """Whether a line tells only that a process was asked to end, not by whom and not why."""
    asked = "request-to-end" in hit.signature.traits and hit.signature.id == "cancelled"
    return asked and _BARE.search(hit.text) is not None and not _WHOSE.search(hit.text)


def stood(text: str) -> bool:
    """Whether somebody's words say that a run did not get on, not that it was slow."""
    return NO_MORE.search(text) is not None or _LAST_OUTPUT.search(text) is not None


def _ends_by_hand(signature: Signature, told: Sequence[Shown]) -> bool:
    return "request-to-end" in signature.traits and all(_BY_HAND.search(text) for _, _, text in told)


def _hit(signature: Signature, told: Sequence[Shown], file: str, whole: bool, kind: str) -> Hit:
    # What a table shows slowed the run, and an error beside it says more; but memory that only grows gets one killed,
    # and on a full disk a write fails.
    if 1 <= signature.order <= 4 and not whole:
        signature = signature.model_copy(update={"tier": _SLOWS, "traits": []})
    (_, first, text), (_, last, _) = told[0], told[-1]
    return Hit(signature, None, first + 1, text[:_QUOTED], file, None, len(told), last + 1, kind=kind)
