"""Heat of single GPUs."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, fault, only, waited
from trackwalker.lab.faults.shapes import cooler_when_waiting, lost_since, slows_over
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _cooled(run: Run, factor: float) -> float:
    """Degrees that go with those watts."""
    return waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38.0)


@fault
def thermal(
    run: Run, host: Hosts, gpu: int, factor: float, begin: Place, end: Place = 1.0, peak: float = 101.0
) -> Show:
    """One GPU overheats and clocks down; the others wait and cool."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, card = run.time_of(first), run.time_of(last), str(gpu)
        name = only(host)
        hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0
        sheet.add(
            "hw_gpu_temperature_celsius", hotter, since - 240, until, name, shape=ramp(since - 240, 300), gpu=card
        )
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.05, since, until, name, gpu=card)
        sheet.add("hw_gpu_power_watts", 60.0, since, until, name, gpu=card)

    return show


@fault
def host_heat(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, peak: float = 102.0) -> Show:
    """Every GPU of a host overheats (a fan, the air): all of them clock down, not quite alike."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for card in range(run.spec.gpus):
            hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0 - float(run.rng.uniform(0, 5))
            name, gpu = only(host), str(card)
            heat = ramp(since - 300, 360)
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 300, until, name, shape=heat, gpu=gpu)
            slow = 1.0 / factor - 0.04 + float(run.rng.uniform(0, 0.06))
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, gpu=gpu)
            sheet.add("hw_gpu_power_watts", 40.0, since, until, name, gpu=gpu)

    return show


@fault
def dry_paste_until_warm(run: Run, host: Hosts, gpu: int, factor: float, begin: Place, peak: float = 90.0) -> Show:
    """A GPU's cooler has lost contact: warmer than its neighbours all along, and once the room warms, at its limit."""
    first = run.at(begin)
    n = run.at(1.0) - first
    run.slow(first, run.at(1.0), 1.0 + (factor - 1.0) * run.rng.uniform(0.7, 1.3, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, name, card = run.time_of(first), run.work_end, only(host), str(gpu)
        before = 0.4 * (peak - run.profile.hot_c)
        sheet.add("hw_gpu_temperature_celsius", before, run.steps_from + 60, until, name, gpu=card)
        more, rises = peak - run.profile.hot_c - before, ramp(since - 900.0, 900.0)
        sheet.add("hw_gpu_temperature_celsius", more, since - 900.0, until, name, shape=rises, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", _cooled(run, factor), since, until, name, gpu=card)

        def hunts(t: Floats) -> Floats:
            return np.abs(np.sin((t - since) / 41.0))

        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, until, name, gpu=card)
        sheet.add("hw_gpu_clock_mhz", -60.0, since, until, name, shape=hunts, gpu=card)
        own = waited(run, factor) - 0.05 * run.profile.active_w
        sheet.add("hw_gpu_power_watts", own, since, until, name, gpu=card)

    return show


@fault
def half_chassis(
    run: Run, host: Hosts, factor: float, begin: Place, over: float = 0.1, peak: float = 92.0, first_gpu: int = 4
) -> Show:
    """A fan of a server fails: the GPUs behind it warm up to their limit and clock down, those beside it do not."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = 1.0 + (factor - 1.0) * np.clip((index - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since, until = only(host), run.time_of(first), run.work_end
        full = max(60.0, run.time_of(first + round(over * n)) - since)
        for card in range(first_gpu, run.spec.gpus):
            gpu, far = str(card), float(run.rng.uniform(0, 4))
            cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38)
            heat = ramp(since - 500.0, full + 400.0)
            hotter = peak - run.profile.hot_c - far
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 500.0, until, name, shape=heat, gpu=gpu)
            held = ramp(since, full)
            sheet.add("hw_gpu_temperature_celsius", 0.6 * cooled, since, until, name, shape=held, gpu=gpu)
            slow = 1.0 / factor - 0.02 + 0.012 * far
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=gpu)
            more = waited(run, factor) - 0.08 * run.profile.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=gpu)

    return show


@fault
def thermal_swings(
    run: Run, host: Hosts, gpu: int, factor: float, times: int, steps: int, begin: Place, peak: float = 90.0
) -> Show:
    """A GPU reaches its limit again and again and cools down in between: the air of the room comes and goes."""
    starts = np.linspace(run.at(begin), run.at(1.0) - steps - 2, times).astype(int).tolist()
    for s in starts:
        run.slow(s, s + steps, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card = only(host), str(gpu)
        hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            heat = ramp(since - 60, 70)
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 60, until, name, shape=heat, gpu=card)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.03, since, until, name, gpu=card)
            sheet.add("hw_gpu_power_watts", 30.0, since, until, name, gpu=card)

    return show


@fault
def hot_gpu(
    run: Run, host: Hosts, gpu: int, factor: float, begin: Place, over: float = 0.12, peak: float = 90.0
) -> Show:
    """Paste or cold plate of one GPU gives way: it heats to its limit and holds it by giving up clock, never idle."""
    first = slows_over(run, begin, over, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since, until = only(host), str(gpu), run.time_of(first), run.work_end
        full = max(120.0, run.time_of(first + round(over * run.spec.steps)) - since)
        held, warms = ramp(since, full), ramp(since - 400, 420)
        hotter = peak - run.profile.hot_c
        sheet.add("hw_gpu_temperature_celsius", hotter, since - 400, until, name, shape=warms, gpu=card)
        lost = lost_since(run, first)
        sheet.add("hw_gpu_temperature_celsius", cooler_when_waiting(run), since, until, name, shape=lost, gpu=card)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.02, since, until, name, shape=held, gpu=card)
        more = waited(run, factor) - 0.12 * run.profile.active_w
        sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def dry_paste(
    run: Run, host: Hosts, gpu: int, factor: float, begin: Place, over: float = 0.35, peak: float = 88.0
) -> Show:
    """A GPU's thermal paste has pumped out: it climbs to its limit, then clocks down and up below it."""
    first, n = run.at(begin), run.spec.steps
    index = np.arange(n) + run.first
    grown = np.clip((index - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, card, since, until = only(host), str(gpu), run.time_of(first), run.work_end
        held = by_step(run, grown)
        climbed = ramp(since - 900.0, 1500.0)
        hotter = peak - run.profile.hot_c
        cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38.0)
        sheet.add("hw_gpu_temperature_celsius", hotter, since - 900.0, until, name, shape=climbed, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", 0.5 * cooled, since, until, name, shape=held, gpu=card)
        drop = 1.0 - (1.0 / factor - 0.015)

        def hunting(t: Floats) -> Floats:
            return held(t) * (1.0 + 0.35 * np.sin(0.09 * t))

        sheet.scale("hw_gpu_clock_mhz", 1.0 - drop, since, until, name, shape=hunting, gpu=card)
        more = waited(run, factor) - 0.12 * run.profile.active_w
        sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def hot_pair(run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, peak: float) -> Show:
    """A blocked duct: two neighbours heat up to their limit within a quarter of an hour and hold it by slowing down."""
    first = run.at(begin)
    n = run.spec.steps
    index = np.arange(n) + run.first
    grown = np.clip((index - first + 1) / max(1.0, 0.1 * n), 0.0, 1.0) * (index >= first)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, since, until = run.profile, only(host), run.time_of(first), run.work_end
        held, warms = by_step(run, grown), ramp(since - 600.0, 700.0)
        back = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        for gpu in gpus:
            card = str(gpu % run.spec.gpus)
            mine = peak - p.hot_c - float(run.rng.uniform(0.0, 1.5))
            sheet.add("hw_gpu_temperature_celsius", mine, since - 600.0, until, name, shape=warms, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", back, since, until, name, shape=held, gpu=card)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.03, since, until, name, shape=held, gpu=card)
            more = waited(run, factor) - 0.14 * p.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show
