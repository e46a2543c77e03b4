"""Digests of files: one pass, one reused buffer a thread, the token taken before and after.

Reading with ``readv`` into one buffer of 1 MiB and feeding xxh3 with all of it at once was the
fastest way measured, cold and warm: xxhash gives up the GIL for updates of this size, so files in
parallel threads scale. (mmap was no faster, and raises SIGBUS when the file is cut.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import xxhash
from msgspec import Struct

from ckptgov.errors import CkptgovError, StorageError
from ckptgov.manifest.pool import Stopped, Stopper, in_parallel
from ckptgov.model.checkpoint import CHUNK_BYTES, Shard
from ckptgov.model.files import OpenFile, Reader, Token

BUFFER_BYTES = 2**20
DROP_BYTES = 32 * 2**20
"""Page cache is given back each time this much was read."""


class ChangedWhileRead(StorageError):
    """The file's size, times or inode changed between the first and the last byte read."""

    kind = "changed-while-read"


class FileDigest(Struct, frozen=True):
    """What one pass over a file found. ``chunks`` is empty up to 64 MiB."""

    bytes: int
    digest: str
    chunks: tuple[str, ...]
    token: Token

    def shard(self, path: str) -> Shard:
        """The manifest's entry for the file."""
        return Shard(path, self.bytes, self.digest, self.chunks)


def digest_file(
    file: OpenFile,
    *,
    token: Token | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    progress: Callable[[int], None] | None = None,
    drop_cache: bool = False,
) -> FileDigest:
    """Digest of the whole file and, above 64 MiB, of each 64 MiB chunk, in one pass.

    ``token`` is the file's, if the caller has just taken it.
    ``progress`` gets the bytes of each read; what it raises ends the pass. ``drop_cache`` gives
    the page cache back behind the reading. The buffer belongs to the thread and is kept.

    Raises:
        ChangedWhileRead: the token before and after differ, or the file ended early.
        StorageError: reading failed.
    """
    token = token or file.stat().token
    buffer = _buffer(buffer_bytes)
    if token.bytes <= len(buffer):
        found = _digest_small(file, token, buffer, progress)
        if drop_cache and token.bytes:
            file.drop_cache(0, token.bytes)
    else:
        found = _digest_large(file, token, buffer, progress, drop_cache)
    if (after := file.stat().token) != token:
        raise ChangedWhileRead(f"changed while it was read: {token} became {after}")
    return found


def digest_many(
    paths: Iterable[str],
    reader: Reader,
    *,
    threads: int = 4,
    drop_cache: bool = False,
    sync: bool = False,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[tuple[str, FileDigest | CkptgovError | OSError]]:
    """Digests of files below ``reader``'s root, each as it gets done (in order with one thread).

    A file that cannot be digested comes with its error instead, and the others go on. ``sync``
    makes each file durable before it is read. ``progress`` is called in the reading threads.
    When ``stop`` says so (asked at each read) the iterator ends; files without a result were not
    digested.
    """
    stopper = Stopper(stop)

    def counted(count: int) -> None:
        if stopper():
            raise Stopped
        if progress is not None:
            progress(count)

    def work(path: str) -> FileDigest | CkptgovError | OSError:
        try:
            with reader.open(path) as file:
                if sync:
                    file.sync()
                return digest_file(file, progress=counted, drop_cache=drop_cache)
        except (CkptgovError, OSError) as error:
            return error

    return in_parallel(paths, work, threads=threads, stopper=stopper)


_local = threading.local()


def _buffer(size_bytes: int) -> memoryview:
    """This thread's buffer."""
    held: memoryview | None = getattr(_local, "buffer", None)
    if held is None or len(held) != size_bytes:
        held = _local.buffer = memoryview(bytearray(size_bytes))
    return held


def _digest_small(
    file: OpenFile, token: Token, buffer: memoryview, progress: Callable[[int], None] | None
) -> FileDigest:
    piece = buffer[: token.bytes]
    count = file.read_into(piece, 0) if token.bytes else 0
    _check_count(count, token.bytes)
    if progress is not None:
        progress(count)
    return FileDigest(count, f"xxh3_128:{xxhash.xxh3_128_hexdigest(piece)}", (), token)


def _digest_large(
    file: OpenFile,
    token: Token,
    buffer: memoryview,
    progress: Callable[[int], None] | None,
    drop_cache: bool,
) -> FileDigest:
    hashes = _Hashes(has_chunks=token.bytes > CHUNK_BYTES)
    offset = dropped = 0
    while offset < token.bytes:
        length = min(len(buffer), token.bytes - offset, CHUNK_BYTES - offset % CHUNK_BYTES)
        piece = buffer[:length]
        _check_count(file.read_into(piece, offset), length)
        offset += length
        hashes.update(piece, ends_chunk=offset % CHUNK_BYTES == 0 or offset == token.bytes)
        if progress is not None:
            progress(length)
        if drop_cache and (offset - dropped >= DROP_BYTES or offset == token.bytes):
            file.drop_cache(dropped, offset - dropped)
            dropped = offset
    return FileDigest(offset, hashes.digest(), tuple(hashes.chunks), token)


def _check_count(count: int, wanted: int) -> None:
    if count != wanted:
        raise ChangedWhileRead(f"changed while it was read: it ended {wanted - count} bytes early")


class _Hashes:
    """The running hashes of the whole file and of the current chunk."""

    __slots__ = ("_chunk", "_whole", "chunks")

    def __init__(self, *, has_chunks: bool) -> None:
        self._whole = xxhash.xxh3_128()
        self._chunk = xxhash.xxh3_128() if has_chunks else None
        self.chunks: list[str] = []

    def update(self, piece: memoryview, *, ends_chunk: bool) -> None:
        self._whole.update(piece)
        if self._chunk is None:
            return
        self._chunk.update(piece)
        if ends_chunk:
            self.chunks.append(f"xxh3_128:{self._chunk.hexdigest()}")
            self._chunk.reset()

    def digest(self) -> str:
        return f"xxh3_128:{self._whole.hexdigest()}"


class WrongBytes(Exception):
    """What was read is not what the manifest says; the message names the chunk."""


class ShardCheck:
    """Compares bytes with a manifest's entry as they pass, in order from the beginning.

    Of a whole shard, each chunk as soon as its last byte came, so that a wrong one is known
    before much more is moved; or of one ``chunk`` alone, counted from 0, by its own digest.
    """

    __slots__ = ("_chunks", "_compared", "_done", "_hashes", "_length", "_wanted", "_what")

    def __init__(self, shard: Shard, *, chunk: int | None = None) -> None:
        self._chunks = shard.chunks if chunk is None else ()
        self._wanted = shard.digest if chunk is None else shard.chunks[chunk]
        self._what = "it" if chunk is None else f"chunk {chunk + 1} of {len(shard.chunks)}"
        self._hashes = _Hashes(has_chunks=bool(self._chunks))
        self._length = shard.bytes
        self._done = self._compared = 0

    def update(self, piece: memoryview) -> None:
        """The next bytes.

        Raises:
            WrongBytes: a chunk that ended in them differs.
        """
        taken = 0
        while taken < len(piece):
            room = CHUNK_BYTES - self._done % CHUNK_BYTES if self._chunks else len(piece)
            part = piece[taken : taken + room]
            taken += len(part)
            self._done += len(part)
            is_end = self._done % CHUNK_BYTES == 0 or self._done == self._length
            self._hashes.update(part, ends_chunk=is_end)
            self._compare_chunks()

    def finish(self) -> None:
        """Compare all that passed.

        Raises:
            WrongBytes: it differs.
        """
        if self._hashes.digest() != self._wanted:
            raise WrongBytes(f"{self._what} differs from the manifest")

    def _compare_chunks(self) -> None:
        while self._compared < len(self._hashes.chunks):
            index = self._compared
            if self._hashes.chunks[index] != self._chunks[index]:
                raise WrongBytes(f"chunk {index + 1} of {len(self._chunks)} differs")
            self._compared += 1
