"""What retention is decided from, what it decides, and why: facts in, verdicts and plans out."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.copies import CopyState


class RunLife(StrEnum):
    """Where a run stands. Dead is what nobody said and everything points to."""

    LIVE = "live"
    FINISHED = "finished"  # its trainer is done; everything else goes on as for a live one
    DEAD = "dead"
    RETIRED = "retired"


class KeepReason(StrEnum):
    """Why something stays: rules first, then what protects it from every rule."""

    LAST = "last"
    FIRST = "first"
    WITHIN = "within"
    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"
    YEARLY = "yearly"
    EVERY_STEPS = "every_steps"
    EVERY = "every"
    BEST = "best"
    RECORDED_BEST = "recorded_best"
    METRIC_AWAITED = "metric-awaited"  # of a ``best`` rule: no value yet
    STEPS = "steps"
    TAGS = "tags"
    OLDER_THAN_DETECTION = "older_than_detection"
    NO_RULES = "no-rules"  # nothing is said of this tier (or of weights)
    NEWEST_RESTORABLE = "newest-restorable"
    NEWEST_DURABLE = "newest-durable"
    START_POINT = "start-point"  # a living restart began from it; nothing newer is durable
    PINNED = "pinned"
    LEASED = "leased"
    UNDRAINED = "undrained"  # a link has yet to bring it to a more durable tier
    FLOOR_RESTORABLE = "floor-restorable"
    FLOOR_COPIES = "floor-copies"
    FLOOR_AGE = "floor-age"
    ADOPTION = "adoption"  # the run was met only lately
    OLD_LINE = "old-line"  # replaced by a later line, and not retired by rule
    STEPLESS = "stepless"
    NOT_VERIFIED = "not-verified"  # its copy here cannot be counted on; removing proves nothing
    STALE_PROOF = "stale-proof"  # the copies that would remain were compared too long ago
    UNREACHABLE = "unreachable"  # its place cannot be reached now
    OTHER_CATALOG = "other-catalog"  # another catalog governs the tier
    BELOW_LIMIT = "below-limit"  # only a capacity limit prunes here, and it is kept


class DropReason(StrEnum):
    """Why something goes."""

    NO_RULE_KEEPS = "no-rule-keeps"
    MARKED_BAD = "marked-bad"
    SAVED_AGAIN = "saved-again"  # a newer attempt of the same step stands
    OLD_LINE = "old-line"
    RETIRED = "retired"
    QUOTA_BYTES = "quota-bytes"
    QUOTA_FILES = "quota-files"
    WATERMARK = "watermark"
    ROOM_FOR_SAVE = "room-for-save"
    RUN_DELETED = "run-deleted"


class Why(Struct, frozen=True):
    """One reason in the closed set, and the same in words with its figures."""

    reason: str  # a KeepReason or DropReason
    text: str


class Action(StrEnum):
    """What becomes of a copy."""

    EVICT = "evict"  # this copy goes, the checkpoint stays elsewhere
    PRUNE = "prune"  # the checkpoint itself goes: no verified copy stays anywhere


class CopyToKeep(Struct, frozen=True, kw_only=True):
    """One copy at one place. ``coverage`` as in the catalog: None is every shard, else a bitmap.

    ``files``: how many shards lie there. ``is_governed``: this catalog may remove there.
    """

    place: str
    tier: str
    node: str | None
    state: CopyState
    coverage: bytes | None = None
    bytes: int
    files: int
    verified_at_ns: int | None = None
    is_reachable: bool = True
    is_governed: bool = True

    @property
    def is_shared(self) -> bool:
        """Whether it outlives the loss of any one node."""
        return self.node is None


class CheckpointToKeep(Struct, frozen=True, kw_only=True):
    """One sealed checkpoint with all its copies in any state.

    ``saved_at_ns`` is its first sight or commit by the catalog's clock. ``mark``: why it is bad
    (marked by a person, or reported unloadable). ``pins`` are names that protect now, ``tags``
    those and the run out ones. ``awaited_by``: tiers that a link has yet to bring it to.
    ``metrics``: (name, value as the trainer spelled it).
    """

    content_id: str
    name: str
    step: int | None
    step_kind: StepKind
    line: int
    attempt: int = 0
    purposes: tuple[Purpose, ...]
    bytes: int
    shard_count: int
    saved_at_ns: int
    mark: str | None = None
    pins: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    leases: frozenset[str] = frozenset()
    is_start_point: bool = False
    awaited_by: frozenset[str] = frozenset()
    metrics: tuple[tuple[str, str], ...] = ()
    copies: tuple[CopyToKeep, ...] = ()


class RunToKeep(Struct, frozen=True, kw_only=True):
    """One run. ``path`` are the lines that are offered: (line, highest step that still counts or
    None), the active one first; ``line_replaced_at_ns`` says since when a line not wholly on the
    path is replaced. ``met_at_ns``: when the catalog first met it; ``alive_at_ns``: its last sign
    of life (save, lease, question); ``retired_at_ns`` None: not retired.
    """

    run_id: str
    name: str
    path: tuple[tuple[int, int | None], ...] = ((1, None),)
    line_replaced_at_ns: tuple[tuple[int, int], ...] = ()
    met_at_ns: int
    alive_at_ns: int
    finished_at_ns: int | None = None
    retired_at_ns: int | None = None
    recorded_best: str | None = None  # a checkpoint's name, as the trainer's own state has it
    checkpoints: tuple[CheckpointToKeep, ...]
    unseen: frozenset[str] = frozenset()  # tiers of which a place could not be looked at

    @property
    def team(self) -> str:
        """What stands before the slash; empty where there is none."""
        team, slash, _ = self.name.partition("/")
        return team if slash else ""


class CopyVerdict(Struct, frozen=True, kw_only=True):
    """What becomes of one checkpoint at one tier (all its places there), and every reason."""

    tier: str
    places: tuple[str, ...]
    action: Action | None  # None: it stays
    why: tuple[Why, ...]
    bytes: int
    files: int


class CheckpointVerdict(Struct, frozen=True, kw_only=True):
    """One checkpoint: what becomes of it at each tier that has a copy."""

    content_id: str
    name: str
    step: int | None
    line: int
    tiers: tuple[CopyVerdict, ...]


class RunVerdict(Struct, frozen=True, kw_only=True):
    """One run under its policy, newest checkpoint first; ``notes`` are warnings in words."""

    run_id: str
    run: str
    policy: str | None
    life: RunLife
    checkpoints: tuple[CheckpointVerdict, ...]
    notes: tuple[str, ...] = ()


class PlanEntry(Struct, frozen=True, kw_only=True):
    """One copy at one place that is to go. ``bytes`` and ``files`` are what its going frees:
    bytes that other names or other copies of a file still hold are not among them."""

    run_id: str
    run: str
    content_id: str
    checkpoint: str
    step: int | None
    place: str
    tier: str
    node: str | None
    action: Action
    why: tuple[Why, ...]
    bytes: int
    files: int
    size_bytes: int  # of its shards, freed or not


class PlanRefusal(Struct, frozen=True, kw_only=True):
    """Why a plan must not be applied as it is. A person's approval lifts ``is_cap`` ones."""

    is_cap: bool
    text: str


class TierOutlook(Struct, frozen=True, kw_only=True):
    """One tier (one node's disk) before and after the plan; ``over_bytes``: what no eviction can
    bring below its limit, an alert and a reason to refuse further flushes there."""

    tier: str
    node: str | None
    used_bytes: int
    limit_bytes: int | None
    freed_bytes: int
    freed_files: int
    over_bytes: int = 0
    over_files: int = 0


class Plan(Struct, frozen=True, kw_only=True):
    """What retention and capacity decided, at one moment of the catalog.

    ``plan_id``: ``sha256:<hex>`` over all else, so that equal decisions are one plan.
    ``policies``: (name, digest) of each that took part. ``failures``: (run, why) of runs that
    could not be looked at, of which nothing goes. ``kept``: verdicts of what stays, where asked
    for.
    """

    plan_id: str
    now_ns: int
    change_seq: int
    policies: tuple[tuple[str, str], ...]
    entries: tuple[PlanEntry, ...]
    tiers: tuple[TierOutlook, ...] = ()
    refusals: tuple[PlanRefusal, ...] = ()
    failures: tuple[tuple[str, str], ...] = ()
    runs: int = 0
    checkpoints: int = 0


class PlanState(StrEnum):
    """Where a stored plan stands."""

    PROPOSED = "proposed"
    WAITING = "waiting"  # beyond a cap: a person has to approve it
    APPROVED = "approved"
    APPLIED = "applied"
    STALE = "stale"  # replaced by a later plan before anything was done
    REFUSED = "refused"


class StoredPlan(Struct, frozen=True, kw_only=True):
    """A plan as the catalog keeps it; ``by`` who proposed, approved or applied it last."""

    plan: Plan
    state: PlanState
    stored_at_ns: int
    changed_at_ns: int
    by: str
    note: str = ""


class Removal(Struct, frozen=True, kw_only=True):
    """A copy on its way out, as the catalog knows it. Times are the catalog's clock's.

    ``due_at_ns``: when the next thing may happen to it (moved aside after the grace, purged after
    its time in the trash). ``trash``: where its files lie below the place's root once moved; empty
    before, and where they went without a stop. ``error``: what resisted last.
    """

    run_id: str
    content_id: str
    place: str
    name: str
    action: Action
    plan_id: str
    state: CopyState  # CONDEMNED, TRASHING, TRASHED; REOPENED once back, and to be compared
    condemned_at_ns: int
    due_at_ns: int
    trash_s: float
    bytes: int
    files: int
    trash: str = ""
    error: str = ""


class CheckpointLease(Struct, frozen=True, kw_only=True):
    """A time-limited claim on a checkpoint by somebody who reads it."""

    run_id: str
    content_id: str
    lease_id: str
    owner: str
    reason: str
    taken_at_ns: int
    ends_at_ns: int
