"""Scan: discover run roots, seal what is whole, record what is not; newest of each run first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import (
    Ambiguous,
    CkptgovError,
    CouldNotLook,
    PartlyDone,
    StorageError,
    UsageError,
)
from ckptgov.model.answers import ScanAnswer, ScannedRun, SealedCheckpoint
from ckptgov.model.checkpoint import Evidence, RunIdentity
from ckptgov.model.facts import Depth, Note, Query, Sighting
from ckptgov.model.pacing import FlowClass
from ckptgov.model.settings import Scope, TierSettings
from ckptgov.ops.context import Context
from ckptgov.ops.digesting import split_digests
from ckptgov.ops.moving import paced_reading
from ckptgov.ops.policies import settle_s_of
from ckptgov.ops.record import record_look, record_run
from ckptgov.ops.tiers import tier_for, tier_made_for
from ckptgov.work import addresses
from ckptgov.work.answer import share_journal
from ckptgov.work.ask import Asked, listing
from ckptgov.work.halves import halves_of, seal_halves
from ckptgov.work.locate import Location, endpoint_of, locate, normal_path, open_place
from ckptgov.work.look import RunLook
from ckptgov.work.restart import default_name
from ckptgov.work.runroots import run_roots_below
from ckptgov.work.runstore import store_at
from ckptgov.work.scan import Elsewhere, ScanProgress, SealedNow, pending_bytes, prepare, scan_steps
from ckptgov.work.seal import Digested, NotStill
from ckptgov.work.tier import Place


class RunAtPlace(Struct, kw_only=True):
    """One run root under scan."""

    tier: TierSettings
    look: RunLook
    progress: ScanProgress
    steps: Iterator[SealedNow]


def scan(
    context: Context,
    directories: Sequence[str],
    *,
    run: str | None = None,
    node: str | None = None,
    elsewhere: Elsewhere | None = None,
) -> ScanAnswer:
    """Scan directories, or every tier declared ``ingest``.

    ``elsewhere`` has others digest what is large; by default the agents of a cluster, if any.

    Raises:
        UsageError: nothing to scan, or ``run`` is given for several run roots.
        CouldNotLook: a root could not be looked at; nothing is known of it.
    """
    roots = _run_roots(context, directories, node=node)
    if run is not None and len({below for _, below in roots}) > 1:
        raise Ambiguous(
            f"{len(roots)} run roots lie there, and --run names one: "
            + ", ".join(below or "." for _, below in roots[:10]),
            hint="scan them one at a time",
        )
    started: list[RunAtPlace] = []
    refused: list[CkptgovError] = []
    if elsewhere is None and context.shared is not None:
        elsewhere = split_digests(context)
    for tier, below in roots:
        try:
            one = _start(context, tier, below, run=run)
            one.progress.elsewhere = _once_still(context, one.progress, elsewhere)
            started.append(one)
        except CkptgovError as error:
            refused.append(error)
    looks = [one.look for one in started]
    with paced_reading(context, looks, what="seal", flow_class=FlowClass.DURABLE):
        _seal_newest_first(context, started)
        _join_halves(context, started)
    runs = tuple(_finish(context, group) for group in _by_run(started))
    return ScanAnswer(runs=runs, error=_error_of(runs, refused))


def preview(context: Context, directories: Sequence[str], *, node: str | None = None) -> ScanAnswer:
    """What a scan would find; nothing is registered, sealed or recorded."""
    found: list[tuple[Place, str, bool]] = []
    if directories:
        for directory in directories:
            location = _located(context, normal_path(directory))
            context.stack.callback(location.place.storage.close)
            found += [(location.place, root, node is not None) for root in location.run_roots]
    else:
        for tier, below in _run_roots(context, (), node=node):
            found.append((context.place(tier), below, tier.scope is Scope.NODE))
    runs = []
    for place, below, is_partial in found:
        look = context.look(place, below, partial=is_partial, run=default_name_at(place, below))
        name = look.identity.name if look.identity is not None else default_name(look)
        told = listing(Asked(run=name, looks=(look,)), Query(min_evidence=Evidence.DIGEST))
        runs.append(ScannedRun(listing=told, sealed=()))
    return ScanAnswer(runs=tuple(runs))


def _run_roots(
    context: Context, directories: Sequence[str], *, node: str | None
) -> list[tuple[TierSettings, str]]:
    if not directories:
        tiers = [one for one in context.settings.tiers if one.ingest]
        if node is not None:
            tiers = [one for one in tiers if one.node in (None, node)]
        if not tiers:
            raise UsageError(
                "there is nothing to scan: no tier is declared ingest",
                hint="name a directory, or 'ckptgov tier add NAME DIR --ingest'",
            )
        return [
            (tier, below)
            for tier in tiers
            for below in run_roots_below(context.place(tier).storage, "")
        ]
    found: dict[tuple[str, str], tuple[TierSettings, str]] = {}
    for directory in directories:
        for tier, below in _roots_below(context, directory, node=node):
            found[(tier.root, below)] = (tier, below)
    return list(found.values())


def _roots_below(
    context: Context, directory: str, *, node: str | None
) -> list[tuple[TierSettings, str]]:
    location = _located(context, normal_path(directory))
    location.place.storage.close()
    real = addresses.real(addresses.join(location.place.root, location.below))
    tier, below = tier_made_for(context, real, addresses.real(location.place.root), node=node)
    place = context.place(tier)
    if location.only_name is not None:
        run_root = addresses.join(location.place.root, location.run_roots[0])
        return [(tier, _relative(place, run_root))]
    return [(tier, root) for root in run_roots_below(place.storage, below)]


def _located(context: Context, address: str) -> Location:
    return locate(address, endpoint=endpoint_of(address, context.settings.tiers))


def _relative(place: Place, address: str) -> str:
    below = addresses.relative(addresses.real(address), addresses.real(place.root))
    assert below is not None, f"{address} lies outside {place.root}"
    return below


def _start(context: Context, tier: TierSettings, below: str, *, run: str | None) -> RunAtPlace:
    place = context.place(tier)
    _require_journal(context, tier, place)
    is_partial = tier.scope is Scope.NODE
    look = context.look(place, below, partial=is_partial, run=run or default_name_at(place, below))
    identity = _identity(context, tier, look, run)
    progress = prepare(look, identity)
    progress.identity = replace(progress.identity, name=identity.name)
    look.identity = progress.identity
    record_run(context.catalog, look, progress.identity, context.author.clock.now_ns())
    progress.first_seen = {
        (one.name, one.variant): one.first_seen_at_ns
        for one in context.catalog.sightings(progress.identity.run_id)
        if one.place == place.uuid
    }
    settings = context.seal_settings_at(place)
    steps = scan_steps(look, progress, author=context.author, settings=settings)
    return RunAtPlace(tier=tier, look=look, progress=progress, steps=steps)


def _once_still(
    context: Context, progress: ScanProgress, elsewhere: Elsewhere | None
) -> Elsewhere | None:
    """Seal only what has not changed for as long as the run's policy says, by its files' times.

    Times ahead of our clock tell nothing of that: they hold nothing back.
    """
    clock = context.author.clock
    settle_s = settle_s_of(context, progress.identity.name)
    if settle_s is None:
        return elsewhere

    def digested(look: RunLook, sighting: Sighting) -> Digested | None:
        still_s = (clock.now_ns() - sighting.newest_mtime_ns) / 1e9
        if 0 <= still_s < settle_s:
            evidence = f"changed {still_s:.0f} s ago, and its policy asks for {settle_s:g} s"
            progress.notes.append(Note("settling", sighting.name, evidence))
            raise NotStill(sighting.name, evidence)
        return elsewhere(look, sighting) if elsewhere is not None else None

    return digested


def _require_journal(context: Context, tier: TierSettings, place: Place) -> None:
    if not context.may_hold_journal(place):
        raise StorageError(
            f"tier {tier.name}: no journal can be kept there: 'tier check' saw a name given twice, "
            "or what was published not last",
            hint="keep runs on another tier; this one may hold copies, which 'flush' brings",
        )


def default_name_at(place: Place, below: str) -> str:
    """The base name of a run root."""
    return (below or place.root.rstrip("/")).rpartition("/")[2]


def _identity(context: Context, tier: TierSettings, look: RunLook, run: str | None) -> RunIdentity:
    """The identity in the run root, of the same run on another node's disk, or a new one.

    Raises:
        UsageError: the name is taken by another run, or the run has another name.
        RunRootGone: so it seemed, because the run root was removed or moved meanwhile.
    """
    identity = _own_identity(context, tier, look, look.identity, run)
    if identity is not None:
        return identity
    name = run or default_name(look)
    holder = context.catalog.run_by_name(name)
    if holder is None:
        return RunIdentity(run_id=context.author.new_id(), name=name)
    if run is not None:
        return holder.identity
    # Another process may have registered this root since we looked: run.json stands before the
    # catalog knows of it.
    standing = store_at(look.place.storage, look.run_root).identity()
    identity = _own_identity(context, tier, look, standing, None)
    if identity is None:
        look.require_there()
        raise _taken(look, name)
    return identity


def _own_identity(
    context: Context,
    tier: TierSettings,
    look: RunLook,
    standing: RunIdentity | None,
    run: str | None,
) -> RunIdentity | None:
    """By ``run.json`` as it was read, or the same run on another node's disk; None: of neither."""
    if standing is not None:
        return _standing(context, look, standing, run)
    sibling = _sibling(context, tier, look)
    return sibling if sibling is not None and run in (None, sibling.name) else None


def _standing(
    context: Context, look: RunLook, identity: RunIdentity, run: str | None
) -> RunIdentity:
    """The identity of a run root that has one, under the name this catalog knows it by.

    A run keeps its name, unless another run of this catalog has it: then it takes ``run`` here.
    """
    known = context.catalog.run_by_id(identity.run_id)
    holder = context.catalog.run_by_name(identity.name)
    own = known.identity.name if known is not None else identity.name
    is_taken = holder is not None and holder.identity.run_id != identity.run_id
    if known is None and is_taken:
        if run is None or context.catalog.run_by_name(run) is not None:
            raise _taken(look, run or identity.name)
        return replace(identity, name=run)
    if run not in (None, own):
        raise UsageError(
            f"{_where(look)} is run {own!r}, not {run!r}",
            hint="a run keeps its name; leave --run out",
        )
    return replace(identity, name=own)


def _taken(look: RunLook, name: str) -> UsageError:
    return UsageError(
        f"{_where(look)}: the name {name!r} is taken by another run",
        hint=f"--run OTHER gives it a name of its own; --run {name} makes it a place of that run",
    )


def _where(look: RunLook) -> str:
    return f"{look.place.root}/{look.run_root}".rstrip("/")


def _sibling(context: Context, tier: TierSettings, look: RunLook) -> RunIdentity | None:
    """The run of the same path on another node's disk of this tier: halves are one run."""
    if tier.scope is not Scope.NODE:
        return None
    for place in context.catalog.places():
        if place.tier == tier.name and place.place != look.place.uuid:
            run = context.catalog.run_at(place.place, look.run_root)
            if run is not None:
                return run.identity
    return None


def _seal_newest_first(context: Context, started: Sequence[RunAtPlace]) -> None:
    """One checkpoint of every run, then an estimate, then the rest."""
    clock = context.author.clock
    begun = clock.monotonic()
    for one in started:
        next(one.steps, None)
    done = sum(sealed.bytes for one in started for sealed in one.progress.sealed)
    took = clock.monotonic() - begun
    rest = sum(pending_bytes(one.look) for one in started) - done
    if done and rest > 0 and took > 1.0:
        context.talk(
            f"the newest checkpoint of each run is sealed; the rest ({rest / 2**30:.1f} GiB) "
            f"takes about {rest / done * took / 60:.0f} min at this rate"
        )
    for one in started:
        for _sealed in one.steps:
            pass


def _join_halves(context: Context, started: Sequence[RunAtPlace]) -> None:
    for group in _by_run(started):
        looks = [one.look for one in group if one.tier.scope is Scope.NODE]
        if len(looks) < 2:
            continue
        share_journal(looks)
        for name, halves in sorted(halves_of(looks).items()):
            if len(halves) < 2:
                continue
            outcome = seal_halves(
                name,
                halves,
                identity=group[0].progress.identity,
                author=context.author,
                settings=context.seal_settings_at(halves[0].look.place),
                window_ns=int(context.settings.save_window_s * 1e9),
            )
            if outcome.manifest is not None:
                group[0].progress.sealed.append(
                    SealedNow(manifest=outcome.manifest, bytes=outcome.manifest.bytes, is_new=True)
                )
            group[0].progress.doubts += outcome.findings


def _by_run(started: Sequence[RunAtPlace]) -> list[list[RunAtPlace]]:
    groups: dict[str, list[RunAtPlace]] = {}
    for one in started:
        groups.setdefault(one.progress.identity.run_id, []).append(one)
    return list(groups.values())


def _finish(context: Context, group: Sequence[RunAtPlace]) -> ScannedRun:
    """Look again, record what is there, and say how the run stands."""
    name = group[0].progress.identity.name
    looks = tuple(
        context.look(one.look.place, one.look.run_root, partial=one.look.partial, run=name)
        for one in group
    )
    share_journal(looks)
    for one, look in zip(group, looks, strict=True):
        record_look(
            context.catalog,
            look,
            one.progress.identity.run_id,
            at_ns=context.author.clock.now_ns(),
            sightings=_sightings(look, one.progress),
        )
    asked = Asked(run=name, looks=looks)
    sealed = [one for each in group for one in each.progress.sealed]
    told = listing(asked, Query(min_evidence=Evidence.DIGEST))
    doubts = [
        Note("halves", finding.path, finding.evidence)
        for each in group
        for finding in each.progress.doubts
    ]
    seen = [note for each in group for note in each.progress.notes]
    notes = tuple(dict.fromkeys([*told.notes, *seen, *doubts]))
    return ScannedRun(
        listing=replace(told, notes=notes),
        sealed=tuple(_sealed(one) for one in sealed),
        failures=tuple((one.name, one.error) for each in group for one in each.progress.failures),
        lost=tuple(name for each in group for name in each.progress.lost),
    )


def _sightings(look: RunLook, progress: ScanProgress) -> list[Sighting]:
    seen = {(one.name, one.found.variant): one for one in progress.sightings}
    return [
        seen.get((found.name, found.variant)) or look.sighting(found, Depth.STRUCTURE)
        for found in look.unsealed()
    ]


def _sealed(one: SealedNow) -> SealedCheckpoint:
    return SealedCheckpoint(
        name=one.manifest.name,
        step=one.manifest.step,
        step_kind=one.manifest.step_kind,
        content_id=one.manifest.content_id,
        bytes=one.manifest.bytes,
        shards=len(one.manifest.shards),
        is_new=one.is_new,
    )


def _error_of(runs: Sequence[ScannedRun], refused: Sequence[CkptgovError]) -> CkptgovError | None:
    failures = [(name, error) for one in runs for name, error in one.failures]
    if refused and not runs:
        return refused[0]
    if refused and all(isinstance(one, UsageError) for one in refused) and not failures:
        return refused[0]
    if not refused and not failures:
        return None
    first = refused[0].message if refused else f"{failures[0][0]}: {failures[0][1].message}"
    return PartlyDone(
        f"{len(refused) + len(failures)} could not be scanned or sealed, the others are done; "
        f"first: {first}"
    )


class OpenedRun(Struct, frozen=True, kw_only=True):
    """The run root that one checkpoint lies in; ``name`` is its path below it."""

    look: RunLook
    name: str
    identity: RunIdentity


def open_run(
    context: Context, path: str, *, run: str | None, node: str | None, dry_run: bool
) -> OpenedRun:
    """Open the run root of a checkpoint named by its path; an unregistered one is registered.

    Raises:
        UsageError: the path is a tier's root or a run root, not a checkpoint beneath one.
    """
    absolute = addresses.real(normal_path(path))
    if not addresses.is_url(absolute) and not os.path.lexists(absolute):
        raise CouldNotLook(f"{path}: is not there")
    location = _located(context, absolute)
    location.place.storage.close()
    run_root, name = addresses.parent(absolute), addresses.name_of(absolute)
    if location.only_name is not None:
        run_root = addresses.join(location.place.root, location.run_roots[0])
        name = location.only_name
    run_root = addresses.real(run_root)
    if not name or run_root == absolute:
        raise UsageError(f"{path}: is not a checkpoint below a run root")
    if dry_run and tier_for(context, run_root) is None:
        look = context.look(open_place(run_root), "", partial=False, run=run)
        identity = look.identity or RunIdentity(run_id="", name=run or default_name(look))
        return OpenedRun(look=look, name=name, identity=identity)
    tier, below = tier_made_for(context, run_root, run_root, node=node)
    place = context.place(tier)
    look = context.look(
        place,
        below,
        partial=tier.scope is Scope.NODE,
        run=run or default_name_at(place, below),
    )
    return OpenedRun(look=look, name=name, identity=_identity(context, tier, look, run))
