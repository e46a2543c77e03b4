"""The arbiter's rounds, run by whichever process holds the lease on computing the grants.

Whether a flow is silent is judged by this process's own monotonic clock, from when it last saw
the flow's count of beats change: a new holder counts every flow as heard for one lease first, and
a wall clock that is set changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ckptgov.catalog.flowfacts import Allocator, FlowOwner, GrantChange, RegisteredFlow
from ckptgov.catalog.flowfacts import Rates as PlainRates
from ckptgov.errors import LeaseLost, StaleState
from ckptgov.model.clock import Clock
from ckptgov.ops.processes import has_surely_ended
from ckptgov.planning.bandwidth import (
    UNLIMITED,
    FlowView,
    Limits,
    Rates,
    Share,
    Silence,
    next_pace,
    plan,
    subjects_of,
)

if TYPE_CHECKING:
    from ckptgov.catalog.flowbook import FlowBook

ALLOCATOR_LEASE_S = 5.0
CONTROL_PERIOD_S = 1.0
FORGOTTEN_S = 86400.0
"""A flow whose process cannot be looked at is given up after so long a silence. It stops using
its fallback rate before."""


class Arbiter:
    """One process's part in computing grants: holds the lease, or waits for it."""

    def __init__(
        self,
        book: FlowBook,
        limits: Callable[[], Limits],
        *,
        clock: Clock,
        owner: FlowOwner,
        holder: str,
        lease_s: float = ALLOCATOR_LEASE_S,
        period_s: float = CONTROL_PERIOD_S,
    ) -> None:
        self._book = book
        self._limits = limits
        self._clock = clock
        self._owner = owner
        self._holder = holder
        self._lease_ns = int(lease_s * 1e9)
        self._period_s = period_s
        self._held: Allocator | None = None
        self._seen: dict[str, tuple[int, float]] = {}
        self._push_backs: dict[str, tuple[int, int]] = {}
        self._pushed: set[str] = set()
        self._paces: dict[str, int] = {}
        self._paced_at = 0.0

    def step(self) -> bool:
        """One round, if the lease is held or can be taken; whether it was.

        Raises:
            StorageError: the catalog did not answer.
        """
        taken = self._book.take_allocator(self._holder, self._lease_ns)
        if taken is None:
            self._held = None
            return False
        is_new = self._held is None or self._held.epoch != taken.epoch
        self._held = taken
        limits = self._limits()
        flows = self._without_ended(self._book.registered(), is_new=is_new)
        if is_new:
            self._paces = self._book.paces()
        self._hear_push_backs(flows, limits, is_new=is_new)
        paces = self._next_paces(limits)
        self._write(taken, limits, flows, paces)
        return True

    def release(self) -> None:
        """Let another process take over at once."""
        if self._held is not None:
            self._book.release_allocator(self._held)
            self._held = None

    def _write(
        self,
        taken: Allocator,
        limits: Limits,
        flows: list[RegisteredFlow],
        paces: dict[str, int],
    ) -> None:
        known = {one.request.flow_id: one for one in flows}
        views = [self._view(one) for one in flows]
        silence = {one.request.flow_id: one.silence for one in views}
        changes = [
            change
            for share in plan(limits, views, {**self._paces, **paces})
            if (change := _change(share, known[share.flow_id], silence[share.flow_id]))
        ]
        if not changes and not paces:
            return
        try:
            self._book.write_grants(taken, changes, paces)
            self._paces.update(paces)
        except StaleState:
            return  # a silent flow was heard meanwhile: the next round knows
        except LeaseLost:
            self._held = None

    def _without_ended(
        self, flows: Iterable[RegisteredFlow], *, is_new: bool
    ) -> list[RegisteredFlow]:
        """Watch the flows' beats, and forget those whose process has ended."""
        now = self._clock.monotonic()
        before = {} if is_new else self._seen
        self._seen = {}
        going: list[RegisteredFlow] = []
        ended: list[tuple[str, int]] = []
        is_over: dict[FlowOwner, bool] = {}
        for one in flows:
            flow_id = one.request.flow_id
            beats, since = before.get(flow_id, (one.beats, now))
            self._seen[flow_id] = (one.beats, since if beats == one.beats else now)
            if one.owner not in is_over:
                is_over[one.owner] = has_surely_ended(one.owner, self._owner)
            if is_over[one.owner] or self._age_s(flow_id) > FORGOTTEN_S:
                ended.append((flow_id, one.beats))
            else:
                going.append(one)
        if ended:
            self._book.reap(ended)
        return going

    def _age_s(self, flow_id: str) -> float:
        return self._clock.monotonic() - self._seen[flow_id][1]

    def _view(self, one: RegisteredFlow) -> FlowView:
        age_s, lease_s = self._age_s(one.request.flow_id), one.lease_ns / 1e9
        silence = Silence.HEARD
        if age_s >= lease_s:
            silence = Silence.EXPIRED if age_s < 2 * lease_s else Silence.LOST
        return FlowView(
            request=one.request,
            waiting_since_ns=one.opened_at_ns,
            held=_rates(one.held),
            granted=_rates(one.granted),
            fallback=_rates(one.fallback),
            silence=silence,
            wanted=_rates(one.wanted) or UNLIMITED,
        )

    def _hear_push_backs(
        self, flows: list[RegisteredFlow], limits: Limits, *, is_new: bool
    ) -> None:
        counts = {one.request.flow_id: (one.read_push_backs, one.write_push_backs) for one in flows}
        before = counts if is_new else self._push_backs
        for one in flows:
            counted = counts[one.request.flow_id]
            known = before.get(one.request.flow_id, (0, 0))
            subjects = subjects_of(one.request, limits)
            for subject, count, old in zip(subjects, counted, known, strict=True):
                if subject is not None and count > old:
                    self._pushed.add(subject)
        self._push_backs = counts

    def _next_paces(self, limits: Limits) -> dict[str, int]:
        """The paces that change, at most once per control period."""
        now = self._clock.monotonic()
        if now - self._paced_at < self._period_s:
            return {}
        self._paced_at = now
        changed = {}
        for subject in sorted({*self._paces, *self._pushed}):
            pace = self._paces.get(subject, 1000)
            after = next_pace(
                pace,
                pushed_back=subject in self._pushed,
                fallback_percent=limits.fallback_percent,
            )
            if after != pace:
                changed[subject] = after
        self._pushed.clear()
        return changed


def _change(share: Share, flow: RegisteredFlow, silence: Silence) -> GrantChange | None:
    """What has to be written for one flow; None when it knows already."""
    if silence is Silence.EXPIRED or (silence is Silence.LOST and flow.held is None):
        return None
    words = share.wait.text if share.wait is not None else ""
    wanted = (share.rates, share.fallback, words)
    if silence is Silence.LOST:
        if flow.held == share.rates and (flow.granted, flow.fallback) == wanted[:2]:
            return None
    elif (flow.granted, flow.fallback, flow.waits_for) == wanted:
        return None
    return GrantChange(
        flow_id=share.flow_id,
        rates=share.rates,
        fallback=share.fallback,
        waits_for=words,
        reclaim_at_beat=flow.beats if silence is Silence.LOST else None,
    )


def _rates(plain: PlainRates | None) -> Rates | None:
    return None if plain is None else Rates(*plain)
