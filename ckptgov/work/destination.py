"""Where a restored checkpoint goes: a directory of nobody's, or the run's own root on a tier."""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import Struct

from ckptgov.errors import RefusedBySafety, StorageError
from ckptgov.layouts.tree import join, split
from ckptgov.manifest.names import file_name_of
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.storage.posix import PosixStorage
from ckptgov.work.flush import run_root_at
from ckptgov.work.locate import open_place, tier_root_above
from ckptgov.work.runstore import SIDECAR, store_at
from ckptgov.work.tier import Place


class Destination(Struct, frozen=True, kw_only=True):
    """Where a checkpoint is brought: to ``name`` below ``run_root`` of ``place``.

    ``place`` is None while its directory ``root`` is still to be made. ``is_of_run`` says that
    the run has, or gets, a root there, so that what lands becomes a copy of the run.
    """

    root: str
    place: Place | None
    run_root: str
    name: str
    is_of_run: bool

    @property
    def directory(self) -> str:
        """What ``name`` hangs from, as an absolute path."""
        return os.path.join(self.root, self.run_root) if self.run_root else self.root


def destination(
    to: str,
    *,
    identity: RunIdentity | None,
    name: str,
    opened: Callable[[str], Place],
) -> Destination:
    """Decide where ``to`` (an absolute path) leads for a checkpoint called ``name`` in its run.

    ``opened`` opens a tier's root. Nothing is written.

    Raises:
        RefusedBySafety: it lies in another run, in a checkpoint, or among our own files.
        StorageError: neither it nor the directory above it is there.
    """
    real = os.path.realpath(to)
    if SIDECAR in real.split("/"):
        raise RefusedBySafety(f"{to}: lies among files of ckptgov's own")
    tier_root = tier_root_above(real)
    if tier_root is not None:
        place = opened(tier_root)
        found = _in_tier(to, os.path.relpath(real, tier_root), place, identity, name)
        if found is not None:
            return found
    else:
        _refuse_other_runs_above(to, real, identity)
    if os.path.isdir(real):
        here: Place | None = open_place(real)
    elif os.path.isdir(os.path.dirname(real)) and not os.path.lexists(real):
        here = None
    else:
        raise StorageError(
            f"{to}: is no directory, and none can be made there",
            hint="name a directory, or a new one in a directory that is there",
        )
    return Destination(
        root=to, place=here, run_root="", name=name.rpartition("/")[2], is_of_run=False
    )


def made(to: Destination) -> Place:
    """The destination's place; its directory is made if it is missing.

    Raises:
        StorageError: it cannot be made.
    """
    if to.place is not None:
        return to.place
    parent, name = os.path.split(os.path.realpath(to.root))
    with PosixStorage(parent) as above:
        above.make_dirs(name)
    return open_place(os.path.join(parent, name))


def _in_tier(
    to: str, below: str, place: Place, identity: RunIdentity | None, name: str
) -> Destination | None:
    """The run's own root at this tier; None where ``to`` is in no run's root."""
    below = "" if below == "." else below
    parts = below.split("/") if below else []
    for depth in range(len(parts) + 1):
        root = "/".join(parts[:depth])
        standing = store_at(place.storage, root).identity()
        if standing is None:
            continue
        if identity is None or standing.run_id != identity.run_id:
            raise _other_run(to, standing)
        return _in_own_run(to, place, root, below, name)
    if identity is None or place.uuid is None:
        return None
    root = run_root_at(place.storage, identity)
    if below in ("", root) or below.startswith(root + "/"):
        return _in_own_run(to, place, root, below or root, name)
    return None


def _in_own_run(to: str, place: Place, root: str, below: str, name: str) -> Destination:
    inside = below[len(root) :].strip("/")
    manifests = {one.encoded_name for one in store_at(place.storage, root).manifests()}
    parts = inside.split("/") if inside else []
    for depth in range(1, len(parts) + 1):
        if file_name_of("/".join(parts[:depth])) in manifests:
            raise RefusedBySafety(
                f"{to}: lies in a checkpoint, and nothing is ever added to one",
                hint="name the run's directory, or one outside it",
            )
    parent, own = split(name)
    return Destination(
        root=place.root,
        place=place,
        run_root=root,
        name=name if inside in ("", parent) else join(inside, own),
        is_of_run=place.uuid is not None,
    )


def _refuse_other_runs_above(to: str, real: str, identity: RunIdentity | None) -> None:
    """A run that no tier knows still has its ``run.json``."""
    current = real
    while True:
        if os.path.lexists(os.path.join(current, SIDECAR, "run.json")):
            with PosixStorage(current) as storage:
                standing = store_at(storage, "").identity()
            if standing is not None and (identity is None or standing.run_id != identity.run_id):
                raise _other_run(to, standing)
        parent = os.path.dirname(current)
        if parent == current:
            return
        current = parent


def _other_run(to: str, standing: RunIdentity) -> RefusedBySafety:
    return RefusedBySafety(
        f"{to}: lies in the directory of run {standing.name}",
        hint="its checkpoints would be taken for that run's; name another directory",
    )
