"""Tiers: add, list, check, and the registration that ``scan DIR`` does by itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptgov.config.edit import add_tier as write_tier
from ckptgov.config.load import load_settings
from ckptgov.errors import CkptgovError, ForeignPlace, UsageError
from ckptgov.layouts.survey import is_trainers_own
from ckptgov.model.answers import Check
from ckptgov.model.settings import Scope, TierSettings
from ckptgov.ops.context import Context
from ckptgov.storage.contract import Storage
from ckptgov.work import addresses
from ckptgov.work.locate import normal_path, open_place
from ckptgov.work.tier import Place, mint_identity, read_identity

if TYPE_CHECKING:
    from ckptgov.work.abilities import Abilities

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def add_tier(context: Context, tier: TierSettings, *, dry_run: bool = False) -> TierSettings:
    """Register a root: its identity is minted or adopted, then it is configured.

    Raises:
        UsageError: the name or root is taken, or the identity belongs to another tier or root.
        CouldNotLook: the root is missing.
    """
    if not _NAME.fullmatch(tier.name):
        raise UsageError(f"tier name {tier.name!r}: letters, digits, '.', '_' and '-' only")
    _check_free(context, tier)
    write_tier(context.settings.home, tier, dry_run=True)  # refused before anything is minted
    if _above_trainers_own(tier.root, tier.endpoint) != tier.root:
        raise UsageError(
            f"{tier.root}: its trainer takes every entry in it for a save of its own",
            hint="name the directory above it",
        )
    place = open_place(tier.root, tier=tier.name, node=tier.node, endpoint=tier.endpoint)
    context.stack.callback(place.storage.close)
    _check_identity_is_ours(context, place.storage, tier)
    if dry_run:
        return tier
    own = context.catalog.identity()
    if read_identity(place.storage) is None:
        mint_identity(
            place.storage,
            tier=tier.name,
            catalog=own.uuid,
            epoch=own.epoch,
            new_id=context.author.new_id,
        )
    write_tier(context.settings.home, tier)
    context.settings = load_settings(context.settings.home)
    opened = context.place(tier)
    if addresses.is_url(tier.root):  # no two stores keep the same promises
        for check in _examined(context, opened, None):
            if check.severity != "ok":
                context.talk(f"{tier.name}: {check.name}: {check.text}")
    return tier


def _check_free(context: Context, tier: TierSettings) -> None:
    for other in context.settings.tiers:
        if (other.name, other.node) == (tier.name, tier.node):
            raise UsageError(
                f"tier {tier.name} exists already"
                + (f" on node {tier.node}" if tier.node else "")
                + f", at {other.root}"
            )
        if None not in (tier.node, other.node) and tier.node != other.node:
            continue  # two nodes' own disks may be mounted at one path
        if tier.endpoint == other.endpoint and _overlap(tier.root, other.root):
            raise UsageError(
                f"{tier.root} and the root of tier {other.name} ({other.root}) lie in one another",
                hint="name the registered root, or a directory beside it",
            )


def _overlap(first: str, second: str) -> bool:
    return (
        addresses.relative(first, second) is not None
        or addresses.relative(second, first) is not None
    )


def _check_identity_is_ours(context: Context, storage: Storage, tier: TierSettings) -> None:
    identity = read_identity(storage)
    if identity is None:
        return
    if identity.tier != tier.name:
        raise UsageError(
            f"{tier.root}: its identity file says tier {identity.tier!r}",
            hint=f"add it as {identity.tier!r}, or remove the file if the root was copied",
        )
    for place in context.catalog.places():
        if place.place == identity.place and place.root != tier.root and place.is_current:
            raise UsageError(
                f"{tier.root}: carries the identity of {place.root}",
                hint="a copied tree is not its original: remove the copy's .ckptgov-tier.json",
            )


def tier_for(context: Context, address: str) -> tuple[TierSettings, str] | None:
    """The registered tier that a path or URL lies in, and the path below its root.

    Raises:
        UsageError: it lies around a registered root.
    """
    for tier in context.settings.tiers:
        root = addresses.real(tier.root)
        below = addresses.relative(address, root)
        if below is not None:
            return tier, below
        if addresses.relative(root, address) is not None:
            raise UsageError(
                f"{address} lies around the root of tier {tier.name} ({tier.root})",
                hint="scan the tier's root, or a directory outside it",
            )
    return None


def tier_made_for(
    context: Context, address: str, root: str, *, node: str | None
) -> tuple[TierSettings, str]:
    """As ``tier_for``; where there is no such tier, ``root`` becomes one first.

    Raises:
        UsageError: it lies around a registered root, or ``root`` cannot become a tier.
        CouldNotLook: ``root`` is missing.
    """
    known = tier_for(context, address)
    if known is None:
        register(context, addresses.unescaped_root(root), node=node)
        known = tier_for(context, address)
        assert known is not None
    return known


def register(context: Context, root: str, *, node: str | None) -> TierSettings:
    """Make a directory, or what a URL leads to, a tier of its own, named after it.

    One in which a trainer takes every entry for a save is left alone, and the one above it is
    registered.
    """
    if addresses.is_url(root) and node is not None:
        raise UsageError(f"{root}: every node sees it", hint="--node goes with a node's own disk")
    root = _above_trainers_own(root, None)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", addresses.name_of(root)).strip("-._") or "root"
    taken = {one.name for one in context.settings.tiers}
    identity_name = _standing_name(root)
    name = identity_name or stem[:48]
    number = 2
    while name in taken and identity_name is None:
        name, number = f"{stem[:48]}-{number}", number + 1
    tier = TierSettings(
        name=name,
        root=root,
        scope=Scope.NODE if node is not None else Scope.SHARED,
        node=node,
        ingest=True,
    )
    try:
        add_tier(context, tier)
    except UsageError:
        context.settings = load_settings(context.settings.home)
        if context.tier_of(root, node) is None:
            raise
        return tier  # another process registered it in between
    context.talk(f"registered {root} as tier {name}")
    return tier


def _above_trainers_own(root: str, endpoint: str | None) -> str:
    place = open_place(root, endpoint=endpoint)
    try:
        is_own = is_trainers_own(place.storage, "", addresses.name_of(root))
    finally:
        place.storage.close()
    return addresses.parent(root) if is_own else root


def _standing_name(root: str) -> str | None:
    place = open_place(root)
    try:
        identity = read_identity(place.storage)
    finally:
        place.storage.close()
    return identity.tier if identity is not None else None


def check_tier(
    context: Context, tier: TierSettings, *, via: str | None = None
) -> tuple[Check, ...]:
    """Prove the storage contract's promises on a live tier, and its identity.

    What was seen is recorded: flushes and journals rely on it. ``via`` is the same root through a
    second mount. Everything that is written lies under ``.ckptgov/check-<id>`` and is removed
    again.

    Raises:
        UsageError: ``via`` shows another tree.
    """
    try:
        place = context.place(tier)
    except ForeignPlace as error:
        return (_failure("identity", error),)
    except CkptgovError as error:
        return (_failure("reach", error),)
    second = _second(context, tier, via) if via is not None else None
    return (*_reached(place), *_examined(context, place, second))


def recorded_checks(context: Context, tier: TierSettings) -> tuple[Check, ...]:
    """What the last ``tier check`` saw, and whether the tier can be reached now; writes nothing.

    A tier that was never checked is checked for the first time.
    """
    from ckptgov.work.abilities import checks_of

    try:
        place = context.place(tier)
        abilities = context.abilities(place)
    except CkptgovError:
        return check_tier(context, tier)
    if abilities is None:
        return check_tier(context, tier)
    return (*_reached(place), *checks_of(abilities))


def _reached(place: Place) -> tuple[Check, ...]:
    filesystem = place.storage.filesystem()
    where = "network" if filesystem.is_network else "local"
    return (
        Check(name="identity", severity="ok", text=f"place {place.uuid}"),
        Check(
            name="file-system",
            severity="ok",
            text=f"{filesystem.type} from {filesystem.source}, {where}",
        ),
    )


def _failure(name: str, error: CkptgovError) -> Check:
    return Check(name=name, severity="failure", text=error.message, fix=error.hint or "")


def _second(context: Context, tier: TierSettings, via: str) -> Storage:
    address = normal_path(via)
    if addresses.real(address) == addresses.real(tier.root):
        raise UsageError(f"{via} is the tier's own root, and no second mount of it")
    storage = open_place(address).storage
    context.stack.callback(storage.close)
    return storage


def _examined(context: Context, place: Place, second: Storage | None) -> tuple[Check, ...]:
    """Try a place's abilities and record what was seen."""
    from ckptgov.work.abilities import checks_of, probe, to_json

    author = context.author
    abilities = probe(place.storage, second=second, clock=author.clock, new_id=author.new_id)
    if place.uuid is not None:
        # What a second mount showed once stays known when it is not there this time.
        abilities = _completed(abilities, context.abilities(place))
        context.catalog.put_abilities(place.uuid, to_json(abilities), author.clock.now_ns())
    return checks_of(abilities)


def _completed(now: Abilities, before: Abilities | None) -> Abilities:
    """What was not tried this time is as it was seen before."""
    if before is None:
        return now
    untried = [name for name in now.__struct_fields__ if getattr(now, name) is None]
    return replace(now, **{name: getattr(before, name) for name in untried})
