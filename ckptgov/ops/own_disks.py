"""A node's own disks, as its agent meets them: which tiers are its, which places, which runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from msgspec import Struct
from msgspec.structs import replace

from ckptgov.catalog.facts import PlaceFacts, RunRootFacts
from ckptgov.errors import CkptgovError, ConfigError, ForeignPlace
from ckptgov.model.checkpoint import RunIdentity, TierIdentity
from ckptgov.model.copies import CopyState
from ckptgov.model.files import EntryKind
from ckptgov.model.settings import Link, Settings, TierSettings
from ckptgov.ops.context import Context
from ckptgov.ops.policies import every_link
from ckptgov.storage.contract import Storage
from ckptgov.work import addresses
from ckptgov.work.flush import run_root_at
from ckptgov.work.locate import open_place
from ckptgov.work.runroots import run_roots_below
from ckptgov.work.runstore import store_at, writable_store
from ckptgov.work.tier import Place, mint_identity, read_identity

_NOTHING = frozenset({"lost+found"})
"""What a new file system holds."""

Identify = Callable[[PlaceFacts, str, str], RunIdentity | None]
"""(place, path of a run root, its name) -> which run it is; None where nobody can say now."""


class OwnDisk(Struct, frozen=True, kw_only=True):
    """One of the node's tiers, of the right identity, and the run roots there that bear one."""

    tier: TierSettings
    place: Place
    run_roots: tuple[str, ...]

    @property
    def directories(self) -> tuple[str, ...]:
        """The run roots as paths."""
        return tuple(addresses.join(self.tier.root, below) for below in self.run_roots)


def settings_of_node(settings: Settings, node: str) -> Settings:
    """The settings as the agent of one node uses them: of disks only its own, and only links that
    begin there. What is shared, the service scans.
    """
    tiers = tuple(
        one if one.node == node else replace(one, ingest=False)
        for one in settings.tiers
        if one.node in (None, node)
    )
    own = {one.name for one in tiers if one.node == node}
    links = tuple(one for one in settings.links if one.source in own)
    return replace(settings, tiers=tiers, links=links)


def own_disks(
    context: Context, node: str, *, identify: Identify
) -> tuple[list[OwnDisk], list[CkptgovError]]:
    """Every disk of the node that can be looked at, and why the others cannot.

    A run root that bears no identity is asked about; while nobody can say whose it is, it is left
    alone: an identity made up here could be another one on the next node.
    """
    found: list[OwnDisk] = []
    failed: list[CkptgovError] = []
    for tier in context.settings.tiers:
        if tier.node != node:
            continue
        try:
            place = _met(context, tier)
            roots = run_roots_below(place.storage, "") if tier.ingest else []
            known = [one for one in roots if _is_known(context, place, one, identify)]
        except CkptgovError as error:
            failed.append(error)
        else:
            found.append(OwnDisk(tier=tier, place=place, run_roots=tuple(known)))
    return found, failed


def _is_known(context: Context, place: Place, run_root: str, identify: Identify) -> bool:
    store = store_at(place.storage, run_root)
    if store.identity() is not None:
        return True
    facts = context.catalog.place_by_root(place.root, node=place.node)
    assert facts is not None
    name = (run_root or place.root.rstrip("/")).rpartition("/")[2]
    identity = identify(facts, run_root, name)
    if identity is None:
        return False
    writable_store(store, identity)
    return True


def _met(context: Context, tier: TierSettings) -> Place:
    """The tier's place, which gets a new identity when its disk is found blank.

    Raises:
        CouldNotLook: missing, unmounted, another place's, or not blank and without an identity.
    """
    try:
        return context.place(tier)
    except ForeignPlace as foreign:
        minted = _mint_on_blank(context, tier, foreign)
    _replace_place(context, tier, minted)
    return context.place(tier)


def _mint_on_blank(context: Context, tier: TierSettings, foreign: ForeignPlace) -> TierIdentity:
    """A new identity for a new file system; never below a mount point that has lost its own."""
    place = open_place(tier.root, tier=tier.name, node=tier.node, endpoint=tier.endpoint)
    with closing(place.storage) as storage:
        own = context.catalog.identity()
        standing = read_identity(storage)
        if standing is not None:
            known = {one.place for one in context.catalog.places()}
            is_ours = (standing.catalog, standing.tier) == (own.uuid, tier.name)
            if is_ours and standing.place not in known:
                return standing  # minted by us just before we were killed
            raise foreign
        if not _is_blank(storage) or not _is_mounted(context, tier, storage):
            raise foreign
        return mint_identity(
            storage,
            tier=tier.name,
            catalog=own.uuid,
            epoch=own.epoch,
            new_id=context.author.new_id,
        )


def _is_blank(storage: Storage) -> bool:
    return all(one.kind is EntryKind.DIR and one.name in _NOTHING for one in storage.list(""))


def _is_mounted(context: Context, tier: TierSettings, storage: Storage) -> bool:
    """Whether the file system at the root is the tier's own: mounted just there, or of the same
    type and source as when it was last met."""
    here = storage.filesystem()
    if here.mount_point == addresses.real(tier.root):
        return True
    known = context.catalog.place_by_root(tier.root, node=tier.node)
    return known is not None and (here.type, here.source) == (known.fs_type, known.source)


def _replace_place(context: Context, tier: TierSettings, identity: TierIdentity) -> None:
    """Meet the new disk; what lay on the old one is lost."""
    catalog, now_ns = context.catalog, context.author.clock.now_ns()
    with catalog.transaction():
        old = catalog.place_by_root(tier.root, node=tier.node)
        catalog.put_place(
            PlaceFacts(
                place=identity.place,
                tier=tier.name,
                node=tier.node,
                root=tier.root,
                fs_type=identity.fs_type,
                source=identity.source,
                first_seen_at_ns=now_ns,
            )
        )
        if old is not None:
            _lose_all(context, old.place, now_ns)
    context.talk(f"tier {tier.name} at {tier.root}: a blank disk; it is a new place from now on")


def _lose_all(context: Context, place: str, now_ns: int) -> None:
    catalog = context.catalog
    for run in catalog.runs():
        run_id = run.identity.run_id
        roots = [one for one in catalog.roots_of(run_id) if one.place == place]
        if roots:
            catalog.put_sightings(run_id, place, (), now_ns)
        for copy in catalog.copies(run_id):
            if copy.place == place and copy.state in _CAN_BE_LOST:
                catalog.transition(
                    run_id,
                    copy.content_id,
                    place,
                    expected=copy.state,
                    to=CopyState.LOST,
                    at_ns=now_ns,
                )


_CAN_BE_LOST = frozenset(
    {
        CopyState.SIGHTED,
        CopyState.PARTIAL,
        CopyState.VERIFIED,
        CopyState.REOPENED,
        CopyState.CORRUPT,
        CopyState.UNREADABLE,
        CopyState.CONDEMNED,
    }
)


def links_from_own(context: Context) -> tuple[Link, ...]:
    """Every link, of a policy or of ``ckptgov.yaml``, that begins at a disk of this node.

    While a policy is wrong, those of the file; the flush says what is wrong with it.
    """
    own = {one.name for one in context.settings.tiers if one.node is not None}
    try:
        links = every_link(context)
    except ConfigError:
        links = context.settings.links
    return tuple(one for one in links if one.source in own)


def meet_targets(context: Context) -> None:
    """Learn where the node's runs lie on the tiers that links lead to from its own disks.

    Another node may have brought a checkpoint there: then its receipt says so, and nothing is
    moved or read again.
    """
    for name in dict.fromkeys(link.target for link in links_from_own(context)):
        tier = next((one for one in context.settings.tiers if one.name == name), None)
        if tier is None:
            continue
        try:
            place = context.place(tier)
        except CkptgovError:
            continue  # the flush says so
        for run in context.catalog.runs():
            _meet(context, place, run.identity)


def _meet(context: Context, place: Place, identity: RunIdentity) -> None:
    run_id, uuid = identity.run_id, place.uuid or ""
    if any(one.place == uuid for one in context.catalog.roots_of(run_id)):
        return
    try:
        path = run_root_at(place.storage, identity)
        store = store_at(place.storage, path)
        standing = store.identity()
    except CkptgovError:
        return
    if standing is not None and standing.run_id == run_id:
        root = RunRootFacts(run_id=run_id, place=uuid, path=path, sidecar=store.sidecar)
        context.catalog.put_run_root(root)


def directories_to_watch(disks: Sequence[OwnDisk], *, limit: int) -> Iterable[str]:
    """Where a change tells of a save: tier roots, run roots, and what lies in them, two deep."""
    found: list[str] = []
    for disk in disks:
        found.append(disk.tier.root)
        for below in disk.run_roots:
            found += _directories(disk.place.storage, disk.tier.root, below, depth=3)
    return found[:limit]


def _directories(storage: Storage, root: str, below: str, *, depth: int) -> list[str]:
    found = [addresses.join(root, below)] if below else []
    if depth == 0:
        return found
    try:
        entries = storage.list(below)
    except (FileNotFoundError, NotADirectoryError, CkptgovError):
        return found
    for one in entries:
        if one.kind is EntryKind.DIR and not one.name.startswith(".ckptgov"):
            child = f"{below}/{one.name}" if below else one.name
            found += _directories(storage, root, child, depth=depth - 1)
    return found
