"""Power limits and lost supplies: of one GPU, a server, a rack, a site."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trackwalker.lab.faults.base import Hosts, Place, Show, ends_at, fault, many, only, waited
from trackwalker.lab.faults.shapes import at_work, filled, sway
from trackwalker.lab.joblog import JobLog
from trackwalker.lab.sheet.overlays import Sheet
from trackwalker.lab.world import Floats, Run


def _wobble(speed: float, phase: float) -> Callable[[Floats], Floats]:
    """Between -1 and 1, never the same twice in a row."""
    return lambda t: np.sin(speed * t + phase) * np.cos(0.31 * t + phase)


@fault
def power_cap(run: Run, factor: float, begin: Place = 0, hosts: Hosts | None = None, share: float = 0.75) -> Show:
    """A lower power limit: power flat at the cap, clocks down, cool."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        cap = run.profile.active_w * share
        for host in many(hosts) if hosts else run.hosts:
            sheet.put("hw_gpu_power_watts", cap, since, run.work_end, host)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end, host)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, run.work_end, host)

    return show


@fault
def capped(run: Run, factor: float, begin: Place, share: float = 0.72) -> Show:
    """All GPUs of the cluster get a lower power limit: less power, lower clocks, cooler, at full work."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        # The simulator lowers power for hosts that wait; here nobody waits, all compute at the limit.
        waiting = (1 - 1 / factor) * (run.profile.active_w - run.profile.spin_w)
        want = share * run.profile.active_w - (run.profile.active_w - waiting)
        sheet.add("hw_gpu_power_watts", want, since, run.work_end)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end)
        sheet.add("hw_gpu_temperature_celsius", -7.0, since, run.work_end)

    return show


@fault
def power_spread(run: Run, watts: float = 60.0) -> Show:
    """GPUs differ: the natural spread of a batch of chips."""
    offsets = run.rng.uniform(-watts / 2, watts / 2, (len(run.hosts), run.spec.gpus))

    def show(sheet: Sheet, log: JobLog) -> None:
        for i, host in enumerate(run.hosts):
            for gpu in range(run.spec.gpus):
                sheet.add(
                    "hw_gpu_power_watts", float(offsets[i, gpu]), run.steps_from, run.work_end, host, gpu=str(gpu)
                )

    return show


@fault
def leftover_cap(run: Run, hosts: Hosts, factor: float, cap_w: float, begin: Place = 0) -> Show:
    """Somebody lowered the board limit of a server for a test and left it: power stands at the limit, clocks waver."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since = run.time_of(first)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

                def waver(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.7 * t + phase)

                sheet.put("hw_gpu_power_watts", cap_w, since, run.work_end, name, gpu=card)
                sheet.add("hw_gpu_power_watts", 1.5, since, run.work_end, name, shape=waver, gpu=card)
                slower = 1.0 / factor - 0.02 + float(run.rng.uniform(-0.015, 0.015))
                sheet.scale("hw_gpu_clock_mhz", slower, since, run.work_end, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 25.0, since, run.work_end, name, shape=waver, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -3.0, since, run.work_end, name, gpu=card)

    return show


@fault
def rack_cap(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, share: float = 0.74) -> Show:
    """The power controller of a rack lowers the limit of its GPUs: they compute all the time, at less power."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        want = share * run.profile.active_w - (run.profile.active_w - waited(run, factor))
        for name in many(hosts):
            sheet.add("hw_gpu_power_watts", want, since, until, name)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until, name)
            sheet.add("hw_gpu_temperature_celsius", -5.0, since, until, name)

    return show


@fault
def feed_lost(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """A power feed of a rack fails: its servers halve their reserve and hold all their GPUs at a lower wattage."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    cap = 10.0 * round(run.profile.active_w * factor**-1.5 / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), ends_at(run, last)
        for name in many(hosts):
            for card in range(run.spec.gpus):
                gpu, phase, off = str(card), float(run.rng.uniform(0, 6.28)), float(run.rng.uniform(-1.5, 1.0))

                def jitter(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.7 * t + phase) * np.cos(0.13 * t + 2 * phase)

                sheet.put("hw_gpu_power_watts", cap + off, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_power_watts", 2.5, since, until, name, shape=jitter, gpu=gpu)
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.01, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_clock_mhz", 40.0, since, until, name, shape=jitter, gpu=gpu)
                sheet.add("hw_gpu_temperature_celsius", -3.0, since, until, name, gpu=gpu)

    return show


@fault
def cap_windows(run: Run, factor: float, windows: list[list[float]], share: float = 0.72) -> Show:
    """The site lowers the power limit of all its GPUs at hours of high demand, and lifts it again."""
    places = [(run.at(float(a)), run.at(float(b))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        want = share * run.profile.active_w - (run.profile.active_w - waited(run, factor))
        for a, b in places:
            since, until = run.time_of(a), run.time_of(b)
            sheet.add("hw_gpu_power_watts", want, since, until)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until)
            sheet.add("hw_gpu_temperature_celsius", -6.0, since, until)

    return show


@fault
def cap_stairs(run: Run, shares: list[float], begins: list[float], back: Place = 1.0) -> Show:
    """The site lowers the power limit of all GPUs step by step (a feeder at its limit) and lifts it at the end."""
    places = [*(run.at(float(b)) for b in begins), run.at(back)]
    factors = [1.0 / (share**0.62) for share in shares]
    for a, b, f in zip(places, places[1:], factors, strict=False):
        run.slow(a, b, f)

    def show(sheet: Sheet, log: JobLog) -> None:
        for a, b, f, share in zip(places, places[1:], factors, shares, strict=False):
            since = run.time_of(a)
            until = run.work_end if b >= run.at(1.0) else run.time_of(b)
            cap = 5.0 * round(share * run.profile.active_w / 5.0)
            for host in run.hosts:
                for gpu in range(run.spec.gpus):
                    phase = float(run.rng.uniform(0, 6.28))

                    def hum(t: Floats, phase: float = phase) -> Floats:
                        return np.sin(1.7 * t + phase)

                    sheet.put("hw_gpu_power_watts", cap, since, until, host, gpu=str(gpu))
                    sheet.add("hw_gpu_power_watts", 2.0, since, until, host, shape=hum, gpu=str(gpu))
            sheet.scale("hw_gpu_clock_mhz", 1.0 / f, since, until)
            sheet.add("hw_gpu_temperature_celsius", -5.0, since, until)

    return show


@fault
def card_limit(run: Run, host: Hosts, gpu: int, factor: float, begin: Place = 0) -> Show:
    """One GPU got a lower power limit: it works without rest, its power pinned at the limit, its clock below."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    limit = 10.0 * round(run.profile.active_w * factor**-1.7 / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, name, card = run.time_of(first), only(host), str(gpu)
        sheet.put("hw_gpu_power_watts", limit, since, run.work_end, name, gpu=card)

        def hum(t: Floats) -> Floats:
            return np.sin(1.3 * t) * np.cos(0.37 * t)

        sheet.add("hw_gpu_power_watts", 1.5, since, run.work_end, name, shape=hum, gpu=card)
        sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, run.work_end, name, gpu=card)
        sheet.add("hw_gpu_clock_mhz", 35.0, since, run.work_end, name, shape=hum, gpu=card)
        sheet.add("hw_gpu_temperature_celsius", -3.0, since, run.work_end, name, gpu=card)

    return show


@fault
def duty_cap(
    run: Run, hosts: Hosts, factor: float, begin: Place, every: int, steps: int, end: Place = 1.0, share: float = 0.7
) -> Show:
    """A power shelf without its redundant supply caps the servers on it whenever its load is high, again and again."""
    starts = list(range(run.at(begin), min(run.at(end), run.at(1.0)) - steps, every))
    for s in starts:
        run.slow(s, s + steps, factor)
    cap = 5.0 * round(share * run.profile.active_w / 5.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        for s in starts:
            since, until = run.time_of(s), run.time_of(s + steps)
            for name in many(hosts):
                for gpu in range(run.spec.gpus):
                    card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

                    def hum(t: Floats, phase: float = phase) -> Floats:
                        return np.sin(1.9 * t + phase)

                    sheet.put("hw_gpu_power_watts", cap, since, until, name, gpu=card)
                    sheet.add("hw_gpu_power_watts", 2.5, since, until, name, shape=hum, gpu=card)
                    sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until, name, gpu=card)
                    sheet.add("hw_gpu_clock_mhz", 30.0, since, until, name, shape=hum, gpu=card)
                    sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name, gpu=card)

    return show


@fault
def supply_brake(run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0) -> Show:
    """A server that lost a power supply limits its GPUs: power pinned at the limit, clocks hunt below it, cooler."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)
    cap = 5.0 * round(run.profile.active_w * factor**-1.6 / 5.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                card, phase = str(gpu), float(run.rng.uniform(0, 6.28))
                sheet.put("hw_gpu_power_watts", cap, since, until, name, gpu=card)
                sheet.add(
                    "hw_gpu_power_watts",
                    2.0,
                    since,
                    until,
                    name,
                    shape=_wobble(1.7, phase),
                    gpu=card,
                )
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor, since, until, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 45.0, since, until, name, shape=_wobble(0.9, phase), gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -4.0, since, until, name, gpu=card)

    return show


@fault
def breaker_windows(run: Run, hosts: Hosts, factor: float, windows: list[list[float]], share: float = 0.7) -> Show:
    """The controller of a rack's feed lowers the limit of its GPUs when the feed is near its rating, and lifts it."""
    places = [(run.at(float(a)), run.at(float(b))) for a, b in windows]
    for a, b in places:
        run.slow(a, b, factor * float(run.rng.uniform(0.99, 1.01)))

    def show(sheet: Sheet, log: JobLog) -> None:
        p = run.profile
        want = share * p.active_w - (p.active_w - waited(run, factor))
        for a, b in places:
            since, until = run.time_of(a), ends_at(run, b)
            for name in many(hosts):
                sheet.add("hw_gpu_power_watts", want, since, until, name)
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.01, since, until, name)

    return show


@fault
def power_brake(run: Run, host: Hosts, factor: float, times: int, steps: int, begin: Place, text: str = "") -> Show:
    """A power supply asks its node to brake: all GPUs at a fraction of clock and power for some steps, then free."""
    starts = np.linspace(run.at(begin), run.at(1.0) - steps - 4, times).astype(int).tolist()
    lengths = [steps + int(run.rng.integers(-2, 3)) for _ in starts]
    for s, n in zip(starts, lengths, strict=True):
        run.slow(s, s + n, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, p = only(host), run.profile
        others = p.active_w / factor + p.spin_w * (1 - 1 / factor)
        for s, n in zip(starts, lengths, strict=True):
            since, until = run.time_of(s), run.time_of(s + n)
            sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.05, since, until, name)
            sheet.add("hw_gpu_power_watts", 0.47 * p.active_w - others, since, until, name)
            sheet.add("hw_gpu_temperature_celsius", -5.0, since, until, name)
            if text:
                log.say(since + 25.0, text.replace("{host}", name).rstrip("\n"), run.hosts.index(name))

    return show


@fault
def demand_response(run: Run, factor: float, begin: Place, end: Place, share: float = 0.8) -> Show:
    """The site sheds load for a while: every GPU gets a lower power limit, computes on below it, and is let go."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), run.time_of(last)
        limit = 5.0 * round(share * run.profile.active_w / 5.0)
        for name in run.hosts:
            for card in range(run.spec.gpus):
                gpu, phase = str(card), float(run.rng.uniform(0, 6.28))
                sheet.put("hw_gpu_power_watts", limit, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_power_watts", 2.0, since, until, name, shape=sway(37.0, phase), gpu=gpu)
                held = 1.0 / factor + float(run.rng.uniform(-0.012, 0.012))
                sheet.scale("hw_gpu_clock_mhz", held, since, until, name, gpu=gpu)
                sheet.add("hw_gpu_temperature_celsius", -3.0, since, until, name, gpu=gpu)

    return show


@fault
def supply_lost(run: Run, host: Hosts, factor: float, begin: Place, share: float = 0.68, text: str = "") -> Show:
    """One of a server's supplies fails: its firmware holds all GPUs at a common, lower power."""
    first = run.at(begin)
    run.slow(first, run.at(1.0), factor)
    cap = 10.0 * round(share * run.profile.active_w / 10.0)

    def show(sheet: Sheet, log: JobLog) -> None:
        name, since = only(host), run.time_of(first)
        for gpu in range(run.spec.gpus):
            card, phase = str(gpu), float(run.rng.uniform(0, 6.28))

            def hum(t: Floats, phase: float = phase) -> Floats:
                return np.sin(2.3 * t + phase)

            for a, b in at_work(run, since):
                sheet.put("hw_gpu_power_watts", cap, a, b, name, gpu=card)
                sheet.add("hw_gpu_power_watts", 3.0, a, b, name, shape=hum, gpu=card)
                sheet.scale("hw_gpu_clock_mhz", 1.0 / factor - 0.01, a, b, name, gpu=card)
                sheet.add("hw_gpu_clock_mhz", 25.0, a, b, name, shape=hum, gpu=card)
        if text:
            log.say(since + 3.0, filled(run, text, name, since + 3.0), run.hosts.index(name))

    return show


@fault
def power_shelf_lost(
    run: Run, hosts: Hosts, factor: float, begin: Place, end: Place = 1.0, share: float = 0.68
) -> Show:
    """A power shelf fails: the boards behind it hold their GPUs at a lower limit until it is exchanged."""
    first, last = run.at(begin), run.at(end)
    run.slow(first, last, factor)

    def show(sheet: Sheet, log: JobLog) -> None:
        since, until = run.time_of(first), ends_at(run, last)
        cap = 10.0 * round(share * run.profile.active_w / 10.0)
        for name in many(hosts):
            for gpu in range(run.spec.gpus):
                phase = float(run.rng.uniform(0.0, 6.28))

                def hum(t: Floats, phase: float = phase) -> Floats:
                    return np.sin(0.9 * t + phase)

                card = str(gpu)
                sheet.put("hw_gpu_power_watts", cap, since, until, name, gpu=card)
                sheet.add("hw_gpu_power_watts", 3.0, since, until, name, shape=hum, gpu=card)
                slow = 1.0 / factor + float(run.rng.uniform(-0.02, 0.01))
                sheet.scale("hw_gpu_clock_mhz", slow, since, until, name, gpu=card)
                sheet.add("hw_gpu_temperature_celsius", -5.0, since, until, name, gpu=card)

    return show
