"""Moving bytes under the arbiter: a flow is opened, paced while it moves, and closed.

Promises (P7): all flows of all processes that share a catalog stay inside the budgets together,
whichever of them die, stop or lose the catalog. A process that hears nothing goes on at its
fallback rate, never faster and never not at all; one that was never let in waits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from ckptgov.catalog.flowfacts import Beat, Grant, RegisteredFlow
from ckptgov.catalog.flowfacts import Rates as PlainRates
from ckptgov.errors import CkptgovError, LeaseLost
from ckptgov.model.clock import Clock
from ckptgov.model.closing import Closing
from ckptgov.model.pacing import FlowFacts, FlowRequest
from ckptgov.model.settings import Settings
from ckptgov.ops.flows_arbiter import ALLOCATOR_LEASE_S, FORGOTTEN_S, Arbiter
from ckptgov.ops.flows_listing import facts_of
from ckptgov.ops.flows_open import OpenFlow
from ckptgov.ops.flows_pacer import Terms
from ckptgov.ops.processes import has_surely_ended, this_process
from ckptgov.planning.bandwidth import UNLIMITED, Rates, fallback_rates, is_free, limits_of

if TYPE_CHECKING:
    from ckptgov.catalog.catalog import Catalog

__all__ = ["FlowDesk", "FlowLedger", "OpenFlow"]

BEAT_S = 1.0
LEASE_S = 15.0
_OWN_MARGIN = 0.8
"""A flow stops using what it was lent at this part of the time the lender counts."""

_DESKS = itertools.count(1)  # two desks of one process are two candidates for the lease
_ENDLESS = float("inf")
_NEXT_ROUND = "the arbiter's next round"


class FlowLedger(Protocol):
    """What a desk needs of the book that flows are registered in. See ``catalog.flowbook``.

    Every call raises CkptgovError while the book does not answer, and may be made again then.
    """

    def open(self, flow: RegisteredFlow) -> None:
        """Register a flow. Raises FileExistsError."""
        ...

    def beat(self, beats: Sequence[Beat]) -> dict[str, Grant]:
        """Tell that flows go on; what each of them hears. One that is missing must stop."""
        ...

    def close(self, flow_ids: Iterable[str]) -> None:
        """Forget flows that ended."""
        ...

    def reap(self, silent: Iterable[tuple[str, int]]) -> int:
        """Forget flows whose process surely ended, each unless it was heard since that beat."""
        ...

    def registered(self) -> tuple[RegisteredFlow, ...]:
        """The registered flows whose processes can be looked at from here, others as far as
        they are known."""
        ...


class FlowDesk(Closing):
    """Opens flows for one process and keeps them heard; close it when the process is done.

    One thread serves all its flows: it tells of them every ``beat_s``, learns their grants, and
    computes everybody's grants while this process holds the allocator's lease. With
    ``always_computes`` it does so from the beginning, also while no flow is open here: for a
    service, which computes for its agents. ``reload`` gives the newest settings, so that a changed
    budget reaches flows that are under way. ``talk`` is told when the catalog stops and begins to
    answer.
    """

    BOOK = "the catalog"

    def __init__(
        self,
        catalog: Catalog | None,
        settings: Settings,
        clock: Clock,
        *,
        reload: Callable[[], Settings] | None = None,
        talk: Callable[[str], None] | None = None,
        beat_s: float = BEAT_S,
        lease_s: float = LEASE_S,
        allocator_lease_s: float = ALLOCATOR_LEASE_S,
        in_background: bool = True,
        always_computes: bool = False,
        ledger: FlowLedger | None = None,
    ) -> None:
        """``ledger`` instead of a catalog is for a desk whose grants others compute."""
        self._clock = clock
        self._limits = limits_of(settings)
        self._reload = reload
        self._talk = talk
        self._beat_s = beat_s
        self._lease_s = lease_s
        self._in_background = in_background
        self._owner = this_process()
        self._arbiter: Arbiter | None = None
        if ledger is None:
            assert catalog is not None, "a catalog or a ledger"
            ledger = catalog.flows
            owner = self._owner
            self._arbiter = Arbiter(
                catalog.flows,
                lambda: self._limits,
                clock=clock,
                owner=owner,
                holder=f"{owner.host}:{owner.pid}:{owner.started}:{next(_DESKS)}",
                lease_s=allocator_lease_s,
            )
        self._book: FlowLedger = ledger
        self._lock = threading.Lock()
        self._step_lock = threading.Lock()
        self._flows: dict[str, OpenFlow] = {}
        self._ended: set[str] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_lost = False
        if always_computes:
            self._start()

    @contextmanager
    def open(
        self, request: FlowRequest, *, wait_limit_s: float | None = None
    ) -> Iterator[OpenFlow]:
        """A flow for as long as the block runs. Where no budget concerns it, it never waits.

        A catalog that does not answer is no error here: the flow waits until it does. Not to be
        called inside a transaction of the catalog.

        Raises:
            LeaseLost: a flow of this id is open, here or elsewhere.
        """
        flow = OpenFlow(request, self._clock, self._first_terms(request), wait_limit_s)
        self._enter(flow)
        try:
            yield flow
        finally:
            self._leave(flow)

    def facts(self) -> tuple[FlowFacts, ...]:
        """Every flow of every process: those that move first, then by class, order and age."""
        return facts_of(self._book, self._clock)

    def close(self) -> None:
        """Stop; the allocator's lease goes to whoever asks next."""
        with self._lock:
            self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self._step_lock, suppress(CkptgovError):
            self._forget_ended()
            if self._arbiter is not None:
                self._arbiter.release()

    def step(self) -> None:
        """One beat: register, compute the grants if that is this process's part, tell and hear.

        Never raises for a catalog that does not answer: what was granted runs out by itself.
        """
        with self._step_lock:
            self._refresh_limits()
            try:
                self._work()
            except CkptgovError as error:
                self._lose(error)
            else:
                self._find()

    def _work(self) -> None:
        self._forget_ended()
        self._register_missing()
        if self._arbiter is not None:
            self._arbiter.step()
        self._tell_and_hear()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                if self._is_closed:
                    return
            self.step()
            self._wake.wait(self._beat_s)

    def _enter(self, flow: OpenFlow) -> None:
        flow_id = flow.request.flow_id
        with self._lock:
            if flow_id in self._flows or self._is_closed:
                raise LeaseLost(f"flow {flow_id} is open already, or its desk is closed")
            self._flows[flow_id] = flow
            self._ended.discard(flow_id)
        try:
            with self._step_lock:  # a beat registers whatever it finds unregistered
                if not flow.is_registered:
                    self._register(flow)
        except FileExistsError as error:
            with self._lock:
                del self._flows[flow_id]
            raise LeaseLost(f"flow {flow_id} is open in another process") from error
        except CkptgovError as error:
            self._lose(error)
        self._wake.set()
        self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._in_background or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="flows", daemon=True)
            self._thread.start()

    def _leave(self, flow: OpenFlow) -> None:
        flow.close()
        with self._lock:
            del self._flows[flow.request.flow_id]
            self._ended.add(flow.request.flow_id)
        with suppress(CkptgovError):  # the next beat tries again; else it is reaped
            self._forget_ended()

    def _forget_ended(self) -> None:
        with self._lock:
            ended = set(self._ended)
        if ended:
            self._book.close(ended)
            with self._lock:
                self._ended -= ended

    def _register_missing(self) -> None:
        for flow in self._open_flows():
            if not flow.is_registered:
                with suppress(FileExistsError):  # it goes on waiting
                    self._register(flow)

    def _register(self, flow: OpenFlow) -> None:
        free: PlainRates | None = UNLIMITED if is_free(flow.request, self._limits) else None
        now_ns = self._clock.now_ns()
        row = RegisteredFlow(
            request=flow.request,
            owner=self._owner,
            opened_at_ns=now_ns,
            lease_ns=int(self._lease_s * 1e9),
            granted=free,
            held=free,
            fallback=free,
            waits_for="" if free is not None else _NEXT_ROUND,
            beat_at_ns=now_ns,
        )
        try:
            self._book.open(row)
        except FileExistsError:
            if not self._reap_namesake(flow.request.flow_id):
                raise
            self._book.open(row)
        flow.is_registered = True
        with self._lock:
            if self._flows.get(flow.request.flow_id) is not flow:  # it ended meanwhile
                self._ended.add(flow.request.flow_id)

    def _reap_namesake(self, flow_id: str) -> bool:
        """Whether a flow of this id was left behind by a process that has ended."""
        dead = [
            (flow_id, one.beats)
            for one in self._book.registered()
            if one.request.flow_id == flow_id and has_surely_ended(one.owner, self._owner)
        ]
        return self._book.reap(dead) > 0

    def _tell_and_hear(self) -> None:
        flows = [flow for flow in self._open_flows() if flow.is_registered]
        if not flows:
            return
        asked_at = self._clock.monotonic()
        heard = self._book.beat([flow.beat(self._owner) for flow in flows])
        for flow in flows:
            grant = heard.get(flow.request.flow_id)
            if grant is None:  # reaped, or another catalog by now: nothing is counted for it
                flow.is_registered = False
                flow.hear(self._first_terms(flow.request))
            else:
                self._hear(flow, grant, asked_at)

    def _hear(self, flow: OpenFlow, grant: Grant, asked_at: float) -> None:
        flow.heard_at = asked_at
        flow.hear(self._terms(grant, asked_at))

    def _terms(self, grant: Grant, asked_at: float) -> Terms:
        is_endless = grant.fallback == UNLIMITED
        return Terms(
            rates=None if grant.rates is None else Rates(*grant.rates),
            fallback=None if grant.fallback is None else Rates(*grant.fallback),
            fresh_until=asked_at + _OWN_MARGIN * self._lease_s,
            usable_until=_ENDLESS if is_endless else asked_at + _OWN_MARGIN * FORGOTTEN_S,
            waits_for=grant.waits_for,
            seq=grant.seq,
        )

    def _first_terms(self, request: FlowRequest) -> Terms:
        free = is_free(request, self._limits)
        return Terms(
            rates=UNLIMITED if free else None,
            fallback=fallback_rates(request, self._limits),
            fresh_until=_ENDLESS,
            usable_until=_ENDLESS,
            waits_for="" if free else _NEXT_ROUND,
        )

    def _open_flows(self) -> list[OpenFlow]:
        with self._lock:
            return list(self._flows.values())

    def _refresh_limits(self) -> None:
        if self._reload is not None:
            with suppress(CkptgovError):  # while the file is being edited, what it said stands
                self._limits = limits_of(self._reload())

    def _lose(self, error: CkptgovError) -> None:
        for flow in self._open_flows():
            flow.lose()
        if not self._is_lost and self._talk is not None:
            waiting = sum(1 for flow in self._open_flows() if flow.waits_for)
            self._talk(
                f"{self.BOOK} does not answer ({error.message}): flows under way go on, at a low "
                f"rate once their grants run out; {waiting} not let in yet keep waiting"
            )
        self._is_lost = True

    def _find(self) -> None:
        if self._is_lost and self._talk is not None:
            self._talk(f"{self.BOOK} answers again")
        self._is_lost = False
