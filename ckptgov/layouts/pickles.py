"""Asking a child process for the facts in a pickle, so that nothing in it can hurt us.

The child (``pickle_child.py``) unpickles with inert stand-ins for every class, imports and calls
nothing, and answers with a few numbers and names. A crafted pickle can still eat memory or time:
so the child has a memory limit and a CPU limit in proportion to the input, and dies alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from ckptgov.errors import CkptgovError, CouldNotLook, Malformed, TransientStorageError
from ckptgov.model.files import OpenFile

if TYPE_CHECKING:
    from subprocess import Popen

Scalar = int | float | str | bool | None

MAX_PICKLE_BYTES: Final = 4 * 2**30
"""A pickle of facts larger than this is refused unread."""

BASE_MEMORY_BYTES: Final = 150 * 2**20
MEMORY_FACTOR: Final = 16
"""Address space of the child: the base, and this much per byte of pickle."""

BASE_CPU_MS: Final = 800
CPU_BYTES_PER_MS: Final = 4_000
"""Processor time of the child: the base, and 1 s per 4 MB of pickle (measured: 20 MB/s)."""

REUSE_BELOW_BYTES: Final = 2**20
"""A child that read more than this is not reused: its memory does not shrink again."""


class DcpIndex(Struct, frozen=True, kw_only=True):
    """What a DCP ``.metadata`` says.

    ``files`` maps the relative path of each shard file to (end of its last entry, number of
    entries). ``entries``, where asked for, maps it to a flat array offset, length, offset,
    length... by offset. ``chunks``, where asked for, maps each tensor name to (elements, the
    chunks saved here as text -> elements). ``gaps`` lists tensors of which fewer elements were
    saved than they have, up to a handful.
    """

    files: Mapping[str, tuple[int, int]]
    entries: Mapping[str, array[int]] = field(default_factory=dict)
    chunks: Mapping[str, tuple[int, Mapping[str, int]]] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    has_common_state: bool = False
    is_planned_by_mcore: bool = False
    names_seen: tuple[str, ...] = ()


class Stored(Struct, frozen=True):
    """Where one number of a tensor lies: the record's key, the type's name, which element."""

    key: str
    kind: str
    index: int


class TorchPickle(Struct, frozen=True, kw_only=True):
    """What a torch ``data.pkl`` says.

    ``scalars`` holds those of the asked dotted keys that are there and are numbers, short text,
    booleans or None; ``keys`` the root's own text keys; ``storages`` (record key, type name,
    elements) of each storage. ``scores``, where asked for: (what is monitored, the number, or
    where it lies) of each callback that keeps the file.
    """

    scalars: Mapping[str, Scalar]
    keys: frozenset[str] = frozenset()
    storages: tuple[tuple[str, str, int], ...] = ()
    scores: tuple[tuple[str, float | Stored], ...] = ()
    names_seen: tuple[str, ...] = ()


class PickleReader:
    """A child process that reads pickles for facts, one at a time; started when first asked.

    Serves one thread. Close it, or the child ends when this process does.
    """

    def __init__(self) -> None:
        self._child: Popen[bytes] | None = None

    def close(self) -> None:
        """End the child; a later question would start another."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        child.wait()

    def dcp_metadata(
        self,
        file: OpenFile,
        *,
        name: str,
        with_entries: bool = False,
        with_chunks: bool = False,
    ) -> DcpIndex:
        """Read a DCP ``.metadata``; ``name`` is what errors call it.

        Raises:
            Malformed: it is cut, hostile, no DCP metadata, or names files outside its directory.
            CouldNotLook: the child could not be started.
            TransientStorageError: it was stopped from outside, or stalled.
        """
        length = file.stat().bytes
        wants = {"kind": "dcp", "entries": with_entries, "chunks": with_chunks}
        answer, blob = self._ask(wants, _pieces(file, length), length, name)
        with _expecting(name):
            return _dcp_index(answer, blob if with_entries else None, name)

    def torch_pickle(
        self, pickled: bytes, *, name: str, keys: Sequence[str], scores_of: str | None = None
    ) -> TorchPickle:
        """Read a torch ``data.pkl`` for the scalars at ``keys`` (dotted: ``args.world_size``).

        ``scores_of`` names a file whose scores are wanted, by the end of its path.

        Raises:
            Malformed: it is cut or hostile.
            CouldNotLook: the child could not be started.
            TransientStorageError: it was stopped from outside, or stalled.
        """
        wants = {"kind": "torch", "keys": list(keys), "scores_of": scores_of}
        answer, _ = self._ask(wants, iter([pickled]), len(pickled), name)
        with _expecting(name):
            return TorchPickle(
                scalars=answer["scalars"],
                keys=frozenset(answer["keys"]),
                storages=tuple((str(k), str(kind), int(n)) for k, kind, n in answer["storages"]),
                scores=tuple((str(monitor), _score(score)) for monitor, score in answer["scores"]),
                names_seen=tuple(answer["names"]),
            )

    def _ask(
        self, wants: dict[str, Any], pieces: Iterator[bytes], length: int, name: str
    ) -> tuple[dict[str, Any], bytes]:
        if length > MAX_PICKLE_BYTES:
            raise Malformed(f"{name}: {length} bytes are too many for a pickle of facts")
        wants |= {
            "length": length,
            "memory_bytes": BASE_MEMORY_BYTES + MEMORY_FACTOR * length,
            "cpu_ms": BASE_CPU_MS + length // CPU_BYTES_PER_MS,
        }
        header = json.dumps(wants).encode()
        exchange = _Exchange(self._running(), name, wants["length"], wants["cpu_ms"])
        try:
            exchange.write(struct.pack("<I", len(header)) + header)
            for piece in pieces:
                exchange.write(piece)
            answer, blob = exchange.answer()
        except BaseException:
            self.close()
            raise
        if length > REUSE_BELOW_BYTES:
            self.close()
        return answer, blob

    def _running(self) -> Popen[bytes]:
        if self._child is None:
            import subprocess  # here: most looks at sealed checkpoints never read a pickle

            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pickle_child.py")
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", script],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    env={},
                )
            except OSError as error:
                raise CouldNotLook(f"cannot start a process to read pickles: {error}") from error
        return self._child


class _Exchange:
    """One question to the child and its answer, with an end to every wait."""

    def __init__(self, child: Popen[bytes], name: str, length: int, cpu_ms: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child = child
        self._in = child.stdin.fileno()
        self._out = child.stdout.fileno()
        self._name = name
        self._cap_bytes = 2**20 + 4 * length
        # The CPU limit ends a hostile pickle; this ends a child that somebody stopped.
        self._stall_s = 10.0 + 10 * cpu_ms / 1000
        self._is_deaf = False
        os.set_blocking(self._in, False)

    def write(self, piece: bytes) -> None:
        """Send bytes; what a child that already gave up does not take is dropped."""
        left = memoryview(piece)
        while left and not self._is_deaf:
            self._wait(self._in, select.POLLOUT)
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self._is_deaf = True

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """(the JSON, the bytes behind it)."""
        text = self._read(self._length("<I"))
        blob = self._read(self._length("<Q"))
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise Malformed(f"{self._name}: unreadable facts") from error
        if not isinstance(answer, dict) or "error" in answer:
            why = answer["error"] if isinstance(answer, dict) else "unreadable facts"
            raise Malformed(f"{self._name}: {why}")
        return answer, blob

    def _length(self, form: str) -> int:
        length = int(struct.unpack(form, self._read(struct.calcsize(form)))[0])
        if length > self._cap_bytes:
            raise Malformed(f"{self._name}: the facts are out of proportion to the pickle")
        return length

    def _read(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            self._wait(self._out, select.POLLIN)
            more = os.read(self._out, min(length - len(found), 2**20))
            if not more:
                raise self._death()
            found += more
        return bytes(found)

    def _death(self) -> CkptgovError:
        """The child died without an answer: the reason is the signal that ended it."""
        status = self._child.wait()
        if -status in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
            # SIGKILL is what the system sends when memory runs out: no fault of the pickle's.
            text = f"{self._name}: the process reading it was stopped ({status})"
            return TransientStorageError(text)
        if status == -signal.SIGPROF:
            return Malformed(f"{self._name}: a pickle that takes more time than its size explains")
        return Malformed(f"{self._name}: a pickle that cannot be read in bounded memory ({status})")

    def _wait(self, fd: int, event: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(self._stall_s * 1000):
            raise TransientStorageError(
                f"{self._name}: no answer about it in {self._stall_s:.0f} s"
            )


@contextmanager
def _expecting(name: str) -> Iterator[None]:
    """An answer of another shape than asked for is malformed, whoever is to blame."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"{name}: unreadable facts") from error


def _pieces(file: OpenFile, length: int) -> Iterator[bytes]:
    for offset in range(0, length, 2**20):
        piece = file.read_at(offset, min(2**20, length - offset))
        yield piece
        if len(piece) < min(2**20, length - offset):
            raise Malformed("the file became shorter while it was read")


def _dcp_index(answer: dict[str, Any], blob: bytes | None, name: str) -> DcpIndex:
    files = {str(path): (int(end), int(count)) for path, end, count in answer["files"]}
    for path in files:
        _check_inside(path, name)
    return DcpIndex(
        files=files,
        entries={} if blob is None else _split_entries(files, blob),
        chunks={str(k): (int(n), chunks) for k, n, chunks in answer["chunks"]},
        gaps=tuple(str(gap) for gap in answer["gaps"]),
        has_common_state=bool(answer["common_state"]),
        is_planned_by_mcore=bool(answer["mcore"]),
        names_seen=tuple(answer["names"]),
    )


def _score(score: object) -> float | Stored:
    if isinstance(score, list):
        key, kind, index = score
        return Stored(str(key), str(kind), int(index))
    if type(score) not in (int, float):
        raise ValueError("a score is no number")
    return score  # type: ignore[return-value]


def _split_entries(files: Mapping[str, tuple[int, int]], blob: bytes) -> dict[str, array[int]]:
    numbers = array("Q")
    numbers.frombytes(blob)
    entries: dict[str, array[int]] = {}
    start = 0
    for path, (_, count) in files.items():
        entries[path] = numbers[start : start + 2 * count]
        start += 2 * count
    return entries


def _check_inside(path: str, name: str) -> None:
    parts = path.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in path:
        raise Malformed(f"{name}: names a file outside its directory: {path!r}")
