"""What the second held-out set needs beyond the rest: floods of secondary errors, and a merged log that breaks off."""

from __future__ import annotations

from pathlib import Path

from trackwalker.lab.faults.base import Hosts, Place, Show, fault, only
from trackwalker.lab.joblog import JobLog, glog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Run


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
def merged_log_ends(run: Run, at: Place) -> Show:
    """The merged log breaks off in the middle of a line; the ranks' own logs go on to the end."""

    def show(sheet: Sheet, log: JobLog) -> None:
        whole = log.write

        def broken(path: Path, workers: Path | None) -> None:
            whole(path, workers)
            text = path.read_text()
            last = text.find(f"completed step: {run.at(at)},")
            path.write_text(text[: last + 40])

        log.write = broken  # type: ignore[method-assign]

    return show


@fault
def chatter(run: Run, every_s: float = 240.0) -> Show:
    """After the last step the head still prints harmless, dated lines: the silence of the steps can be seen."""

    def show(sheet: Sheet, log: JobLog) -> None:
        for number in range(1, int(run.silent_s // every_s) + 1):
            time = run.work_end + number * every_s
            log.say(time, f"W{glog(time)}   1190 topology.cc:214] Cannot read CPU core {96 + number}", 0)

    return show
