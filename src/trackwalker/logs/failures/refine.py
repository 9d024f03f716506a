"""What the rest of the log makes of a failure class: its condition here, what follows from it in the signature files.

No signature is named: each rule asks for a trait, looks at time, ranks, steps and exits, and lets the class become what
its signature says of that condition.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from trackwalker.logs.failures.groups import Group, having, only, waits_for, when
from trackwalker.logs.failures.kinds import kind_of_cause
from trackwalker.logs.failures.line_hosts import (
    absent_hosts,
    hosts_told,
    local_disk_hosts,
    never_joined,
    refused_at,
    unloaded,
    waited_for,
)
from trackwalker.logs.failures.reactions import VICTIMS, reacts
from trackwalker.logs.failures.saving import TRANSPORT, around_checkpoints, beside_what_is_shown, limit_met, near
from trackwalker.logs.failures.structure import SAID
from trackwalker.logs.failures.victim_lines import coordinator_mute, demote_hearsay, told_by_the_missing
from trackwalker.logs.formats.dialect import TASK_FAILED
from trackwalker.logs.scanning.index import Hit, LogIndex

STEPS_AFTER = 3  # a run that completes this many further steps did not die of what came before
KILLED = frozenset({137})
CANCELS = frozenset({130, 143})
_REPORT, _BESIDE = 8, 3  # lines
_FIRST_TRANSFER = re.compile(r"NET/IB.*Got completion.*(?:error|status)[ =]*12\b|NET/OFI .*completed with error")
_ASKED_TO_END = re.compile(r"(?i)signal:? 15|SIGTERM|CANCELLED|preempt|time limit|timed-out|death signal")
_INTERRUPTS = ("KeyboardInterrupt", "SignalException")  # what raises them is the request itself
# A row of `kubectl get events` tells how long ago: where it stands says nothing of when it happened.
_AGE_FIRST = re.compile(r"^\s*\d+[smhd]\S{0,12}\s+(?:Normal|Warning)\s")
_EITHER = re.compile(r"(?i)either an error or (?:a )?timeout|failed or timed out")
_TOO_LONG = re.compile(r"(?i)timed? ?out|stuck|hung|hang|deadlock|been waiting|not complete|rendezvous")
# A scheduler that says why it ends a job; without a reason it may only clean up behind a task that failed.
_WITH_A_REASON = re.compile(r"(?i)DUE TO (?!.*FAIL)|preempt|time limit")
_IMAGE_STAGE = re.compile(r"== (?:Docker|Image|Container) pull FAILED")
_SEQ = re.compile(r"SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?")
_KUBERNETES = re.compile(
    r"(?i)\bkube|\bpods?\b|\.svc\b|cluster\.local|headless|\bk8s|-\d+\.[a-z][\w-]+|\.com/gpu|did not register"
    r"|Barrier timed out"
)
# Exceptions that only Python has, or that carry a Python module's name; other programs too print "SomethingError: ".
_PYTHON = re.compile(
    r"\b(?:[a-z_][\w]*\.)+[A-Z]\w*(?:Error|Exception)\b|\b(?:Type|Value|Key|Index|Attribute|Name|Assertion|Import|ModuleNotFound|FileNotFound"
    r"|Runtime|OS|Zero ?Division|Recursion|NotImplemented|UnboundLocal|Unicode\w*|JSONDecode|Timeout|Permission|EOF|IO|Memory|Connection\w*|BrokenPipe"  # noqa: E501
    r"|StopIteration|Syntax|Overflow|FloatingPoint)Error\b|\.py\b|\bpython"
)

_ONE_PROCESS = re.compile(rb"\b(?:num_processes|process_count|world_size)[=:] ?1\b")
_LIVED = re.compile(r"(?i)mistaken")  # who is called dead says it of himself

_CHECKPOINT = re.compile(
    r"(?i)ckpt|checkpoint|weight|state_?dict|safetensors|resum|pretrain|restor|global_step|optimi[sz]er|model"
)
_DATA_FRAME = re.compile(
    r"(?i)data|sample|preproc|feature|getitem|vocab|token|corpus|image|video|audio|cache|batch|reader|split|label|fetch"
)
_KERNEL_SAYS = re.compile(r"(?P<program>[\w.:/+-]+)\[\d+\]:? (?:segfault at|general protection|trap )")
_TRAINS = re.compile(
    r"(?i)(?:python|pt_|ray|torch|train|main|deepspeed|accel|jax|xla|mpi|ort|\w+_perf|darknet|node|srun|slurm|java)"
)


def refine(groups: list[Group], index: LogIndex) -> None:
    """Look at each class beside the others."""
    _late_start(groups, index)
    if group := only(groups, "collective-wait"):
        _who_is_missing(group, groups, index)
        lost = any(g.has("lost-peer") and g.tier == group.tier for g in groups)
        if group.tier == 3 and lost and not any(_waited(h) for h in group.hits):
            group.become("no-timeout-told", "the watchdog leaves open whether an error or a timeout ended it")
    witnesses = having(groups, "speaks-of-peers") or index.facts.exits or index.facts.header
    if (group := only(groups, "kill")) and group.tier <= 4 and witnesses:
        group.become("others-lived", "a rank was killed from outside; nothing in the log says by whom")
    claimed = only(groups, "heartbeat")  # then the coordinator speaks, and accuses others
    if claimed and any(_LIVED.search(text) for h in claimed.hits for text in (h.text, h.last_text, *h.more)):
        claimed.tier, claimed.why = 1, "who was declared dead says so himself"
    elif claimed:
        _heartbeat(claimed, index)
    if (group := only(groups, "coordinator-call")) and len(index.steps):
        group.become("training-began", "training had begun: all had joined, and one answers no more")
    if (group := only(groups, "coordinator-call")) and not claimed and coordinator_mute(group, index):
        group.become("coordinator-mute", "the coordinator lived and did not answer the tasks in time")
        group.hosts = tuple(filter(None, (index.facts.host_of(0),)))
    _followers(groups, index)
    demote_hearsay(groups, index)
    _name_hosts(groups, index)
    if (group := only(groups, "stage-word")) and _IMAGE_STAGE.match(group.first.text):
        _image_stage(group, index)
    if (group := only(groups, "exit-word")) and not any(g.tier <= 3 for g in groups):
        codes = [e.code for e in index.facts.exits if e.code not in CANCELS]
        if codes and codes[0] in (139, 135):
            group.become("crash-code", f"exit code {codes[0]}")
    never_worked = not _worked(index) and not index.facts.header
    # Links that fail do so in the middle of a run; those that never worked have the wrong GID, VLAN or route.
    was_up = any(g.has("own-end") and kind_of_cause(g.cause) == "network" for g in groups)  # what goes down was up
    transfers = only(groups, "transfer") if never_worked and not was_up else None
    if (group := transfers) and any(_FIRST_TRANSFER.search(h.text) for h in group.hits):
        group.become("never-worked", "the first transfers failed: no step was made before")
    if (group := only(groups, "traceback")) and not having(groups, "exception"):
        ends = [h for g in having(groups, "request-to-end") for h in g.hits]
        asked = [h for h in ends if _ASKED_TO_END.search(h.text)]
        if any(word in h.text for word in _INTERRUPTS for h in ends) or any(
            _before(h, group.first, index) for h in asked
        ):
            group.tier, group.why = 8, "it shows where the interrupt met the program"
    if (group := only(groups, "interface")) and group.tier == 1:
        # Loopback among the interfaces is only wrong when connecting failed afterwards.
        texts = [h.text for h in group.hits]
        if all("lo:" in t for t in texts) and not having(groups, "connecting-failed"):
            group.tier = 8
    _named_too_much(groups)
    beside_what_is_shown(groups, index)
    _without_python(groups, index)
    if index.places.unlimited:
        for group in having(groups, "locked-memory"):
            group.become("limit-lifted", "registering memory failed, though the log shows no limit of locked memory")
    limit_met(groups)
    # A name that does not resolve is no pod's where nothing speaks of pods.
    told = (h.text for g in groups for h in g.hits)
    if index.path.parent.name != "ranks" and not any(_KUBERNETES.search(text) for text in told):
        for group in having(groups, "meeting"):
            if group.tier == 1:
                group.become("no-kubernetes", "a name did not resolve; nothing here speaks of Kubernetes")


def survived(groups: list[Group], index: LogIndex, completed: bool) -> None:
    """What the run outlived did not kill it: complaints before the first step, errors with steps after them."""
    steps = index.steps
    for group in groups:
        if group.tier > 4 or group.has("lasting"):
            continue
        if any(h.file != index.path.name and h.file not in index.earlier for h in group.hits):
            continue  # another rank's file: its line numbers do not compare with the main log's
        last = max(h.last_line - index.earlier.get(h.file, 0) for h in group.hits)
        typed = next(
            (line for line in index.places.prompts if line > last), None
        )  # what another command prints is no later
        if typed is not None and len(steps) and (steps.line > typed).any():
            continue
        after = int((steps.line > last).sum()) if len(steps) else _went_on(group, index, last)
        if completed or after >= STEPS_AFTER:
            group.tier, group.why = 8, "the run went on after it"
            continue
        if len(steps) >= STEPS_AFTER:  # nor did what comes before the last few steps
            fatal = np.partition(steps.line, -STEPS_AFTER)[-STEPS_AFTER]
            late = [h for h in group.hits if h.last_line - index.earlier.get(h.file, 0) >= fatal]
            group.hits = [h if h.line - index.earlier.get(h.file, 0) >= fatal else _last(h) for h in late]


def _before(request: Hit, hit: Hit, index: LogIndex) -> bool:
    """Whether a request to end may have come before a line."""
    return _AGE_FIRST.match(request.text) is not None or when(request, index) < when(hit, index)


def _worked(index: LogIndex) -> bool:
    """Whether anything tells that it trained, in steps that are known or in another dialect."""
    return bool(len(index.steps) or index.places.counted or index.progress)


def _went_on(group: Group, index: LogIndex, last: int) -> int:
    """How often a trainer that nobody knows told of progress after what did not end a process by itself.

    Whose bars they are is not told: only where one output stands alone and nothing was raised they are of the same run.
    """
    one = not (index.places.prompts or index.places.sections.lines or having([group], "exception", "traceback"))
    return sum(line > last for line in index.progress) if one else 0


def _last(hit: Hit) -> Hit:
    """Of what was said early and again at the end, the end counts."""
    return replace(hit, line=hit.last_line, text=hit.last_text.strip() or hit.text)


def _late_start(groups: list[Group], index: LogIndex) -> None:
    """Ranks that cannot meet after training began, or after another failure, look for one that is gone."""
    # A step needs all ranks: where one was made they had met, whichever rank's file the line stands in.
    failed = [when(g.first, index) for g in groups if g.tier == 2 and not g.first.signature.first_only]
    for group in having(groups, "meeting"):
        if group.tier != 1:
            continue
        if _worked(index):
            group.become("training-began", "training had begun: it looks for one that is gone")
        elif any(at < when(group.first, index) for at in failed):
            group.tier = 3


def _followers(groups: list[Group], index: LogIndex) -> None:
    """What another finding explains: a kill after a request to end, an image that a full disk could not take."""
    asked = [g.first for g in having(groups, "request-to-end") if _ASKED_TO_END.search(g.first.text)]
    told = [when(g.first, index) for g in groups if g.first.signature.states]
    for group in groups:  # at the end of its patience Slurm kills what it has told to end; sacct's word has no moment
        if group.first.file != "sacct" and any(at < when(group.first, index) for at in told):
            group.become("scheduler-ended-it", "Slurm had ended the job before")
    for end in having(groups, "end-of-process"):
        if end.tier <= 4 and any(_before(h, end.first, index) for h in asked):
            end.tier, end.why = 6, "it came after the request to end"
    for raised in having(groups, "exception"):
        reacting = all(reacts(h.text) for h in raised.hits)
        if reacting and raised.tier <= 4 and any(_before(h, raised.first, index) for h in asked):
            for behind in (raised, *having(groups, "traceback")):
                behind.tier, behind.why = 6, "it came after the request to end"
    _behind_what_was_raised(groups, index)
    reasons = [h for h in asked if h.rank is None and _WITH_A_REASON.search(h.text)]
    for late in having(groups, "outlived-the-end"):
        if any(_before(h, late.first, index) for h in reasons):
            late.tier, late.why = 6, "the scheduler had said before why it ends the job"
    for lost in having(groups, "victim"):
        if lost.tier in (3, 4) and any(_before(h, lost.first, index) for h in reasons):
            lost.tier, lost.why = 6, "it came after the scheduler had ended the job"
    why = [g for g in having(groups, "request-to-end") if g.has("ended-itself") and g.tier == 5]
    for group in having(groups, "pending") if why else ():
        group.tier, group.why = 6, "it waits to be placed again"
    for lost in having(groups, "lost-peer", "meeting"):
        if lost.tier <= 4 and any(_beside(h, g.first) for g in why for h in lost.hits):
            lost.tier, lost.why = 6, "the lines beside it say why the peer is gone"
    around_checkpoints(groups)
    blind, library = only(groups, "no-device"), only(groups, "lacks-library")
    if blind and library and library.tier == 1 and unloaded(blind.hits, library.hits):
        blind.tier, blind.why = 3, "the library by which it would use its GPU could not be loaded"
    if (wait := only(groups, "before-training")) and len(index.steps):
        wait.tier, wait.why = 8, "training began after it"
    if (full := only(groups, "no-room")) and full.tier == 2:
        for image in having(groups, "needs-room"):
            if image.tier == 1:
                image.tier, image.why = 3, "the image had no room on the disk"
                full.local = True


def _named_too_much(groups: list[Group]) -> None:
    """A specific name whose line does not carry it: a file of the data, another program, MPI without a transport."""
    for group in having(groups, "damaged-file"):
        told = [f"{h.text} {h.frame}" for h in group.hits]
        if any(h.of_data or _DATA_FRAME.search(h.frame) for h in group.hits) and not any(
            _CHECKPOINT.search(each) for each in told
        ):
            group.become("of-the-data", "what could not be read is a file of the data")
        elif any(near(group, orphan) for orphan in having(groups, "orphan")):
            group.become(
                "from-its-parent", "a child could not read what its parent should have sent: the parent was gone"
            )
    for group in having(groups, "end-by-signal"):
        programs = [_KERNEL_SAYS.search(h.text) for h in group.hits]
        if all(match is not None and not _TRAINS.match(match["program"]) for match in programs):
            group.become("another-program", "the kernel tells of another program")
    for group in having(groups, "transport-of-mpi"):
        if not any(TRANSPORT.search(said) for h in group.hits for said in (h.text, *h.more)):
            group.become("no-transport-told", "MPI did not start; its lines name no network")
    if end := only(groups, "at-the-end"):
        after = [g for g in groups if g.tier <= 4]
        parting = [g for g in after if g.first.line >= end.first.line - _BESIDE and _parts(g, groups, end.first.line)]
        if after and len(parting) == len(after):
            end.tier, end.why = 3, "the program had reached its end before"
            for group in parting:
                group.tier, group.why = 6, "it was printed on the way out"


def _parts(group: Group, groups: list[Group], line: int) -> bool:
    """Whether all of a class tells only of lost peers, of how processes ended or of the end itself."""
    victims = having([group], "end-by-signal", "teardown", "end-of-process", *VICTIMS)  # want of memory is none
    launchers = group.has("traceback") and not having(groups, "exception")  # whatever it raised is no error's name
    return bool(victims) or launchers or all(reacts(h.text) or h.line == line or _calm(h) for h in group.hits)


def _calm(hit: Hit) -> bool:
    """Whether it is a sentence that looks like no error: it was asked for only because something else was found."""
    return hit.signature.unnamed and hit.told is not None and hit.told.severity <= SAID


def _behind_what_was_raised(groups: list[Group], index: LogIndex) -> None:
    """Where one rank raised why, those who wait for it and those whom a launcher killed afterwards tell no cause."""
    first = index.places.ended_first
    node = None if first is None else first // index.places.per_node
    raised = [h for g in having(groups, "exception") if g.tier <= 4 for h in g.hits if not reacts(h.text)]
    for group in groups:
        if group.tier <= 3 and any(waits_for(group, own) for own in raised):
            group.tier, group.why = 4, "who is missing there raised why"
    for end in having(groups, "kill") if first is not None and any(h.rank == first for h in raised) else ():
        others = [h.rank != first if h.rank is not None else h.task not in (None, node) for h in end.hits]
        if end.tier <= 4 and all(others):
            end.tier, end.why = 4, f"rank {first} had ended before, and says why"


def _name_hosts(groups: list[Group], index: LogIndex) -> None:
    """Where it happened, for lines that tell of a host without naming it; and who cannot be told from the others."""
    exits = index.facts.exits
    killed = {e.host for e in exits if e.code in KILLED and e.host}
    if (group := only(groups, "host-memory")) and len(killed) == 1 and all(h.rank is None for h in group.hits):
        group.hosts = tuple(killed)
    for group in having(groups, "disk-or-mount"):
        if own := local_disk_hosts(index, group.hits):
            group.hosts, group.local = own, True
    if group := only(groups, "refused-credential"):
        group.hosts = refused_at(index, group.hits)
    spoke = [h for g in groups if g.tier <= 4 and not g.has("exit-word") for h in g.hits]
    group = only(groups, "somebody-absent")
    # Before the first step whoever lost the one that counted them had waited, too.
    told = [h for g in groups if g is group or (g.has("lost-peer") and not len(index.steps)) for h in g.hits]
    if group and group.tier == 1 and (absent := absent_hosts(index, told, spoke)):
        group.hosts, group.local = absent, True
        group.why = f"all others tell that somebody did not come; {', '.join(absent)} alone does not"
    if (group := only(groups, "lacks-library")) and group.tier == 1 and waited_for(group.hits, spoke):
        group.local = True
    if (group := only(groups, "names-its-host")) and any(hosts_told(h.text) for h in group.hits):
        group.local = True
    echoes = [g for g in having(groups, "end-of-process") if all(TASK_FAILED.match(h.text) for h in g.hits)]
    others = [g for g in groups if g.tier <= 4 and not g.has("wrapper") and g not in echoes]
    alike = len({e.code for e in exits}) == 1 and exits[0].code < 128
    alike = alike and len(exits) >= max(2, len(index.facts.hosts))
    if (group := only(groups, "exit-word")) and alike and not others:
        for silent in (group, *echoes):  # the scheduler repeats the codes, and knows no more
            silent.tier, silent.why = 8, "all ranks ended alike and none says why"


def _image_stage(group: Group, index: LogIndex) -> None:
    """The stage that fetches the image failed in words that nobody knows: still it was the image, on who failed."""
    group.become("image-stage", "the stage that fetches and loads the image failed")
    failed = {e.host for e in index.facts.exits if e.host and e.code not in (0, *CANCELS)}
    if failed and len(failed) < len({e.host for e in index.facts.exits}):
        group.hosts = tuple(sorted(failed))


def _waited(hit: Hit) -> bool:
    """Whether a line says that somebody waited too long, not only that there was an error or a timeout."""
    return any(_TOO_LONG.search(_EITHER.sub("", text)) is not None for text in (hit.text, hit.last_text))


def _beside(one: Hit, other: Hit) -> bool:
    """Whether two lines are of one report: who lost a peer, and what became of it."""
    return one.file == other.file and abs(one.line - other.line) <= _REPORT


def _who_is_missing(group: Group, groups: list[Group], index: LogIndex) -> None:
    if group.tier == 3 and (own := told_by_the_missing(group, groups, index)):
        group.tier, group.why = 4, f"rank {own.first.rank}, which does not wait with them, reports {own.cause} itself"
        return
    # Each process group counts its collectives by itself.
    asked = {(h.text[: m.start()].partition("PG GUID ")[2].partition(" ")[0], *m.groups())
             for h in group.hits if (m := _SEQ.search(h.text))}  # fmt: skip
    if len(asked) > 1 and len({a[:2] for a in asked}) < len(asked):
        group.become("different-collectives", "ranks wait in different collectives of the same number")
        return
    spoke = [h for g in groups if g is not group and g.tier <= 4 for h in g.hits]
    if missing := never_joined(index, group.hits, spoke):
        why = f"{missing} never joined the collective the others wait in, and reported no error"
        if index.facts.header:
            group.become("somebody-never-joined", why)
        else:  # an excerpt need not hold every rank's words: who says nothing there may have said it elsewhere
            group.why = why


def _heartbeat(group: Group, index: LogIndex) -> None:
    """Init kill, real death or false alarm (2.9)."""
    beat = index.facts.heartbeat
    accused = beat.accused if beat else set()
    exits = {e.rank: e.code for e in index.facts.exits if e.rank is not None}
    dead = {r for r in accused if exits.get(r) in (137, 139, 135, 136)}
    if dead:
        group.become("accused-died", f"suspect rank {', '.join(map(str, sorted(dead)))} really ended by a signal")
        group.hosts = tuple(h for r in sorted(dead) if (h := index.facts.host_of(r)))
    elif not len(index.steps) and index.facts.header:
        group.become("before-first-step", "no step was completed: the timeout is shorter than start-up")
    elif beat and accused and not accused & beat.own_death.keys() and beat.own_death:
        group.become("accused-silent", "the suspect logged nothing afterwards while the other ranks did")
        group.hosts = tuple(h for r in sorted(accused) if (h := index.facts.host_of(r)))
    elif not index.facts.header and not exits and not _alone(index):
        group.become("accused-died", "nothing in the log tells how the suspect ended, or that it lived")


def _alone(index: LogIndex) -> bool:
    """Whether the run had one process: then whoever is called dead is the one that says so."""
    return index.scan is not None and _ONE_PROCESS.search(index.scan.front) is not None


def _without_python(groups: list[Group], index: LogIndex) -> None:
    """An end that a launcher tells, or a class of errors, is no Python exception where nothing in the log is Python."""
    facts = index.facts
    if facts.header or facts.tracebacks or any(_PYTHON.search(h.text) for g in groups for h in g.hits):
        return
    for group in groups:
        group.become("no-python", group.why)
