"""Pickles that name classes of a framework which is not there, with the opcodes it would use.

torch writes protocol 2 inside its zips and protocol 4 in a DCP ``.metadata``. Both are assembled
here opcode by opcode (Lib/pickletools.py describes them), so no class has to exist. Strings and
globals are memoised as CPython's pickler does; other objects are not, which readers cannot tell.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function by name."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Reduced:
    """What ``function(*arguments)`` gives when the pickle is loaded (REDUCE)."""

    function: Global
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An object made by ``cls.__new__`` and given ``state`` (NEWOBJ, BUILD)."""

    cls: Global
    state: object = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous float32 CPU tensor; its storage is a record of the torch zip around it."""

    shape: tuple[int, ...] = (8, 8)

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)


_ORDERED_DICT = Global("collections", "OrderedDict")
_REBUILD = Global("torch._utils", "_rebuild_tensor_v2")
_FLOAT_STORAGE = Global("torch", "FloatStorage")


def pickle_bytes(value: object, *, protocol: int, tensors: list[Tensor] | None = None) -> bytes:
    """The pickle of ``value``, protocol 2 or 4.

    ``value`` is built of None, bool, int, float, str, tuple, list, dict, OrderedDict and the
    classes of this module. Tensors met on the way are appended to ``tensors``; storage ``k`` of
    the pickle is entry ``k`` of it.

    Raises:
        TypeError: something else is in ``value``.
    """
    writer = _Writer(protocol, [] if tensors is None else tensors)
    writer.put(value)
    return writer.finish()


class _Writer:
    """Opcodes of one pickle."""

    def __init__(self, protocol: int, tensors: list[Tensor]) -> None:
        self._framed = protocol >= 4
        self._tensors = tensors
        self._out = bytearray()
        self._memo: dict[str | Global, int] = {}

    def finish(self) -> bytes:
        body = bytes(self._out) + b"."
        if self._framed:
            return b"\x80\x04\x95" + struct.pack("<Q", len(body)) + body
        return b"\x80\x02" + body

    def put(self, value: object) -> None:
        match value:
            case None | bool():
                self._out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
            case int():
                self._out += _integer(value)
            case float():
                self._out += b"G" + struct.pack(">d", value)
            case str() | Global():
                self._named(value)
            case tuple():
                self._tuple(value)
            case list():
                self._out += b"]"
                self._batch(value, b"e")
            case dict():
                self._mapping(value)
            case _:
                self._made(value)

    def _made(self, value: object) -> None:
        match value:
            case Reduced():
                self.put(value.function)
                self._tuple(value.arguments)
                self._out += b"R"
            case Instance():
                self.put(value.cls)
                self._out += b")\x81"
                if value.state is not None:
                    self.put(value.state)
                    self._out += b"b"
            case Tensor():
                self._tensor(value)
            case _:
                raise TypeError(f"cannot pickle {value!r}")

    def _named(self, value: str | Global) -> None:
        if (at := self._memo.get(value)) is not None:
            self._out += b"h" + bytes([at]) if at < 256 else b"j" + struct.pack("<I", at)
            return
        if isinstance(value, str):
            self._text(value)
        elif self._framed:
            self._named(value.module)
            self._named(value.name)
            self._out += b"\x93"
        else:
            self._out += f"c{value.module}\n{value.name}\n".encode()
        self._remember(value)

    def _text(self, value: str) -> None:
        encoded = value.encode("utf-8", "surrogatepass")
        if self._framed and len(encoded) < 256:
            self._out += b"\x8c" + bytes([len(encoded)]) + encoded
        else:
            self._out += b"X" + struct.pack("<I", len(encoded)) + encoded

    def _remember(self, value: str | Global) -> None:
        at = len(self._memo)
        self._memo[value] = at
        if self._framed:
            self._out += b"\x94"
        else:
            self._out += b"q" + bytes([at]) if at < 256 else b"r" + struct.pack("<I", at)

    def _tuple(self, items: tuple[object, ...]) -> None:
        if len(items) > 3:
            self._out += b"("
        for item in items:
            self.put(item)
        self._out += (b")", b"\x85", b"\x86", b"\x87", b"t")[min(len(items), 4)]

    def _mapping(self, value: dict[object, object]) -> None:
        if isinstance(value, OrderedDict):
            self.put(Reduced(_ORDERED_DICT))
        else:
            self._out += b"}"
        self._batch((part for pair in value.items() for part in pair), b"u")

    def _batch(self, items: Iterable[object], close: bytes) -> None:
        self._out += b"("
        for item in items:
            self.put(item)
        self._out += close

    def _tensor(self, tensor: Tensor) -> None:
        key = str(len(self._tensors))
        self._tensors.append(tensor)
        self.put(_REBUILD)
        self._out += b"("
        self.put(("storage", _FLOAT_STORAGE, key, "cpu", tensor.count))
        self._out += b"Q"  # BINPERSID: the storage is found through its persistent id
        strides = tuple(prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
        for part in (0, tensor.shape, strides, False, Reduced(_ORDERED_DICT)):
            self.put(part)
        self._out += b"tR"


def _integer(value: int) -> bytes:
    if 0 <= value < 2**8:
        return b"K" + bytes([value])
    if 0 <= value < 2**16:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    return b"\x8a" + bytes([len(encoded)]) + encoded
