"""The lease on bringing one checkpoint to one place, or taking it away: it saves work, and never
decides.

Who lost it ends at the next piece. A mover that was stopped past it and goes on can only touch
temporary names of its own, so both end in one copy with the right bytes; a remover asks the catalog
and the run's records before it touches anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ckptgov.errors import CkptgovError, LeaseLost
from ckptgov.ops.context import Context
from ckptgov.ops.processes import has_surely_ended, holder_of, process_of, this_process

TTL_NS = 30 * 10**9
RENEW_S = 10.0

_held_lock = threading.Lock()
_held: set[tuple[str, str, str]] = set()
"""What this process holds: holder, content id, place."""


class CopyLease:
    """A held lease; ``is_lost`` turns true when another mover took it over."""

    def __init__(self, context: Context, content_id: str, place: str) -> None:
        self._context = context
        self._content_id = content_id
        self._place = place
        self._clock = context.author.clock
        self._epoch = _take(context, content_id, place)
        self._renewed = self._clock.monotonic()
        self._lost = False
        self._lock = threading.Lock()

    def is_lost(self) -> bool:
        """Renews when it is time; asked between pieces, so no thread of its own is needed."""
        with self._lock:
            now = self._clock.monotonic()
            if self._lost or now - self._renewed < RENEW_S:
                return self._lost
            try:
                self._context.catalog.renew_copy_lease(
                    self._content_id, self._place, epoch=self._epoch, ttl_ns=TTL_NS
                )
            except LeaseLost:
                self._lost = True
            except CkptgovError:
                pass  # the catalog did not answer: what is delivered is right in any case
            self._renewed = now
            return self._lost

    def or_stop(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """What work asks between its pieces: whether ``stop`` says so, or the lease is lost."""
        return lambda: stop() or self.is_lost()

    def release(self) -> None:
        """Let the next one begin."""
        with suppress(CkptgovError):
            self._context.catalog.release_copy_lease(
                self._content_id, self._place, epoch=self._epoch
            )


@contextmanager
def copy_lease(context: Context, content_id: str, place: str) -> Iterator[CopyLease]:
    """Hold the lease for the block.

    Raises:
        LeaseLost: another living mover holds it, or another thread of this process.
    """
    with _only_thread(content_id, place):
        lease = CopyLease(context, content_id, place)
        try:
            yield lease
        finally:
            lease.release()


@contextmanager
def _only_thread(content_id: str, place: str) -> Iterator[None]:
    """The catalog knows a process as the holder, and lets its own holder take a lease anew."""
    key = (holder_of(this_process()), content_id, place)
    with _held_lock:
        if key in _held:
            raise LeaseLost(f"another thread of this process is at {content_id[:23]} already")
        _held.add(key)
    try:
        yield
    finally:
        with _held_lock:
            _held.discard(key)


def arriving(context: Context, content_ids: Iterable[str], place: str) -> frozenset[str]:
    """Those that a living mover delivers to the place now."""
    now_ns = context.catalog.now_ns()
    found = set()
    for content_id in content_ids:
        known = context.catalog.copy_lease(content_id, place)
        if known is not None and known.expires_at_ns > now_ns and not _is_dead(known.holder):
            found.add(content_id)
    return frozenset(found)


def _take(context: Context, content_id: str, place: str) -> int:
    catalog, holder = context.catalog, holder_of(this_process())
    with suppress(LeaseLost):
        return catalog.take_copy_lease(content_id, place, holder=holder, ttl_ns=TTL_NS)
    known = catalog.copy_lease(content_id, place)
    if known is not None and _is_dead(known.holder):  # killed: nobody else will release it
        catalog.release_copy_lease(content_id, place, epoch=known.epoch)
    return catalog.take_copy_lease(content_id, place, holder=holder, ttl_ns=TTL_NS)


def _is_dead(holder: str) -> bool:
    """Whether the process surely ended; one on another host may live."""
    process = process_of(holder)
    return process is not None and has_surely_ended(process, this_process())
