"""What people say of checkpoints and runs: pins, metrics, the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptgov.model.journal import Record
    from ckptgov.model.retention import StoredPlan
    from ckptgov.ops.context import Context
    from ckptgov.work.ask import Asked
    from ckptgov.work.author import Author


class ClaimVerbs:
    """Part of ``Governor``."""

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

    def _written(self, asked: Asked, record: Record, *, dry_run: bool) -> Record:
        raise NotImplementedError

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
        from ckptgov.ops.history import pin, run_id_for

        asked = self.asked(target)
        record = pin(
            asked,
            self.author,
            run_id=run_id_for(asked, self.author, dry_run=dry_run),
            step=step,
            name=name,
            reason=reason,
            ttl_s=ttl_s,
            undo=undo,
        )
        return self._written(asked, record, dry_run=dry_run)

    def set_metric(
        self, target: str, *, step: int, name: str, value: str, dry_run: bool = False
    ) -> Record:
        """Tell a metric of a checkpoint after it was sealed."""
        from ckptgov.ops.history import run_id_for, set_metric

        asked = self.asked(target)
        run_id = run_id_for(asked, self.author, dry_run=dry_run)
        record = set_metric(asked, self.author, run_id=run_id, step=step, name=name, value=value)
        return self._written(asked, record, dry_run=dry_run)

    def end_run(
        self, target: str, *, retire: bool, reason: str | None = None, dry_run: bool = False
    ) -> Record:
        """Say that a run is finished, or retired: its last checkpoints may then go by rule.

        A save that is sealed later lifts it.
        """
        from ckptgov.ops.history import end_run, run_id_for

        asked = self.asked(target)
        run_id = run_id_for(asked, self.author, dry_run=dry_run)
        record = end_run(asked, self.author, run_id=run_id, retire=retire, reason=reason)
        return self._written(asked, record, dry_run=dry_run)

    def delete_run(self, target: str, *, confirm: str, dry_run: bool = False) -> StoredPlan:
        """Plan the removal of every checkpoint of a retired run; ``confirm`` repeats its name."""
        from ckptgov.ops.flush import run_named
        from ckptgov.ops.plan import plan_of_deletion

        run = run_named(self.context, target)
        return plan_of_deletion(self.context, run, confirm=confirm, dry_run=dry_run)
