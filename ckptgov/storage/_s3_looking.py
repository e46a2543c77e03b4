"""The reading half of a bucket as a tree: listings, looks at files, open files."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Sequence

from ckptgov.errors import StorageError
from ckptgov.model.files import Attributes, Entry, EntryKind, FileStat
from ckptgov.storage._keyed import directory_stat
from ckptgov.storage._paths import raw, require_name, split, split_file
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_file import S3File
from ckptgov.storage._s3_keys import Keys
from ckptgov.storage._s3_listing import any_below, level
from ckptgov.storage._s3_object import Head, file_stat, head_or_none

_FEW = 3  # so many names are looked at one by one, more by a listing


class Looking:
    """Needs ``_bucket`` and ``_keys``. What the calls promise stands in the contract."""

    _bucket: Bucket
    _keys: Keys

    @property
    def root(self) -> str:
        return self._keys.root

    def list(self, path: str) -> Sequence[Entry]:
        where = self._keys.where(path)
        found = level(self._bucket, self._keys.below(path), where)
        if path and not found.is_there:
            raise self._no_directory(path)
        kinds = dict.fromkeys(found.others, EntryKind.OTHER)
        kinds |= dict.fromkeys(found.directories, EntryKind.DIR)
        kinds |= dict.fromkeys(found.files, EntryKind.FILE)
        return [Entry(name, kinds[name]) for name in sorted(kinds, key=raw)]

    def stat(self, path: str) -> FileStat:
        where = self._keys.where(path)
        if not path:
            self._require_bucket()
            return directory_stat()
        found = head_or_none(self._bucket, self._keys.key(path), where)
        if found is not None:
            return found.stat
        if any_below(self._bucket, self._keys.below(path), where):
            return directory_stat()
        raise _absent(where)

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> builtins.list[FileStat | None]:
        for name in names:
            require_name(name)
        split(directory)
        if len(names) > _FEW:
            return self._stat_listed(directory, names)
        found = [self._stat_or_none(f"{directory}/{name}" if directory else name) for name in names]
        if directory and not any(found):
            self._require_directory(directory)
        return found

    def read_link(self, path: str) -> str:
        split_file(path)
        if self.stat(path).kind is EntryKind.DIR:
            raise _is_directory(self._keys.where(path))
        raise StorageError(f"{self._keys.where(path)}: no symlink; a bucket has none")

    def open(self, path: str) -> S3File:
        return S3File(self._bucket, self._key(path), self._head(path), self._keys.where(path))

    def attributes(self, path: str) -> Attributes:
        return self._head(path).attributes

    def _key(self, path: str) -> str:
        split_file(path)
        return self._keys.key(path)

    def _head(self, path: str) -> Head:
        """A file as HEAD tells it. Raises FileNotFoundError, IsADirectoryError."""
        key, where = self._key(path), self._keys.where(path)
        found = head_or_none(self._bucket, key, where)
        if found is not None:
            return found
        if any_below(self._bucket, self._keys.below(path), where):
            raise _is_directory(where)
        raise _absent(where)

    def _stat_or_none(self, path: str) -> FileStat | None:
        try:
            return self.stat(path)
        except FileNotFoundError:
            return None

    def _stat_listed(self, directory: str, names: Sequence[str]) -> builtins.list[FileStat | None]:
        where = self._keys.where(directory)
        found = level(self._bucket, self._keys.below(directory), where)
        if directory and not found.is_there:
            raise self._no_directory(directory)
        stats: builtins.list[FileStat | None] = []
        for name in names:
            there = found.files.get(name)
            if there is not None:
                stats.append(file_stat(there.bytes, there.etag, there.modified_ns))
            else:
                stats.append(directory_stat() if name in found.directories else None)
        return stats

    def _require_bucket(self) -> None:
        try:
            self._bucket.call(
                self.root, lambda: self._bucket.client.head_bucket(Bucket=self._bucket.name)
            )
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.root}: no such bucket",
                hint="create the bucket, or correct the tier's address",
            ) from error

    def _require_directory(self, path: str) -> None:
        if not any_below(self._bucket, self._keys.below(path), self._keys.where(path)):
            raise self._no_directory(path)

    def _no_directory(self, path: str) -> OSError:
        where = self._keys.where(path)
        if head_or_none(self._bucket, self._keys.key(path), where):
            return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where)
        return _absent(where)


def _absent(where: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)


def _is_directory(where: str) -> IsADirectoryError:
    return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), where)
