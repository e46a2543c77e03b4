"""Storages to move bytes through: paced by the arbiter's grants, freed when they hang."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from msgspec.structs import replace

from ckptgov.model.pacing import Budget, FlowClass, FlowRequest
from ckptgov.ops.context import Context
from ckptgov.ops.flows import OpenFlow
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Storage
from ckptgov.storage.paced import PacedStorage
from ckptgov.storage.retrying import RetryingStorage
from ckptgov.storage.watched import WatchedStorage
from ckptgov.work.look import RunLook
from ckptgov.work.tier import Place


class Moving:
    """One movement: for each tier it reads, one flow; the target goes with the first of them.

    The first one waits, where it is used, until the arbiter admits it; the others are its
    companions.
    """

    def __init__(
        self,
        context: Context,
        *,
        what: str,
        flow_class: FlowClass,
        bytes_: int,
        order: tuple[int, ...],
        target: Place | None,
        stack: ExitStack,
    ) -> None:
        self._context = context
        self._what = what
        self._class = flow_class
        self._bytes = bytes_
        self._order = order
        self._target = target
        self._stack = stack
        self._flows: dict[tuple[str, str | None], OpenFlow] = {}
        self._writing: OpenFlow | None = None

    def reading(self, place: Place) -> Storage:
        """A place to read from."""
        flow = self._flow_from(place)
        return PacedStorage(self._guarded(place.storage), read=flow.reading, write=None)

    def writing(self, place: Place) -> Storage:
        """The place to write to; what is read back from it counts as read there."""
        assert self._target is not None
        flow = self._writing or self._open(None, target=self._target)
        # Reading back is a flow of its own: the read budget is not the write budget.
        return PacedStorage(
            self._guarded(place.storage),
            read=self._flow_from(self._target).reading,
            write=flow.writing,
            moved=flow.moved,
        )

    def _flow_from(self, place: Place) -> OpenFlow:
        key = (place.tier, place.node)
        if key not in self._flows:
            target = self._target if self._writing is None else None
            is_paced_there = getattr(place.storage, "paces_itself", False)
            if is_paced_there or target is None or target.node in (None, place.node):
                # What another node's agent sends is taken from its disk's budgets there.
                source = None if is_paced_there else place
                self._flows[key] = self._open(source, target=target)
            else:  # the budgets of another node's disk: a flow of its own
                self._flows[key] = self._open(place, target=None)
        return self._flows[key]

    def _open(self, source: Place | None, *, target: Place | None) -> OpenFlow:
        nodes = [one.node for one in (source, target) if one is not None and one.node is not None]
        flow = self._stack.enter_context(
            self._context.desk.open(
                FlowRequest(
                    flow_id=self._context.author.new_id(),
                    what=self._what,
                    flow_class=self._class,
                    source=(source.tier or None) if source is not None else None,
                    target=(target.tier or None) if target is not None else None,
                    # Budgets of a node's disk are kept under the node's configured name.
                    node=nodes[0] if nodes else os.uname().nodename,
                    bytes=self._bytes,
                    order=self._order,
                    is_companion=bool(self._flows) or self._writing is not None,
                )
            )
        )
        if target is not None:
            self._writing = flow
        return flow

    def _guarded(self, storage: Storage) -> Storage:
        """Freed when it hangs, tried again when what failed may pass; object stores do both."""
        if getattr(storage, "retries_itself", False):
            return storage
        if not storage.filesystem().is_network:
            return storage  # a local disk fails rather than hangs, and watching costs a switch
        clock = self._context.author.clock
        watched = WatchedStorage(storage, stall_s=self._context.settings.stall_s, clock=clock)
        return RetryingStorage(watched, policy=RetryPolicy(), clock=clock, random=random.random)


@contextmanager
def moving(
    context: Context,
    *,
    what: str,
    flow_class: FlowClass,
    bytes_: int,
    order: tuple[int, ...] = (),
    target: Place | None = None,
) -> Iterator[Moving]:
    """One movement and its flows; they end with the block."""
    with ExitStack() as stack:
        yield Moving(
            context,
            what=what,
            flow_class=flow_class,
            bytes_=bytes_,
            order=order,
            target=target,
            stack=stack,
        )


def restoring(context: Context) -> Callable[[str, int, Place], AbstractContextManager[Moving]]:
    """How a restore moves: above all else but a dying node's flushes."""

    def begin(what: str, bytes_: int, target: Place) -> AbstractContextManager[Moving]:
        return moving(
            context, what=what, flow_class=FlowClass.RESTORE, bytes_=bytes_, target=target
        )

    return begin


def known_rate(context: Context, place: Place) -> float | None:
    """Bytes/s a place can be expected to give: what flows from its tier now measure, else what
    its budget allows; None where neither is known."""
    measured = [
        one.measured_bytes_per_s
        for one in context.desk.facts()
        if one.request.source == place.tier and one.measured_bytes_per_s
    ]
    if measured:
        return float(max(measured))
    tier = context.tier_of(place.root, place.node)
    return tier.budget.read_bytes_per_s if tier is not None else None


@contextmanager
def paced_reading(
    context: Context, looks: Sequence[RunLook], *, what: str, flow_class: FlowClass
) -> Iterator[None]:
    """Let looks read within the budgets of their tiers while the block lasts.

    A look at a tier without a budget reads as before, and no flow is registered for it.
    """
    budgeted = [look for look in looks if _has_budget(context, look.place)]
    plain = [(look, look.place) for look in budgeted]
    bytes_ = sum(_pending_bytes(look) for look in budgeted)
    with moving(context, what=what, flow_class=flow_class, bytes_=bytes_) as movement:
        try:
            for look, place in plain:
                look.place = replace(place, storage=movement.reading(place))
            yield
        finally:
            for look, place in plain:
                look.place = place


def _pending_bytes(look: RunLook) -> int:
    """What a whole reading of the sealed copies comes to."""
    copies = (look.sealed(stored) for stored in look.stored)
    return sum(copy.manifest.bytes for copy in copies if copy is not None)


def _has_budget(context: Context, place: Place) -> bool:
    tier = context.tier_of(place.root, place.node)
    own = os.uname().nodename
    return (tier is not None and tier.budget != Budget()) or any(
        node.name in (own, place.node) for node in context.settings.nodes
    )
