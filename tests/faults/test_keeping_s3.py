"""P2, P3 on object storage: whatever kills, stops or fails a removal, nothing wrong goes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from random import Random

import pytest
from fault_keeping_s3 import ObjectTier, pages_of
from fault_process import Forkery

from ckptgov.testing import seaweedfs
from ckptgov.testing.s3_proxy import Fault, S3Proxy, Trouble, s3_proxy

SHARDS = {"killed": 3, "back": 3, "many": 12}
MANY, PAGE = 1000, 900
"""Shards of a step in the full campaign, and keys of a page that still comes."""

if reason := seaweedfs.reason_to_skip():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def store() -> Iterator[seaweedfs.WeedServer]:
    with seaweedfs.weed_s3() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(store: seaweedfs.WeedServer) -> Iterator[S3Proxy]:
    with s3_proxy(store.endpoint, store.access_key, store.secret_key) as running:
        yield running


@pytest.fixture(scope="module")
def s3_forkery(store: seaweedfs.WeedServer) -> Iterator[Forkery]:
    """Processes that find the store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in store.environment.items():
            patch.setenv(name, value)
        made = Forkery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def others(s3_forkery: Forkery, store: seaweedfs.WeedServer) -> Iterator[Forkery]:
    """A second one: the first can hold only one process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        made = Forkery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def tier(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    s3_forkery: Forkery,
    store: seaweedfs.WeedServer,
    proxy: S3Proxy,
) -> Iterator[ObjectTier]:
    """One tier for all: to register it takes as long as a test."""
    base = tmp_path_factory.mktemp("keeping")
    many = {"many": MANY} if request.config.getoption("--full-sweep") else {}
    made = ObjectTier(base, s3_forkery, store, proxy, SHARDS | many)
    yield made
    made.close()


def save(tier: ObjectTier, run: str, dice: Random, steps: Iterable[int]) -> None:
    """Steps of other bytes than ever before, sealed."""
    for step in steps:
        names = [f"{number}.bin" for number in range(tier.shards[run])]
        tier.save(run, step, {name: dice.randbytes(16) for name in names})
    tier.done("scan", tier.url(run))


class Killed:
    """One run's removals, killed at random instants."""

    run = "killed"

    def __init__(self, tier: ObjectTier, dice: Random) -> None:
        self.tier, self.dice, self.kills = tier, dice, 0
        self.newest, self.standing = 0, set[int]()

    @property
    def going(self) -> set[int]:
        """Steps that the policy does not keep."""
        return self.standing - {self.newest}

    def train_on(self, count: int) -> None:
        """So many further steps."""
        steps = range(self.newest + 1, self.newest + 1 + count)
        save(self.tier, self.run, self.dice, steps)
        self.newest = steps[-1]
        self.standing |= {*steps}

    def until_done(self, words: tuple[str, ...], *, changes: int, most: int) -> None:
        """Kill a command up to ``most`` times, at any of about so many ``changes`` that it asks
        the store for."""
        for _ in range(most):
            late_s = self.dice.random() / 10
            if not self.tier.killed(words, self.dice.randint(0, changes), late_s):
                return
            self.kills += 1
            self.require_nothing_half()

    def require_nothing_half(self) -> None:
        """Whatever is offered or sealed is whole, and a scan seals nothing of it again."""
        tier, run = self.tier, self.run
        sealed = tier.sealed(run)
        for step in sealed.values():
            assert tier.lies(run, step) == tier.saved[run, step], f"step {step} is sealed"
        taken = tier.taken_away(run)
        tier.done("scan", tier.url(run))
        assert tier.sealed(run).keys() <= sealed.keys(), "sealed again"
        gone = {step for one, step in sealed.items() if one in taken}
        offered = tier.offered(run)
        assert self.newest in offered, tier.findings
        assert not offered & gone, "offered though a tombstone stands"

    def aside(self, most: int) -> None:
        """To the trash, killed and called again."""
        plan = self.tier.plan(self.run)
        self.until_done(("apply", plan), changes=5 * len(self.going), most=most)
        if self.tier("apply", plan).code != 0:  # it was carried out before the kill
            self.tier.done("apply")
        self.tier.done("scan", self.tier.url(self.run))  # its objects stand where they stood
        assert {*self.tier.sealed(self.run).values()} == {self.newest}
        assert self.tier.offered(self.run) == {self.newest}
        assert len(self.tier.own(self.run, "trash")) == 2 * len(self.going)

    def back(self, most: int) -> None:
        """From the trash, killed and called again."""
        words = ("undelete", self.run)
        self.until_done(words, changes=5 * len(self.going), most=most)
        ended = self.tier(*words)
        assert ended.code in (0, 5), ended
        assert self.tier.offered(self.run) == self.standing
        assert self.tier.own(self.run, "trash") == []

    def purge(self, most: int) -> None:
        """For good, killed and called again."""
        self.tier.time_is_over()
        self.until_done(("apply",), changes=6 * len(self.going), most=most)
        self.tier.done("apply")
        assert self.tier.offered(self.run) == {self.newest}
        assert self.tier.own(self.run, "trash") == []
        for step in self.going:
            assert self.tier.lies(self.run, step) == {}
        self.standing = {self.newest}


@pytest.mark.timeout(7200)
def test_a_removal_killed_at_random_moments_leaves_nothing_half(
    tier: ObjectTier, dice: Random, full_sweep, capsys
) -> None:
    """Moving aside, undelete and purge in turns: 60 kills in the full campaign, else one of one."""
    killed = Killed(tier, dice)
    if not full_sweep:
        killed.train_on(2)
        verb = dice.choice(("aside", "back", "purge"))
        killed.aside(int(verb == "aside"))
        if verb != "aside":
            {"back": killed.back, "purge": killed.purge}[verb](1)
        return
    rounds = 0
    while killed.kills < 60:
        killed.train_on(2)
        killed.aside(3)
        killed.back(3)
        killed.aside(0)
        killed.purge(3)
        rounds += 1
    with capsys.disabled():
        print(f"{killed.kills} kills in {rounds} rounds")


LISTINGS = {
    "its second page fails": Fault(
        Trouble.INTERNAL_ERROR, key="*/step_*", query=("list-type", "continuation-token")
    ),
    "it breaks off": Fault(Trouble.TRUNCATE_BODY, key="*/step_*", query=("list-type",)),
    "half of it comes": Fault(Trouble.SHORT_BODY, key="*/step_*", query=("list-type",)),
    "any breaks off": Fault(Trouble.TRUNCATE_BODY, query=("list-type", "delimiter")),
    "it is short and says it is whole": Fault(
        Trouble.SHORT_LIST, key="*/step_*", query=("list-type", "delimiter")
    ),
}


class Disturbed:
    """Commands whose listings fail; none of them changes anything of a trainer's or a seal."""

    run = "many"

    def __init__(self, tier: ObjectTier, fault: Fault) -> None:
        self.tier, self.fault = tier, fault
        self.paged = pages_of(PAGE if tier.shards[self.run] == MANY else 5)
        self.is_told = fault.trouble is not Trouble.SHORT_LIST

    def __call__(self, *words: str, due: tuple[str, ...] = ()) -> None:
        """``due``: how keys begin whose time is over; under a listing that lies and looks whole,
        nobody can be told, and what is due may go."""
        before = self.kept()
        with self.tier.behind_proxy() as proxy:
            injected = proxy.inject(self.fault)
            answer = self.tier(*words, defect=self.paged)
        after = self.kept()
        gone = before.keys() - after.keys()
        assert after.items() <= before.items(), words
        assert all(not self.is_told and one.startswith(due) for one in gone), (words, gone)
        if injected.fired and self.is_told:
            assert answer.code in (3, 9), (words, answer)
            assert answer.json["error"]["message"], (words, answer)

    def kept(self) -> dict[str, str]:
        """Everything but records and receipts, which a look may add."""
        return {
            name: etag
            for name, etag in self.tier.keys(self.run).items()
            if not name.startswith((".ckptgov/journal/", ".ckptgov/receipts/"))
        }


@pytest.mark.timeout(3600)
def test_a_listing_that_fails_lets_nothing_go(tier: ObjectTier, dice: Random, some) -> None:
    run, last = Disturbed.run, 0
    for name in some(sorted(LISTINGS), 1):
        disturbed = Disturbed(tier, LISTINGS[name])
        save(tier, run, dice, (last + 1, last + 2))
        going = [step for step in (last, last + 1) if step]  # the newest of the round before, too
        last += 2
        plan = tier.plan(run)
        disturbed("scan", tier.url(run))
        disturbed("apply", plan)
        disturbed("reconcile")
        disturbed("plan", "--run", run)
        tier.done("scan", tier.url(run))
        tier.done("apply", tier.plan(run))
        assert tier.offered(run) == {last}, name
        for step in going:
            assert tier.lies(run, step) == tier.saved[run, step]
        tier.time_is_over()
        due = tuple(f"step_{step}/" for step in going)
        disturbed("apply", due=(*due, ".ckptgov/trash/"))
        disturbed("reconcile", due=due)
        tier.done("apply")
        assert tier.offered(run) == {last}, name


def test_a_purge_stopped_while_another_brings_it_back_takes_nothing_of_it(
    tier: ObjectTier, others: Forkery, dice: Random
) -> None:
    """It goes on after a minute, and what it was about to remove is verified and offered."""
    run = "back"
    save(tier, run, dice, (1, 2))
    tier.done("apply", tier.plan(run))
    tier.time_is_over()
    begins = Fault(Trouble.DELAY, key="*/back/step_1/*", method="HEAD", delay_s=0.2)
    with tier.stopped(("apply",), begins):
        (back,) = others(tier.home, ("undelete", run))
        offered = tier.offered(run, forkery=others)
    assert (back.code == 0) == (1 in offered), back
    for step in offered:
        assert tier.lies(run, step) == tier.saved[run, step], f"step {step} went"
    tier.done("apply")
    assert tier.offered(run) == offered
