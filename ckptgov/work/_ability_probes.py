"""The probes that need nothing but the storage contract. Each works in a name of its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from ckptgov.errors import CkptgovError, StorageError, TransientStorageError
from ckptgov.storage.contract import Storage
from ckptgov.work.owned import remove_below

_RACERS, _RACES, _HANDOVERS = 8, 20, 8
_RACES_AT_A_STORE = 2
"""One server decides each; some let those that lose the race wait for seconds."""

_WAIT_S = 120.0
_CANNOT = frozenset(
    (
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EINVAL,
        errno.EPERM,
        errno.EXDEV,
        errno.EMLINK,
        errno.ENOTTY,
    )
)
_CONTENT = b"ckptgov writes this to find out what a tier can do\n"


@runtime_checkable
class Admitting(Protocol):
    """A backend that knows that its creates are not exclusive says so."""

    @property
    def is_exclusive(self) -> bool: ...


def says_cannot(error: BaseException) -> bool:
    """Whether an error means "this is not supported" rather than "this failed"."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        return cause.errno in _CANNOT
    return isinstance(error, StorageError) and not isinstance(error, TransientStorageError)


def publishes(storage: Storage, directory: str) -> bool:
    """Whether a file can be published at all and reads back as it was written."""
    path = f"{directory}/publish"
    told = storage.publish(path, [_CONTENT])
    return content(storage, path) == _CONTENT and told.token == storage.stat(path).token


def creates_exclusively(storage: Storage, directory: str) -> bool:
    """Whether a taken name is refused, early or late, and a race has one winner."""
    if isinstance(storage, Admitting) and not storage.is_exclusive:
        return False
    return (
        not _publish(storage, f"{directory}/publish", b"another")
        and _refuses_late(storage, f"{directory}/late")
        and races_have_one_winner((storage,), f"{directory}/race")
    )


def creates_exclusively_between(storage: Storage, second: Storage, directory: str) -> bool:
    """The same through two mounts: handed over in turn, and raced for."""
    below = f"{directory}/between"
    storage.make_dirs(below)
    for number in range(_HANDOVERS):
        pair = (storage, second) if number % 2 else (second, storage)
        path = f"{below}/turn{number}"
        with suppress(FileNotFoundError):
            pair[1].stat(path)  # a client that remembers absent names remembers this one now
        if not _publish(pair[0], path, b"first") or _publish(pair[1], path, b"second"):
            return False
    return races_have_one_winner((storage, second), below)


def races_have_one_winner(storages: Sequence[Storage], directory: str) -> bool:
    """Eight publishers of each of several names, through the storages in turn."""
    races = _RACES if storages[0].traits.has_directories else _RACES_AT_A_STORE
    start = threading.Barrier(_RACERS)
    won: list[set[int]] = [set() for _ in range(_RACERS)]
    muddled: list[StorageError] = []
    broken: list[Exception] = []

    def run(racer: int) -> None:
        storage = storages[racer % len(storages)]
        try:
            for race in range(races):
                start.wait(_WAIT_S)
                try:
                    if _publish(storage, f"{directory}/race{race}", str(racer).encode()):
                        won[racer].add(race)
                except StorageError as error:
                    if isinstance(error, TransientStorageError) or error.__cause__ is not None:
                        raise
                    muddled.append(error)  # the backend saw somebody else's file in the end
        except threading.BrokenBarrierError:
            return  # another one broke
        except Exception as error:
            broken.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=(racer,)) for racer in range(_RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return not muddled and all(
        _has_its_winner(storages[0], directory, won, race) for race in range(races)
    )


def _has_its_winner(storage: Storage, directory: str, won: list[set[int]], race: int) -> bool:
    winners = [str(racer).encode() for racer in range(_RACERS) if race in won[racer]]
    try:
        return winners == [content(storage, f"{directory}/race{race}")]
    except FileNotFoundError:
        return False


def _refuses_late(storage: Storage, path: str) -> bool:
    delivery = storage.receive(path, len(_CONTENT))
    try:
        with memoryview(_CONTENT) as piece:
            delivery.write(0, piece)
        storage.publish(path, [b"meanwhile"])
        try:
            delivery.finish()
        except FileExistsError:
            return content(storage, path) == b"meanwhile"
        return False
    finally:
        delivery.discard()


def _publish(storage: Storage, path: str, chunk: bytes) -> bool:
    try:
        storage.publish(path, [chunk])
    except FileExistsError:
        return False
    return True


def lists_completely(storage: Storage, directory: str) -> bool:
    """Whether names are listed as soon as they were published, odd ones included."""
    below = f"{directory}/listing"
    wanted = [*(f"{number:02}" for number in range(24)), "a b%2f", "a-1", "a.b", "ä", "UPPER"]
    for name in wanted:
        storage.publish(f"{below}/{name}", [])
    storage.publish(f"{below}/a/x", [])
    return {entry.name for entry in storage.list(below)} == {*wanted, "a"}


def renames_directories(storage: Storage, directory: str) -> bool:
    """Whether a directory moves as a whole, and never to a taken name, empty ones included."""
    if not storage.traits.has_directories:
        return False
    below = f"{directory}/rename"
    storage.publish(f"{below}/old/x", [_CONTENT])
    try:
        storage.rename_dir(f"{below}/old", f"{below}/new")
    except CkptgovError as error:
        return _no(error)
    is_moved = [entry.name for entry in storage.list(below)] == ["new"]
    is_whole = content(storage, f"{below}/new/x") == _CONTENT
    storage.make_dirs(f"{below}/empty")
    return is_moved and is_whole and _refuses_rename(storage, f"{below}/new", f"{below}/empty")


def _refuses_rename(storage: Storage, source: str, target: str) -> bool:
    try:
        storage.rename_dir(source, target)
    except FileExistsError:
        return True
    return False


def links(storage: Storage, directory: str) -> bool:
    """Whether a file gets a second name, and never a taken one."""
    if not storage.traits.has_links:
        return False
    first, other = f"{directory}/link/first", f"{directory}/link/other"
    made = storage.publish(first, [_CONTENT])
    try:
        storage.link(first, other)
    except CkptgovError as error:
        return _no(error)
    try:
        storage.link(first, other)
    except FileExistsError:
        return storage.stat(other).inode == made.inode
    return False


def _no(error: CkptgovError) -> bool:
    """False for "cannot"; what failed otherwise is no answer."""
    if says_cannot(error):
        return False
    raise error


def keeps_inodes(storage: Storage, second: Storage | None, directory: str) -> bool:
    """Whether a file's inode number stays through looks, renames, and on another mount."""
    below = f"{directory}/inodes"
    seen = {storage.publish(f"{below}/old/x", [_CONTENT]).inode}
    seen |= {storage.stat(f"{below}/old/x").inode for _ in range(3)}
    where = "old"
    with suppress(CkptgovError):
        storage.rename_dir(f"{below}/old", f"{below}/new")
        where = "new"
    seen.add(storage.stat(f"{below}/{where}/x").inode)
    if second is not None:
        second.list(below)  # a client that has cached the names looks again
        seen.add(second.stat(f"{below}/{where}/x").inode)
    return len(seen) == 1 and 0 not in seen


def tells_births(storage: Storage, directory: str) -> bool:
    """Whether files tell when they were born."""
    return storage.stat(f"{directory}/publish").btime_ns is not None


def sees(second: Storage, storage: Storage, directory: str) -> bool:
    """Whether what ``storage`` published is there through ``second`` as well."""
    path = f"{directory}/same"
    mine = directory.encode("utf-8", "surrogateescape")
    storage.publish(path, [mine])
    try:
        second.list(directory)
        return content(second, path) == mine
    except FileNotFoundError:
        return False


def content(storage: Storage, path: str) -> bytes:
    """All bytes of a small file."""
    with storage.open(path) as file:
        return file.read_at(0, file.stat().bytes)


def absolute(storage: Storage, directory: str) -> str | None:
    """The directory's path for system calls; None where the tier is reached by a library."""
    if not os.path.isabs(storage.root) or "://" in storage.root:
        return None
    return os.path.join(storage.root, directory)


def exists(storage: Storage, path: str) -> bool:
    """Whether anything has this name."""
    try:
        storage.stat(path)
    except FileNotFoundError:
        return False
    return True


def sweep(storage: Storage, directory: str) -> list[str]:
    """Remove a tree of our own; what resists is told, and nothing raises."""
    resisted: list[CkptgovError | OSError] = []
    try:
        for pending in storage.pending(directory):
            storage.forget(pending)
    except FileNotFoundError:
        pass
    except (CkptgovError, OSError) as error:
        resisted.append(error)
    if (left := remove_below(storage, directory)) is not None:
        resisted.append(left)
    return [f"left behind in {directory}: {error}" for error in resisted]
