from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ckptgov.errors import Malformed, StorageError, TransientStorageError, UsageError
from ckptgov.model.clock import SystemClock
from ckptgov.model.files import Entry, EntryKind, FileStat
from ckptgov.storage.contract import Storage
from ckptgov.storage.memory import MemoryStorage
from ckptgov.storage.posix import PosixStorage
from ckptgov.testing import faultfs, juicefs, s3_proxy, seaweedfs, weed_mount
from ckptgov.testing.s3_proxy import Fault, Trouble
from ckptgov.work._ability_probes import sweep
from ckptgov.work.abilities import (
    Abilities,
    checks_of,
    from_json,
    may_hold_journal,
    probe,
    to_json,
)

_S3_REASON = (
    seaweedfs.reason_to_skip() if importlib.util.find_spec("boto3") else "boto3 is not installed"
)


def look(storage: Storage, second: Storage | None = None) -> Abilities:
    return probe(storage, second=second, clock=SystemClock(), new_id=lambda: uuid.uuid4().hex)


def files_below(storage: Storage, path: str) -> list[str]:
    """This server keeps empty directories in sight for a while."""
    found = []
    for entry in storage.list(path):
        below = f"{path}/{entry.name}" if path else entry.name
        found += files_below(storage, below) if entry.kind is EntryKind.DIR else [below]
    return found


def severities(abilities: Abilities) -> dict[str, str]:
    return {check.name: check.severity for check in checks_of(abilities)}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[PosixStorage]:
    with PosixStorage(tmp_path) as storage:
        yield storage


@pytest.fixture
def opened() -> Iterator[Callable[[Path], PosixStorage]]:
    storages: list[PosixStorage] = []

    def open_one(path: Path) -> PosixStorage:
        storages.append(PosixStorage(path))
        return storages[-1]

    yield open_one
    for storage in storages:
        storage.close()


def test_a_local_disk_keeps_every_promise(local: PosixStorage, tmp_path: Path) -> None:
    found = look(local)
    assert found.notes == ()
    assert found.publish_durable
    assert found.exclusive_create
    assert found.listing_complete
    assert found.directory_rename
    assert found.hard_links
    assert found.sync_of_directories
    assert found.times_settable
    assert found.inode_stable
    assert found.reflink is not None
    assert 0 < (found.time_granularity_ns or 0) < 10**9
    assert (found.exclusive_create_between_mounts, found.locks_between_mounts) == (None, None)
    assert (found.conditional_put, found.versioned) == (None, None)
    assert may_hold_journal(found)
    assert "failure" not in severities(found).values()
    assert os.listdir(tmp_path) == []


def test_what_was_there_before_stays(local: PosixStorage, tmp_path: Path) -> None:
    local.publish(".ckptgov/journal/1", [b"x"])
    look(local)
    assert os.listdir(tmp_path / ".ckptgov") == ["journal"]


def test_an_empty_directory_that_was_there_before_stays(
    local: PosixStorage, tmp_path: Path
) -> None:
    local.make_dirs(".ckptgov")
    look(local)
    assert os.listdir(tmp_path) == [".ckptgov"]


def test_the_same_directory_opened_twice_passes_for_two_mounts(
    local: PosixStorage, tmp_path: Path, opened: Callable[[Path], PosixStorage]
) -> None:
    found = look(local, opened(tmp_path))
    assert found.exclusive_create_between_mounts
    assert found.locks_between_mounts
    assert found.inode_stable


def test_a_name_that_two_mounts_were_given_at_the_same_instant_is_enough(
    local: PosixStorage,
    tmp_path: Path,
    opened: Callable[[Path], PosixStorage],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "ckptgov.work._ability_posix._take", lambda _, side, race: race == 7 or side == race % 2
    )
    found = look(local, opened(tmp_path))
    assert found.exclusive_create
    assert found.exclusive_create_between_mounts is False


def test_another_tree_is_not_taken_for_a_second_mount(
    local: PosixStorage, tmp_path: Path, opened: Callable[[Path], PosixStorage]
) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="does not show"):
        look(local, opened(tmp_path / "other"))
    assert os.listdir(tmp_path) == ["other"]


def test_a_tree_in_memory_is_asked_only_what_it_can_answer() -> None:
    tree = MemoryStorage()
    found = look(tree)
    assert found.notes == ()
    assert found.exclusive_create
    assert found.inode_stable
    assert found.birth_time
    assert (found.reflink, found.times_settable, found.time_granularity_ns) == (None,) * 3
    assert tree.list("") == []


class Bucket(MemoryStorage):
    """Answers as an object store does."""

    rules: tuple[dict[str, object], ...] = ()
    versioning = "off"

    def probe_conditional_put(self) -> bool:
        return False

    def probe_conditional_complete(self) -> bool:
        raise TransientStorageError("slow down")

    def probe_checksums(self) -> bool:
        return True

    def probe_list_order(self) -> bool:
        return False

    def bucket_versioning(self) -> str:
        return self.versioning

    def bucket_object_lock(self) -> bool:
        return False

    def lifecycle_rules(self) -> tuple[dict[str, object], ...]:
        return self.rules


def test_an_object_store_is_asked_about_itself() -> None:
    found = look(Bucket())
    assert found.conditional_put is False
    assert found.conditional_complete is None
    assert (found.checksums_on_put, found.checksums_on_parts) == (True, True)
    assert (found.list_is_byte_ordered, found.versioned, found.locked) == (False,) * 3
    assert found.notes == ("conditional complete: for now slow down",)
    assert not may_hold_journal(found)
    assert severities(found)["conditional-put"] == "failure"


@pytest.mark.parametrize(
    ("told", "versioned"), [("enabled", True), ("suspended", True), ("unknown", None)]
)
def test_old_versions_stay_also_where_no_new_ones_are_made(
    told: str, versioned: bool | None
) -> None:
    store = Bucket()
    store.versioning = told
    assert look(store).versioned is versioned


def test_a_rule_that_takes_objects_away_is_told() -> None:
    store = Bucket()
    store.rules = ({"Status": "Disabled", "Expiration": {"Days": 1}},)
    assert "lifecycle" not in severities(look(store))
    store.rules = (
        {"Status": "Enabled", "Expiration": {"Days": 1}},
        {"Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
    )
    found = look(store)
    assert found.lifecycle_aborts_uploads
    assert severities(found)["lifecycle"] == "warning"


class GivesTwice(MemoryStorage):
    """Publishes over what another publisher put there meanwhile."""

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        return self.put_file(path, b"".join(chunks))


class Admits(MemoryStorage):
    """Looks, and then writes."""

    is_exclusive = False


def test_a_backend_that_only_looks_before_it_writes_is_believed() -> None:
    assert look(Admits()).exclusive_create is False


class GivesAgain(MemoryStorage):
    """Keeps names as it should, but for one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._given = name

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        if path.endswith(self._given):
            return self.put_file(path, b"".join(chunks))
        return super().publish(path, chunks)


@pytest.mark.parametrize("name", ["/publish", "/race7"])
def test_one_name_given_again_is_enough(name: str) -> None:
    assert look(GivesAgain(name)).exclusive_create is False


class FinishesOverOthers(MemoryStorage):
    """As seen by a delivery: what others published meanwhile is not in its way."""

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        if path.endswith("/late"):
            return self.stat("")
        return super().publish(path, chunks)


def test_a_delivery_that_does_not_refuse_a_taken_name_is_found_out() -> None:
    assert look(FinishesOverOthers()).exclusive_create is False


class Muddles(MemoryStorage):
    _muddled = StorageError("someone else changed the name as it was written")

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        try:
            return super().publish(path, chunks)
        except FileExistsError:
            if path.endswith("/race7"):
                raise self._muddled from None
            raise


def test_a_race_whose_loser_had_won_for_a_while_has_no_clean_winner() -> None:
    assert look(Muddles()).exclusive_create is False


class ForgetsNames(MemoryStorage):
    def list(self, path: str) -> list[Entry]:
        return [entry for entry in super().list(path) if entry.name != "a.b"]


def test_a_name_given_twice_forbids_a_journal() -> None:
    found = look(GivesTwice())
    assert found.exclusive_create is False
    assert not may_hold_journal(found)
    assert severities(found)["exclusive-create"] == "failure"


def test_a_listing_with_a_gap_is_seen() -> None:
    assert look(ForgetsNames()).listing_complete is False


class Breaking(MemoryStorage):
    """Fails at one kind of call, in one way."""

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self._error = error

    def rename_dir(self, source: str, target: str, *, parents: bool = True) -> None:
        raise self._error


def test_what_failed_by_chance_is_not_taken_for_a_no() -> None:
    tree = Breaking(TransientStorageError("the line is busy"))
    found = look(tree)
    assert found.directory_rename is None
    assert found.hard_links
    assert ["directory rename" in note for note in found.notes] == [True]
    assert "line is busy" in found.notes[0]
    assert tree.list("") == []


def test_what_is_not_supported_is_a_no() -> None:
    found = look(Breaking(StorageError("no such call here")))
    assert (found.directory_rename, found.notes) == (False, ())


class ReadOnly(MemoryStorage):
    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        raise StorageError("read-only file system")


def test_a_tier_that_cannot_be_written_is_told_so() -> None:
    found = look(ReadOnly())
    assert found == Abilities(publish_durable=False, notes=("publishing: read-only file system",))
    assert not may_hold_journal(found)
    assert severities(found)["publish"] == "failure"


def test_everything_is_removed_also_when_the_probing_breaks(
    local: PosixStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str, __: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        look(local)
    assert os.listdir(tmp_path) == []


def test_findings_survive_being_recorded() -> None:
    found = Abilities(exclusive_create=False, time_granularity_ns=4_000_000, notes=("one",))
    assert from_json(to_json(found)) == found
    assert from_json("{}") == Abilities()
    assert from_json('{"of_a_later_version":1}') == Abilities()


@pytest.mark.parametrize("text", ["", "[]", '{"reflink":"maybe"}', "\ud800", "[" * 100_000])
def test_a_record_that_is_none_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="recorded abilities"):
        from_json(text)


@pytest.mark.parametrize(
    ("found", "may"),
    [
        (Abilities(), True),
        (Abilities(exclusive_create=False), False),
        (Abilities(exclusive_create=True, exclusive_create_between_mounts=False), False),
        (Abilities(conditional_put=False), False),
        (Abilities(publish_durable=False), False),
        (Abilities(locks_between_mounts=False, conditional_complete=False), True),
    ],
)
def test_a_journal_needs_names_that_are_given_once(found: Abilities, may: bool) -> None:
    assert may_hold_journal(found) == may


def test_a_shared_tier_with_one_mount_is_told_what_was_not_tried() -> None:
    one = Abilities(is_shared=True, directory_rename=True)
    assert severities(one)["exclusive-create-between-mounts"] == "warning"
    assert "exclusive-create-between-mounts" not in severities(Abilities(is_shared=False))


@pytest.mark.skipif(juicefs.reason_to_skip() is not None, reason=str(juicefs.reason_to_skip()))
def test_two_nodes_of_a_good_shared_file_system(
    tmp_path: Path, opened: Callable[[Path], PosixStorage]
) -> None:
    with juicefs.juice_nodes(tmp_path) as (first, second):
        one, other = opened(first), opened(second)
        found = look(one, other)
        assert os.listdir(first) == []
        one.close()
        other.close()
    assert found.notes == ()
    assert found.exclusive_create_between_mounts
    assert found.locks_between_mounts
    assert found.inode_stable
    assert found.directory_rename
    assert found.is_shared
    assert may_hold_journal(found)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[seaweedfs.WeedServer]:
    if _S3_REASON is not None:
        pytest.skip(_S3_REASON)
    with seaweedfs.weed_s3() as server:
        yield server


@pytest.fixture
def bucket(
    s3_server: seaweedfs.WeedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Storage]]:
    """Opens the server's bucket through an endpoint."""
    from ckptgov.storage.s3 import S3Storage

    for name, text in s3_server.environment.items():
        monkeypatch.setenv(name, text)
    opened: list[Storage] = []

    def open_at(endpoint: str) -> Storage:
        opened.append(S3Storage(f"s3://{s3_server.bucket}/prefix", endpoint=endpoint))
        return opened[-1]

    yield open_at
    for store in opened:
        store.close()


def test_a_real_object_store_is_found_out_and_left_empty(
    s3_server: seaweedfs.WeedServer, bucket: Callable[[str], Storage]
) -> None:
    store = bucket(s3_server.endpoint)
    found = look(store)
    assert files_below(store, "") == []
    assert list(store.pending("")) == []
    assert found.notes == ()
    assert found.exclusive_create
    assert found.listing_complete
    assert (found.directory_rename, found.hard_links) == (False, False)
    assert (found.conditional_put, found.conditional_complete) == (True, True)
    assert (found.checksums_on_put, found.checksums_on_parts) == (True, True)
    assert found.list_is_byte_ordered is False
    assert (found.versioned, found.locked) == (False, False)
    assert may_hold_journal(found)
    assert "failure" not in severities(found).values()


def test_an_object_store_that_ignores_conditions_and_checksums_is_found_out(
    s3_server: seaweedfs.WeedServer, bucket: Callable[[str], Storage]
) -> None:
    server = s3_server
    with s3_proxy.s3_proxy(server.endpoint, server.access_key, server.secret_key) as proxy:
        proxy.inject(Fault(Trouble.IGNORE_CONDITIONS), Fault(Trouble.ACCEPT_WRONG_CHECKSUMS))
        store = bucket(proxy.url)
        found = look(store)
        assert files_below(store, "") == []
    assert found.exclusive_create is False
    assert (found.conditional_put, found.conditional_complete) == (False, False)
    assert (found.checksums_on_put, found.checksums_on_parts) == (False, False)
    assert not may_hold_journal(found)
    assert severities(found)["checksums-on-put"] == "warning"


def test_an_object_store_whose_listings_are_short_is_found_out(
    s3_server: seaweedfs.WeedServer, bucket: Callable[[str], Storage]
) -> None:
    server = s3_server
    with s3_proxy.s3_proxy(server.endpoint, server.access_key, server.secret_key) as proxy:
        proxy.inject(Fault(Trouble.SHORT_LIST, key="*/listing/*"))
        store = bucket(proxy.url)
        found = look(store)
        proxy.clear()
        sweep(store, ".ckptgov")  # what the short listings hid
    assert found.listing_complete is False
    assert severities(found)["listing"] == "failure"


@pytest.mark.skipif(
    weed_mount.reason_to_skip() is not None, reason=str(weed_mount.reason_to_skip())
)
def test_two_nodes_of_a_file_system_that_lies(
    tmp_path: Path, opened: Callable[[Path], PosixStorage]
) -> None:
    with weed_mount.weed_nodes(tmp_path) as (first, second):
        one, other = opened(first), opened(second)
        found = look(one, other)
        one.close()
        other.close()
    assert found.notes == ()
    assert found.exclusive_create
    assert found.exclusive_create_between_mounts is False
    assert found.locks_between_mounts is False
    assert not may_hold_journal(found)
    assert severities(found)["exclusive-create-between-mounts"] == "failure"


@pytest.mark.skipif(faultfs.reason_to_skip() is not None, reason=str(faultfs.reason_to_skip()))
def test_directories_that_cannot_be_synced_are_found_out(
    tmp_path: Path, opened: Callable[[Path], PosixStorage]
) -> None:
    (tmp_path / "source").mkdir()
    cannot = [faultfs.Rule(op="fsyncdir", errno="EINVAL", times=-1)]
    cannot += [faultfs.Rule(op="link", errno="EPERM", times=-1)]
    with faultfs.faulty_mount(tmp_path / "source", tmp_path / "seen", cannot):
        storage = opened(tmp_path / "seen")
        found = look(storage)
        storage.close()
    assert found.sync_of_directories is False
    assert found.hard_links is False
    assert found.notes == ()
