"""From what lies in a trash to what the catalog should know of it: for a rebuild, and undelete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import StaleState
from ckptgov.manifest.forms.manifests import encode_manifest
from ckptgov.model.checkpoint import Manifest
from ckptgov.model.copies import CopyState
from ckptgov.model.journal import Tombstone
from ckptgov.model.policy import Safety
from ckptgov.model.retention import Action, Removal
from ckptgov.ops.context import Context
from ckptgov.ops.record import sealed_facts
from ckptgov.work.leaving import standing_tombstones
from ckptgov.work.look import RunLook
from ckptgov.work.trash import TrashEntry, trash_entries


def adopt_trash(context: Context, look: RunLook, root: RunRootFacts) -> None:
    """Let the catalog know what of a run is in the trash at a place, or on its way there.

    For a rebuild: after the look was recorded. A copy that stands, brought there anew, goes before
    what is left of an older one.

    Raises:
        StorageError: the trash could not be looked at.
    """
    known = set()
    for entry in sorted(trash_entries(look.store), key=lambda one: one.trash, reverse=True):
        if entry.damage:
            context.talk(f"{look.place.root}/{entry.trash}: {entry.damage}; left as it is")
            continue
        removal = trashed(context, look, entry, root)
        if removal is not None and removal.content_id not in known:
            known.add(removal.content_id)
            with suppress(StaleState):
                context.catalog.removals.adopt(removal)
    for removal in _begun(context, look, root, known):
        with suppress(StaleState):
            context.catalog.removals.adopt(removal)


def trashed(
    context: Context, look: RunLook, entry: TrashEntry, root: RunRootFacts
) -> Removal | None:
    """The removal that an entry is left of; None where it does not tell enough to go on with it.

    The catalog knows its checkpoint afterwards.
    """
    if entry.manifest is None or entry.damage:
        return None
    _put_sealed(context, look, entry.manifest, root.run_id)
    at_ns = int(datetime.combine(entry.since, datetime.min.time(), UTC).timestamp()) * 10**9
    state = CopyState.TRASHED if entry.moved else CopyState.TRASHING
    return _removal(look, entry.manifest, root, state=state, at_ns=at_ns, trash=entry.trash)


def _begun(
    context: Context, look: RunLook, root: RunRootFacts, known: set[str]
) -> Iterator[Removal]:
    """What got no further than its tombstone: its manifest stands, and nobody may count on it."""
    tombstones = standing_tombstones(look.records, root.place)
    for stored in look.stored:
        copy = look.sealed(stored)
        if copy is None or copy.manifest.content_id not in tombstones.keys() - known:
            continue
        if look.is_removed(copy):
            at_ns = tombstones[copy.manifest.content_id].stamp.at_ns
            yield _removal(
                look, copy.manifest, root, state=CopyState.TRASHING, at_ns=at_ns, trash=""
            )


def _removal(
    look: RunLook,
    manifest: Manifest,
    root: RunRootFacts,
    *,
    state: CopyState,
    at_ns: int,
    trash: str,
) -> Removal:
    """As the policy's defaults have it: how long it was to lie there is told nowhere."""
    tombstone = standing_tombstones(look.records, root.place).get(manifest.content_id)
    trash_s = Safety().trash_s
    return Removal(
        run_id=root.run_id,
        content_id=manifest.content_id,
        place=root.place,
        name=manifest.name,
        action=Action.PRUNE,
        plan_id=_plan_of(tombstone),
        state=state,
        condemned_at_ns=at_ns,
        due_at_ns=at_ns + int(trash_s * 1e9),
        trash_s=trash_s,
        bytes=manifest.bytes,
        files=len(manifest.shards),
        trash=trash,
    )


def _plan_of(tombstone: Tombstone | None) -> str:
    return (tombstone.plan_id or "") if tombstone is not None else ""


def _put_sealed(context: Context, look: RunLook, manifest: Manifest, run_id: str) -> None:
    record = look.sealed_records.get(manifest.content_id)
    sealed = sealed_facts(
        run_id,
        manifest,
        line=record.line if record is not None else look.lines.active.number,
        attempt=record.attempt if record is not None else 0,
        sealed_at_ns=(record.stamp.at_ns if record is not None else context.author.clock.now_ns()),
    )
    context.catalog.put_sealed(sealed, encode_manifest(manifest))
