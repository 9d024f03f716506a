"""What the causes found account for, which stand behind others by the causal graph, and how far before the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trackwalker.diagnose.accounts.accounts import SOME, Account
from trackwalker.diagnose.accounts.shares import left_by
from trackwalker.diagnose.accounts.waits import Wait, all_waits
from trackwalker.diagnose.causes.examine import Examination
from trackwalker.diagnose.causes.playbook import Playbook
from trackwalker.diagnose.causes.states import Graph
from trackwalker.diagnose.deviations.sweep import Deviation
from trackwalker.diagnose.deviations.unclassified import CAP, Suspicion, reasons
from trackwalker.diagnose.episodes.episodes import Episode, alone
from trackwalker.diagnose.episodes.symptoms import Symptoms
from trackwalker.diagnose.verdict import Role
from trackwalker.logs.failures.findings import Finding
from trackwalker.telemetry.meaning import meaning_of

_AFTERMATH = ("consequence", "mechanism", "note")  # of the log's own first word
_SEVERAL = 3  # hosts: two bad ports at once are bad luck, three are something they share


@dataclass(frozen=True)
class Claim:
    """A found cause: the quantities that speak for it, and its culprits (none: nobody in particular)."""

    cause: str
    quantities: frozenset[str]
    hosts: frozenset[str]
    told_by_log: bool  # nothing but log lines speaks for it
    rising: frozenset[str] = frozenset()  # of the quantities those that are worse when they rise

    def comes_of(self, seen: frozenset[str], graph: Graph, *quantities: str) -> bool:
        """Whether what is seen of it on its hosts can come of these: what rises comes of no idle device."""
        up = seen & self.rising
        return seen <= graph.follows(*quantities) and up <= graph.follows(*quantities, idling=False)

    def covers(self, deviation: Deviation, graph: Graph, machines: Mapping[str, str]) -> bool:
        """Whether a deviation follows from this cause."""
        quantity, host = deviation.meaning.quantity, deviation.host
        mine = host is not None and any(host in (h, machines.get(h)) for h in self.hosts)
        if deviation.kind == "absent":  # a card that is gone is gone by all its measures
            return mine
        if self.told_by_log:
            return mine or quantity in graph.waiting or (deviation.episode.stops and deviation.kind == "fell")
        moved = graph.follows(*self.quantities)
        works_on = deviation.meaning.layer == "activity" and deviation.kind == "rose" and not deviation.fleet
        if works_on and self.hosts and not mine:
            return False  # who works on while others wait does not wait for them
        if mine or not self.hosts:
            return quantity in moved or quantity in graph.waiting
        return quantity in graph.spreads(*self.quantities) or (deviation.fleet and quantity in moved)


def claim_of(examination: Examination, accounts: bool = True) -> Claim:
    """What an examination that found something claims; with what accounts booked for it, or by its own queries only."""
    asked = [r.test for r in examination.fired if r.test.query is not None]
    # Who is gone, or was for a while: samples are counted, and no value of his changed.
    metrics = {m for t in asked if t.detector != "gone" and "count_over_time" not in (t.query or "") for m in t.metrics}
    booked = {r.test.fact for r in examination.fired if r.test.fact is not None}
    if accounts:
        metrics |= {q.metric for w in all_waits() if f"lost-to-{w.id}" in booked for q in w.queries}
    quantities = frozenset(meaning_of(m).quantity for m in metrics)
    rising = frozenset(meaning_of(m).quantity for m in metrics if meaning_of(m).bad == "up")
    return Claim(examination.playbook.id, quantities, frozenset(examination.hosts), not quantities, rising)


def explanation(deviation: Deviation, claims: Sequence[Claim], graph: Graph, machines: Mapping[str, str]) -> str | None:
    """The first of these causes that accounts for a deviation."""
    return next((c.cause for c in claims if c.covers(deviation, graph, machines)), None)


def called(
    story: Suspicion, deviations: Sequence[Deviation], examined: Iterable[Examination], graph: Graph
) -> Playbook | None:
    """The cause whose own quantity stands out there, though less than its tests ask for; None: nobody's, or several's.

    Beside a metric that no cause file knows, what is known may be its consequence: that has no name.
    """
    mine = [d for d in deviations if d.host in story.hosts and not d.fleet and d.meaning.worse(d.kind)]
    shown = {d.meaning.quantity for d in story.deviations}
    if not shown or not all(d.meaning.known for d in mine):
        return None
    fit = [b for b in _open(examined) if shown & set(b.stands_out) and shown <= graph.follows(*b.stands_out)]
    return fit[0] if len(fit) == 1 and not shown & graph.shared else None  # no host has by itself what is shared


def fleet_cause(quantity: str, examined: Iterable[Examination], graph: Graph) -> Playbook | None:
    """The cause whose own quantity rose everywhere, of those that no host can have by itself."""
    fit = [b for b in _open(examined) if quantity in graph.shared.intersection(b.stands_out)]
    return fit[0] if len(fit) == 1 else None


def _open(examined: Iterable[Examination]) -> list[Playbook]:
    """What was asked for, and neither found nor refuted."""
    return [e.playbook for e in examined if e.state in ("clean", "untestable")]


def downstream(
    roots: Iterable[Examination], found: Iterable[Examination], deviations: Sequence[Deviation], graph: Graph,
    symptoms: Symptoms,
) -> dict[str, str]:  # fmt: skip
    """Roots that are consequences of another found cause, each with the cause it follows from.

    The other one must have been there; its quantity must be seen to deviate where the root's does, and must lead to
    everything that speaks for the root, with no way back. Where there is one, what no single host can have (`shared`)
    goes first. Or it is seen on the other's hosts, and leads to what speaks for the root on those that work with them.
    """
    out: dict[str, str] = {}
    for root in roots:
        # A wait that was booked stands behind idling, clocks and power that fall: not behind heat that rises.
        claim = claim_of(root, accounts=False)
        mine = frozenset(q for q in claim.quantities if _where(q, claim.hosts, deviations))
        for other in found:
            taken = other is root or out.get(other.playbook.id) == root.playbook.id
            if taken or not mine or not other.was_there_for(root, symptoms):
                continue
            if _own_source(mine, claim.hosts, claim_of(other, accounts=False).quantities, deviations, graph):
                continue
            for quantity in sorted(claim_of(other, accounts=False).quantities - claim.quantities):
                if not claim.comes_of(mine, graph, quantity) or not _where(quantity, claim.hosts, deviations):
                    continue
                back = quantity in graph.follows(*mine)
                if not back or (quantity in graph.shared and _everywhere(quantity, mine, claim.hosts, deviations)):
                    out[root.playbook.id] = other.playbook.id
            if _echo(mine, claim.hosts, claim_of(other), deviations, graph):
                out[root.playbook.id] = other.playbook.id
    return out


def _own_source(
    seen: frozenset[str], hosts: frozenset[str], others: frozenset[str], deviations: Sequence[Deviation], graph: Graph
) -> bool:
    """Whether something that no quantity of another cause can move became worse on these hosts, and moves all that is
    seen there: what has a source of its own comes of nobody else.
    """
    moved = graph.follows(*others)
    here = {d.meaning.quantity for d in deviations if d.host in hosts and d.meaning.worse(d.kind)}
    sources = {q for q in here - moved if q in graph.here and not any(q in graph.here.get(s, ()) for s in here - {q})}
    return any(seen <= graph.follows(q, idling=False) for q in sources)


def _echo(
    seen: frozenset[str], hosts: frozenset[str], of: Claim, deviations: Sequence[Deviation], graph: Graph
) -> bool:
    """Whether what some hosts show is what those who work with others have by the others' trouble, and no way back."""
    if not hosts or not of.hosts or hosts & of.hosts:
        return False
    moved = [q for q in of.quantities if _where(q, of.hosts, deviations)]
    return seen <= graph.echoes(*moved) and not set(moved) & graph.echoes(*seen)


def confirmed(root: Examination, deviations: Sequence[Deviation]) -> frozenset[str] | None:
    """Those of its hosts whose errors stand out from their own past, chance and weather; None: not told by errors.

    A few counts of an everyday error come to somebody in every slow phase.
    """
    claim = claim_of(root, accounts=False)
    metrics = [m for r in root.fired if r.test.query and r.accuses for m in r.test.metrics]
    if root.spans is None or not metrics or not claim.hosts or any(meaning_of(m).layer != "error" for m in metrics):
        return None
    seen = [d for d in deviations if d.meaning.quantity in claim.quantities and d.meaning.worse(d.kind)]
    return claim.hosts & {d.host for d in seen if d.host is not None}


def chance_hits(
    roots: Iterable[Examination], deviations: Sequence[Deviation], compared: Iterable[Episode]
) -> frozenset[str]:
    """Roots of whose errors nothing stands out on any of their hosts, though their own phases were compared.

    Nor of anything else of theirs, where what another root of the same phases measures does on other hosts. Of a large
    fleet not every phase is compared: nothing seen where nobody looked speaks against nobody.
    """
    looked = {e.name for e in compared} if any(d.episode.kind == "slow" for d in deviations) else set()
    seen = [r for r in roots if r.spans is not None and {alone(i) for i in r.spans} <= looked]
    clear = [r for r in seen if r.hosts and not r.log_only and _seen_on(r, deviations)]

    def beside(root: Examination) -> bool:
        rivals = (
            c for c in clear if not set(c.hosts) & set(root.hosts) and (root.spans or set()) <= (c.spans or set())
        )
        return bool(root.hosts) and not _seen_on(root, deviations) and any(rivals)

    return frozenset(r.playbook.id for r in seen if looked and (confirmed(r, deviations) == frozenset() or beside(r)))


def _seen_on(root: Examination, deviations: Sequence[Deviation]) -> set[str]:
    """On which of its hosts something of what was measured for it is beyond chance."""
    quantities, hosts = claim_of(root).quantities, set(root.hosts)
    return hosts & {d.host for d in deviations if d.meaning.quantity in quantities and d.meaning.worse(d.kind)}


def covered(roots: Sequence[Examination], symptoms: Symptoms, graph: Graph) -> frozenset[str]:
    """Roots that carry nothing of what was lost in their phases that the other roots do not carry.

    Either the accounts booked it on the others (threads that wait for a CPU, an upper bound, only where what speaks
    for the root can come of such a wait), or the cause speaks for less than half of a stretch of which another
    root speaks for most: real runs fragment, and in a few steps somebody is always lowest.
    """

    def most(cause: Examination, stretch: frozenset[int]) -> bool:
        return symptoms.mostly(stretch, cause.phases(symptoms))

    def spare(root: Examination, account: Account) -> bool:
        others, claim = [r for r in roots if r is not root], claim_of(root, accounts=False)

        def comes_of(wait: Wait) -> bool:
            own = {meaning_of(q.metric).quantity for q in wait.queries}
            return claim.comes_of(claim.quantities - graph.echoes(*own), graph, *own)

        if left_by(account, {r.playbook.id for r in others}, comes_of) < SOME:
            return True
        splinter = root.spans is not None and root.spans < account.slow and not most(root, account.slow)
        return splinter and any(most(o, account.slow) for o in others)

    mine = {r.playbook.id: [a for a in symptoms.accounts if r.spans and a.slow & r.spans] for r in roots}
    return frozenset(r.playbook.id for r in roots if (held := mine[r.playbook.id]) and all(spare(r, a) for a in held))


def settled(roles: Mapping[str, Role], behind: Mapping[str, str]) -> dict[str, Role]:
    """The roles once consequences are known: what stands behind a root is a root itself."""
    out = dict(roles)
    for effect, cause in behind.items():
        out[effect] = "consequence"
        if out.get(cause) in ("contributing", "masked", "consequence") and cause not in behind:
            out[cause] = "root"
    return out


def _where(quantity: str, hosts: frozenset[str], deviations: Sequence[Deviation]) -> bool:
    """Whether a quantity is seen to change for the worse on all these hosts, or on most where none is named."""
    mine = [d for d in deviations if d.meaning.quantity == quantity and d.meaning.worse(d.kind)]
    fleet = any(d.fleet for d in mine)
    return fleet if not hosts else fleet or hosts <= {d.host for d in mine}


def _everywhere(quantity: str, others: frozenset[str], hosts: frozenset[str], deviations: Sequence[Deviation]) -> bool:
    """Whether several hosts, the accused among them, show both on all their ports."""
    marked = {d.host for d in deviations if d.meaning.quantity == quantity and d.whole and d.host and d.kind == "rose"}
    hit = {d.host for d in deviations if d.meaning.quantity in others and d.whole and d.host and d.kind == "rose"}
    return len(hosts) >= _SEVERAL and hosts <= marked and hosts <= hit


@dataclass(frozen=True)
class Margin:
    """Of all that could be the reason of the trouble: how clear is what the cause covers, and what it leaves over."""

    own: float  # the clearest deviation that follows from it on its hosts, of what makes nobody surer
    next_best: float  # the clearest that follows from no root
    covered: float  # share of these that follows from it

    @property
    def lead(self) -> float | None:
        """Own less next best; None where nothing deviates: then nothing is a better explanation, nor this one."""
        return round(self.own - self.next_best, 3) if self.own or self.next_best else None


def told_by_log(cause: Examination, findings: Sequence[Finding]) -> tuple[float, float]:
    """What the log says for a cause that only it names, and for the next best one that it names: 1 is its first word.

    A failure class that follows from the first is no rival; one of as high a tier is as good as it.
    """
    mine = min((f.tier for f in findings if f.cause == cause.playbook.id), default=None)
    if mine is None or not cause.log_only or cause.log_role:
        return 0.0, 0.0
    rivals = [f for f in findings if f.cause != cause.playbook.id and f.role not in _AFTERMATH and f.text]
    return 1.0, max((1.0 / (1.0 + max(0, f.tier - mine)) for f in rivals), default=0.0)


def margin_of(
    claim: Claim, others: Sequence[Claim], deviations: Sequence[Deviation], graph: Graph, machines: Mapping[str, str],
    logs: tuple[float, float] = (0.0, 0.0),
) -> Margin:  # fmt: skip
    """The margin of a cause beside other roots, by what deviates and by what `logs` say for it and for another."""
    by_episode: dict[str, list[Deviation]] = {}
    for d in deviations:
        by_episode.setdefault(d.episode.name, []).append(d)
    mine, left = [logs[0]], [logs[1]]
    for held in by_episode.values():
        for members, strength in reasons(held, graph):
            if all(claim.covers(d, graph, machines) for d in members):
                mine.append(strength / CAP)
            elif explanation(members[0], others, graph, machines) is None:
                left.append(strength / CAP)
        seen = [d for d in held if d.meaning.quantity in claim.quantities and d.meaning.worse(d.kind)]
        mine += [min(d.score, CAP) / CAP for d in seen if (d.host in claim.hosts if claim.hosts else d.fleet)]
    total = sum(mine) + sum(left)
    return Margin(max(mine), max(left), sum(mine) / total if total else 0.0)
