"""What applying a plan did, copy by copy, and what an undelete brought back."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ckptgov.errors import CkptgovError
from ckptgov.model.retention import Action, Removal


class Went(StrEnum):
    """How far a copy got on its way out, or why it did not go."""

    CONDEMNED = "condemned"  # decided; moved aside once the grace is over
    TRASHED = "trashed"  # moved aside; undoable
    PURGED = "purged"  # its bytes are gone
    WOULD = "would"  # a dry run
    CHANGED = "changed"  # no longer as the plan saw it; skipped
    PROTECTED = "protected"  # a safety rule holds it back; skipped
    RESISTED = "resisted"  # storage did not let it go (all of it); tried again next time
    WAITING = "waiting"  # its grace, or its time in the trash, is not over


WENT_WRONG = frozenset({Went.RESISTED, Went.CHANGED, Went.PROTECTED})
"""It did not go, and its time was not the reason."""


class RemovalStep(Struct, frozen=True, kw_only=True):
    """What became of one copy. ``bytes`` and ``files`` are those freed by this call (or that
    would be); ``text`` says why, or what resisted."""

    run: str
    checkpoint: str
    content_id: str
    step: int | None
    tier: str
    node: str | None
    place: str
    action: Action
    went: Went
    bytes: int = 0
    files: int = 0
    text: str = ""
    due_at_ns: int | None = None


class ApplyAnswer(Struct, frozen=True, kw_only=True):
    """One call of ``apply``. ``plan_id`` None: only what earlier plans left to be done.

    ``error`` is a PartlyDone where something resisted or was skipped with a cause, a
    RefusedBySafety where nothing was done.
    """

    plan_id: str | None
    steps: tuple[RemovalStep, ...]
    is_dry_run: bool = False
    error: CkptgovError | None = None


class UndeleteAnswer(Struct, frozen=True, kw_only=True):
    """Copies that came back, and those that did not. A copy from the trash was verified again."""

    steps: tuple[RemovalStep, ...]
    restored: tuple[Removal, ...] = ()
    is_dry_run: bool = False
    error: CkptgovError | None = None
