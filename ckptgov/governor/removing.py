"""Carrying plans out and undoing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptgov.errors import UnknownRun
from ckptgov.model.verbs import never

if TYPE_CHECKING:
    from ckptgov.model.removal import ApplyAnswer, UndeleteAnswer
    from ckptgov.model.removed import RemovedCopy
    from ckptgov.ops.context import Context


class RemovalVerbs:
    """Part of ``Governor``."""

    @property
    def context(self) -> Context:
        """Settings and catalog of this home."""
        raise NotImplementedError

    def has_catalog(self) -> bool:
        """Whether this home has a catalog: nothing is made for a question."""
        raise NotImplementedError

    def apply(
        self,
        plan_id: str | None,
        *,
        strict: bool = False,
        dry_run: bool = False,
        stop: Callable[[], bool] = never,
    ) -> ApplyAnswer:
        """Condemn what a plan lists, and go on with what was condemned or trashed before.

        None: only the going on. ``strict``: nothing at all where one entry has changed.
        """
        from ckptgov.ops.apply import apply

        return apply(self.context, plan_id, strict=strict, dry_run=dry_run, stop=stop)

    def undelete(
        self, target: str, *, step: int | None = None, dry_run: bool = False
    ) -> UndeleteAnswer:
        """Bring back what is condemned or in the trash, of a run or one of its checkpoints."""
        from ckptgov.ops.undelete import undelete

        return undelete(self.context, target, step=step, dry_run=dry_run)

    def removed(self, target: str, *, step: int | None = None) -> tuple[RemovedCopy, ...]:
        """A run's copies on their way out, with reasons; of one step also those that are gone.

        Nothing of a directory that is no registered run's: what is removed is in the catalog.
        """
        if not self.has_catalog():
            return ()
        from ckptgov.ops.removed import removed

        try:
            return removed(self.context, target, step=step)
        except UnknownRun:
            return ()
