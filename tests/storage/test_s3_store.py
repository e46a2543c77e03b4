"""S3Storage on a real store: names, looks, reading, versions, locks. SeaweedFS on loopback."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckptgov.errors import StorageError
from ckptgov.model.files import Entry, EntryKind
from ckptgov.storage._s3_probes import Versioning
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Storage
from ckptgov.storage.s3 import S3Storage
from ckptgov.testing import seaweedfs
from ckptgov.testing._contract_base import content, names
from ckptgov.testing.storage_contract import ODD_NAMES, StorageContract

_REASON = seaweedfs.reason_to_skip()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

MIB = 2**20
BUCKET = seaweedfs.BUCKET
ONCE = RetryPolicy(tries=1)

Open = Callable[..., S3Storage]
_prefixes = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[seaweedfs.WeedServer]:
    with seaweedfs.weed_s3() as running:
        yield running


@pytest.fixture(scope="module")
def other(server: seaweedfs.WeedServer) -> Iterator[object]:
    """What another program uses."""
    with contextlib.closing(server.client()) as client:
        yield client


@pytest.fixture
def opened(server: seaweedfs.WeedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Storages that find the server by the AWS chain."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:

        def make(url: str, **options: object) -> S3Storage:
            storage = S3Storage(url, part_bytes=5 * MIB, **options)
            stack.callback(storage.close)
            return storage

        yield make


@pytest.fixture
def storage(other) -> S3Storage:
    url = f"s3://{BUCKET}/store-{next(_prefixes)}"
    return S3Storage(url, client=other, part_bytes=5 * MIB)  # a client is dear to make


def prefix_of(storage: S3Storage) -> str:
    return storage.root.removeprefix(f"s3://{BUCKET}/")


class TestS3Storage(StorageContract):
    has_directories = False
    has_symlinks = False

    def break_listing(self, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(storage, S3Storage)
        client = storage._bucket.client
        ask = client.list_objects_v2

        def first_page_only(**asked: object) -> object:
            if "ContinuationToken" in asked:
                raise ConnectionResetError("broken")
            return {**ask(**asked, MaxKeys=1)}

        monkeypatch.setattr(client, "list_objects_v2", first_page_only)
        storage._bucket.policy = ONCE

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_odd_names_work_everywhere(self, storage: Storage, name: str) -> None:
        # Not as for file systems: this store keeps showing a directory whose keys are gone.
        path = f"{name}/{name}"
        storage.publish(path, [b"x"])
        storage.replace(path, [b"yy"])
        assert storage.list("") == [Entry(name, EntryKind.DIR)]
        assert storage.list(name) == [Entry(name, EntryKind.FILE)]
        assert storage.stat(path).bytes == 2
        assert storage.stat_many(name, [name, "1", "2", "3"])[0] is not None
        storage.remove(path)
        delivery = storage.receive(path, 3)
        delivery.write(0, memoryview(b"zzz"))
        delivery.finish()
        assert content(storage, path) == b"zzz"
        storage.remove(path)
        with pytest.raises(FileNotFoundError):
            storage.stat(path)

    def test_a_piece_handed_over_again_takes_the_place_of_the_first(self, storage: Storage) -> None:
        # A small object is sent once, when it is finished.
        delivery = storage.receive("a", 5)
        delivery.write(0, memoryview(b"wrong"))
        delivery.write(0, memoryview(b"right"))
        delivery.finish()
        assert content(storage, "a") == b"right"
        assert delivery.sent_bytes == 5

    def test_the_storage_tells_what_it_lies_on(self, storage: Storage) -> None:
        found = storage.filesystem()
        assert (found.type, found.mount_point, found.granularity_ns) == ("s3", "", 0)
        assert found.source.startswith(f"{storage.root}@127.0.0.1:")
        assert found.is_network


# names


def test_a_listing_of_more_than_a_thousand_keys_is_complete(storage: S3Storage, other) -> None:
    wanted = [f"{number:04}" for number in range(1005)]
    below = f"{prefix_of(storage)}/d"
    with ThreadPoolExecutor(8) as threads:
        for done in [
            threads.submit(other.put_object, Bucket=BUCKET, Key=f"{below}/{name}", Body=b"")
            for name in wanted
        ]:
            done.result()
    assert names(storage, "d") == wanted
    assert None not in storage.stat_many("d", wanted)


def test_keys_no_path_has_are_shown_and_never_opened(storage: S3Storage, other) -> None:
    storage.publish("a/b", [b"ours"])
    for key in ("caf\u00e9", "two words", "a%2fb", "upper%FF", "plain", "m/"):
        body = b"" if key == "m/" else b"1"
        other.put_object(Bucket=BUCKET, Key=f"{prefix_of(storage)}/{key}", Body=body)
    assert storage.list("") == [
        Entry("a", EntryKind.DIR),
        Entry("a%2fb", EntryKind.OTHER),
        Entry("caf\u00e9", EntryKind.OTHER),
        Entry("m", EntryKind.DIR),
        Entry("plain", EntryKind.FILE),
        Entry("two words", EntryKind.OTHER),
        Entry("upper%FF", EntryKind.OTHER),
    ]
    assert list(storage.list("m")) == []
    for name in ("caf\u00e9", "two words", "a%2fb"):
        with pytest.raises(FileNotFoundError):
            storage.open(name)


def test_a_key_that_others_begin_with_is_a_file(storage: S3Storage) -> None:
    storage.publish("a", [b"file"])
    storage.publish("a/b", [b"below"])
    assert storage.list("") == [Entry("a", EntryKind.FILE)]
    assert storage.stat("a").kind is EntryKind.FILE
    assert content(storage, "a/b") == b"below"


def test_a_file_is_no_directory_and_the_other_way_round(storage: S3Storage) -> None:
    storage.publish("a", [b"x"])
    storage.publish("d/a", [b"x"])
    for call in (storage.list, storage.remove_dir):
        with pytest.raises(NotADirectoryError):
            call("a")
    with pytest.raises(NotADirectoryError):
        storage.stat_many("a", ["b"])
    for call in (storage.open, storage.remove, storage.attributes, storage.read_link):
        with pytest.raises(IsADirectoryError):
            call("d")
    with pytest.raises(StorageError):
        storage.remove_dir("d")


def test_a_name_that_the_store_has_no_room_for_is_taken(storage: S3Storage) -> None:
    storage.publish("d/a", [b"x"])
    with pytest.raises(FileExistsError):
        storage.publish("d", [b"x"])


def test_neighbours_with_a_common_beginning_stay_apart(storage: S3Storage) -> None:
    storage.publish("run-1/a", [b"1"])
    storage.publish("run-10/b", [b"2"])
    assert names(storage, "run-1") == ["a"]
    storage.remove("run-1/a")
    assert content(storage, "run-10/b") == b"2"


# the bucket


@pytest.mark.parametrize(
    "verb",
    [
        lambda storage: storage.list(""),
        lambda storage: storage.stat(""),
        lambda storage: storage.stat("a"),
        lambda storage: storage.stat_many("", ["a"]),
        lambda storage: storage.open("a"),
        lambda storage: storage.publish("a", [b""]),
        lambda storage: storage.filesystem(),
        lambda storage: storage.pending(""),
    ],
)
def test_a_missing_bucket_is_never_an_empty_one(
    opened: Open, verb: Callable[[Storage], object]
) -> None:
    with pytest.raises(StorageError, match="no such bucket"):
        verb(opened("s3://no-such-bucket/p"))


def test_refused_credentials_are_an_error_that_tells_no_secret(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "geheim-1234")
    storage = opened(f"s3://{BUCKET}/p")
    for call in (storage.list, storage.stat):
        with pytest.raises(StorageError) as raised:
            call("")
        assert raised.value.hint
        assert "geheim" not in f"{raised.value} {raised.value.hint}"


def test_missing_credentials_are_told(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StorageError, match="credentials") as raised:
        opened(f"s3://{BUCKET}/p").list("")
    assert "AWS_ACCESS_KEY_ID" in str(raised.value.hint)


def test_removing_on_a_versioned_bucket_frees_the_bytes_and_the_name(opened: Open, other) -> None:
    other.create_bucket(Bucket="versions")
    other.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    storage = opened("s3://versions/p")
    assert storage.bucket_versioning() is Versioning.ENABLED
    told = storage.publish("a", [b"once"])
    assert told.version_id
    assert told.token == storage.stat("a").token
    listed = storage.stat_many("", ["a", "1", "2", "3"])[0]
    assert listed is not None
    assert listed.token.same_content(told.token)
    storage.remove("a")
    assert "Versions" not in other.list_object_versions(Bucket="versions")

    other.put_object(Bucket="versions", Key="p/b", Body=b"theirs")
    other.put_object(Bucket="versions", Key="p/b", Body=b"newer")
    storage.remove("b")
    with pytest.raises(FileNotFoundError):
        storage.stat("b")
    left = other.list_object_versions(Bucket="versions")["Versions"]
    assert [each["Size"] for each in left] == [len(b"theirs")]


def test_an_open_file_of_a_versioned_bucket_keeps_its_bytes(opened: Open, other) -> None:
    other.create_bucket(Bucket="kept-versions")
    other.put_bucket_versioning(
        Bucket="kept-versions", VersioningConfiguration={"Status": "Enabled"}
    )
    storage = opened("s3://kept-versions")
    storage.publish("a", [b"old"])
    with storage.open("a") as file:
        storage.replace("a", [b"new"])
        assert file.read_at(0, 9) == b"old"


def test_a_locked_object_is_left_and_the_lock_is_named(opened: Open, other) -> None:
    other.create_bucket(Bucket="locks", ObjectLockEnabledForBucket=True)
    other.put_object(Bucket="locks", Key="a", Body=b"x", ObjectLockLegalHoldStatus="ON")
    storage = opened("s3://locks")
    assert storage.bucket_object_lock()
    with pytest.raises(StorageError, match="legal hold"):
        storage.remove("a")
    assert content(storage, "a") == b"x"


def test_rules_that_touch_the_tree_are_told(opened: Open, other) -> None:
    other.create_bucket(Bucket="rules")
    storage = opened("s3://rules/tier")
    assert list(storage.lifecycle_rules()) == []
    other.put_bucket_lifecycle_configuration(
        Bucket="rules",
        LifecycleConfiguration={
            "Rules": [
                {
                    "ID": name,
                    "Status": "Enabled",
                    "Filter": {"Prefix": beginning},
                    "Expiration": {"Days": 9},
                }
                for name, beginning in {"all": "", "ours": "tier/run", "not": "elsewhere/"}.items()
            ]
        },
    )
    assert {rule["ID"] for rule in storage.lifecycle_rules()} == {"all", "ours"}


def test_probes_tell_what_this_store_does_and_leave_nothing(storage: S3Storage, other) -> None:
    assert storage.probe_conditional_put()
    assert storage.probe_conditional_complete()
    assert storage.probe_checksums()
    assert not storage.probe_list_order()
    assert storage.bucket_versioning() is Versioning.OFF
    assert not storage.bucket_object_lock()
    left = other.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix_of(storage)}/")
    assert "Contents" not in left
    assert list(storage.pending("")) == []


# reading


def test_large_and_small_reads_give_the_same_bytes(storage: S3Storage) -> None:
    wanted = bytes(range(256)) * (12 * MIB // 256) + b"tail"
    storage.publish("a", [wanted])
    buffer = bytearray(len(wanted))
    with storage.open("a") as file:
        with memoryview(buffer) as view:
            assert file.read_into(view, 0) == len(wanted)
        assert buffer == wanted
        small = [file.read_at(at, MIB) for at in range(0, len(wanted), MIB)]
        assert b"".join(small) == wanted
        for at in (7, 5 * MIB, 3, len(wanted) - 2):
            assert file.read_at(at, 1000) == wanted[at : at + 1000]


@pytest.mark.parametrize("length", [4, 9 * MIB])
def test_an_object_changed_under_an_open_reader_is_never_mixed(
    storage: S3Storage, length: int
) -> None:
    storage.publish("a", [b"o" * 20 * MIB])
    with storage.open("a") as file:
        assert file.read_at(0, length) == b"o" * length
        storage.replace("a", [b"n" * 20 * MIB])
        with pytest.raises(StorageError, match="changed"):
            file.read_at(10 * MIB, length)
        storage.remove("a")
        with pytest.raises(StorageError, match="changed"):
            file.read_at(5 * MIB, length)
