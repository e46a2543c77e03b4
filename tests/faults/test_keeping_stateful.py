"""P2 and P3 in every state that saves, people, faults and appliers bring a run to, in any order."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from fault_keeping_acting import MEANWHILE, WORDS
from fault_keeping_promises import Promising
from fault_keeping_truth import (
    TIERS,
)
from fault_keeping_world import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    NEAR,
    RUN,
    SHARED,
    Fuse,
)
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import CkptgovError
from ckptgov.model.clock import SystemClock
from ckptgov.ops import rebuild
from ckptgov.testing.postgres import PostgresServer, postgres, reason_to_skip

POLICY = """\
policy: drawn
runs: ["*"]
keep: {{{keep}}}
{more}floors: {{min_restorable: {least}, min_age: 0s}}
safety: {{max_fraction: {fraction}, grace: {grace}, trash: {trash}, adoption_grace: 0s}}
"""
HAPPENS = {
    "apply killed",
    "undelete killed",
    "came in between: True",
    "prune purged",
    "evict purged",
    "undeleted: condemned",
    "undeleted: trashed",
    "prune protected",
}
"""What a full campaign is not worth its name without."""

policies = st.fixed_dictionaries(
    {
        "keep": st.sampled_from(
            (
                "lustre: {last: 1}, nvme: {last: 1}",
                "lustre: {last: 2}, nvme: {last: 1}",
                "lustre: {last: 2, every_steps: 4}",
                "nvme: {last: 1}",
                "lustre: {last: 1}",
            )
        ),
        "more": st.sampled_from(("", "", "old_lines: {after: 1h, newest_too: true}\n")),
        "least": st.sampled_from((1, 1, 2)),
        "fraction": st.sampled_from(("99%", "99%", "30%")),
        "grace": st.sampled_from(("0s", "1h", "1d")),
        "trash": st.sampled_from(("0s", "1h", "7d")),
    }
)
picks = st.integers(0, 11)
spans = st.sampled_from((MINUTE_S, 2 * HOUR_S, 25 * HOUR_S, 8 * DAY_S, 30 * DAY_S))


class Keeping(Promising):
    """One run under a policy; see the module."""

    def teardown(self) -> None:
        try:
            if self.has_run:
                self.require_convergence()
        finally:
            self.world.close()

    @initialize(policy=policies)
    def begin(self, policy: Mapping[str, Any]) -> None:
        self.world.govern(POLICY.format(**policy))
        for _ in range(4):
            self._save(NEAR, 1)
        self.flush()

    @rule(policy=policies)
    def another_policy(self, policy: Mapping[str, Any]) -> None:
        self.world.govern(POLICY.format(**policy))

    @rule(tier=st.sampled_from((NEAR, NEAR, SHARED)), further=st.integers(1, 2))
    def save(self, tier: str, further: int) -> None:
        self.is_to_be_looked_at = True
        with self.nothing_goes(may_lose_by_trainer=True):
            self._save(self._tier(tier), further)

    @rule()
    def flush(self) -> None:
        self.is_to_be_looked_at = True
        with self.nothing_goes(), self.world.process() as governor, suppress(CkptgovError):
            for one in governor.flush(RUN).checkpoints:
                self.tally[f"flush {one.state.value}"] += 1

    @rule(what=st.sampled_from(WORDS), pick=picks)
    def somebody_says(self, what: str, pick: int) -> None:
        with self.nothing_goes(), self.world.process() as governor:
            self._say(governor, what, pick)

    @rule()
    def verify(self) -> None:
        self.is_to_be_looked_at = True
        with self.nothing_goes():
            self._verify()

    @rule()
    def scan(self) -> None:
        self.is_to_be_looked_at = True
        with self.nothing_goes(), self.world.process() as governor, suppress(CkptgovError):
            governor.scan(())
        self._learn()

    @rule()
    def node_dies_or_returns(self) -> None:
        self.is_to_be_looked_at = True
        if self.world.is_away:
            self.world.node_returns()
        else:
            self.world.node_dies()

    @rule(span=spans)
    def time_passes(self, span: float) -> None:
        self.world.clock.pass_(span)

    @rule(pick=picks, tier=st.sampled_from(TIERS), in_place=st.booleans())
    def trainer_writes_over(self, pick: int, tier: str, in_place: bool) -> None:
        """The same name again, other bytes; nobody is told."""
        self.is_to_be_looked_at = True
        names = self._standing_at(self._tier(tier))
        names += sorted({f"step_{one.step}" for one in self.saves.values()} - set(names))
        self._write(self._tier(tier), names[pick % len(names)], in_place=in_place)

    @rule()
    def plan(self) -> None:
        with self.nothing_goes(), self.world.process() as governor:
            self._plan(governor)

    @rule(known=st.booleans(), strict=st.sampled_from((False, False, False, True)))
    def apply(self, known: bool, strict: bool) -> None:
        with self.kept() as told, self.world.process() as governor:
            told.append(governor.apply(self.plan_id if known else None, strict=strict))

    @rule()
    def plan_and_apply(self) -> None:
        with self.kept() as told, self.world.process() as governor:
            self._plan(governor)
            told.append(governor.apply(self.plan_id))

    @rule(at=st.integers(0, 60), changes=st.booleans(), scale=st.sampled_from((1, 4)))
    def apply_is_killed(self, at: int, changes: bool, scale: int) -> None:
        fuse = Fuse(at if changes else at * 4 * scale, None, changes=changes)
        with self.kept(), self.world.process(fuse) as governor, self._killed("apply"):
            self._plan(governor)
            governor.apply(self.plan_id)

    @rule(at=st.integers(60, 200), what=st.sampled_from(MEANWHILE), pick=picks)
    def somebody_comes_in_between(self, at: int, what: str, pick: int) -> None:
        """While a new plan is applied; the first of its calls only look."""
        with self.world.process() as governor:
            self._plan(governor)
        self._apply_while(self.plan_id, at, what, pick)

    @rule(at=st.integers(60, 200), what=st.sampled_from(MEANWHILE), pick=picks)
    def somebody_comes_while_it_goes_on(self, at: int, what: str, pick: int) -> None:
        """The grace of what is condemned is over."""
        self.world.clock.pass_(25 * HOUR_S)
        self._apply_while(None, at, what, pick)

    def _apply_while(self, plan_id: str | None, at: int, what: str, pick: int) -> None:
        with self.kept() as told:
            fuse = Fuse(at, lambda: self._meanwhile(what, pick))
            with self.world.process(fuse) as governor:
                told.append(governor.apply(plan_id))
            self.tally[f"came in between: {fuse.has_gone_off}"] += 1
        if fuse.has_gone_off:  # what it did not know of yet, the next one does
            with self.kept() as told, self.world.process() as governor:
                told.append(governor.apply(None))

    @rule()
    def two_apply_at_once(self) -> None:
        with self.kept():
            with self.world.process() as governor:
                self._plan(governor)
            start, broken = threading.Barrier(2), list[BaseException]()

            def one() -> None:
                try:
                    with self.world.process() as governor:
                        governor.context.catalog.identity()
                        start.wait(timeout=60)
                        governor.apply(self.plan_id)
                except CkptgovError:
                    pass
                except BaseException as error:
                    broken.append(error)

            threads = [threading.Thread(target=one) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if broken:
                raise broken[0]

    @rule(pick=st.none() | picks)
    def undelete(self, pick: int | None) -> None:
        with self.kept(), self.world.process() as governor:
            self._undelete(governor, pick)

    @rule(pick=st.none() | picks, at=st.integers(0, 40), changes=st.booleans())
    def undelete_is_killed(self, pick: int | None, at: int, changes: bool) -> None:
        fuse = Fuse(at if changes else at * 4, None, changes=changes)
        with self.kept(), self.world.process(fuse) as governor, self._killed("undelete"):
            self._undelete(governor, pick)

    @precondition(lambda self: not self.world.is_away)
    @rule(lost=st.booleans())
    def rebuild(self, lost: bool) -> None:
        self.is_to_be_looked_at = True
        with self.nothing_goes():
            if lost and self.world.is_rebuildable:
                self.world.lose_catalog()
                self.claims.clear()
                self.plan_id = None
            with self.world.process() as governor:
                done = rebuild.rebuild(governor.context, ())
            assert done.error is None, done
        self._learn()

    @invariant()
    def what_is_offered_is_right(self) -> None:
        self.require_right_offers()


def campaign(
    number: int,
    *,
    examples: int,
    steps: int,
    catalog_url: Callable[[], str | None] | None = None,
    shrink: bool = True,
) -> Counter[str]:
    """So many runs, drawn by a seed; what happened in them."""

    class Machine(Keeping):
        tally: ClassVar[Counter[str]] = Counter()

    if catalog_url is not None:
        Machine.catalog_url = staticmethod(catalog_url)
    run_state_machine_as_test(
        seed(number)(Machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Machine.tally


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with postgres() as running:
        yield running


def _number(dice: random.Random, full_sweep: bool) -> int:
    """What a campaign is drawn from. The sample is the same each time, so that it fails by what was
    changed and not by what it drew."""
    return dice.randrange(2**32) if full_sweep else 1130


@pytest.mark.timeout(3600)
def test_nothing_that_matters_is_ever_lost(dice: random.Random, full_sweep: bool) -> None:
    examples, steps = (400, 40) if full_sweep else (7, 14)
    tally = campaign(_number(dice, full_sweep), examples=examples, steps=steps)
    print(dict(sorted(tally.items())))
    if full_sweep:
        assert not HAPPENS - tally.keys()


@pytest.mark.timeout(3600)
def test_nor_with_a_catalog_in_postgresql(
    dice: random.Random, full_sweep: bool, server: PostgresServer
) -> None:
    url = server.new_database()
    Catalog.connect(url, clock=SystemClock()).close()
    template = url.rpartition("/")[2]
    examples, steps = (100, 40) if full_sweep else (2, 10)
    tally = campaign(
        _number(dice, full_sweep),
        examples=examples,
        steps=steps,
        catalog_url=lambda: server.new_database(template=template),
    )
    print(dict(sorted(tally.items())))
