"""What accounts say of causes: the share of the lost time that each carries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from trackwalker.diagnose.accounts.accounts import MOST, SOME, Account
from trackwalker.diagnose.accounts.waits import Wait, all_waits, rates, source_of
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.record.phases import Eye

MEASURED = Eye(0.02, 0.03, 3.0, wander=0.0)  # weather or not: believed only where a recorded wait carries what was lost


def explained(accounts: tuple[Account, ...], cause: str) -> float | None:
    """The share of all lost time that a cause's account carries; None where no account speaks of it."""
    mine = [(a.lost_s, a.shares[cause]) for a in accounts if cause in a.shares]
    total = sum(a.lost_s for a in accounts)
    return round(sum(lost * share for lost, share in mine) / total, 3) if mine and total > 0 else None


def carried(accounts: tuple[Account, ...], cause: str) -> bool:
    """Whether time in which steps stood still, booked on this cause, makes up most of what an episode lost."""
    return bool(stood_still(accounts, cause))


def stood_still(accounts: tuple[Account, ...], cause: str) -> set[str]:
    """Who stood still by itself, where that makes up most of what an episode lost: whom it is booked on, or all."""
    mine = [b for a in accounts for b in a.bookings if b.cause == cause and b.wait.unit == "wall" and b.share >= MOST]
    return set().union(*(b.hosts or b.during.values for b in mine))


def left_by(account: Account, causes: Collection[str], upper: Callable[[Wait], bool]) -> float:
    """The share of a loss that these causes do not carry.

    Threads that wait for a CPU are many to a step: what they wait counts for a rank that is told from the others by it,
    where `upper` bounds of a wait count.
    """
    sure = (b for b in account.bookings if b.wait.unit == "wall" or (b.hosts and upper(b.wait)))
    return 1.0 - sum(b.share for b in sure if b.cause in causes)


def with_owner(accounts: tuple[Account, ...], owners: Sequence[tuple[str, set[int] | None]]) -> tuple[Account, ...]:
    """The same with idle devices that carry an episode booked on the first of these causes that speaks for it."""
    out = []
    for account in accounts:
        mine = [cause for cause, phases in owners if phases is None or (account.slow and account.slow <= phases)]
        owner = mine[0] if mine else None
        bookings = (replace(b, cause=owner) if b.wait.devices and b.share >= MOST else b for b in account.bookings)
        out.append(replace(account, bookings=tuple(bookings)))
    return tuple(out)


def standing(case: Case, symptoms: Symptoms) -> dict[str, str]:
    """Causes whose wait takes a good part of the time and for which no stretch without it tells what it costs."""
    windows = symptoms.windows.get("slow") or symptoms.windows.get("steady")
    out: dict[str, str] = {}
    for wait in all_waits():
        source = source_of(case, wait.queries)
        # Thread-seconds that did not rise do not prove that nobody had to wait.
        booked = wait.unit == "wall" and any(a.booked(wait.id) is not None for a in symptoms.accounts if a.slow)
        if wait.cause is None or source is None or not windows or booked:
            continue
        found = rates(case, source, max(windows, key=lambda w: w.seconds)).values
        longest = max(found, key=lambda h: (found[h], h), default=None)
        if longest is not None and found[longest] >= SOME:
            said = f"{longest} {wait.words} {found[longest]:.3g} s of every second"
            out[wait.cause] = f"a stretch of the run without it ({said})"
    return out
