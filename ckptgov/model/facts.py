"""What layouts see, what a look finds, and what may be said about a checkpoint."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from ckptgov.model.checkpoint import Evidence, Purpose, StepKind


class Reason(StrEnum):
    """Why a checkpoint is not offered: the closed set of every answer."""

    BEING_WRITTEN = "being-written"
    TORN = "torn"
    MISSING_SHARD = "missing-shard"
    UNPROVEN = "unproven"  # nothing on disk tells its full set; declare a rule or commit it
    UNVERIFIED = "unverified"
    REOPENED = "re-opened"
    UNREADABLE = "unreadable"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    BAD = "bad"
    SUPERSEDED = "superseded"
    WRONG_PURPOSE = "wrong-purpose"
    DOES_NOT_FIT = "does-not-fit"
    STEPLESS = "stepless"
    STAGING = "staging"  # a framework's temporary name: never a checkpoint, whatever it holds


class Depth(StrEnum):
    """How much of the bytes a layout may read to prove a checkpoint."""

    STRUCTURE = "structure"  # names, sizes, headers, trailers, indexes
    DEEP = "deep"  # also every checksum the format carries (zip CRCs, crc32c)


class Finding(Struct, frozen=True):
    """One reason with the file it concerns (below the run root) and the evidence in words."""

    reason: Reason
    path: str
    evidence: str


class Note(Struct, frozen=True):
    """Something worth telling that forbids nothing (pointer disagrees, link dangles, ...)."""

    kind: str
    path: str
    text: str


class SeenShard(Struct, frozen=True):
    """A member of the set as the loader's own index decides it; ``path`` below the checkpoint."""

    path: str
    bytes: int
    is_marker: bool = False


class ResumeArgs(Struct, frozen=True, kw_only=True):
    """What the framework's loader wants to be told. Paths are below the run root."""

    path: str
    parent: str
    step: int | None
    tag: str


class Found(Struct, frozen=True, kw_only=True):
    """A candidate a layout claims, before anything is read of it.

    ``name`` is the checkpoint's path below the run root; ``files`` lists its members' paths below
    the run root where the candidate is a group of files in a shared directory, otherwise it is
    empty and the candidate is the whole directory (or the single file) ``name``. ``variant``
    tells several sets under one name apart (``world_size_4``).
    """

    name: str
    layout: str
    step: int | None
    step_kind: StepKind
    is_file: bool = False
    files: tuple[str, ...] = ()
    variant: str = ""


class Sighting(Struct, frozen=True, kw_only=True):
    """What a layout proves about one candidate at one place.

    Whole at this depth when ``findings`` is empty. ``expected`` lists every path below the
    checkpoint that the loader's index demands; at a place that holds only a part it is more than
    ``shards``. ``common_file`` names a file every part of one save holds with equal bytes, where
    the layout has one.
    """

    found: Found
    step: int | None
    step_kind: StepKind
    shards: tuple[SeenShard, ...]
    expected: tuple[str, ...]
    extras: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    purposes: tuple[Purpose, ...] = (Purpose.RESUME, Purpose.WEIGHTS)
    world_size: int | None = None
    reshardable: bool | None = None
    resume: ResumeArgs
    newest_mtime_ns: int = 0
    oldest_mtime_ns: int = 0
    is_carried: bool = False  # times were carried here by a copy (mtime before birth)
    common_file: str | None = None
    metrics: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Path below the run root."""
        return self.found.name

    @property
    def layout(self) -> str:
        """The framework's layout."""
        return self.found.layout

    @property
    def bytes(self) -> int:
        """Sum of the sizes of the members that are there."""
        return sum(shard.bytes for shard in self.shards)


class Pointer(Struct, frozen=True):
    """What a framework's own "latest" says: a hint, never followed, never written."""

    path: str
    text: str
    names: str | None  # checkpoint path below the run root, None when it names nothing usable


class StagingDebris(Struct, frozen=True):
    """A framework's temporary name that stayed behind (or is in use just now)."""

    path: str
    layout: str
    bytes: int
    newest_mtime_ns: int


class Survey(Struct, frozen=True, kw_only=True):
    """Everything one complete walk of a run root found; nothing was examined yet."""

    found: tuple[Found, ...]
    aliases: tuple[Note, ...] = ()  # symlinks to checkpoints, dangling and looping ones
    staging: tuple[StagingDebris, ...] = ()
    pointers: tuple[Pointer, ...] = ()


class CopyFacts(Struct, frozen=True, kw_only=True):
    """One place's share of a checkpoint."""

    place: str
    tier: str
    node: str | None
    root: str  # absolute path or URL of the run root at this place
    name: str = ""  # the checkpoint's path below it here; "" where it was not told
    shards: tuple[str, ...] | None  # None: all of them
    sound: tuple[str, ...] = ()  # shards whose compared bytes still stand here
    evidence: Evidence
    verified_at_ns: int | None = None
    findings: tuple[Finding, ...] = ()
    is_reachable: bool = True


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """One checkpoint as it stands now, over all places of its run."""

    name: str
    layout: str
    step: int | None
    step_kind: StepKind
    content_id: str | None  # None while unsealed
    purposes: tuple[Purpose, ...]
    world_size: int | None
    reshardable: bool | None
    bytes: int
    line: int
    attempt: int = 0
    evidence: Evidence
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...] = ()
    copies: tuple[CopyFacts, ...] = ()
    resume: ResumeArgs
    newest_mtime_ns: int = 0
    variant: str = ""
    shard_count: int = 0
    is_gathered: bool = False  # no place has it whole, but every shard lies sound at one of them


class Query(Struct, frozen=True, kw_only=True):
    """What a launcher asks for."""

    purpose: Purpose = Purpose.RESUME
    world_size: int | None = None
    min_evidence: Evidence = Evidence.STRUCTURE
    may_gather: bool = False  # the asker copies the shards together from several places
    step: int | None = None
    without: frozenset[str] = frozenset()  # content ids already reported unloadable
    only_name: str | None = None  # a directory that is itself one checkpoint


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether one checkpoint may be offered, and why not."""

    checkpoint: CheckpointFacts
    findings: tuple[Finding, ...]

    @property
    def is_restorable(self) -> bool:
        """Nothing speaks against it."""
        return not self.findings


class Choice(Struct, frozen=True, kw_only=True):
    """The answer of ``latest``: newest first, with a reason for each that was passed over."""

    chosen: CheckpointFacts | None
    verdicts: tuple[Verdict, ...]
    notes: tuple[Note, ...] = field(default=())
