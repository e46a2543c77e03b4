"""What S3Storage makes of answers that no good store gives: moto, and a server that recites."""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptgov.errors import CkptgovError, StorageError, TransientStorageError, UsageError
from ckptgov.storage import _s3_keys as keys
from ckptgov.storage._s3_bucket import make_client
from ckptgov.storage._s3_checksum import CRC32, crc64nvme
from ckptgov.storage._s3_probes import Versioning
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import PendingDelivery
from ckptgov.storage.s3 import S3Storage

MIB = 2**20
PART = 5 * MIB
Answer = tuple[int, str]

LISTING = (
    '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>{rest}'
    "<Contents><Key>p/a</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
    "<LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents></ListBucketResult>"
)


class Reciter:
    """Answers what ``say`` tells for "METHOD query-or-path"; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.say: Callable[[str], Answer] = lambda _: (404, "")
        self.waited: list[float] = []
        self.more: dict[str, str] = {}
        self.etag = "e"
        self.url = ""
        self.opened: list[S3Storage] = []

    def now_ns(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    def open(self, **options: object) -> S3Storage:
        chosen = {"endpoint": self.url, "clock": self, "part_bytes": PART, **options}
        self.opened.append(S3Storage("s3://bucket/p", **chosen))
        return self.opened[-1]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reciter]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    reciter = Reciter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def recite(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = f"{self.command} {self.path}"
            reciter.asked.append(asked)
            reciter.headers.append({name.lower(): text for name, text in self.headers.items()})
            status, text = reciter.say(asked)
            if text and status >= 400:
                text = f"<Error><Code>{text}</Code><Message>told so</Message></Error>"
            body = b"" if self.command == "HEAD" else text.encode()
            self.send_response(status)
            self.send_header("ETag", f'"{reciter.etag}"')
            self.send_header("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
            self.send_header("Content-Length", str(len(body)))
            for name, value in reciter.more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = recite

        def log_message(self, *_: object) -> None:
            """Tests say nothing."""

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        reciter.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield reciter
        for storage in reciter.opened:
            storage.close()
        server.shutdown()
        thread.join()


# listings


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("", id="does not say whether there is more"),
        pytest.param("<IsTruncated>true</IsTruncated>", id="more, and no way to it"),
        pytest.param(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>",
            id="the same page for ever",
        ),
        pytest.param(
            "<IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>",
            id="no more, and a way to it",
        ),
        pytest.param("<IsTruncated>false</IsTruncated><Contents/>", id="a key without a name"),
        pytest.param(
            "<IsTruncated>false</IsTruncated><Contents><Key>p/b</Key><Size>many</Size></Contents>",
            id="a size that is none",
        ),
        pytest.param(
            "<IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>q/</Prefix></CommonPrefixes>",
            id="keys nobody asked for",
        ),
        pytest.param("<IsTruncated>false</IsTruncated><Contents>", id="no XML"),
    ],
)
def test_a_listing_that_contradicts_itself_is_no_answer(store: Reciter, rest: str) -> None:
    store.say = lambda _: (200, LISTING.format(rest=rest))
    for call in (
        lambda storage: storage.list(""),
        lambda storage: storage.stat_many("", ["a", "b", "c", "d"]),
    ):
        with pytest.raises(StorageError):
            call(store.open())


def test_pages_are_followed_to_the_end(store: Reciter) -> None:
    first = "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"

    def say(asked: str) -> Answer:
        if "continuation-token=x" in asked:
            last = LISTING.format(rest="<IsTruncated>false</IsTruncated>")
            return 200, last.replace("p/a", "p/0")
        return 200, LISTING.format(rest=first)

    store.say = say
    assert [entry.name for entry in store.open().list("")] == ["0", "a"]


# conflicts and stores that know less


def test_a_conflict_while_putting_is_tried_again(store: Reciter) -> None:
    answers = iter([(409, "ConditionalRequestConflict"), (200, "")])
    looks = iter([404, 200])
    store.say = lambda asked: next(answers) if asked.startswith("PUT") else (next(looks), "")
    assert store.open().publish("a", [b""]).etag == "e"
    assert len(store.waited) == 1


def uploading(complete: Callable[[], Answer]) -> Callable[[str], Answer]:
    begun = "<R><UploadId>u</UploadId><IsTruncated>false</IsTruncated></R>"
    gone = False

    def say(asked: str) -> Answer:
        nonlocal gone
        if asked.startswith("HEAD"):
            return 404, ""
        if asked.startswith("DELETE"):
            gone = True
            return 204, ""
        if asked.startswith("GET") and "uploadId" in asked and gone:
            return 404, "NoSuchUpload"
        if asked.startswith("POST") and "uploadId" in asked:
            return complete()
        return 200, begun if asked.startswith(("POST", "GET")) else ""

    return say


def test_a_conflict_while_completing_ends_the_upload(store: Reciter) -> None:
    store.say = uploading(lambda: (409, "ConditionalRequestConflict"))
    delivery = store.open().receive("a", PART + 1)
    delivery.write(0, memoryview(bytes(PART)))
    delivery.write(PART, memoryview(b"x"))
    with pytest.raises(TransientStorageError, match="ended"):
        delivery.finish()
    assert sum(asked.startswith("DELETE") for asked in store.asked) == 1
    assert store.waited == []


def test_an_upload_that_cannot_be_told_what_it_is_for_is_ended(store: Reciter) -> None:
    begun = uploading(lambda: (200, ""))
    store.say = lambda asked: (403, "AccessDenied") if "partNumber" in asked else begun(asked)
    with pytest.raises(StorageError, match="told so"):
        store.open().receive("a", PART + 1)
    assert any(asked.startswith("DELETE") for asked in store.asked)


def test_an_upload_is_aborted_until_it_is_gone(store: Reciter) -> None:
    listed = iter(range(2))

    def say(asked: str) -> Answer:
        if asked.startswith("DELETE"):
            return 204, ""
        if asked.startswith("GET") and next(listed, None) is None:
            return 404, "NoSuchUpload"
        return 200, "<R><IsTruncated>false</IsTruncated></R>"

    store.say = say
    pending = PendingDelivery(path="a", handle="u", bytes=0, started_at_ns=0)
    store.open().forget(pending)
    assert sum(asked.startswith("DELETE") for asked in store.asked) == 3


def test_an_upload_that_never_goes_is_an_error(store: Reciter) -> None:
    store.say = lambda asked: (200, "<R><IsTruncated>false</IsTruncated></R>")
    pending = PendingDelivery(path="a", handle="u", bytes=0, started_at_ns=0)
    with pytest.raises(StorageError, match="aborted"):
        store.open(policy=RetryPolicy(tries=3)).forget(pending)


def test_a_store_that_knows_no_conditions_is_asked_without(store: Reciter) -> None:
    puts: list[bool] = []
    there = False

    def say(asked: str) -> Answer:
        nonlocal there
        if asked.startswith("HEAD"):
            return (200 if there else 404), ""
        puts.append("if-none-match" in store.headers[-1])
        if puts[-1]:
            return 501, "NotImplemented"
        there = True
        return 200, ""

    store.say = say
    assert store.open().publish("a", [b""]).bytes == 0
    assert puts == [True, False]
    assert not store.open(policy=RetryPolicy(tries=1)).probe_conditional_put()


@pytest.mark.parametrize(
    ("answer", "is_transient"),
    [
        ((403, "AccessDenied"), False),
        ((403, "InvalidAccessKeyId"), False),
        ((400, "KeyTooLongError"), False),
        ((404, "NoSuchBucket"), False),
        ((418, "NeverHeardOf"), False),
        ((500, "InternalError"), True),
        ((503, "ServiceUnavailable"), True),
        ((400, "RequestTimeout"), True),
        ((200, "this is no XML"), True),
    ],
)
def test_every_refusal_is_an_error_of_the_contract(
    store: Reciter, answer: Answer, is_transient: bool
) -> None:
    store.say = lambda _: answer
    with pytest.raises(StorageError) as raised:
        store.open(policy=RetryPolicy(tries=2)).list("")
    assert isinstance(raised.value, TransientStorageError) is is_transient
    assert len(store.asked) == 1 + is_transient
    assert raised.value.__cause__ is not None


def test_a_store_that_redirects_in_circles_is_an_error(store: Reciter) -> None:
    store.say = lambda _: (301, "PermanentRedirect")
    with pytest.raises(StorageError) as raised:
        store.open().list("")
    assert "AWS_REGION" in str(raised.value.hint)


def test_nobody_listening_is_transient(store: Reciter) -> None:
    storage = store.open(endpoint="http://127.0.0.1:9", policy=RetryPolicy(tries=2))
    with pytest.raises(TransientStorageError) as raised:
        storage.list("")
    assert "endpoint" in str(raised.value.hint)
    assert len(store.waited) == 1


def test_what_a_store_does_not_know_is_not_an_error_of_the_look(store: Reciter) -> None:
    store.say = lambda _: (501, "NotImplemented")
    storage = store.open()
    assert storage.bucket_versioning() is Versioning.UNKNOWN
    assert not storage.bucket_object_lock()
    assert list(storage.lifecycle_rules()) == []
    store.say = lambda _: (403, "AccessDenied")
    for call in (storage.bucket_versioning, storage.bucket_object_lock, storage.lifecycle_rules):
        with pytest.raises(StorageError):
            call()


def test_an_object_of_another_checksum_is_removed_again(store: Reciter) -> None:
    looks = iter([404, 200])
    store.say = lambda asked: (next(looks) if asked.startswith("HEAD") else 200, "")
    delivery = store.open(checksum=CRC32).receive("a", 1)
    delivery.write(0, memoryview(b"x"))
    store.more = {"x-amz-checksum-crc32": "AAAAAA=="}
    with pytest.raises(StorageError, match="checksum"):
        delivery.finish()
    assert store.asked[-1].startswith("DELETE /bucket/p/a")


@pytest.mark.parametrize("size_bytes", [1, PART + 1])
def test_an_object_that_took_the_place_of_ours_is_never_removed(
    store: Reciter, size_bytes: int
) -> None:
    begun = uploading(lambda: (200, "<R><ETag>ours</ETag></R>"))
    is_stored = False

    def say(asked: str) -> Answer:
        nonlocal is_stored
        store.etag = "theirs" if asked.startswith("HEAD") else "ours"
        if asked.startswith("HEAD"):
            return (200 if is_stored else 404), ""
        is_part = "partNumber" in asked
        is_stored = is_stored or (asked.startswith("PUT") and not is_part)
        is_stored = is_stored or (asked.startswith("POST") and "uploadId" in asked)
        return begun(asked)

    store.say = say
    delivery = store.open(checksum=CRC32).receive("a", size_bytes)
    content = memoryview(bytes(size_bytes))
    for offset in range(0, size_bytes, PART):
        delivery.write(offset, content[offset : offset + PART])
    store.more = {"x-amz-checksum-crc32": "AAAAAA=="}
    with pytest.raises(StorageError, match="someone else"):
        delivery.finish()
    delivery.abandon()
    assert not any(asked.startswith("DELETE") for asked in store.asked)


def test_a_listing_of_uploads_that_goes_in_circles_is_no_answer(store: Reciter) -> None:
    pages = iter(range(20))

    def say(_: str) -> Answer:
        page = next(pages, None)
        if page is None:
            return 200, "<R><IsTruncated>false</IsTruncated></R>"
        mark = f"<NextKeyMarker>{page % 2}</NextKeyMarker>"
        return 200, f"<R><IsTruncated>true</IsTruncated>{mark}</R>"

    store.say = say
    with pytest.raises(StorageError, match="contradicts itself"):
        store.open().pending("")


def test_more_than_is_published_at_once_is_refused(
    store: Reciter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptgov.storage.s3._JOINED_BYTES", 10)
    with pytest.raises(StorageError, match="larger"):
        store.open().publish("a", [b"12345", b"123456"])
    assert not any(asked.startswith("PUT") for asked in store.asked)


def test_moto_takes_wrong_checksums_and_is_found_out(store: Reciter) -> None:
    from moto import mock_aws

    with mock_aws():
        client = make_client(None, read_timeout_s=5)
        client.create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        storage = S3Storage("s3://bucket/p", client=client, part_bytes=PART)
        assert not storage.probe_checksums()
        assert storage.probe_conditional_put()
        assert storage.probe_list_order()
        assert list(storage.list("")) == []


# addresses and settings


@pytest.mark.parametrize(
    "url", ["", "s3://", "s3://x", "http://bucket/p", "s3://bucket//p", "s3://bucket/a/../b"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        S3Storage(url)


def test_parts_smaller_than_stores_take_are_refused() -> None:
    with pytest.raises(UsageError):
        S3Storage("s3://bucket", part_bytes=MIB)


def test_only_other_stores_have_the_bucket_in_the_path(
    store: Reciter, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    def settings_of(endpoint: str | None = None) -> dict[str, object]:
        with contextlib.closing(make_client(endpoint, read_timeout_s=5)) as client:
            assert client.meta.config.retries["total_max_attempts"] == 1
            return client.meta.config.s3

    theirs = {"addressing_style": "auto", "payload_signing_enabled": False}
    assert settings_of() == theirs
    plain = {"addressing_style": "path", "payload_signing_enabled": True}
    assert settings_of("http://store:9000") == plain
    tls = {"addressing_style": "path", "payload_signing_enabled": False}
    assert settings_of("https://store:9000") == tls
    profile = tmp_path / "config"
    profile.write_text("[profile tier]\nendpoint_url = https://store:9000\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))
    monkeypatch.setenv("AWS_PROFILE", "tier")
    assert settings_of() == tls
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(StorageError) as raised:
        settings_of()
    assert raised.value.hint


def test_an_endpoint_that_is_none_is_an_error(store: Reciter) -> None:
    with pytest.raises(CkptgovError):
        store.open(endpoint="no endpoint")


# values


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_the_checksum_of_a_whole_follows_from_its_parts(
    first: bytes, second: bytes, third: bytes
) -> None:
    for checksum in filter(None, [CRC32, crc64nvme()]):
        parts = [(checksum.of(each), len(each)) for each in (first, second, third)]
        assert checksum.whole(parts) == checksum.of(first + second + third)
    assert CRC32.of(first) == zlib.crc32(first)


def test_the_checksum_of_large_parts_follows_as_well() -> None:
    part = bytes(range(256)) * 40000
    for checksum in filter(None, [CRC32, crc64nvme()]):
        parts = [(checksum.of(part), len(part))] * 3
        assert checksum.whole(parts) == checksum.of(part * 3)


@given(st.binary(min_size=1, max_size=30).filter(lambda raw: b"\0" not in raw and b"/" not in raw))
def test_every_name_has_one_key_and_is_read_back_from_it(raw: bytes) -> None:
    name = os.fsdecode(raw)
    text = keys.encode(name)
    assert text.isascii()
    assert keys.decode(text) == (None if name in (".", "..") else name)


@given(st.text(alphabet="%4a1fAF /.é~", max_size=8))
def test_no_key_is_read_as_a_path_that_has_another(text: str) -> None:
    path = keys.decode(text)
    assert path is None or keys.encode(path) == text
