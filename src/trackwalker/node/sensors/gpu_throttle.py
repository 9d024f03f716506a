"""What holds an AMD GPU's clocks down, from its gpu_metrics table."""

from __future__ import annotations

from trackwalker.node.sensors.gpu_metrics import Values

# Tables from 1.6 on count, in cycles of about a millisecond, how long each limit was in force.
_RESIDENCIES = {
    "power": "ppt_residency_acc",
    "thermal": "socket_thm_residency_acc",
    "hbm_thermal": "hbm_thm_residency_acc",
    "vr_thermal": "vr_thm_residency_acc",
    "prochot": "prochot_residency_acc",
}
# Table 1.3 has one bit for each limit, the same on every ASIC (SMU_THROTTLER_*_BIT of the driver).
_BITS = {
    "power": range(0, 8),
    "current": range(16, 24),
    "thermal": (32, 33, 35, 36, 37, 42, 43),
    "hbm_thermal": (34,),
    "vr_thermal": (38, 39, 40, 41, 44, 45),
    "prochot": (46, 47),
}
_MASKS = {reason: sum(1 << bit for bit in bits) for reason, bits in _BITS.items()}
_WRAP = 1 << 32


def active_limits(table: Values) -> dict[str, bool]:
    """The limits in force by the bits of a 1.3 table; nothing for other tables, whose bits differ between ASICs."""
    (bits,) = table.get("indep_throttle_status", (None,))
    return {} if bits is None else {reason: bool(bits & mask) for reason, mask in _MASKS.items()}


class Residency:
    """Turns the growth of the residency counters between two reads into seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last: dict[str, int] = {}

    def update(self, table: Values) -> dict[str, bool]:
        """Take a table in; which limits held since the one before."""
        now = {
            name: table[name][0]
            for name in ("accumulation_counter", "system_clock_counter", *_RESIDENCIES.values())
            if name in table
        }
        known = {name: value for name, value in now.items() if value is not None}
        last, self._last = self._last, known or self._last
        cycles = known.get("accumulation_counter")
        if cycles is None or "system_clock_counter" not in known:
            return {}
        held = {}
        for reason, field in _RESIDENCIES.items():
            # Some firmware copies the cycle counter into a residency it does not measure.
            if field not in known or known[field] == cycles:
                continue
            self.seconds.setdefault(reason, 0.0)
            if field not in last or "accumulation_counter" not in last:
                continue
            passed = (cycles - last["accumulation_counter"]) % _WRAP
            grown = (known[field] - last[field]) % _WRAP
            elapsed = (known["system_clock_counter"] - last["system_clock_counter"]) / 1e9
            if passed > 0 and grown <= passed and elapsed > 0:  # else the GPU was reset in between
                self.seconds[reason] += elapsed * grown / passed
                held[reason] = grown > 0
        return held
