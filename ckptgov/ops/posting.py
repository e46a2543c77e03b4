"""Take over what an agent tells of its node, guarded: the service's side of a post.

Promises: all of a post or nothing of what belongs together is taken over, in one transaction; the
same post again, or an older one, changes nothing; states of copies change along allowed edges
only; a node speaks for its own places, and of shared ones only says what it compared itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import (
    PlaceFacts,
    RecordFacts,
    RunRootFacts,
)
from ckptgov.catalog.samples import TierSample
from ckptgov.errors import CkptgovError, Malformed, NotAllowed, UsageError
from ckptgov.manifest.forms.records import decode_record
from ckptgov.manifest.names import check_path
from ckptgov.model.checkpoint import RunIdentity
from ckptgov.model.cluster import NodeState, PartFacts
from ckptgov.model.facts import Found, ResumeArgs, SeenShard, Sighting
from ckptgov.model.journal import KIND_OF, Record, Restart
from ckptgov.ops.posting_copies import apply_copies, check_copy
from ckptgov.ops.runs import check_run_name
from ckptgov.wire.facts import (
    Post,
    PostAnswer,
    PostedPlace,
    PostedRecord,
    PostedSighting,
    PostedSpace,
    Refusal,
    RunClaim,
    RunClaimAnswer,
    journal_digest,
)
from ckptgov.work.author import Author

LEDGER = ".ckptgov/posted/"
"""Before a node's name: where the number of its last post is kept, among the parts of the run.

No checkpoint lies in our own directory, so no part of a save has such a name.
"""

MAX_RECORDS = 2000
"""So many records go with one answer."""


def apply_post(catalog: Catalog, post: Post, *, node: str, at_ns: int) -> PostAnswer:
    """Take over what ``node`` posts; what the node lacks is in the answer.

    Raises:
        NotAllowed: it speaks for another node, or of another node's place.
        Malformed: a member contradicts itself; nothing was taken over.
    """
    if post.node != node:
        raise NotAllowed(f"node {node} posts for node {post.node}")
    _check_names(post)
    with catalog.transaction():
        _check_place(catalog, post.place, node)
        is_known = True
        if post.place.node is not None and post.place.is_current:
            catalog.put_place(_place_facts(post.place))
            if post.space is not None:
                catalog.samples.add(_sample(post.place.place, post.space, catalog.now_ns()))
        elif post.place.node is not None:  # a disk that is gone: only its copies' end counts
            is_known = any(one.place == post.place.place for one in catalog.places())
        told = PostAnswer()
        if post.run is not None and is_known:
            told = _apply_run(catalog, post, at_ns)
        known = catalog.nodes.node(node)
        return replace(told, node_state=known.state if known is not None else NodeState.ACTIVE)


def identify_run(catalog: Catalog, claim: RunClaim, *, node: str, author: Author) -> RunClaimAnswer:
    """The identity of a run root that bears none: of the same run elsewhere, or a new one.

    One path on the disks of several nodes of one tier is one run; so is a run's own name.

    Raises:
        NotAllowed: it speaks for another node, or of another node's place.
    """
    if claim.node != node or claim.place.node != node:
        raise NotAllowed(f"node {node} claims a run at a place of another")
    if claim.path:
        check_path(claim.path, "claim")
    with catalog.transaction():
        _check_place(catalog, claim.place, node)
        catalog.put_place(_place_facts(claim.place))
        try:
            identity = _identity_for(catalog, claim, author)
            catalog.put_run(identity, author.clock.now_ns())
        except UsageError as error:
            return RunClaimAnswer(refusal=_refusal(error))
    return RunClaimAnswer(run=identity)


def _identity_for(catalog: Catalog, claim: RunClaim, author: Author) -> RunIdentity:
    here = catalog.run_at(claim.place.place, claim.path)
    if here is not None:
        return here.identity
    for place in catalog.places():
        if place.tier == claim.place.tier and place.node is not None:
            sibling = catalog.run_at(place.place, claim.path)
            if sibling is not None:
                return sibling.identity
    named = catalog.run_by_name(claim.path)
    if named is not None:
        return named.identity
    if catalog.run_by_name(claim.name) is not None:
        raise UsageError(
            f"{claim.path}: the name {claim.name!r} is taken by another run",
            hint="scan it once by hand under a name of its own: 'ckptgov scan DIR --run OTHER'",
        )
    return RunIdentity(run_id=author.new_id(), name=check_run_name(claim.name))


def _check_names(post: Post) -> None:
    """Paths and ids that others build paths from are of the forms, whatever a node says."""
    if (post.run is None) is not (post.root is None):
        raise Malformed("post: a run without its root, or a root without its run")
    if post.root is not None:
        for path in filter(None, (post.root.path, post.root.sidecar)):
            check_path(path, "post")
    for copy in post.copies:
        check_copy(copy)
    for one in post.sightings or ():
        check_path(one.name, "post")


def _check_place(catalog: Catalog, place: PostedPlace, node: str) -> None:
    if place.node not in (None, node):
        raise NotAllowed(f"node {node} speaks of a place of node {place.node}")
    known = next((one for one in catalog.places() if one.place == place.place), None)
    if known is None and place.node is None:
        raise NotAllowed(f"node {node} speaks of a shared place that is not known: {place.place}")
    if known is not None and known.node != place.node:
        whose = f"of node {known.node}" if known.node is not None else "shared"
        raise NotAllowed(f"place {place.place} is {whose}, not of node {place.node}")


def _apply_run(catalog: Catalog, post: Post, at_ns: int) -> PostAnswer:
    assert post.run is not None
    assert post.root is not None
    run_id, place = post.run.run_id, post.place.place
    standing = _standing(catalog, run_id, place, post.node)
    is_known = any(one.place == place for one in catalog.roots_of(run_id))
    begins = post.covers is not None and post.covers[0] == ""
    follows = post.after == standing and is_known
    if post.number <= standing or not (begins or follows):
        return PostAnswer(is_applied=False, standing=standing, wants_whole=True)
    root = RunRootFacts(run_id=run_id, place=place, path=post.root.path, sidecar=post.root.sidecar)
    try:
        with catalog.transaction():
            catalog.put_run(post.run, at_ns)
            catalog.put_run_root(root)
    except UsageError as error:
        return PostAnswer(is_applied=False, standing=standing, refusals=(_refusal(error),))
    wanted = apply_copies(catalog, post, at_ns)
    if post.sightings is not None and post.place.node is not None:
        seen = [_sighting(one) for one in post.sightings]
        catalog.put_sightings(run_id, place, seen, at_ns)
    refusals = apply_records(catalog, run_id, post.records)
    catalog.put_part(
        PartFacts(
            run_id=run_id,
            name=LEDGER + post.node,
            place=place,
            told=str(post.number).encode(),
            posted_at_ns=at_ns,
        )
    )
    journal = _journal(catalog, run_id, post)
    return PostAnswer(
        standing=post.number,
        wanted=wanted,
        refusals=refusals,
        journal_differs=journal.journal_differs,
        records=journal.records,
        wanted_records=journal.wanted_records,
    )


def _standing(catalog: Catalog, run_id: str, place: str, node: str) -> int:
    for one in catalog.parts(run_id, LEDGER + node):
        if one.place == place:
            return int(one.told)
    return 0


def _sighting(one: PostedSighting) -> Sighting:
    """As much of a sighting as the catalog keeps."""
    found = Found(
        name=one.name,
        layout=one.layout,
        step=one.step,
        step_kind=one.step_kind,
        variant=one.variant,
    )
    return Sighting(
        found=found,
        step=one.step,
        step_kind=one.step_kind,
        shards=(SeenShard(one.name, one.bytes),),
        expected=(),
        findings=one.findings,
        notes=one.notes,
        resume=ResumeArgs(path=one.name, parent="", step=one.step, tag=one.name),
        newest_mtime_ns=one.newest_mtime_ns,
    )


def apply_records(
    catalog: Catalog, run_id: str, records: tuple[PostedRecord, ...]
) -> tuple[Refusal, ...]:
    """Take over records of a run's journal; what of them is not taken over, and why."""
    refusals = []
    for one in records:
        try:
            record = decoded_record(one, run_id)
            if isinstance(record, Restart):
                _check_decision(catalog, run_id, record)
        except CkptgovError as error:
            refusals.append(_refusal(error))
            continue
        catalog.put_records([_record_facts(run_id, one, record)])
    return tuple(refusals)


def _check_decision(catalog: Catalog, run_id: str, told: Restart) -> None:
    """A node passes on how a restart was decided; it decides none, and none differently.

    Where the run has a shared place, that one's journal tells, and is read there.

    Raises:
        NotAllowed: the catalog knows no such decision of a run with a shared place, or another.
    """
    places = {one.place: one.node for one in catalog.places()}
    standing = catalog.decision(run_id, told.restart_id, told.epoch)
    if any(one.record_id == told.stamp.id for one in catalog.binding_records(run_id)):
        return
    if standing is None:
        if all(places.get(one.place) is not None for one in catalog.roots_of(run_id)):
            return
    elif (standing.content_id, standing.fresh) == (told.content_id, told.fresh):
        return
    raise NotAllowed(
        f"restart {told.restart_id!r} epoch {told.epoch} was not decided so, or not yet"
    )


def decoded_record(one: PostedRecord, run_id: str) -> Record:
    """The record in a message, of this run.

    Raises:
        Malformed: it does not decode, or is not what it is said to be.
    """
    record = decode_record(one.raw, where=f"posted record {one.record_id}")
    stamp = record.stamp
    if (stamp.id, stamp.run_id) != (one.record_id, run_id) or KIND_OF[type(record)] != one.kind:
        raise Malformed(f"posted record {one.record_id}: is of another run, id or kind")
    return record


def _record_facts(run_id: str, one: PostedRecord, record: Record) -> RecordFacts:
    return RecordFacts(
        run_id=run_id,
        record_id=one.record_id,
        number=max(0, one.number),
        kind=one.kind,
        at_ns=record.stamp.at_ns,
        raw=one.raw,
    )


def _journal(catalog: Catalog, run_id: str, post: Post) -> PostAnswer:
    """Which records one side has and the other has not."""
    own = {one.record_id: one for one in catalog.records(run_id)}
    if journal_digest(own) == post.journal:
        return PostAnswer()
    if post.known_records is None:
        return PostAnswer(journal_differs=True)
    known = set(post.known_records)
    lacking = [one for one in own.values() if one.record_id not in known][:MAX_RECORDS]
    return PostAnswer(
        records=tuple(posted_record(one) for one in lacking),
        wanted_records=tuple(sorted(known - own.keys())),
    )


def posted_record(one: RecordFacts) -> PostedRecord:
    """A record of the catalog for a message."""
    return PostedRecord(record_id=one.record_id, number=one.number, kind=one.kind, raw=one.raw)


def _place_facts(place: PostedPlace) -> PlaceFacts:
    return PlaceFacts(
        place=place.place,
        tier=place.tier,
        node=place.node,
        root=place.root,
        fs_type=place.fs_type,
        source=place.source,
        first_seen_at_ns=place.first_seen_at_ns,
    )


def _sample(place: str, space: PostedSpace, at_ns: int) -> TierSample:
    return TierSample(
        place=place,
        at_ns=at_ns,
        used_bytes=space.used_bytes,
        free_bytes=space.free_bytes,
        total_bytes=space.total_bytes,
        files=space.files,
        free_files=space.free_files,
        quota_bytes=space.quota_bytes,
    )


def _refusal(error: CkptgovError) -> Refusal:
    return Refusal(kind=error.kind, message=error.message)
