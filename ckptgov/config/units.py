"""Amounts as people write them: bytes, bytes/s, calls/s, lengths of time. Without the YAML parser.

Decimal units are powers of 1000 (kB MB GB TB PB), binary ones of 1024 (KiB MiB GiB TiB PiB), as
IEC 80000-13 and SI have them.
"""

from __future__ import annotations

import re
from fractions import Fraction

from ckptgov.errors import UsageError

UNITS: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", 1)},
}
HIGHEST_BYTES = 10**18
HIGHEST_REQUESTS_PER_S = 10**9

_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)(/s)?")
_BITS = re.compile(r"[kKMGTP]?i?(?:b|bits?|bps)", re.ASCII)
_COUNT_PER_S = re.compile(r"([0-9]{1,18})(?:/s)?")
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS_OF = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_bytes(text: str) -> int:
    """``50TB``, ``1.5GiB`` or a bare number, in bytes; at least 1.

    Raises:
        UsageError: no such amount; the message does not say where it stands.
    """
    count, is_rate = _amount(text, example="50TB")
    if is_rate:
        raise UsageError("is a rate, and an amount is wanted", hint='leave the "/s" out')
    return count


def parse_rate(text: str) -> int:
    """``200MB/s``, ``1.5GiB/s`` or a bare number, in bytes/s; at least 1.

    Raises:
        UsageError: no such rate; the message does not say where it stands.
    """
    count, is_rate = _amount(text, example="200MB/s")
    if not is_rate and not text.isdecimal():
        raise UsageError("is an amount, and a rate is wanted", hint=f"write {text}/s")
    return count


def parse_requests(text: str) -> int:
    """``500/s`` or a bare number of calls per second; at least 1.

    Raises:
        UsageError: no such rate; the message does not say where it stands.
    """
    match = _COUNT_PER_S.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= HIGHEST_REQUESTS_PER_S:
        raise UsageError("is no number of calls per second", hint="write it like 500/s")
    return int(match[1])


def parse_duration(text: str) -> int:
    """``30s``, ``15m``, ``24h`` or ``7d``, in seconds.

    Raises:
        UsageError: no length of time; the message does not say where it stands.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(
            "must be a length of time",
            hint="write a whole number and its unit: 30s, 15m, 24h or 7d",
        )
    return int(match[1]) * _SECONDS_OF[match[2]]


def bytes_text(count: int) -> str:
    """The shortest exact spelling that ``parse_bytes`` reads: ``50TB``, ``64MiB``, ``1234B``."""
    fitting = [unit for unit, size in UNITS.items() if count % size == 0]
    unit = max(fitting, key=lambda one: UNITS[one]) if count else "B"
    return f"{count // UNITS[unit]}{unit}"


def rate_text(bytes_per_s: int) -> str:
    """The shortest exact spelling that ``parse_rate`` reads."""
    return bytes_text(bytes_per_s) + "/s"


def duration_text(seconds: float) -> str:
    """A whole number of seconds as configuration writes it: ``1h``, ``90s``."""
    whole = int(seconds)
    unit = next(unit for unit, size in _SECONDS_OF.items() if whole % size == 0) if whole else "s"
    return f"{whole // _SECONDS_OF[unit]}{unit}"


def _amount(text: str, *, example: str) -> tuple[int, bool]:
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise _no_amount(text, example)
    number, unit, per_second = match.groups()
    if unit and unit not in UNITS:
        raise _no_amount(text, example)
    count = Fraction(number) * UNITS[unit or "B"]
    if count.denominator != 1:
        raise UsageError("is no whole number of bytes", hint=f"write it like {example}")
    if not 1 <= count <= HIGHEST_BYTES:
        raise UsageError("is out of range: at least 1 byte, at most 1000PB")
    return int(count), per_second is not None


def _no_amount(text: str, example: str) -> UsageError:
    unit = text.lstrip("0123456789. ").removesuffix("/s")
    if _BITS.fullmatch(unit):
        return UsageError("is in bits", hint=f"write bytes (8 bits are 1 byte), like {example}")
    meant = [one for one in UNITS if unit and one.lower() == unit.lower()]
    if meant:
        return UsageError(f'has the unknown unit "{unit}"', hint=f'did you mean "{meant[0]}"?')
    return UsageError(
        "is no number with a unit of bytes",
        hint=f"write it like {example}; units are {', '.join(UNITS)}",
    )
