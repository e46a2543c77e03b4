"""Rebuild the catalog from configuration, manifests, receipts and journals; check it against them.

Storage is the truth, the catalog an index: a rebuild gives the same answers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.database import set_aside
from ckptgov.errors import CkptgovError, PartlyDone, StorageError, UsageError
from ckptgov.model.answers import Check
from ckptgov.model.checkpoint import RunIdentity, TierIdentity
from ckptgov.model.copies import GONE, LEAVING, CopyState
from ckptgov.model.facts import Depth
from ckptgov.model.settings import Scope, TierSettings
from ckptgov.ops.context import CATALOG_FILE, Context
from ckptgov.ops.record import record_look, record_run, state_of
from ckptgov.ops.tiers import register, tier_for
from ckptgov.ops.trashed import adopt_trash
from ckptgov.work import addresses
from ckptgov.work.answer import share_journal
from ckptgov.work.locate import normal_path, open_place
from ckptgov.work.runroots import run_roots_below
from ckptgov.work.tier import adopt, read_identity


class Rebuilt(Struct, frozen=True, kw_only=True):
    """What a rebuild found."""

    runs: int
    checkpoints: int
    tiers: int
    epoch: int
    error: CkptgovError | None = None


def set_damaged_aside(context: Context) -> tuple[str, ...]:
    """Move a catalog that does not open out of the way; it is kept beside."""
    path = os.path.join(context.settings.home, CATALOG_FILE)
    if not os.path.lexists(path):
        return ()
    try:
        context.catalog.identity()
    except StorageError:
        return set_aside(path, at_ns=context.author.clock.now_ns())
    return ()


def rebuild(context: Context, roots: Sequence[str], *, dry_run: bool = False) -> Rebuilt:
    """Read every configured tier (and ``roots``, which become tiers) into an empty catalog.

    The catalog's UUID is adopted from the tiers' identity files and the epoch raised above all of
    them, so that an older instance of the same catalog is fenced off.

    Raises:
        UsageError: there is no tier to read.
        PartlyDone (in the answer): a tier or run could not be looked at.
    """
    for moved in set_damaged_aside(context):
        context.talk(f"the damaged catalog was moved to {moved}")
    for root in roots:
        real = addresses.real(normal_path(root))
        if tier_for(context, real) is None:
            register(context, real, node=None)
    tiers = context.settings.tiers
    if not tiers:
        raise UsageError(
            "no tier is configured", hint="name the roots: 'ckptgov catalog rebuild ROOT...'"
        )
    identities, failed = _identities(tiers)
    own = context.catalog.identity()
    uuid, epoch = _adopted(identities, own.uuid, own.epoch)
    if dry_run:
        return Rebuilt(runs=0, checkpoints=0, tiers=len(identities), epoch=epoch)
    runs: set[str] = set()
    # One transaction, however long it takes: a run of which one tier was read and another was not
    # would lack marks and newer steps, to a service that answers meanwhile or after a crash.
    with context.catalog.transaction():
        context.catalog.wipe_facts()
        context.catalog.adopt_identity(uuid, epoch)
        context.forget_places()
        for tier in tiers:
            if tier.root in identities:
                failed += read_tier(context, tier, runs, uuid=uuid, epoch=epoch)
    count = sum(len(context.catalog.checkpoints(run_id)) for run_id in runs)
    error = None
    if failed:
        error = PartlyDone(
            f"{len(failed)} could not be read, the others are done; first: {failed[0].message}",
            hint=failed[0].hint,
        )
    return Rebuilt(
        runs=len(runs), checkpoints=count, tiers=len(identities), epoch=epoch, error=error
    )


def _identities(
    tiers: Sequence[TierSettings],
) -> tuple[dict[str, TierIdentity], list[CkptgovError]]:
    found: dict[str, TierIdentity] = {}
    failed: list[CkptgovError] = []
    for tier in tiers:
        try:
            place = open_place(tier.root, tier=tier.name, node=tier.node, endpoint=tier.endpoint)
            identity = read_identity(place.storage)
            place.storage.close()
        except CkptgovError as error:
            failed.append(error)
            continue
        if identity is None:
            failed.append(
                StorageError(
                    f"tier {tier.name} at {tier.root} has no identity file",
                    hint="is it mounted? nothing was read from it",
                )
            )
        else:
            found[tier.root] = identity
    return found, failed


def _adopted(identities: dict[str, TierIdentity], own_uuid: str, own_epoch: int) -> tuple[str, int]:
    """The catalog most tiers name, and an epoch above all of its."""
    votes: dict[str, int] = {}
    for identity in identities.values():
        votes[identity.catalog] = votes.get(identity.catalog, 0) + 1
    uuid = max(votes, key=lambda one: (votes[one], one), default=own_uuid)
    epochs = [one.epoch for one in identities.values() if one.catalog == uuid]
    if uuid == own_uuid:
        epochs.append(own_epoch)
    return uuid, max(epochs, default=own_epoch) + 1


def read_tier(
    context: Context, tier: TierSettings, runs: set[str], *, uuid: str, epoch: int
) -> list[CkptgovError]:
    """Take over into the catalog what a tier tells; ids of its runs go into ``runs``.

    Gives back what could not be read; all the rest was.
    """
    failed: list[CkptgovError] = []
    try:
        place = context.place(tier)
        identity = read_identity(place.storage)
        if identity is not None and identity.catalog == uuid:
            adopt(place.storage, identity, epoch=epoch)
        run_roots = run_roots_below(place.storage, "")
    except CkptgovError as error:
        return [error]
    for run_root in run_roots:
        try:
            run_id = _read_run(context, tier, run_root)
        except CkptgovError as error:
            failed.append(error)
            continue
        if run_id is not None:
            runs.add(run_id)
    return failed


def _read_run(context: Context, tier: TierSettings, run_root: str) -> str | None:
    place = context.place(tier)
    look = context.look(place, run_root, partial=tier.scope is Scope.NODE, run=None)
    if look.identity is None:
        return None
    identity = _unique(context, look.identity)
    if tuple(context.rules_for(identity.name)):
        look = context.look(place, run_root, partial=tier.scope is Scope.NODE, run=identity.name)
    at_ns = context.author.clock.now_ns()
    record_run(context.catalog, look, identity, at_ns)
    sightings = [look.sighting(found, Depth.STRUCTURE) for found in look.unsealed()]
    record_look(context.catalog, look, identity.run_id, at_ns=at_ns, sightings=sightings)
    for root in context.catalog.roots_of(identity.run_id):
        if (root.place, root.path) == (place.uuid, run_root):
            adopt_trash(context, look, root)
    return identity.run_id


def _unique(context: Context, identity: RunIdentity) -> RunIdentity:
    """The run's name, or a longer one where another run of this catalog has it already."""
    holder = context.catalog.run_by_name(identity.name)
    if holder is None or holder.identity.run_id == identity.run_id:
        return identity
    name = f"{identity.name}~{identity.run_id[:8]}"
    context.talk(f"two runs are called {identity.name!r}: one is {name!r} here")
    return replace(identity, name=name)


def check(context: Context, catalog: Catalog) -> tuple[Check, ...]:
    """Compare the catalog with storage: every difference is named, nothing is changed."""
    found: list[Check] = []
    for run in catalog.runs():
        try:
            found += _check_run(context, catalog, run.identity.name, run.identity.run_id)
        except CkptgovError as error:
            found.append(
                Check(
                    name=run.identity.name,
                    severity="failure",
                    text=f"could not look: {error.message}",
                    fix=error.hint or "",
                )
            )
    return tuple(found)


def _check_run(context: Context, catalog: Catalog, name: str, run_id: str) -> list[Check]:
    asked = context.asked(name, sealed_only=False)
    assert asked is not None
    share_journal(asked.looks)
    differences: list[Check] = []
    known = {(one.content_id, one.place): one for one in catalog.copies(run_id)}
    for look in asked.looks:
        place = look.place.uuid or ""
        seen: set[str] = set()
        for stored in look.stored:
            copy = look.sealed(stored)
            if copy is None:
                differences.append(
                    _differs(
                        name, f"manifest {stored.file} does not decode", "restore or remove it"
                    )
                )
                continue
            content_id = copy.manifest.content_id
            if content_id in seen:
                continue
            seen.add(content_id)
            held = known.get((content_id, place))
            state = state_of(copy.proof, copy.manifest, is_gone=look.is_gone(copy))
            differences += _compare(name, copy.manifest.name, held.state if held else None, state)
        for (content_id, at), held in known.items():
            if at == place and content_id not in seen and held.state not in GONE:
                differences.append(
                    _differs(name, f"{held.name}: in the catalog, its manifest is gone")
                )
        mirrored = {one.record_id for one in catalog.records(run_id)}
        missing = [one for one in look.records if one.record.stamp.id not in mirrored]
        if missing:
            differences.append(
                _differs(name, f"{len(missing)} journal records are not in the catalog")
            )
    return differences or [Check(name=name, severity="ok", text="catalog and storage agree")]


def _compare(run: str, name: str, held: CopyState | None, seen: CopyState) -> list[Check]:
    if held is None:
        return [_differs(run, f"{name}: sealed on storage, not in the catalog")]
    if held is seen or (held is CopyState.REOPENED and seen is CopyState.SIGHTED):
        return []
    if held in LEAVING or (held is CopyState.PURGED and seen is CopyState.LOST):
        return []  # decided here; storage tells it only once it was begun
    return [_differs(run, f"{name}: {held.value} in the catalog, {seen.value} on storage")]


def _differs(run: str, text: str, fix: str = "'ckptgov scan' brings it up to date") -> Check:
    return Check(name=run, severity="warning", text=text, fix=fix)
