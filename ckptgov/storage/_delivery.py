"""A file on its way into an open directory, piece by piece, that outlives its process.

Works on a directory descriptor and plain names. The bytes collect under a temporary name whose
lock (flock) is held while somebody works on it; whoever gets the lock of one that was left behind
may go on with it. What stands there proves nothing: it counts once it was compared.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ckptgov.errors import StorageError
from ckptgov.model.files import Attributes, FileStat
from ckptgov.storage import _linux
from ckptgov.storage._covered import Covered
from ckptgov.storage._oserrors import os_error, translated
from ckptgov.storage._paths import printable
from ckptgov.storage._resolve import DIR_READ
from ckptgov.storage._stat import lstat
from ckptgov.storage._temporary import PIECE_BYTES, Leftovers, Opened, begin
from ckptgov.storage._write import Temp, give, name_temp, unlink_quietly
from ckptgov.storage._writeback import Writeback
from ckptgov.storage.contract import ArrivalProof

_COMPARE_BYTES = 2**20
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EPERM)


def receive_at(
    dir_fd: int,
    name: str,
    size_bytes: int,
    where: str,
    *,
    attributes: Attributes | None,
    leftovers: Leftovers,
) -> PosixDelivery:
    """``Storage.receive`` within one directory, opened for reading; ``where`` is for messages."""
    if size_bytes < 0:
        raise StorageError(f"{printable(where)}: no file has {size_bytes} bytes")
    with translated(where):
        if lstat(dir_fd, name) is not None:
            raise os_error(errno.EEXIST)
        own_fd = os.open(".", DIR_READ, dir_fd=dir_fd)
        try:
            # Not readable for others before its own mode says so.
            mode = 0o666 if attributes is None else 0o600
            temp = begin(own_fd, name, size_bytes, mode, leftovers)
        except BaseException:
            os.close(own_fd)
            raise
    return PosixDelivery(own_fd, temp, name, size_bytes, where, attributes, leftovers)


class PosixDelivery:
    """The ``Delivery`` contract on one temporary file. For one thread at a time."""

    def __init__(
        self,
        dir_fd: int,
        temp: Opened,
        name: str,
        size_bytes: int,
        where: str,
        attributes: Attributes | None,
        leftovers: Leftovers,
    ) -> None:
        self._dir_fd = dir_fd
        self._temp = temp
        self._name = name
        self._size_bytes = size_bytes
        self._where = where
        self._attributes = attributes
        self._leftovers = leftovers
        self._covered = Covered()
        self._is_open = True
        self._is_over = False
        self._writeback = Writeback(temp.fd)
        self._room = bytearray()
        self._sent_bytes = self._resumed_bytes = 0

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes

    @property
    def resumed_bytes(self) -> int:
        return self._resumed_bytes

    def stands(self, offset: int, length: int) -> bool:
        return 0 < offset + length <= self._temp.old_bytes

    def matches(self, offset: int, piece: memoryview) -> bool:
        with self._working(), piece.cast("B") as wanted:
            self._require_inside(offset, len(wanted))
            if not self.stands(offset, len(wanted)) or not self._equal(offset, wanted):
                return False
            self._covered.add(offset, offset + len(wanted))
            self._resumed_bytes += len(wanted)
            return True

    def write(self, offset: int, piece: memoryview) -> None:
        with self._working(), piece.cast("B") as given:
            self._require_inside(offset, len(given))
            if self._is_untouched:
                self._allocate()
            done = 0
            while done < len(given):
                room = min(len(given) - done, self._writeback.room_bytes)
                with given[done : done + room] as rest:
                    count = os.pwrite(self._temp.fd, rest, offset + done)
                self._sent_bytes += count
                self._writeback.wrote(offset + done, count)
                done += count
            self._covered.add(offset, offset + len(given))

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        with self._working():
            missing = self._covered.first_gap(self._size_bytes)
            if missing is not None:
                raise StorageError(
                    f"{printable(self._where)}: byte {missing} was neither written nor compared"
                )
            temp = self._settle()
            try:
                # The lock is held until the temporary name is gone: nobody takes it up now.
                found = name_temp(self._dir_fd, temp, self._name, self._where)
            except FileNotFoundError as error:
                raise StorageError(
                    f"{printable(self._where)}: someone else took the temporary name away"
                ) from error
            finally:
                self._close()
        return found, ArrivalProof.NONE

    def abandon(self) -> None:
        if self._is_open and self._is_worth_keeping:
            self._leftovers.add(self._dir_fd, self._temp.name)
            self._close()
        self.discard()

    def discard(self) -> None:
        if self._is_open:
            unlink_quietly(self._dir_fd, self._temp.name)
            self._close()

    def __del__(self) -> None:
        self._close()

    @property
    def _is_untouched(self) -> bool:
        return not self._sent_bytes

    @property
    def _is_worth_keeping(self) -> bool:
        """Whether a later delivery would take it up, and gain by it."""
        return (
            self._temp.is_locked
            and self._size_bytes > PIECE_BYTES
            and bool(self._sent_bytes or self._temp.old_bytes)
        )

    @contextmanager
    def _working(self) -> Iterator[None]:
        """An error ends the delivery, and takes its file with it.

        After a failed write, fsync or close the kernel may have dropped the bytes and say so only
        once: the file is never synced again, nor taken up. An interrupt leaves it for later.
        """
        if not self._is_open or self._is_over:
            raise StorageError(
                f"{printable(self._where)}: this delivery is over", hint="begin the file anew"
            )
        try:
            with translated(self._where):
                yield
        except Exception:
            self.discard()
            raise
        except BaseException:
            self._is_over = True
            raise

    def _require_inside(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self._size_bytes:
            raise StorageError(
                f"{printable(self._where)}: bytes {offset}+{length} of a file of {self._size_bytes}"
            )

    def _equal(self, offset: int, wanted: memoryview) -> bool:
        # After a failed fsync elsewhere the cache can hold what the device does not.
        with suppress(OSError):
            os.posix_fadvise(self._temp.fd, offset, len(wanted), os.POSIX_FADV_DONTNEED)
        done = 0
        while done < len(wanted):
            with wanted[done : done + _COMPARE_BYTES] as expected:
                if not self._reads(offset + done, expected):
                    return False
                done += len(expected)
        return True

    def _reads(self, offset: int, expected: memoryview) -> bool:
        """Whether exactly these bytes are read, into a buffer that serves all pieces."""
        length = len(expected)
        if len(self._room) != length:
            self._room = bytearray(length)
        done = 0
        while done < length:
            with memoryview(self._room)[done:] as rest:
                count = os.preadv(self._temp.fd, [rest], offset + done)
            if not count:
                return False
            done += count
        return self._room == expected  # unlike two views: compared as memory, not item by item

    def _allocate(self) -> None:
        """Room for all of it at once: a full tier says so now, and the file lies in one piece."""
        if self._size_bytes <= PIECE_BYTES:
            return
        try:
            _linux.allocate(self._temp.fd, self._size_bytes)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise

    def _settle(self) -> Temp:
        """Attributes, fsync and the errors that only a close tells; the lock stays."""
        fd, attributes = self._temp.fd, self._attributes
        if attributes is not None:
            _apply(fd, attributes)
        os.fsync(fd)
        found = os.fstat(fd)
        if attributes is not None and found.st_mtime_ns != attributes.mtime_ns:
            # A client that sends bytes only at fsync may stamp them then; or it keeps no ns.
            _set_mtime(fd, attributes.mtime_ns)
            os.fsync(fd)
            found = os.fstat(fd)
        if found.st_size != self._size_bytes:
            raise StorageError(
                f"{printable(self._where)}: {found.st_size} bytes stand where "
                f"{self._size_bytes} were written",
                hint="another process wrote to the temporary file; do locks work on this tier?",
            )
        os.close(os.dup(fd))  # flushes and tells like the last close, which would lose the lock
        return Temp(name=self._temp.name, device=found.st_dev, inode=found.st_ino)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            for fd in (self._temp.fd, self._dir_fd):
                with suppress(OSError):
                    os.close(fd)


def _apply(fd: int, attributes: Attributes) -> None:
    """Before the fsync, so that it covers them; the owner last, as it may end our rights."""
    mine = os.fstat(fd)
    if mine.st_gid != attributes.gid:
        give(fd, -1, attributes.gid)
    os.fchmod(fd, attributes.mode & 0o777)
    _set_mtime(fd, attributes.mtime_ns)
    if mine.st_uid != attributes.uid:
        give(fd, attributes.uid, -1)


def _set_mtime(fd: int, mtime_ns: int) -> None:
    os.utime(fd, ns=(os.fstat(fd).st_atime_ns, mtime_ns))
