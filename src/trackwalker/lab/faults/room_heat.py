"""Heat of rooms, racks and whole servers: coolant, fans, pumps."""

from __future__ import annotations

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, by_step, fault, many, only, waited
from trackwalker.lab.faults.shapes import (
    grown_by_step,
    grown_factors,
    grown_in_time,
    lost_while_computing,
    slows_until,
    sway,
)
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet, ramp
from trackwalker.lab.world import Floats, Run


def _uncooled(run: Run, factor: float) -> float:
    """Degrees that go with those watts."""
    p = run.profile
    return waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)


@fault
def coolant_loop(
    run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, over_s: float = 1500.0, peak: float = 89.0
) -> Show:
    """The coolant of one rack's loop runs short: all GPUs of its servers warm together and clock down at the limit."""
    first, last = run.at(begin), min(run.at(end), run.at(1.0))
    ramped = np.clip((np.arange(max(0, last - first)) + 1.0) * run.spec.step_s / over_s, 0.0, 1.0)
    run.slow(first, last, 1.0 + (factor - 1.0) * ramped)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end if last >= run.at(1.0) else run.time_of(last)
        held = ramp(since, over_s)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, off = str(gpu), float(run.rng.uniform(-2.5, 1.0))
                more = peak + off - run.profile.hot_c
                sheet.add(
                    "hw_gpu_temperature_celsius", more, since - 900, until, name, shape=ramp(since - 900, 960), gpu=card
                )
                sheet.add(
                    "hw_gpu_temperature_celsius", _uncooled(run, factor), since, until, name, shape=held, gpu=card
                )
                slower = 1.0 / factor - 0.01 - 0.006 * off
                sheet.scale("hw_gpu_clock_mhz", slower, since, until, name, shape=held, gpu=card)
                watts = waited(run, factor) - 0.1 * run.profile.active_w
                sheet.add("hw_gpu_power_watts", watts, since, until, name, shape=held, gpu=card)

    return show


@fault
def cloudy_afternoon(run: Run, degrees: float = 4.0) -> Show:
    """Inlet air follows the day: all GPUs a few degrees up and down, far from any limit."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin = run.steps_from
        sheet.add(
            "hw_gpu_temperature_celsius",
            degrees,
            begin,
            run.work_end,
            shape=lambda t: 0.5 - 0.5 * np.cos(2 * np.pi * (t - begin) / 14_400.0),
        )

    return show


@fault
def creeping_heat(run: Run, hosts: Hosts, factor: float, begin: Place, peak: float = 100.0) -> Show:
    """The coolant of a rack warms for a long time; past the limit all GPUs of its hosts clock down, ever more."""
    first = run.at(begin)
    middle = first + (run.at(1.0) - first) // 3
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * grown_by_step(run, middle, run.at(1.0), 0.7))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, limit, end = run.time_of(first), run.time_of(middle), run.work_end
        for name in many(hosts):
            for card in range(run.spec.gpus):
                gpu, less = str(card), float(run.rng.uniform(0, 4))
                # The simulator cools a host that waits; these do not wait.
                hotter = peak - run.profile.hot_c - less
                sheet.add(
                    "hw_gpu_temperature_celsius", hotter, since, end, name, shape=ramp(since, limit - since), gpu=gpu
                )
                cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38)
                shape = grown_in_time(limit, end, 0.7)
                sheet.add("hw_gpu_temperature_celsius", cooled, limit, end, name, shape=shape, gpu=gpu)
                slow = 1.0 / factor - 0.02 + float(run.rng.uniform(0, 0.04))
                sheet.scale("hw_gpu_clock_mhz", slow, limit, end, name, shape=shape, gpu=gpu)
                more = waited(run, factor) - 0.06 * run.profile.active_w
                sheet.add("hw_gpu_power_watts", more, limit, end, name, shape=shape, gpu=gpu)

    return show


@fault
def coolant_waves(run: Run, hosts: Hosts, factor: float, begin: Place, waves: int = 4, peak: float = 88.0) -> Show:
    """The loop of one rack loses flow in waves: its GPUs reach their limit together and give up clock."""
    first, n = run.at(begin) - run.first, run.spec.steps
    index = np.arange(n)
    phase = np.sin(np.pi * (0.5 + 2 * waves * np.clip((index - first) / max(1, n - first), 0, 1)) - 0.5 * np.pi)
    strength = np.where(index >= first, np.clip(0.35 + 0.65 * phase, 0.0, 1.0), 0.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, held = run.profile, by_step(run, strength)
        heat = ramp(run.time_of(run.at(begin)) - 200.0, 300.0)
        back = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, mine = str(gpu), float(run.rng.uniform(-3.0, 1.5))
                since, until = run.time_of(run.at(begin)) - 200.0, run.work_end

                def warm(t: Floats) -> Floats:
                    return heat(t) * (0.55 + 0.45 * held(t))

                sheet.add("hw_gpu_temperature_celsius", peak - p.hot_c + mine, since, until, name, shape=warm, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", back, since, until, name, shape=held, gpu=card)
                slow = 1.0 / factor - float(run.rng.uniform(0.0, 0.03))
                sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=card)
                more = waited(run, factor) - 0.1 * p.active_w
                sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def rack_warms(run: Run, hosts: Hosts, factor: float, begin: Place, over: float = 0.2, peak: float = 103.0) -> Show:
    """A rack's cooling weakens: its servers warm up over many minutes to the limit, then give up clock."""
    first, last = run.at(begin), run.at(1.0)
    run.slow(first, last, grown_factors(run, first, last, factor, over))
    lean = {h: float(run.rng.uniform(0.93, 1.0)) for h in many(hosts)}

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.work_end
        full = run.time_of(run.at(min(1.0, (first - run.first) / run.spec.steps + over)))
        lost = lost_while_computing(run)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card = str(gpu)
                # The sheet cools a GPU that waits; these do not wait, and they are hot.
                hotter = (peak - run.profile.hot_c) * lean[name] - float(run.rng.uniform(0, 3))
                heat = ramp(since - 900.0, max(300.0, full - since) + 600.0)
                sheet.add("hw_gpu_temperature_celsius", hotter, since - 900.0, until, name, shape=heat, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", 30.0, since, until, name, shape=lost, gpu=card)
                deep = float(run.rng.uniform(0.9, 1.15))
                sheet.add("hw_gpu_clock_mhz", -deep * run.profile.clock_mhz, since, until, name, shape=lost, gpu=card)
                more = 0.8 * (run.profile.active_w - run.profile.spin_w)
                sheet.add("hw_gpu_power_watts", more, since, until, name, shape=lost, gpu=card)

    return show


@fault
def ambient(run: Run, degrees: float = 6.0) -> Show:
    """The hall warms in the afternoon and cools again: all GPUs with it, well below any limit; clocks stay."""

    def show(sheet: Sheet, log: JobLog) -> None:
        begin, long = run.steps_from, run.work_end - run.steps_from
        sheet.add(
            "hw_gpu_temperature_celsius",
            degrees,
            begin,
            run.work_end,
            shape=lambda t: np.clip(np.sin(np.pi * (t - begin) / max(long, 1.0)), 0.0, 1.0),
        )

    return show


@fault
def rack_heat(run: Run, hosts: Hosts, factor: float, begin: Place, over: float = 0.15, peak: float = 100.0) -> Show:
    """The coolant of a rack warms up: all GPUs of its hosts heat slowly, reach their limit and clock down."""
    first, full = slows_until(run, begin, over, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(full)
        lead = 600.0
        for name in many(hosts):
            rack_place = float(run.rng.uniform(-2.0, 1.5))  # who sits higher is warmer
            for card in range(run.spec.gpus):
                gpu = str(card)
                hotter = peak - run.profile.hot_c + (1 - 1 / factor) * 25.0 + rack_place + float(run.rng.uniform(-2, 1))
                warm = ramp(since - lead, until - since + lead)
                sheet.add("hw_gpu_temperature_celsius", hotter, since - lead, run.work_end, name, shape=warm, gpu=gpu)
                slow = 1.0 / factor - 0.03 + float(run.rng.uniform(0, 0.05))
                held = ramp(since, until - since)
                sheet.scale("hw_gpu_clock_mhz", slow, since, run.work_end, name, shape=held, gpu=gpu)
                sheet.add("hw_gpu_power_watts", 35.0, since, run.work_end, name, shape=held, gpu=gpu)

    return show


@fault
def fan_tray_stops(
    run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, peak: float = 101.0, settle_s: float = 1500.0
) -> Show:
    """A fan tray stops: the GPUs behind it warm to a new balance and give up clock near their limit."""
    first, n = run.at(begin), run.spec.steps
    steps = np.arange(n) + run.first - first
    warmed = np.where(steps >= 0, 1.0 - np.exp(-np.maximum(steps, 0) * run.spec.step_s / settle_s), 0.0)
    lost = np.clip((warmed - 0.45) / 0.55, 0.0, 1.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * lost)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, since = run.profile, only(host), run.time_of(first)
        heat, held = by_step(run, warmed), by_step(run, lost)
        for gpu in gpus:
            card, mine = str(gpu), float(run.rng.uniform(-3.0, 2.0))
            cold = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
            until = run.work_end
            sheet.add("hw_gpu_temperature_celsius", peak - p.hot_c + mine, since, until, name, shape=heat, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", cold, since, until, name, shape=held, gpu=card)
            slow = 1.0 / factor - float(run.rng.uniform(0.0, 0.02))
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=card)
            more = waited(run, factor) - 0.09 * p.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def fan_tray_slows(
    run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, over: float = 0.15, peak: float = 96.0
) -> Show:
    """A fan tray slows down: the GPUs behind it grow warm, reach their limit and give up clock bit by bit."""
    first, n = run.at(begin) - run.first, run.spec.steps
    strength = np.clip((np.arange(n) - first) / max(1.0, over * n), 0.0, 1.0)
    run.factor = np.maximum(run.factor, 1.0 + (factor - 1.0) * strength)

    def show(sheet: Sheet, log: JobLog) -> None:
        p, name, held = run.profile, only(host), by_step(run, strength)
        since, until = run.time_of(run.at(begin)), run.work_end
        heat, cooled = ramp(since - 420.0, 400.0), (1.0 - 1.0 / factor) * 25.0
        for number, gpu in enumerate(gpus):
            card, less = str(gpu), 2.2 * number
            hotter = peak - p.hot_c - less
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 420.0, until, name, shape=heat, gpu=card)
            sheet.add("hw_gpu_temperature_celsius", cooled, since, until, name, shape=held, gpu=card)
            slow = 1.0 / factor - 0.02 + 0.012 * number
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, shape=held, gpu=card)
            more = waited(run, factor) - 0.07 * p.active_w
            sheet.add("hw_gpu_power_watts", more, since, until, name, shape=held, gpu=card)

    return show


@fault
def fan_tray_half(
    run: Run, host: Hosts, gpus: list[int], factor: float, begin: Place, end: Place = 1.0, peak: float = 88.0
) -> Show:
    """Some fans of a server fail: the GPUs behind them heat up within ten minutes, throttle; their neighbours warm."""
    first, last = run.at(begin), run.at(end)
    n = min(last, run.at(1.0)) - first
    grown = 1.0 + (factor - 1.0) * np.clip((np.arange(n) + 1) / 6.0, 0.0, 1.0)
    run.slow(first, first + n, grown * run.rng.uniform(0.99, 1.01, n))

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name = run.time_of(first), only(host)
        until = run.work_end if last >= run.at(1.0) else run.time_of(last)
        cooled = waited(run, factor) / (run.profile.active_w - run.profile.idle_w) * (run.profile.hot_c - 38.0)
        for card in range(run.spec.gpus):
            gpu = str(card)
            if card not in gpus:
                sheet.add("hw_gpu_temperature_celsius", 5.0, since, until, name, shape=ramp(since, 500), gpu=gpu)
                continue
            hotter = peak - run.profile.hot_c - float(run.rng.uniform(0, 2.5))
            heat = ramp(since - 420, 540)
            sheet.add("hw_gpu_temperature_celsius", hotter, since - 420, until, name, shape=heat, gpu=gpu)
            sheet.add("hw_gpu_temperature_celsius", cooled, since, until, name, gpu=gpu)
            slow = 1.0 / factor - 0.03 + float(run.rng.uniform(0.0, 0.05))
            sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, gpu=gpu)
            sheet.add("hw_gpu_power_watts", 0.8 * waited(run, factor), since, until, name, gpu=gpu)

    return show


@fault
def weak_pump(run: Run, host: Hosts, factor: float, begin: Place, end: Place = 1.0, peak: float = 92.0) -> Show:
    """The pump of a host's cold plates weakens: all its GPUs sit at their limit, clocks hunt up and down below it."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until, p = run.time_of(first), run.time_of(last), run.profile
        cooled = waited(run, factor) / (p.active_w - p.idle_w) * (p.hot_c - 38.0)
        for name in many(host):
            for card in range(run.spec.gpus):
                gpu, phase = str(card), float(run.rng.uniform(0, 6.28))
                hotter = peak - p.hot_c + cooled - float(run.rng.uniform(0, 2.5))
                heat = ramp(since - 420.0, 400.0)
                sheet.add("hw_gpu_temperature_celsius", hotter, since - 420.0, until, name, shape=heat, gpu=gpu)
                held = 1.0 / factor - 0.03 + float(run.rng.uniform(0, 0.04))
                sheet.scale("hw_gpu_clock_mhz", held, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_clock_mhz", 70.0, since, until, name, shape=sway(95.0, phase), gpu=gpu)
                more = waited(run, factor) - 0.08 * p.active_w
                sheet.add("hw_gpu_power_watts", more, since, until, name, gpu=gpu)

    return show
