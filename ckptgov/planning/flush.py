"""Which checkpoints flow over a link, and in which order: facts and rules in, a plan out.

Every rule but ``last`` divides a run's history into stretches and takes the first checkpoint of
each, in step order: ``every`` into so many steps each, counted from the line's first; ``every_s``
into intervals of wall time since the epoch; ``every_steps`` at the multiples. What is first in its
stretch stays first, however many newer ones appear and whatever the clocks do meanwhile. History
is what the active line includes, lost and bad ones counted too, so that nothing shifts when a
trainer rotates its oldest away; a stretch whose first one is bad, or was lost before it was
flushed, gives its next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from ckptgov.model.checkpoint import StepKind, digits_of
from ckptgov.model.copies import LEAVING, REMOVED, CopyState
from ckptgov.model.pacing import FlowClass
from ckptgov.model.settings import Link
from ckptgov.planning.flushable import (
    UNSURE,
    FlushCheckpoint,
    RunToFlush,
    history,
    is_durable,
    is_history,
    is_share_at,
    is_spread_at,
    is_whole_at,
    oldest_first,
    state_at,
)


class Why(StrEnum):
    """What chose a checkpoint for a link; a checkpoint may have several."""

    EVERY = "every"
    EVERY_STEPS = "every-steps"
    INTERVAL = "interval"
    LAST = "last"
    PIN = "pin"
    ASKED = "asked"  # a person named it


class WhyNot(StrEnum):
    """Why a checkpoint does not flow."""

    ALREADY_THERE = "already-there"
    BEING_DELIVERED = "being-delivered"
    UNVERIFIED_THERE = "unverified-there"  # something lies at the target: verify it first
    NOT_CHOSEN = "not-chosen"
    NOT_RESTORABLE = "not-restorable-at-source"
    SUPERSEDED = "superseded"
    BAD = "bad"
    CONDEMNED = "condemned"
    OLDER_LINE = "older-line"
    STEPLESS = "stepless"


class FlushItem(Struct, frozen=True, kw_only=True):
    """A checkpoint to flush. ``whys`` is never empty; ``order`` is that of its flows.

    All shards of one checkpoint share ``order`` and no two checkpoints have the same, so that
    movers which take the lowest first finish one before they begin the next.
    """

    run_id: str
    run: str
    checkpoint: FlushCheckpoint
    link: Link
    whys: tuple[Why, ...]
    flow_class: FlowClass
    order: tuple[int, ...]
    is_spread: bool  # no place in sight at the source holds all of it; each sends its own shards


class Skip(Struct, frozen=True, kw_only=True):
    """A checkpoint that does not flow, and why, for people in ``text``."""

    run_id: str
    run: str
    checkpoint: FlushCheckpoint
    why_not: WhyNot
    text: str


class FlushPlan(Struct, frozen=True, kw_only=True):
    """Items in the order to move them; skips by run, newest first."""

    items: tuple[FlushItem, ...]
    skips: tuple[Skip, ...]


def plan_flush(
    runs: Iterable[RunToFlush], link: Link, *, asked: frozenset[str] = frozenset()
) -> FlushPlan:
    """What flows over ``link``, in order, and what does not, with reasons.

    A checkpoint flows when any rule of the link chooses it, or its content id is in ``asked``;
    with a link that has no rules only what was asked for flows. Rules never choose what is bad,
    of an older line above the base, or not restorable at the source; what retention removed from
    the target comes back only for a pin. What a person asks for only has to be restorable at the
    source. ``every``, ``every_steps``, ``every_s`` and ``last`` are above 0.

    What no shared tier holds whole goes first (``FlowClass.DURABLE``), then replicas. Within
    each, what was begun, then the newest of every run, then the second newest: one run's backlog
    does not stand before another's newest.
    """
    items: list[FlushItem] = []
    skips: list[Skip] = []
    for run in sorted(runs, key=lambda one: (one.name, one.run_id)):
        view = _View(run, link, asked)
        rank = 0
        for one in sorted(run.checkpoints, key=oldest_first, reverse=True):
            skip = view.skip(one)
            if skip is not None:
                skips.append(skip)
                continue
            items.append(view.item(one, rank))
            rank += 1
    return FlushPlan(items=tuple(sorted(items, key=_first_out)), skips=tuple(skips))


class _View:
    """One run as one link sees it."""

    def __init__(self, run: RunToFlush, link: Link, asked: frozenset[str]) -> None:
        self.run = run
        self.link = link
        self.heads = [self._head(attempts) for attempts in history(run)]
        self.head_ids = {head.step: head.content_id for head in self.heads if head is not None}
        self.whys: dict[str, set[Why]] = {}
        for content_id, why in [*self._by_rule(), *self._by_name(asked)]:
            self.whys.setdefault(content_id, set()).add(why)

    def _by_rule(self) -> Iterator[tuple[str, Why]]:
        every, every_steps = self.link.every, self.link.every_steps
        if every is not None:
            for one in _firsts(self.heads, lambda index, _: index // every):
                yield one.content_id, Why.EVERY
        if every_steps is not None:
            for one in _firsts(self.heads, lambda _, head: (head.step or 0) // every_steps):
                yield one.content_id, Why.EVERY_STEPS
        if self.link.every_s is not None:
            every_ns = max(1, round(self.link.every_s * 1e9))
            for one in _firsts(self.heads, lambda _, head: head.sealed_at_ns // every_ns):
                yield one.content_id, Why.INTERVAL
        if self.link.last is not None:
            for one in [head for head in self.heads if head is not None][-self.link.last :]:
                yield one.content_id, Why.LAST
            for one in self.run.checkpoints:  # half delivered: finished, not replaced
                if _is_begun(one, self.link) and is_history(self.run, one):
                    yield one.content_id, Why.LAST

    def _by_name(self, asked: frozenset[str]) -> Iterator[tuple[str, Why]]:
        names = frozenset(self.link.pins)
        for one in self.run.checkpoints:
            if one.pins & names:
                yield one.content_id, Why.PIN
            if one.content_id in asked:
                yield one.content_id, Why.ASKED

    def whys_of(self, one: FlushCheckpoint) -> tuple[Why, ...]:
        """What chooses it, in the order of ``Why``."""
        return tuple(why for why in Why if why in self.whys.get(one.content_id, ()))

    def item(self, one: FlushCheckpoint, rank: int) -> FlushItem:
        """A checkpoint that flows, ``rank`` newer ones of its run before it."""
        return FlushItem(
            run_id=self.run.run_id,
            run=self.run.name,
            checkpoint=one,
            link=self.link,
            whys=self.whys_of(one),
            flow_class=FlowClass.REPLICATE if is_durable(one) else FlowClass.DURABLE,
            order=(0 if _is_begun(one, self.link) else 1, rank, *_tie(self.run, one)),
            is_spread=is_spread_at(one, self.link.source) or self._is_share(one),
        )

    def skip(self, one: FlushCheckpoint) -> Skip | None:
        """Why it does not flow, the weightiest reason first; None when it does."""
        for rule in (self._refused, self._at_target, self._at_source, self._unchosen):
            found = rule(one, self.whys_of(one))
            if found is not None:
                return Skip(
                    run_id=self.run.run_id,
                    run=self.run.name,
                    checkpoint=one,
                    why_not=found[0],
                    text=found[1],
                )
        return None

    def _refused(self, one: FlushCheckpoint, whys: tuple[Why, ...]) -> _Found:
        """What no rule may choose, whatever it says; a person may."""
        if Why.ASKED in whys:
            return None
        if one.mark is not None:
            return WhyNot.BAD, one.mark
        if one.step is None or one.step_kind is StepKind.NONE:
            if Why.PIN in whys:
                return None
            return WhyNot.STEPLESS, "carries no step: only a pin, or naming it, makes it flow"
        if not self.run.lines.includes(one.line, one.step):
            active = self.run.lines.active
            return (
                WhyNot.OLDER_LINE,
                f"belongs to line {one.line}; line {active.number} "
                f"(from step {active.base_step}) has replaced it",
            )
        if state_at(one, self.link.source) in REMOVED:
            return WhyNot.CONDEMNED, f"is to be removed from {self.link.source}"
        return None

    def _at_target(self, one: FlushCheckpoint, whys: tuple[Why, ...]) -> _Found:
        target, state = self.link.target, state_at(one, self.link.target)
        if state is CopyState.VERIFIED:
            return WhyNot.ALREADY_THERE, f"{target} holds it whole and verified"
        if one.is_arriving and not is_spread_at(one, self.link.source):
            return WhyNot.BEING_DELIVERED, f"a mover delivers it to {target} now"
        if state in LEAVING:
            brings = "'ckptgov undelete' brings it back"
            return WhyNot.CONDEMNED, f"its copy at {target} is {state.value}: {brings}"
        if Why.ASKED in whys or state is None:
            return None
        if state in UNSURE:
            return WhyNot.UNVERIFIED_THERE, f"its copy at {target} is {state.value}: verify it"
        if state in REMOVED and Why.PIN not in whys:
            return WhyNot.CONDEMNED, f"was removed from {target} by decision ({state.value})"
        return None

    def _is_share(self, one: FlushCheckpoint) -> bool:
        return is_share_at(self.run, one, self.link.source)

    def _head(self, attempts: Sequence[FlushCheckpoint]) -> FlushCheckpoint | None:
        """The newest attempt at a step that can be had, or that the target has or had.

        One that retention removed from the target still stands for its stretch: its neighbour is
        not sent in its place.
        """
        return next((one for one in attempts if self._can_stand(one)), None)

    def _can_stand(self, one: FlushCheckpoint) -> bool:
        if one.mark is not None:
            return False
        standing = {CopyState.VERIFIED, *UNSURE, *REMOVED}
        is_there = state_at(one, self.link.target) in standing
        return is_there or is_whole_at(one, self.link.source) or self._is_share(one)

    def _at_source(self, one: FlushCheckpoint, whys: tuple[Why, ...]) -> _Found:
        del whys
        source, state = self.link.source, state_at(one, self.link.source)
        if state is CopyState.VERIFIED or self._is_share(one):
            return None
        is_gone = state is None or state is CopyState.LOST
        how = "is not there" if is_gone else f"is {state} there"
        return WhyNot.NOT_RESTORABLE, f"{source} does not hold it whole and verified: it {how}"

    def _unchosen(self, one: FlushCheckpoint, whys: tuple[Why, ...]) -> _Found:
        if whys:
            return None
        if self.head_ids.get(one.step) not in (None, one.content_id):
            return WhyNot.SUPERSEDED, f"a later attempt at step {one.step} has replaced it"
        if self.link.last is not None and one.step is not None:
            return WhyNot.SUPERSEDED, f"it is not among the last {self.link.last} any more"
        return WhyNot.NOT_CHOSEN, "no rule of the link chooses it"


_Found = tuple[WhyNot, str] | None


def _firsts(
    heads: Sequence[FlushCheckpoint | None], stretch: Callable[[int, FlushCheckpoint], int]
) -> Iterator[FlushCheckpoint]:
    seen: set[int] = set()
    for index, head in enumerate(heads):
        if head is None or (number := stretch(index, head)) in seen:
            continue
        seen.add(number)
        yield head


def _tie(run: RunToFlush, one: FlushCheckpoint) -> tuple[int, ...]:
    """Tells two checkpoints of equal rank apart: the later sealed one first, then by their ids."""
    content = digits_of(one.content_id).encode()
    return (
        -(one.sealed_at_ns // 10**9),
        int.from_bytes(content[:7], "big"),
        int.from_bytes(content[7:14], "big"),
        int.from_bytes(run.run_id.encode()[:7], "big"),
    )


def _first_out(one: FlushItem) -> tuple[int, tuple[int, ...], str, str]:
    urgency = 0 if one.flow_class is FlowClass.DURABLE else 1
    return (urgency, one.order, one.run_id, one.checkpoint.content_id)


def _is_begun(one: FlushCheckpoint, link: Link) -> bool:
    is_partial = state_at(one, link.target) is CopyState.PARTIAL
    return one.is_begun or one.is_arriving or is_partial
