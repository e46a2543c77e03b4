"""Flush: bring checkpoints to a slower, more durable tier, few at a time and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import (
    CkptgovError,
    ConfigError,
    CouldNotLook,
    Interrupted,
    LeaseLost,
    NoneRestorable,
    OverCapacity,
    PartlyDone,
    StorageError,
    UnknownRun,
    UsageError,
)
from ckptgov.model.checkpoint import Manifest, RunIdentity
from ckptgov.model.facts import Finding
from ckptgov.model.movement import FlushAnswer, FlushedCheckpoint, FlushSkip, FlushState
from ckptgov.model.pacing import FlowClass, FlowState
from ckptgov.model.settings import Link, Proof, TierSettings
from ckptgov.ops.context import Context
from ckptgov.ops.copy_lease import CopyLease, arriving, copy_lease
from ckptgov.ops.flushing_facts import run_to_flush
from ckptgov.ops.moving import moving
from ckptgov.ops.policies import links_of
from ckptgov.ops.record import record_look, record_run
from ckptgov.ops.room import room_at
from ckptgov.ops.standing_run import is_here
from ckptgov.planning.flush import FlushItem, FlushPlan, Skip, WhyNot, plan_flush
from ckptgov.planning.room import refusal
from ckptgov.work.ask import Asked
from ckptgov.work.copy import CopyFailed, CopySettings, SourceFault
from ckptgov.work.flush import open_store, publish, run_root_at
from ckptgov.work.hold import held_contents, hold, release
from ckptgov.work.landing import Landed, Landing, form_of, land
from ckptgov.work.locate import normal_path
from ckptgov.work.look import RunLook
from ckptgov.work.owned import STAGING, below, contents_in, directory_of
from ckptgov.work.quarantine import quarantine
from ckptgov.work.runstore import store_at
from ckptgov.work.sources import CopyAt, sources_of
from ckptgov.work.tier import Place

Stop = Callable[[], bool]


class FlushRequest(Struct, frozen=True, kw_only=True):
    """What to flush: one run (or every run), one step or what the links choose, to one tier or
    along every link, from some tiers or all; ``flow_class`` instead of the one the plan gives."""

    run: str | None
    step: int | None = None
    target: str | None = None
    sources: frozenset[str] | None = None
    node: str | None = None
    dry_run: bool = False
    flow_class: FlowClass | None = None


class RunOverLink(Struct, frozen=True, kw_only=True):
    """One run seen from one link: its plan and everything needed to carry it out."""

    identity: RunIdentity
    asked: Asked
    target: TierSettings
    link: Link
    plan: FlushPlan
    copies: dict[str, Sequence[CopyAt]]


def flush(context: Context, request: FlushRequest, *, stop: Stop = lambda: False) -> FlushAnswer:
    """One pass: everything the links choose, or what was asked for, in the plan's order.

    Raises:
        UsageError: no link and no target, or a target that is no tier.
        UnknownRun: there is no such run.
        CouldNotLook: the run's journal could not be read.
    """
    done: list[FlushedCheckpoint] = []
    skips: list[FlushSkip] = []
    refused: list[CkptgovError] = []
    overs: list[RunOverLink] = []
    work: list[tuple[FlushItem, RunOverLink]] = []
    for name in _runs(context, request):
        try:
            for each in _over_links(context, request, name):
                overs.append(each)
                work += [(_urgent(item, request), each) for item in each.plan.items]
                skips += [_skip(one, each.target) for one in each.plan.skips]
        except (CouldNotLook, ConfigError) as error:
            if request.run is not None:
                raise
            refused.append(error)
    work.sort(key=lambda pair: _order(pair[0]))
    if not request.dry_run:
        _hold_all(work)
        if request.target is None:
            _release_arrived(overs)
    wanted = Counter(_held_by(item) for item, _each in work if item.link.hold)
    for item, each in work:
        if request.dry_run:
            done.append(_outcome(item, each, state=FlushState.WOULD))
            continue
        if stop():
            done.append(_outcome(item, each, state=FlushState.INTERRUPTED))
            continue
        done.append(_flush_one(context, item, each, stop))
        if item.link.hold and done[-1].state in (FlushState.FLUSHED, FlushState.STOOD):
            wanted[_held_by(item)] -= 1
            if not wanted[_held_by(item)]:
                _release(item, each)
    return FlushAnswer(
        checkpoints=tuple(done), skips=tuple(skips), error=_error_of(request, done, skips, refused)
    )


def _urgent(item: FlushItem, request: FlushRequest) -> FlushItem:
    flow_class = request.flow_class
    return item if flow_class is None else replace(item, flow_class=flow_class)


def _hold_all(work: Sequence[tuple[FlushItem, RunOverLink]]) -> None:
    """Before the first byte moves: the last in the queue may be rotated away meanwhile."""
    for item, each in work:
        if item.link.hold:
            for one in each.copies[item.checkpoint.content_id]:
                if one.place.tier == item.link.source:
                    hold(one.look, one.copy)


def _held_by(item: FlushItem) -> tuple[str, str]:
    """What links that hold share: the content, and the tier where its second names lie."""
    return item.checkpoint.content_id, item.link.source


def _release(item: FlushItem, each: RunOverLink) -> None:
    """What arrived over every link needs no hold."""
    for one in each.copies[item.checkpoint.content_id]:
        if one.place.tier == item.link.source:
            release(one.look, one.manifest.content_id)


def _release_arrived(overs: Sequence[RunOverLink]) -> None:
    """Holds of what another node finished, or of a flush that was killed before it let go."""
    for source in {each.link.source for each in overs if each.link.hold}:
        over = [each for each in overs if each.link.hold and each.link.source == source]
        arrived = {
            one.checkpoint.content_id
            for each in over
            for one in each.plan.skips
            if one.why_not is WhyNot.ALREADY_THERE
        }
        wanted = {one.checkpoint.content_id for each in over for one in each.plan.items}
        wanted |= {
            one.checkpoint.content_id
            for each in over
            for one in each.plan.skips
            if one.why_not in (WhyNot.BEING_DELIVERED, WhyNot.UNVERIFIED_THERE)
        }
        for look in {id(look): look for each in over for look in each.asked.looks}.values():
            if look.place.tier == source:
                for content_id in held_contents(look) & (arrived - wanted):
                    release(look, content_id)


def _order(item: FlushItem) -> tuple[int, tuple[int, ...]]:
    return (0 if item.flow_class.value == "durable" else 1, item.order)


def _runs(context: Context, request: FlushRequest) -> list[str]:
    if request.run is not None:
        return [request.run]
    places = {one.place: one for one in context.catalog.places()}

    def is_seen(run_id: str) -> bool:
        """What lies on other nodes' disks alone (or was only named so far) is their agents'."""
        roots = context.catalog.roots_of(run_id)
        return any(is_here(context, places[root.place].node) for root in roots)

    runs = [one.identity for one in context.catalog.runs()]
    return [one.name for one in runs if context.here is None or is_seen(one.run_id)]


def _over_links(context: Context, request: FlushRequest, name: str) -> Iterable[RunOverLink]:
    asked = context.asked(name, node=request.node)
    if asked is None:
        raise UnknownRun(f"no run {name!r} is registered", hint="'ckptgov run list' shows the runs")
    facts = context.catalog.run_by_name(name)
    assert facts is not None
    now_ns = context.author.clock.now_ns()
    known, places = context.catalog.copies(facts.identity.run_id), context.catalog.places()
    for link in _links(context, request, asked):
        target = _tier_named(context, link.target)
        begun, arriving = _under_way(context, facts.identity, target, asked.looks)
        run, copies = run_to_flush(
            facts.identity.run_id,
            name,
            asked.looks,
            now_ns=now_ns,
            known=known,
            places=places,
            begun=begun,
            arriving=arriving,
            unseen=_unseen(context, facts.identity.run_id, asked.looks),
        )
        wanted = frozenset(
            one.content_id
            for one in run.checkpoints
            if request.step is not None
            and one.step == request.step
            and run.lines.includes(one.line, request.step)
        )
        if request.step is not None:
            link = Link(source=link.source, target=link.target)
        yield RunOverLink(
            identity=facts.identity,
            asked=asked,
            target=target,
            link=link,
            plan=plan_flush([run], link, asked=wanted),
            copies=dict(copies),
        )


def _links(context: Context, request: FlushRequest, asked: Asked) -> list[Link]:
    """The run's links, or the one a person means: to a tier, from where the run lies."""
    told = links_of(context, asked.run or "")
    links = [one for one in told if request.target in (None, one.target)]
    if links:
        here = {look.place.tier for look in asked.looks}
        if request.sources is not None:
            here &= request.sources
        return [one for one in links if one.source in here]
    if request.target is None:
        if request.run is None:
            return []
        raise UsageError(
            "nothing says where to: no link is configured",
            hint="name a tier with --to, or 'ckptgov tier link FROM TO'",
        )
    sources = [look.place for look in asked.looks if look.place.tier != request.target]
    if not sources:
        raise NoneRestorable(f"{asked.run}: lies on no tier but {request.target}")
    by_node = sorted(dict.fromkeys(one.tier for one in sources), key=lambda tier: tier)
    nodes = {one.tier for one in sources if one.node is not None}
    return [
        Link(source=tier, target=request.target, every=1)
        for tier in sorted(by_node, key=lambda tier: tier not in nodes)
    ]


def _tier_named(context: Context, name: str) -> TierSettings:
    for tier in context.settings.tiers:
        if tier.name == name:
            return tier
    raise UsageError(f"no tier {name!r}", hint="'ckptgov tier list' shows the tiers")


def _under_way(
    context: Context, identity: RunIdentity, target: TierSettings, looks: Sequence[RunLook]
) -> tuple[frozenset[str], frozenset[str]]:
    """Content ids staged at the target, and those that a living mover delivers there."""
    place = context.place(target)
    run_id = identity.run_id
    known = [one.content_id for one in context.catalog.checkpoints(run_id)]
    leased = arriving(context, known, place.uuid or "")
    begun: frozenset[str] = frozenset()
    if place.storage.traits.has_directories:  # elsewhere nothing is staged
        for root in _roots_at(context, identity, place, looks):
            sidecar = store_at(place.storage, root).sidecar
            begun |= contents_in(place.storage, sidecar, STAGING)
    return begun, leased


def _unseen(context: Context, run_id: str, looks: Sequence[RunLook]) -> frozenset[str]:
    """Tiers of which a place of the run could not be looked at: a node that is off, mostly.

    An agent sees no disk but its own node's, and knows of no other.
    """
    seen = {look.place.uuid for look in looks}
    away = {root.place for root in context.catalog.roots_of(run_id)} - seen
    unseen = {one.tier for one in context.catalog.places() if one.place in away}
    if context.here is not None:
        unseen |= {one.name for one in context.settings.tiers if one.node is not None}
    return frozenset(unseen)


def _roots_at(
    context: Context, identity: RunIdentity, place: Place, looks: Sequence[RunLook]
) -> list[str]:
    here = [look.run_root for look in looks if look.place.uuid == place.uuid]
    return here or [run_root_at(place.storage, identity)]


def _flush_one(
    context: Context, item: FlushItem, each: RunOverLink, stop: Stop
) -> FlushedCheckpoint:
    started = context.author.clock.monotonic()
    place = context.place(each.target)
    faults: list[SourceFault] = []
    try:
        with copy_lease(context, item.checkpoint.content_id, place.uuid or "") as lease:
            landed = _deliver(context, item, each, place, lease, stop, faults)
    except (CkptgovError, OSError) as error:
        told = error if isinstance(error, CkptgovError) else _in_the_way(error)
        failed = _named(told, each.target)
        state = FlushState.INTERRUPTED if isinstance(error, Interrupted) else FlushState.FAILED
        found = _set_aside(context, item, each, faults)
        return _outcome(item, each, state=state, error=failed, faults=found)
    return _outcome(
        item,
        each,
        state=_state_of(landed),
        landed=landed,
        faults=_set_aside(context, item, each, faults),
        took_s=context.author.clock.monotonic() - started,
    )


def _in_the_way(error: OSError) -> StorageError:
    """A file lies where a directory of ours should be, or the other way round."""
    failed = StorageError(str(error), hint="move away what lies there")
    failed.__cause__ = error
    return failed


def _set_aside(
    context: Context, item: FlushItem, each: RunOverLink, faults: Sequence[SourceFault]
) -> list[Finding]:
    """Compare what gave wrong bytes once more: a copy that is corrupt is not offered again."""
    for at in each.copies[item.checkpoint.content_id]:
        readable = at.readable if faults else []
        own = [
            one
            for one in faults
            if one.place == (at.place.uuid or at.place.root)
            and (one.shard, one.finding.path) in readable
        ]
        if not own:
            continue
        try:
            confirmed = quarantine(at, own, at.place.storage, context.author.clock)
            note = confirmed.note
            if confirmed.corrupt:
                at.look.refresh()
                at_ns = context.author.clock.now_ns()
                run_id = each.identity.run_id
                record_look(context.catalog, at.look, run_id, at_ns=at_ns, sightings=None)
        except CkptgovError as error:
            note = error.message
        if note:
            context.talk(f"{at.place.root}: could not be quarantined: {note}")
    return [one.finding for one in faults]


def _deliver(
    context: Context,
    item: FlushItem,
    each: RunOverLink,
    place: Place,
    lease: CopyLease,
    stop: Stop,
    faults: list[SourceFault],
) -> Landed:
    copies = _sources_first(each.copies[item.checkpoint.content_id], item.link, place)
    manifest = copies[0].manifest
    identity = each.identity
    run_root = _roots_at(context, identity, place, each.asked.looks)[0]
    _check_room(context, each, place, run_root, manifest)
    context.rely_on_abilities(place)
    store = open_store(place, run_root, identity, layout=manifest.layout)
    may_stop = _either(stop, lease.is_lost)

    with moving(
        context,
        what=f"{each.identity.name} {manifest.name}",
        flow_class=item.flow_class,
        bytes_=manifest.bytes,
        order=item.order,
        target=place,
    ) as movement:
        landing = Landing(
            manifest=manifest,
            form=form_of(manifest, copies[0].base, copies[0].look.run_root),
            sources=sources_of(copies, opened=movement.reading),
            target=movement.writing(place),
            run_root=run_root,
            sidecar=store.sidecar,
            proof=proof_of(context, each.target, place),
            copying=CopySettings(
                threads=context.settings.digest_threads,
                progress=context.progress,
                stop=may_stop,
            ),
            on_fault=faults.append,
        )
        landed = land(landing)
    if stop() and not landed.is_whole:
        raise Interrupted(f"{manifest.name}: stopped on its way to {each.target.name}")
    if lease.is_lost():
        raise LeaseLost(
            f"{manifest.name}: another process took over its delivery to {each.target.name}",
            hint="nothing is lost: what arrived is used by whoever finishes it",
        )
    if landed.is_whole:
        _publish(context, each, place, run_root, landing, landed)
    return landed


def _check_room(
    context: Context, each: RunOverLink, place: Place, run_root: str, manifest: Manifest
) -> None:
    """Before the first byte; what an earlier try left there need not fit again."""
    tier = each.target
    sidecar = store_at(place.storage, run_root).sidecar
    staged = below(place.storage, directory_of(sidecar, STAGING, manifest.content_id)).bytes
    reserved = sum(
        max(0, one.request.bytes - one.moved_bytes)
        for one in context.desk.facts()
        if one.request.target == tier.name and one.state is not FlowState.SILENT
    )
    needed, run = manifest.bytes - staged, each.identity.name
    room, debris = room_at(context, tier, needed, reserved_bytes=reserved, run=run)
    if not room.fits:
        raise refusal(tier.name, room, debris)


def _publish(
    context: Context,
    each: RunOverLink,
    place: Place,
    run_root: str,
    landing: Landing,
    landed: Landed,
) -> None:
    """Journal, then manifest and receipt, then the catalog."""
    publish(
        landing,
        landed,
        place=place,
        identity=each.identity,
        looks=each.asked.looks,
        with_journal=context.may_hold_journal(place),
        clock=context.author.clock,
    )
    look = context.look(place, run_root, partial=place.node is not None, run=each.identity.name)
    at_ns = context.author.clock.now_ns()
    record_run(context.catalog, look, each.identity, at_ns)
    record_look(context.catalog, look, each.identity.run_id, at_ns=at_ns, sightings=None)
    if landed.tokens and not _is_seen(look, landing.manifest.content_id):
        raise StorageError(
            f"{place.root}/{run_root}: {landed.name} does not stand as it was compared",
            hint="'ckptgov explain' says what is wrong; what is still there is used",
        )


def _is_seen(look: RunLook, content_id: str) -> bool:
    """Whether whoever looks at the target finds all of it: only then it counts as flushed.

    Times are left aside: some network mounts tell others once the file has settled.
    """
    copies = [copy for one in look.stored if (copy := look.sealed(one)) is not None]
    return any(
        copy.manifest.content_id == content_id and len(copy.proof.held) == len(copy.manifest.shards)
        for copy in copies
    )


def _sources_first(copies: Sequence[CopyAt], link: Link, target: Place) -> list[CopyAt]:
    """Copies at the link's source first, then any other; never the target itself."""
    others = [one for one in copies if one.place.uuid != target.uuid]
    return sorted(others, key=lambda one: one.place.tier != link.source)


def proof_of(context: Context, tier: TierSettings, place: Place) -> Proof:
    """How arrivals are proven: as configured, else the cheapest that proves anything."""
    if tier.proof is not None:
        return tier.proof
    return Proof.ARRIVAL_CHECKSUM if context.checks_arrivals(place) else Proof.READBACK


def _either(first: Stop, second: Stop) -> Stop:
    return lambda: first() or second()


def _state_of(landed: Landed) -> FlushState:
    if not landed.is_whole:
        return FlushState.PARTIAL
    if not landed.tokens:
        return FlushState.UNPROVEN
    return FlushState.STOOD if landed.stood_already else FlushState.FLUSHED


def _named(error: CkptgovError, target: TierSettings) -> CkptgovError:
    """The error with the tier in it; no room is an answer of its own."""
    import errno

    code = getattr(error.__cause__, "errno", None)
    if isinstance(error, StorageError) and code in (errno.ENOSPC, errno.EDQUOT):
        full = OverCapacity(f"tier {target.name}: {error.message}", hint=error.hint)
        full.__cause__ = error
        return full
    if isinstance(error, CopyFailed) or f"tier {target.name}" in error.message:
        return error
    error.message = f"to tier {target.name}: {error.message}"
    return error


def _outcome(
    item: FlushItem,
    each: RunOverLink,
    *,
    state: FlushState,
    landed: Landed | None = None,
    error: CkptgovError | None = None,
    faults: Sequence[Finding] = (),
    took_s: float = 0.0,
) -> FlushedCheckpoint:
    one = item.checkpoint
    told = FlushedCheckpoint(
        run=each.identity.name,
        name=one.name,
        step=one.step,
        step_kind=one.step_kind,
        content_id=one.content_id,
        source=item.link.source,
        target=each.target.name,
        bytes=one.bytes,
        state=state,
        reasons=tuple(why.value for why in item.whys),
        took_s=took_s,
        faults=tuple(faults),
        error=error,
    )
    if landed is None:
        return told
    return replace(
        told,
        name=landed.name,
        sent_bytes=landed.sent_bytes,
        resumed_bytes=landed.resumed_bytes,
        missing=landed.missing,
    )


def _skip(one: Skip, target: TierSettings) -> FlushSkip:
    return FlushSkip(
        run=one.run,
        name=one.checkpoint.name,
        step=one.checkpoint.step,
        step_kind=one.checkpoint.step_kind,
        target=target.name,
        why_not=one.why_not.value,
        text=one.text,
    )


def _error_of(
    request: FlushRequest,
    done: Sequence[FlushedCheckpoint],
    skips: Sequence[FlushSkip],
    refused: Sequence[CkptgovError],
) -> CkptgovError | None:
    if any(one.state is FlushState.INTERRUPTED for one in done):
        return Interrupted("stopped before everything was flushed")
    failed = [one for one in done if one.error is not None]
    partial = [one for one in done if one.state is FlushState.PARTIAL]
    errors = [*refused, *(one.error for one in failed if one.error is not None)]
    if request.step is not None and not done:
        return _nothing_of_step(request.step, skips)
    if not errors and not partial:
        return None
    if len(errors) == 1 and len(done) + len(refused) == 1:
        return errors[0]
    if errors:
        return PartlyDone(
            f"{len(errors)} of {len(done) + len(refused)} could not be flushed; "
            f"first: {errors[0].message}",
            hint=errors[0].hint,
        )
    first = partial[0]
    return PartlyDone(
        f"{first.name}: {len(first.missing)} shards are still missing at {first.target}",
        hint="the nodes that hold them have to flush them",
    )


def _nothing_of_step(step: int, skips: Sequence[FlushSkip]) -> CkptgovError | None:
    """One step was asked for: that it is there already is fine, all else is told."""
    own = [one for one in skips if one.step == step]
    if any(one.why_not == "already-there" for one in own):
        return None
    why = f": {own[0].text}" if own else ""
    return NoneRestorable(f"nothing of step {step} can be flushed{why}")


def run_named(context: Context, target: str) -> str:
    """The run a person named, by its name or by a directory or URL of it.

    Raises:
        UnknownRun: it is not registered.
    """
    if context.catalog.run_by_name(target) is not None:
        return target
    from ckptgov.work.locate import locate

    location = locate(normal_path(target))
    context.stack.callback(location.place.storage.close)
    run = None
    if location.place.uuid is not None:
        run = context.catalog.run_at(location.place.uuid, location.one_run_root())
    if run is None:
        raise UnknownRun(
            f"{target}: no registered run lies there", hint="'ckptgov scan DIR' registers it"
        )
    return run.identity.name
