"""Large files on their way into a real store, and what goes wrong there. SeaweedFS, a proxy."""

from __future__ import annotations

import contextlib
import itertools
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from ckptgov.errors import SlowDown, StorageError, TransientStorageError
from ckptgov.model.files import Attributes
from ckptgov.storage._s3_checksum import CRC32
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import ArrivalProof, Delivery
from ckptgov.storage.s3 import S3Storage
from ckptgov.testing import s3_proxy as proxies
from ckptgov.testing import seaweedfs
from ckptgov.testing._contract_base import content, names
from ckptgov.testing.s3_proxy import Fault, S3Proxy, Trouble

_REASON = seaweedfs.reason_to_skip() or proxies.reason_to_skip()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

MIB = 2**20
PART = 5 * MIB
BUCKET = seaweedfs.BUCKET
BIG = b"".join(bytes([65 + at]) * PART for at in range(3))[:-7]
GIVEN = Attributes(mode=0o640, uid=7, gid=8, mtime_ns=1_234_567_890_123_456_789)

Open = Callable[..., S3Storage]
_prefixes = itertools.count()


class Time:
    """A clock that only waiting moves; the proxy's faults end by it as well."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(scope="module")
def clock() -> Time:
    return Time()


@pytest.fixture(scope="module")
def running(clock: Time) -> Iterator[S3Proxy]:
    with (
        seaweedfs.weed_s3() as server,
        proxies.s3_proxy(
            server.endpoint, server.access_key, server.secret_key, clock=clock.monotonic
        ) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield proxy


@pytest.fixture
def proxy(running: S3Proxy) -> Iterator[S3Proxy]:
    running.forget_calls()
    yield running
    running.clear()


@pytest.fixture
def opened(running: S3Proxy, clock: Time) -> Iterator[Open]:
    """Storages on one fresh prefix, through the proxy."""
    url = f"s3://{BUCKET}/delivery-{next(_prefixes)}"
    with contextlib.ExitStack() as stack:

        def make(**options: object) -> S3Storage:
            storage = S3Storage(
                url, **{"endpoint": running.url, "clock": clock, "part_bytes": PART, **options}
            )
            stack.callback(storage.close)
            return storage

        yield make


@pytest.fixture
def storage(opened: Open) -> S3Storage:
    return opened()


def deliver(delivery: Delivery, wanted: bytes = BIG, *, until: int | None = None) -> None:
    for offset in range(0, len(wanted) if until is None else until, PART):
        piece = memoryview(wanted)[offset : offset + PART]
        if not (delivery.stands(offset, len(piece)) and delivery.matches(offset, piece)):
            delivery.write(offset, piece)


# resuming


def test_an_upload_begun_for_another_content_is_not_taken_up(storage: S3Storage) -> None:
    first = storage.receive("a", len(BIG), digest="xxh3_128:1")
    deliver(first, until=2 * PART)
    first.abandon()
    for told in ({"digest": "xxh3_128:2"}, {"digest": "xxh3_128:1", "attributes": GIVEN}):
        other = storage.receive("a", len(BIG), **told)
        assert not other.stands(0, PART)
        other.discard()
    again = storage.receive("a", len(BIG), digest="xxh3_128:1")
    assert again.stands(0, PART)
    again.discard()


def test_an_upload_of_a_longer_name_is_not_taken_for_it(storage: S3Storage) -> None:
    longer = storage.receive("ab", len(BIG))
    deliver(longer, until=PART)
    longer.abandon()
    delivery = storage.receive("a", len(BIG))
    assert not delivery.stands(0, PART)
    delivery.discard()
    [left] = storage.pending("")
    assert left.path == "ab"
    assert left.bytes >= PART
    storage.forget(left)


def test_of_two_who_share_an_upload_one_finishes_it(storage: S3Storage) -> None:
    first = storage.receive("a", len(BIG), digest="xxh3_128:1")
    deliver(first)
    second = storage.receive("a", len(BIG), digest="xxh3_128:1")
    deliver(second)
    assert second.sent_bytes == 0
    second.finish()
    with pytest.raises(FileExistsError):
        first.finish()
    first.discard()
    assert content(storage, "a") == BIG


def test_what_was_told_with_a_file_stands_beside_it(storage: S3Storage) -> None:
    delivery = storage.receive("a", len(BIG), attributes=GIVEN, digest="xxh3_128:0a")
    deliver(delivery)
    told, _ = delivery.finish()
    assert storage.attributes("a") == GIVEN
    assert (told.mode & 0o777, told.uid, told.gid) == (0o640, 7, 8)
    found = storage._bucket.client.head_object(Bucket=BUCKET, Key=storage._keys.key("a"))
    assert found["Metadata"]["ckptgov-digest"] == "xxh3_128:0a"
    assert found["Metadata"]["ckptgov-mode"] == "640"


def test_the_part_sizes_grow_where_ten_thousand_would_not_do(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptgov.storage.s3.MAX_PARTS", 2)
    delivery = storage.receive("a", len(BIG))
    for offset in (PART, 2 * PART, 0):
        delivery.write(offset, memoryview(BIG)[offset : offset + PART])
    delivery.finish()
    assert content(storage, "a") == BIG
    assert storage.stat("a").etag.endswith("-2")


def test_pieces_may_be_handed_over_by_several_threads(storage: S3Storage) -> None:
    delivery = storage.receive("a", len(BIG))
    threads = [
        threading.Thread(target=delivery.write, args=(at, memoryview(BIG)[at : at + PART]))
        for at in range(0, len(BIG), PART)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delivery.finish()
    assert delivery.sent_bytes == len(BIG)
    assert content(storage, "a") == BIG


def test_a_large_delivery_needs_no_more_memory_than_a_piece(opened: Open) -> None:
    storage = opened(part_bytes=16 * MIB)
    piece, pieces = memoryview(bytearray(16 * MIB)), 8
    delivery = storage.receive("a", pieces * len(piece))
    tracemalloc.start()
    try:
        for number in range(pieces):
            delivery.write(number * len(piece), piece)
        delivery.finish()
        with storage.open("a") as file:
            for number in range(pieces):
                file.read_into(piece, number * len(piece))
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


# proof


@pytest.mark.parametrize("size", [4, len(BIG)])
@pytest.mark.parametrize("options", [{}, {"checksum": CRC32}], ids=["preferred", "CRC32"])
def test_only_a_store_seen_to_verify_gives_proof(
    opened: Open, size: int, options: dict[str, object]
) -> None:
    proofs = []
    for number, verified in enumerate((False, True)):
        storage = opened(checksums_verified=verified, **options)
        delivery = storage.receive(f"a{number}", size)
        deliver(delivery, BIG[:size])
        proofs.append(delivery.finish()[1])
    assert proofs == [ArrivalProof.NONE, ArrivalProof.CHECKSUM]


def test_a_store_that_takes_wrong_checksums_is_found_out(
    storage: S3Storage, proxy: S3Proxy
) -> None:
    proxy.inject(Fault(Trouble.ACCEPT_WRONG_CHECKSUMS))
    assert not storage.probe_checksums()


def test_a_store_that_ignores_conditions_is_found_out(storage: S3Storage, proxy: S3Proxy) -> None:
    proxy.inject(Fault(Trouble.IGNORE_CONDITIONS))
    assert not storage.probe_conditional_put()
    assert not storage.probe_conditional_complete()


def test_such_a_store_is_looked_at_before_anything_is_put(opened: Open, proxy: S3Proxy) -> None:
    proxy.inject(Fault(Trouble.IGNORE_CONDITIONS))
    storage = opened(conditional=False)
    delivery = storage.receive("big", len(BIG))
    small = storage.receive("small", 1)
    small.write(0, memoryview(b"x"))
    deliver(delivery)
    before = [storage.publish(path, [b"first"]) for path in ("big", "small")]
    for late in (delivery, small):
        with pytest.raises(FileExistsError):
            late.finish()
    assert [storage.stat(path).token for path in ("big", "small")] == [
        told.token for told in before
    ]
    with storage.open("small") as file:
        storage.replace("small", [b"other"])
        with pytest.raises(StorageError, match="changed"):
            file.read_at(0, 5)


# lost answers


def test_a_put_whose_answer_was_lost_is_known_as_ours(storage: S3Storage, proxy: S3Proxy) -> None:
    lost = proxy.inject(Fault(Trouble.DROP_AFTER, method="PUT", times=1))
    storage.publish("a", [b"ours"])
    assert lost.fired == 1
    assert content(storage, "a") == b"ours"


def test_a_put_whose_answers_are_all_lost_is_known_as_ours(opened: Open, proxy: S3Proxy) -> None:
    storage = opened(policy=RetryPolicy(tries=1))
    proxy.inject(Fault(Trouble.DROP_AFTER, method="PUT"))
    storage.publish("a", [b"ours"])
    storage.replace("a", [b"too"])
    assert content(storage, "a") == b"too"


def test_a_put_that_lost_to_another_is_not_taken_for_ours(opened: Open, proxy: S3Proxy) -> None:
    storage, theirs = opened(), opened()

    def slow() -> Iterator[bytes]:
        theirs.publish("a", [b"same"])
        proxy.inject(Fault(Trouble.DROP_AFTER, method="PUT", times=1))
        yield b"same"

    with pytest.raises(FileExistsError):
        storage.publish("a", slow())


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_completion_whose_answer_was_lost_is_known_as_ours(
    storage: S3Storage, proxy: S3Proxy, is_resumed: bool
) -> None:
    delivery = storage.receive("a", len(BIG), digest="xxh3_128:1")
    deliver(delivery)
    if is_resumed:
        delivery.abandon()
        delivery = storage.receive("a", len(BIG), digest="xxh3_128:1")
        deliver(delivery)
        assert delivery.sent_bytes == 0
    lost = proxy.inject(Fault(Trouble.DROP_AFTER, method="POST", query=("uploadId",), times=1))
    told, _ = delivery.finish()
    assert lost.fired == 1
    assert told.token == storage.stat("a").token
    assert list(storage.pending("")) == []


def test_a_part_is_sent_again_after_a_failure_and_counted(
    storage: S3Storage, proxy: S3Proxy
) -> None:
    delivery = storage.receive("a", len(BIG))
    proxy.inject(Fault(Trouble.DROP_AFTER, method="PUT", query=("partNumber",), times=1))
    deliver(delivery)
    delivery.finish()
    assert delivery.sent_bytes == len(BIG) + PART
    assert content(storage, "a") == BIG


# a store that is busy, broken or silent


def test_a_store_that_is_busy_for_twenty_seconds_is_outlasted(
    storage: S3Storage, proxy: S3Proxy, clock: Time
) -> None:
    told: list[float] = []
    storage.on_push_back = lambda: told.append(clock.now_s)
    proxy.inject(Fault(Trouble.SLOW_DOWN, for_s=20))
    storage.publish("a", [b"x"])
    proxy.inject(Fault(Trouble.INTERNAL_ERROR, for_s=20))
    assert content(storage, "a") == b"x"
    assert len(told) > 3


def test_a_store_that_stays_busy_ends_in_an_error(opened: Open, proxy: S3Proxy) -> None:
    storage = opened(policy=RetryPolicy(tries=3))
    proxy.inject(Fault(Trouble.SLOW_DOWN))
    with pytest.raises(SlowDown) as raised:
        storage.list("")
    assert raised.value.hint
    assert proxy.count() == 3


def test_a_store_that_never_answers_is_given_up(opened: Open, proxy: S3Proxy) -> None:
    storage = opened(policy=RetryPolicy(tries=1), read_timeout_s=0.2)
    proxy.inject(Fault(Trouble.STALL))
    with pytest.raises(TransientStorageError):
        storage.stat("a")


@pytest.mark.parametrize("length", [MIB, len(BIG)])
def test_a_body_that_breaks_off_is_taken_up_where_it_stopped(
    storage: S3Storage, proxy: S3Proxy, length: int
) -> None:
    storage.publish("a", [BIG])
    broken = proxy.inject(Fault(Trouble.TRUNCATE_BODY, method="GET", key="*/a", times=1))
    with storage.open("a") as file:
        assert file.read_at(0, length) == BIG[:length]
    assert broken.fired == 1
    assert proxy.received_bytes("GET", "*/a") < length + MIB


@pytest.mark.parametrize("length", [MIB, len(BIG)])
def test_a_body_that_is_short_and_says_so_is_refused(
    storage: S3Storage, proxy: S3Proxy, length: int
) -> None:
    storage.publish("a", [BIG])
    proxy.inject(Fault(Trouble.SHORT_BODY, method="GET", key="*/a"))
    with storage.open("a") as file, pytest.raises(StorageError):
        file.read_at(0, length)


def test_an_upload_that_someone_ended_is_told(storage: S3Storage) -> None:
    delivery = storage.receive("a", len(BIG))
    deliver(delivery, until=PART)
    [pending] = storage.pending("")
    storage.forget(pending)
    with pytest.raises(TransientStorageError, match="ended by someone else"):
        deliver(delivery)
    delivery.discard()
    assert names(storage) == []
