"""Lines of the log: with and without consequence."""

from __future__ import annotations

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, many, only
from trackwalker.lab.faults.shapes import filled
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


def _about(run: Run, text: str, peer: str) -> str:
    """A line that names the one who failed, as its peers know it."""
    rank = run.hosts.index(peer)
    known = {"peer_ip": f"10.4.7.{rank % 250 + 4}", "peer_grank": str(rank * run.spec.gpus + 3), "peer_rank": str(rank)}
    for name, value in known.items():
        text = text.replace("{" + name + "}", value)
    return text


@fault
def note(run: Run, text: str, at: Place = 0.5, host: Hosts | None = None, launcher: bool = False) -> Show:
    """Lines that say something, without consequence for the run."""

    def show(sheet: Sheet, log: JobLog) -> None:
        time = run.time_of(run.at(at)) + 0.5
        for name in many(host) if host else run.hosts[:1]:
            log.say(time, text.replace("{host}", name).rstrip("\n"), None if launcher else run.hosts.index(name))

    return show


@fault
def says(
    run: Run,
    text: str,
    hosts: Hosts | None = None,
    at: Place | None = None,
    after_s: float = 1.0,
    launcher: bool = False,
) -> Show:
    """Lines of some hosts (or all) without consequence: at a step, or so long after the last one."""

    def show(sheet: Sheet, log: JobLog) -> None:
        time = (run.work_end if at is None else run.time_of(run.at(at))) + after_s
        for host in many(hosts) if hosts else run.hosts:
            moment = time + float(run.rng.uniform(0, 0.5))
            log.say(moment, filled(run, text, host, moment), None if launcher else run.hosts.index(host))

    return show


@fault
def breaks(
    run: Run,
    text: str = "",
    host: Hosts | None = None,
    at: Place | None = None,
    code: int = 1,
    others: str = "",
    others_code: int | None = None,
    others_after_s: float = 3.0,
    delay_s: float = 8.0,
    before_steps: bool = False,
    silent: bool = False,
    vanishes: bool = False,
) -> Show:
    """Some ranks (or all) fail with `text`, the rest complain; `silent`: they say nothing afterwards; `vanishes`: the
    host answers nobody any more."""
    if at is not None:
        run.hang_step = run.at(at)
    run.zero_steps = run.zero_steps or before_steps
    run.silent_s = max(run.silent_s, delay_s + others_after_s + 25.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        fails = run.work_end + delay_s
        guilty = many(host) if host else run.hosts
        for number, name in enumerate(run.hosts):
            mine = name in guilty
            said, ends = (text, code) if mine else (others, others_code)
            moment = fails + float(run.rng.uniform(0, 0.5)) + (0.0 if mine else others_after_s)
            if said:
                log.say(moment, filled(run, _about(run, said, guilty[0]), name, moment), number)
            if ends is not None:
                log.exits[number] = ends
                sheet.process_gone(name, moment + (0.0 if mine else 6.0))
            if mine and (silent or vanishes):
                log.mute.add(number)
            if mine and vanishes:
                sheet.gone(name, moment)
                log.hide_workers.add(number)

    return show


@fault
def flood(
    run: Run,
    host: Hosts,
    text: str,
    others: str,
    at: Place,
    code: int = 1,
    others_code: int | None = None,
    late_s: float = 0.0,
    delay_s: float = 6.0,
) -> Show:
    """One rank fails and all others complain; `late_s` lets its own line reach the merged log after theirs."""
    run.hang_step = run.at(at)
    run.silent_s = max(run.silent_s, delay_s + late_s + 30.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, fails = only(host), log.run.work_end + delay_s
        ago = log.run.work_end - run.work_end  # not 0 where the database is an earlier job's
        guilty = run.hosts.index(name)
        # Buffered output: the line says when it was written, its place in the file says when it was flushed.
        said = text.replace("{host}", name).replace("{rank}", str(guilty)).replace("{glog}", glog(fails))
        log.say(fails + late_s, said.rstrip("\n"), guilty)
        log.exits[guilty] = code
        sheet.process_gone(name, fails - ago)
        for rank, other in enumerate(run.hosts):
            if rank == guilty:
                continue
            time = fails + float(run.rng.uniform(1.0, 4.0))
            echoed = others.replace("{host}", other).replace("{rank}", str(rank)).replace("{glog}", glog(time))
            log.say(time, echoed.rstrip("\n"), rank)
            if others_code is not None:
                log.exits[rank] = others_code
                sheet.process_gone(other, time - ago + 10.0)

    return show


@fault
def chatter(run: Run, every_s: float = 240.0) -> Show:
    """After the last step the head still prints harmless, dated lines: the silence of the steps can be seen."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for number in range(1, int(run.silent_s // every_s) + 1):
            time = run.work_end + number * every_s
            log.say(time, f"W{glog(time)}   1190 topology.cc:214] Cannot read CPU core {96 + number}", 0)

    return show
