"""Copies and sealed checkpoints as a node's posts tell them, taken over along allowed edges.

What the service decided stands: a copy that it began to remove is not brought back by what a node
says of it, which may have been long on its way. Only what was compared after the copy went counts:
the same bytes were brought there anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ckptgov.catalog.catalog import Catalog
from ckptgov.catalog.facts import PlacedCopy, SealedFacts
from ckptgov.errors import Malformed
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.manifest.names import check_path, is_content_id
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.copies import BEGUN, GONE, REMOVED, TRANSITIONS, CopyState
from ckptgov.model.retention import Removal
from ckptgov.ops.record import sealed_facts
from ckptgov.ops.standing_run import decoded
from ckptgov.wire.facts import Post, PostedCopy, PostedGoing, PostedSealed, unpacked
from ckptgov.work.leaving import standing_tombstones

_COMPARED = frozenset({CopyState.VERIFIED, CopyState.CORRUPT})


def apply_copies(catalog: Catalog, post: Post, at_ns: int) -> tuple[str, ...]:
    """Copies and what is sealed; the content ids whose manifests are lacking."""
    assert post.run is not None
    run_id = post.run.run_id
    for one in post.sealed:
        catalog.put_sealed(*_sealed_facts(run_id, one))
    ids = [one.content_id for one in post.copies]
    sealed = catalog.sealed_of(run_id, ids)
    here = _known_here(catalog, post, run_id, ids)
    wanted = []
    for copy in post.copies:
        if copy.content_id not in sealed:
            wanted.append(copy.content_id)
            continue
        _check_coverage(copy, sealed[copy.content_id].shard_count)
        held = here.get(copy.content_id)
        if post.place.node is not None:
            _take_over(catalog, run_id, post.place.place, copy, held, at_ns)
        elif _is_newer(placed := _placed(run_id, post.place.place, copy), held):
            put_copy(catalog, placed, held, at_ns)
    if post.covers is not None and post.place.node is not None:
        _lose_untold(catalog, post, here, at_ns)
    return tuple(wanted)


def check_copy(copy: PostedCopy) -> None:
    """See that others can build paths from what a node says of a copy, and rely on its verdict.

    Raises:
        Malformed: a name or id that is none, or verified without a digest and its time.
    """
    check_path(copy.name, "post")
    if not is_content_id(copy.content_id):
        raise Malformed(f"post: {copy.content_id!r} is no content id")
    if copy.going is not None and copy.going.trash:
        check_path(copy.going.trash, "post")
    if copy.state is CopyState.VERIFIED and (
        copy.evidence is not Evidence.DIGEST or copy.verified_at_ns is None
    ):
        raise Malformed(f"post: {copy.content_id} verified without a digest and its time")


def take_over(catalog: Catalog, run_id: str, place: str, copy: PostedCopy, at_ns: int) -> None:
    """What a node says of one copy on its own disk; of a checkpoint that is known here.

    Raises:
        Malformed: as ``check_copy``, or its coverage is of another number of shards.
    """
    check_copy(copy)
    sealed = catalog.sealed_of(run_id, [copy.content_id]).get(copy.content_id)
    if sealed is None:
        return
    _check_coverage(copy, sealed.shard_count)
    found = catalog.copies_of(run_id, [copy.content_id])[copy.content_id]
    held = next((one for one in found if one.place == place), None)
    _take_over(catalog, run_id, place, copy, held, at_ns)


def _take_over(
    catalog: Catalog,
    run_id: str,
    place: str,
    copy: PostedCopy,
    held: PlacedCopy | None,
    at_ns: int,
) -> None:
    placed = _placed(run_id, place, copy)
    if copy.state in REMOVED:
        _went(catalog, placed, copy, held, at_ns)
    elif held is not None and held.state is CopyState.PURGED:
        if _is_after_it_went(catalog, placed, held):
            _change(catalog, placed, held.state, at_ns)
    else:
        put_copy(catalog, placed, held, at_ns)


def _went(
    catalog: Catalog,
    placed: PlacedCopy,
    copy: PostedCopy,
    held: PlacedCopy | None,
    at_ns: int,
) -> None:
    """What went there by a decision that this catalog has lost, or that was none of its own.

    Where it was decided here, what came of it is told as the outcome of its task.
    """
    if copy.state is CopyState.CONDEMNED or (held is not None and held.state in BEGUN):
        return
    if held is not None and held.state not in GONE:
        put_copy(catalog, _lost(held), held, at_ns)
        held = next(
            one
            for one in catalog.copies_of(held.run_id, [held.content_id])[held.content_id]
            if one.place == held.place
        )
    if copy.going is not None and copy.state in BEGUN and (held is None or held.state in GONE):
        catalog.removals.adopt(_removal(placed, copy.going))


def _removal(placed: PlacedCopy, going: PostedGoing) -> Removal:
    return Removal(
        run_id=placed.run_id,
        content_id=placed.content_id,
        place=placed.place,
        name=placed.name,
        action=going.action,
        plan_id=going.plan_id,
        state=placed.state,
        condemned_at_ns=going.condemned_at_ns,
        due_at_ns=going.due_at_ns,
        trash_s=going.trash_s,
        bytes=going.bytes,
        files=going.files,
        trash=going.trash,
    )


def _is_after_it_went(catalog: Catalog, copy: PlacedCopy, held: PlacedCopy) -> bool:
    """Whether a copy was compared after the one that was removed there had gone.

    By the node's own clock: both times are its.
    """
    if copy.state is not CopyState.VERIFIED or copy.verified_at_ns is None:
        return False
    records = decoded(catalog.binding_records(copy.run_id))
    tombstone = standing_tombstones(records, copy.place).get(copy.content_id)
    went_at_ns = held.verified_at_ns or 0 if tombstone is None else tombstone.stamp.at_ns
    return copy.verified_at_ns > went_at_ns


def _known_here(
    catalog: Catalog, post: Post, run_id: str, ids: Sequence[str]
) -> dict[str, PlacedCopy]:
    """Copies at the post's place: those it tells of, or all where it says which are all."""
    if post.covers is None:
        known = [one for those in catalog.copies_of(run_id, ids).values() for one in those]
    else:
        known = list(catalog.copies(run_id))
    return {one.content_id: one for one in known if one.place == post.place.place}


def _sealed_facts(run_id: str, one: PostedSealed) -> tuple[SealedFacts, bytes]:
    raw = unpacked(one.manifest)
    manifest = decode_manifest(raw, where=f"posted manifest of {one.content_id}")
    if manifest.content_id != one.content_id:
        raise Malformed(f"post: the manifest of {one.content_id} is of {manifest.content_id}")
    facts = sealed_facts(
        run_id,
        manifest,
        line=one.line,
        attempt=one.attempt,
        sealed_at_ns=one.sealed_at_ns,
    )
    return facts, raw


def _check_coverage(copy: PostedCopy, shards: int) -> None:
    if copy.coverage is None:
        return
    bits = int.from_bytes(copy.coverage, "little")
    if len(copy.coverage) != (shards + 7) // 8 or bits >> shards:
        raise Malformed(f"post: the coverage of {copy.content_id} is not of {shards} shards")


def _placed(run_id: str, place: str, copy: PostedCopy) -> PlacedCopy:
    return PlacedCopy(
        run_id=run_id,
        content_id=copy.content_id,
        place=place,
        name=copy.name,
        state=copy.state,
        coverage=copy.coverage,
        evidence=copy.evidence,
        verified_at_ns=copy.verified_at_ns,
        findings=copy.findings,
    )


def _is_newer(copy: PlacedCopy, held: PlacedCopy | None) -> bool:
    """Of a shared place everybody has a view; only a verdict by digest later than ours counts.

    A copy that changed here since it was compared is compared again here: a verdict that was long
    on its way may be older than the change.
    """
    if copy.state not in _COMPARED or copy.verified_at_ns is None:
        return False
    if copy.state is CopyState.VERIFIED and held is not None and held.state is CopyState.REOPENED:
        return False
    return held is None or (held.verified_at_ns or 0) < copy.verified_at_ns


def _lose_untold(catalog: Catalog, post: Post, here: Mapping[str, PlacedCopy], at_ns: int) -> None:
    assert post.covers is not None
    above, until = post.covers
    told = {one.content_id for one in post.copies}
    for content_id, held in here.items():
        is_covered = content_id > above and (until is None or content_id <= until)
        # A copy that was merged here and not published there yet is not known there.
        if is_covered and content_id not in told and held.state is not CopyState.SIGHTED:
            put_copy(catalog, _lost(held), held, at_ns)


def _lost(held: PlacedCopy) -> PlacedCopy:
    return PlacedCopy(
        run_id=held.run_id,
        content_id=held.content_id,
        place=held.place,
        name=held.name,
        state=CopyState.LOST,
    )


def put_copy(catalog: Catalog, copy: PlacedCopy, held: PlacedCopy | None, at_ns: int) -> None:
    """Bring a copy to what was told of it, along allowed edges; what was decided here stands,
    unless it got lost before anything was done."""
    if held is None:
        catalog.put_copy(copy, at_ns)
        return
    is_lost = (held.state, copy.state) == (CopyState.CONDEMNED, CopyState.LOST)
    if (held.state in REMOVED and not is_lost) or held == copy:
        return
    if copy.state is held.state:
        if copy.verified_at_ns is None:
            return
        catalog.confirm(
            copy.run_id,
            copy.content_id,
            copy.place,
            expected=held.state,
            at_ns=copy.verified_at_ns,
            evidence=copy.evidence,
            findings=copy.findings,
            coverage=copy.coverage,
        )
        return
    _change(catalog, copy, held.state, at_ns)


def _change(catalog: Catalog, copy: PlacedCopy, start: CopyState, at_ns: int) -> None:
    evidence = copy.evidence if copy.verified_at_ns is not None else None
    for before, after in pairwise(_way(start, copy.state)):
        is_last = after is copy.state
        catalog.transition(
            copy.run_id,
            copy.content_id,
            copy.place,
            expected=before,
            to=after,
            at_ns=at_ns,
            evidence=evidence if is_last else None,
            verified_at_ns=copy.verified_at_ns if is_last else None,
            findings=copy.findings if is_last else None,
            coverage=copy.coverage,
            name=copy.name,
        )


def _way(start: CopyState, end: CopyState) -> tuple[CopyState, ...]:
    """The shortest way from a state to another that offers nothing on it; empty: there is none."""
    ways: list[tuple[CopyState, ...]] = [(start,)]
    for way in ways:
        for after in TRANSITIONS[way[-1]]:
            if after is end:
                return (*way, after)
            if after not in way and after not in REMOVED and after is not CopyState.VERIFIED:
                ways.append((*way, after))
    return ()
