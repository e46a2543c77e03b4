"""Where the shards of one checkpoint can be read: over all places of its run, nearest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from ckptgov.layouts.tree import join
from ckptgov.model.checkpoint import Manifest
from ckptgov.storage.contract import Storage
from ckptgov.work.copy import ShardSource
from ckptgov.work.copyproof import base_of
from ckptgov.work.hold import held_contents, held_shards
from ckptgov.work.landing import Form, form_of
from ckptgov.work.look import RunLook, SealedCopy
from ckptgov.work.tier import Place


class CopyAt(Struct, frozen=True, kw_only=True):
    """A sealed copy with the look that sees it."""

    look: RunLook
    copy: SealedCopy
    is_held: bool = False  # when it was looked at, a hold kept second names of its shards

    @property
    def place(self) -> Place:
        """Where it lies."""
        return self.look.place

    @property
    def manifest(self) -> Manifest:
        """As it stands there: its name may differ from place to place."""
        return self.copy.manifest

    @property
    def base(self) -> str:
        """What the shards' paths hang from there."""
        return base_of(self.place.storage, self.look.run_root, self.manifest)

    @property
    def readable(self) -> list[tuple[str, str]]:
        """(shard path, path below the place's root) of what may be read for others.

        Shards whose compared bytes still stand, then what a hold keeps of them.
        """
        base = self.base
        found = [(path, join(base, path)) for path in self.copy.proof.sound]
        if self.manifest.content_id in held_contents(self.look):  # a flush holds after planning
            found += held_shards(self.look, self.copy).items()
        return found

    @property
    def is_held_whole(self) -> bool:
        """Whether a hold keeps every shard, whatever became of their own names."""
        held = held_shards(self.look, self.copy) if self.is_held else {}
        return len(held) == len(self.manifest.shards)

    @property
    def form(self) -> Form:
        """How it lies below its run root."""
        return form_of(self.manifest, self.base, self.look.run_root)


def copies_of(looks: Sequence[RunLook]) -> dict[str, list[CopyAt]]:
    """Content id to its copies, in the order of the looks.

    Those recorded as gone are left out, unless a hold keeps their bytes.
    """
    found: dict[str, list[CopyAt]] = {}
    for look in looks:
        held = held_contents(look)
        for stored in look.stored:
            copy = look.sealed(stored)
            if copy is None:
                continue
            content_id = copy.manifest.content_id
            if content_id in held or not look.is_gone(copy):
                at = CopyAt(look=look, copy=copy, is_held=content_id in held)
                found.setdefault(content_id, []).append(at)
    return found


def sources_of(
    copies: Sequence[CopyAt], *, opened: Callable[[Place], Storage]
) -> dict[str, tuple[ShardSource, ...]]:
    """Shard path to the places whose compared bytes of it still stand, in the copies' order.

    ``opened`` gives the storage to read a place through. A place that holds some shards only is
    as good as any for those.
    """
    found: dict[str, list[ShardSource]] = {}
    for one in copies:
        paths = one.readable
        if not paths:
            continue
        storage = opened(one.place)
        for shard, path in paths:
            source = ShardSource(storage=storage, path=path, place=one.place.uuid or one.place.root)
            found.setdefault(shard, []).append(source)
    return {path: tuple(sources) for path, sources in found.items()}
