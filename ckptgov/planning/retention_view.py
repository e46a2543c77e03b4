"""Checkpoints as retention looks at them: what of each lies at which tier, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.copies import CopyState, cover
from ckptgov.model.retention import CheckpointToKeep, CopyToKeep, RunToKeep

Order = tuple[int, int, int, str]

_UNPROVEN = frozenset(
    {CopyState.REOPENED, CopyState.CORRUPT, CopyState.UNREADABLE, CopyState.PARTIAL}
)


def covers(copies: Iterable[CopyToKeep], shard_count: int) -> bool:
    """Whether these copies hold every shard between them."""
    return cover((one.coverage for one in copies), shard_count)


class AtTier:
    """One checkpoint at one tier, all its places there together.

    ``movable`` are verified copies that could go; ``foreign`` those that another catalog governs;
    ``away`` verified ones at places that cannot be reached, or of a tier that was not looked at
    in full; ``unproven`` lie there in any other state. Only ``movable`` ones can be relied on:
    whether they hold every shard (``is_whole``), also on shared storage (``is_durable``), and also
    what of that was compared lately (``is_fresh``).
    """

    __slots__ = (
        "away",
        "foreign",
        "is_durable",
        "is_fresh",
        "is_whole",
        "movable",
        "tier",
        "unproven",
    )

    def __init__(
        self, tier: str, copies: Sequence[CopyToKeep], shard_count: int, fresh_since_ns: int | None
    ) -> None:
        """``fresh_since_ns`` None: nothing counts, the tier was not looked at in full."""
        self.tier = tier
        self.movable: list[CopyToKeep] = []
        self.foreign: list[CopyToKeep] = []
        self.away: list[CopyToKeep] = []
        self.unproven: list[CopyToKeep] = []
        for one in copies:
            if one.state is not CopyState.VERIFIED:
                self.unproven.append(one)
            elif fresh_since_ns is None or not one.is_reachable:
                self.away.append(one)
            elif one.is_governed:
                self.movable.append(one)
            else:
                self.foreign.append(one)
        self.is_whole = covers(self.movable, shard_count)
        self.is_durable = self.is_fresh = False
        if self.is_whole and fresh_since_ns is not None:
            shared = [one for one in self.movable if one.node is None]
            fresh = (one for one in shared if (one.verified_at_ns or 0) >= fresh_since_ns)
            self.is_durable = covers(shared, shard_count)
            self.is_fresh = covers(fresh, shard_count)

    @property
    def reached(self) -> list[CopyToKeep]:
        """Verified copies within reach, whoever governs them."""
        return self.movable + self.foreign

    @property
    def verified(self) -> list[CopyToKeep]:
        """Verified copies, within reach or not."""
        return self.movable + self.foreign + self.away

    @property
    def is_shared(self) -> bool:
        """Whether a copy that could go outlives the loss of any one node."""
        return any(one.node is None for one in self.movable)

    def may_become_whole(self, shard_count: int) -> bool:
        """Whether all that lies there, in whatever state, would be the whole checkpoint."""
        return covers(self.verified + self.unproven, shard_count)


class Seen:
    """One checkpoint with its tiers by name. ``order`` is how ``latest`` orders checkpoints."""

    __slots__ = ("checkpoint", "is_on_path", "order", "tiers")

    def __init__(
        self, one: CheckpointToKeep, *, is_on_path: bool, tiers: dict[str, AtTier]
    ) -> None:
        self.checkpoint = one
        self.is_on_path = is_on_path
        self.tiers = tiers
        step = -1 if one.step is None else one.step
        self.order: Order = (step, one.line, one.attempt, one.content_id)

    @property
    def has_step(self) -> bool:
        """Whether it takes part in the order at all."""
        return self.checkpoint.step is not None and self.checkpoint.step_kind is not StepKind.NONE

    @property
    def purpose(self) -> Purpose | None:
        """What rules take it for: a checkpoint to resume from, else weights, else nothing."""
        for purpose in (Purpose.RESUME, Purpose.WEIGHTS):
            if purpose in self.checkpoint.purposes:
                return purpose
        return None

    def is_restorable(self, *, anywhere: bool, durably: bool) -> bool:
        """Whether verified copies hold every shard, over all tiers together.

        ``anywhere``: copies out of reach count as well. ``durably``: only those on shared storage.
        """
        copies = [
            copy
            for tier in self.tiers.values()
            for copy in (tier.verified if anywhere else tier.reached)
            if copy.node is None or not durably
        ]
        return bool(copies) and covers(copies, self.checkpoint.shard_count)

    def is_compared(self, since_ns: int) -> bool:
        """Whether copies within reach hold every shard that were compared since then."""
        copies = [
            copy
            for tier in self.tiers.values()
            for copy in tier.reached
            if (copy.verified_at_ns or 0) >= since_ns
        ]
        return covers(copies, self.checkpoint.shard_count)


def seen_of(run: RunToKeep, *, fresh_since_ns: int) -> list[Seen]:
    """Every checkpoint of a run that lies anywhere, newest first."""
    path = dict(run.path)
    seen = [_seen(one, run, path, fresh_since_ns) for one in run.checkpoints]
    seen.sort(key=lambda one: one.order, reverse=True)
    return seen


def _seen(
    one: CheckpointToKeep, run: RunToKeep, path: dict[int, int | None], fresh_since_ns: int
) -> Seen:
    by_tier: dict[str, list[CopyToKeep]] = {}
    for copy in one.copies:
        if copy.state is CopyState.VERIFIED or copy.state in _UNPROVEN:
            by_tier.setdefault(copy.tier, []).append(copy)
    tiers = {
        tier: AtTier(
            tier,
            sorted(by_tier[tier], key=_place),
            one.shard_count,
            None if tier in run.unseen else fresh_since_ns,
        )
        for tier in sorted(by_tier)
    }
    return Seen(one, is_on_path=_is_on_path(one, path), tiers=tiers)


def _place(copy: CopyToKeep) -> str:
    return copy.place


def _is_on_path(one: CheckpointToKeep, path: dict[int, int | None]) -> bool:
    if one.step is None or one.line not in path:
        return False
    bound = path[one.line]
    return bound is None or one.step <= bound
