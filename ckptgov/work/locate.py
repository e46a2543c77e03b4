"""From a path or URL a person typed to a place and the run roots beneath it.

No configuration is needed. Nothing of a store's library is imported for a path.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct

from ckptgov.errors import Ambiguous, CouldNotLook, Malformed, StorageError, UsageError
from ckptgov.layouts.survey import is_checkpoint
from ckptgov.manifest.names import file_name_of
from ckptgov.model.files import EntryKind
from ckptgov.model.settings import TierSettings
from ckptgov.storage.contract import Storage
from ckptgov.storage.open import STALL_S, open_storage
from ckptgov.work import addresses
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
    """The absolute path or the URL a person means; ``file://`` URLs are paths.

    Raises:
        UsageError: an impossible URL, one with credentials in it, or an empty text.
    """
    if text[:7].lower() == "file://":
        text = text[7:]
    elif "://" in text:
        return _normal_url(text)
    if not text or "\0" in text:
        raise UsageError("an empty path names nothing")
    return os.path.normpath(os.path.join(os.getcwd(), os.path.expanduser(text)))


def _normal_url(text: str) -> str:
    from ckptgov.config.urls import normal_url

    try:
        url = normal_url(text, escapes=True)
        addresses.relative(url, addresses.top(url))
    except UsageError as error:
        raise UsageError(f"the URL {error.message}", hint=error.hint) from error
    except Malformed as error:
        raise UsageError("the URL escapes what needs no escape", hint="write it plainly") from error
    return url


def open_place(
    root: str,
    *,
    tier: str = "",
    node: str | None = None,
    endpoint: str | None = None,
    stall_s: float = STALL_S,
) -> Place:
    """Open a directory, or what a URL leads to, as a place; its identity is read if it has one.

    Raises:
        CouldNotLook: it is missing, is no directory, does not answer, or may not be read.
    """
    storage = _opened(root, endpoint, stall_s)
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
        root=root if addresses.is_url(root) else storage.root,
    )


def _opened(root: str, endpoint: str | None, stall_s: float) -> Storage:
    try:
        return open_storage(root, endpoint=endpoint, stall_s=stall_s)
    except (FileNotFoundError, NotADirectoryError) as error:
        if addresses.is_url(root):
            raise CouldNotLook(f"{root}: nothing is there") from error
        raise CouldNotLook(f"{root}: no such directory", hint="is it mounted?") from error


def endpoint_of(address: str, tiers: Sequence[TierSettings]) -> str | None:
    """The endpoint of the configured tier that a URL lies in, at or around; None where none is.

    Raises:
        Ambiguous: tiers of several stores have this URL.
    """
    if not addresses.is_url(address):
        return None
    found = {
        one.endpoint
        for one in tiers
        if addresses.relative(address, one.root) is not None
        or addresses.relative(one.root, address) is not None
    }
    if len(found) > 1:
        raise Ambiguous(
            f"{address}: configured for several stores: "
            + ", ".join(sorted(one or "the provider's own" for one in found)),
            hint="name the run instead",
        )
    return found.pop() if found else None


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


def locate(path: str, *, endpoint: str | None = None) -> Location:
    """Find the place and run roots that an absolute path, or a URL, stands for.

    ``endpoint`` is the address of the URL's store where it is not the provider's own.

    Raises:
        CouldNotLook: nothing is there, or it may not be read.
    """
    if addresses.is_url(path):
        return _locate_url(path, endpoint)
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


def _locate_url(url: str, endpoint: str | None) -> Location:
    root, kind = _store_root_above(url, endpoint)
    if root is not None:
        return _below(url, root, endpoint)
    above = addresses.parent(url)
    if above != url and addresses.unescaped_root(above) == above:
        place = open_place(above, endpoint=endpoint)
        name = addresses.name_of(url)
        if _is_one_checkpoint(place, name):
            return Location(place=place, below="", run_roots=("",), only_name=name)
        place.storage.close()
    if kind is not EntryKind.DIR:
        raise CouldNotLook(f"{url}: is one object and no checkpoint of a known layout")
    return _below(url, addresses.unescaped_root(url), endpoint)


def _below(url: str, root: str, endpoint: str | None) -> Location:
    return _within(open_place(root, endpoint=endpoint), addresses.relative(url, root) or "")


def _store_root_above(url: str, endpoint: str | None) -> tuple[str | None, EntryKind]:
    """The nearest tier root at or above a URL, one look a level; and what the URL leads to."""
    top = addresses.top(url)
    storage = _opened(top, endpoint, STALL_S)
    try:
        kind = storage.stat(addresses.relative(url, top) or "").kind
        current = url
        while not _has_identity(storage, addresses.relative(current, top) or ""):
            if current == top:
                return None, kind
            current = addresses.parent(current)
        return current, kind
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CouldNotLook(f"{url}: nothing is there") from error
    finally:
        storage.close()


def _has_identity(storage: Storage, directory: str) -> bool:
    try:
        storage.stat(f"{directory}/{TIER_FILE}" if directory else TIER_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


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
