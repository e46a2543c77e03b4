"""A storage whose process dies at a chosen point: walk through all of them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence

from ckptgov.model.files import Entry, FileStat, OpenFile
from ckptgov.storage.contract import Storage
from ckptgov.storage.mounts import FileSystem


class Crash(BaseException):
    """The process is dead from here on. No ``Exception``: nothing may tidy up after it."""


class CrashingStorage:
    """``inner``, until the mutating call number ``crash_at`` (from 0), which is not done.

    From then on every call raises :class:`Crash` too, as a dead process does nothing any more:
    look at ``inner`` for what it left. ``calls`` names the mutating calls that were done, so a
    run with ``crash_at=None`` tells how many points there are.
    """

    def __init__(self, inner: Storage, crash_at: int | None = None) -> None:
        self._inner = inner
        self._crash_at = crash_at
        self._is_dead = False
        self.calls: builtins.list[tuple[str, str]] = []

    @property
    def root(self) -> str:
        return self._inner.root

    def list(self, path: str) -> Sequence[Entry]:
        self._alive()
        return self._inner.list(path)

    def stat(self, path: str) -> FileStat:
        self._alive()
        return self._inner.stat(path)

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        self._alive()
        return self._inner.stat_many(directory, names, birth=birth)

    def read_link(self, path: str) -> str:
        self._alive()
        return self._inner.read_link(path)

    def open(self, path: str) -> OpenFile:
        self._alive()
        return self._inner.open(path)

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._mutate("publish", path)
        return self._inner.publish(path, chunks)

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        self._mutate("replace", path)
        return self._inner.replace(path, chunks)

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        self._mutate("make_dirs", path)
        self._inner.make_dirs(path, like=like)

    def remove(self, path: str) -> None:
        self._mutate("remove", path)
        self._inner.remove(path)

    def remove_dir(self, path: str) -> None:
        self._mutate("remove_dir", path)
        self._inner.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        self._alive()
        self._inner.sync_dir(path)

    def filesystem(self) -> FileSystem:
        self._alive()
        return self._inner.filesystem()

    def close(self) -> None:
        self._inner.close()

    def _mutate(self, call: str, path: str) -> None:
        self._alive()
        if len(self.calls) == self._crash_at:
            self._is_dead = True
            raise Crash(f"at {call} {path}")
        self.calls.append((call, path))

    def _alive(self) -> None:
        if self._is_dead:
            raise Crash("long since")
