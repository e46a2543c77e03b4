"""Calls on worker threads, so that whoever asked need not wait for ever.

Each thread that calls has one worker, which serves all its calls: a new thread for each would cost
more than most calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

from ckptgov.errors import StorageError, TimedOut
from ckptgov.model.clock import Clock
from ckptgov.storage._paths import printable

Found = TypeVar("Found")

_TICKS = 8
_MOST_TICK_S = 1.0


class Calls:
    """The calls of one file or delivery: none is begun after one of them was given up."""

    def __init__(self, watch: Watch, path: str) -> None:
        self._watch = watch
        self._path = path
        self._stuck: list[Callable[[Callable[[], None]], None]] = []

    def run(self, verb: str, work: Callable[[], Found]) -> Found:
        if self._stuck:
            raise StorageError(
                f"{self._watch.where(self._path)}: an earlier call never came back",
                hint="open the file, or begin it, anew",
            )
        call = Call(work)
        try:
            return self._watch.wait(verb, self._path, call)
        finally:
            if not call.done.is_set():
                self._stuck.append(call.then)

    def end(self, verb: str, work: Callable[[], None]) -> None:
        """Run the last call; after one was given up, once that came back and without waiting."""
        if not self._stuck:
            self.run(verb, work)
            return
        for then in self._stuck:
            then(work)


class Watch:
    """Runs calls on the workers of the threads that make them, and counts the time."""

    def __init__(self, root: str, *, stall_s: float, clock: Clock) -> None:
        self._root = root
        self._stall_s = stall_s
        self._tick_s = min(_MOST_TICK_S, stall_s / _TICKS)
        self._clock = clock
        self._own = threading.local()

    def run(self, verb: str, path: str, work: Callable[[], Found]) -> Found:
        return self.wait(verb, path, Call(work))

    def feed(
        self,
        verb: str,
        path: str,
        chunks: Iterable[bytes],
        work: Callable[[Iterable[bytes]], Found],
    ) -> Found:
        """Run a call that asks a source for bytes: the source may take its time."""
        call: Call[Found] = Call(lambda: work(call.fed(chunks)))
        return self.wait(verb, path, call)

    def wait(self, verb: str, path: str, call: Call[Found]) -> Found:
        """The call's result, or TimedOut."""
        self._worker().begin(call)
        try:
            is_done = self._await(call)
        except BaseException:  # an interrupt: its buffer is not given back while it is in use
            if not self._await(call):
                self._leave_worker()
            raise
        if not is_done:
            self._leave_worker()
            raise TimedOut(
                f"{self.where(path)}: {verb} made no progress for {self._stall_s:g} s",
                hint="the tier neither answers nor fails: look at its mount, server and network",
            )
        return call.result()

    def where(self, path: str) -> str:
        return printable("/".join(filter(None, (self._root, path))))

    def _await(self, call: Call[Found]) -> bool:
        stalled_s, before, beats = 0.0, self._clock.monotonic(), call.beats
        while stalled_s < self._stall_s:
            if call.done.wait(self._tick_s):
                return True
            now = self._clock.monotonic()
            # A tick that took longer is this process having been stopped, not the tier.
            stalled_s += min(now - before, 2 * self._tick_s)
            before = now
            if call.is_with_source or call.beats != beats:
                stalled_s, beats = 0.0, call.beats
        return call.done.is_set()

    def _worker(self) -> Worker:
        worker: Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = Worker()
        return worker

    def _leave_worker(self) -> None:
        self._own.worker = None


class Call(Generic[Found]):
    """One call, and what became of it."""

    def __init__(self, work: Callable[[], Found]) -> None:
        self._work: Callable[[], Found] | None = work
        self._lock = threading.Lock()
        self._later: list[Callable[[], None]] = []
        self._found: list[Found] = []
        self._error: BaseException | None = None
        self.done = threading.Event()
        self.beats = 0
        self.is_with_source = False

    def run(self) -> None:
        """On the worker. The closure is let go: it may hold a large buffer."""
        work, self._work = self._work, None
        try:
            if work is not None:
                self._found.append(work())
        except BaseException as error:
            self._error = error
        del work
        with self._lock:
            self.done.set()
        for later in self._later:
            _try(later)

    def result(self) -> Found:
        """On the caller, once it is done."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else the trace holds this frame, and the frame the error
        return self._found[0]

    def then(self, later: Callable[[], None]) -> None:
        """Run this too when the call comes back; now if it did already."""
        with self._lock:
            if not self.done.is_set():
                self._later.append(later)
                return
        _try(later)

    def beaten(self, told: Callable[[int], None] | None) -> Callable[[int], None]:
        """``told``; each time it is called the call made progress."""

        def beat(count: int) -> None:
            self.beats += 1
            if told is not None:
                told(count)

        return beat

    def fed(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The source's bytes; whether it is being waited for is told."""
        source = iter(chunks)
        while True:
            self.is_with_source = True
            try:
                chunk = next(source, None)
            finally:
                self.beats += 1
                self.is_with_source = False
            if chunk is None:
                return
            yield chunk


class Worker:
    """A daemon thread that runs calls one after another, until nobody holds this any more."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call[object] | None] = SimpleQueue()
        threading.Thread(
            target=_serve, args=(self._calls,), name="ckptgov-watched", daemon=True
        ).start()

    def begin(self, call: Call[Found]) -> None:
        self._calls.put(call)  # type: ignore[arg-type]  # results are never looked at there

    def __del__(self) -> None:
        self._calls.put(None)


def _serve(calls: SimpleQueue[Call[object] | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call


def _try(later: Callable[[], None]) -> None:
    """Tidying up after a call that was given up: nobody is left to tell."""
    try:
        later()
    except (StorageError, OSError):
        return
