"""P2 and P3 of one run, asked of the bytes on its disks around whatever is done to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fault_keeping_acting import Acting
from fault_keeping_truth import (
    TIERS,
    Snapshot,
    require_right_bytes,
    sealed_at,
)
from fault_keeping_world import (
    DAY_S,
    MINUTE_S,
    RUN,
    SHARED,
    files_of,
)

from ckptgov.errors import PartlyDone
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.model.removal import ApplyAnswer


class Promising(Acting):
    """What must hold while, and after, something is done."""

    def require_right_offers(self) -> None:
        if not self.is_to_be_looked_at:
            return
        self.is_to_be_looked_at = False
        with self.world.process() as governor:
            require_right_bytes(self.world, governor, self.saves, self.drafts)
        for (tier, name), files in self.loose.items():
            lying = files_of(self.world.run_root(tier) / name)
            assert lying == files, f"{name} at {tier} was written by its trainer, and is not there"

    @contextmanager
    def nothing_goes(self, *, may_lose_by_trainer: bool = False) -> Iterator[None]:
        """Nothing of ours is to remove anything in this block."""
        before = {tier: sealed_at(self.world, tier, self.saves) for tier in TIERS}
        yield
        if may_lose_by_trainer:
            return
        for tier in TIERS:
            lost = before[tier] - sealed_at(self.world, tier, self.saves)
            assert not lost, f"{self._names(lost)} went from {tier}"

    @contextmanager
    def kept(self) -> Iterator[list[ApplyAnswer]]:
        """P2 over the block, whatever goes in it."""
        told: list[ApplyAnswer] = []
        self.is_to_be_looked_at, self.was_disturbed = True, False
        self.before = self._snapshot()
        yield told
        self._learn()
        for one in told:
            self._count(one)
        is_done = bool(told) and (told[0].error is None or isinstance(told[0].error, PartlyDone))
        is_done &= not self.was_disturbed
        after = self._snapshot()
        self._require_kept(self.before, after, is_done=is_done)
        self._require_latest(after)

    def _require_kept(self, before: Snapshot, after: Snapshot, *, is_done: bool) -> None:
        for reach in (frozenset(TIERS), before.reachable):
            for tiers in (reach, reach & {SHARED}):
                self._require_newest(before, after, tiers, is_done=is_done)
        for why, content_id in self.protected(before):
            was, now = before.counted[content_id], after.sealed.get(content_id, frozenset())
            assert now, f"{self._name(content_id)} is gone, and {why}"
            assert SHARED in now or SHARED not in was, f"{why}: no durable copy is left"
        for content_id in self.leased():
            was = before.counted.get(content_id, frozenset())
            now = after.sealed.get(content_id, frozenset())
            assert was <= now, f"{self._name(content_id)} is being read, and went"
        for content_id, tiers in before.counted.items():
            if tiers and not after.sealed.get(content_id):
                assert content_id in self.may_prune, f"{self._name(content_id)} went for good"

    def _require_latest(self, after: Snapshot) -> None:
        """A launcher is given what is the newest by the bytes on the disks."""
        wanted = after.newest(after.reachable, offered=True)
        with self.world.process() as governor:
            chosen = governor.latest(RUN, Query()).chosen
        if wanted is None:
            assert chosen is None, f"latest gives {chosen}, and nothing is restorable"
            return
        newest = {  # two where the same step was saved at two places
            one.content_id
            for one in after.eligible
            if one.order == wanted.order and after.offered.get(one.content_id)
        }
        assert chosen is not None, f"latest gives nothing, and {wanted} is the newest"
        assert chosen.content_id in newest, f"latest gives {chosen}, and {wanted} is the newest"

    def _require_newest(
        self, before: Snapshot, after: Snapshot, tiers: frozenset[str], *, is_done: bool
    ) -> None:
        was = before.newest(tiers)
        if was is None:
            return
        now = after.newest(tiers, offered=is_done)
        is_as_new = now is not None and now.order >= was.order
        assert is_as_new, (
            f"{self._name(was.content_id)} was the newest at {sorted(tiers)}; now it is "
            f"{self._name(now.content_id) if now else None} (done: {is_done})"
        )

    def protected(self, before: Snapshot) -> list[tuple[str, str]]:
        """Why, and what, may not go; of what lies verified somewhere."""
        now_ns = self.world.clock.now_ns()
        found = [
            (f"pinned as {name}", content_id)
            for name, (content_id, _step, until_ns) in self.pins.items()
            if until_ns is None or until_ns > now_ns + int(MINUTE_S * 1e9)
        ]
        found += [
            (f"restart {restart_id} began from it", content_id)
            for content_id, restart_id, number in self.starts
            if number == len(self.drafts)  # nothing was saved since
        ]
        return [(why, one) for why, one in found if before.counted.get(one)]

    def leased(self) -> list[str]:
        now_ns = self.world.clock.now_ns()
        return [one for one, ends_ns in self.claims.values() if ends_ns > now_ns + 10**10]

    def require_convergence(self) -> None:
        """Everything that was begun ends: gone for good, or as it was."""
        world = self.world
        if world.is_away:
            world.node_returns()
        for _ in range(4):
            world.clock.pass_(10 * DAY_S)
            self._verify()  # or what was compared long ago cannot be relied on
            with self.kept() as told, world.process() as governor:
                told.append(governor.apply(None))
            left = told[0]
            if left.error is None and not left.steps:
                break
        assert left.error is None, left
        assert not left.steps, left
        with world.process() as governor:
            assert governor.context.catalog.removals.removals() == ()
        for tier in TIERS:
            entries = list(world.run_root(tier).glob(".ckptgov/trash/*/*"))
            assert not entries, entries
        self.is_to_be_looked_at = True
        self.require_right_offers()
        before = self._snapshot()
        with world.process() as governor:
            governor.scan(())
        self._learn()
        after = self._snapshot()
        for content_id, tiers in before.offered.items():
            assert tiers <= after.offered.get(content_id, frozenset()), self._name(content_id)
        for key, state in before.states.items():
            if state is CopyState.PURGED:
                assert after.states[key] is CopyState.PURGED, f"{key} was sealed again"
        self.tally["examples"] += 1

    def _meanwhile(self, what: str, pick: int) -> None:
        """What somebody else does; P2 is asked of what stands then."""
        self.was_disturbed = True
        with self.world.process() as governor:
            self._say(governor, what, pick)
        self._learn()
        self.before = self._snapshot()
