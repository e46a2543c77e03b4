"""From digested shards, or from the parts of a cooperative save, to the checkpoint's manifest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from ckptgov.errors import NoneRestorable, VerificationFailed
from ckptgov.manifest.content import content_id, sort_shards
from ckptgov.manifest.names import shown
from ckptgov.model.checkpoint import Manifest, Part, Purpose, Shard, StepKind

_Value = TypeVar("_Value")


def build_manifest(
    *,
    name: str,
    step: int | None,
    step_kind: StepKind,
    layout: str,
    world_size: int | None,
    purposes: Iterable[Purpose],
    shards: Iterable[Shard],
) -> Manifest:
    """The manifest of a checkpoint: shards sorted, purposes in order, content id computed.

    Equal input in any order gives an equal manifest, hence equal bytes. What the form forbids (a
    path twice, a missing chunk digest) is refused when the manifest is encoded.
    """
    rows = sort_shards(shards, shown(name))
    wanted = set(purposes)
    return Manifest(
        content_id=content_id(rows),
        name=name,
        step=step,
        step_kind=step_kind,
        layout=layout,
        world_size=world_size,
        purposes=tuple(purpose for purpose in Purpose if purpose in wanted),
        shards=tuple(rows),
    )


def merge_parts(parts: Sequence[Part], *, expected_paths: Collection[str] | None) -> Manifest:
    """Join the parts of one save into the checkpoint's manifest; in any order, the same one.

    Parts agree on name, step, layout, purposes, on the world size and the number of parts where
    they tell them, and those with a save id share one. A file that several parts hold is equal in
    all of them. ``expected_paths`` is what the loader's index demands; None where only the number
    of parts tells that all are there. Whether parts without a save id are one save is proven by
    the caller (common file, times).

    Raises:
        NoneRestorable: not proven one save, a part or an expected path is missing.
        VerificationFailed: two parts claim one path, or one rank, with different content.
    """
    if not parts:
        raise NoneRestorable("no part to merge")
    first = parts[0]
    name = shown(first.name)
    _check_one_save(parts, name)
    world_size = _agreed(name, "world size", [part.world_size for part in parts])
    _check_all_there(parts, name)
    shards = _joined(parts, name)
    if missing := sorted(set(expected_paths or ()) - shards.keys()):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NoneRestorable(f"{name}: missing shard {shown(missing[0])}{more}: in no part")
    return build_manifest(
        name=first.name,
        step=first.step,
        step_kind=first.step_kind,
        layout=first.layout,
        world_size=world_size,
        purposes=first.purposes,
        shards=shards.values(),
    )


def _check_one_save(parts: Sequence[Part], name: str) -> None:
    _agreed("parts", "name", [part.name for part in parts])
    _agreed(name, "step", [(part.step, part.step_kind) for part in parts])
    _agreed(name, "layout", [part.layout for part in parts])
    _agreed(name, "purpose", [part.purposes for part in parts])
    _agreed(name, "save id", [part.save_id for part in parts])


def _agreed(name: str, what: str, values: Iterable[_Value | None]) -> _Value | None:
    """The one value that the parts which tell it have in common."""
    told = {value for value in values if value is not None}
    if len(told) > 1:
        raise NoneRestorable(f"{name}: not proven one save: parts differ in their {what}")
    return told.pop() if told else None


def _check_all_there(parts: Sequence[Part], name: str) -> None:
    expected = _agreed(name, "number of parts", [part.expected_parts for part in parts])
    seen: dict[int | str, Part] = {}
    unnamed = 0
    for part in parts:
        member = part.rank if part.rank is not None else part.node
        if member is None:
            unnamed += 1
        elif seen.setdefault(member, part).shards != part.shards:
            raise VerificationFailed(f"{name}: two parts of {member} hold different shards")
    there = len(seen) + unnamed
    if expected is not None and there != expected:
        raise NoneRestorable(f"{name}: {there} of {expected} parts are there")


def _joined(parts: Iterable[Part], name: str) -> dict[str, Shard]:
    shards: dict[str, Shard] = {}
    for part in parts:
        for shard in part.shards:
            if shards.setdefault(shard.path, shard) != shard:
                raise VerificationFailed(f"{name}: parts differ in shard {shown(shard.path)}")
    return shards
