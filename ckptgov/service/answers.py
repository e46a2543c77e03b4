"""``latest`` of every run, remembered as the bytes that go out, and never older than 100 ms.

While answers are asked for, one thread asks the catalog every 40 ms what was committed, and what
it names is forgotten. An answer is given from memory only where the last such look began at most
100 ms ago. It may be longer ago, on a busy machine or where nobody had asked for a while: then
one more look serves all who wait, so that load never turns into more load. What the catalog
cannot tell is "could not look".

An answer is read in several short transactions. What is committed between them may or may not be
in it, as if it were committed just before or after the question; it is forgotten all the same.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import CatalogIdentity
from ckptgov.errors import CkptgovError, CouldNotLook, NeverAny, NoneRestorable
from ckptgov.model.answers import LatestAnswer
from ckptgov.model.closing import Closing
from ckptgov.model.cluster import RunChange, TaskKind, TaskState
from ckptgov.model.facts import Query
from ckptgov.model.settings import Settings
from ckptgov.ops import standing
from ckptgov.ops.standing import Standing
from ckptgov.service.calls import PLAIN, Reply, document
from ckptgov.service.questions import Questions
from ckptgov.service.refusals import refusal, status_of
from ckptgov.service.serving import Serving
from ckptgov.wire import documents
from ckptgov.wire.requests import LatestQuery

log = logging.getLogger(__name__)

POLL_S = 0.04
QUIET_S = 1.0
"""How long after the last question the looking goes on at that pace."""
QUIET_POLL_S = 0.5
OLDEST_S = 0.1
MOST_BYTES = 64 * 2**20
WAITED_FOR_PRIORITY = 100
"""Of tasks that a launcher waits for: before everything that nobody waits for."""

_ENTRY_BYTES = 2048  # what an entry takes beside its bodies, about
_MOST_RUNS = 100_000
_RAISED = frozenset({TaskKind.SCAN, TaskKind.DIGEST, TaskKind.PUBLISH, TaskKind.FLUSH})

Key = tuple[str, LatestQuery]
_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[bool]"]


class Told(Struct, frozen=True, kw_only=True):
    """An answer as it goes out. ``path``: to who asks for text alone; errors have none.

    ``good_until_ns``: by the wall clock; None: until something is committed.
    """

    reply: Reply
    path: Reply | None
    run_id: str | None = None
    seq: int = 0
    good_until_ns: int | None = None

    def reply_to(self, *, is_plain: bool) -> Reply:
        """The path alone where it is wanted and there is one."""
        return self.path if is_plain and self.path is not None else self.reply

    @property
    def bytes(self) -> int:
        """What remembering it takes, about."""
        path = len(self.path.body) if self.path is not None else 0
        return len(self.reply.body) + path + _ENTRY_BYTES


class _Flight:
    """One computation that everybody with the same question waits for."""

    def __init__(self, began: float, seen: int) -> None:
        self.began = began
        self.seen = seen  # changes known when it began: what came later it may not have read
        self.told: Told | None = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def result(self) -> Told:
        self.done.wait()
        if self.error is not None:
            raise self.error
        assert self.told is not None
        return self.told


def _tell(looked: asyncio.Future[bool], is_fresh: bool) -> None:
    if not looked.done():  # nobody waits any more
        looked.set_result(is_fresh)


class Answers(Closing):
    """Answers of one process; safe to use from any number of threads.

    ``start`` begins the looking for changes; without it, every question asks the catalog.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        poll_s: float = POLL_S,
        oldest_s: float = OLDEST_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._serving = serving
        self._poll_s = poll_s
        self._oldest_s = oldest_s
        self._most_bytes = most_bytes
        self._lock = threading.Lock()  # of everything below; never held while the catalog is asked
        self._told: OrderedDict[Key, Told] = OrderedDict()
        self._keys: dict[str, set[Key]] = {}
        self._bytes = 0
        self._flights: dict[Key, _Flight] = {}
        self._changed: dict[str, int] = {}
        self._changed_all = 0
        self._polling = threading.Lock()
        self._seq: int | None = None
        self._identity: CatalogIdentity | None = None
        self._fresh_at: float | None = None
        self._settings: Settings = serving.settings()
        self._listeners: list[Callable[[RunChange], None]] = []
        self._asked_at = 0.0
        self._wake = threading.Event()
        self._is_ending = False
        self._waiting: list[_Waiter] = []
        self._thread: threading.Thread | None = None
        self.questions = Questions(serving.catalog, monotonic=serving.clock.monotonic)
        """Which runs are asked for, answered from memory or not."""

    def start(self) -> None:
        """Begin to look for changes; once."""
        assert self._thread is None, "started twice"
        self.questions.start()
        self._try_to_catch_up()
        self._thread = threading.Thread(target=self._watch, name="answers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look for changes no more; questions then ask the catalog."""
        self._is_ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._fresh_at = None
        self._tell_waiting()
        self.questions.close()

    def on_change(self, listener: Callable[[RunChange], None]) -> None:
        """Tell ``listener`` of every change that is seen; it must return at once."""
        self._listeners.append(listener)

    @property
    def is_fresh(self) -> bool:
        """Whether everything committed until 100 ms ago is known here."""
        fresh_at = self._fresh_at
        return fresh_at is not None and self._now() - fresh_at <= self._oldest_s

    async def until_fresh(self) -> bool:
        """Have changes looked for now; whether that worked. Everybody waits for the same look."""
        if self._thread is None or self._is_ending:
            return False
        self._asked_at = self._now()
        loop = asyncio.get_running_loop()
        looked: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            self._waiting.append((loop, looked))
        self._wake.set()
        return await looked

    def _tell_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
            is_fresh = self.is_fresh
        for loop, looked in waiting:
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(_tell, looked, is_fresh)

    def _now(self) -> float:
        return self._serving.clock.monotonic()

    # Asking.

    def ready(self, run: str, question: LatestQuery) -> Told | None:
        """The answer in memory, if it may be given; never waits."""
        key = (run, question)
        self._asked_at = self._now()
        with self._lock:
            told = self._told.get(key)
            if told is None or not self.is_fresh:
                return None
            until_ns = told.good_until_ns
            if until_ns is not None and self._serving.clock.now_ns() >= until_ns:
                self._forget(key)
                return None
            self._told.move_to_end(key)
        if told.run_id is not None:
            self.questions.note(told.run_id)
        return told

    def latest(self, run: str, question: LatestQuery, *, is_plain: bool = False) -> Reply:
        """The answer from memory or, asked once for all who want it, from the catalog.

        Raises:
            CkptgovError: something that says nothing about the run's checkpoints.
        """
        question = replace(question, wait=0.0)
        if not self.is_fresh and self._thread is not None:
            self._try_to_catch_up(since=self._now())
        told = self.ready(run, question)
        if told is None:
            flight, is_mine = self._board((run, question))
            told = self._fly(flight, (run, question)) if is_mine else flight.result()
            if told.run_id is not None:
                self.questions.note(told.run_id)
        return told.reply_to(is_plain=is_plain)

    def _board(self, key: Key) -> tuple[_Flight, bool]:
        """The computation under way, unless what it read may be older than is allowed."""
        with self._lock:
            now = self._now()
            seen = self._seq or 0
            flight = self._flights.get(key)
            is_recent = flight is not None and now - flight.began <= self._oldest_s
            if flight is not None and is_recent and flight.seen == seen:
                return flight, False
            flight = self._flights[key] = _Flight(now, seen)
            return flight, True

    def _fly(self, flight: _Flight, key: Key) -> Told:
        try:
            seq = self._serving.catalog.change_seq()
            flight.told = replace(self._computed(key), seq=seq)
            self._remember(key, flight.told)
        except BaseException as error:
            flight.error = error
        finally:
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            flight.done.set()
        return flight.result()

    def _computed(self, key: Key) -> Told:
        run, question = key
        query = Query(purpose=question.purpose, world_size=question.world_size, step=question.step)
        with self._serving.context() as context:
            found = standing.latest(
                context,
                run,
                query,
                node=question.node,
                place=question.place,
                everything=question.explain,
            )
        return _told(found)

    # Remembering.

    def _remember(self, key: Key, told: Told) -> None:
        if told.run_id is None or told.good_until_ns == 0 or told.bytes > self._most_bytes:
            return
        with self._lock:
            changed = max(self._changed.get(told.run_id, 0), self._changed_all)
            if self._seq is None or told.seq < changed:
                return
            self._forget(key)
            self._told[key] = told
            self._keys.setdefault(told.run_id, set()).add(key)
            self._bytes += told.bytes
            while self._bytes > self._most_bytes:
                self._forget(next(iter(self._told)))

    def _forget(self, key: Key) -> None:
        told = self._told.pop(key, None)
        if told is None or told.run_id is None:
            return
        self._bytes -= told.bytes
        keys = self._keys[told.run_id]
        keys.discard(key)
        if not keys:
            del self._keys[told.run_id]

    def _forget_all(self) -> None:
        self._told.clear()
        self._keys.clear()
        self._bytes = 0

    # Looking for changes.

    def catch_up(self, *, since: float | None = None) -> None:
        """Learn now what was committed until now: to be called after a change by this process.

        ``since``, by the monotonic clock: a look of another thread that began after it will do.

        Raises:
            CkptgovError: the catalog does not tell.
        """
        with self._polling:
            if since is not None and self._fresh_at is not None and self._fresh_at >= since:
                return
            began = self._now()
            settings = self._serving.settings()
            changes, seq = self._changes(self._serving.catalog)
            with self._lock:
                if settings is not self._settings or seq is None:
                    self._settings = settings
                    self._forget_all()
                self._apply(changes, seq)
            for change in changes:
                for listener in self._listeners:
                    listener(change)
            self._fresh_at = began  # last: nobody is let in by what a listener has yet to hear

    def _changes(self, catalog: Catalog) -> tuple[list[RunChange], int | None]:
        """What is new. Of another catalog, or an earlier state of this one, nothing is known."""
        identity, newest = catalog.pulse()
        if self._seq is None or newest < self._seq or identity != self._identity:
            self._seq, self._identity = None, identity
            return [RunChange(seq=newest, run_id=None)], None
        found: list[RunChange] = []
        after = self._seq
        while after < newest:
            read = catalog.changes(after)
            if not read:
                break
            found += read
            after = read[-1].seq
        return found, max(after, newest)

    def _apply(self, changes: list[RunChange], seq: int | None) -> None:
        for change in changes:
            if change.run_id is None:
                self._changed_all = change.seq
                self._forget_all()
                continue
            self._changed[change.run_id] = change.seq
            for key in tuple(self._keys.get(change.run_id, ())):
                if self._told[key].seq < change.seq:
                    self._forget(key)
        self._seq = seq if seq is not None else changes[-1].seq
        if len(self._changed) > _MOST_RUNS:
            self._changed.clear()
            self._changed_all = self._seq

    def _watch(self) -> None:
        while not self._is_ending:
            is_quiet = self._now() - self._asked_at > QUIET_S
            self._wake.wait(max(QUIET_POLL_S, self._poll_s) if is_quiet else self._poll_s)
            self._wake.clear()
            self._try_to_catch_up()
            self._tell_waiting()

    def _try_to_catch_up(self, *, since: float | None = None) -> None:
        """What goes wrong here goes wrong for whoever asks: then the catalog is asked itself."""
        try:
            self.catch_up(since=since)
        except CkptgovError as error:
            log.debug("changes not read error=%s", error.message)
        except Exception:
            log.exception("changes not read")

    # Waiting.

    def hurry(self, run: str) -> int:
        """Let what somebody waits for go first: the run's open tasks; how many are raised.

        Raises:
            CkptgovError: the catalog does not answer.
        """
        tasks = self._serving.catalog.tasks
        waiting = tasks.tasks(for_run=run, states=(TaskState.QUEUED,))
        raised = [
            one.task
            for one in waiting
            if one.task.kind in _RAISED and one.task.priority < WAITED_FOR_PRIORITY
        ]
        for task in raised:
            tasks.add(replace(task, priority=WAITED_FOR_PRIORITY))
        return len(raised)


def _told(found: Standing) -> Told:
    answer = found.answer
    if answer.error is not None:
        return _told_error(found, answer, answer.error)
    reply = document(documents.latest(answer))
    path = documents.text(answer.path or "")
    return Told(
        reply=reply,
        path=Reply(status=200, body=f"{path}\n".encode(), media=PLAIN),
        run_id=found.run_id,
        good_until_ns=found.good_until_ns,
    )


def _told_error(found: Standing, answer: LatestAnswer, error: CkptgovError) -> Told:
    """Only "none restorable" is remembered: what could not be looked at may be in a moment."""
    if found.run_id is None:
        return Told(reply=refusal(error), path=None)
    waits = isinstance(error, NeverAny | NoneRestorable)
    reply = document(documents.latest(answer), status_of(error), is_pending=waits)
    is_lasting = waits and not isinstance(error, NeverAny | CouldNotLook)
    return Told(
        reply=reply,
        path=None,
        run_id=found.run_id,
        good_until_ns=found.good_until_ns if is_lasting else 0,
    )
