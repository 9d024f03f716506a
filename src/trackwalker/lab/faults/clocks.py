"""GPUs whose clock stays low without heat or a power limit."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, fault, many, only, waited
from trackwalker.lab.faults.shapes import at_work, filled, steps_running
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


@fault
def clock(run: Run, host: Hosts, factor: float, begin: Place, gpu: int | None = None) -> Show:
    """Clocks stay low without heat or a power limit."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(host):
            for card in range(run.spec.gpus) if gpu is None else [gpu]:
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.04, since, run.work_end, name, gpu=str(card))
                sheet.scale("hw_gpu_power_watts", 0.9, since, run.work_end, name, gpu=str(card))

    return show


@fault
def shelf_brake(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, text: str = "") -> Show:
    """The power shelf pulls its brake line: GPUs of its servers run at a reduced, restless clock, cooler."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        until = run.work_end if last >= run.at(1.0) else run.time_of(last)
        p = run.profile
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

                def hunts(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.9 * t + phase)

                sheet.scale("hw_gpu_clock_mhz", 0.94 / factor, since, until, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 45.0, since, until, name, shape=hunts, gpu=card)
                more = waited(run, factor) - (1.0 - 1.0 / factor) * p.active_w
                sheet.add("hw_gpu_power_watts", more, since, until, name, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -2.0, since, until, name, gpu=card)
            if text:
                moment = since + 0.3 * (until - since)
                log.say(moment, filled(run, text, name, moment), run.hosts.index(name))

    return show


@fault
def fallen_clock(run: Run, host: Hosts, gpu: int, mhz: float, begin: Place, bound: float = 0.75) -> Show:
    """One GPU drops to a lower clock in the middle of the run and keeps it: cool, frugal, busy; nothing is logged."""
    p, first = run.profile, run.at(begin)
    factor = 1.0 + bound * (p.clock_mhz / mhz - 1.0)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since = only(host), str(gpu), run.time_of(first)
        sheet.add("hw_gpu_clock_mhz", mhz - p.clock_mhz, since, run.work_end, name, gpu=card)
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 1.9
        watts = mine - (p.active_w - waited(run, factor))
        sheet.add("hw_gpu_power_watts", watts, since, run.work_end, name, gpu=card)
        degrees = watts / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        sheet.add("hw_gpu_temperature_celsius", degrees, since, run.work_end, name, shape=ramp(since, 90), gpu=card)

    return show


@fault
def pinned_clock(run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place = 0) -> Show:
    """Some GPUs of a host run at a fixed low clock (left over from somebody's `-lgc`): cool, frugal."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for card in gpus:
            gpu = str(card % run.spec.gpus)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, run.work_end, only(host), gpu=gpu)
            less = waited(run, factor) - 0.3 * run.profile.active_w
            sheet.add("hw_gpu_power_watts", less, since, run.work_end, only(host), gpu=gpu)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, run.work_end, only(host), gpu=gpu)

    return show


@fault
def low_boost(run: Run, host: Hosts, factor: float, begin: Place = 0) -> Show:
    """A host's GPUs never boost (a firmware left behind): all of them at work all the time, slow, cool, frugal."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, p = run.time_of(first), run.profile
        for name in many(host):
            for card in range(run.spec.gpus):
                gpu, held = str(card), 1.0 / factor - 0.015 + float(run.rng.uniform(-0.008, 0.008))
                sheet.scale("hw_gpu_clock_mhz", held, since, run.work_end, name, gpu=gpu)
                mine = p.idle_w + (p.active_w - p.idle_w) * factor**-1.7
                less = mine - (p.active_w - waited(run, factor))
                sheet.add("hw_gpu_power_watts", less, since, run.work_end, name, gpu=gpu)
                sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name, gpu=gpu)

    return show


@fault
def clock_steps_down(run: Run, host: Hosts, gpu: int, factors: list[float], begins: list[float]) -> Show:
    """One GPU's clock steps down (a weak voltage regulator), later once more: cool, and never waiting for anybody."""
    places = [*(run.at(float(b)) for b in begins), run.at(1.0)]
    for number, factor in enumerate(factors):
        run.slow(places[number], places[number + 1], factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, p = only(host), str(gpu), run.profile
        for number, factor in enumerate(factors):
            since = run.time_of(places[number])
            until = run.time_of(places[number + 1]) if number + 1 < len(factors) else run.work_end
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, until, name, gpu=card)
            mine = p.idle_w + (p.active_w - p.idle_w) * factor**-1.6
            sheet.add("hw_gpu_power_watts", mine - (p.active_w - waited(run, factor)), since, until, name, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name, gpu=card)

    return show


@fault
def slow_card(run: Run, host: Hosts, gpu: int, mhz: float, factor: float, begin: Place = 0) -> Show:
    """One GPU holds a low clock after a driver event: cool, flat, busy all the time while the others wait for it."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, card, since = run.profile, only(host), str(gpu), run.time_of(first)
        lost = 1.0 - 1.0 / run.factor[: max(1, len(run.ends))]
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 1.8
        sheet.put("hw_gpu_clock_mhz", mhz, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_power_watts", mine - p.active_w, since, run.work_end, name, gpu=card)
        sheet.add(
            "hw_gpu_power_watts", p.active_w - p.spin_w, since, run.work_end, name, shape=by_step(run, lost), gpu=card
        )

    return show


@fault
def low_performance_level(run: Run, hosts: Hosts, factor: float, begin: Place = 0, mhz: float | None = None) -> Show:
    """All GPUs of a host were left at a low performance level: clock flat and low, cool, little power, always busy."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    clock = mhz or 10.0 * round(run.profile.clock_mhz / (factor * 1.12) / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        p = run.profile
        mine = p.idle_w + (p.active_w - p.idle_w) * (clock / p.clock_mhz) ** 2.2
        for name in many(hosts):
            sheet.put("hw_gpu_clock_mhz", clock, since, run.work_end, name)
            sheet.add("hw_gpu_power_watts", mine - (p.active_w - waited(run, factor)), since, run.work_end, name)
            sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name)

    return show


@fault
def clocks_locked(run: Run, host: Hosts, factor: float, begin: Place = 0) -> Show:
    """Somebody locked a server's GPU clocks and forgot it: the clock stands still at one value, power varies below."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    locked = 15.0 * round(run.profile.clock_mhz / factor / 15.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first) if first > run.first else run.start
        waits = run.profile.active_w / factor + run.profile.spin_w * (1.0 - 1.0 / factor)
        less = run.profile.active_w * factor**-1.3 - waits
        for name in many(host):
            sheet.put("hw_gpu_clock_mhz", locked, since, run.work_end, name)
            sheet.add("hw_gpu_power_watts", less, since, run.work_end, name, shape=steps_running(run))
            sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name, shape=steps_running(run))

    return show


@fault
def weak_cards(run: Run, host: Hosts, gpus: list[int], mhz: list[float], begin: Place, bound: float = 0.7) -> Show:
    """Cards of one board hold lower clocks (their voltage regulator sags): cool, frugal, never waiting for anybody."""
    p, first = run.profile, run.at(begin)
    factor = max(1.0 + bound * (p.clock_mhz / m - 1.0) for m in mhz)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        for card, speed in zip(gpus, mhz, strict=True):
            sheet.add("hw_gpu_clock_mhz", speed - p.clock_mhz, since, run.work_end, name, gpu=str(card))
            mine = p.idle_w + (p.active_w - p.idle_w) * (speed / p.clock_mhz) ** 1.7
            sheet.add(
                "hw_gpu_power_watts",
                mine - (p.active_w - waited(run, factor)),
                since,
                run.work_end,
                name,
                gpu=str(card),
            )

    return show


@fault
def locked_clock(run: Run, host: Hosts, factor: float, begin: Place = 0) -> Show:
    """Somebody locked the clocks of a host's GPUs and forgot: flat at a round number, cool, always busy."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, p = run.time_of(first), run.profile
        locked = round(p.clock_mhz / factor / 15.0) * 15.0
        others = p.active_w / factor + p.spin_w * (1 - 1 / factor)
        mine = p.idle_w + (p.active_w - p.idle_w) * factor**-2.0  # clock times voltage squared, over what leaks
        for name in many(host):
            sheet.put("hw_gpu_clock_mhz", locked, since, run.work_end, name)
            sheet.add("hw_gpu_power_watts", mine - others, since, run.work_end, name)
            sheet.add("hw_gpu_temperature_celsius", -3.0, since, run.work_end, name)

    return show


@fault
def quiet_straggler(run: Run, host: Hosts, gpu: int, factor: float, begin: Place) -> Show:
    """One GPU computes slower at normal clocks (weak memory): it works on while all others wait for it."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        more = (1.0 - 1.0 / factor) * (run.profile.active_w - run.profile.spin_w)
        since, name, card = run.time_of(first), only(host), str(gpu)
        sheet.add("hw_gpu_power_watts", 0.9 * more, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", 4.0, since, run.work_end, name, shape=ramp(since, 120), gpu=card)

    return show


@fault
def stuck_clock(run: Run, host: Hosts, gpu: int, mhz: float, begin: Place, bound: float = 0.7) -> Show:
    """One GPU falls back to a low clock and stays there: busy without rest, frugal and cool; all others wait."""
    first = run.at(begin)
    share = mhz / run.profile.clock_mhz
    factor = 1.0 + bound * (1.0 / share - 1.0)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card = run.time_of(first), only(host), str(gpu)
        sheet.put("hw_gpu_clock_mhz", mhz, since, run.work_end, name, gpu=card)
        want = run.profile.active_w * share**1.6 - (run.profile.active_w - waited(run, factor))
        sheet.add("hw_gpu_power_watts", want, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", -7.0, since, run.work_end, name, shape=ramp(since, 120), gpu=card)

    return show


@fault
def stuck_card(run: Run, host: Hosts, gpu: int, factor: float, begin: Place) -> Show:
    """One GPU falls to a low performance state and stays there: low clock, cool, frugal, at work all the time."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card, p = run.time_of(first), only(host), str(gpu), run.profile
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.03, since, run.work_end, name, gpu=card)
        own = p.idle_w + (p.active_w - p.idle_w) * factor**-1.8
        sheet.add("hw_gpu_power_watts", own - (p.active_w - waited(run, factor)), since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", -2.0, since, run.work_end, name, gpu=card)

    return show


@fault
def held_clock(run: Run, host: Hosts, gpu: int, factor: float, begin: Place) -> Show:
    """After a driver event one GPU holds a low clock: cool, flat, at work all the time while the rest waits."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    mhz = 15.0 * round(run.profile.clock_mhz / (1.0 + (factor - 1.0) * 1.2) / 15.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, card, since = run.profile, only(host), str(gpu), run.time_of(first)
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 2
        less = mine - p.active_w + waited(run, factor)
        for a, b in at_work(run, since):
            sheet.put("hw_gpu_clock_mhz", mhz, a, b, name, gpu=card)
            sheet.add("hw_gpu_power_watts", less, a, b, name, gpu=card)

    return show


@fault
def fixed_clock(run: Run, host: Hosts, mhz: float, bound: float = 0.8) -> Show:
    """Application clocks left behind by a benchmark: all GPUs of a host stand at one low clock from the start."""
    factor = 1.0 + bound * (run.profile.clock_mhz / mhz - 1.0)
    run.slow(run.first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, since, until = run.profile, run.steps_from, run.work_end
        mine = p.idle_w + (p.active_w - p.idle_w) * (mhz / p.clock_mhz) ** 1.7
        for name in many(host):
            sheet.put("hw_gpu_clock_mhz", mhz, since, until, name)
            sheet.add("hw_gpu_power_watts", mine - p.active_w + waited(run, factor), since, until, name)
            sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name)

    return show
