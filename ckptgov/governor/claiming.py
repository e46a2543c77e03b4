"""What people say of checkpoints and runs: bad marks, rollbacks, outcomes, pins, metrics, ends.

Each is one record of the run's journal, written to its places and mirrored in the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptgov.model.journal import Record, RestoreOutcome
    from ckptgov.model.retention import StoredPlan
    from ckptgov.ops.context import Context
    from ckptgov.work.ask import Asked
    from ckptgov.work.author import Author


class ClaimVerbs:
    """Part of ``Governor``."""

    talk: Callable[[str], None]
    """Told what a person at the terminal should know."""

    @property
    def context(self) -> Context:
        """Settings and catalog of this home."""
        raise NotImplementedError

    @property
    def author(self) -> Author:
        """Who writes the records of this process."""
        raise NotImplementedError

    def asked(
        self,
        target: str,
        *,
        node: str | None = None,
        place: str | None = None,
        sealed_only: bool = False,
    ) -> Asked:
        """The run or directory a person named, ready to be looked at."""
        raise NotImplementedError

    def has_catalog(self) -> bool:
        """Whether this home has a catalog that would want to know."""
        raise NotImplementedError

    def _said(self, target: str, make: Callable[[Asked, str], Record], *, dry_run: bool) -> Record:
        """The record that ``make`` makes of a run and its id, written to the run's places."""
        from ckptgov.ops.history import append_everywhere, mirror, run_id_for

        asked = self.asked(target)
        record = make(asked, run_id_for(asked, self.author, dry_run=dry_run))
        if dry_run:
            return record
        number = append_everywhere(asked, record, self.talk)
        if self.has_catalog():
            mirror(self.context.catalog, record.stamp.run_id, number, record)
        return record

    def mark_bad(
        self,
        target: str,
        *,
        step: int | None,
        from_step: int | None,
        until_step: int | None,
        reason: str,
        undo: bool = False,
        dry_run: bool = False,
    ) -> Record:
        """Say that a checkpoint or a range of steps must not be offered (or may be again)."""
        from ckptgov.ops.history import mark_bad

        def make(asked: Asked, run_id: str) -> Record:
            return mark_bad(
                asked,
                self.author,
                run_id=run_id,
                step=step,
                from_step=from_step,
                until_step=until_step,
                reason=reason,
                undo=undo,
            )

        return self._said(target, make, dry_run=dry_run)

    def rollback(
        self, target: str, *, to_step: int, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Open a new line at a step: nothing above it in older lines is offered any more."""
        from ckptgov.ops.history import rollback

        def make(asked: Asked, run_id: str) -> Record:
            return rollback(asked, self.author, run_id=run_id, to_step=to_step, reason=reason)

        return self._said(target, make, dry_run=dry_run)

    def report(
        self,
        target: str,
        *,
        restart_id: str,
        outcome: RestoreOutcome,
        epoch: int | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> Record:
        """Tell what became of the start that a restart id was given."""
        from ckptgov.ops.history import report

        def make(asked: Asked, run_id: str) -> Record:
            return report(
                asked,
                self.author,
                run_id=run_id,
                restart_id=restart_id,
                outcome=outcome,
                epoch=epoch,
                reason=reason,
            )

        return self._said(target, make, dry_run=dry_run)

    def pin(
        self,
        target: str,
        *,
        step: int,
        name: str,
        reason: str | None,
        ttl_s: float | None,
        undo: bool = False,
        dry_run: bool = False,
    ) -> Record:
        """Keep a checkpoint under a name, for good or for so long (or no longer)."""
        from ckptgov.ops.history import pin

        def make(asked: Asked, run_id: str) -> Record:
            return pin(
                asked,
                self.author,
                run_id=run_id,
                step=step,
                name=name,
                reason=reason,
                ttl_s=ttl_s,
                undo=undo,
            )

        return self._said(target, make, dry_run=dry_run)

    def set_metric(
        self, target: str, *, step: int, name: str, value: str, dry_run: bool = False
    ) -> Record:
        """Tell a metric of a checkpoint after it was sealed."""
        from ckptgov.ops.history import set_metric

        def make(asked: Asked, run_id: str) -> Record:
            return set_metric(asked, self.author, run_id=run_id, step=step, name=name, value=value)

        return self._said(target, make, dry_run=dry_run)

    def end_run(
        self, target: str, *, retire: bool, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Say that a run is finished, or retired: its last checkpoints may then go by rule.

        A save that is sealed later lifts it.
        """
        from ckptgov.ops.history import end_run

        def make(asked: Asked, run_id: str) -> Record:
            return end_run(asked, self.author, run_id=run_id, retire=retire, reason=reason)

        return self._said(target, make, dry_run=dry_run)

    def delete_run(self, target: str, *, confirm: str, dry_run: bool = False) -> StoredPlan:
        """Plan the removal of every checkpoint of a retired run; ``confirm`` repeats its name."""
        from ckptgov.ops.flush import run_named
        from ckptgov.ops.plan import plan_of_deletion

        run = run_named(self.context, target)
        return plan_of_deletion(self.context, run, confirm=confirm, dry_run=dry_run)
