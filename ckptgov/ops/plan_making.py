"""A plan in the making: runs stream by, what is to go is measured, and what was found is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from ckptgov.catalog.facts import RunFacts
from ckptgov.config.policies import policy_for
from ckptgov.errors import CkptgovError
from ckptgov.model.planned import Kept
from ckptgov.model.policy import Lifecycle, Policy
from ckptgov.model.retention import (
    DropReason,
    Plan,
    PlanEntry,
    RunLife,
    RunToKeep,
    RunVerdict,
    TierOutlook,
)
from ckptgov.model.usage import RunUsage
from ckptgov.ops.context import Context
from ckptgov.ops.lives import life_of, read_life
from ckptgov.ops.plan_fills import fills_now
from ckptgov.ops.plan_measure import Measured
from ckptgov.ops.plan_tally import Tally
from ckptgov.ops.policies import policies_in_force, policy_from, tags_of
from ckptgov.ops.retention_facts import RetentionFacts, run_named, wanted_by
from ckptgov.ops.run_usage import run_usage
from ckptgov.planning.capacity_facts import Fill
from ckptgov.planning.retention import Decided, decide, verdict_of
from ckptgov.planning.retention_plan import Unjudged, plan_of, with_id

LIMITS_LEFT_OUT: Final = "limits of tiers are judged over all runs together: 'ckptgov plan' does"
_ROUNDS = 8
"""How often a plan is made anew for what was found; what still changes then is left alone."""
_MOST_NAMED = 5
_BY_LIMITS = frozenset(
    {
        DropReason.QUOTA_BYTES,
        DropReason.QUOTA_FILES,
        DropReason.WATERMARK,
        DropReason.ROOM_FOR_SAVE,
    }
)


def is_forced(one: PlanEntry) -> bool:
    """Whether a limit makes it go, and no rule."""
    return any(why.reason in _BY_LIMITS for why in one.why)


class Making:
    """One plan being made: one moment of the catalog, and what was found on the way."""

    def __init__(self, context: Context, *, only: str | None, policy_text: str | None) -> None:
        self._context = context
        self._only = only
        self.now_ns = context.catalog.tick()
        self._change_seq = context.catalog.change_seq()
        self._policies = (
            policies_in_force(context)
            if policy_text is None
            else (policy_from(context, policy_text),)
        )
        self._facts = RetentionFacts(context, now_ns=self.now_ns)
        self._measured = Measured(context)
        self._tally = Tally()
        self._quiet: list[str] = []
        self._ungoverned: list[str] = []
        self._notes: Sequence[tuple[str, str]] = ()
        self.errors: dict[str, CkptgovError] = {}
        """Run to why it could not be looked at."""

    def made(self) -> Plan:
        """The plan, of what storage says as well."""
        fills: Sequence[Fill] = ()
        if self._only is None:
            limited = frozenset(tier for one in self._policies for tier in one.capacity)
            fills, self._notes = fills_now(self._context, limited, now_ns=self.now_ns)
        for _ in range(_ROUNDS):
            found = self._planned(fills)
            if self._measured.measure(found.entries):
                return self._with_freed(found)
        self._measured.give_up(found.entries)
        return self._with_freed(self._planned(fills))

    def _planned(self, fills: Sequence[Fill]) -> Plan:
        return plan_of(
            self._runs,
            fills=fills,
            now_ns=self.now_ns,
            change_seq=self._change_seq,
            verify_max_age_s=self._context.settings.verify_max_age_s,
            judged=self._tell,
        )

    def _tell(self, decided: Decided) -> None:
        verdict = verdict_of(decided)
        self._tally.add(verdict)
        is_retired = verdict.life is RunLife.RETIRED
        is_retired_by_rule = is_retired and decided.run.retired_at_ns is None
        if verdict.life is RunLife.DEAD or is_retired_by_rule:
            self._quiet.append(verdict.run)

    def _runs(self) -> Iterator[tuple[RunToKeep, Policy | None] | Unjudged]:
        """Every run that a policy covers, read one by one."""
        self._tally, self._quiet, self._ungoverned = Tally(), [], []
        for run in self._named():
            name = run.identity.name
            failed = self._measured.failures.get(run.identity.run_id)
            if failed is not None:
                yield Unjudged(run=name, why=failed)
                continue
            try:
                policy = self.policy_of(name)
                if policy is None:
                    self._ungoverned.append(name)
                    continue
                facts = self.read(run, policy)
            except CkptgovError as error:
                self.errors[name] = error
                yield Unjudged(run=name, why=error.message)
                continue
            yield facts, policy

    def _named(self) -> Sequence[RunFacts]:
        if self._only is None:
            return self._context.catalog.runs()
        return (run_named(self._context, self._only),)

    def read(self, run: RunFacts, policy: Policy | None) -> RunToKeep:
        """One run, as the catalog and what was measured tell it."""
        links = self._context.settings.links
        if policy is not None and policy.links is not None:
            links = policy.links
        return self._measured.corrected(self._facts.of(run, wanted_by(policy, links)))

    def _decided(self, facts: RunToKeep, policy: Policy) -> RunVerdict:
        return decide(
            facts,
            policy,
            now_ns=self.now_ns,
            verify_max_age_s=self._context.settings.verify_max_age_s,
        )

    def whole_policy_of(self, name: str) -> Policy | None:
        """The policy of a run, with the links that hold where it tells none."""
        policy = policy_for(self._policies, name, tags_of(self._context.settings, name))
        if policy is None or policy.links is not None:
            return policy
        return replace(policy, links=self._context.settings.links)

    def policy_of(self, name: str) -> Policy | None:
        """The same; without the limits where not all runs are looked at."""
        policy = self.whole_policy_of(name)
        if policy is None or self._only is None:
            return policy
        return replace(policy, capacity={})

    def _with_freed(self, found: Plan) -> Plan:
        """The plan with bytes and files that are really freed, under the id of what it says."""
        entries = self._measured.freed(found.entries)
        if entries == found.entries:
            return found
        tiers = tuple(_as_freed(one, found.entries, entries) for one in found.tiers)
        return with_id(replace(found, entries=entries, tiers=tiers))

    def kept(self, made: Plan) -> tuple[Kept, ...]:
        """What stays, in short; what the limits make go does not."""
        forced = [one for one in made.entries if is_forced(one)]
        for name in dict.fromkeys(one.run for one in forced):
            run = self._context.catalog.run_by_name(name)
            policy = self.policy_of(name)
            if run is not None and policy is not None:
                told = self._decided(self.read(run, policy), policy)
                self._tally.leave_out(told, forced)
        return self._tally.kept

    def quiet(self) -> tuple[RunUsage, ...]:
        """Runs that nothing was heard of for long, of those looked at, the largest first."""
        catalog, found = self._context.catalog, list(self._quiet)
        asked = catalog.signs.signs()
        for name in self._ungoverned:
            run = run_named(self._context, name)
            life = read_life(catalog, run, asked_at_ns=asked.get(run.identity.run_id))
            if life_of(life, Lifecycle(), now_ns=self.now_ns) is RunLife.DEAD:
                found.append(name)
        runs = [run_named(self._context, name) for name in found]
        told = run_usage(self._context, runs, self._context.settings.tiers, {})
        return tuple(sorted(told, key=lambda one: (-one.bytes, one.run)))

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Warnings, by what they are about."""
        notes = [*self._notes, *self._tally.notes, *self._measured.notes]
        if self._ungoverned:
            names = ", ".join(self._ungoverned[:_MOST_NAMED])
            more = len(self._ungoverned) - _MOST_NAMED
            names += f" and {more} more" if more > 0 else ""
            notes.append((names, "no policy covers it, so nothing of it goes"))
        if self._only is not None:
            policy = self.whole_policy_of(self._only)
            if policy is not None and policy.capacity:
                notes.append((self._only, LIMITS_LEFT_OUT))
        return tuple(notes)


def _as_freed(
    one: TierOutlook, planned: Sequence[PlanEntry], measured: Sequence[PlanEntry]
) -> TierOutlook:
    """The outlook with what is really freed; what that leaves above the limit is over it."""
    here = [each for each in zip(planned, measured, strict=True) if _is_at(each[0], one)]
    if sum(before.bytes for before, _after in here) != one.freed_bytes:
        return one  # of one policy's quota, and not of all that goes there
    less_bytes = sum(before.bytes - after.bytes for before, after in here)
    less_files = sum(before.files - after.files for before, after in here)
    over_bytes = one.over_bytes
    if over_bytes > 0:
        over_bytes = max(0, over_bytes + less_bytes)
    elif one.limit_bytes is not None:
        above = one.used_bytes - one.freed_bytes + less_bytes - one.limit_bytes
        over_bytes = max(0, min(less_bytes, above))
    return replace(
        one,
        freed_bytes=one.freed_bytes - less_bytes,
        freed_files=one.freed_files - less_files,
        over_bytes=over_bytes,
    )


def _is_at(entry: PlanEntry, one: TierOutlook) -> bool:
    return (entry.tier, entry.node) == (one.tier, one.node)
