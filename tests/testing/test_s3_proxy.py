from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ckptgov.testing import s3_proxy as proxies
from ckptgov.testing import seaweedfs
from ckptgov.testing.s3_proxy import Fault, S3Proxy, Trouble, s3_proxy

_REASON = proxies.reason_to_skip() or seaweedfs.reason_to_skip()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

BUCKET = seaweedfs.BUCKET
WRONG_CRC32 = "AAAAAA=="


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def clock() -> Time:
    return Time()


@pytest.fixture(scope="module")
def running(clock: Time) -> Iterator[S3Proxy]:
    with (
        seaweedfs.weed_s3() as server,
        s3_proxy(server.endpoint, server.access_key, server.secret_key, clock=clock) as proxy,
    ):
        yield proxy


@pytest.fixture
def proxy(running: S3Proxy) -> Iterator[S3Proxy]:
    running.forget_calls()
    yield running
    running.clear()


@pytest.fixture(scope="module")
def s3(running: S3Proxy) -> Iterator[Any]:
    import boto3
    from botocore.config import Config

    once = Config(
        retries={"total_max_attempts": 1}, read_timeout=2, s3={"addressing_style": "path"}
    )
    client = boto3.client(
        "s3",
        endpoint_url=running.url,
        aws_access_key_id="ckptgov",
        aws_secret_access_key="ckptgov-secret",
        region_name="us-east-1",
        config=once,
    )
    yield client
    client.close()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/a b %2f ü+=~"


def put(s3: Any, key: str, body: bytes = b"x", **more: str) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=body, **more)


def get(s3: Any, key: str) -> bytes:
    # By range, so that no checksum of the whole object comes along.
    whole = s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=0-")["Body"].read()
    assert isinstance(whole, bytes)
    return whole


def code(call: object) -> str | None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        call()  # type: ignore[operator]
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    except BotoCoreError as error:
        return type(error).__name__
    return None


def test_bytes_pass_both_ways_and_are_counted(proxy: S3Proxy, s3: Any, key: str) -> None:
    body = bytes(range(256)) * 4096
    put(s3, key, body)
    assert get(s3, key) == body
    assert proxy.sent_bytes("PUT", key) == proxy.received_bytes("GET", key) == len(body)
    assert (proxy.count(), proxy.count("PUT"), proxy.count(key="other")) == (2, 1, 0)
    assert [(call.bucket, call.key, call.status) for call in proxy.calls] == [
        (BUCKET, key, 200),
        (BUCKET, key, 206),
    ]


def test_a_store_can_push_back_a_number_of_times(proxy: S3Proxy, s3: Any, key: str) -> None:
    told = proxy.inject(Fault(Trouble.SLOW_DOWN, key=key.replace("[", "?"), skip=1, times=2))
    answers = [code(lambda: put(s3, key)) for _ in range(4)]
    assert answers == [None, "SlowDown", "SlowDown", None]
    assert told.fired == 2
    assert [call.troubles for call in proxy.calls] == [(), ("slow-down",), ("slow-down",), ()]


def test_a_store_can_push_back_for_a_time(proxy: S3Proxy, s3: Any, key: str, clock: Time) -> None:
    proxy.inject(Fault(Trouble.SLOW_DOWN, for_s=20))
    clock.now_s += 19
    assert code(lambda: put(s3, key)) == "SlowDown"
    clock.now_s += 1
    assert code(lambda: put(s3, key)) is None


def test_only_the_requests_meant_are_concerned(proxy: S3Proxy, s3: Any, key: str) -> None:
    proxy.inject(Fault(Trouble.INTERNAL_ERROR, key="*.json", method="PUT"))
    assert code(lambda: put(s3, key)) is None
    assert code(lambda: put(s3, key + ".json")) == "InternalError"
    assert code(lambda: s3.list_objects_v2(Bucket=BUCKET, Prefix="x.json")) is None


@pytest.mark.parametrize(
    ("trouble", "is_stored"), [(Trouble.DROP_BEFORE, False), (Trouble.DROP_AFTER, True)]
)
def test_a_connection_is_dropped(
    proxy: S3Proxy, s3: Any, key: str, trouble: Trouble, is_stored: bool
) -> None:
    proxy.inject(Fault(trouble, times=1))
    assert code(lambda: put(s3, key)) == "ConnectionClosedError"
    assert (code(lambda: get(s3, key)) is None) == is_stored


def test_a_request_can_stall_until_it_is_let_go(proxy: S3Proxy, s3: Any, key: str) -> None:
    proxy.inject(Fault(Trouble.STALL))
    assert code(lambda: put(s3, key)) == "ReadTimeoutError"
    proxy.clear()
    assert code(lambda: get(s3, key)) == "NoSuchKey"


def test_a_body_can_stall_half_way(proxy: S3Proxy, s3: Any, key: str) -> None:
    put(s3, key, bytes(1000))
    proxy.inject(Fault(Trouble.STALL_BODY))
    assert code(lambda: get(s3, key)) == "ReadTimeoutError"
    assert proxy.received_bytes("GET") == 500


def test_a_body_can_be_cut_short_or_wrong(proxy: S3Proxy, s3: Any, key: str) -> None:
    put(s3, key, bytes(1000))
    proxy.inject(Fault(Trouble.TRUNCATE_BODY, times=1))
    assert code(lambda: get(s3, key)) == "ResponseStreamingError"
    proxy.inject(Fault(Trouble.SHORT_BODY, times=1))
    assert get(s3, key) == bytes(500)
    proxy.inject(Fault(Trouble.FLIP_BYTE, times=1))
    assert get(s3, key) == bytes(500) + b"\1" + bytes(499)
    assert get(s3, key) == bytes(1000)


def test_conditions_can_be_ignored(proxy: S3Proxy, s3: Any, key: str) -> None:
    put(s3, key, b"first")
    assert code(lambda: put(s3, key, b"second", IfNoneMatch="*")) == "PreconditionFailed"
    proxy.inject(Fault(Trouble.IGNORE_CONDITIONS))
    put(s3, key, b"second", IfNoneMatch="*")
    assert get(s3, key) == b"second"


def test_wrong_checksums_can_be_taken(proxy: S3Proxy, s3: Any, key: str) -> None:
    assert code(lambda: put(s3, key, ChecksumCRC32=WRONG_CRC32)) == "BadDigest"
    proxy.inject(Fault(Trouble.ACCEPT_WRONG_CHECKSUMS))
    told = s3.put_object(Bucket=BUCKET, Key=key, Body=b"x", ChecksumCRC32=WRONG_CRC32)
    assert told["ChecksumCRC32"] == WRONG_CRC32
    assert get(s3, key) == b"x"


def test_wrong_checksums_of_parts_can_be_taken(proxy: S3Proxy, s3: Any, key: str) -> None:
    proxy.inject(Fault(Trouble.ACCEPT_WRONG_CHECKSUMS))
    where = {"Bucket": BUCKET, "Key": key}
    where["UploadId"] = s3.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")["UploadId"]
    etag = s3.upload_part(**where, PartNumber=1, Body=b"part", ChecksumCRC32=WRONG_CRC32)["ETag"]
    part = {"PartNumber": 1, "ETag": etag, "ChecksumCRC32": WRONG_CRC32}
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": [part]})
    assert get(s3, key) == b"part"


def test_listings_can_be_shuffled_and_short(proxy: S3Proxy, s3: Any, key: str) -> None:
    wanted = [f"{key}/{number}" for number in range(8)]
    for each in wanted:
        put(s3, each)

    def listed() -> list[str]:
        page = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{key}/")
        assert not page["IsTruncated"]
        assert page["KeyCount"] == len(page["Contents"])
        return [entry["Key"] for entry in page["Contents"]]

    assert listed() == wanted
    proxy.inject(Fault(Trouble.SHUFFLE_LIST))
    shuffled = listed()
    assert shuffled != wanted
    assert sorted(shuffled) == wanted
    proxy.clear()
    proxy.inject(Fault(Trouble.SHORT_LIST))
    assert listed() == wanted[:6]


def test_requests_are_served_side_by_side(proxy: S3Proxy, s3: Any, key: str) -> None:
    failed: list[str | None] = []

    def work(number: int) -> None:
        for turn in range(5):
            one = f"{key}/{number}.{turn}"
            failed.append(code(lambda: put(s3, one, one.encode() * 1000)))  # noqa: B023
            assert get(s3, one) == one.encode() * 1000

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(failed) == {None}
    assert proxy.count() == 80
