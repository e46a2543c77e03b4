"""One run with everybody who acts on it: a trainer, people, restarts, readers, appliers."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from fault_keeping_truth import (
    TIERS,
    Files,
    Save,
    Snapshot,
    is_of,
    snapshot,
    stands,
)
from fault_keeping_world import (
    DAY_S,
    HOUR_S,
    NEAR,
    NODE,
    RUN,
    SHARED,
    World,
    files_of,
    write_shards,
)
from hypothesis.stateful import (
    RuleBasedStateMachine,
)

from ckptgov.errors import CkptgovError
from ckptgov.governor.local import Governor
from ckptgov.manifest.forms.manifests import decode_manifest
from ckptgov.model.checkpoint import VerifyLevel
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Query
from ckptgov.model.journal import Pin, RestoreOutcome
from ckptgov.model.removal import ApplyAnswer, Went
from ckptgov.model.retention import Action, PlanState
from ckptgov.testing.builders import WRITTEN_AT_NS
from ckptgov.testing.crashing import Crash

LEASE_IS_OVER_S = 31.0
"""What a killed process held is free again after so long."""
_MOST_UNLOADABLE = 2
"""More in a row look like the loader's fault, and nothing is offered."""

WORDS = (
    "pin",
    "pin for days",
    "unpin",
    "reader comes",
    "reader goes",
    "mark bad",
    "mark bad",
    "unmark",
    "restart",
    "restart fails",
    "rollback",
)
MEANWHILE = (
    "pin",
    "reader comes",
    "mark the newest bad",
    "mark the newest bad",
    "restart",
    "rollback",
    "undelete",
    "undelete once its lease is over",
    "write over",
    "write over",
    "apply",
    "apply once its lease is over",
)


class Acting(RuleBasedStateMachine):
    """One run, what was said and written of it, and how all that is done."""

    catalog_url: ClassVar[Callable[[], str | None]] = staticmethod(lambda: None)
    tally: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        base = Path(tempfile.mkdtemp(prefix="keeping-", dir=_fast_directory()))
        self.world = World(base, type(self).catalog_url())
        self.saves: dict[str, Save] = {}
        self.drafts: list[Files] = []
        self.loose: dict[tuple[str, str], Files] = {}
        self.pins: dict[str, tuple[str, int, int | None]] = {}
        self.claims: dict[str, tuple[str, int]] = {}
        self.starts: list[tuple[str, str, int]] = []
        self.unloadable = 0
        self.plan_id: str | None = None
        self.may_prune: set[str] = set()
        self.numbers = itertools.count(1)
        self.has_run = False
        self.is_to_be_looked_at = False
        self.was_disturbed = False

    def _say(self, governor: Governor, what: str, pick: int) -> None:
        self.is_to_be_looked_at |= what not in ("pin", "pin for days", "unpin")
        with suppress(CkptgovError):
            match what:
                case "pin":
                    self._pin(governor, pick, None)
                case "pin for days":
                    self._pin(governor, pick, 1 if pick % 2 else 20)
                case "unpin":
                    self._unpin(governor, pick)
                case "reader comes":
                    self._claim(governor, pick)
                case "reader goes":
                    self._release(governor, pick)
                case "mark bad" | "unmark":
                    self._mark_bad(governor, self._step(pick), undo=what == "unmark")
                case "mark the newest bad":
                    chosen = governor.latest(RUN, Query()).chosen
                    if chosen is not None and chosen.step is not None:
                        self._mark_bad(governor, chosen.step, undo=False)
                case "restart":
                    self._restart(governor, None)
                case "restart fails":
                    self._restart(governor, list(RestoreOutcome)[pick % len(RestoreOutcome)])
                case "rollback":
                    governor.rollback(RUN, to_step=self._step(pick))
                case "write over":
                    tier = self._tier(TIERS[pick % 2])
                    names = self._standing_at(tier)
                    if names:
                        self._write(tier, names[pick // 2 % len(names)], in_place=pick % 3 == 0)
                case "apply" | "apply once its lease is over":
                    if what != "apply":
                        self.world.clock.pass_(LEASE_IS_OVER_S)
                    self._count(governor.apply(None))
                case _:
                    if what != "undelete":
                        self.world.clock.pass_(LEASE_IS_OVER_S)
                    self._undelete(governor, None)

    def _standing_at(self, tier: str) -> list[str]:
        return sorted(one.name for one in self.world.run_root(tier).glob("step_*"))

    def _tier(self, tier: str) -> str:
        return SHARED if self.world.is_away else tier

    def _step(self, pick: int) -> int:
        steps = sorted({one.step for one in self.saves.values()})
        return steps[pick % len(steps)]

    def _names(self, content_ids: frozenset[str]) -> list[str]:
        return [self._name(one) for one in sorted(content_ids)]

    def _name(self, content_id: str) -> str:
        one = self.saves[content_id]
        return f"step {one.step} of line {one.line}, attempt {one.attempt}"

    def _snapshot(self) -> Snapshot:
        with self.world.process() as governor:
            return snapshot(self.world, governor, self.saves)

    def _write(self, tier: str, name: str, *, in_place: bool = False) -> Path:
        number = next(self.numbers)
        directory = self.world.run_root(tier) / name
        if directory.exists() and not in_place:
            shutil.rmtree(directory)
        write_shards(directory, f"save {number}", at_ns=WRITTEN_AT_NS + number * 10**10)
        self.loose[tier, name] = files_of(directory)
        self.drafts.append(self.loose[tier, name])
        return directory

    def _save(self, tier: str, further: int) -> None:
        newest = max((one.step for one in self._snapshot().eligible), default=0)
        directory = self._write(tier, f"step_{newest + further}")
        node = NODE if tier == NEAR else None
        with self.world.process() as governor:
            governor.commit(str(directory), run=RUN, node=node)
        self.has_run = True
        self._learn()

    def _learn(self) -> None:
        """Know what was sealed since by what its trainer wrote."""
        with self.world.process() as governor:
            catalog = governor.context.catalog
            run = catalog.run_by_name(RUN)
            if run is None:
                return
            run_id = run.identity.run_id
            for one in catalog.checkpoints(run_id):
                if one.content_id in self.saves or one.step is None:
                    continue
                manifest = decode_manifest(
                    catalog.manifest_bytes(run_id, one.content_id), where=one.name
                )
                files = next(each for each in self.drafts if is_of(each, manifest))
                self.saves[one.content_id] = Save(
                    one.content_id, one.step, one.line, one.attempt, files
                )
        known = [one.files for one in self.saves.values()]
        self.loose = {key: files for key, files in self.loose.items() if files not in known}

    def _pin(self, governor: Governor, pick: int, days: int | None) -> None:
        name, step = f"pin-{next(self.numbers)}", self._step(pick)
        ttl_s = days * DAY_S if days is not None else None
        record = governor.pin(RUN, step=step, name=name, reason="a figure", ttl_s=ttl_s)
        assert isinstance(record, Pin)
        self.pins[name] = (record.content_id, step, record.until_ns)

    def _unpin(self, governor: Governor, pick: int) -> None:
        if self.pins:
            name = sorted(self.pins)[pick % len(self.pins)]
            step = self.pins[name][1]
            governor.pin(RUN, step=step, name=name, reason=None, ttl_s=None, undo=True)
            del self.pins[name]

    def _claim(self, governor: Governor, pick: int) -> None:
        content_id = sorted(self.saves)[pick % len(self.saves)]
        catalog = governor.context.catalog
        run = catalog.run_by_name(RUN)
        assert run is not None
        taken = catalog.claims.take(
            run.identity.run_id, content_id, owner="node7", reason="restore", ttl_s=2 * HOUR_S
        )
        self.claims[taken.lease_id] = (content_id, taken.ends_at_ns)

    def _release(self, governor: Governor, pick: int) -> None:
        if self.claims:
            lease_id = sorted(self.claims)[pick % len(self.claims)]
            governor.context.catalog.claims.release(lease_id)
            del self.claims[lease_id]

    def _mark_bad(self, governor: Governor, step: int, *, undo: bool) -> None:
        governor.mark_bad(RUN, step=step, from_step=None, until_step=None, reason="nan", undo=undo)

    def _restart(self, governor: Governor, outcome: RestoreOutcome | None) -> None:
        restart_id = f"restart-{next(self.numbers)}"
        answer = governor.latest(RUN, Query(), restart_id=restart_id)
        if answer.error is not None or answer.chosen is None:
            return
        if answer.chosen.content_id in self.saves:
            self.starts.append((answer.chosen.content_id, restart_id, len(self.drafts)))
        if outcome in (RestoreOutcome.CORRUPT, RestoreOutcome.LOAD_FAILED):
            if self.unloadable >= _MOST_UNLOADABLE:
                return
            self.unloadable += 1
        if outcome is not None:
            governor.report(RUN, restart_id=restart_id, outcome=outcome)

    def _verify(self) -> None:
        with self.world.process() as governor, suppress(CkptgovError):
            governor.verify(RUN, level=VerifyLevel.DIGEST)

    def _plan(self, governor: Governor) -> None:
        try:
            stored = governor.plan()
        except CkptgovError as error:
            self.tally[f"no plan: {error.kind}"] += 1
            return
        self.plan_id = stored.plan.plan_id
        for entry in stored.plan.entries:
            self.tally[f"planned: {entry.action.value}"] += 1
            if entry.action is Action.PRUNE:
                self.may_prune.add(entry.content_id)
        if stored.state is PlanState.WAITING:
            governor.approve(self.plan_id, reason="looked at")

    def _undelete(self, governor: Governor, pick: int | None) -> None:
        with suppress(CkptgovError):
            step = None if pick is None else self._step(pick)
            answer = governor.undelete(RUN, step=step)
            tier_of = {facts.place: tier for tier, facts in self.world.places.items()}
            for one in answer.restored:
                self.tally[f"undeleted: {one.state.value}"] += 1
                if one.content_id not in self.saves:
                    continue
                files = self.saves[one.content_id].files
                root = self.world.run_root(tier_of[one.place])
                if one.state is not CopyState.CONDEMNED:
                    assert stands(root / one.name, files), f"{one.name} came back, and not whole"

    @contextmanager
    def _killed(self, what: str) -> Iterator[None]:
        try:
            yield
        except Crash:
            self.tally[f"{what} killed"] += 1
        except CkptgovError:
            pass
        self.world.clock.pass_(LEASE_IS_OVER_S)

    def _count(self, answer: ApplyAnswer) -> None:
        for step in answer.steps:
            self.tally[f"{step.action.value} {step.went.value}"] += 1
            if step.went is Went.RESISTED:
                self.tally[f"resisted: {step.text[:60]}"] += 1
        if answer.error is not None:
            self.tally[f"apply: {answer.error.kind}"] += 1


def _fast_directory() -> str | None:
    """Memory where it can be had: nothing here asks what survives a power cut."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
