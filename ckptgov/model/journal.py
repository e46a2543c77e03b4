"""Journal records: create-once facts about a run, one class per kind (forms, version 1)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.model.checkpoint import StepKind


class LineCause(StrEnum):
    """Why a line was opened."""

    ROLLBACK = "rollback"
    DECISION = "decision"
    LOWER_STEP = "lower-step"


class RestoreOutcome(StrEnum):
    """What a rank reports about a start."""

    STARTED = "started"
    MISSING = "missing"
    CORRUPT = "corrupt"
    LOAD_FAILED = "load-failed"
    FAILED_LATER = "failed-later"


class Stamp(Struct, frozen=True, kw_only=True):
    """Members every record has. ``by`` reads ``uid:<n>@<host>``."""

    id: str
    run_id: str
    at_ns: int
    by: str
    reason: str | None = None


class Sealed(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    step: int | None
    step_kind: StepKind
    line: int
    attempt: int
    save_id: str | None = None
    metrics: tuple[tuple[str, str], ...] = ()


class LineOpened(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    line: int
    parent: int
    base_step: int
    cause: LineCause


class Rollback(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    to_step: int
    line: int


class MarkBad(Struct, frozen=True, kw_only=True):
    """Either one content id, or every step from ``from_step`` (to ``until_step``, inclusive)."""

    stamp: Stamp
    content_id: str | None = None
    from_step: int | None = None
    until_step: int | None = None


class UnmarkBad(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str | None = None
    from_step: int | None = None
    until_step: int | None = None


class Pin(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    pin_name: str
    until_ns: int | None = None


class Unpin(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    pin_name: str
    until_ns: int | None = None


class Metric(Struct, frozen=True, kw_only=True):
    """``value`` is a decimal string as the trainer spelled it; ``nan`` and ``inf`` allowed."""

    stamp: Stamp
    content_id: str
    name: str
    value: str


class Outcome(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    restart_id: str
    epoch: int
    outcome: RestoreOutcome


class Restart(Struct, frozen=True, kw_only=True):
    """One decision for one restart id and epoch: a content id, or a fresh start."""

    stamp: Stamp
    restart_id: str
    epoch: int
    content_id: str | None = None
    fresh: bool = False


class Lost(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    place: str


class Tombstone(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    place: str | None = None
    plan_id: str | None = None


class Undelete(Struct, frozen=True, kw_only=True):
    stamp: Stamp
    content_id: str
    place: str | None = None
    plan_id: str | None = None


class Retire(Struct, frozen=True, kw_only=True):
    stamp: Stamp


class Finish(Struct, frozen=True, kw_only=True):
    stamp: Stamp


Record = (
    Sealed
    | LineOpened
    | Rollback
    | MarkBad
    | UnmarkBad
    | Pin
    | Unpin
    | Metric
    | Outcome
    | Restart
    | Lost
    | Tombstone
    | Undelete
    | Retire
    | Finish
)

KIND_OF: dict[type, str] = {
    Sealed: "sealed",
    LineOpened: "line",
    Rollback: "rollback",
    MarkBad: "mark-bad",
    UnmarkBad: "unmark-bad",
    Pin: "pin",
    Unpin: "unpin",
    Metric: "metric",
    Outcome: "outcome",
    Restart: "restart",
    Lost: "lost",
    Tombstone: "tombstone",
    Undelete: "undelete",
    Retire: "retire",
    Finish: "finish",
}


def begins_at_zero(record: Record) -> bool:
    """Whether a record says no more than that a restart began fresh: it tells of no checkpoint."""
    return isinstance(record, Restart) and record.fresh


BINDING_KINDS = frozenset({"rollback", "line", "mark-bad", "tombstone", "restart"})
"""Kinds that must decode: ignoring one could offer what must not be offered."""


class NumberedRecord(Struct, frozen=True):
    """A record with its place in the journal; restart decisions have no number (0)."""

    number: int
    record: Record
