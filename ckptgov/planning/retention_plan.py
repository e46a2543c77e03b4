"""Plans: what goes of all runs together, within which caps, and under which id.

Runs come as a stream and are forgotten one by one; what is kept is what goes, and of what may
give way to a limit no more than could be needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckptgov.model.policy import Policy
from ckptgov.model.retention import (
    Action,
    Plan,
    PlanEntry,
    PlanRefusal,
    RunLife,
    RunToKeep,
    Why,
)
from ckptgov.planning.capacity import Fill, Pressure, by_age, victim_of, yielding
from ckptgov.planning.capacity_facts import Tally, outlooks
from ckptgov.planning.capacity_needs import needs_of
from ckptgov.planning.retention import Decided, entries, judge
from ckptgov.planning.retention_check import gone_of, offered, restorable, restores
from ckptgov.planning.retention_words import size

_MOST_NAMED = 5


class Unjudged(Struct, frozen=True, kw_only=True):
    """A run of which it could not be told what must stay; nothing of it goes."""

    run: str
    why: str


Stream = Callable[[], Iterable["tuple[RunToKeep, Policy | None] | Unjudged"]]
"""Every run with its policy, in any order. It is called again where something is too full, and
then has to tell the same."""


def _unheard(decided: Decided) -> None:
    del decided


def plan_of(
    runs: Stream,
    *,
    fills: Sequence[Fill],
    now_ns: int,
    change_seq: int,
    verify_max_age_s: float,
    judged: Callable[[Decided], None] = _unheard,
) -> Plan:
    """Decide what goes of all runs, by retention first and then by capacity.

    A function of its arguments alone: equal facts give equal bytes, in whatever order they come.
    ``fills`` are the places that could be measured. ``verify_max_age_s`` holds where a policy says
    nothing of it. Runs that could not be judged come as ``Unjudged``. ``judged`` hears what
    retention makes of each run, in every pass over them.

    Raises:
        ConfigError: this machine does not know a policy's time zone.
    """
    sweep = _Sweep(now_ns, verify_max_age_s, judged)
    sweep.over(runs())
    needs = needs_of(sweep.tally, fills)
    if needs:
        sweep = _Sweep(now_ns, verify_max_age_s, judged, Pressure(needs))
        sweep.over(runs())
        sweep.give_way()
    return with_id(
        Plan(
            plan_id="",
            now_ns=now_ns,
            change_seq=change_seq,
            policies=tuple(sorted(sweep.policies)),
            entries=tuple(sorted(sweep.entries, key=_order)),
            tiers=outlooks(sweep.tally, fills),
            refusals=tuple(sweep.refusals()),
            failures=tuple(sorted(sweep.failures)),
            runs=sweep.runs,
            checkpoints=sweep.checkpoints,
        )
    )


def with_id(plan: Plan) -> Plan:
    """The plan under the id of what it says."""
    return replace(plan, plan_id=plan_id_of(plan))


def plan_id_of(plan: Plan) -> str:
    """``sha256:<hex>`` over a plan's canonical JSON."""
    digest = sha256()
    for piece in canonical(plan):
        digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


def canonical(plan: Plan) -> Iterator[bytes]:
    """A plan without its id as JSON, piece by piece: sorted keys, no spaces, ASCII only."""
    yield b"{"
    for index, name in enumerate(sorted(set(Plan.__struct_fields__) - {"plan_id"})):
        yield b"," if index else b""
        yield _json(name) + b":"
        if name == "entries":
            yield b"["
            for number, entry in enumerate(plan.entries):
                yield b"," if number else b""
                yield _json(to_builtins(entry))
            yield b"]"
        else:
            yield _json(to_builtins(getattr(plan, name)))
    yield b"}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def _order(entry: PlanEntry) -> tuple[str, str, int, str, str, str]:
    """By run, the newest checkpoint of each first."""
    step = -1 if entry.step is None else entry.step
    return entry.run, entry.run_id, -step, entry.content_id, entry.tier, entry.place


class _Going:
    """What goes under one policy, to be compared with its caps: checkpoints for good, all bytes."""

    __slots__ = ("bytes", "checkpoints", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.checkpoints = 0
        self.bytes = 0


class _Remains:
    """How many checkpoints of one run could be handed out before and after: counted anew."""

    __slots__ = ("after", "before", "in_reach", "is_retired", "name", "policy", "was_in_reach")

    def __init__(self, decided: Decided, gone: set[tuple[str, str]]) -> None:
        run = decided.run
        self.name = run.name
        self.policy = decided.terms.policy
        self.is_retired = decided.terms.life is RunLife.RETIRED
        self.before = restorable(run, set(), reachable=False)
        self.was_in_reach = restorable(run, set(), reachable=True)
        self.after = restorable(run, gone, reachable=False) if gone else self.before
        self.in_reach = restorable(run, gone, reachable=True) if gone else self.was_in_reach

    @property
    def is_emptied(self) -> bool:
        """Whether nothing would be left of what there is."""
        return (self.before > 0 and self.after <= 0) or (
            self.was_in_reach > 0 and self.in_reach <= 0
        )


class _Sweep:
    """One pass over all runs."""

    def __init__(
        self,
        now_ns: int,
        verify_max_age_s: float,
        judged: Callable[[Decided], None],
        pressure: Pressure | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._verify_max_age_s = verify_max_age_s
        self._judged = judged
        self._pressure = pressure
        self._going: dict[str, _Going] = {}
        self._remains: dict[str, _Remains] = {}  # of runs of which something goes, or may
        self._whys: dict[tuple[Why, ...], tuple[Why, ...]] = {}
        self.tally = Tally()
        self.entries: list[PlanEntry] = []
        self.policies: set[tuple[str, str]] = set()
        self.failures: set[tuple[str, str]] = set()
        self.runs = 0
        self.checkpoints = 0

    def over(self, runs: Iterable[tuple[RunToKeep, Policy | None] | Unjudged]) -> None:
        """Judge every run and forget it again."""
        for item in runs:
            if isinstance(item, Unjudged):
                self.failures.add((item.run, item.why))
            else:
                self._one(*item)

    def _one(self, run: RunToKeep, policy: Policy | None) -> None:
        self.runs += 1
        self.checkpoints += len(run.checkpoints)
        if policy is not None:
            self.policies.add((policy.name, policy.digest))
        decided = judge(run, policy, now_ns=self._now_ns, verify_max_age_s=self._verify_max_age_s)
        self._judged(decided)
        going = list(entries(decided, self._whys))
        self.tally.count(decided, going)
        if going:
            self._let_go(decided.terms.policy, going)
            self._remains[run.run_id] = _Remains(decided, gone_of(going))
        if self._pressure is not None and policy is not None:
            self._offer(decided, going, self._pressure)

    def _let_go(self, policy: Policy, going: Sequence[PlanEntry]) -> None:
        self.entries += going
        goes = self._going.setdefault(policy.name, _Going(policy))
        goes.checkpoints += len(
            {(one.run_id, one.content_id) for one in going if one.action is Action.PRUNE}
        )
        goes.bytes += sum(one.bytes for one in going)

    def _offer(self, decided: Decided, going: Sequence[PlanEntry], pressure: Pressure) -> None:
        run = decided.run
        if not any(tier in pressure.tiers for tier in decided.terms.policy.capacity):
            return
        gone = gone_of(going)
        countable = {one.content_id for one in offered(run)}
        for one, since_ns in by_age(decided.judged):
            held = one.seen.checkpoint
            for ruling, action, place in yielding(decided, one, pressure.tiers):
                counted = held.content_id in countable
                stood = counted and restores(held, gone, run.unseen, reachable=True)
                gone |= {(held.content_id, copy.place) for copy in ruling.at.movable}
                empties = stood and not restores(held, gone, run.unseen, reachable=True)
                pressure.offer(
                    victim_of(
                        decided, one, ruling, action, place, since_ns=since_ns, empties=empties
                    )
                )
                if run.run_id not in self._remains:
                    self._remains[run.run_id] = _Remains(decided, gone_of(going))

    def give_way(self) -> None:
        """Let go of what has to, so that what is too full is so no more."""
        assert self._pressure is not None, "something is too full"
        for victim, why in self._pressure.chosen():
            whys = self._whys.setdefault((why,), (why,))
            going = [replace(one, why=whys) for one in victim.entries]
            for entry in going:
                self.tally.let_go(victim.policy, entry)
            self._let_go(victim.policy, going)
            if victim.empties:
                remains = self._remains[going[0].run_id]
                remains.after -= 1
                remains.in_reach -= 1

    def refusals(self) -> Iterator[PlanRefusal]:
        """Why this must not be applied as it is; what nothing lifts first."""
        emptied = sorted(
            one.name for one in self._remains.values() if one.is_emptied and not one.is_retired
        )
        for name in emptied:
            text = f"run {name}: no restorable checkpoint of it would be left"
            yield PlanRefusal(is_cap=False, text=text)
        for name in sorted(self._going):
            yield from _caps(self._going[name])
            yield from self._fraction(self._going[name].policy)

    def _fraction(self, policy: Policy) -> Iterator[PlanRefusal]:
        most = policy.safety.max_fraction_percent
        beyond = sorted(
            (one.name, one.before - one.after, one.before)
            for one in self._remains.values()
            if one.policy.name == policy.name and (one.before - one.after) * 100 > one.before * most
        )
        if beyond:
            named = ", ".join(f"{run} ({went} of {of})" for run, went, of in beyond[:_MOST_NAMED])
            more = f" and {len(beyond) - _MOST_NAMED} more" if len(beyond) > _MOST_NAMED else ""
            text = (
                f"policy {policy.name}: more than {most}% of a run's restorable checkpoints would "
                f"go (max_fraction): {named}{more}"
            )
            yield PlanRefusal(is_cap=True, text=text)


def _caps(going: _Going) -> Iterator[PlanRefusal]:
    name, safety = going.policy.name, going.policy.safety
    if going.checkpoints > safety.max_count:
        text = (
            f"policy {name}: {going.checkpoints} checkpoints would go for good, "
            f"more than {safety.max_count} (max_count)"
        )
        yield PlanRefusal(is_cap=True, text=text)
    if safety.max_bytes is not None and going.bytes > safety.max_bytes:
        text = (
            f"policy {name}: {size(going.bytes)} would be freed, "
            f"more than {size(safety.max_bytes)} (max_bytes)"
        )
        yield PlanRefusal(is_cap=True, text=text)
