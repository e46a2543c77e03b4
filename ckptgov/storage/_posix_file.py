"""An open file of a POSIX file system."""

from __future__ import annotations

import os
from contextlib import suppress

from ckptgov.errors import StorageError
from ckptgov.model.closing import Closing
from ckptgov.model.files import FileStat
from ckptgov.storage._oserrors import translated
from ckptgov.storage._paths import printable
from ckptgov.storage._stat import from_stat


class PosixFile(Closing):
    """``OpenFile`` on a descriptor, which it owns. Reads are positioned, so threads may share it.

    ``where`` is the full path, for messages only.
    """

    def __init__(self, fd: int, where: str) -> None:
        self._fd = fd
        self._where = where
        self._sync_failed = False

    def stat(self) -> FileStat:
        with translated(self._where):
            return from_stat(os.fstat(self._fd))

    def fileno(self) -> int:
        """The descriptor, for calls that read through it; it stays this object's."""
        return self._fd

    def read_at(self, offset: int, length: int) -> bytes:
        pieces: list[bytes] = []
        with translated(self._where):
            while length > 0 and (piece := os.pread(self._fd, length, offset)):
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
        return b"".join(pieces)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        done = 0
        with translated(self._where), buffer.cast("B") as room:
            while done < len(room):
                with room[done:] as rest:
                    count = os.preadv(self._fd, [rest], offset + done)
                if not count:
                    break
                done += count
        return done

    def sync(self) -> None:
        if self._sync_failed:
            raise StorageError(
                f"{printable(self._where)}: an earlier fsync failed; another proves nothing",
                hint="write the file anew",
            )
        with translated(self._where):
            os.fstat(self._fd)  # os.fsync has another error for a closed file
            self._sync_failed = True
            os.fsync(self._fd)
        self._sync_failed = False

    def drop_cache(self, offset: int, length: int) -> None:
        with suppress(OSError):  # advice: a file system that has no cache to drop may refuse
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with translated(self._where):
                os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:
            with suppress(StorageError):
                self.close()
