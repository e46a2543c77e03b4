"""Copy shards: one read of the source, digest while copying, several sources for each shard.

Whatever is handed to a delivery was compared, chunk by chunk, with the manifest before the file
is published. A source that does not give the manifest's bytes is reported and the next one is
tried; a target that fails ends the copying, and what has arrived stays for the next try.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import Empty, SimpleQueue

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CkptgovError, CouldNotLook, StorageError, TimedOut
from ckptgov.manifest.digest import ChangedWhileRead, ShardCheck, WrongBytes, digest_file
from ckptgov.manifest.pool import Stopped, Stopper, in_parallel
from ckptgov.model.checkpoint import CHUNK_BYTES, Shard
from ckptgov.model.facts import Finding, Reason
from ckptgov.model.files import Attributes, FileStat, OpenFile, Token
from ckptgov.storage.contract import ArrivalProof, Delivery, Storage

MAX_REREADS = 5


class ShardSource(Struct, frozen=True, kw_only=True):
    """Where one shard may be read. ``place`` names it in reports."""

    storage: Storage
    path: str
    place: str


class ShardCopy(Struct, frozen=True, kw_only=True):
    """One shard to be copied to ``path`` below the target's root; sources nearest first."""

    shard: Shard
    path: str
    sources: tuple[ShardSource, ...]


class SourceFault(Struct, frozen=True, kw_only=True):
    """A source that did not give the manifest's bytes."""

    place: str
    shard: str
    finding: Finding


class Arrived(Struct, frozen=True, kw_only=True):
    """A shard that stands at the target, whole by digest while copying.

    ``place`` is where it was read, None for one that stood there already. ``proof`` tells what
    the target knows of it.
    """

    shard: Shard
    path: str
    stat: FileStat
    proof: ArrivalProof
    place: str | None
    sent_bytes: int = 0
    resumed_bytes: int = 0


class CopySettings(Struct, frozen=True, kw_only=True):
    """``threads`` shards, or chunks of shards on object stores, move at once."""

    threads: int = 4
    progress: Callable[[int], None] | None = None
    stop: Callable[[], bool] | None = None


class CopyFailed(CouldNotLook):
    """No source gave a shard's bytes. ``faults`` tells of each."""

    kind = "copy-failed"

    def __init__(self, message: str, faults: tuple[SourceFault, ...]) -> None:
        super().__init__(message, hint="'ckptgov verify' compares the copies; 'explain' lists them")
        self.faults = faults


class WrongArrival(StorageError):
    """The target gave other bytes back than the manifest's."""

    kind = "wrong-arrival"


class _BadSource(Exception):
    """Raised inside one shard's copying; never leaves this module."""

    def __init__(self, reason: Reason, evidence: str) -> None:
        super().__init__(evidence)
        self.reason = reason
        self.evidence = evidence


def copy_shards(
    copies: Sequence[ShardCopy],
    target: Storage,
    *,
    settings: CopySettings,
    on_fault: Callable[[SourceFault], None],
) -> Iterator[Arrived]:
    """Copy shards in parallel; each comes as it arrives. One that stands already is accepted by
    size here and must be compared by the caller (``proof`` NONE, ``place`` None).

    Closing the iterator, or an error, stops the others between two pieces and leaves what they
    delivered for the next try.

    Raises:
        CopyFailed: a shard had no source that gave its bytes.
        StorageError: the target failed; its message names it.
    """
    stopper = Stopper(settings.stop)
    mover = _Mover(target=target, settings=settings, stopper=stopper, buffers=ChunkBuffers())

    def work(copy: ShardCopy) -> Arrived | CkptgovError:
        try:
            return _copy_one(copy, mover, on_fault=on_fault)
        except CkptgovError as error:
            stopper.ask()
            return error

    failure: CkptgovError | None = None
    for _copy, outcome in in_parallel(copies, work, threads=settings.threads, stopper=stopper):
        if isinstance(outcome, Arrived):
            yield outcome
        else:
            failure = failure or outcome
    if failure is not None:
        raise failure


class _Mover(Struct, frozen=True, kw_only=True):
    """What all shards of one copying share."""

    target: Storage
    settings: CopySettings
    stopper: Stopper
    buffers: ChunkBuffers


def _copy_one(
    copy: ShardCopy, mover: _Mover, *, on_fault: Callable[[SourceFault], None]
) -> Arrived:
    faults: list[SourceFault] = []
    for source in copy.sources:
        if mover.stopper():
            raise Stopped
        try:
            return _from_source(copy, source, mover)
        except _BadSource as error:
            fault = SourceFault(
                place=source.place,
                shard=copy.shard.path,
                finding=Finding(error.reason, source.path, error.evidence),
            )
            faults.append(fault)
            on_fault(fault)
    told = "; ".join(f"{one.place}: {one.finding.evidence}" for one in faults) or "no copy of it"
    raise CopyFailed(f"{copy.path}: no source gave its bytes ({told})", tuple(faults))


def _from_source(copy: ShardCopy, source: ShardSource, mover: _Mover) -> Arrived:
    shard, target = copy.shard, mover.target
    with _opened(source) as file:
        token = _token_of_size(file, shard)
        attributes = _attributes(source)
        try:
            delivery = target.receive(
                copy.path, shard.bytes, attributes=attributes, digest=shard.digest
            )
        except FileExistsError:
            return _standing(copy, target)
        try:
            _deliver(file, shard, delivery, source, mover)
            _check_still(token, source)
            stat, proof = delivery.finish()
        except FileExistsError:
            return _standing(copy, target)
        except TimedOut:
            forget_buffer()  # a call that hangs may still fill or read it
            delivery.discard()
            raise
        except _BadSource as error:
            if error.reason in (Reason.UNREADABLE, Reason.MISSING_SHARD):
                delivery.abandon()  # what came so far is compared before it counts again
            else:
                delivery.discard()
            raise
        except BaseException:
            delivery.abandon()
            raise
    return Arrived(
        shard=shard,
        path=copy.path,
        stat=stat,
        proof=proof,
        place=source.place,
        sent_bytes=delivery.sent_bytes,
        resumed_bytes=delivery.resumed_bytes,
    )


def _standing(copy: ShardCopy, target: Storage) -> Arrived:
    """Another mover, or an earlier try, was quicker."""
    stat = target.stat(copy.path)
    return Arrived(
        shard=copy.shard,
        path=copy.path,
        stat=stat,
        proof=ArrivalProof.NONE,
        place=None,
        resumed_bytes=stat.bytes,
    )


def _opened(source: ShardSource) -> OpenFile:
    try:
        return source.storage.open(source.path)
    except FileNotFoundError as error:
        raise _BadSource(Reason.MISSING_SHARD, "is not there") from error
    except (OSError, StorageError) as error:
        raise _BadSource(Reason.UNREADABLE, str(error)) from error


def _attributes(source: ShardSource) -> Attributes:
    try:
        return source.storage.attributes(source.path)
    except FileNotFoundError as error:
        raise _BadSource(Reason.MISSING_SHARD, "went away") from error
    except StorageError as error:
        raise _BadSource(Reason.UNREADABLE, error.message) from error


def _token_of_size(file: OpenFile, shard: Shard) -> Token:
    try:
        token = file.stat().token
    except StorageError as error:
        raise _BadSource(Reason.UNREADABLE, error.message) from error
    if token.bytes != shard.bytes:
        raise _BadSource(Reason.TORN, f"has {token.bytes} of {shard.bytes} bytes")
    return token


def _check_still(token: Token, source: ShardSource) -> None:
    """The name leads to what was opened, unchanged since: neither written to nor replaced."""
    try:
        now = source.storage.stat(source.path).token
    except FileNotFoundError as error:
        raise _BadSource(Reason.MISSING_SHARD, "went away while it was read") from error
    except StorageError as error:
        raise _BadSource(Reason.UNREADABLE, error.message) from error
    if not now.same_content(token):
        raise _BadSource(Reason.REOPENED, "changed while it was read")


def _deliver(
    file: OpenFile, shard: Shard, delivery: Delivery, source: ShardSource, mover: _Mover
) -> None:
    target = mover.target.traits
    lanes = max(source.storage.traits.parallel_pieces, target.parallel_pieces)
    one_at_a_time = threading.Lock() if target.parallel_pieces == 1 else nullcontext()
    pieces = _Pieces(file, shard, delivery, target.piece_bytes, mover, one_at_a_time)
    if lanes == 1 or len(shard.chunks) < 2:
        pieces.move()
        return

    def work(chunk: int) -> _BadSource | CkptgovError | OSError | None:
        try:
            pieces.move_chunk(chunk)
        except (_BadSource, CkptgovError, OSError) as error:
            own_stopper.ask()
            return error
        return None

    own_stopper = Stopper(mover.stopper)
    failed: Exception | None = None
    for _chunk, error in in_parallel(
        range(len(shard.chunks)), work, threads=lanes, stopper=own_stopper
    ):
        failed = failed or error
    if failed is not None:
        raise failed
    if mover.stopper():
        raise Stopped


class _Pieces:
    """Moves byte ranges of one shard from an open file into a delivery."""

    def __init__(
        self,
        file: OpenFile,
        shard: Shard,
        delivery: Delivery,
        piece_bytes: int,
        mover: _Mover,
        one_at_a_time: AbstractContextManager[object],
    ) -> None:
        self._file = file
        self._shard = shard
        self._delivery = delivery
        self._piece_bytes = piece_bytes
        self._progress = mover.settings.progress
        self._stopper = mover.stopper
        self._buffers = mover.buffers
        self._one_at_a_time = one_at_a_time

    def move(self) -> None:
        """All of it in order, each piece as it was read; compared at the end of every chunk."""
        length, check = self._shard.bytes, ShardCheck(self._shard)
        if self._piece_bytes > LITTLE_BYTES:
            with self._buffers.one() as buffer:
                self._move(buffer, length, check)
        else:
            self._move(_little_buffer(self._piece_bytes), length, check)

    def _move(self, buffer: memoryview, length: int, check: ShardCheck) -> None:
        for offset in range(0, length, self._piece_bytes):
            piece = buffer[: min(self._piece_bytes, length - offset)]
            self._read(piece, offset)
            self._feed(check, piece)
            if offset + len(piece) == length:
                self._finish(check)
            self._hand_over(offset, piece)
        if not length:
            self._finish(check)

    def move_chunk(self, index: int) -> None:
        """One whole chunk: compared before any of it is handed over."""
        begin = index * CHUNK_BYTES
        with self._buffers.one() as buffer:
            chunk = buffer[: min(CHUNK_BYTES, self._shard.bytes - begin)]
            self._read(chunk, begin)
            check = ShardCheck(self._shard, chunk=index)
            self._feed(check, chunk)
            self._finish(check)
            with self._one_at_a_time:
                for at in range(0, len(chunk), self._piece_bytes):
                    self._hand_over(begin + at, chunk[at : at + self._piece_bytes])

    def _read(self, piece: memoryview, offset: int) -> None:
        if self._stopper():
            raise Stopped
        try:
            count = self._file.read_into(piece, offset)
        except TimedOut as error:
            forget_buffer()  # the call that hangs may still fill it
            raise _BadSource(Reason.UNREADABLE, error.message) from error
        except (OSError, StorageError) as error:
            raise _BadSource(Reason.UNREADABLE, str(error)) from error
        if count != len(piece):
            raise _BadSource(Reason.TORN, f"ended {len(piece) - count} bytes early")

    def _feed(self, check: ShardCheck, piece: memoryview) -> None:
        try:
            check.update(piece)
        except WrongBytes as error:
            raise _BadSource(Reason.CORRUPT, str(error)) from error

    def _finish(self, check: ShardCheck) -> None:
        try:
            check.finish()
        except WrongBytes as error:
            raise _BadSource(Reason.CORRUPT, str(error)) from error

    def _hand_over(self, offset: int, piece: memoryview) -> None:
        delivery = self._delivery
        if not (delivery.stands(offset, len(piece)) and delivery.matches(offset, piece)):
            delivery.write(offset, piece)
        if self._progress is not None:
            self._progress(len(piece))


LITTLE_BYTES = 2**20
"""Pieces up to this size go through a buffer of the thread's own, larger ones through a shared one.

A buffer of this size stays in the processor's cache, which makes reading and hashing faster."""

MAX_BUFFERS = 6


class ChunkBuffers:
    """At most MAX_BUFFERS buffers of one chunk, whatever number of shards and lanes move at once.

    They are anonymous maps: new ones cost nothing until they are filled, and filled ones are used
    again.
    """

    def __init__(self) -> None:
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._slots = threading.Semaphore(MAX_BUFFERS)

    @contextmanager
    def one(self) -> Iterator[memoryview]:
        """A buffer for the block; after TimedOut, or a source that hung, it is given up."""
        with self._slots:
            try:
                buffer = self._free.get_nowait()
            except Empty:
                buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES))
            try:
                yield buffer
            except BaseException as error:
                if not isinstance(error, TimedOut) and not isinstance(error.__cause__, TimedOut):
                    self._free.put(buffer)
                raise
            self._free.put(buffer)


_local = threading.local()


def _little_buffer(size_bytes: int) -> memoryview:
    """This thread's buffer; its old contents mean nothing."""
    held: memoryview | None = getattr(_local, "buffer", None)
    if held is None or len(held) < size_bytes:
        held = _local.buffer = memoryview(bytearray(size_bytes))
    return held[:size_bytes]


def forget_buffer() -> None:
    """Give this thread's buffer up; the next one is new."""
    _local.buffer = None


def read_back(target: Storage, arrived: Arrived) -> Arrived:
    """The same shard, read again from the target past the page cache and compared.

    Raises:
        WrongArrival: other bytes came back.
        StorageError: it could not be read.
    """
    shard = arrived.shard
    for is_last in (*[False] * MAX_REREADS, True):
        with target.open(arrived.path) as file:
            stat = file.stat()
            file.drop_cache(0, stat.bytes)
            try:
                found = digest_file(file, drop_cache=True)
                break
            except ChangedWhileRead:
                # A link made or removed by another mover changes the ctime; some file systems
                # stamp a file once more after it was closed. Only a reading that held counts.
                if is_last:
                    raise
    if (found.bytes, found.digest) != (shard.bytes, shard.digest):
        raise WrongArrival(
            f"{target.root}/{arrived.path}: other bytes came back than were written",
            hint="the tier or the way to it corrupts data; 'ckptgov tier check' tells more",
        )
    return replace(arrived, stat=stat, proof=ArrivalProof.CHECKSUM)
