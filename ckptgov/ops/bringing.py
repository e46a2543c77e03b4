"""What a restore decides before the first byte moves: which checkpoint, from where, where to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import NoneRestorable, UsageError
from ckptgov.layouts.tree import join
from ckptgov.model.checkpoint import Evidence, Manifest, RunIdentity, Shard
from ckptgov.model.facts import CheckpointFacts, Query, Verdict
from ckptgov.model.settings import TierSettings
from ckptgov.ops.context import CATALOG_FILE, Context
from ckptgov.work import ask
from ckptgov.work.answer import share_journal
from ckptgov.work.ask import Asked
from ckptgov.work.copy import ShardSource
from ckptgov.work.destination import Destination, destination
from ckptgov.work.locate import normal_path, open_place
from ckptgov.work.restore import matching, nearest_first
from ckptgov.work.sources import CopyAt, copies_of, sources_of
from ckptgov.work.tier import Place

Sources = Mapping[str, tuple[ShardSource, ...]]


class RestoreRequest(Struct, frozen=True, kw_only=True):
    """What to bring where. ``content_id`` names the very checkpoint, chosen or decided before.

    ``to`` is a directory: it is made where the one above it is there. ``match`` picks shards by
    globs over their paths, ``from_tier`` allows one tier's copies only.
    """

    to: str
    query: Query = Query()
    content_id: str | None = None
    from_tier: str | None = None
    match: tuple[str, ...] = ()
    node: str | None = None
    hardlink: bool = False
    dry_run: bool = False


class Bringing(Struct, frozen=True, kw_only=True):
    """Everything that was decided before the first byte moves."""

    request: RestoreRequest
    asked: Asked
    chosen: CheckpointFacts
    first: CopyAt
    copies: tuple[CopyAt, ...]
    manifest: Manifest
    only: frozenset[str] | None
    sources: Sources
    to: Destination

    @property
    def shards(self) -> list[Shard]:
        wanted = self.only
        return [one for one in self.manifest.shards if wanted is None or one.path in wanted]

    @property
    def becomes_copy(self) -> bool:
        """Whether what lands is a copy of the run, known to everyone."""
        return self.to.is_of_run and self.only is None


def decide(context: Context, asked: Asked, request: RestoreRequest) -> Bringing:
    share_journal(asked.looks)
    content_id = request.content_id or _chosen(asked, request.query)
    tier = request.from_tier
    if tier is not None and tier not in {one.name for one in context.settings.tiers}:
        raise UsageError(f"there is no tier {tier!r}", hint="see 'ckptgov tier list'")
    every = nearest_first(copies_of(asked.looks).get(content_id, ()), node=request.node)
    copies = [one for one in every if tier in (None, one.place.tier)]
    if not copies:
        where = f"on tier {tier}" if tier is not None else "here"
        raise NoneRestorable(f"{content_id}: no copy of it lies {where}")
    first = next((one for one in copies if one.readable), copies[0])
    manifest = first.manifest
    only = matching(manifest, request.match)
    sources = sources_of(copies, opened=lambda place: place.storage)
    for shard in manifest.shards:
        if (only is None or shard.path in only) and shard.path not in sources:
            raise _no_source(manifest, shard, tier)
    return Bringing(
        request=request,
        asked=asked,
        chosen=first.look.facts_of_sealed(first.copy),
        first=first,
        copies=tuple(copies),
        manifest=manifest,
        only=only,
        sources=sources,
        to=destination(
            _local_path(request.to),
            identity=identity_of(asked),
            name=manifest.name,
            opened=lambda root: _opened(context, asked, root),
        ),
    )


def _no_source(manifest: Manifest, shard: Shard, tier: str | None) -> NoneRestorable:
    what = join(manifest.name, shard.path)
    if tier is not None:
        return NoneRestorable(
            f"{what}: tier {tier} has no sound copy of it",
            hint="leave --from out to use the others",
        )
    return NoneRestorable(f"{what}: no place has a sound copy of it", hint="'ckptgov explain'")


def _chosen(asked: Asked, query: Query) -> str:
    """The content id of what ``latest`` offers, or of the step asked for if that may be had."""
    query = replace(query, may_gather=True, min_evidence=Evidence.DIGEST)
    told = ask.latest(asked, query)
    if told.chosen is not None and told.chosen.content_id is not None:
        return told.chosen.content_id
    assert told.error is not None
    if query.step is None or not isinstance(told.error, NoneRestorable):
        raise told.error
    raise _why_not(query.step, told.choice.verdicts) from told.error


def _why_not(step: int, verdicts: Iterable[Verdict]) -> NoneRestorable:
    """What speaks against the one step that was asked for."""
    own = [one for one in verdicts if one.checkpoint.step == step]
    if not own:
        return NoneRestorable(
            f"there is no checkpoint of step {step}", hint="'ckptgov list' shows what there is"
        )
    finding = own[0].findings[0]
    return NoneRestorable(
        f"step {step} is not restorable: {finding.path}: {finding.evidence} "
        f"({finding.reason.value})",
        hint="'ckptgov explain' says more",
    )


def _local_path(to: str) -> str:
    path = normal_path(to)
    if "://" in path:
        raise UsageError(f"{to}: is no directory here", hint="'ckptgov flush' fills other tiers")
    return path


def identity_of(asked: Asked) -> RunIdentity | None:
    return next((look.identity for look in asked.looks if look.identity is not None), None)


def _opened(context: Context, asked: Asked, root: str) -> Place:
    """A tier's root by its real path: as a look has it open, as configured, or as it lies there."""
    for look in asked.looks:
        own = look.place.storage.root  # that of another node's disk is no path
        if os.path.isabs(own) and os.path.realpath(own) == root:
            return look.place
    tier = tier_at(context, root)
    if tier is not None and has_catalog(context):
        return context.place(tier)
    place = open_place(root)
    context.stack.callback(place.storage.close)
    return place


def tier_at(context: Context, root: str) -> TierSettings | None:
    real = os.path.realpath(root)
    return next(
        (
            one
            for one in context.settings.tiers
            if context.is_here(one)
            and os.path.isabs(one.root)
            and os.path.realpath(one.root) == real
        ),
        None,
    )


def is_catalogued(context: Context, identity: RunIdentity | None) -> bool:
    """Whether this home has a catalog that knows the run; none is made for a restore."""
    if identity is None or not has_catalog(context):
        return False
    return context.catalog.run_by_id(identity.run_id) is not None


def has_catalog(context: Context) -> bool:
    if context.shared is not None or context.settings.catalog_url is not None:
        return True
    return os.path.lexists(os.path.join(context.settings.home, CATALOG_FILE))
