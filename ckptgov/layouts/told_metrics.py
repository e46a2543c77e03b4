"""Metrics that a trainer's own files and names tell, in the form that a record of it can hold."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from typing import Final

Metrics = tuple[tuple[str, str], ...]

BEST_SO_FAR: Final = "best_metric"
"""The best value so far of the metric that the trainer chooses by, maybe another checkpoint's."""

MOST_BYTES: Final = 16 * 2**10
"""What the metrics of one checkpoint may take in its record, which ends at 64 KiB."""

_MOST_NAME = 128
_MOST_VALUE = 64
_DECIMAL = re.compile(
    r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf|infinity)",
    re.IGNORECASE | re.ASCII,
)
_NOT_METRICS = frozenset({"epoch", "step", "global_step"})
_OWN = re.compile(r"(?:\A|(?<=[-_]))(?:global_step|epoch|step)=[0-9]")
_PAIR = re.compile(
    r"(?P<name>[^=]+)="
    r"(?P<value>[+-]?(?:(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf))"
    r"(?:[-_]+|\Z)",
    re.IGNORECASE | re.ASCII,
)


def told(pairs: Iterable[tuple[str, str]]) -> Metrics:
    """The pairs that a record can hold, sorted by name, each name once (its first value).

    An evaluation of a thousand subjects is cut off where the record would become too long.
    """
    kept: dict[str, str] = {}
    for name, value in pairs:
        if _is_plain(name) and len(value) <= _MOST_VALUE and _DECIMAL.fullmatch(value):
            kept.setdefault(name, value)
    room_bytes, fitting = MOST_BYTES, []
    for name, value in sorted(kept.items()):
        room_bytes -= len(json.dumps(name)) + len(value) + len('"",:')
        if room_bytes >= 0:
            fitting.append((name, value))
    return tuple(fitting)


def _is_plain(name: str) -> bool:
    """Whether a record may hold the name: a trainer's JSON may spell half a surrogate pair."""
    return 0 < len(name) <= _MOST_NAME and name.isprintable()


def own_name(path: str) -> str:
    """What Lightning called a file, out of its path below the run root.

    It begins with the first component that carries an epoch or a step: a slash in a metric's name
    made a directory of what stands before it (``epoch=1-step=100-val/loss=0.41.ckpt``).
    """
    parts = path.split("/")
    start = next((at for at, part in enumerate(parts) if _OWN.search(part)), len(parts) - 1)
    return "/".join(parts[start:])


def metrics_in_name(path: str) -> Metrics:
    """The ``name=value`` pairs in the name of a Lightning file, as they are spelled there."""
    name = own_name(path).removesuffix(".ckpt")
    own = _OWN.search(name)
    if own is None:
        return ()
    found: list[tuple[str, str]] = []
    at = own.start() if "=" not in name[: own.start()] else 0  # what the run is called, or a metric
    while match := _PAIR.match(name, at):
        own_word = match["name"].rpartition("--")[2]  # NeMo: what the model is called stands before
        if own_word not in _NOT_METRICS:
            found.append((own_word, match["value"]))
        at = match.end()
    return told(found)


def spelled(value: float, *, digits: int) -> str:
    """The shortest decimal spelling of a number that was kept with so many significant digits."""
    for count in range(1, digits):
        text = f"{value:.{count}g}"
        if _same(float(text), value, digits):
            return text
    return f"{value:.{digits}g}"


def _same(one: float, other: float, digits: int) -> bool:
    if digits > 9:
        return one == other
    try:
        return struct.pack("<f", one) == struct.pack("<f", other)
    except OverflowError:  # rounded up beyond the largest
        return False
