"""Figures of reasons in words: spans, moments, counts."""

from __future__ import annotations

from datetime import UTC, datetime

from ckptgov.model.policy import ALL

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SECOND_NS = 10**9
_LATEST_S = 253_402_214_400  # year 9999


def nanoseconds(span_s: float) -> int:
    """A span in nanoseconds, exact for whole seconds however long."""
    whole = int(span_s)
    return whole * _SECOND_NS + round((span_s - whole) * _SECOND_NS)


def span(span_s: float) -> str:
    """A span by its largest unit: ``7d``, ``1.5h``, ``40s``."""
    for unit_s, name in _UNITS:
        if abs(span_s) >= unit_s:
            return f"{span_s / unit_s:.1f}".removesuffix(".0") + name
    return f"{span_s:.0f}s"


def span_ns(span_ns_: int) -> str:
    """The same of nanoseconds."""
    return span(span_ns_ / _SECOND_NS)


def moment(at_ns: int) -> str:
    """A moment to the minute, in UTC."""
    seconds = min(max(at_ns // _SECOND_NS, 0), _LATEST_S)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def count(number: int) -> str:
    """How many a rule keeps."""
    return "all" if number == ALL else str(number)


def size(size_bytes: int) -> str:
    """Bytes by the largest binary unit: ``1.5 TiB``."""
    value = float(size_bytes)
    for name in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {name}" if name == "B" else f"{value:.1f} {name}"
        value /= 1024
    return f"{value:.1f} PiB"
