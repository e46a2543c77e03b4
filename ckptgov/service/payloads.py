"""What a task is asked to do, as JSON: one form per kind. Members not named here do not matter.

A run may also be named by the task itself (``NewTask.for_run``).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from ckptgov.errors import UsageError
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.cluster import TaskFacts
from ckptgov.ops.reconcile import OLDER_THAN_S

T = TypeVar("T", bound=Struct)


class Asked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What somebody may ask for whose name is to stand in records; None: the service itself."""

    asked_by: str | None = None


class By(Struct, frozen=True, kw_only=True):
    """Under which leadership a task was made; None where a request asked for it."""

    catalog_epoch: int
    leader_epoch: int


class ScanPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tiers or runs to look at; neither: everything that is scanned from there."""

    tiers: tuple[str, ...] | None = None
    runs: tuple[str, ...] | None = None
    by: By | None = None


class FlushPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run or every run, one step or what the links choose, to one tier or along every link.

    ``sources``: only along links that begin there.
    """

    run: str | None = None
    step: int | None = None
    to: str | None = None
    sources: tuple[str, ...] | None = None
    by: By | None = None


class VerifyPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run, or of the tiers what has longest not been compared.

    ``share_s``: how much of ``verify_max_age`` this turn stands for: how often turns come.
    """

    run: str | None = None
    level: VerifyLevel = VerifyLevel.DIGEST
    tiers: tuple[str, ...] | None = None
    share_s: float = 86400.0
    by: By | None = None


class ReconcilePayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tiers to bring together with the catalog; none named: all.

    ``staging_older_than_s``: what trainers left under temporary names goes, too.
    """

    tiers: tuple[str, ...] = ()
    older_than_s: float = OLDER_THAN_S
    staging_older_than_s: float | None = None
    by: By | None = None


class PlanPayload(Asked, frozen=True, kw_only=True, omit_defaults=True):
    """What may go, of one run or of all; the plan is stored."""

    run: str | None = None
    by: By | None = None


class ApplyPayload(Asked, frozen=True, kw_only=True, omit_defaults=True):
    """One stored plan, or what was begun before.

    ``is_newest``: the newest plan that needs nobody's approval, if there is one.
    """

    plan: str | None = None
    is_newest: bool = False
    strict: bool = False
    by: By | None = None


class UndeletePayload(Asked, frozen=True, kw_only=True, omit_defaults=True):
    """What is condemned or in the trash, of one run or of one step of it."""

    run: str | None = None
    step: int | None = None
    by: By | None = None


class CapacityPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How full every tier is that is seen from here."""

    by: By | None = None


class BackupPayload(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A copy of the catalog, to where the settings say."""

    by: By | None = None


def payload_of(task: TaskFacts, kind: type[T]) -> T:
    """What a task is asked to do.

    Raises:
        UsageError: its payload is not of this form.
    """
    try:
        return msgspec.json.decode(task.task.payload or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"task {task.task_id} ({task.task.kind.value}): {error}") from error


def encoded(payload: Struct) -> bytes:
    """A payload as a task carries it."""
    return msgspec.json.encode(payload)
