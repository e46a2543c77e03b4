"""What goes into the catalog and comes out: frozen values, no SQL."""

from __future__ import annotations

from enum import Enum, StrEnum

from msgspec import Struct

from ckptgov.model.checkpoint import Evidence, Purpose, RunIdentity, StepKind
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Note

SCHEMA_VERSION = 4
REBUILD_HINT = "ckptgov catalog rebuild"


class CatalogIdentity(Struct, frozen=True, kw_only=True):
    """Which catalog this is; tiers name the one that governs them. ``epoch`` >= 1."""

    uuid: str
    epoch: int


class PlaceFacts(Struct, frozen=True, kw_only=True):
    """One tier on one node, or a shared one (``node`` None). ``root``: absolute, of the tier.

    ``is_current`` is False once another place (a replaced disk) was met at the same root.
    """

    place: str
    tier: str
    node: str | None
    root: str
    fs_type: str
    source: str
    first_seen_at_ns: int
    is_current: bool = True


class RunFacts(Struct, frozen=True, kw_only=True):
    """A registered run."""

    identity: RunIdentity
    created_at_ns: int


class RunRootFacts(Struct, frozen=True, kw_only=True):
    """Where a run lies at one place: ``path`` below the tier root, "" for the root itself.

    ``sidecar`` is the directory of our own files, below the tier root likewise.
    """

    run_id: str
    place: str
    path: str
    sidecar: str


class SealedFacts(Struct, frozen=True, kw_only=True):
    """A sealed checkpoint; its manifest's bytes are kept beside it."""

    run_id: str
    content_id: str
    name: str
    step: int | None
    step_kind: StepKind
    layout: str
    world_size: int | None
    purposes: tuple[Purpose, ...]
    bytes: int
    shard_count: int
    line: int
    attempt: int
    sealed_at_ns: int


class PlacedCopy(Struct, frozen=True, kw_only=True):
    """A sealed checkpoint's copy at one place; ``name`` is its path below the run root there.

    ``coverage`` is None where every shard lies there, else a bitmap: bit ``i % 8`` (from the
    lowest) of byte ``i // 8`` stands for shard ``i`` in manifest order. ``verified_at_ns`` is
    the time of the last verdict, kept when a later look could not read the copy.
    """

    run_id: str
    content_id: str
    place: str
    name: str
    state: CopyState
    coverage: bytes | None = None
    evidence: Evidence = Evidence.NONE
    verified_at_ns: int | None = None
    findings: tuple[Finding, ...] = ()


class SightingFacts(Struct, frozen=True, kw_only=True):
    """An unsealed candidate as the newest complete look at its place found it."""

    run_id: str
    place: str
    name: str
    variant: str
    step: int | None
    step_kind: StepKind
    layout: str
    bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    first_seen_at_ns: int
    last_seen_at_ns: int
    newest_mtime_ns: int


class RecordFacts(Struct, frozen=True, kw_only=True):
    """One journal record as it lies on storage; ``number`` is 0 for restart decisions."""

    run_id: str
    record_id: str
    number: int
    kind: str
    at_ns: int
    raw: bytes


class EventKind(StrEnum):
    """What can happen to the catalog: a closed set."""

    CREATED = "catalog-created"
    MIGRATED = "catalog-migrated"
    IDENTITY_ADOPTED = "identity-adopted"
    FACTS_WIPED = "facts-wiped"
    PLACE_ADDED = "place-added"
    PLACE_CHANGED = "place-changed"
    PLACE_REPLACED = "place-replaced"
    RUN_ADDED = "run-added"
    RUN_ROOT_ADDED = "run-root-added"
    RUN_ROOT_DROPPED = "run-root-dropped"
    SEALED = "sealed"
    COPY_ADDED = "copy-added"
    COPY_STATE = "copy-state"
    COPY_CONFIRMED = "copy-confirmed"
    DECIDED = "decided"
    NODE_ADDED = "node-added"
    NODE_STATE = "node-state"
    TOKEN_ADDED = "token-added"  # noqa: S105 - a kind of event, no secret
    TOKEN_REVOKED = "token-revoked"  # noqa: S105
    LOADED = "catalog-loaded"
    PLAN_STORED = "plan-stored"
    PLAN_STATE = "plan-state"


class EventFacts(Struct, frozen=True, kw_only=True):
    """One event; ``seq`` only grows and is never used again. ``detail``: (member, text) pairs."""

    seq: int
    at_ns: int
    kind: EventKind
    run_id: str | None
    content_id: str | None
    place: str | None
    detail: tuple[tuple[str, str], ...]


class Decision(Struct, frozen=True, kw_only=True):
    """What one restart and epoch was answered: a content id, or a fresh start."""

    run_id: str
    restart_id: str
    epoch: int
    content_id: str | None
    fresh: bool


class Keep(Enum):
    """Stands for "leave it as it is" where None already has a meaning."""

    KEEP = "keep"


KEEP = Keep.KEEP
