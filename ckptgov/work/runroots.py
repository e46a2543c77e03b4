"""Where runs begin beneath a place: what layouts see there, and what was known there before.

A run whose checkpoints are all gone, or that has none yet, is still a run: its records say so.
"""

from __future__ import annotations

from ckptgov.errors import Malformed
from ckptgov.layouts.survey import find_run_roots
from ckptgov.manifest.names import percent_decode
from ckptgov.model.files import EntryKind
from ckptgov.storage.contract import Storage
from ckptgov.work.runstore import FOREIGN, SIDECAR


def run_roots_below(storage: Storage, top: str) -> tuple[str, ...]:
    """The run roots at or below ``top``, sorted; none lies inside another.

    Raises:
        FileNotFoundError, NotADirectoryError: ``top`` is absent or no directory.
        CouldNotLook: a directory may not be read.
    """
    found = list(find_run_roots(storage, top, is_run=lambda path: is_known_run(storage, path)))
    for path in _kept_under_the_tier_root(storage):
        if _is_at_or_below(path, top) and not any(_is_at_or_below(path, one) for one in found):
            found.append(path)
    return tuple(sorted(found))


def is_known_run(storage: Storage, directory: str) -> bool:
    """Whether ``run.json`` stands in the directory's own store."""
    path = f"{directory}/{SIDECAR}/run.json" if directory else f"{SIDECAR}/run.json"
    try:
        storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _kept_under_the_tier_root(storage: Storage) -> list[str]:
    """Run roots whose store lies under the tier root, as far as they are there."""
    try:
        names = [entry.name for entry in storage.list(FOREIGN)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for name in names if (path := _decoded(storage, name)) is not None]


def _decoded(storage: Storage, name: str) -> str | None:
    """The run root a store's directory is called after; None where it is none (any more)."""
    try:
        path = percent_decode(name, FOREIGN)
        return path if storage.stat(path).kind is EntryKind.DIR else None
    except (Malformed, FileNotFoundError, NotADirectoryError):
        return None


def _is_at_or_below(path: str, top: str) -> bool:
    return top in ("", path) or path.startswith(top + "/")
