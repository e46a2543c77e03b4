"""What the findings of a tier mean, in words: one check per finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ckptgov.model.answers import Check

if TYPE_CHECKING:
    from ckptgov.work.abilities import Abilities

_NO_JOURNAL = "keep the runs' home, where their journal lies, on another tier"


class _Words(Struct, frozen=True):
    """What to say of a yes and of a no, how bad the no is, and what to do about it."""

    name: str
    yes: str
    no: str
    severity: str = "ok"
    fix: str = ""


_WORDS = {
    "publish_durable": _Words(
        "publish",
        "durable create works",
        "cannot be written",
        "failure",
        "it can be read from; copies, manifests and journal need another tier",
    ),
    "exclusive_create": _Words(
        "exclusive-create",
        "a taken name is refused",
        "one name can be given twice: this tier may hold copies but no journal",
        "failure",
        _NO_JOURNAL,
    ),
    "exclusive_create_between_mounts": _Words(
        "exclusive-create-between-mounts",
        "a name taken through one mount is refused through another",
        "two mounts were given the same name: this tier may hold copies but no journal",
        "failure",
        _NO_JOURNAL,
    ),
    "locks_between_mounts": _Words(
        "locks-between-mounts",
        "a lock taken through one mount holds on another",
        "locks hold only on the mount where they were taken: whether another node still writes "
        "a copy cannot be told",
        "warning",
        "mount with locks (NFS: without `nolock`; Lustre: with `flock`)",
    ),
    "listing_complete": _Words(
        "listing",
        "new names are listed at once",
        "names that were just published were not listed",
        "failure",
        "nothing here counts as absent; look whether a cache stands between",
    ),
    "list_is_byte_ordered": _Words(
        "list-order", "keys are listed in byte order", "keys are not listed in byte order"
    ),
    "directory_rename": _Words(
        "directory-rename",
        "a directory moves as a whole, and never over a taken name",
        "directories do not move as a whole: copies are published file by file",
    ),
    "hard_links": _Words(
        "hard-links",
        "files can have a second name",
        "no hard links: a checkpoint that its trainer rotates away cannot be held here",
    ),
    "reflink": _Words(
        "reflink", "files can share their blocks", "no reflinks: restoring here copies the bytes"
    ),
    "sync_of_directories": _Words(
        "sync-directories",
        "directories can be synced",
        "directories cannot be synced: what was published may be gone after a power cut",
        "warning",
    ),
    "times_settable": _Words(
        "set-times",
        "times are kept to the nanosecond",
        "times given to a file come back changed: copies here do not keep theirs",
        "warning",
    ),
    "inode_stable": _Words(
        "inodes",
        "inode numbers stay with their files",
        "inode numbers change by themselves: shards will be verified again and again",
        "warning",
        "look for a mount option that keeps them (`use_ino`, `noserverino` off)",
    ),
    "birth_time": _Words(
        "birth-time",
        "files tell when they were born",
        "no birth times: an overwrite in place before the first scan cannot be told from times "
        "that a copy carried over",
        "warning",
    ),
    "conditional_put": _Words(
        "conditional-put",
        "If-None-Match is honoured",
        "If-None-Match is ignored: this tier may hold copies but no journal",
        "failure",
        _NO_JOURNAL,
    ),
    "conditional_complete": _Words(
        "conditional-complete",
        "If-None-Match is honoured when a multipart upload is completed",
        "If-None-Match is ignored when a multipart upload is completed: each large shard's name "
        "is looked up first",
        "warning",
    ),
    "checksums_on_put": _Words(
        "checksums-on-put",
        "a wrong checksum was refused",
        "a wrong checksum was accepted: what arrives is proven by reading it back",
        "warning",
    ),
    "checksums_on_parts": _Words(
        "checksums-on-parts",
        "a part with a wrong checksum was refused",
        "a part with a wrong checksum was accepted: what arrives is proven by reading it back",
        "warning",
    ),
    "versioned": _Words(
        "versioning",
        "the bucket keeps old versions: removed shards take room until it drops them",
        "the bucket keeps no old versions",
    ),
    "locked": _Words(
        "object-lock",
        "objects can be locked: a locked one cannot be removed before its time",
        "objects are not locked",
    ),
    "lifecycle_aborts_uploads": _Words(
        "lifecycle-uploads",
        "the bucket ends uploads that nobody completes",
        "no lifecycle rule ends uploads that nobody completes: they take room until they are "
        "reconciled",
    ),
}


def checks_of(abilities: Abilities) -> tuple[Check, ...]:
    """What ``tier check`` prints; findings of None are left out, except where that is a gap."""
    checks = [
        _check(words, found)
        for field, words in _WORDS.items()
        if isinstance(found := getattr(abilities, field), bool)
    ]
    more = (_times, _lifecycle, _not_tried, _notes)
    return (*checks, *(check for each in more for check in each(abilities)))


def _check(words: _Words, found: bool) -> Check:
    if found:
        return Check(name=words.name, severity="ok", text=words.yes)
    return Check(name=words.name, severity=words.severity, text=words.no, fix=words.fix)


def _times(abilities: Abilities) -> list[Check]:
    step_ns = abilities.time_granularity_ns
    if step_ns is None:
        return []
    return [Check(name="times", severity="ok", text=f"times are {step_ns / 1e6:g} ms coarse")]


def _lifecycle(abilities: Abilities) -> list[Check]:
    if not abilities.lifecycle_removes:
        return []
    return [
        Check(
            name="lifecycle",
            severity="warning",
            text="a lifecycle rule of the bucket removes or archives objects beneath this prefix",
            fix="take the prefix out of the rule: checkpoints would vanish or not be readable",
        )
    ]


def _not_tried(abilities: Abilities) -> list[Check]:
    is_gap = abilities.is_shared and abilities.directory_rename
    if not is_gap or abilities.exclusive_create_between_mounts is not None:
        return []
    return [
        Check(
            name="exclusive-create-between-mounts",
            severity="warning",
            text="not tried: whether two nodes can be given the same name is not known",
            fix="mount the tier a second time on this machine and check again with that path",
        )
    ]


def _notes(abilities: Abilities) -> list[Check]:
    return [Check(name="not-found-out", severity="warning", text=note) for note in abilities.notes]
