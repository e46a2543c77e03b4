"""What really stands: bytes on the disks, compared with what was written, beside the catalog.

Read by other code than what decides removals: files are read whole, and no token is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash
from fault_keeping_world import NEAR, RUN, SHARED, World, files_of

from ckptgov.governor.local import Governor
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.checkpoint import Evidence, Manifest
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import CheckpointFacts, Query
from ckptgov.model.journal import NumberedRecord, RestoreOutcome
from ckptgov.ops.standing_run import decoded
from ckptgov.planning.choose import reported_unloadable
from ckptgov.planning.lines import Lines, is_marked_bad, read_lines
from ckptgov.work import ask
from ckptgov.work.leaving import standing_tombstones
from ckptgov.work.locate import open_place
from ckptgov.work.look import RunLook, look_settings

TIERS = (SHARED, NEAR)
_COUNTED = frozenset({CopyState.VERIFIED, CopyState.CONDEMNED})
Files = Mapping[str, bytes]


class Save(NamedTuple):
    """One checkpoint as its trainer wrote it."""

    content_id: str
    step: int
    line: int
    attempt: int
    files: Files

    @property
    def order(self) -> tuple[int, int, int]:
        return self.step, self.line, self.attempt


class Snapshot(NamedTuple):
    """One moment. ``sealed``: content id to tiers where it lies sealed and whole, whatever the
    catalog says; ``counted``: those of them that it takes for verified, condemned ones too;
    ``offered``: without those. ``eligible``: what ``latest`` may ever offer, oldest first."""

    sealed: Mapping[str, frozenset[str]]
    counted: Mapping[str, frozenset[str]]
    offered: Mapping[str, frozenset[str]]
    eligible: Sequence[Save]
    reachable: frozenset[str]
    states: Mapping[tuple[str, str], CopyState]

    def newest(self, tiers: frozenset[str], *, offered: bool = False) -> Save | None:
        """The newest eligible one that lies whole at one of these tiers."""
        held = self.offered if offered else self.counted
        there = [one for one in self.eligible if held.get(one.content_id, frozenset()) & tiers]
        return there[-1] if there else None


def is_of(files: Files, manifest: Manifest) -> bool:
    """Whether these are the bytes that a manifest describes."""
    return {one.path: (one.bytes, one.digest) for one in manifest.shards} == {
        path: (len(raw), f"xxh3_128:{xxhash.xxh3_128_hexdigest(raw)}")
        for path, raw in files.items()
    }


def manifests_at(world: World, tier: str) -> list[Manifest]:
    """Every manifest that is published at a tier."""
    found = sorted((world.run_root(tier) / ".ckptgov/manifests").glob("*.json"))
    return [decode_manifest(path.read_bytes(), where=str(path)) for path in found]


def sealed_at(world: World, tier: str, saves: Mapping[str, Save]) -> frozenset[str]:
    """Content ids that lie there with their manifest and every byte as it was written."""
    root = world.run_root(tier)
    return frozenset(
        one.content_id
        for one in manifests_at(world, tier)
        if one.content_id in saves
        and any(
            stands(directory, saves[one.content_id].files)
            for directory in (root / one.name, *root.glob(f"attempt-*/{one.name}"))
        )
    )


def stands(directory: Path, files: Files) -> bool:
    """Whether a directory holds these files, with these bytes."""
    try:
        return all((directory / path).read_bytes() == raw for path, raw in files.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def records_of(governor: Governor) -> tuple[NumberedRecord, ...]:
    run = governor.context.catalog.run_by_name(RUN)
    assert run is not None
    return decoded(governor.context.catalog.records(run.identity.run_id))


def snapshot(world: World, governor: Governor, saves: Mapping[str, Save]) -> Snapshot:
    """What stands now, at places within reach and out of it."""
    catalog = governor.context.catalog
    run = catalog.run_by_name(RUN)
    tier_of = {facts.place: tier for tier, facts in world.places.items()}
    copies = catalog.copies(run.identity.run_id) if run is not None else ()
    states = {(one.content_id, tier_of[one.place]): one.state for one in copies}
    sealed: dict[str, set[str]] = {}
    for tier in TIERS:
        for content_id in sealed_at(world, tier, saves):
            sealed.setdefault(content_id, set()).add(tier)

    def among(wanted: frozenset[CopyState]) -> dict[str, frozenset[str]]:
        return {
            key: frozenset(tier for tier in tiers if states.get((key, tier)) in wanted)
            for key, tiers in sealed.items()
        }

    records = records_of(governor) if run is not None else ()
    compared = [
        (one.content_id, one.verified_at_ns or 0)
        for one in copies
        if one.state in _COUNTED and one.content_id in sealed
    ]
    return Snapshot(
        sealed={key: frozenset(tiers) for key, tiers in sealed.items()},
        counted=among(_COUNTED),
        offered=among(frozenset({CopyState.VERIFIED})),
        eligible=sorted(_eligible(saves, records, compared), key=lambda one: one.order),
        reachable=frozenset({SHARED}) if world.is_away else frozenset(TIERS),
        states=states,
    )


def _eligible(
    saves: Mapping[str, Save],
    records: Sequence[NumberedRecord],
    compared: Sequence[tuple[str, int]],
) -> list[Save]:
    """Those that ``latest`` may ever offer. ``compared``: content ids, and when a copy was.

    What was reported corrupt may be offered again once it was compared; what did not load may not.
    """
    lines: Lines = read_lines(records)
    reports = reported_unloadable(records)
    cleared = {
        content_id
        for content_id, at_ns in compared
        if content_id in reports
        and reports[content_id].outcome is RestoreOutcome.CORRUPT
        and at_ns > reports[content_id].stamp.at_ns
    }
    return [
        one
        for one in saves.values()
        if lines.includes(one.line, one.step)
        and one.content_id not in reports.keys() - cleared
        and is_marked_bad(records, content_id=one.content_id, step=one.step, line=one.line) is None
    ]


def require_right_bytes(
    world: World, governor: Governor, saves: Mapping[str, Save], drafts: Sequence[Files]
) -> None:
    """What anybody is offered now, with a catalog or without, is what was written."""
    run = governor.context.catalog.run_by_name(RUN)
    if run is None:
        return
    tier_of = {facts.place: tier for tier, facts in world.places.items()}
    told = governor.listing(RUN, Query())
    for verdict in told.verdicts:
        if verdict.is_restorable:
            _require_a_right_copy(world, verdict.checkpoint, saves, drafts, tier_of)
    states = {
        (one.content_id, tier_of[one.place]): one.state
        for one in governor.context.catalog.copies(run.identity.run_id)
    }
    for tier in TIERS:
        if tier == NEAR and world.is_away:
            continue
        offered, buried = offered_at(world, tier)
        for facts in offered:
            _require_a_right_copy(world, facts, saves, drafts, tier_of)
            state = states.get((facts.content_id or "", tier))
            is_gone = state in (CopyState.TRASHED, CopyState.PURGED)
            is_buried = state is CopyState.TRASHING and facts.content_id in buried
            if facts.evidence is Evidence.DIGEST:
                assert not is_gone, f"{facts.name} at {tier} is {state}, and offered"
                assert not is_buried, f"{facts.name} at {tier} has a tombstone, and is offered"


def offered_at(world: World, tier: str) -> tuple[list[CheckpointFacts], frozenset[str]]:
    """What a look at one place tells without any catalog, whatever the evidence; and content ids
    whose tombstone stands there."""
    place = open_place(str(world.root(tier)), tier=tier)
    settings = look_settings(place, world.clock, clock_margin_s=300.0)
    try:
        with RunLook(place, RUN, settings) as look:
            told = ask.listing(ask.Asked(run=None, looks=(look,)), Query())
            buried = frozenset(standing_tombstones(look.records, place.uuid))
    finally:
        place.storage.close()
    return [one.checkpoint for one in told.verdicts if one.is_restorable], buried


def _require_a_right_copy(
    world: World,
    facts: CheckpointFacts,
    saves: Mapping[str, Save],
    drafts: Sequence[Files],
    tier_of: Mapping[str, str],
) -> None:
    good = [one for one in facts.copies if not one.findings and one.is_reachable]
    assert good, f"{facts.name} is offered from nowhere: {facts}"
    for copy in good:
        directory = world.run_root(tier_of[copy.place]) / (copy.name or facts.name)
        if facts.content_id is None:
            lying = files_of(directory)
            assert any(lying == one for one in drafts), f"{directory} is offered, and half"
        elif facts.content_id in saves:
            wanted = saves[facts.content_id].files
            assert stands(directory, wanted), f"{directory} is offered, and not what was saved"
        else:
            raise AssertionError(f"{directory} is offered, and nobody wrote {facts.content_id}")
