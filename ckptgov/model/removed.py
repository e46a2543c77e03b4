"""What is told of a copy that is on its way out, or gone: by which plan, why, what comes next."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action, Why


class RemovedCopy(Struct, frozen=True, kw_only=True):
    """One copy that is condemned, being moved, in the trash or purged. None: nothing tells.

    ``name`` is "" where only the journal still knows the checkpoint. ``why`` is empty where the
    plan is not stored any more. ``moved_at_ns``: when its files began to be moved, by the journal.
    ``next`` follows at the first apply after ``due_at_ns``; what is being moved just now waits for
    no time. ``undo`` is the command that brings it back; "" where none does.
    """

    content_id: str
    name: str
    step: int | None
    place: str
    tier: str
    node: str | None
    state: CopyState  # CONDEMNED, TRASHING, TRASHED or PURGED
    action: Action | None = None
    plan_id: str | None = None
    why: tuple[Why, ...] = ()
    condemned_at_ns: int | None = None
    moved_at_ns: int | None = None
    purged_at_ns: int | None = None
    next: CopyState | None = None
    due_at_ns: int | None = None
    undo: str = ""
    error: str = ""  # what storage said when it did not let it go last
