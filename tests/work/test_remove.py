from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptgov.errors import (
    ForeignPlace,
    Interrupted,
    PathEscapes,
    RefusedBySafety,
    StaleState,
    StorageError,
)
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.journal import Tombstone
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing.removals import (
    DAY,
    NOW_NS,
    PLACE,
    SECOND,
    WHOLE,
    Keys,
    Stage,
    everything,
    manifest_of,
)
from ckptgov.work.remove import measure, move_aside, purge, put_back, trash_entries
from ckptgov.work.runstore import RunStore, foreign_sidecar
from ckptgov.work.tier import TIER_FILE

GROUP = {f"checkpoint_1_10-shard{n}.pt": bytes([n]) * (100 + n) for n in range(3)}
OTHER_GROUP = {f"checkpoint_1_100-shard{n}.pt": bytes([n]) * 50 for n in range(3)}
ODD = "e\udcff=1\n/step_1 \u202e"


@pytest.fixture(params=["memory", "posix"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
        return
    with PosixStorage(tmp_path) as storage:
        yield storage


@pytest.fixture
def stage(tree: Storage) -> Stage:
    return Stage(tree)


@pytest.fixture
def keys() -> Stage:
    return Stage(Keys())


def trash_files(stage: Stage, trash: str) -> dict[str, bytes]:
    return everything(stage.tree, trash)


# a whole directory


def test_a_directory_is_moved_to_the_trash_whole_and_nothing_is_sealed_then(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.seal("step_2", SECOND, step=2)
    stage.put("run/step_1/notes.txt", b"mine")
    done = stage.move(manifest)
    assert done.trash.startswith(f"run/.ckptgov/trash/{DAY}/{manifest.content_id[7:23]}.")
    assert (done.moved_files, done.left, done.extras) == (4, (), ("notes.txt",))
    assert done.moved_bytes == sum(map(len, WHOLE.values()))
    assert stage.files() == {f"step_2/{path}": raw for path, raw in SECOND.items()}
    inside = trash_files(stage, done.trash)
    assert {path for path in inside if not path.endswith(".json")} == {
        f"{done.trash}/files/step_1/{path}" for path in [*WHOLE, "notes.txt"]
    }
    assert stage.names_offered() == ["step_2"]
    assert len(stage.store.manifests()) == 1


def test_manifest_and_receipt_lie_in_the_trash_as_they_stood(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stood = everything(stage.tree, "run/.ckptgov")
    done = stage.move(manifest)
    inside = trash_files(stage, done.trash)
    for kind, name in (("manifests", "manifest.json"), ("receipts", "receipt.json")):
        (before,) = (raw for path, raw in stood.items() if f"/{kind}/" in path)
        assert inside[f"{done.trash}/{name}"] == before
    (entry,) = trash_entries(stage.store)
    assert (entry.content_id, entry.name) == (manifest.content_id, "step_1")
    assert (entry.trash, entry.since.isoformat(), entry.moved) == (done.trash, DAY, True)
    assert entry.manifest == manifest
    assert entry.receipt is not None


def test_moving_again_changes_nothing_and_says_the_same(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    before = everything(stage.tree)
    assert stage.move(manifest) == done
    assert everything(stage.tree) == before


def test_a_purge_leaves_nothing_but_the_record(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    purged = stage.purge(manifest, done.trash)
    assert (purged.files, purged.left) == (3, ())
    assert purged.bytes == sum(map(len, WHOLE.values()))
    assert stage.files() == {}
    left = [path for path in everything(stage.tree) if "/journal/" not in path]
    assert sorted(left) == [TIER_FILE, "run/.ckptgov/run.json"]
    assert stage.purge(manifest, done.trash).files == 0
    assert stage.names_offered() == []


def test_what_was_moved_comes_back_as_it_was(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.put("run/step_1/notes.txt", b"mine")
    before, inode = stage.files(), stage.tree.stat("run/step_1/a.bin").inode
    done = stage.move(manifest)
    assert put_back(stage.place(), stage.store, done.trash) == "step_1"
    assert stage.files() == before
    assert stage.tree.stat("run/step_1/a.bin").inode == inode
    assert stage.told() == []  # the tombstone stands
    stage.undelete(manifest)
    (back,) = stage.told()
    assert (back.name, back.content_id) == ("step_1", manifest.content_id)
    assert back.evidence is not Evidence.DIGEST  # to be verified
    assert trash_entries(stage.store) == ()
    assert put_back(stage.place(), stage.store, done.trash) == "step_1"


def test_what_came_back_can_go_again(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    put_back(stage.place(), stage.store, done.trash)
    stage.undelete(manifest)
    with pytest.raises(StaleState, match="no receipt"):
        stage.move(manifest)


# files among others'


def test_of_a_shared_directory_only_its_own_files_go(stage: Stage) -> None:
    manifest = stage.seal("checkpoint_1_10", GROUP, base="")
    stage.seal("checkpoint_1_100", OTHER_GROUP, base="", step=100)
    stage.put("run/notes.txt", b"mine")
    done = stage.move(manifest)
    assert (done.moved_files, done.left, done.extras) == (3, (), ())
    assert stage.files() == {**OTHER_GROUP, "notes.txt": b"mine"}
    assert stage.names_offered() == ["checkpoint_1_100"]
    put_back(stage.place(), stage.store, done.trash)
    assert stage.files() == {**GROUP, **OTHER_GROUP, "notes.txt": b"mine"}


def test_a_single_file_goes_and_its_empty_directory_with_it(stage: Stage) -> None:
    """A13: a slash in a metric's name made the directory."""
    name = "epoch=1-step=100-val/loss=0.41.ckpt"
    manifest = stage.seal(name, {"": b"x" * 100})
    stage.put("run/notes/readme.txt", b"mine")
    done = stage.move(manifest)
    assert (done.moved_files, done.moved_bytes) == (1, 100)
    assert [one.name for one in stage.tree.list("run")] == [".ckptgov", "notes"]
    put_back(stage.place(), stage.store, done.trash)
    assert stage.files() == {name: b"x" * 100, "notes/readme.txt": b"mine"}
    assert stage.purge(manifest, done.trash).files == 0


def test_a_directory_above_that_holds_anything_stays(stage: Stage) -> None:
    manifest = stage.seal("best/step_1", WHOLE)
    stage.put("run/best/other.txt", b"mine")
    stage.move(manifest)
    assert stage.files() == {"best/other.txt": b"mine"}


def test_the_run_root_stays_when_its_last_checkpoint_goes(stage: Stage) -> None:
    manifest = stage.seal("attempt-1/step_1", WHOLE)
    done = stage.move(manifest)
    assert stage.purge(manifest, done.trash).left == ()
    assert [one.name for one in stage.tree.list("run")] == [".ckptgov"]


def test_a_namesake_without_the_attempt_is_untouched(stage: Stage) -> None:
    kept = {path: raw + b"!" for path, raw in WHOLE.items()}
    stage.seal("step_1", kept)
    manifest = stage.seal("attempt-1/step_1", WHOLE)
    stage.purge(manifest, stage.move(manifest).trash)
    assert stage.files() == {f"step_1/{path}": raw for path, raw in kept.items()}
    assert stage.names_offered() == ["step_1"]


def test_names_that_are_prefixes_of_one_another_are_told_apart(stage: Stage) -> None:
    """A11."""
    first = stage.seal("step-1", WHOLE)
    for step in (10, 100):
        stage.seal(f"step-{step}", WHOLE | {"a.bin": b"%d" % step}, step=step)
    stage.put("run/step-1.json", b"mine")
    stage.purge(first, stage.move(first).trash)
    assert {path.partition("/")[0] for path in stage.files()} == {
        "step-10",
        "step-100",
        "step-1.json",
    }


def test_a_node_gives_up_the_part_it_holds(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE, only=frozenset({"a.bin"}))
    done = stage.move(manifest, partial=True)
    assert done.moved_files == 1
    assert stage.files() == {}
    assert stage.purge(manifest, done.trash).bytes == len(WHOLE["a.bin"])


def test_names_of_any_bytes_go_and_come_back(stage: Stage) -> None:
    files = {"\udcfe": b"1", "new\nline": b"2", "d/-rf": b"3"}
    manifest = stage.seal(ODD, files)
    before = stage.files()
    done = stage.move(manifest)
    assert stage.files() == {}
    assert put_back(stage.place(), stage.store, done.trash) == ODD
    assert stage.files() == before


def test_trash_lies_beside_a_store_under_the_tier_root(tree: Storage) -> None:
    stage = Stage(tree)
    own = RunStore(tree, "other", sidecar=foreign_sidecar("other"))
    tree.make_dirs("other")
    stage.run_root = "other"
    own.create(stage_identity())
    assert stage.store.sidecar == ".ckptgov/foreign/other"
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    assert done.trash.startswith(".ckptgov/foreign/other/trash/")
    assert [one.name for one in tree.list("other")] == []
    assert stage.purge(manifest, done.trash).left == ()


def stage_identity():
    from ckptgov.model.checkpoint import RunIdentity

    return RunIdentity(run_id="7a1c6d1e-0000-4000-8000-0000000000ff", name="other")


# what must not go


def test_a_shard_that_was_rewritten_stops_it_all(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.tree.remove("run/step_1/a.bin")
    stage.put("run/step_1/a.bin", b"a later save")
    before = everything(stage.tree)
    for call in (lambda: stage.move(manifest), lambda: measured(stage, manifest)):
        with pytest.raises(StaleState):
            call()
    assert everything(stage.tree) == before


def measured(stage: Stage, manifest):
    with stage.look() as look:
        return measure(stage.place(), look, manifest.content_id)


def test_files_that_are_gone_already_are_no_error(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.tree.remove("run/step_1/a.bin")
    done = stage.move(manifest)
    assert (done.moved_files, done.left) == (2, ())
    assert stage.files() == {}


def test_a_directory_of_which_only_strange_files_are_left_stays(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    for path in WHOLE:
        stage.tree.remove(f"run/step_1/{path}")
    stage.put("run/step_1/new.tmp", b"a save in the making")
    assert stage.move(manifest).moved_files == 0
    assert stage.files() == {"step_1/new.tmp": b"a save in the making"}
    assert stage.names_offered() == []


def test_what_is_not_sealed_here_is_stale(stage: Stage) -> None:
    with pytest.raises(StaleState):
        stage.move(manifest_of("step_1", WHOLE))


def test_a_checkpoint_that_lies_here_twice_is_left_to_a_person(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.seal("kept/step_1", WHOLE)
    before = everything(stage.tree)
    with pytest.raises(RefusedBySafety, match="twice"):
        stage.move(manifest)
    assert everything(stage.tree) == before


@pytest.mark.parametrize("inside", ["sealed", "run root"])
def test_a_directory_that_holds_something_else_is_refused(stage: Stage, inside: str) -> None:
    manifest = stage.seal("step_1", WHOLE)
    if inside == "sealed":
        stage.seal("step_1/more/step_2", {"x": b"x"}, step=2)
    else:
        stage.put("run/step_1/logs/.ckptgov/run.json", b"{}")
    before = everything(stage.tree)
    for call in (lambda: stage.move(manifest), lambda: measured(stage, manifest)):
        with pytest.raises(RefusedBySafety):
            call()
    assert everything(stage.tree) == before


def test_two_sets_under_one_name_share_their_directory(stage: Stage) -> None:
    four = {f"w4_{n}.pt": b"4" * 10 for n in range(4)} | {"common.json": b"{}"}
    eight = {f"w8_{n}.pt": b"8" * 10 for n in range(8)} | {"common.json": b"{}"}
    manifest = stage.seal("actor", four)
    for path in eight:
        if path != "common.json":
            stage.put(f"run/actor/{path}", eight[path])
    stage.seal("actor", eight, is_there=True)
    assert measured(stage, manifest).files == 4
    done = stage.move(manifest)
    assert done.moved_files == 4
    assert stage.files() == {f"actor/{path}": raw for path, raw in eight.items()}
    assert stage.names_offered() == ["actor"]
    put_back(stage.place(), stage.store, done.trash)
    assert stage.files() == {f"actor/{path}": raw for path, raw in (four | eight).items()}


@pytest.mark.parametrize("content", [None, "another place"])
def test_a_root_of_unknown_identity_is_not_touched(stage: Stage, content: str | None) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    other = stage.seal("step_2", WHOLE | {"c": b"c"}, step=2)
    raw = everything(stage.tree)[TIER_FILE]
    stage.tree.remove(TIER_FILE)
    if content is not None:
        from ckptgov.work.tier import mint_identity

        mint_identity(
            stage.tree,
            tier="near",
            catalog=PLACE,
            epoch=1,
            new_id=lambda: PLACE.replace("a", "b"),
        )
        assert everything(stage.tree)[TIER_FILE] != raw
    before = everything(stage.tree)
    for call in (
        lambda: stage.move(other),
        lambda: measured(stage, other),
        lambda: stage.purge(manifest, done.trash),
        lambda: put_back(stage.place(), stage.store, done.trash),
    ):
        with pytest.raises(ForeignPlace):
            call()
    assert everything(stage.tree) == before


@pytest.mark.parametrize(
    "trash",
    [
        "run/step_2",
        "run",
        "",
        "run/.ckptgov/trash",
        f"run/.ckptgov/trash/{DAY}",
        f"run/.ckptgov/trash/{DAY}/../../..",
        f"run/.ckptgov/trash/{DAY}/0123456789abcdef.0123456789abcdef",
        f"other/.ckptgov/trash/{DAY}/{{own}}",
    ],
)
def test_a_purge_takes_nothing_but_an_entry_of_the_checkpoint(stage: Stage, trash: str) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.seal("step_2", SECOND, step=2)
    own = stage.move(manifest).trash.rpartition("/")[2]
    before = everything(stage.tree)
    with pytest.raises(PathEscapes):
        purge(stage.place(), stage.store, manifest.content_id, trash.format(own=own))
    assert everything(stage.tree) == before


# links


def test_a_link_in_the_place_of_the_directory_stops_it(tmp_path: Path) -> None:
    with PosixStorage(tmp_path) as storage:
        stage = Stage(storage)
        manifest = stage.seal("step_1", WHOLE)
        (tmp_path / "run/step_1").rename(tmp_path / "elsewhere")
        (tmp_path / "run/step_1").symlink_to("../elsewhere")
        for call in (lambda: stage.move(manifest), lambda: measured(stage, manifest)):
            with pytest.raises(StorageError):
                call()
        assert sorted(one.name for one in (tmp_path / "elsewhere").iterdir()) == [
            ".metadata",
            "a.bin",
            "deep",
        ]
        assert len(stage.store.manifests()) == 1


def test_a_link_that_led_to_it_is_told_and_left(tmp_path: Path) -> None:
    """A08."""
    with PosixStorage(tmp_path) as storage:
        stage = Stage(storage)
        manifest = stage.seal("epoch=1-step=10.ckpt", {"": b"x"})
        run = tmp_path / "run"
        (run / "last.ckpt").symlink_to("epoch=1-step=10.ckpt")
        (run / "abs.ckpt").symlink_to(run / "epoch=1-step=10.ckpt")
        (run / "self.ckpt").symlink_to("self.ckpt")
        (run / "other.ckpt").symlink_to("../elsewhere.ckpt")
        assert stage.move(manifest).dangling == ("run/abs.ckpt", "run/last.ckpt")
        assert (run / "last.ckpt").is_symlink()


def test_links_beside_the_shards_go_as_links(tmp_path: Path) -> None:
    with PosixStorage(tmp_path) as storage:
        stage = Stage(storage)
        (tmp_path / "canary").mkdir()
        (tmp_path / "canary/a").write_bytes(b"mine")
        manifest = stage.seal("step_1", WHOLE)
        (tmp_path / "run/step_1/to").symlink_to("../../canary")
        done = stage.move(manifest)
        assert done.extras == ("to",)
        assert stage.purge(manifest, done.trash).left == ()
        assert (tmp_path / "canary/a").read_bytes() == b"mine"


# measuring


def test_bytes_that_other_names_hold_are_not_freed(tmp_path: Path) -> None:
    with PosixStorage(tmp_path) as storage:
        stage = Stage(storage)
        manifest = stage.seal("step_1", {"a": b"1" * 100, "b": b"2" * 10})
        storage.link("run/step_1/a", "run/held/a")
        stage.seal("step_2", {"a": b"1" * 100, "c": b"3"}, is_there=False, step=2)
        assert measured(stage, manifest).bytes == 10
        storage.remove("run/held/a")
        storage.link("run/step_1/a", "run/step_1/again")
        freed = measured(stage, manifest)
        assert (freed.bytes, freed.files, freed.size_bytes) == (110, 3, 110)
        assert freed.extras == ("again",)


def test_measuring_writes_nothing(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    before = everything(stage.tree)
    freed = measured(stage, manifest)
    assert (freed.files, freed.bytes) == (3, sum(map(len, WHOLE.values())))
    assert everything(stage.tree) == before


# what looks and scans make of it


def test_a_tombstone_alone_takes_it_from_every_look(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    assert stage.names_offered() == ["step_1"]
    stage.tombstone(manifest)()
    assert stage.names_offered() == []
    stage.undelete(manifest)
    assert stage.names_offered() == ["step_1"]


def test_a_tombstone_of_another_place_does_not(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    stage.store.append(
        Tombstone(
            stamp=stage.stamp(NOW_NS), content_id=manifest.content_id, place="0" * 8 + PLACE[8:]
        )
    )
    assert stage.names_offered() == ["step_1"]


def test_what_was_brought_here_again_counts_again(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    stage.seal("step_1", WHOLE, verified_at_ns=NOW_NS + 5)  # flushed here again
    assert stage.names_offered() == ["step_1"]
    stage.purge(manifest, done.trash)
    assert stage.names_offered() == ["step_1"]
    again = stage.move(manifest)
    assert again.trash != done.trash
    assert stage.files() == {}


def test_with_a_namesake_in_the_way_it_stays_in_the_trash(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    stage.put("run/step_1/a.bin", b"a later save")
    before = everything(stage.tree)
    with pytest.raises(StorageError, match="something else"):
        put_back(stage.place(), stage.store, done.trash)
    assert everything(stage.tree) == before


def test_what_is_half_purged_is_not_put_back(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    stage.tree.remove(f"{done.trash}/files/step_1/a.bin")
    before = everything(stage.tree)
    with pytest.raises(StorageError, match="gone already"):
        put_back(stage.place(), stage.store, done.trash)
    assert everything(stage.tree) == before


def test_damaged_entries_are_told_apart(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    done = stage.move(manifest)
    stage.tree.remove(f"{done.trash}/manifest.json")
    stage.put(f"{done.trash}/manifest.json", b"{}")
    stage.put("run/.ckptgov/trash/notes/x", b"mine")
    (entry,) = trash_entries(stage.store)
    assert (entry.content_id, entry.name, entry.manifest) == ("", "", None)
    assert entry.damage
    assert entry.trash == done.trash
    with pytest.raises(StaleState):
        put_back(stage.place(), stage.store, done.trash)


def test_whoever_stops_it_finds_it_resumable(stage: Stage) -> None:
    manifest = stage.seal("step_1", WHOLE)
    with stage.look() as look, pytest.raises(Interrupted):
        move_aside(
            stage.place(),
            look,
            manifest.content_id,
            now_ns=NOW_NS,
            tombstone=stage.tombstone(manifest),
            still=lambda: None,
            stop=lambda: True,
        )
    assert stage.names_offered() == ["step_1"]
    done = stage.move(manifest)
    with pytest.raises(Interrupted):
        purge(stage.place(), stage.store, manifest.content_id, done.trash, stop=lambda: True)
    assert stage.purge(manifest, done.trash).left == ()


# object stores


def test_objects_stay_until_they_are_purged_by_their_exact_keys(keys: Stage) -> None:
    manifest = keys.seal("step-1", WHOLE)
    keys.seal("step-10", SECOND, step=10)
    keys.put("run/step-1.json", b"mine")
    keys.put("run/step-1/extra", b"mine")
    before = keys.files()
    done = keys.move(manifest)
    assert keys.files() == before
    assert (done.moved_files, done.extras) == (3, ())
    assert keys.names_offered() == ["step-10"]
    assert keys.purge(manifest, done.trash).files == 3
    assert keys.files() == {
        **{f"step-10/{path}": raw for path, raw in SECOND.items()},
        "step-1.json": b"mine",
        "step-1/extra": b"mine",
    }
    assert trash_entries(keys.store) == ()


def test_objects_come_back_with_their_manifest(keys: Stage) -> None:
    manifest = keys.seal("step_1", WHOLE)
    done = keys.move(manifest)
    (entry,) = trash_entries(keys.store)
    assert entry.moved
    assert put_back(keys.place(), keys.store, done.trash) == "step_1"
    keys.undelete(manifest)
    assert [one.content_id for one in keys.told()] == [manifest.content_id]
    assert trash_entries(keys.store) == ()
    assert put_back(keys.place(), keys.store, done.trash) == "step_1"


def test_an_object_that_was_stored_again_survives_the_purge(keys: Stage) -> None:
    manifest = keys.seal("step_1", WHOLE)
    done = keys.move(manifest)
    keys.tree.remove("run/step_1/a.bin")
    keys.put("run/step_1/a.bin", b"a later save")
    assert keys.purge(manifest, done.trash).files == 2
    assert keys.files() == {"step_1/a.bin": b"a later save"}


def test_objects_that_are_sealed_again_are_not_purged(keys: Stage) -> None:
    manifest = keys.seal("step_1", WHOLE)
    done = keys.move(manifest)
    before = keys.files()
    keys.seal("step_1", WHOLE, is_there=True, verified_at_ns=NOW_NS + 5)
    assert keys.names_offered() == ["step_1"]
    assert keys.purge(manifest, done.trash).files == 0
    assert keys.files() == before
    assert trash_entries(keys.store) == ()


def test_objects_whose_manifest_never_went_are_not_purged(keys: Stage) -> None:
    manifest = keys.seal("step_1", WHOLE)
    done = keys.move(manifest)
    keys.seal("step_1", WHOLE, is_there=True)
    with pytest.raises(StaleState):
        keys.purge(manifest, done.trash)
    assert len(keys.files()) == 3
