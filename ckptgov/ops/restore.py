"""Restore: bring a checkpoint to a directory, every shard from the nearest place that has it sound.

The checkpoint is chosen as ``latest`` chooses, but one whose shards are sound only over several
places counts too: here they are put together. A bad shard is taken from another copy, and the bad
copy is never offered again before it was verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from msgspec.structs import replace

from ckptgov.errors import CouldNotLook, Interrupted, RefusedBySafety
from ckptgov.layouts.tree import join
from ckptgov.model.facts import Finding
from ckptgov.model.movement import RestoreAnswer
from ckptgov.model.settings import Proof, Scope
from ckptgov.ops.bringing import (
    Bringing,
    RestoreRequest,
    decide,
    identity_of,
    is_catalogued,
    tier_at,
)
from ckptgov.ops.claims import reading
from ckptgov.ops.context import Context
from ckptgov.ops.record import record_look, record_run
from ckptgov.ops.restored import Brought, planned, told
from ckptgov.storage.contract import Storage
from ckptgov.work.addresses import join as absolute
from ckptgov.work.ask import Asked
from ckptgov.work.copy import CopyFailed, CopySettings, SourceFault
from ckptgov.work.destination import made
from ckptgov.work.flush import open_store, publish
from ckptgov.work.landing import Landed, Landing, NameTaken, discard_staging, form_of, land
from ckptgov.work.owned import LINKED
from ckptgov.work.quarantine import quarantine
from ckptgov.work.restore import link_staged, tidy
from ckptgov.work.runstore import SIDECAR
from ckptgov.work.sources import CopyAt, sources_of
from ckptgov.work.tier import Place


class Through(Protocol):
    """The storages that bytes move through: to read a place, and to write the target."""

    def reading(self, place: Place) -> Storage: ...

    def writing(self, place: Place) -> Storage: ...


Moving = Callable[[str, int, Place], AbstractContextManager[Through]]
"""(what moves, how many bytes, the target) -> what to move it through, while the block lasts."""


class _Plain:
    """Nothing is paced."""

    def reading(self, place: Place) -> Storage:
        return place.storage

    def writing(self, place: Place) -> Storage:
        return place.storage


def unpaced(what: str, bytes_: int, target: Place) -> AbstractContextManager[Through]:
    """As fast as it goes."""
    del what, bytes_, target
    return nullcontext(_Plain())


def restore(
    context: Context,
    asked: Asked,
    request: RestoreRequest,
    *,
    stop: Callable[[], bool] = lambda: False,
    moving: Moving = unpaced,
    rate_of: Callable[[Place], float | None] = lambda _: None,
) -> RestoreAnswer:
    """Bring the checkpoint, or some of its shards, to a directory.

    Where the directory is the run's own root on a tier, what lands becomes a copy of the run;
    anywhere else nothing of ours stays beside it. What stands already with the same bytes is
    compared and accepted. ``rate_of`` tells what a place is known to give, in bytes/s.

    Raises:
        NeverAny, NoneRestorable: as ``latest``; or no copy that may be read has a shard sound.
        RefusedBySafety: the directory belongs to another run, or other bytes have the name.
        UsageError: no such tier, or nothing matches.
        CopyFailed: no source gave a shard's bytes.
        Interrupted: ``stop`` said so; the same call goes on from what has arrived.
        CouldNotLook: a place, or the directory, failed.
    """
    clock = context.author.clock
    started_s = clock.monotonic()
    bringing = decide(context, asked, request)
    if request.dry_run:
        return planned(bringing, rate_of)
    place = made(bringing.to)
    what = f"{asked.run or place.root} {bringing.manifest.name}"
    try:
        with (
            _claimed(context, bringing, stop) as may_stop,
            moving(what, sum(one.bytes for one in bringing.shards), place) as through,
        ):
            brought = _bring(context, bringing, place, through, may_stop)
    finally:
        if not bringing.becomes_copy:
            tidy(place.storage, _sidecar(bringing, place))
        if not bringing.to.is_of_run:
            place.storage.close()
    return told(bringing, brought, took_s=clock.monotonic() - started_s)


@contextmanager
def _claimed(
    context: Context, bringing: Bringing, stop: Callable[[], bool]
) -> Iterator[Callable[[], bool]]:
    """Hold the checkpoint while it is read, where a catalog knows the run; ``stop`` renews it."""
    identity = identity_of(bringing.asked)
    if identity is None or not is_catalogued(context, identity):
        yield stop
        return
    content_id = bringing.manifest.content_id
    reason = f"restore to {bringing.to.directory}"
    with reading(context, identity.run_id, content_id, reason=reason) as claim:
        yield lambda: stop() or claim.keep()


def _sidecar(bringing: Bringing, place: Place) -> str:
    """Where shards wait for each other: with the run's own files where there are some."""
    identity = identity_of(bringing.asked)
    if bringing.becomes_copy and identity is not None:
        layout = bringing.manifest.layout
        return open_store(place, bringing.to.run_root, identity, layout=layout).sidecar
    return join(bringing.to.run_root, SIDECAR)


def _bring(
    context: Context,
    bringing: Bringing,
    place: Place,
    through: Through,
    stop: Callable[[], bool],
) -> Brought:
    """Land it, and deal with the sources that were bad, also where all of them were."""
    faults: list[SourceFault] = []
    landing = _landing(context, bringing, place, through, stop, faults)
    linked: dict[str, str] = {}
    if bringing.request.hardlink:
        staged = {one.path: landing.staged(one) for one in bringing.shards}
        linked = link_staged(bringing.copies, bringing.sources, place, staged)
    try:
        landed = _landed(landing, bringing)
    except CopyFailed:
        _set_aside(context, bringing, faults, through)
        raise
    if not landed.is_whole:
        if stop():
            raise Interrupted(f"{landed.name}: stopped before all of it was there")
        raise CouldNotLook(f"{landed.name}: {landed.missing[0]} did not arrive")
    own = _sidecar(bringing, place)
    for sidecar in (own, f"{own}/{LINKED}"):  # also what an earlier try left, linked or copied
        discard_staging(place.storage, replace(landing, sidecar=sidecar).staging)
    if bringing.becomes_copy:
        _record_copy(context, bringing, place, landing, landed)
    bad = {(one.place, one.shard) for one in faults}
    return Brought(
        landed=landed,
        linked={path: at for path, at in linked.items() if (at, path) not in bad},
        faults=_set_aside(context, bringing, faults, through),
    )


def _landing(
    context: Context,
    bringing: Bringing,
    place: Place,
    through: Through,
    stop: Callable[[], bool],
    faults: list[SourceFault],
) -> Landing:
    sidecar, first = _sidecar(bringing, place), bringing.first
    tier = tier_at(context, place.root) if bringing.becomes_copy else None
    proof = tier.proof if tier is not None else None
    return Landing(
        manifest=replace(bringing.manifest, name=bringing.to.name),
        form=form_of(bringing.manifest, first.base, first.look.run_root),
        sources=sources_of(bringing.copies, opened=through.reading),
        target=through.writing(place),
        run_root=bringing.to.run_root,
        sidecar=f"{sidecar}/{LINKED}" if bringing.request.hardlink else sidecar,
        proof=proof or Proof.READBACK,
        copying=CopySettings(
            threads=context.settings.digest_threads, progress=context.progress, stop=stop
        ),
        on_fault=faults.append,
        may_take_attempt_name=bringing.becomes_copy,
        only=bringing.only,
    )


def _landed(landing: Landing, bringing: Bringing) -> Landed:
    try:
        return land(landing)
    except NameTaken as error:
        raise RefusedBySafety(
            f"{bringing.to.directory}/{landing.manifest.name}: stands already and is not this "
            "checkpoint; it was not touched",
            hint="name another directory, or move away what lies there",
        ) from error


def _record_copy(
    context: Context, bringing: Bringing, place: Place, landing: Landing, landed: Landed
) -> None:
    """Journal, manifest and receipt, then the catalog if there is one."""
    identity = identity_of(bringing.asked)
    assert identity is not None
    clock = context.author.clock
    publish(
        landing,
        landed,
        place=place,
        identity=identity,
        looks=bringing.asked.looks,
        with_journal=not is_catalogued(context, identity) or context.may_hold_journal(place),
        clock=clock,
    )
    tier = tier_at(context, place.root)
    if tier is None or not is_catalogued(context, identity):
        return
    is_partial = tier.scope is Scope.NODE
    look = context.look(place, bringing.to.run_root, partial=is_partial, run=identity.name)
    record_run(context.catalog, look, identity, clock.now_ns())
    record_look(context.catalog, look, identity.run_id, at_ns=clock.now_ns(), sightings=None)


def _set_aside(
    context: Context, bringing: Bringing, faults: Sequence[SourceFault], through: Through
) -> tuple[Finding, ...]:
    """Compare every bad source once more, quarantine what is wrong, and tell of all."""
    findings: list[Finding] = []
    for at in bringing.copies:
        own = [one for one in faults if one.place == (at.place.uuid or at.place.root)]
        own = [one for one in own if (one.shard, one.finding.path) in at.readable]
        if not own:
            continue
        confirmed = quarantine(at, own, through.reading(at.place), context.author.clock)
        if confirmed.note:
            context.talk(f"{at.place.root}: could not be quarantined: {confirmed.note}")
        findings += [_told_of(at, one, confirmed.corrupt) for one in own]
        if is_catalogued(context, at.look.identity) and at.place.uuid is not None:
            assert at.look.identity is not None
            at.look.refresh()
            record_look(
                context.catalog,
                at.look,
                at.look.identity.run_id,
                at_ns=context.author.clock.now_ns(),
                sightings=None,
            )
    return tuple(findings)


def _told_of(at: CopyAt, fault: SourceFault, corrupt: frozenset[str]) -> Finding:
    suffix = "; compared again and quarantined" if fault.shard in corrupt else ""
    found = fault.finding
    return Finding(found.reason, absolute(at.place.root, found.path), found.evidence + suffix)
