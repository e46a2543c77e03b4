"""Checkpoints, their shards, manifests and receipts."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.model.files import Token

CHUNK_BYTES = 64 * 2**20
"""Shards larger than this carry one digest per chunk of this size (forms, version 1)."""


def digits_of(content_id: str) -> str:
    """The 64 hex digits of a content id."""
    return content_id.removeprefix("sha256:")


class Purpose(StrEnum):
    """What a checkpoint is complete for, in the order manifests list it."""

    RESUME = "resume"
    WEIGHTS = "weights"


class StepKind(StrEnum):
    """What the number of a checkpoint counts."""

    STEP = "step"
    ORDINAL = "ordinal"  # a save counter, an epoch, a bare last integer: orders like a step
    NONE = "none"  # stepless: listed, never latest


class Evidence(StrEnum):
    """How a copy was found whole; weaker kinds never count."""

    DIGEST = "digest"  # bytes compared with the manifest, tokens unchanged since
    STRUCTURE = "structure"  # the layout's own proof only
    NONE = "none"


class VerifyLevel(StrEnum):
    """How deep a verification looks."""

    SIZE = "size"
    STRUCTURE = "structure"
    DIGEST = "digest"


class Shard(Struct, frozen=True):
    """One file of a checkpoint. ``path`` is "" for the shard of a single-file checkpoint."""

    path: str
    bytes: int
    digest: str
    chunks: tuple[str, ...] = ()


class Manifest(Struct, frozen=True, kw_only=True):
    """A function of the checkpoint alone, so that equal checkpoints give equal bytes.

    ``shards`` is sorted by raw path bytes and never empty. ``content_id`` is
    ``sha256:<64 hex>`` over sorted (path, bytes, digest).
    """

    content_id: str
    name: str
    step: int | None
    step_kind: StepKind
    layout: str
    world_size: int | None
    purposes: tuple[Purpose, ...]
    shards: tuple[Shard, ...]

    @property
    def bytes(self) -> int:
        """Sum of the shards' sizes."""
        return sum(shard.bytes for shard in self.shards)


class ManifestHeader(Struct, frozen=True, kw_only=True):
    """A manifest without its shards: what choosing needs, cheap to decode."""

    content_id: str
    name: str
    step: int | None
    step_kind: StepKind
    layout: str
    world_size: int | None
    purposes: tuple[Purpose, ...]


class Part(Struct, frozen=True, kw_only=True):
    """One rank's or node's entries of a save; exactly one of ``rank`` and ``node`` or neither."""

    name: str
    step: int | None
    step_kind: StepKind
    layout: str
    world_size: int | None
    purposes: tuple[Purpose, ...]
    save_id: str | None = None
    rank: int | None = None
    node: str | None = None
    expected_parts: int | None = None
    shards: tuple[Shard, ...]


class Receipt(Struct, frozen=True, kw_only=True):
    """What was verified at one place: a token per shard the place holds, in path order."""

    content_id: str
    place: str
    evidence: Evidence
    verified_at_ns: int
    tokens: tuple[tuple[str, Token], ...]


class Expect(Struct, frozen=True, kw_only=True):
    """A declared rule for checkpoints no layout can prove.

    ``glob`` matches shard paths below the run root (``*`` does not cross ``/``, ``**`` does);
    files matched under one step-bearing name form one checkpoint. ``count`` is the exact number
    of shards, ``marker`` a file name that must exist beside them, ``step`` a regular expression
    whose first group is the step.
    """

    glob: str
    count: int | None = None
    marker: str | None = None
    step: str | None = None


class RunIdentity(Struct, frozen=True, kw_only=True):
    """``run.json``: who a run root belongs to."""

    run_id: str
    name: str
    selector: str = "*"
    expect: Expect | None = None


class TierIdentity(Struct, frozen=True, kw_only=True):
    """``.ckptgov-tier.json``: which place a root is, and which catalog governs it."""

    place: str
    tier: str
    fs_type: str
    source: str
    catalog: str
    epoch: int
