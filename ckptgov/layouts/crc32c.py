"""CRC-32C (Castagnoli, reflected, RFC 3720 appendix B.4): what OCDBT puts behind its nodes.

Table driven and in Python on purpose: it only ever runs over index nodes, which are small beside
the arrays they point at (about 10 MB/s).
"""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0x82F63B78


@cache
def _table() -> tuple[int, ...]:
    return tuple(_entry(byte) for byte in range(256))


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


def crc32c(block: bytes) -> int:
    """The checksum of ``block`` as an unsigned 32-bit number."""
    table = _table()
    crc = 0xFFFFFFFF
    for byte in block:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
