"""Questions about the accounts, by name, for cause files: was the time lost to this wait, or to another?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from trackwalker.diagnose.accounts.accounts import MOST, SAVES, SOME, Account, Booking
from trackwalker.diagnose.accounts.waits import all_waits
from trackwalker.diagnose.case import Case
from trackwalker.diagnose.causes.evidence import EvidenceBook
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.facts.log_facts import FACTS, Answer
from trackwalker.record.phases import LEAST_LOST_S

_NEARLY_ALL = 0.75  # of a loss: who lacks batches idles through all of it; busy for longer, devices wait for each other
_NEXT = 5  # steps between two slow stretches that follow each other
_DEVICES = {w.id for w in all_waits() if w.devices}
IDLENESS = frozenset({*(f"lost-to-{w}" for w in _DEVICES), "idle-in-slow-steps"})  # facts that tell of nothing else


def lost_to(wait: str, case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Whether most of the time lost in some episode was spent in this wait."""
    saves = [a for a in symptoms.accounts if a.episode == SAVES]
    episodes = {a.episode: a for a in (*_episodes(symptoms), *saves)}
    asked = [(a, b) for a in episodes.values() if (b := a.booked(wait)) is not None]
    if not asked:
        return Answer(None)
    mine = [(a, b) for a, b in asked if b.share >= (_NEARLY_ALL if wait in _DEVICES else MOST)]
    if mine:
        hosts = {h for _, b in mine for h in b.hosts}
        evidence = [i for a, b in mine for i in (measured(b, book), told(case, a, book))]
        return Answer(True, tuple(evidence), tuple(sorted(hosts)), mine[0][0].since, _phases(a for a, _ in mine))
    further = [(a, b, rest) for a, b in asked if (rest := _further(a, b, asked)) is not None]
    if further and wait not in _DEVICES:
        hosts = {h for _, b, _ in further for h in b.hosts}
        evidence = [
            i for a, b, rest in further for i in (measured(b, book), told(case, a, book), _more(a, b, rest, book))
        ]
        return Answer(
            True, tuple(evidence), tuple(sorted(hosts)), further[0][0].since, _phases(a for a, _, _ in further)
        )
    if any(b.share >= SOME for _, b in asked):
        return Answer(None)  # a part of the loss: neither the cause nor ruled out
    return Answer(False, tuple(measured(b, book) for _, b in asked))


def _further(account: Account, booking: Booking, asked: list[tuple[Account, Booking]]) -> tuple[float, float] | None:
    """What steps lost beyond the pace of the slow steps right before them, and the wait's share of that, if most."""
    before = next((x for x in asked if x[0].slow and account.slow and max(x[0].slow) + 1 == min(account.slow)), None)
    if before is None or account.steps[0] - before[0].steps[1] > _NEXT or booking.wait.unit != "wall":
        return None  # what is only an upper bound carries no rest
    length, past = (a.steps[1] - a.steps[0] + 1 for a in (account, before[0]))
    pace = before[0].lost_s / past * length
    rest = account.lost_s - pace
    if rest < SOME * account.lost_s or rest < LEAST_LOST_S:
        return None
    share = (booking.share * account.lost_s - before[1].share * pace) / rest
    return (rest, share) if share >= MOST else None


def _more(account: Account, booking: Booking, rest: tuple[float, float], book: EvidenceBook) -> str:
    first, last = account.steps
    lost_s, share = rest[0], min(rest[1], 1.0)
    says = (
        f"steps {first}..{last} lost {lost_s:.1f} s more than at the pace of the slow steps before them; "
        f"{100 * share:.0f} % of it is {booking.cause or booking.wait.id}"
    )
    source = f"steps {first}..{last} against the slow steps before them, and recorded waits"
    return book.add("progress", source, says, {"lost_s": lost_s, "share": share})


def lost_besides(wait: str, case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Whether the time was lost to other waits than this one."""

    def others(account: Account) -> float:
        mine = account.booked(wait)
        free = mine is None or mine.share < SOME
        return sum(b.share for b in account.bookings if free and b.wait.id not in _DEVICES | {wait})

    return _elsewhere(case, symptoms, book, others, MOST)


def devices_idled(case: Case, symptoms: Symptoms, book: EvidenceBook) -> Answer:
    """Whether nearly all the time was lost while the devices had nothing to do: a slow device or link keeps them busy.

    Where devices were looked at they tell: threads that wait for a CPU are an upper bound.
    """
    if not symptoms.slow:
        return Answer(None)
    return _elsewhere(case, symptoms, book, _idled, _NEARLY_ALL)


def _idled(account: Account) -> float:
    """The share of a loss in which the devices had nothing to do, beyond doubt."""
    devices = max((b.least for b in account.bookings if b.wait.devices), default=None)
    still = sum(b.share for b in account.bookings if devices is None or b.wait.unit == "wall")
    return max(still, devices or 0.0)


def _elsewhere(
    case: Case, symptoms: Symptoms, book: EvidenceBook, share: Callable[[Account], float], least: float
) -> Answer:
    lost = [a for a in _episodes(symptoms) if share(a) >= least]
    if not lost:
        return Answer(False if symptoms.accounts else None)
    evidence = [
        i for a in lost for i in (*(measured(b, book) for b in a.bookings if b.share >= SOME), told(case, a, book))
    ]
    return Answer(True, tuple(evidence), (), lost[0].since, _phases(lost))


def _episodes(symptoms: Symptoms) -> list[Account]:
    """The slow episodes, where there are any; else the single long steps and slower saves."""
    slow = [a for a in symptoms.accounts if a.slow]
    return slow or [a for a in symptoms.accounts if a.step_s is not None]


def _phases(accounts: Iterable[Account]) -> frozenset[int] | None:
    held = frozenset().union(*(a.slow for a in accounts))
    return held or None


def measured(booking: Booking, book: EvidenceBook) -> str:
    """The wait itself, as its query gives it back."""
    host, now, before = booking.longest, booking.during, booking.before
    longest = max(now.values, key=lambda h: (now.values[h], h)) if host not in now.values else host
    says = f"{longest} {booking.wait.words} {now.values[longest]:.3g} s of every second"
    values = _few(now.values, longest)
    if before is None or longest not in before.values:
        return book.add("metric", now.query, f"{says}; nothing was recorded before", values)
    query = f'{now.query} or label_replace({before.query}, "window", "fast", "", "")'
    values |= {f"{h}/fast": v for h, v in _few(before.values, longest).items()}
    return book.add("metric", query, f"{says}, {before.values[longest]:.3g} s in a faster stretch", values)


def told(case: Case, account: Account, book: EvidenceBook) -> str:
    """The account in a sentence made of its own numbers."""
    shares = {name: round(share, 2) for name, share in account.shares.items()}
    carried = ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items() if share > 0)
    first, last = account.steps
    step = account.step_s or 0.0
    says = f"steps {first}..{last} lost {account.lost_s:.1f} s against {step:.3f} s a step; of that {carried}"
    source = (
        f"{case.timeline.source if case.timeline else case.log.path.name}: steps {first}..{last} and recorded waits"
    )
    return book.add("progress", source, says, {"lost_s": account.lost_s, "step_s": step, **shares})


def _few(values: dict[str, float], longest: str, most: int = 16) -> dict[str, float]:
    order = sorted(values, key=lambda h: (h != longest, -values[h], h))
    return {h: values[h] for h in order[:most]}


FACTS.update({f"lost-to-{w.id}": partial(lost_to, w.id) for w in all_waits()})
FACTS.update({f"lost-besides-{w.id}": partial(lost_besides, w.id) for w in all_waits()})
FACTS["devices-idled"] = devices_idled
