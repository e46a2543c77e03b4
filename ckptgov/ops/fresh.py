"""A stored plan held against what would be decided now: what still goes, and why the rest stays."""

from __future__ import annotations

from msgspec.structs import replace

from ckptgov.errors import CkptgovError, RefusedBySafety
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action, DropReason, Plan, PlanEntry, RunVerdict
from ckptgov.ops.context import Context
from ckptgov.ops.lives import read_life
from ckptgov.ops.plan import plan, verdict
from ckptgov.ops.policies import policies_in_force
from ckptgov.ops.removing import Removing

_Key = tuple[str, str, str]
"""Run, content id and place."""


def require_same_policies(context: Context, stored: Plan) -> None:
    """Refuse a plan by a policy that is not in force, or not in these words.

    Raises:
        RefusedBySafety: it was changed, taken away, or only brought along to look at.
        ConfigError: a policy is wrong.
    """
    in_force = {one.name: one.digest for one in policies_in_force(context)}
    for name, digest in stored.policies:
        if in_force.get(name) != digest:
            how = "was changed since" if name in in_force else "is not in force"
            raise RefusedBySafety(
                f"policy {name} of the plan {how}", hint="'ckptgov plan' makes a new plan"
            )


class Fresh:
    """What would be decided now, of the runs that a plan is about."""

    def __init__(self, removing: Removing, plan_: Plan) -> None:
        self.plan = plan_
        self._removing = removing
        self._going: dict[_Key, PlanEntry] = {_key(one): one for one in plan_.entries}
        self._failures = dict(plan_.failures)
        self._verdicts: dict[str, RunVerdict | str] = {}

    def as_it_goes(self, entry: PlanEntry) -> PlanEntry:
        """An entry with what its going means and frees now."""
        return self._going.get(_key(entry), entry)

    def why_it_stays(self, entry: PlanEntry) -> str | None:
        """Why an entry does not go any more; None: it does."""
        if is_deletion(entry):
            return self._why_not_deleted(entry)
        now = self._going.get(_key(entry))
        if now is None:
            return self._why(entry)
        if entry.action is Action.EVICT and now.action is Action.PRUNE:
            return "no other copy of it would stay by now: it would be pruned, not evicted"
        return None

    def _why(self, entry: PlanEntry) -> str:
        if entry.run in self._failures:
            return f"its run could not be looked at: {self._failures[entry.run]}"
        judged = self._judged(entry.run)
        if isinstance(judged, str):
            return judged
        for checkpoint in judged.checkpoints:
            if checkpoint.content_id == entry.content_id:
                for at in checkpoint.tiers:
                    if at.tier == entry.tier and entry.place in at.places and at.action is None:
                        return "; ".join(one.text for one in at.why)
        return self._not_verified(entry) or "nothing makes it go any more"

    def _judged(self, run: str) -> RunVerdict | str:
        if run not in self._verdicts:
            try:
                self._verdicts[run] = verdict(self._removing.context, run)
            except CkptgovError as error:
                self._verdicts[run] = f"its run could not be judged: {error.message}"
        return self._verdicts[run]

    def _not_verified(self, entry: PlanEntry) -> str | None:
        """What became of a copy that can be removed no more; None: it is verified."""
        copies = self._removing.context.catalog.copies_of(entry.run_id, [entry.content_id])
        held = next((one for one in copies[entry.content_id] if one.place == entry.place), None)
        if held is None:
            return "the catalog knows no copy of it there any more"
        if held.state is not CopyState.VERIFIED:
            return f"its copy there is {held.state.value} by now"
        return None

    def _why_not_deleted(self, entry: PlanEntry) -> str | None:
        """Of a run that a person wants gone: as long as it is retired, what is verified goes."""
        life = read_life(self._removing.context.catalog, self._removing.run(entry.run_id))
        if life.retired_at_ns is None:
            return "its run is not retired any more: it was saved to since"
        return self._not_verified(entry)


def is_deletion(entry: PlanEntry) -> bool:
    """Whether it goes because a person wants the whole run gone."""
    return any(one.reason == DropReason.RUN_DELETED for one in entry.why)


def decided_anew(removing: Removing, stored: Plan) -> Fresh:
    """Decide again, with the facts of now; nothing is stored.

    A plan of one run alone is held against that run alone, as it was made.

    Raises:
        RefusedBySafety: by what is known now, nothing may be removed at all.
    """
    entries = [one for one in stored.entries if not is_deletion(one)]
    if not entries:
        return Fresh(removing, replace(stored, entries=(), failures=()))
    # The plan of one run leaves the limits of tiers out, and tells of none.
    only = entries[0].run if stored.runs == 1 and not stored.tiers else None
    fresh = plan(removing.context, run=only, policy_text=None, dry_run=True).plan
    lasting = [one for one in fresh.refusals if not one.is_cap]
    if lasting:
        raise RefusedBySafety(
            f"by what is known now, nothing may be removed: {lasting[0].text}",
            hint="'ckptgov plan' tells more",
        )
    return Fresh(removing, fresh)


def _key(entry: PlanEntry) -> _Key:
    return entry.run_id, entry.content_id, entry.place
