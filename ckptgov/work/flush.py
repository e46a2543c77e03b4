"""Make a landed copy a copy of the run: its identity, journal, manifest and receipt at the target.

In this order, so that whoever reads only this tier knows everything that speaks against a
checkpoint before anything offers it. Killed anywhere, the next flush adds what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ckptgov.errors import CkptgovError, Malformed
from ckptgov.layouts.accelerate import is_owned_by
from ckptgov.model.checkpoint import Evidence, Manifest, RunIdentity
from ckptgov.model.clock import Clock
from ckptgov.model.journal import KIND_OF, NumberedRecord, Restart
from ckptgov.storage.contract import Storage
from ckptgov.work.answer import share_journal
from ckptgov.work.copyproof import stat_shards
from ckptgov.work.landing import Landed, Landing
from ckptgov.work.look import RunLook
from ckptgov.work.runstore import RunStore, foreign_sidecar, store_at, writable_store
from ckptgov.work.seal import publish_receipt, wait_out_the_tick
from ckptgov.work.tier import Place


def run_root_at(storage: Storage, identity: RunIdentity) -> str:
    """Where a run's checkpoints go on a tier it is new to: its name, unless another run has it.

    Raises:
        Malformed: what lies under the name has an identity that does not decode.
    """
    short = identity.run_id.partition("-")[0]
    for root in (identity.name, f"{identity.name}~{short}"):
        standing = store_at(storage, root).identity()
        if standing is None or standing.run_id == identity.run_id:
            return root
    raise Malformed(f"{storage.root}: {identity.name} and {identity.name}~{short} are other runs")


def open_store(place: Place, run_root: str, identity: RunIdentity, *, layout: str) -> RunStore:
    """The run's store at the target, with ``run.json`` in it.

    ``layout`` is that of what is to land there: a directory that its trainer will own whole gets
    nothing of ours, also while it is still empty.

    Raises:
        Malformed: another run's identity stands there.
    """
    place.storage.make_dirs(run_root)
    at = store_at(place.storage, run_root)
    if run_root and is_owned_by(layout, run_root) and at.identity() is None:
        at = RunStore(place.storage, run_root, sidecar=foreign_sidecar(run_root))
    store, standing = writable_store(at, identity)
    if standing.run_id != identity.run_id:
        raise Malformed(f"{place.root}/{run_root}: belongs to run {standing.name!r}")
    return store


def newest_journal(looks: Sequence[RunLook]) -> tuple[NumberedRecord, ...]:
    """The run's records as they are now: much may have been said while bytes moved.

    A place that fell silent meanwhile counts with what it said before, but not the journal's home.
    """
    for look in looks:
        try:
            look.use_records([*look.records, *look.store.journal().records])
        except CkptgovError:
            if look is looks[0]:
                raise
    return share_journal(looks)


def copy_journal(store: RunStore, records: Sequence[NumberedRecord]) -> int:
    """Add the records that are not there yet, in their order; returns how many were added."""
    known = {item.record.stamp.id for item in store.journal().records}
    added = 0
    for item in records:
        record = item.record
        if record.stamp.id in known:
            continue
        if isinstance(record, Restart):
            store.publish_restart(record)
        else:
            store.adopt(item.number, KIND_OF[type(record)], record)
        added += 1
    return added


def publish(
    landing: Landing,
    landed: Landed,
    *,
    place: Place,
    identity: RunIdentity,
    looks: Sequence[RunLook],
    with_journal: bool,
    clock: Clock,
) -> None:
    """Make what landed a copy of the run: ``run.json``, journal, manifest, receipt, in this order.

    ``looks`` are at the run's places, its journal's home first. Without ``with_journal`` none is
    kept there. Without a receipt where nothing was compared.
    """
    store = open_store(place, landing.run_root, identity, layout=landing.manifest.layout)
    if with_journal:
        copy_journal(store, newest_journal(looks))
    manifest = replace(landing.manifest, name=landed.name)
    store.publish_manifest(manifest)
    if landed.tokens:
        _publish_receipt(store, manifest, landed, landing.base(landed.name), place, clock)


def _publish_receipt(
    store: RunStore, manifest: Manifest, landed: Landed, base: str, place: Place, clock: Clock
) -> None:
    assert place.uuid is not None
    stats = stat_shards(place.storage, base, manifest.shards)
    mtimes_ns = [stat.mtime_ns for stat in stats.values() if stat is not None]
    wait_out_the_tick(mtimes_ns, clock, place.storage.filesystem().granularity_ns)
    publish_receipt(
        store,
        manifest,
        place=place.uuid,
        tokens=landed.tokens,
        evidence=Evidence.DIGEST,
        at_ns=clock.now_ns(),
    )
