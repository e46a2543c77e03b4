"""What happens to files after they were written: bits flip, tails go missing, clocks disagree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

WRITTEN_AT_NS = 1_700_000_000 * 10**9
"""When a built checkpoint was written, unless its builder is told otherwise."""

TICK_NS = 10**8
"""How much newer a marker is than what it vouches for."""


def flip_bit(path: Path, offset: int, bit: int, *, keep_times: bool = True) -> None:
    """Invert bit 0..7 of the byte at ``offset``; a negative one counts from the end.

    With ``keep_times`` the file's times stay, as when a medium rots: no token changes but ctime.
    """
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        at = file.tell()
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path, *, to_bytes: int | None = None, by_bytes: int = 0) -> None:
    """Cut the file to ``to_bytes``, or ``by_bytes`` off its end; its times stay."""
    before = path.stat()
    os.truncate(path, before.st_size - by_bytes if to_bytes is None else to_bytes)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def date_files(root: Path, *markers: str, at_ns: int | None = WRITTEN_AT_NS) -> None:
    """Date every file under ``root`` (or ``root`` itself) ``at_ns``; ``None`` leaves all as it is.

    ``markers`` are paths below ``root`` in the order they were written, each one tick newer than
    the one before it, the first one tick newer than the rest.
    """
    if at_ns is None:
        return
    for path in _files(root):
        os.utime(path, ns=(at_ns, at_ns))
    for age, marker in enumerate(markers, start=1):
        at = at_ns + age * TICK_NS
        os.utime(root / marker, ns=(at, at))


def shift_times(root: Path, *, newest_at_ns: int) -> None:
    """Move the times of all files under ``root`` so that the newest is dated ``newest_at_ns``."""
    files = {path: path.stat().st_mtime_ns for path in _files(root)}
    by_ns = newest_at_ns - max(files.values())
    for path, mtime_ns in files.items():
        os.utime(path, ns=(mtime_ns + by_ns, mtime_ns + by_ns))


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, _, names in os.walk(root):
        paths = (Path(folder, name) for name in names)
        yield from (path for path in paths if path.is_file() and not path.is_symlink())
