"""What flush and restore give back."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import Finding, ResumeArgs


class FlushState(StrEnum):
    """How one checkpoint stands at its target after a flush."""

    FLUSHED = "flushed"
    STOOD = "stood"  # all of it was there; compared and recorded
    UNPROVEN = "unproven"  # written, but the tier's proof is "none": not restorable before verify
    PARTIAL = "partial"  # the shards this node can reach arrived; others are still missing
    WOULD = "would-flush"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # told to stop; the next flush goes on from there


class FlushedCheckpoint(Struct, frozen=True, kw_only=True):
    """One checkpoint over one link. ``name`` is its path below the run root at the target.

    ``sent_bytes`` left this process for the target, repeated ones included; ``resumed_bytes``
    had arrived in an earlier try and were not sent again.
    """

    run: str
    name: str
    step: int | None
    step_kind: StepKind
    content_id: str
    source: str
    target: str
    bytes: int
    state: FlushState
    reasons: tuple[str, ...] = ()
    sent_bytes: int = 0
    resumed_bytes: int = 0
    took_s: float = 0.0
    missing: tuple[str, ...] = ()
    faults: tuple[Finding, ...] = ()  # bad sources, passed over for better ones
    error: CkptgovError | None = None


class FlushSkip(Struct, frozen=True, kw_only=True):
    """A checkpoint that does not flow, and why."""

    run: str
    name: str
    step: int | None
    step_kind: StepKind
    target: str
    why_not: str
    text: str


class FlushAnswer(Struct, frozen=True, kw_only=True):
    """One pass of flushing."""

    checkpoints: tuple[FlushedCheckpoint, ...]
    skips: tuple[FlushSkip, ...] = ()
    error: CkptgovError | None = None


class RestoreSource(Struct, frozen=True, kw_only=True):
    """A place that gave shards, and how much."""

    place: str
    tier: str
    root: str
    shards: int
    bytes: int


class RestoreAnswer(Struct, frozen=True, kw_only=True):
    """A checkpoint brought to a directory. ``resume`` holds absolute paths.

    With ``matched`` only some shards were brought: never a whole checkpoint. ``eta_s`` is told
    for a dry run, where the rates of the places are known.
    """

    run: str | None
    name: str
    step: int | None
    step_kind: StepKind
    content_id: str
    path: str
    resume: ResumeArgs
    bytes: int
    shards: int
    matched: bool
    sources: tuple[RestoreSource, ...]
    sent_bytes: int = 0
    resumed_bytes: int = 0
    took_s: float = 0.0
    eta_s: float | None = None
    stood_already: bool = False
    faults: tuple[Finding, ...] = ()
