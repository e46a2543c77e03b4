from __future__ import annotations

import pytest
from msgspec import structs

from ckptgov.catalog.facts import EventKind, RunFacts, RunRootFacts
from ckptgov.errors import UnknownRun, UsageError
from ckptgov.model.checkpoint import Expect, RunIdentity

RUN = RunIdentity(
    run_id="r1", name="team/llm", selector="llm_*", expect=Expect(glob="*/r_*.pt", count=4)
)


def test_a_run_is_found_by_name_and_by_id_as_it_was_put(catalog):
    catalog.put_run(RUN, 6)
    expected = RunFacts(identity=RUN, created_at_ns=6)
    assert catalog.run_by_name("team/llm") == expected
    assert catalog.run_by_id("r1") == expected
    assert catalog.runs() == (expected,)
    assert catalog.run_by_name("llm") is None
    assert catalog.run_by_id("r2") is None


def test_a_name_taken_by_another_run_is_refused_asking_for_another(catalog):
    catalog.put_run(RUN, 6)
    with pytest.raises(UsageError, match="taken by run r1") as caught:
        catalog.put_run(structs.replace(RUN, run_id="r2"), 7)
    assert "--run" in (caught.value.hint or "")
    assert [run.identity.run_id for run in catalog.runs()] == ["r1"]


def test_a_run_cannot_be_registered_under_two_names(catalog):
    catalog.put_run(RUN, 6)
    with pytest.raises(UsageError, match="registered as 'team/llm'"):
        catalog.put_run(structs.replace(RUN, name="other"), 7)


def test_putting_a_run_again_changes_nothing(catalog):
    catalog.put_run(RUN, 6)
    catalog.put_run(RUN, 9)
    assert [run.created_at_ns for run in catalog.runs()] == [6]
    assert [event.kind for event in catalog.events()].count(EventKind.RUN_ADDED) == 1


def test_names_that_are_not_utf_8_survive_and_sort_by_their_bytes(catalog):
    names = ["a\udcff", "a\U0001f600", "aé", "b"]
    for number, name in enumerate(names):
        catalog.put_run(RunIdentity(run_id=str(number), name=name), 6)
    listed = [run.identity.name for run in catalog.runs()]
    assert listed == sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))


def test_text_that_is_no_text_is_refused(catalog):
    with pytest.raises(UsageError, match="cannot hold"):
        catalog.put_run(RunIdentity(run_id="r1", name="\ud800"), 6)
    with pytest.raises(UsageError, match="cannot hold"):
        catalog.put_run(RunIdentity(run_id="\ud800", name="a"), 6)


def test_a_number_too_large_is_refused(catalog):
    with pytest.raises(UsageError, match="cannot hold"):
        catalog.put_run(RUN, 2**63)


def test_a_run_is_found_at_its_root(catalog, place):
    catalog.put_place(place)
    catalog.put_run(RUN, 6)
    root = RunRootFacts(run_id="r1", place="p1", path="llm/\udcff", sidecar="llm/\udcff/.ckptgov")
    catalog.put_run_root(root)
    catalog.put_run_root(root)
    assert catalog.roots_of("r1") == (root,)
    found = catalog.run_at("p1", "llm/\udcff")
    assert found is not None
    assert found.identity == RUN
    assert catalog.run_at("p1", "llm") is None
    assert [event.kind for event in catalog.events()].count(EventKind.RUN_ROOT_ADDED) == 1


def test_a_root_is_dropped_once_and_only_for_its_own_run(catalog, place):
    catalog.put_place(place)
    catalog.put_run(RUN, 6)
    root = RunRootFacts(run_id="r1", place="p1", path="llm/\udcff", sidecar="llm/\udcff/.ckptgov")
    catalog.put_run_root(root)
    catalog.drop_run_root(structs.replace(root, run_id="r2"))
    assert catalog.roots_of("r1") == (root,)
    for _ in range(2):
        catalog.drop_run_root(root)
        assert catalog.roots_of("r1") == ()
    assert [event.kind for event in catalog.events()].count(EventKind.RUN_ROOT_DROPPED) == 1
    catalog.put_run_root(root)
    assert catalog.roots_of("r1") == (root,)


def test_a_root_belongs_to_one_run(catalog, place):
    catalog.put_place(place)
    catalog.put_run(RUN, 6)
    catalog.put_run(RunIdentity(run_id="r2", name="other"), 6)
    catalog.put_run_root(RunRootFacts(run_id="r1", place="p1", path="", sidecar=".ckptgov"))
    with pytest.raises(UsageError, match="belongs to run r1"):
        catalog.put_run_root(RunRootFacts(run_id="r2", place="p1", path="", sidecar=".ckptgov"))


def test_a_roots_sidecar_can_move(catalog, place):
    catalog.put_place(place)
    catalog.put_run(RUN, 6)
    root = RunRootFacts(run_id="r1", place="p1", path="", sidecar=".ckptgov")
    catalog.put_run_root(root)
    moved = structs.replace(root, sidecar=".ckptgov/foreign/x")
    catalog.put_run_root(moved)
    assert catalog.roots_of("r1") == (moved,)


def test_a_root_of_an_unknown_run_is_refused(catalog, place):
    catalog.put_place(place)
    with pytest.raises(UnknownRun):
        catalog.put_run_root(RunRootFacts(run_id="r9", place="p1", path="", sidecar=".ckptgov"))


def test_a_place_keeps_the_time_it_was_first_seen(catalog, place):
    catalog.put_place(place)
    catalog.put_place(structs.replace(place, source="10.0.0.2@o2ib:/fs1", first_seen_at_ns=9))
    (known,) = catalog.places()
    assert known == structs.replace(place, source="10.0.0.2@o2ib:/fs1")


def test_a_place_is_found_by_its_root_and_node(catalog, place):
    node7 = structs.replace(place, place="p7", tier="nvme", node="n7", root="/nvme")
    node8 = structs.replace(node7, place="p8", node="n8")
    for each in (place, node7, node8):
        catalog.put_place(each)
    assert catalog.place_by_root("/lustre/ckpt") == place
    assert catalog.place_by_root("/nvme", node="n7") == node7
    assert catalog.place_by_root("/nvme", node="n8") == node8
    assert catalog.place_by_root("/nvme") is None


def test_a_replaced_disk_is_known_but_no_longer_at_its_root(catalog, place):
    new = structs.replace(place, place="p2", first_seen_at_ns=9)
    catalog.put_place(place)
    catalog.put_place(new)
    assert catalog.place_by_root(place.root) == new
    assert catalog.places() == (structs.replace(place, is_current=False), new)
    assert [e.place for e in catalog.events() if e.kind is EventKind.PLACE_REPLACED] == ["p1"]


def test_a_disk_put_back_is_current_again(catalog, place):
    catalog.put_place(place)
    catalog.put_place(structs.replace(place, place="p2"))
    catalog.put_place(place)
    assert catalog.place_by_root(place.root) == place
