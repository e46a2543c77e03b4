"""A few threads over many files: plain threads, because concurrent.futures costs start-up time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Stopped(Exception):
    """Raised by work that saw ``Stopper`` ask for the end. Its item has no result."""


class Stopper:
    """Asked between reads whether to end: by the caller's ``stop``, or when nobody listens."""

    __slots__ = ("_is_asked", "_stop")

    def __init__(self, stop: Callable[[], bool] | None = None) -> None:
        self._stop = stop
        self._is_asked = False

    def ask(self) -> None:
        """End at the next occasion."""
        self._is_asked = True

    def __call__(self) -> bool:
        return self._is_asked or (self._stop is not None and self._stop())


def in_parallel(
    items: Iterable[_Item],
    work: Callable[[_Item], _Result],
    *,
    threads: int,
    stopper: Stopper,
) -> Iterator[tuple[_Item, _Result]]:
    """Each item with what ``work`` made of it, as they get done; in order with one thread.

    What ``work`` raises comes out here (``Stopped`` ends quietly). Closing the iterator, or an
    exception where it is consumed, asks ``stopper`` and waits for the threads.
    """
    if threads > 1:
        with closing(_threaded(iter(items), work, threads, stopper)) as results:
            yield from results
        return
    for item in items:
        if stopper():
            return
        try:
            result = work(item)
        except Stopped:
            return
        yield item, result


def _threaded(
    items: Iterator[_Item],
    work: Callable[[_Item], _Result],
    threads: int,
    stopper: Stopper,
) -> Generator[tuple[_Item, _Result], None, None]:
    done: SimpleQueue[tuple[_Item, _Result] | BaseException | None] = SimpleQueue()
    turn = threading.Lock()

    def run() -> None:
        try:
            while not stopper():
                with turn:
                    item = next(items)
                done.put((item, work(item)))
        except (StopIteration, Stopped):
            pass
        except BaseException as error:
            done.put(error)
        finally:
            done.put(None)

    workers = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        running = threads
        while running:
            got = done.get()
            if got is None:
                running -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield got
    finally:
        stopper.ask()
        for worker in workers:
            worker.join()
