"""Copy by copy: what of that which the rules let go may really go, and what holds it back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ckptgov.model.policy import Policy
from ckptgov.model.retention import Action, KeepReason, Why
from ckptgov.planning.retention_rulings import Ruling, not_verified
from ckptgov.planning.retention_terms import Terms
from ckptgov.planning.retention_view import AtTier, Seen
from ckptgov.planning.retention_words import moment


class Judged:
    """One checkpoint with its rulings by tier, and what protects it."""

    __slots__ = ("is_leased", "rulings", "seen", "shields")

    def __init__(self, seen: Seen, rulings: dict[str, Ruling], shields: list[Why]) -> None:
        self.seen = seen
        self.rulings = rulings
        self.shields = shields
        self.is_leased = bool(seen.checkpoint.leases)


def settle(one: Judged, terms: Terms, stale: Why | None) -> None:
    """Say what becomes of the copies that the rules let go; ``stale`` holds back every prune."""
    leaving = [each for each in one.rulings.values() if each.drop and each.at.movable]
    if not leaving or one.is_leased:
        return
    if terms.is_adopting:
        text = (
            f"kept: the run was met lately; nothing of it goes before {moment(terms.adopted_at_ns)}"
        )
        for ruling in leaving:
            ruling.holds.append(Why(KeepReason.ADOPTION, text))
    elif one.shields or any(each.holds_on for each in one.rulings.values()):
        _evict(one, leaving, terms)
    elif all(each.is_remnant for each in leaving):
        for ruling in leaving:
            ruling.holds.append(not_verified(ruling.at))
    elif stale is not None:  # it stays for now, with no more copies than it needs
        _evict(one, leaving, terms)
        for ruling in leaving:
            if ruling.action is None:
                ruling.holds.insert(0, stale)  # what holds it back alone, once that is done
    else:
        for ruling in leaving:
            ruling.action = Action.PRUNE


def _evict(one: Judged, leaving: Sequence[Ruling], terms: Terms) -> None:
    """Let go of what a checkpoint that stays does not need, the least durable copies first."""
    gone: set[str] = set()
    for ruling in sorted(leaving, key=drain_order(terms.policy)):
        if is_awaited_from(one, ruling.at.tier, terms.policy):
            continue
        lack = lacking(one, ruling.at, gone, terms)
        if lack is None:
            ruling.action = Action.EVICT
            gone.add(ruling.at.tier)
        else:
            ruling.holds.append(lack)


def drain_order(policy: Policy) -> Callable[[Ruling], tuple[bool, int, str]]:
    """Sorts tiers from where checkpoints arrive to where they end up: nodes' own first."""
    depths = _depths([(one.source, one.target) for one in policy.links or ()])

    def key(ruling: Ruling) -> tuple[bool, int, str]:
        return ruling.at.is_shared, depths.get(ruling.at.tier, 0), ruling.at.tier

    return key


def _depths(links: Sequence[tuple[str, str]]) -> dict[str, int]:
    """How many links at most lead to a tier; links that lead in a circle count as far as met."""
    depths: dict[str, int] = {}
    for _ in range(len(links)):
        for source, target in sorted(set(links)):
            depths[target] = max(depths.get(target, 0), min(depths.get(source, 0) + 1, len(links)))
    return depths


def is_awaited_from(one: Judged, tier: str, policy: Policy) -> bool:
    """Whether a link has yet to carry the checkpoint on from this tier.

    Where the policy does not tell the links, any tier may be where one begins.
    """
    awaited = one.seen.checkpoint.awaited_by
    for target in awaited:
        sources = {link.source for link in policy.links or () if link.target == target}
        if tier in sources or (not sources and tier not in awaited):
            return True
    return False


def lacking(one: Judged, at: AtTier, gone: Collection[str], terms: Terms) -> Why | None:
    """What a checkpoint that stays would lack without its copies at a tier; None: nothing.

    ``gone`` are tiers whose copies of it go besides. At least one tier has to remain that has it
    whole on shared storage, and what remains there must have been compared lately.
    """
    left = [
        each.at for each in one.rulings.values() if each.at is not at and each.at.tier not in gone
    ]
    durable = sum(each.is_durable for each in left)
    least = terms.least_copies if at.is_shared else 1
    if durable < least:
        need = f"{least} durable cop{'y' if least == 1 else 'ies'}"
        text = f"kept: what stays needs {need}, and without this one it would have {durable}"
        return Why(KeepReason.FLOOR_COPIES, text)
    if not any(each.is_fresh for each in left):
        since = moment(terms.fresh_since_ns)
        text = f"kept: no durable copy that would remain was compared since {since}"
        return Why(KeepReason.STALE_PROOF, text)
    return None
