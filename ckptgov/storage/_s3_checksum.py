"""Checksums that stores compare on arrival: CRC64NVME where it is at hand, else CRC-32.

Both are linear, so the checksum of a whole follows from those of its parts. The values travel as
base64 of the big-endian number (Amazon S3, "Checking object integrity").
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

Name = Literal["CRC64NVME", "CRC32"]


class Checksum(Struct, frozen=True, kw_only=True):
    """One kind. ``polynomial`` is bit-reversed, without its highest term."""

    name: Name
    bits: int
    polynomial: int
    compute: Callable[[memoryview], int]

    @property
    def member(self) -> str:
        """Its name in requests and answers."""
        return f"Checksum{self.name}"

    def of(self, piece: bytes | memoryview) -> int:
        """The checksum of some bytes."""
        return self.compute(memoryview(piece))

    def text(self, value: int) -> str:
        """A value as headers carry it."""
        return base64.b64encode(value.to_bytes(self.bits // 8, "big")).decode("ascii")

    def checked(self, value: int) -> dict[str, str]:
        """A value as a member of a request."""
        return {self.member: self.text(value)}

    def whole(self, parts: Iterable[tuple[int, int]]) -> int:
        """The checksum of parts joined, from the (checksum, length in bytes) of each.

        Appending n bytes multiplies what stood before by x^(8n) modulo the polynomial; the
        conditioning of both kinds (all ones in and out) cancels out.
        """
        total, shifts = 0, dict[int, int]()  # all parts but the last are of one length
        for value, length in parts:
            if length not in shifts:
                shifts[length] = self._shift(length)
            total = self._times(total, shifts[length]) ^ value
        return total

    def _shift(self, length: int) -> int:
        factor, result, left = 1 << (self.bits - 9), 1 << (self.bits - 1), length  # x^8, x^0
        while left:
            if left & 1:
                result = self._times(result, factor)
            factor = self._times(factor, factor)
            left >>= 1
        return result

    def _times(self, left: int, right: int) -> int:
        product = 0
        for bit in range(self.bits - 1, -1, -1):  # the highest bit stands for x^0
            if right >> bit & 1:
                product ^= left
            left = left >> 1 ^ (self.polynomial if left & 1 else 0)
        return product


CRC32 = Checksum(name="CRC32", bits=32, polynomial=0xEDB88320, compute=zlib.crc32)


def preferred() -> Checksum:
    """CRC64NVME (the AWS Common Runtime has it in fast code) where ``awscrt`` is installed."""
    return crc64nvme() or CRC32


def crc64nvme() -> Checksum | None:
    """CRC64NVME; None without ``awscrt``."""
    try:
        from awscrt import checksums
    except ImportError:
        return None
    return Checksum(
        name="CRC64NVME",
        bits=64,
        polynomial=0x9A6C9329AC4BC9B5,
        compute=checksums.crc64nvme,
    )
