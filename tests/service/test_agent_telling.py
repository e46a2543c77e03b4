"""Posts: told later, told twice, told late, told to a service that forgot; guarded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptgov.errors import Malformed, NotAllowed
from ckptgov.manifest.forms.records import encode_record
from ckptgov.model.checkpoint import Evidence, VerifyLevel
from ckptgov.model.copies import CopyState
from ckptgov.model.facts import Finding, Reason
from ckptgov.model.journal import MarkBad, Restart, Stamp
from ckptgov.ops import telling, telling_run
from ckptgov.ops.parts import CatalogJournal
from ckptgov.ops.posting import apply_post
from ckptgov.ops.scan import scan
from ckptgov.ops.verify import verify
from ckptgov.testing.builders import write_dcp
from ckptgov.testing.cluster import LocalCluster, LocalNode
from ckptgov.testing.condemning import doomed, guard
from ckptgov.wire.facts import (
    Post,
    PostedCopy,
    PostedPlace,
    PostedRecord,
    decode_post_answer,
    decode_told,
    encode_told,
    packed,
    unpacked,
)

RECORD_ID = "00000000-0000-4000-8000-000000000009"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with ExitStack() as stack:
        yield LocalCluster(tmp_path, stack, "node0", "node1")


@pytest.fixture
def node(cluster: LocalCluster) -> LocalNode:
    """A node whose run is known: one checkpoint, told."""
    node = cluster.nodes["node0"]
    write_dcp(node.disk / "run/step_10")
    node.turn()
    return node


def posts(node: LocalNode) -> list[Post]:
    found = [decode_told(raw) for _node, raw in node.line.sent]
    return [one for one in found if isinstance(one, Post) and one.run is not None]


def known(cluster: LocalCluster) -> dict[str, list[tuple[CopyState, bytes | None]]]:
    """The service's copies in comparable form."""
    return {
        content_id: [(one.state, one.coverage) for one in copies]
        for content_id, copies in cluster.copies("run").items()
    }


def apply(cluster: LocalCluster, post: Post, *, node: str = "node0"):
    return apply_post(cluster.serving.catalog, post, node=node, at_ns=cluster.clock.now_ns())


class TestTheServiceAway:
    def test_what_was_sealed_meanwhile_is_told_later(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        node.line.is_cut = True
        write_dcp(node.disk / "run/step_20")
        assert node.turn() is False
        assert cluster.restorable("run") == ["step_10"]
        node.line.is_cut = False
        node.turn()
        assert cluster.restorable("run") == ["step_10", "step_20"]

    def test_what_is_known_is_sealed_and_flushed_meanwhile(self, node: LocalNode) -> None:
        node.line.is_cut = True
        write_dcp(node.disk / "run/step_20")
        node.turn()
        assert (node.home.parent / "lustre/run/step_20/.metadata").exists()

    def test_a_run_nobody_knows_waits_for_its_identity(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        node.line.is_cut = True
        write_dcp(node.disk / "new/step_1")
        node.turn()
        assert not (node.disk / "new/.ckptgov").exists()
        node.line.is_cut = False
        node.turn()
        assert cluster.restorable("new") == ["step_1"]

    def test_an_agent_that_was_started_anew_tells_what_the_last_one_could_not(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        node.line.is_cut = True
        write_dcp(node.disk / "run/step_20")
        node.turn()
        node.start()
        node.line.is_cut = False
        node.turn()
        assert cluster.restorable("run") == ["step_10", "step_20"]

    def test_a_lost_answer_does_no_harm(self, cluster: LocalCluster, node: LocalNode) -> None:
        node.line.loses_answers = True
        write_dcp(node.disk / "run/step_20")
        node.turn()
        node.line.loses_answers = False
        write_dcp(node.disk / "run/step_30")
        node.turn()
        assert {len(copies) for copies in known(cluster).values()} == {2}
        assert cluster.restorable("run") == ["step_10", "step_20", "step_30"]


class TestPostsAgain:
    def test_the_same_post_twice_changes_nothing(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        seq = cluster.serving.catalog.change_seq()
        for post in posts(node):
            answer = apply(cluster, post)
            assert not answer.is_applied
        assert cluster.serving.catalog.change_seq() == seq

    def test_an_older_post_after_a_newer_one_changes_nothing(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        old = [post for post in posts(node) if post.copies]
        shutil.rmtree(node.disk / "run/step_10")
        node.turn()
        after = known(cluster)
        assert CopyState.LOST in {state for copies in after.values() for state, _ in copies}
        for post in old:
            apply(cluster, post)
        assert known(cluster) == after

    def test_an_older_whole_account_changes_nothing_either(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        whole = next(one for one in posts(node) if one.covers and one.place.node == "node0")
        after = known(cluster)
        nothing = replace(whole, copies=(), sealed=())
        assert not apply(cluster, nothing).is_applied
        assert known(cluster) == after

    def test_a_post_that_follows_on_nothing_asks_for_everything(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        last = replace(posts(node)[-1], covers=None)
        answer = apply(cluster, replace(last, number=last.number + 9, after=last.number + 8))
        assert answer.wants_whole
        assert not answer.is_applied

    def test_a_service_that_lost_its_catalog_is_told_everything_again(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        before = known(cluster)
        cluster.serving.catalog.wipe_facts()
        with cluster.serving.context() as context:
            context.place(context.settings.tiers[0])  # what a rebuild would find
        write_dcp(node.disk / "run/step_20")
        node.turn()
        assert known(cluster).items() > before.items()

    def test_an_agent_that_lost_its_home_tells_what_it_finds(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        (node.home / telling.LOG_FILE).unlink()
        node.start()
        write_dcp(node.disk / "run/step_20")
        node.turn()
        assert cluster.restorable("run") == ["step_10", "step_20"]

    def test_what_it_does_not_find_any_more_is_lost(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        last = [one for one in posts(node) if one.place.node == "node0"][-1]
        whole = replace(last, number=last.number + 1, covers=("", None), copies=(), sealed=())
        apply(cluster, whole)
        (copies,) = known(cluster).values()
        assert sorted(state for state, _ in copies) == [CopyState.LOST, CopyState.VERIFIED]

    def test_many_copies_come_in_pieces(
        self, cluster: LocalCluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(telling_run, "_PIECE_BYTES", 600)
        for step in (20, 30, 40):
            write_dcp(node.disk / f"run/step_{step}")
        cluster.serving.catalog.wipe_facts()
        with cluster.serving.context() as context:
            context.place(context.settings.tiers[0])
        node.turn()
        assert len(cluster.restorable("run")) == 4


class TestGuards:
    def test_a_run_of_another_id_under_the_same_name_is_named_and_the_rest_taken(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        stranger = cluster.nodes["node1"]
        write_dcp(stranger.disk / "run/step_30")
        write_dcp(stranger.disk / "other/step_5")
        with stranger.serving.context() as context:
            scan(context, [str(stranger.disk / "run")], node="node1")
        stranger.turn()
        assert cluster.restorable("run") == ["step_10"]
        assert cluster.restorable("other") == ["step_5"]
        assert any("is taken by run" in one for one in stranger.said), stranger.said

    def test_a_place_of_another_node_is_not_its_to_speak_of(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        own = next(one for one in posts(node) if one.place.node == "node0")
        with pytest.raises(NotAllowed, match="node0"):
            apply(cluster, replace(own, node="node1"), node="node1")
        with pytest.raises(NotAllowed):
            apply(cluster, own, node="node1")
        stolen = replace(own.place, node="node1")
        with pytest.raises(NotAllowed, match="of node node0"):
            apply(cluster, replace(own, node="node1", place=stolen), node="node1")

    def test_a_shared_place_that_the_service_does_not_know_is_refused(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        own = posts(node)[0]
        elsewhere = replace(own.place, node=None, place="99999999-0000-0000-0000-000000000000")
        with pytest.raises(NotAllowed, match="not known"):
            apply(cluster, replace(own, place=elsewhere))

    def test_nothing_is_verified_without_a_digest(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        own = next(one for one in posts(node) if one.copies)
        copy = replace(own.copies[0], evidence=Evidence.STRUCTURE)
        with pytest.raises(Malformed, match="without a digest"):
            apply(cluster, replace(own, copies=(copy,)))

    def test_a_coverage_of_shards_that_are_not_there_is_refused(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        own = [one for one in posts(node) if one.copies][-1]
        copy = replace(own.copies[0], coverage=b"\xff")
        last = [one for one in posts(node) if one.place == own.place][-1]
        late = replace(own, number=last.number + 1, after=last.number, copies=(copy,))
        with pytest.raises(Malformed, match="coverage"):
            apply(cluster, late)

    def test_a_path_that_leads_out_of_the_root_is_refused(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        own = next(one for one in posts(node) if one.copies)
        copy = replace(own.copies[0], name="../../etc")
        with pytest.raises(Malformed):
            apply(cluster, replace(own, copies=(copy,)))

    def test_an_older_verdict_of_a_shared_place_does_not_undo_a_newer_one(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        shared = [one for one in posts(node) if one.place.node is None][-1]
        told = next(one for one in posts(node) if one.place.node is None and one.copies).copies[0]
        catalog, run_id = cluster.serving.catalog, shared.run.run_id
        catalog.transition(
            run_id,
            told.content_id,
            shared.place.place,
            expected=CopyState.VERIFIED,
            to=CopyState.CORRUPT,
            at_ns=cluster.clock.now_ns(),
            evidence=Evidence.NONE,
        )
        late = replace(shared, number=shared.number + 1, after=shared.number, copies=(told,))
        assert apply(cluster, late).is_applied
        states = [state for state, _ in known(cluster)[told.content_id]]
        assert sorted(states) == [CopyState.CORRUPT, CopyState.VERIFIED]

    @pytest.mark.parametrize("left", ["the receipts", "nothing"])
    def test_a_late_verdict_does_not_bring_back_what_was_lost_since(
        self, cluster: LocalCluster, node: LocalNode, left: str
    ) -> None:
        """P1: the agent compared the shared copy, could not tell, and the copy was removed."""
        node.line.is_cut = True
        with node.serving.context() as context:
            asked = context.asked("run", sealed_only=False)
            assert asked is not None
            context.author.clock.sleep(5)
            verify(context, asked, level=VerifyLevel.DIGEST, dry_run=False)
        shutil.rmtree(cluster.lustre / "run/step_10")
        if left == "nothing":
            shutil.rmtree(cluster.lustre / "run/.ckptgov/receipts")
        cluster.clock.sleep(5)
        with cluster.serving.context() as context:
            scan(context, [])
        node.line.is_cut = False
        node.agent.tell()  # only that: a flush would bring the copy itself back
        (copies,) = cluster.copies("run").values()
        states = {one.place: one.state for one in copies}
        shared = next(one.place for one in cluster.serving.catalog.places() if one.node is None)
        assert states[shared] is CopyState.LOST

    def test_a_verdict_that_was_long_on_its_way_does_not_prove_what_changed_since(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        shared = [one for one in posts(node) if one.place.node is None][-1]
        told = next(one for one in posts(node) if one.place.node is None and one.copies).copies[0]
        assert told.verified_at_ns is not None
        cluster.serving.catalog.transition(
            shared.run.run_id,
            told.content_id,
            shared.place.place,
            expected=CopyState.VERIFIED,
            to=CopyState.REOPENED,
            at_ns=told.verified_at_ns + 2,
        )
        late = replace(
            shared,
            number=shared.number + 1,
            after=shared.number,
            copies=(replace(told, verified_at_ns=told.verified_at_ns + 1),),
        )
        assert apply(cluster, late).is_applied
        states = [state for state, _ in known(cluster)[told.content_id]]
        assert sorted(states) == [CopyState.REOPENED, CopyState.VERIFIED]

    def test_what_was_condemned_here_stays_so(self, cluster: LocalCluster, node: LocalNode) -> None:
        own = [one for one in posts(node) if one.place.node == "node0"][-1]
        told = next(one for one in posts(node) if one.place.node and one.copies).copies[0]
        going = doomed(told.content_id, own.place.place)
        against = guard(may_be_emptied=True)
        catalog = cluster.serving.catalog
        catalog.removals.condemn(own.run.run_id, [going], against, plan_id="p")
        apply(cluster, replace(own, number=own.number + 1, after=own.number, copies=(told,)))
        assert CopyState.CONDEMNED in [state for state, _ in known(cluster)[told.content_id]]

    def test_a_state_that_may_not_follow_is_reached_without_offering_anything(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        own = [one for one in posts(node) if one.place.node == "node0"][-1]
        (content_id,) = known(cluster)
        number = own.number
        for state in (CopyState.UNREADABLE, CopyState.PARTIAL, CopyState.CORRUPT):
            copy = PostedCopy(content_id=content_id, name="step_10", state=state)
            number += 1
            apply(cluster, replace(own, number=number, after=number - 1, copies=(copy,)))
            assert state in [one for one, _ in known(cluster)[content_id]]


class TestTheJournal:
    def test_what_was_said_at_the_service_reaches_the_nodes_own_journal(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        with cluster.serving.context() as context, context.catalog.transaction():
            CatalogJournal(context.catalog, run_id).append(
                MarkBad(stamp=context.author.stamp(run_id, reason="loss spike"), from_step=1)
            )
        write_dcp(node.disk / "run/step_20")
        node.turn()
        assert list((node.disk / "run/.ckptgov/journal").glob("*.mark-bad.json"))
        assert {one.kind for one in node.serving.catalog.records(run_id)} >= {"mark-bad", "sealed"}

    def test_what_the_node_recorded_reaches_the_service(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        run_id = cluster.serving.catalog.runs()[0].identity.run_id
        kinds = [one.kind for one in cluster.serving.catalog.records(run_id)]
        assert kinds == ["sealed"]

    def test_a_restart_that_was_decided_is_passed_on_and_never_decided_by_a_node(
        self, cluster: LocalCluster, node: LocalNode
    ) -> None:
        catalog = cluster.serving.catalog
        run_id = catalog.runs()[0].identity.run_id
        own = [one for one in posts(node) if one.place.node == "node0"][-1]
        (content_id,) = known(cluster)

        def told(record_id: str, number: int, content_id: str | None) -> tuple[str, ...]:
            stamp = Stamp(id=record_id, run_id=run_id, at_ns=1, by="uid:0@node0")
            record = Restart(
                stamp=stamp,
                restart_id="r",
                epoch=0,
                content_id=content_id,
                fresh=content_id is None,
            )
            posted = PostedRecord(
                record_id=record_id, number=0, kind="restart", raw=encode_record(record)
            )
            post = replace(own, number=number, after=number - 1, copies=(), records=(posted,))
            return tuple(one.message for one in apply(cluster, post).refusals)

        first, second = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
        assert "or not yet" in told(first, own.number + 1, content_id)[0]
        catalog.decide(run_id, "r", 0, content_id, False)
        assert "not decided so" in told(second, own.number + 2, None)[0]
        assert told(first, own.number + 3, content_id) == ()
        assert {one.record_id for one in catalog.binding_records(run_id)} == {first}

    def test_of_a_run_on_nodes_disks_alone_a_restart_is_learnt_from_them(
        self, cluster: LocalCluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing else keeps it once the catalog is lost."""
        catalog = cluster.serving.catalog
        run_id = catalog.runs()[0].identity.run_id
        own = [one for one in posts(node) if one.place.node == "node0"][-1]
        disks = tuple(one for one in catalog.roots_of(run_id) if one.place == own.place.place)
        monkeypatch.setattr(catalog, "roots_of", lambda _run_id: disks)
        stamp = Stamp(id=RECORD_ID, run_id=run_id, at_ns=1, by="uid:0@node0")
        record = Restart(stamp=stamp, restart_id="r", epoch=0, fresh=True)
        posted = PostedRecord(
            record_id=RECORD_ID, number=0, kind="restart", raw=encode_record(record)
        )
        number = own.number + 1
        post = replace(own, number=number, after=number - 1, copies=(), records=(posted,))
        assert apply(cluster, post).refusals == ()
        assert [one.record_id for one in catalog.binding_records(run_id)] == [RECORD_ID]


class TestMessages:
    def test_names_that_are_not_utf8_come_back_as_they_were(self) -> None:
        odd = "run/\udcff\udcfe/step_1"
        place = PostedPlace(
            place="p",
            tier="t",
            node="n",
            root="/\x1aodd",
            fs_type="ext4",
            source="x",
            first_seen_at_ns=1,
        )
        copy = PostedCopy(
            content_id="sha256:0",
            name=odd,
            state=CopyState.CORRUPT,
            coverage=b"\x01",
            findings=(Finding(Reason.CORRUPT, odd, "wrong"),),
        )
        post = Post(node="n", place=place, copies=(copy,))
        assert decode_told(encode_told(post)) == post

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"{}",
            b"[]",
            b'{"post":null,"claim":null}',
            b'{"post":{"node":"n"}}',
            b'{"post":{"node":1}}',
            b'{"more":1}',
            b"\xff",
            b"[" * 100_000,
        ],
    )
    def test_what_is_no_message_is_malformed(self, raw: bytes) -> None:
        with pytest.raises(Malformed):
            decode_told(raw)

    def test_an_unknown_member_is_malformed(self) -> None:
        place = PostedPlace(
            place="p", tier="t", node="n", root="/", fs_type="", source="", first_seen_at_ns=1
        )
        raw = encode_told(Post(node="n", place=place)).replace(b'"node":"n"', b'"nod":"n"', 1)
        with pytest.raises(Malformed):
            decode_told(raw)

    def test_a_message_of_another_version_is_malformed(self) -> None:
        with pytest.raises(Malformed):
            decode_post_answer(b'{"version":2}')

    def test_a_manifest_that_unpacks_to_too_much_is_malformed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ckptgov.wire.facts.MAX_MANIFEST_BYTES", 1000)
        with pytest.raises(Malformed):
            unpacked(packed(b"a" * 1001))
        assert unpacked(packed(b"a" * 999)) == b"a" * 999

    def test_a_message_that_is_too_large_is_malformed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ckptgov.wire.strict.MAX_MESSAGE_BYTES", 10)
        with pytest.raises(Malformed, match="allowed"):
            decode_told(b'{"post":null,"claim":null}')
