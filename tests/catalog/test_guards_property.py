"""P2's predicates against a second reading of them, by sets of shards and without any haste."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptgov.catalog.catalog import Catalog
from ckptgov.errors import RefusedBySafety
from ckptgov.model.checkpoint import Purpose
from ckptgov.model.copies import CopyState
from ckptgov.model.retention import Action

LATELY_NS = 10 * 86400 * 10**9
PLACES = ("s1", "s2", "n1", "n2")
SHARDS = ("0123", "01", "23", "012")
PATHS = (((1, None),), ((2, None), (1, 2)), ((2, None),))
PURPOSES = ((Purpose.RESUME, Purpose.WEIGHTS), (Purpose.RESUME,), (Purpose.WEIGHTS,))


class Copy(NamedTuple):
    place: str
    shards: str
    is_verified: bool
    is_recent: bool


class Checkpoint(NamedTuple):
    content_id: str
    step: int | None
    line: int
    attempt: int
    purposes: tuple[Purpose, ...]
    copies: tuple[Copy, ...]
    is_marked: bool
    is_pinned: bool
    is_claimed: bool
    is_arriving: bool
    action: Action


class Case(NamedTuple):
    run: tuple[Checkpoint, ...]
    going: frozenset[tuple[str, str]]
    path: tuple[tuple[int, int | None], ...]
    reachable: frozenset[str]
    min_restorable: int
    min_durable_copies: int
    may_be_emptied: bool


rarely = st.sampled_from((False,) * 9 + (True,))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    run = []
    for number in range(draw(st.integers(1, 4))):
        places = draw(st.lists(st.sampled_from(PLACES), unique=True, min_size=1))
        copies = [
            Copy(
                place,
                draw(st.sampled_from(SHARDS)),
                not draw(rarely),
                not draw(rarely),
            )
            for place in places
        ]
        run.append(
            Checkpoint(
                f"c{number}",
                draw(st.sampled_from((1, 2, 3, 4, None))),
                draw(st.sampled_from((1, 1, 2))),
                draw(st.integers(0, 1)),
                draw(st.sampled_from(PURPOSES)),
                tuple(copies),
                draw(rarely),
                draw(rarely),
                draw(rarely),
                draw(rarely),
                draw(st.sampled_from(Action)),
            )
        )
    verified = [
        (one.content_id, copy.place) for one in run for copy in one.copies if copy.is_verified
    ]
    going = draw(st.lists(st.sampled_from(verified), unique=True)) if verified else []
    return Case(
        tuple(run),
        frozenset(going),
        draw(st.sampled_from(PATHS)),
        frozenset(draw(st.lists(st.sampled_from(PLACES), unique=True, min_size=2))),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(rarely),
    )


def is_forbidden(case: Case) -> bool:
    touched = [one for one in case.run if any(c == one.content_id for c, _ in case.going)]
    return (
        any(one.is_claimed or one.is_arriving for one in touched)
        or any(one.is_pinned and one.action is Action.PRUNE for one in touched)
        or any(leaves_too_little(case, one) for one in touched if one.action is Action.EVICT)
        or (not case.may_be_emptied and is_emptied(case))
        or (
            not case.may_be_emptied
            and any(one.action is Action.PRUNE for one in touched)
            and rests_on_old_proof(case)
        )
    )


def left(case: Case, one: Checkpoint) -> list[Copy]:
    return [
        copy
        for copy in one.copies
        if copy.is_verified and (one.content_id, copy.place) not in case.going
    ]


def union(copies: list[Copy]) -> set[str]:
    return {shard for copy in copies for shard in copy.shards}


def leaves_too_little(case: Case, one: Checkpoint) -> bool:
    remain = [copy for copy in left(case, one) if copy.place in case.reachable]
    durable = [copy for copy in remain if copy.place in ("s1", "s2")]
    recent = [copy for copy in durable if copy.is_recent]
    whole = len([copy for copy in durable if copy.shards == "0123"])
    if not whole and union(durable) == set("0123"):
        whole = 1
    loses_durable = {(one.content_id, "s1"), (one.content_id, "s2")} & case.going
    wanted = case.min_durable_copies if loses_durable else 1
    return union(remain) != set("0123") or whole < wanted or union(recent) != set("0123")


def good(case: Case, purpose: Purpose, places: set[str], *, is_after: bool) -> list[Checkpoint]:
    """Those that may be offered from these places, newest last."""
    found = []
    for one in case.run:
        if one.step is None or one.is_marked or purpose not in one.purposes:
            continue
        if not any(
            line == one.line and (end is None or one.step <= end) for line, end in case.path
        ):
            continue
        standing = (
            left(case, one) if is_after else [each for each in one.copies if each.is_verified]
        )
        if union([copy for copy in standing if copy.place in places]) == set("0123"):
            found.append(one)
    return sorted(found, key=lambda one: (one.step, one.line, one.attempt, one.content_id))


def is_emptied(case: Case) -> bool:
    for reach in (set(PLACES), set(case.reachable)):
        for places in (reach, reach & {"s1", "s2"}):
            for purpose in Purpose:
                before = good(case, purpose, places, is_after=False)
                after = good(case, purpose, places, is_after=True)
                if before[-1:] != after[-1:]:
                    return True
        steps_before, steps_after = (
            {one.step for one in good(case, Purpose.RESUME, reach, is_after=is_after)}
            for is_after in (False, True)
        )
        if len(steps_after) < len(steps_before) and len(steps_after) < case.min_restorable:
            return True
    return False


def rests_on_old_proof(case: Case) -> bool:
    near = set(case.reachable)
    relied = [good(case, purpose, near, is_after=True)[-1:] for purpose in Purpose]
    by_step = {one.step: one for one in good(case, Purpose.RESUME, near, is_after=True)}
    relied.append([by_step[step] for step in sorted(by_step, reverse=True)[: case.min_restorable]])
    return any(
        union([copy for copy in left(case, one) if copy.place in near and copy.is_recent])
        != set("0123")
        for some in relied
        for one in some
    )


def fill(small, case: Case) -> None:
    for one in case.run:
        small.add(
            one.step,
            content_id=one.content_id,
            line=one.line,
            attempt=one.attempt,
            purposes=one.purposes,
        )
        for copy in one.copies:
            small.copy(
                one.content_id,
                copy.place,
                shards=copy.shards,
                state=CopyState.VERIFIED if copy.is_verified else CopyState.REOPENED,
                verified_at_ns=LATELY_NS if copy.is_recent else LATELY_NS - 1,
            )
        if one.is_claimed:
            small.catalog.claims.take("r1", one.content_id, owner="o", reason="", ttl_s=60)
        if one.is_arriving:
            small.catalog.take_copy_lease(one.content_id, "s2", holder="m", ttl_ns=10**12)


def is_refused(small, case: Case) -> bool:
    actions = {one.content_id: one.action for one in case.run}
    doomed = [small.doomed(*key, actions[key[0]]) for key in sorted(case.going)]
    guard = small.guard(
        path=case.path,
        without=frozenset(one.content_id for one in case.run if one.is_marked),
        protected=tuple((one.content_id, "pinned") for one in case.run if one.is_pinned),
        reachable=case.reachable,
        min_restorable=case.min_restorable,
        min_durable_copies=case.min_durable_copies,
        compared_since_ns=LATELY_NS,
        may_be_emptied=case.may_be_emptied,
    )
    try:
        small.catalog.removals.condemn("r1", doomed, guard, plan_id="p")
    except RefusedBySafety:
        return True
    return False


@pytest.fixture(scope="module")
def shared_catalog(tmp_path_factory):
    from ckptgov.model.clock import SystemClock

    path = str(tmp_path_factory.mktemp("guards") / "catalog.db")
    with Catalog.open(path, fs_type="ext4", is_network=False, clock=SystemClock()) as catalog:
        yield catalog


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(case=cases())
def test_what_p2_forbids_is_refused_and_nothing_else(
    case, shared_catalog, small_run, clock, undone
) -> None:
    seen = []

    def once() -> None:
        small = small_run(shared_catalog, clock)
        fill(small, case)
        seen.append(is_refused(small, case))

    undone(shared_catalog, once)
    wanted = bool(case.going) and is_forbidden(case)
    assert seen == [wanted]
