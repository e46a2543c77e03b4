"""The only place that prints. stdout is the result, stderr the talk."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ckptgov.errors import CkptgovError


def emit(document: dict[str, Any]) -> None:
    """Print exactly one JSON document."""
    sys.stdout.write(json.dumps(document, ensure_ascii=True, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """A line of the result. Bytes that are not UTF-8 leave as they came."""
    sys.stdout.flush()
    raw = (text + "\n").encode("utf-8", "surrogateescape")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(raw.decode("utf-8", "replace"))
    else:
        buffer.write(raw)
    sys.stdout.flush()


def talk(text: str) -> None:
    """A line for the person at the terminal."""
    printable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    sys.stderr.write(printable + "\n")
    sys.stderr.flush()


def complain(error: CkptgovError) -> None:
    """What went wrong, and what can be done about it."""
    talk(f"ckptgov: {error.message}")
    if error.hint:
        talk(f"  hint: {error.hint}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns: drawn on a terminal, tab-separated into a pipe."""
    clean = [[_one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in clean:
            line("\t".join(row))
        return
    widths = [max(len(cell) for cell in column) for column in zip(header, *clean, strict=True)]
    for row in [list(header), *clean]:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _one_line(cell: str) -> str:
    """A cell that cannot break the table: control characters come out escaped."""
    return "".join(
        letter if letter.isprintable() or "\udc80" <= letter <= "\udcff" else repr(letter)[1:-1]
        for letter in cell
    )


def size(count: int) -> str:
    """Bytes for people: 1.5 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{count} B"
