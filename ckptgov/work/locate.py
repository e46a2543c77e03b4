"""From a path a person typed to a place and the run roots beneath it, with no configuration."""

from __future__ import annotations

import os

from msgspec import Struct

from ckptgov.errors import Ambiguous, CouldNotLook, Malformed, StorageError, UsageError
from ckptgov.layouts.survey import is_checkpoint
from ckptgov.manifest.names import file_name_of
from ckptgov.storage.posix import PosixStorage
from ckptgov.work.runroots import is_known_run, run_roots_below
from ckptgov.work.runstore import store_at
from ckptgov.work.tier import TIER_FILE, Place, read_identity


class Location(Struct, frozen=True, kw_only=True):
    """Where a path leads: its run roots below the place's root.

    ``only_name`` is set when the path was itself one checkpoint: it stands for its run, filtered.
    """

    place: Place
    below: str
    run_roots: tuple[str, ...]
    only_name: str | None = None

    def one_run_root(self) -> str:
        """The run root the path stands for; the path itself where nothing is found beneath it.

        Raises:
            Ambiguous: there are several.
        """
        if len(self.run_roots) > 1:
            names = ", ".join(root or "." for root in self.run_roots[:10])
            more = f" and {len(self.run_roots) - 10} more" if len(self.run_roots) > 10 else ""
            raise Ambiguous(
                f"{len(self.run_roots)} runs lie beneath {self.place.root}: {names}{more}",
                hint="name the directory of one of them",
            )
        return self.run_roots[0] if self.run_roots else self.below


def normal_path(text: str) -> str:
    """The absolute path a person means; ``file://`` URLs are paths.

    Raises:
        UsageError: another scheme, or an empty text.
    """
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    elif "://" in text:
        scheme = text.split("://", 1)[0]
        raise UsageError(
            f"{text}: {scheme} URLs are not readable by this version",
            hint="name a directory on a mounted file system",
        )
    if not text or "\0" in text:
        raise UsageError("an empty path names nothing")
    return os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(text)))


def open_place(root: str, *, tier: str = "", node: str | None = None) -> Place:
    """Open a directory as a place; its identity is read if it has one.

    Raises:
        CouldNotLook: it is missing, is no directory, or may not be read.
    """
    try:
        storage = PosixStorage(root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CouldNotLook(f"{root}: no such directory", hint="is it mounted?") from error
    try:
        identity = read_identity(storage)
    except (Malformed, StorageError):
        storage.close()
        raise
    return Place(
        storage=storage,
        uuid=identity.place if identity is not None else None,
        tier=tier or (identity.tier if identity is not None else ""),
        node=node,
        root=storage.root,
    )


def tier_root_above(path: str) -> str | None:
    """The nearest directory at or above ``path`` that carries a tier identity."""
    current = path
    while True:
        if os.path.lexists(os.path.join(current, TIER_FILE)):
            return current
        parent = os.path.dirname(current)
        if parent == current:
            return None
        current = parent


def locate(path: str) -> Location:
    """Find the place and run roots that an absolute path stands for.

    Raises:
        CouldNotLook: the path is missing or may not be read.
    """
    real = _existing(path)
    root = tier_root_above(real if os.path.isdir(real) else os.path.dirname(real))
    if root is not None:
        place = open_place(root)
        below = os.path.relpath(real, os.path.realpath(root))
        return _within(place, "" if below == "." else below)
    parent = os.path.dirname(real)
    if parent != real:
        try:
            above = open_place(parent)
        except CouldNotLook:
            above = None
        if above is not None:
            name = os.path.basename(real)
            if _is_one_checkpoint(above, name):
                return Location(place=above, below="", run_roots=("",), only_name=name)
            above.storage.close()
    if not os.path.isdir(real):
        raise CouldNotLook(f"{path}: is not a directory and no checkpoint of a known layout")
    return _within(open_place(real), "")


def _within(place: Place, below: str) -> Location:
    storage = place.storage
    sealed = _sealed_checkpoint(place, below)
    if sealed is not None:
        return Location(place=place, below=sealed[0], run_roots=(sealed[0],), only_name=sealed[1])
    if below and _is_one_checkpoint(place, below):
        parent, _, name = below.rpartition("/")
        root = _holding_root(place, parent)
        relative = below.removeprefix(root + "/") if root else below
        return Location(place=place, below=parent, run_roots=(root,), only_name=relative or name)
    return Location(place=place, below=below, run_roots=run_roots_below(storage, below))


def _is_one_checkpoint(place: Place, below: str) -> bool:
    """A run root is never one checkpoint, whatever its files look like."""
    try:
        return is_checkpoint(place.storage, below)
    except FileNotFoundError:
        return False


def _holding_root(place: Place, parent: str) -> str:
    """The run root a checkpoint belongs to: the topmost registered above it, else its parent."""
    current = ""
    for part in [*parent.split("/"), ""] if parent else [""]:
        if is_known_run(place.storage, current):
            return current
        current = f"{current}/{part}" if current else part
    return parent


def _sealed_checkpoint(place: Place, below: str) -> tuple[str, str] | None:
    """(run root, name) when a manifest of a run root above names exactly this path."""
    parts = below.split("/")
    for depth in range(len(parts) - 1, -1, -1):
        root, name = "/".join(parts[:depth]), "/".join(parts[depth:])
        if not name or not is_known_run(place.storage, root):
            continue
        encoded = file_name_of(name)
        if any(one.encoded_name == encoded for one in store_at(place.storage, root).manifests()):
            return root, name
    return None


def _existing(path: str) -> str:
    try:
        os.stat(path)
    except FileNotFoundError as error:
        raise CouldNotLook(f"{path}: no such directory", hint="is it mounted?") from error
    except OSError as error:
        raise CouldNotLook(f"{path}: {error.strerror}") from error
    return os.path.realpath(path)
