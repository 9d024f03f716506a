"""What the lines of launcher, scheduler and trainer state, line by line as the scan finds them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import BinaryIO

from trackwalker.job.payload import without_payload
from trackwalker.logs.facts import (
    FirstFailure,
    Heartbeat,
    LogFacts,
    Memory,
    NodeExit,
    Quote,
    Stage,
    Summary,
)
from trackwalker.logs.formats import dialect as d

MOST_TOLD = 10_000
_FRONT = 4 << 20  # bytes in which launcher and ranks print their environment


class FactReader:
    """Sorts one line after the other into the facts."""

    def __init__(self, facts: LogFacts) -> None:
        self._facts = facts
        self._in_summary: int | None = None

    def take(self, number: int, raw: bytes) -> bool:
        """Whether a line was understood; what it quotes (a sample of the data, a model's answer) states nothing."""
        text = d.ANSI.sub("", raw.decode("utf-8", "replace")).rstrip("\r")
        label = d.TASK_LABEL.match(text)
        rank = int(label[1]) if label else None
        body = text[label.end() :] if label else text
        body = d.RAY_LABEL.sub("", body)
        facts, quote = self._facts, Quote(rank, number, text)
        # A container's ranks print the launcher's variables again; only the host list, spelled out, is news.
        if (rank is None or body.startswith("NODELIST_EXPANDED=")) and self._launcher_line(number, body):
            return True
        if match := d.CONFIG.search(body):
            facts.config.setdefault(match[1], (match[2].strip(), quote))
            return True
        body = without_payload(body)
        if match := d.NODE_EXIT.search(body):
            facts.exits.append(NodeExit(rank, match[1], int(match[2]), number))
        elif d.KILLED_BY.search(body):
            facts.signals.append(quote)
        elif match := d.SAVED.search(body):
            facts.saves.add(int(match[1]))
        elif d.SAVED_NOW in body:
            if len(facts.save_lines) < MOST_TOLD:
                facts.save_lines.append(number)
        elif match := d.RESTORED.search(body):
            facts.restored, facts.start.restored = int(match[1]), facts.start.restored or quote
        elif match := d.PLANNED.search(body):
            facts.planned = int(match[1].replace(",", ""))
        elif any(word in body for word in d.COMMUNICATORS):
            self._communicator(rank or 0, body)
            return False
        elif any(word in body for word in d.BROADCAST):
            facts.start.broadcast = facts.start.broadcast or quote
            return False
        elif match := d.SLURM_CANCEL.search(body):
            facts.cancel, facts.cancel_time = quote, match[3]
            if "JOB REQUEUE" in match[4]:
                facts.requeues.append(number)
        elif d.TASK_FAILED.match(body):
            if facts.cancel is None:  # who was asked to end may end badly
                facts.task_failed = facts.task_failed or quote
            return False
        elif d.FINISHED.search(body):
            facts.finished = quote
        elif "Synchronizing hosts before training loop" in body:
            facts.barrier_ranks.add(rank or 0)
        elif "Memstats: After params" in body:
            facts.params_ranks.add(rank or 0)
        elif d.COMPILING.search(body):
            if len(facts.compiles) < MOST_TOLD:
                facts.compiles.append(number)
        elif d.PROFILED.match(body):
            if facts.profiles and len(facts.profiles[-1]) == 1:
                facts.profiles[-1].append(number)
            elif len(facts.profiles) < MOST_TOLD:  # one that goes on says only when it writes
                facts.profiles.append([number, number])
        elif d.PROFILES.match(body):
            if len(facts.profiles) < MOST_TOLD and (not facts.profiles or len(facts.profiles[-1]) > 1):
                facts.profiles.append([number])
        elif match := d.MEMORY.search(body):
            self._memory(rank, number, float(match[1]), float(match[2]), match[3].lower(), int(match[4]))
        elif match := d.MEM_FRACTION.match(body.strip()):
            facts.mem_fraction = float(match[1])
        elif match := d.COREDUMP.search(body):
            facts.coredump_s = max(facts.coredump_s, int(match[1]))
        elif d.TRACEBACK in body:
            facts.tracebacks.append(quote)
        elif not self._counted(body):
            self._heartbeat(rank, body, quote)
            return False
        return True

    def front(self, file: BinaryIO, most: int) -> bytes:
        """The first bytes of the main log, so many; a larger part of it is searched for the environment."""
        text, known = file.read(_FRONT), self._facts.environment
        number, begin, at = 1, 0, text.find(b"=")
        while at >= 0:  # few lines hold one: the others are not looked at
            start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
            line = text[start : end if end >= 0 else None]
            number, begin = number + text.count(b"\n", begin, start), start
            at = text.find(b"=", end) if end >= 0 else -1
            match = d.VARIABLE.match(line)
            if match is None:
                continue
            rank, name = int(match[1] or -1), match[2].decode()
            if name not in known or rank < (-1 if (first := known[name].rank) is None else first):
                value = match[3].decode("utf-8", "replace").strip()
                known[name] = Quote(rank if match[1] else None, number, value)
        return text[:most]

    def _communicator(self, rank: int, body: str) -> None:
        """Only those of the lowest rank are kept: all make the same ones."""
        start, stamp, time = self._facts.start, d.STAMP.search(body), None
        with contextlib.suppress(ValueError):  # a date that is none
            time = datetime.fromisoformat(stamp[1]).replace(tzinfo=UTC).timestamp() if stamp else None
        if start.rank is None or rank < start.rank:
            start.rank, start.made = rank, []
        if rank == start.rank and len(start.made) < MOST_TOLD:
            start.made.append(time)

    def _memory(self, rank: int | None, number: int, used: float, limit: float, device: str, place: int) -> None:
        facts = self._facts
        if device in d.GPU_KINDS:
            facts.devices.setdefault(rank or 0, set()).add(place)
        if not facts.memory or used > facts.memory[-1].used:
            facts.memory.append(Memory(number, used, limit, device))

    def _counted(self, body: str) -> bool:
        """What compiler and trainer counted before the first step; every rank says it, the first one counts."""
        facts = self._facts
        if match := d.COMPILED.search(body):
            facts.compiled_gb = float(match[1])
        elif match := d.TFLOPS.search(body):
            facts.step_tflops = facts.step_tflops or float(match[1])
        elif match := d.SPLIT.search(body):
            facts.attention_share = facts.attention_share or float(match[1]) / 100.0
        elif match := d.PEAK.search(body):
            facts.peak_tflops = facts.peak_tflops or float(match[1])
        else:
            return False
        return True

    def _launcher_line(self, number: int, body: str) -> bool:
        facts = self._facts
        if match := d.HEADER.match(body):
            # Local runs print several on one line, two spaces apart, before the header proper.
            facts.header.setdefault(match[1], match[2].split("  JOB_")[0].strip().strip('"'))
        elif d.SUMMARY.match(body):
            facts.summary, self._in_summary = Summary(None, "", None, number), number
        elif self._in_summary and number - self._in_summary < 10 and (match := d.STATUS.search(body)):
            wall = facts.summary.wall_s if facts.summary else None
            facts.summary = Summary(int(match[2]), (match[3] or "").strip(), wall, number)
        elif self._in_summary and number - self._in_summary < 10 and (match := d.WALL.search(body)):
            wall = int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3])
            facts.summary = Summary(None, "", wall, number)
        elif match := d.FIRST_FAILURE.match(body):
            facts.first_failure = FirstFailure(int(match[1]), match[2], int(match[3]), match[4], number)
        elif match := d.STAGE.match(body):
            seconds = int(match["seconds"]) if match["seconds"] and match["what"] != "BEGIN" else None
            code = int(match["exit"]) if match["exit"] else None
            facts.stages.append(Stage(match["name"], match["what"], seconds, code, number))
        else:
            return False
        return True

    def _heartbeat(self, rank: int | None, body: str, quote: Quote) -> None:
        facts = self._facts
        own_death = any(text in body for text in d.OWN_DEATH)
        if d.HEARTBEAT in body or (facts.heartbeat and (own_death or "/task:" in body)):
            beat = facts.heartbeat = facts.heartbeat or Heartbeat()
            if d.HEARTBEAT in body and beat.claim is None:
                beat.claim = quote
                if glog := d.GLOG.match(body):
                    beat.clock = (int(glog[1]), int(glog[2]), int(glog[3]), int(glog[4]), float(glog[5]))
            if own_death and rank is not None:
                beat.own_death.setdefault(rank, quote)
            for match in d.ACCUSED.finditer(body):
                if int(match[1]) not in beat.accused:
                    beat.named.append(quote)
                beat.accused.add(int(match[1]))
