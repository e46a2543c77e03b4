"""Capacity: what gives way where a tier is still too full after retention.

Limits are a policy's quotas on a tier, watermarks of a place's fill, and room kept for the next
saves. Copies that a kept checkpoint does not need go first, then what the policy lets yield; what
is protected never does, and what then still does not fit is told as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckptgov.model.checkpoint import Purpose
from ckptgov.model.policy import Policy, Yields
from ckptgov.model.retention import Action, KeepReason, PlanEntry, Why
from ckptgov.planning.capacity_facts import Fill
from ckptgov.planning.capacity_needs import Need
from ckptgov.planning.retention import Decided, entries_at
from ckptgov.planning.retention_rulings import Ruling
from ckptgov.planning.retention_settling import Judged, drain_order, is_awaited_from, lacking

__all__ = ["Fill", "Pressure", "Victim", "by_age", "victim_of", "yielding"]

Rank = tuple[int, int, int, int, int, str, str, str]
"""Sorts victims: what yields first, then the oldest (``by_age``); no two are equal."""


class Victim:
    """Copies of one checkpoint at one tier that may give way."""

    __slots__ = ("empties", "entries", "policy", "rank")

    def __init__(
        self, rank: Rank, policy: Policy, entries: tuple[PlanEntry, ...], *, empties: bool
    ) -> None:
        """``empties``: its run has a restorable checkpoint less without them."""
        self.rank = rank
        self.policy = policy
        self.entries = entries
        self.empties = empties


class _Shortlist:
    """The first victims by rank that together free what is needed; the others are forgotten."""

    def __init__(self, need: Need) -> None:
        self.need = need
        self.victims: list[Victim] = []
        self._weights: dict[Rank, int] = {}
        self._last: Rank | None = None  # beyond it nothing is needed
        self._room = 256

    def offer(self, victim: Victim) -> None:
        weight = self.need.weight(victim.entries)
        if weight <= 0 or (self._last is not None and victim.rank > self._last):
            return
        self.victims.append(victim)
        self._weights[victim.rank] = weight
        if len(self.victims) >= self._room:
            self.trim()

    def trim(self) -> None:
        self.victims.sort(key=lambda one: one.rank)
        freed = 0
        for index, one in enumerate(self.victims):
            freed += self._weights[one.rank]
            if freed >= self.need.left:
                del self.victims[index + 1 :]
                self._last = one.rank
                break
        self._weights = {one.rank: self._weights[one.rank] for one in self.victims}
        self._room = 2 * len(self.victims) + 256


class Pressure:
    """Chooses what gives way, from victims offered run by run, in any order.

    No more victims are remembered than could be needed.
    """

    def __init__(self, needs: Sequence[Need]) -> None:
        self.needs = needs
        self.tiers = frozenset(one.tier for one in needs)
        self._lists = [_Shortlist(one) for one in needs]

    def offer(self, victim: Victim) -> None:
        """One that may give way."""
        for one in self._lists:
            if one.need.policy == victim.policy.name:
                one.offer(victim)

    def chosen(self) -> list[tuple[Victim, Why]]:
        """Those that have to go, each with what for."""
        victims: dict[Rank, Victim] = {}
        for one in self._lists:
            one.trim()
            victims.update((each.rank, each) for each in one.victims)
        taken: list[tuple[Victim, Why]] = []
        for rank in sorted(victims):
            victim = victims[rank]
            why = self._take(victim)
            if why is not None:
                taken.append((victim, why))
        return taken

    def _take(self, victim: Victim) -> Why | None:
        """Why it has to go; None: nothing needs what it would free any more."""
        weights = [one.weight(victim.entries) for one in self.needs]
        served = [
            one
            for one, weight in zip(self.needs, weights, strict=True)
            if one.left > 0 and weight > 0 and one.policy == victim.policy.name
        ]
        if not served:
            return None
        for one, weight in zip(self.needs, weights, strict=True):
            if one.place is not None or one.policy == victim.policy.name:
                one.left -= weight
        return served[0].why


def yielding(
    decided: Decided, one: Judged, tiers: frozenset[str]
) -> Iterator[tuple[Ruling, Action, int]]:
    """What of one checkpoint may give way at tiers that are too full, and after how much else.

    All that is given may go together: it is judged in the order in which checkpoints drain.
    """
    terms = decided.terms
    if terms.is_adopting or one.is_leased or not one.seen.has_step:
        return
    full = [
        each
        for tier, each in one.rulings.items()
        if tier in tiers and each.at.movable and each.at.is_whole and each.action is None
    ]
    gone = {tier for tier, each in one.rulings.items() if each.action is not None}
    for ruling in sorted(full, key=drain_order(terms.policy)):
        rule = terms.policy.capacity.get(ruling.at.tier)
        if rule is None or not _is_for_rules(one, ruling, decided):
            continue
        by_rule = _by_rule(ruling, rule.yields)
        if not is_awaited_from(one, ruling.at.tier, terms.policy):
            as_copy = _place_of(Yields.COPIES, rule.yields)
            first = min((each for each in (as_copy, by_rule) if each is not None), default=None)
            if first is not None and lacking(one, ruling.at, gone, terms) is None:
                gone.add(ruling.at.tier)
                yield ruling, Action.EVICT, first
                continue
        if by_rule is not None and decided.stale is None and _may_be_pruned(one, ruling):
            yield ruling, Action.PRUNE, by_rule


def _is_for_rules(one: Judged, ruling: Ruling, decided: Decided) -> bool:
    """Weights alone are touched only by rules that name them."""
    purpose = one.seen.purpose
    if purpose is Purpose.WEIGHTS:
        return not decided.terms.rules(ruling.at.tier, purpose).is_empty
    return purpose is not None


def _may_be_pruned(one: Judged, ruling: Ruling) -> bool:
    """Whether all verified copies lie here, and nothing but a rule keeps the checkpoint."""
    at = ruling.at
    return (
        len(one.rulings) == 1
        and not one.shields
        and not at.away
        and not at.foreign
        and one.seen.is_on_path
    )


def _by_rule(ruling: Ruling, yields: Sequence[Yields]) -> int | None:
    """How late the last of the rules that keep it yields; None: one of them never does."""
    latest = -1
    for why in ruling.keeps:
        named = Yields.UNKEPT if why.reason == KeepReason.NO_RULES else _YIELDS.get(why.reason)
        place = None if named is None else _place_of(named, yields)
        if place is None:
            return None
        latest = max(latest, place)
    return latest if latest >= 0 else None


_YIELDS: Mapping[str, Yields] = {
    one.value: one for one in Yields if one not in (Yields.COPIES, Yields.UNKEPT)
}


def _place_of(wanted: Yields, yields: Sequence[Yields]) -> int | None:
    return yields.index(wanted) if wanted in yields else None


def by_age(judged: Sequence[Judged]) -> Iterator[tuple[Judged, int]]:
    """Each with the time from which on its age counts, in nanoseconds; both newest first.

    Inside a run the order decides, not the time: a checkpoint counts as no younger than any that
    follows it on the path, or on its own line where that was left. In a tree that was adopted with
    all it held, times tell when each was met, the newest perhaps first.
    """
    since_ns: dict[int | None, int] = {}
    for one in judged:
        held = one.seen.checkpoint
        line = None if one.seen.is_on_path else held.line
        since_ns[line] = min(held.saved_at_ns, since_ns.get(line, held.saved_at_ns))
        yield one, since_ns[line]


def victim_of(
    decided: Decided,
    one: Judged,
    ruling: Ruling,
    action: Action,
    place: int,
    *,
    since_ns: int,
    empties: bool,
) -> Victim:
    """A victim as it is remembered: without the rest of its run. ``since_ns``: of ``by_age``."""
    run = decided.run
    step, line, attempt, content_id = one.seen.order
    rank = (place, since_ns, step, line, attempt, run.run_id, content_id, ruling.at.tier)
    entries = tuple(entries_at(run, one, ruling.at, action, ()))
    return Victim(rank, decided.terms.policy, entries, empties=empties)
