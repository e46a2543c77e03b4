"""Which place a tier root is: its identity file, read, minted, checked."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.errors import CouldNotLook, ForeignPlace, Malformed
from ckptgov.manifest.forms.identities import decode_tier, encode_tier
from ckptgov.model.checkpoint import TierIdentity
from ckptgov.model.settings import TierSettings
from ckptgov.storage.contract import Storage

TIER_FILE = ".ckptgov-tier.json"


class Place(Struct, frozen=True, kw_only=True):
    """A tier's root as it can be reached from here.

    ``uuid`` is None for a directory that was never registered: receipts count for nothing there.
    """

    storage: Storage
    uuid: str | None
    tier: str
    node: str | None
    root: str


def read_identity(storage: Storage) -> TierIdentity | None:
    """The identity of a root, or None where there is none.

    Raises:
        Malformed: it does not decode (never treated as absent: another one must not be minted).
    """
    try:
        with storage.open(TIER_FILE) as file:
            raw = file.read_at(0, 65_537)
    except FileNotFoundError:
        return None
    return decode_tier(raw, where=f"{storage.root}/{TIER_FILE}")


def mint_identity(
    storage: Storage, *, tier: str, catalog: str, epoch: int, new_id: Callable[[], str]
) -> TierIdentity:
    """Write the identity of a root that has none; returns the one that stands afterwards."""
    filesystem = storage.filesystem()
    identity = TierIdentity(
        place=new_id(),
        tier=tier,
        fs_type=filesystem.type,
        source=filesystem.source,
        catalog=catalog,
        epoch=epoch,
    )
    try:
        storage.publish(TIER_FILE, [encode_tier(identity)])
    except FileExistsError:
        standing = read_identity(storage)
        if standing is None:
            raise
        return standing
    return identity


def adopt(storage: Storage, identity: TierIdentity, *, epoch: int) -> TierIdentity:
    """Raise the epoch in the identity file; it never goes down."""
    if epoch <= identity.epoch:
        return identity
    raised = replace(identity, epoch=epoch)
    storage.replace(TIER_FILE, [encode_tier(raised)])
    return raised


def check_identity(
    storage: Storage, settings: TierSettings, *, known_place: str | None
) -> TierIdentity:
    """The identity of a registered tier's root, which must be the one known.

    An unmounted file system looks like an empty directory: it is "could not look", never "none".

    Raises:
        ForeignPlace: there is no identity file, or it is of another tier or place.
    """
    where = f"{settings.name} at {settings.root}"
    try:
        identity = read_identity(storage)
    except Malformed as error:
        raise CouldNotLook(f"tier {where}: {error.message}", hint=error.hint) from error
    if identity is None:
        raise ForeignPlace(
            f"tier {where}: no {TIER_FILE} there",
            hint="is the file system mounted? 'ckptgov tier check' tells more",
        )
    if identity.tier != settings.name:
        raise ForeignPlace(f"tier {where}: the root belongs to tier {identity.tier!r}")
    if known_place is not None and identity.place != known_place:
        raise ForeignPlace(
            f"tier {where}: place {identity.place} is there, {known_place} was expected",
            hint="another disk is mounted at this path; if the old one is gone for good, remove "
            "the tier and add it again",
        )
    return identity
