"""From looks at a run's places to what flush planning wants to know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from ckptgov.catalog.facts import PlacedCopy, PlaceFacts
from ckptgov.model.checkpoint import Evidence, digits_of
from ckptgov.model.copies import LEAVING, REMOVED, CopyState
from ckptgov.model.journal import NumberedRecord, Outcome, Sealed, Tombstone, Undelete
from ckptgov.ops.record import coverage_of, state_of
from ckptgov.planning.choose import is_cleared, reported_unloadable
from ckptgov.planning.flushable import FlushCheckpoint, FlushCopy, RunToFlush, standing_pins
from ckptgov.planning.lines import is_marked_bad
from ckptgov.work.answer import share_journal
from ckptgov.work.leaving import standing_tombstones
from ckptgov.work.look import RunLook
from ckptgov.work.sources import CopyAt, copies_of


def run_to_flush(
    run_id: str,
    name: str,
    looks: Sequence[RunLook],
    *,
    now_ns: int,
    known: Iterable[PlacedCopy],
    places: Iterable[PlaceFacts],
    begun: frozenset[str] = frozenset(),
    arriving: frozenset[str] = frozenset(),
    unseen: frozenset[str] = frozenset(),
) -> tuple[RunToFlush, Mapping[str, Sequence[CopyAt]]]:
    """The run as planning sees it, and its copies by content id.

    ``known`` are the run's copies by the catalog: what was decided of them, no look tells.
    ``begun`` and ``arriving`` are content ids of which staging stands at the target, and which a
    living mover delivers; ``unseen`` are tiers of which a place was not looked at.
    """
    records = share_journal(looks)
    removed = _removed(known, places, records, looks)
    copies = copies_of(looks)
    pins = standing_pins(records, now_ns=now_ns)
    unloadable = reported_unloadable(records)
    sealed = {
        item.record.content_id: item.record for item in records if isinstance(item.record, Sealed)
    }
    lines = looks[0].lines
    checkpoints = []
    for content_id, found in copies.items():
        manifest = found[0].manifest
        record = sealed.get(content_id)
        line = record.line if record is not None else lines.active.number
        mark = is_marked_bad(records, content_id=content_id, step=manifest.step, line=line)
        report = unloadable.get(content_id)
        if mark is None and report is not None and not _is_cleared(report, found):
            mark = f"reported {report.outcome.value}"
        checkpoints.append(
            FlushCheckpoint(
                content_id=content_id,
                name=manifest.name,
                step=manifest.step,
                step_kind=manifest.step_kind,
                line=line,
                attempt=record.attempt if record is not None else 0,
                bytes=manifest.bytes,
                shard_count=len(manifest.shards),
                sealed_at_ns=record.stamp.at_ns if record is not None else now_ns,
                pins=pins.get(content_id, frozenset()),
                mark=mark,
                copies=(
                    *(_copy(one, removed) for one in found),
                    *_taken_away(content_id, removed, but=found),
                ),
                is_begun=content_id in begun,
                is_arriving=content_id in arriving,
            )
        )
    # Lost ones keep their place in the history: what was chosen must not shift when the oldest go.
    checkpoints += [_gone(record, removed) for key, record in sealed.items() if key not in copies]
    run = RunToFlush(
        run_id=run_id, name=name, lines=lines, checkpoints=tuple(checkpoints), unseen=unseen
    )
    return run, copies


class _Removed(Struct, frozen=True, kw_only=True):
    """Copies that were taken away by decision, or are about to be: (content id, place) to state;
    and the places that the catalog knows."""

    states: Mapping[tuple[str, str], CopyState]
    places: Mapping[str, PlaceFacts]


def _removed(
    known: Iterable[PlacedCopy],
    places: Iterable[PlaceFacts],
    records: Iterable[NumberedRecord],
    looks: Sequence[RunLook],
) -> _Removed:
    """By the catalog, which alone knows what is condemned; and by the journal's tombstones, where
    the catalog is another one than that which decided (an agent's, or a rebuilt one)."""
    said = [one for one in records if isinstance(one.record, Tombstone | Undelete)]
    states = {
        (content_id, place): CopyState.PURGED
        for place in {look.place.uuid for look in looks if look.place.uuid is not None}
        for content_id in standing_tombstones(said, place)
    }
    states |= {(one.content_id, one.place): one.state for one in known if one.state in REMOVED}
    return _Removed(states=states, places={one.place: one for one in places})


def _is_cleared(report: Outcome, copies: Iterable[CopyAt]) -> bool:
    proofs = [one.copy.proof for one in copies]
    return any(
        each.evidence is Evidence.DIGEST and is_cleared(report, each.verified_at_ns)
        for each in proofs
    )


def _gone(record: Sealed, removed: _Removed) -> FlushCheckpoint:
    """A checkpoint that was sealed once and lies nowhere any more."""
    return FlushCheckpoint(
        content_id=record.content_id,
        name=digits_of(record.content_id)[:16],
        step=record.step,
        step_kind=record.step_kind,
        line=record.line,
        attempt=record.attempt,
        bytes=0,
        shard_count=0,
        sealed_at_ns=record.stamp.at_ns,
        copies=tuple(_taken_away(record.content_id, removed, but=())),
    )


def _taken_away(
    content_id: str, removed: _Removed, *, but: Sequence[CopyAt]
) -> Iterator[FlushCopy]:
    """Copies of which nothing stands any more; ``but``: those that were seen."""
    seen = {one.place.uuid for one in but}
    for place, facts in removed.places.items():
        state = removed.states.get((content_id, place))
        if state is not None and place not in seen:
            yield FlushCopy(tier=facts.tier, is_shared=facts.node is None, state=state)


def _copy(one: CopyAt, removed: _Removed) -> FlushCopy:
    proof, manifest = one.copy.proof, one.manifest
    state = CopyState.VERIFIED if one.is_held_whole else state_of(proof, manifest, is_gone=False)
    decided = removed.states.get((manifest.content_id, one.place.uuid or ""))
    if decided in LEAVING:  # one that was purged, and stands, was brought there anew
        state = decided
    is_whole = len(proof.sound) == len(manifest.shards)
    if one.look.partial and proof.sound and state is CopyState.VERIFIED:
        coverage = None if is_whole else coverage_of(manifest, proof.sound)
    else:
        coverage = None
    return FlushCopy(
        tier=one.place.tier,
        is_shared=one.place.node is None,
        state=state,
        coverage=coverage,
    )
