"""Tiers: add, list, check, and the registration that ``scan DIR`` does by itself."""

from __future__ import annotations

import os
import re

from ckptgov.config.edit import add_tier as write_tier
from ckptgov.config.load import load_settings
from ckptgov.errors import CkptgovError, ForeignPlace, UsageError
from ckptgov.layouts.survey import is_trainers_own
from ckptgov.model.answers import Check
from ckptgov.model.settings import Scope, TierSettings
from ckptgov.ops.context import Context
from ckptgov.storage.contract import Storage
from ckptgov.work.locate import open_place
from ckptgov.work.tier import mint_identity, read_identity

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
    if _above_trainers_own(tier.root) != tier.root:
        raise UsageError(
            f"{tier.root}: its trainer takes every entry in it for a save of its own",
            hint="name the directory above it",
        )
    place = open_place(tier.root, tier=tier.name, node=tier.node)
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
    context.place(tier)
    return tier


def _check_free(context: Context, tier: TierSettings) -> None:
    for other in context.settings.tiers:
        if (other.name, other.node) == (tier.name, tier.node):
            raise UsageError(
                f"tier {tier.name} exists already"
                + (f" on node {tier.node}" if tier.node else "")
                + f", at {other.root}"
            )
        if _inside(tier.root, other.root) or _inside(other.root, tier.root):
            raise UsageError(
                f"{tier.root} and the root of tier {other.name} ({other.root}) lie in one another",
                hint="name the registered root, or a directory beside it",
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


def _inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def tier_for(context: Context, path: str) -> tuple[TierSettings, str] | None:
    """The registered tier a path lies in, and the path below its root.

    Raises:
        UsageError: the path lies around a registered root.
    """
    for tier in context.settings.tiers:
        root = os.path.realpath(tier.root)
        if _inside(path, root):
            below = os.path.relpath(path, root)
            return tier, "" if below == "." else below
        if _inside(root, path):
            raise UsageError(
                f"{path} lies around the root of tier {tier.name} ({tier.root})",
                hint="scan the tier's root, or a directory outside it",
            )
    return None


def register(context: Context, root: str, *, node: str | None) -> TierSettings:
    """Make a directory a tier of its own, named after it.

    One in which a trainer takes every entry for a save is left alone, and the one above it is
    registered.
    """
    root = _above_trainers_own(root)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(root)).strip("-._") or "root"
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


def _above_trainers_own(root: str) -> str:
    place = open_place(root)
    try:
        is_own = is_trainers_own(place.storage, "", os.path.basename(root))
    finally:
        place.storage.close()
    return os.path.dirname(root) if is_own else root


def _standing_name(root: str) -> str | None:
    place = open_place(root)
    try:
        identity = read_identity(place.storage)
    finally:
        place.storage.close()
    return identity.tier if identity is not None else None


def check_tier(context: Context, tier: TierSettings) -> tuple[Check, ...]:
    """Prove the storage contract's promises on a live tier, and its identity.

    Everything it writes lies under ``.ckptgov/check-<id>`` and is removed again.
    """
    try:
        place = context.place(tier)
    except ForeignPlace as error:
        return (
            Check(name="identity", severity="failure", text=error.message, fix=error.hint or ""),
        )
    except CkptgovError as error:
        return (Check(name="reach", severity="failure", text=error.message, fix=error.hint or ""),)
    checks = [Check(name="identity", severity="ok", text=f"place {place.uuid}")]
    filesystem = place.storage.filesystem()
    checks.append(
        Check(
            name="file-system",
            severity="ok",
            text=f"{filesystem.type} from {filesystem.source}, "
            f"{'network' if filesystem.is_network else 'local'}, times are "
            f"{filesystem.granularity_ns / 1e6:g} ms coarse",
        )
    )
    checks += _probe(place.storage, f".ckptgov/check-{context.author.new_id()}")
    return tuple(checks)


def _probe(storage: Storage, directory: str) -> list[Check]:
    key = f"{directory}/probe"
    checks: list[Check] = []
    try:
        storage.publish(key, [b"one"])
        checks.append(Check(name="publish", severity="ok", text="durable create works"))
        checks.append(_probe_exclusive(storage, key))
        checks.append(_probe_listing(storage, directory))
        checks.append(_probe_birth(storage, key))
        storage.remove(key)
        storage.remove_dir(directory)
    except (CkptgovError, OSError) as error:
        checks.append(
            Check(
                name="publish",
                severity="failure",
                text=f"cannot be written: {error}",
                fix="copies may lie here; manifests and journal cannot",
            )
        )
    return checks


def _probe_exclusive(storage: Storage, key: str) -> Check:
    try:
        storage.publish(key, [b"two"])
    except FileExistsError:
        return Check(name="exclusive-create", severity="ok", text="a taken name is refused")
    return Check(
        name="exclusive-create",
        severity="failure",
        text="a taken name was given twice: this tier may hold copies but no journal",
        fix="keep the run's home on another tier",
    )


def _probe_listing(storage: Storage, directory: str) -> Check:
    names = [entry.name for entry in storage.list(directory)]
    if names == ["probe"]:
        return Check(name="listing", severity="ok", text="a new name is listed at once")
    return Check(name="listing", severity="failure", text=f"lists {names!r} after one create")


def _probe_birth(storage: Storage, key: str) -> Check:
    if storage.stat(key).btime_ns is not None:
        return Check(name="birth-time", severity="ok", text="files tell when they were born")
    return Check(
        name="birth-time",
        severity="warning",
        text="no birth times: an overwrite in place before the first scan cannot be told from "
        "times that a copy carried over",
    )
