"""What the verbs give back: frozen values that the command line and the API render alike."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.checkpoint import StepKind
from ckptgov.model.facts import (
    CheckpointFacts,
    Choice,
    Finding,
    Note,
    ResumeArgs,
    StagingDebris,
    Verdict,
)


class RestartAnswer(Struct, frozen=True, kw_only=True):
    """The decision an answer belongs to."""

    restart_id: str
    epoch: int
    decided_here: bool


class LatestAnswer(Struct, frozen=True, kw_only=True):
    """The answer of ``latest``: a checkpoint with its absolute path, or the error with its reasons.

    ``resume`` holds absolute paths.
    """

    run: str | None
    choice: Choice
    chosen: CheckpointFacts | None
    path: str | None = None
    resume: ResumeArgs | None = None
    restart: RestartAnswer | None = None
    error: CkptgovError | None = None


class RunListing(Struct, frozen=True, kw_only=True):
    """Every checkpoint of a run with its verdict, newest first."""

    run: str | None
    run_id: str | None
    root: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[Note, ...] = ()
    staging: tuple[StagingDebris, ...] = ()
    active_line: int = 1


class SealedCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint that was sealed just now; ``is_new`` is false for one that was completed."""

    name: str
    step: int | None
    step_kind: StepKind
    content_id: str
    bytes: int
    shards: int
    is_new: bool


class ScannedRun(Struct, frozen=True, kw_only=True):
    """What a scan did at one run, and how the run stands afterwards."""

    listing: RunListing
    sealed: tuple[SealedCheckpoint, ...]
    failures: tuple[tuple[str, CkptgovError], ...] = ()
    lost: tuple[str, ...] = ()


class ScanAnswer(Struct, frozen=True, kw_only=True):
    """All runs of one scan. ``error`` is set when something could not be looked at or sealed."""

    runs: tuple[ScannedRun, ...]
    error: CkptgovError | None = None


class VerifiedCheckpoint(Struct, frozen=True, kw_only=True):
    """One checkpoint after comparing; ``state`` is "restorable" or a reason."""

    name: str
    step: int | None
    step_kind: StepKind
    layout: str
    variant: str
    content_id: str | None
    place: str
    bytes: int
    evidence: str
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()

    @property
    def state(self) -> str:
        """One word."""
        return self.findings[0].reason.value if self.findings else "restorable"


class VerifyAnswer(Struct, frozen=True, kw_only=True):
    """Everything verified, and the error that the exit code comes from."""

    checkpoints: tuple[VerifiedCheckpoint, ...]
    notes: tuple[Note, ...] = ()
    error: CkptgovError | None = None


class Check(Struct, frozen=True, kw_only=True):
    """One thing ``doctor`` or ``tier check`` looked at. ``severity``: ok, warning or failure."""

    name: str
    severity: str
    text: str
    fix: str = ""
