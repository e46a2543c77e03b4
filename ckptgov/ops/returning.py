"""The way back from the trash: files, manifest, record, state; then every byte is compared.

Every step can be done again, so that one that was killed is gone on with by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ckptgov.catalog.facts import PlacedCopy, RunRootFacts, SealedFacts
from ckptgov.errors import StaleState, VerificationFailed
from ckptgov.model.checkpoint import Manifest, VerifyLevel
from ckptgov.model.copies import CopyState, holds
from ckptgov.model.journal import NumberedRecord, Tombstone, Undelete
from ckptgov.model.pacing import FlowClass
from ckptgov.model.retention import Action, Removal
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import copy_lease
from ckptgov.ops.moving import paced_reading
from ckptgov.ops.record import record_look
from ckptgov.ops.removal_root import root_of
from ckptgov.ops.removing import Removing, write_record
from ckptgov.ops.standing_run import decoded, standing_run
from ckptgov.work.look import RunLook, SealedCopy
from ckptgov.work.remove import put_back
from ckptgov.work.seal import SealSettings
from ckptgov.work.tier import Place
from ckptgov.work.verify import verify_sealed


def from_trash(removing: Removing, is_known: bool, removal: Removal) -> str:
    """Files, manifest, record, state; then every byte is compared.

    Raises:
        VerificationFailed: it came back, and is not what its manifest says: it is not offered.
    """
    context = removing.context
    place = removing.place(removal.place)
    root = root_of(removing, removal, place)
    with copy_lease(context, removal.content_id, removal.place):
        with removing.paced(place, f"undelete {removal.name}") as paced:
            name = put_back(paced, removing.store(root, place), removal.trash)
        run = standing_run(context, removing.run(removal.run_id).identity.name, node=None)
        record = Undelete(
            stamp=context.author.stamp(removal.run_id, reason="brought back from the trash"),
            content_id=removal.content_id,
            place=removal.place,
            plan_id=removal.plan_id or None,
        )
        write_record(context, run, record, removing.store(root, place))
        if is_known:
            context.catalog.removals.undo(removal.run_id, removal.content_id, removal.place)
    shards = compared(removing, removal, root, place)
    return f"brought back to {name}; {shards} shards compared equal"


def compared(removing: Removing, removal: Removal, root: RunRootFacts, place: Place) -> int:
    """Compare what was brought back by digest, and let the catalog know; how many shards it has.

    Raises:
        VerificationFailed: it is not what its manifest says: it is not offered.
        StaleState: it is not sealed there any more.
    """
    context = removing.context
    removing.close()  # what the look knew is over
    look = removing.look(root, place)
    copy = _sealed_in(look, removal.content_id)
    if copy is None:
        raise StaleState(f"{removal.name}: was brought back, and is not there any more")
    wanted = _held_before(context, removal, copy.manifest)
    settings = SealSettings(threads=context.settings.digest_threads, progress=context.progress)
    what = f"verify {removal.name}"
    with paced_reading(context, [look], what=what, flow_class=FlowClass.BACKGROUND):
        outcome = verify_sealed(
            look, copy, level=VerifyLevel.DIGEST, clock=context.author.clock, settings=settings
        )
    look.refresh()
    at_ns = context.author.clock.now_ns()
    record_look(context.catalog, look, removal.run_id, at_ns=at_ns, sightings=None)
    if outcome.findings:
        first = outcome.findings[0]
        raise VerificationFailed(
            f"{first.path}: {first.evidence} ({first.reason.value}); it came back, and is not "
            "offered"
        )
    gone = [path for path in wanted if path not in outcome.held]
    if gone:  # a disk that may hold a part of it passes for one that does
        raise VerificationFailed(f"{gone[0]}: is not there; what came back is a part of it")
    return len(outcome.held)


def _held_before(context: Context, removal: Removal, manifest: Manifest) -> list[str]:
    """The shards that the catalog knows this copy to hold."""
    placed = context.catalog.copies_of(removal.run_id, [removal.content_id])[removal.content_id]
    known = next((one for one in placed if one.place == removal.place), None)
    return [
        shard.path
        for number, shard in enumerate(manifest.shards)
        if known is not None and holds(known.coverage, number)
    ]


def _sealed_in(look: RunLook, content_id: str) -> SealedCopy | None:
    for stored in look.store.manifests_of(content_id):
        copy = look.sealed(stored)
        if copy is not None and copy.manifest.content_id == content_id:
            return copy
    return None


def uncompared(removing: Removing, run_id: str) -> Iterator[Removal]:
    """Copies within reach that an undelete brought back, and did not come to compare; as the
    removals they were, in the state REOPENED."""
    catalog = removing.context.catalog
    held = [
        one
        for one in catalog.copies(run_id)
        if one.state is CopyState.REOPENED and removing.is_here(one.place)
    ]
    records = decoded(catalog.binding_records(run_id)) if held else ()
    sealed = catalog.sealed_of(run_id, [one.content_id for one in held])
    for one in held:
        said = goings(records, one.content_id, one.place)
        back = said[-1].record if said else None
        if isinstance(back, Undelete) and (one.verified_at_ns or 0) <= back.stamp.at_ns:
            yield _as_removal(one, back, sealed[one.content_id])


def goings(
    records: Iterable[NumberedRecord], content_id: str, place: str
) -> Sequence[NumberedRecord]:
    """What a journal says of a copy's going and coming back, in its order."""
    return [
        one
        for one in records
        if isinstance(one.record, Tombstone | Undelete)
        and one.record.content_id == content_id
        and one.record.place in (None, place)
    ]


def _as_removal(copy: PlacedCopy, back: Undelete, sealed: SealedFacts) -> Removal:
    return Removal(
        run_id=copy.run_id,
        content_id=copy.content_id,
        place=copy.place,
        name=copy.name,
        action=Action.PRUNE,
        plan_id=back.plan_id or "",
        state=copy.state,
        condemned_at_ns=back.stamp.at_ns,
        due_at_ns=back.stamp.at_ns,
        trash_s=0.0,
        bytes=sealed.bytes,
        files=sealed.shard_count,
    )
