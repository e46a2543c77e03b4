"""The contract every backend keeps; ``ckptgov.testing.storage_contract`` tests it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.files import Attributes, Entry, FileStat, Reader, Token

if TYPE_CHECKING:
    from ckptgov.storage.mounts import FileSystem

TEMP_PREFIX = ".ckptgov-tmp-"
"""Names of files being written begin like this. A process that was killed leaves them behind;
they are listed like any other name, and no published file is ever called so."""


class ArrivalProof(StrEnum):
    """What a finished delivery knows of the bytes that arrived."""

    NONE = "none"  # the write calls succeeded, nothing more
    CHECKSUM = "checksum"  # the store compared a checksum of ours with what it received


class Traits(Struct, frozen=True, kw_only=True):
    """What a kind of storage can do at all; what one tier really does, ``tier check`` finds out.

    ``has_directories``: names live in directories that can be renamed as a whole. Otherwise
    (object stores) a directory is the common beginning of keys and comes and goes with them.
    ``piece_bytes``: the least number of bytes worth handing to a delivery at a time.
    ``parallel_pieces``: how many threads may hand over pieces of one delivery at once.
    """

    has_directories: bool = True
    has_links: bool = True
    piece_bytes: int = 2**20
    parallel_pieces: int = 1


class PendingDelivery(Struct, frozen=True, kw_only=True):
    """A delivery that was begun and neither finished nor discarded, as storage tells it.

    ``handle`` is the backend's own (an upload id, a temporary name). ``is_held`` says that a
    living process surely works on it; False that none does or that storage cannot tell.
    """

    path: str
    handle: str
    bytes: int
    started_at_ns: int
    is_held: bool = False


class Removed(Struct, frozen=True, kw_only=True):
    """What ``remove_tree`` did.

    ``files`` counts what is no directory, ``bytes`` those of regular files that had no other name
    left (0 where storage tells no sizes on its way). ``left`` are paths below the root that
    resisted, the first 100 of them, and ``error`` is the first one's; what was to be kept is not
    among them.
    """

    files: int = 0
    bytes: int = 0
    left: tuple[str, ...] = ()
    error: CkptgovError | OSError | None = None


class Delivery(Protocol):
    """One file on its way in: handed over in pieces, published whole or not at all.

    A piece begins at a multiple of ``Traits.piece_bytes`` and has that size; only the last one
    is shorter. ``write`` hands over a piece. ``stands`` tells that an earlier, interrupted
    delivery of the same file may have left a piece; ``matches`` compares it (by content, or by a
    checksum the store computed of it) with the bytes it should have, and only then it need not be
    written again. Nothing is visible under the path before ``finish``.

    Each of them may raise StorageError. After an error of ``write`` or ``finish`` the delivery is
    good for ``abandon`` and ``discard`` only.
    """

    @property
    def sent_bytes(self) -> int:
        """Bytes that this delivery put on the wire or the device, repeated ones included."""
        ...

    @property
    def resumed_bytes(self) -> int:
        """Bytes of an earlier delivery that matched and were not sent again."""
        ...

    def stands(self, offset: int, length: int) -> bool:
        """Whether the piece may be there from an earlier delivery."""
        ...

    def matches(self, offset: int, piece: memoryview) -> bool:
        """Whether exactly these bytes stand there. Reads or computes; writes nothing."""
        ...

    def write(self, offset: int, piece: memoryview) -> None:
        """Hand over a piece; the buffer may be reused afterwards."""
        ...

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        """Make everything durable and publish it under the path.

        Raises:
            FileExistsError: the path is taken and was not touched; the delivery was discarded.
        """
        ...

    def abandon(self) -> None:
        """Stop; what was handed over is left for a later delivery where the backend can resume."""
        ...

    def discard(self) -> None:
        """Stop, and remove every trace as far as possible. After ``finish`` nothing happens."""
        ...


class Storage(Reader, Protocol):
    """A tree of files beneath one root, safe against whoever changes it meanwhile.

    Paths are relative and ``/``-separated, ``""`` is the root; an absolute path, an empty, ``.``
    or ``..`` part, a NUL or text that is no file name raises ``PathEscapes``. Only ``open``
    follows symlinks, and only beneath the root; for every other call a symlink in the place of a
    directory on the way raises ``PathEscapes``. Its last part is never followed.

    ``FileNotFoundError``, ``FileExistsError``, ``NotADirectoryError`` and ``IsADirectoryError``
    mean what the built-ins say. All else the tier does not do raises ``StorageError``, or
    ``TransientStorageError`` where the same call may succeed later; where an ``OSError`` is
    behind it, that is the ``__cause__``.
    """

    @property
    def root(self) -> str:
        """Absolute path of the root, or the name of a tree that has no path."""
        ...

    def stat_many(
        self, directory: str, names: Sequence[str], *, birth: bool = False
    ) -> list[FileStat | None]:
        """lstat of many names in one directory, aligned with ``names``; None for absent ones.

        The directory is resolved once. ``btime_ns`` may stay None unless ``birth`` is set.
        """
        ...

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        """Store ``chunks`` under ``path``: all of it becomes visible and durable, or none.

        Missing parent directories are created, each durable, with the process's default mode;
        they stay when the publishing fails. The file is never executable. Of several publishers
        of one path exactly one wins. An error, also one raised by ``chunks`` (it passes through
        unchanged), leaves nothing under ``path`` and no temporary file where that can be helped.
        What became visible may still vanish until this call returned.

        Raises:
            FileExistsError: ``path`` is taken, by whatever kind of entry, and was not touched.
        """
        ...

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        """Put ``chunks`` in the place of the file ``path``, atomically and durably.

        Mode, and where allowed owner and group, stay those of the old file. After an error
        either the old bytes or the new ones are there, whole. Only for the tier identity's
        epoch: everything else is published once.

        Raises:
            FileNotFoundError: there is no such file; this call never makes a new one.
            PathEscapes: ``path`` is a symlink.
        """
        ...

    def make_dirs(self, path: str, *, like: str | None = None) -> None:
        """Make the missing directories of ``path``, each durable in its parent.

        With ``like``, an existing directory, new ones take its mode and group, and its owner
        where this process may give files away. What exists keeps its mode and owner.

        Raises:
            NotADirectoryError: something else has one of the names.
        """
        ...

    def remove(self, path: str, *, only: Token | None = None) -> None:
        """Remove a regular file, or a symlink itself and never what it leads to; durable.

        With ``only``, nothing goes but the file that has this token (``Token.same_content``): it
        is compared in the same directory right before, or by the store where it can, and where
        versions are kept exactly that version goes.

        Raises:
            StaleState: another file has the name by now; it was not touched.
        """
        ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory, durably; one that holds anything raises StorageError."""
        ...

    def remove_tree(
        self,
        directory: str,
        *,
        keeps: Callable[[Entry], bool] | None = None,
        gone: Callable[[int], None] | None = None,
    ) -> Removed:
        """Remove a directory and all beneath it, as far as that goes; gone already is no error.

        A symlink is removed itself. Nothing on another mount goes, whatever is swapped for what
        meanwhile: a directory is entered only as the child of the one that lists it. What
        ``keeps`` says (it is not asked about directories), and what resists, is left, and the
        directories around it with it. ``gone`` is told every so often how many entries went since
        it was told last; what it raises ends the removal and passes through.
        """
        ...

    @property
    def traits(self) -> Traits:
        """What this kind of storage can do."""
        ...

    def attributes(self, path: str) -> Attributes:
        """What should travel with a regular file: from its inode, or its user metadata."""
        ...

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        """Begin, or take up again, the delivery of a file of exactly ``size_bytes`` bytes.

        Missing parents are created as by ``publish``. An interrupted delivery of the same path
        and size is taken up again only where no living process can still write to it, or where
        sharing it is harmless. Attributes are applied before the file is published, owner and
        group only where this process may give files away. ``digest`` is kept beside the file
        where the backend has room for it; it is not interpreted.

        Raises:
            FileExistsError: the path is taken.
        """
        ...

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        """Deliveries begun and not finished at or below a directory, held or not."""
        ...

    def forget(self, pending: PendingDelivery) -> None:
        """Remove one; gone already is no error. The caller made sure that nobody works on it."""
        ...

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        """Move a directory to a free name, atomically and durably; ``parents`` are created.

        Raises:
            FileNotFoundError: a directory above ``target`` is missing, without ``parents``.
            FileExistsError: ``target`` is taken (an empty directory counts), and stays untouched.
            StorageError: this kind of storage has no directories; or something is mounted at
                ``source`` or below it.
        """
        ...

    def rename(
        self,
        source: str,
        target: str,
        *,
        only: Token | None = None,
        durable: bool = True,
        parents: bool = True,
    ) -> None:
        """Give a regular file, or a symlink itself, another free name; ``parents`` are created.

        It has one of the names at any time. ``only`` as in ``remove``. Without ``durable`` it is
        so once ``sync_dir`` was called on both directories, the target's first.

        Raises:
            FileNotFoundError: a directory above ``target`` is missing, without ``parents``.
            FileExistsError: ``target`` is taken, by whatever kind of entry, and stays untouched.
            StaleState: another file has the name ``source`` by now; it was not touched.
            StorageError: this kind of storage has no directories.
        """
        ...

    def link(self, source: str, target: str) -> None:
        """Give a regular file a second, free name, durably; parents are created.

        Raises:
            FileExistsError: ``target`` is taken.
            StorageError: this tier has no hard links.
        """
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. Their bytes need ``OpenFile.sync``."""
        ...

    def filesystem(self) -> FileSystem:
        """What the root lies on."""
        ...

    def close(self) -> None:
        """Give back what is held open; nothing is called after it."""
        ...
