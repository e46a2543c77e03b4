"""What a tier really does: every promise of the storage contract tried on the tier itself.

Nothing is assumed from a file system's name or a store's vendor. Everything written lies under
``<work_dir>/check-<id>/`` and is removed again, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct

from ckptgov.errors import CkptgovError, Malformed, TransientStorageError, UsageError
from ckptgov.model.clock import Clock
from ckptgov.storage.contract import Storage
from ckptgov.work import _ability_posix as posix
from ckptgov.work import _ability_probes as probes
from ckptgov.work._ability_checks import checks_of

__all__ = ["Abilities", "checks_of", "from_json", "may_hold_journal", "probe", "rely_on", "to_json"]

T = TypeVar("T")


class Abilities(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found. True, False, or None: not looked at, or it does not apply.

    ``exclusive_create``: of several publishers of one name one wins; ``…_between_mounts``: also
    when they come through two mounts. ``locks_between_mounts``: flock(2) taken on one holds on
    the other. ``listing_complete``: what was just published is listed. ``list_is_byte_ordered``:
    an object store's raw listing. ``directory_rename``: as a whole, and never over a taken name.
    ``time_granularity_ns``: two writes closer together than this may leave one mtime (measured,
    so at least the truth). ``times_settable``: an mtime given to the ns is told back so.
    ``inode_stable``: it stays with its file through renames, and is the same through ``second``.
    ``conditional_put``, ``conditional_complete``: If-None-Match was honoured. ``checksums_on_…``:
    a wrong checksum was refused. ``versioned``, ``locked``: the bucket keeps old versions, locks
    objects. ``lifecycle_…``: a rule of the bucket that touches this tree removes or archives
    objects, ends uploads that nobody completes. ``is_shared``: a network file system or a store.
    ``notes``: what could not be found out and why, for people.
    """

    publish_durable: bool | None = None
    exclusive_create: bool | None = None
    exclusive_create_between_mounts: bool | None = None
    locks_between_mounts: bool | None = None
    listing_complete: bool | None = None
    list_is_byte_ordered: bool | None = None
    directory_rename: bool | None = None
    hard_links: bool | None = None
    reflink: bool | None = None
    sync_of_directories: bool | None = None
    time_granularity_ns: int | None = None
    times_settable: bool | None = None
    inode_stable: bool | None = None
    birth_time: bool | None = None
    conditional_put: bool | None = None
    conditional_complete: bool | None = None
    checksums_on_put: bool | None = None
    checksums_on_parts: bool | None = None
    versioned: bool | None = None
    locked: bool | None = None
    lifecycle_removes: bool | None = None
    lifecycle_aborts_uploads: bool | None = None
    is_shared: bool | None = None
    notes: tuple[str, ...] = ()


def to_json(abilities: Abilities) -> str:
    """For the catalog; what was not found out is left out."""
    return msgspec.json.encode(abilities).decode()


def from_json(text: str) -> Abilities:
    """What :func:`to_json` wrote; members of a later version are passed over.

    Raises:
        Malformed: it is nothing of the kind.
    """
    try:
        return msgspec.json.decode(text, type=Abilities)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(f"recorded abilities: {error}", hint="run `tier check` again") from error


def may_hold_journal(abilities: Abilities) -> bool:
    """Whether create-once records may lie there: a name that two were given decides nothing."""
    needed = (
        abilities.publish_durable,
        abilities.exclusive_create,
        abilities.exclusive_create_between_mounts,
        abilities.conditional_put,
    )
    return False not in needed


@runtime_checkable
class ObjectProbes(Protocol):
    """What an object store's backend finds out by itself, on keys of its own."""

    def probe_conditional_put(self) -> bool: ...
    def probe_conditional_complete(self) -> bool: ...
    def probe_checksums(self) -> bool: ...
    def probe_list_order(self) -> bool: ...
    def bucket_versioning(self) -> str: ...
    def bucket_object_lock(self) -> bool: ...
    def lifecycle_rules(self) -> Sequence[Mapping[str, object]]: ...


@runtime_checkable
class ReliesOnSeen(Protocol):
    """A storage whose deliveries depend on what its store was seen to do."""

    def rely_on(self, *, conditional: bool, checksums_verified: bool) -> None: ...


def rely_on(storage: Storage, found: Abilities) -> None:
    """Let a storage use what was found of its store; what was not found out is not relied on."""
    if isinstance(storage, ReliesOnSeen):
        storage.rely_on(
            conditional=False not in (found.conditional_put, found.conditional_complete),
            checksums_verified=bool(found.checksums_on_put and found.checksums_on_parts),
        )


def probe(
    storage: Storage,
    *,
    second: Storage | None,
    clock: Clock,
    new_id: Callable[[], str],
    work_dir: str = ".ckptgov",
) -> Abilities:
    """Try everything on a live tier; some seconds, a few hundred small files.

    ``storage`` is the backend itself, without wrappers that retry. ``second`` is the same tier
    through another mount, or another client of the store. A probe that fails for a reason of its
    own leaves None and a note; a refusal that says "cannot" is False. Where nothing can be
    published, the note says why and nothing else is asked.

    Raises:
        UsageError: ``second`` shows another tree.
        CouldNotLook: the root does not answer at all.
    """
    examination = _Examination(storage, second, clock, f"{work_dir}/check-{new_id()}")
    had_work_dir = probes.exists(storage, work_dir)
    try:
        found = examination.run()
    finally:
        left = probes.sweep(storage, examination.directory)
        if left and second is not None:  # one client may not see all that two have made
            left = probes.sweep(second, examination.directory)
        if not had_work_dir:
            with suppress(CkptgovError, OSError):
                storage.remove_dir(work_dir)
    return msgspec.structs.replace(found, notes=(*examination.notes, *left))


class _Examination:
    def __init__(
        self, storage: Storage, second: Storage | None, clock: Clock, directory: str
    ) -> None:
        self.storage, self.second, self.directory = storage, second, directory
        self.notes: list[str] = []
        self._clock = clock

    def run(self) -> Abilities:
        storage, directory = self.storage, self.directory
        is_durable = self._ask("publishing", lambda: probes.publishes(storage, directory))
        if not is_durable:
            return Abilities(publish_durable=False)
        self._require_same_tree()
        found = Abilities(
            publish_durable=True,
            exclusive_create=self._ask(
                "exclusive create", lambda: probes.creates_exclusively(storage, directory)
            ),
            listing_complete=self._ask(
                "listing", lambda: probes.lists_completely(storage, directory)
            ),
            directory_rename=self._ask(
                "directory rename", lambda: probes.renames_directories(storage, directory)
            ),
            hard_links=self._ask("hard links", lambda: probes.links(storage, directory)),
            is_shared=self._ask("file system", lambda: storage.filesystem().is_network),
        )
        return self._object_store(self._posix(self._between(self._files(found))))

    def _files(self, found: Abilities) -> Abilities:
        if not self.storage.traits.has_directories:
            return found
        storage, second, directory = self.storage, self.second, self.directory
        return msgspec.structs.replace(
            found,
            inode_stable=self._ask(
                "inodes", lambda: probes.keeps_inodes(storage, second, directory)
            ),
            birth_time=self._ask("birth times", lambda: probes.tells_births(storage, directory)),
        )

    def _between(self, found: Abilities) -> Abilities:
        if self.second is None:
            return found
        storage, second, directory = self.storage, self.second, self.directory
        here, there = (probes.absolute(each, directory) for each in (storage, second))

        def is_exclusive() -> bool:
            if here and there and not posix.names_are_given_once(here, there):
                return False
            return probes.creates_exclusively_between(storage, second, directory)

        return msgspec.structs.replace(
            found,
            exclusive_create_between_mounts=self._ask(
                "exclusive create between mounts", is_exclusive
            ),
        )

    def _posix(self, found: Abilities) -> Abilities:
        here = probes.absolute(self.storage, self.directory)
        there = probes.absolute(self.second, self.directory) if self.second else None
        if here is None:
            return found
        return msgspec.structs.replace(
            found,
            locks_between_mounts=None
            if there is None
            else self._ask("locks", lambda: posix.locks_hold_between(here, there)),
            reflink=self._ask("reflink", lambda: posix.reflinks(here)),
            sync_of_directories=self._ask("syncing", lambda: posix.syncs_directories(here)),
            time_granularity_ns=self._ask(
                "time stamps", lambda: posix.time_granularity_ns(here, self._clock)
            ),
            times_settable=self._ask("setting times", lambda: posix.keeps_given_times(here)),
        )

    def _object_store(self, found: Abilities) -> Abilities:
        store = self.storage
        if not isinstance(store, ObjectProbes):
            return found
        checksums = self._ask("checksums", store.probe_checksums)
        versions = self._ask("versioning", store.bucket_versioning)
        rules = self._ask("lifecycle rules", store.lifecycle_rules)
        return msgspec.structs.replace(
            found,
            conditional_put=self._ask("conditional put", store.probe_conditional_put),
            conditional_complete=self._ask(
                "conditional complete", store.probe_conditional_complete
            ),
            checksums_on_put=checksums,
            checksums_on_parts=checksums,
            list_is_byte_ordered=self._ask("list order", store.probe_list_order),
            versioned=None if versions in (None, "unknown") else versions != "off",
            locked=self._ask("object lock", store.bucket_object_lock),
            lifecycle_removes=None if rules is None else any(map(_removes, rules)),
            lifecycle_aborts_uploads=None if rules is None else any(map(_aborts, rules)),
        )

    def _require_same_tree(self) -> None:
        if self.second is None or probes.sees(self.second, self.storage, self.directory):
            return
        raise UsageError(
            f"{self.second.root} does not show what is written at {self.storage.root}",
            hint="name another mount of the same tier",
        )

    def _ask(self, name: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except (CkptgovError, OSError) as error:
            passing = "for now " if isinstance(error, TransientStorageError) else ""
            self.notes.append(f"{name}: {passing}{error}")
            return None


def _removes(rule: Mapping[str, object]) -> bool:
    """Whether a rule takes objects away, or to where they cannot be read at once."""
    taking = ("Expiration", "Transition", "Transitions")
    return rule.get("Status") != "Disabled" and any(rule.get(name) for name in taking)


def _aborts(rule: Mapping[str, object]) -> bool:
    """Whether a rule ends uploads that nobody completes."""
    is_on = rule.get("Status") != "Disabled"
    return is_on and bool(rule.get("AbortIncompleteMultipartUpload"))
