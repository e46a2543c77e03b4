"""What the catalog says of a run: what counts, who can be reached, which of three answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from standing_stage import RUN_ID, Stage

from ckptgov.catalog.facts import RunRootFacts
from ckptgov.errors import (
    CouldNotLook,
    NeverAny,
    NoneRestorable,
    UnknownRun,
)
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.cluster import NodeState
from ckptgov.model.copies import REMOVED, CopyState
from ckptgov.model.facts import Query, Reason
from ckptgov.model.journal import (
    MarkBad,
    Outcome,
    RestoreOutcome,
    Rollback,
)
from ckptgov.ops import standing
from ckptgov.testing.condemning import doomed, guard


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Stage]:
    """Two nodes and a shared tier, seen from a service that has no node's disk."""
    made = Stage(tmp_path, nodes=("n1", "n2"))
    made.beat("n1", "n2")
    yield made
    made.close()


def test_the_newest_verified_checkpoint_is_offered_with_its_path(stage: Stage) -> None:
    stage.seal(100)
    newest = stage.seal(200)
    told = stage.latest()
    assert told.error is None
    assert told.chosen is not None
    assert (told.chosen.step, told.chosen.content_id) == (200, newest.content_id)
    assert told.chosen.evidence is Evidence.DIGEST
    assert told.path == str(stage.run_root("shared") / "step_200")
    assert told.resume is not None
    assert told.resume.path == told.path


@pytest.mark.parametrize("state", sorted({*CopyState} - {CopyState.VERIFIED, *REMOVED}))
def test_a_copy_in_any_other_state_is_never_offered(stage: Stage, state: CopyState) -> None:
    stage.seal(100)
    stage.seal(200, state=state)
    told = stage.latest()
    assert told.chosen is not None
    assert told.chosen.step == 100


@pytest.mark.parametrize("state", sorted(REMOVED))
def test_a_copy_on_its_way_out_is_not_offered_however_far_it_got(
    stage: Stage, state: CopyState
) -> None:
    stage.seal(100)
    content_id = stage.seal(200).content_id
    (copy,) = stage.catalog.copies_of(RUN_ID, [content_id])[content_id]
    against = guard(reachable=frozenset({copy.place}), may_be_emptied=True)
    removals, key = stage.catalog.removals, (RUN_ID, content_id, copy.place)
    removals.condemn(RUN_ID, [doomed(content_id, copy.place)], against, plan_id="p")
    if state is not CopyState.CONDEMNED:
        removals.begin(*key, against)
    if state in (CopyState.TRASHED, CopyState.PURGED):
        removals.moved(*key, trash="run/.ckptgov/trash/x")
    if state is CopyState.PURGED:
        removals.purged(*key)
    (left,) = stage.catalog.copies_of(RUN_ID, [content_id])[content_id]
    assert left.state is state
    told = stage.latest()
    assert told.chosen is not None
    assert told.chosen.step == 100


def test_a_checkpoint_is_offered_at_its_good_copy_only(cluster: Stage) -> None:
    manifest = cluster.seal(100)
    cluster.catalog.put_copy(
        _copied(manifest.content_id, cluster.places["n1"].place, CopyState.REOPENED), 1
    )
    told = cluster.latest(node="n1")
    assert told.path == str(cluster.run_root("shared") / "step_100")


def test_a_copy_that_was_never_compared_is_not_the_nearest(cluster: Stage) -> None:
    manifest = cluster.seal(100)
    cluster.catalog.put_copy(
        _copied(manifest.content_id, cluster.places["n1"].place, CopyState.SIGHTED), 1
    )
    assert cluster.latest(node="n1").path == str(cluster.run_root("shared") / "step_100")


def _copied(content_id: str, place: str, state: CopyState):
    from ckptgov.catalog.facts import PlacedCopy

    return PlacedCopy(
        run_id=RUN_ID, content_id=content_id, place=place, name="step_100", state=state
    )


def test_the_asking_nodes_own_disk_comes_first(cluster: Stage) -> None:
    cluster.seal(100, "shared", "n2")
    assert cluster.latest(node="n2").path == str(cluster.run_root("n2") / "step_100")
    assert cluster.latest(node="n1").path == str(cluster.run_root("shared") / "step_100")


def test_a_silent_nodes_copy_is_out_of_reach(cluster: Stage) -> None:
    cluster.seal(100)
    cluster.seal(200, "n1")
    assert cluster.latest().chosen.step == 200
    cluster.clock.ahead_s = 61.0
    told = cluster.latest()
    assert told.chosen.step == 100
    (verdict,) = [one for one in told.choice.verdicts if one.checkpoint.step == 200]
    assert verdict.findings[0].reason is Reason.UNREACHABLE
    assert [note.kind for note in told.choice.notes].count("unreachable") == 2


def test_a_node_declared_dead_holds_nothing(cluster: Stage) -> None:
    cluster.seal(100)
    cluster.seal(200, "n1")
    cluster.catalog.nodes.set_state("n1", NodeState.DEAD, reason="burnt")
    assert cluster.latest().chosen.step == 100


def test_a_disk_seen_from_here_of_a_node_declared_dead_holds_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, nodes=("n1",), here=frozenset({"n1"}))
    try:
        stage.beat("n1")
        stage.seal(100)
        stage.seal(200, "n1")
        stage.catalog.nodes.set_state("n1", NodeState.DEAD, reason="disk errors")
        assert stage.latest().chosen.step == 100
    finally:
        stage.close()


@pytest.mark.parametrize("state", [NodeState.CORDONED, NodeState.DRAINED])
def test_a_node_to_be_emptied_can_still_be_read(cluster: Stage, state: NodeState) -> None:
    cluster.seal(200, "n1")
    cluster.catalog.nodes.set_state("n1", state, reason="service")
    assert cluster.latest().chosen.step == 200


def test_with_a_node_out_of_reach_nothing_is_known_to_be_absent(cluster: Stage) -> None:
    cluster.seal(200, "n1")
    cluster.catalog.nodes.set_state("n1", NodeState.DEAD, reason="burnt")
    assert isinstance(cluster.latest().error, CouldNotLook)


def test_halves_on_two_living_nodes_are_one_whole_checkpoint(cluster: Stage) -> None:
    manifest = cluster.seal_halves(100, "n1", "n2")
    told = cluster.latest(node="n2")
    assert told.error is None
    assert told.chosen.is_gathered
    assert told.chosen.evidence is Evidence.DIGEST
    assert {copy.node: copy.shards for copy in told.chosen.copies} == {
        "n1": (manifest.shards[0].path,),
        "n2": (manifest.shards[1].path,),
    }
    assert told.path == str(cluster.run_root("n2") / "step_100")


def test_a_half_alone_is_never_offered(cluster: Stage) -> None:
    cluster.seal(50)
    cluster.seal_halves(100, "n1", "n2")
    cluster.catalog.nodes.set_state("n2", NodeState.DEAD, reason="burnt")
    told = cluster.latest()
    assert told.chosen.step == 50
    (verdict,) = [one for one in told.choice.verdicts if one.checkpoint.step == 100]
    assert {one.reason for one in verdict.findings} == {Reason.UNREACHABLE, Reason.MISSING_SHARD}


def test_a_tier_that_is_not_configured_any_more_cannot_be_looked_at(stage: Stage) -> None:
    stage.seal(100)
    (stage.home / "ckptgov.yaml").write_text("tiers: []\n")
    assert isinstance(stage.latest().error, CouldNotLook)


def test_without_the_place_of_its_journal_a_run_cannot_be_looked_at(cluster: Stage) -> None:
    """A living node has it whole, and nobody can tell whether it may be offered."""
    cluster.seal(100, "n1")
    (cluster.home / "ckptgov.yaml").write_text("tiers: []\n")
    assert isinstance(cluster.latest().error, CouldNotLook)


def test_a_place_replaced_by_another_holds_nothing_that_counts(cluster: Stage) -> None:
    from ckptgov.testing import sealed_runs

    cluster.seal(100)
    cluster.seal(200, "n1")
    for path in (cluster.root / "n1").glob(".ckptgov-tier.json"):
        path.unlink()
    sealed_runs.put_place(
        cluster.catalog,
        cluster.root / "n1",
        tier="nvme",
        node="n1",
        uuid="00000000-0000-4000-8000-0000000000ff",
    )
    assert cluster.latest().chosen.step == 100


def test_an_unknown_run_is_not_one_without_checkpoints(stage: Stage) -> None:
    with stage.context() as context:
        told = standing.latest(context, "nope", Query()).answer
    assert isinstance(told.error, UnknownRun)


def test_never_any_is_said_of_a_run_whose_places_were_just_seen_empty(stage: Stage) -> None:
    assert isinstance(stage.latest().error, NeverAny)


def test_never_any_is_not_said_while_a_place_cannot_be_looked_at(cluster: Stage) -> None:
    error = cluster.latest().error
    assert isinstance(error, CouldNotLook)
    assert not isinstance(error, NeverAny)


def test_never_any_is_not_remembered(stage: Stage) -> None:
    with stage.context() as context:
        assert standing.latest(context, "run", Query()).good_until_ns == 0


def test_a_run_whose_checkpoints_are_all_gone_had_some(stage: Stage) -> None:
    stage.seal(100, state=CopyState.LOST)
    error = stage.latest().error
    assert isinstance(error, NoneRestorable)
    assert "none of them is there" in error.message


def test_a_marked_step_is_passed_over(stage: Stage) -> None:
    stage.seal(100)
    stage.seal(200)
    stage.record(1, MarkBad(stamp=stage.stamp(1), from_step=150))
    told = stage.latest()
    assert told.chosen.step == 100
    assert told.choice.verdicts[0].findings[0].reason is Reason.BAD


def test_a_rollback_holds_back_what_lies_above_it(stage: Stage) -> None:
    for step in (100, 200, 300):
        stage.seal(step)
    stage.record(1, Rollback(stamp=stage.stamp(1), to_step=100, line=2))
    assert stage.latest().chosen.step == 100
    stage.seal(150, line=2, seed="again")
    assert stage.latest().chosen.step == 150


def test_a_rollback_goes_back_to_the_line_that_held_the_step(stage: Stage) -> None:
    for step in (100, 200):
        stage.seal(step)
    stage.record(1, Rollback(stamp=stage.stamp(1), to_step=100, line=2))
    stage.seal(150, line=2, seed="again")
    # 200 was only ever saved on line 1: back to it means back to line 1, without line 2's 150.
    stage.record(2, Rollback(stamp=stage.stamp(2), to_step=200, line=3))
    told = stage.latest()
    assert told.chosen.step == 200
    assert told.chosen.line == 1


def test_what_arrives_after_a_rollback_does_not_change_where_it_went_back_to(
    stage: Stage,
) -> None:
    for step in (100, 200):
        stage.seal(step)
    stage.record(1, Rollback(stamp=stage.stamp(1), to_step=100, line=2))
    stage.seal(150, line=2, seed="again")
    stage.record(2, Rollback(stamp=stage.stamp(2), to_step=200, line=3))
    stage.seal(200, line=2, seed="late")
    assert stage.latest().chosen.line == 1


def test_what_failed_to_load_is_stepped_over_with_an_alert(stage: Stage) -> None:
    stage.seal(100)
    failed = stage.seal(200)
    stage.record(1, _load_failed(stage, 1, failed.content_id))
    told = stage.latest()
    assert told.chosen.step == 100
    assert "alert" in [note.kind for note in told.choice.notes]


def test_after_too_many_failed_loads_nothing_older_is_offered(stage: Stage) -> None:
    stage.seal(1)
    for number in range(1, 5):
        failed = stage.seal(100 + number)
        stage.record(number, _load_failed(stage, number, failed.content_id))
    assert isinstance(stage.latest().error, NoneRestorable)


def _load_failed(stage: Stage, number: int, content_id: str) -> Outcome:
    return Outcome(
        stamp=stage.stamp(number),
        content_id=content_id,
        restart_id=f"r{number}",
        epoch=0,
        outcome=RestoreOutcome.LOAD_FAILED,
    )


def test_one_saved_for_another_number_of_ranks_does_not_fit(stage: Stage) -> None:
    stage.seal(100)  # of two ranks, and its layout does not say that it loads on others
    assert stage.latest(world_size=2).chosen.step == 100
    error = stage.latest(world_size=4).error
    assert isinstance(error, NoneRestorable)
    assert Reason.DOES_NOT_FIT.value in error.message


def test_a_step_that_was_asked_for_is_found_below_many(stage: Stage) -> None:
    for step in range(1, 60):
        stage.seal(step)
    assert stage.latest(step=7).chosen.step == 7
    assert isinstance(stage.latest(step=1000).error, NoneRestorable)


def test_only_the_newest_page_is_read_of_a_run_with_many(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 100):
        stage.seal(step)
    read: list[int] = []
    newest = stage.catalog.newest

    def counting(run_id, *, before, limit):
        found = newest(run_id, before=before, limit=limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(stage.catalog, "newest", counting)
    assert stage.latest().chosen.step == 99
    assert sum(read) == standing.FIRST_PAGE


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 150])
def test_an_older_one_is_found_behind_any_number_of_bad_ones(stage: Stage, count: int) -> None:
    good = stage.seal(1)
    for step in range(2, 2 + count):
        stage.seal(step, state=CopyState.CORRUPT)
    told = stage.latest()
    assert told.chosen.content_id == good.content_id
    assert len(told.choice.verdicts) == count + 1


def test_attempts_at_one_step_are_all_seen_across_pages(stage: Stage) -> None:
    good = stage.seal(1)
    for attempt in range(40):
        seed = f"again {attempt}"
        stage.seal(2, state=CopyState.CORRUPT, attempt=attempt // 20, seed=seed)
    told = stage.latest()
    assert told.chosen.content_id == good.content_id
    assert len(told.choice.verdicts) == 41


def test_a_run_with_two_roots_at_one_place_is_looked_at(stage: Stage) -> None:
    """The catalog does not tell below which of them a copy lies; a look does."""
    stage.seal(100)
    (stage.root / "shared/second").mkdir()
    root = RunRootFacts(
        run_id=RUN_ID,
        place=stage.places["shared"].place,
        path="second",
        sidecar="second/.ckptgov",
    )
    stage.catalog.put_run_root(root)
    with stage.context() as context:
        told = standing.latest(context, "run", Query())
    assert told.good_until_ns == 0
    assert told.answer.chosen is None, "nothing was published at either root"


def test_an_answer_that_rests_on_a_node_ends_with_its_beat(cluster: Stage) -> None:
    cluster.seal(200, "n1")
    with cluster.context() as context:
        until_ns = standing.latest(context, "run", Query()).good_until_ns
    assert until_ns is not None
    assert 0 < until_ns - cluster.clock.now_ns() <= 60e9


def test_a_listing_has_every_checkpoint_with_its_reason(stage: Stage) -> None:
    stage.seal(100)
    stage.seal(200, state=CopyState.CORRUPT)
    with stage.context() as context:
        told = standing.listing(context, "run", Query())
    assert [(one.checkpoint.step, one.is_restorable) for one in told.verdicts] == [
        (200, False),
        (100, True),
    ]
    assert told.root == str(stage.run_root("shared"))


def test_a_listing_of_very_many_says_what_it_leaves_out(stage: Stage) -> None:
    for step in range(1, 30):
        stage.seal(step)
    with stage.context() as context:
        told = standing.listing(context, "run", Query(), most=20)
    assert [one.checkpoint.step for one in told.verdicts] == list(range(29, 9, -1))
    assert "not-told" in [note.kind for note in told.notes]
