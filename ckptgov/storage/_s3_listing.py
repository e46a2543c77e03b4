"""Complete listings of keys, uploads and parts; one that cannot be complete raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_keys import decode
from ckptgov.storage._s3_object import as_ns

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import (
        ListMultipartUploadsOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        ListPartsOutputTypeDef,
    )


class Listed(Struct, frozen=True):
    """A key as listings tell it."""

    bytes: int
    etag: str
    modified_ns: int


class Level(Struct, frozen=True):
    """One directory: names of ours, and last names of keys that no path of ours has.

    A name that is both a key and the beginning of others is in both.
    """

    files: dict[str, Listed]
    directories: set[str]
    others: set[str]
    is_there: bool  # any key has this beginning, be it a marker only


class Upload(Struct, frozen=True):
    """A multipart upload that was begun."""

    key: str
    upload_id: str
    started_at_ns: int


class Part(Struct, frozen=True):
    """A part that the store has."""

    number: int
    bytes: int
    etag: str
    checksum: str | None  # of the kind asked for


def level(bucket: Bucket, below: str, where: str) -> Level:
    """Everything right beneath a common beginning of keys."""
    files: dict[str, Listed] = {}
    directories: set[str] = set()
    others: set[str] = set()
    is_there = False
    for page in _pages(bucket, below, where):
        with _sane(where):
            for each in page.get("Contents", []):
                is_there = True
                last = _last(each["Key"], below, where)
                if last == "" and each["Size"] == 0:
                    continue  # a marker, as consoles make them
                name = decode(last)
                if name is None or "/" in name:
                    others.add(last)
                else:
                    modified_ns = as_ns(each["LastModified"])
                    files[name] = Listed(each["Size"], each["ETag"].strip('"'), modified_ns)
            for common in page.get("CommonPrefixes", []):
                is_there = True
                last = _last(common["Prefix"], below, where).removesuffix("/")
                name = decode(last)
                (others if name is None else directories).add(name or last)
    return Level(files, directories, others, is_there)


def any_below(bucket: Bucket, below: str, where: str) -> bool:
    """Whether any key begins so. Also tells a missing bucket, which HEAD of a key cannot."""
    answer = bucket.call(
        where,
        lambda: bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=below, MaxKeys=1),
    )
    _require_flag(answer, where)
    return bool(answer.get("Contents")) or answer["IsTruncated"]


def uploads(bucket: Bucket, below: str, where: str) -> Iterator[Upload]:
    """Multipart uploads of keys that begin so."""
    marks: dict[str, str] = {}
    seen = [marks]
    while True:
        page = _upload_page(bucket, below, marks, where)
        with _sane(where):
            there = [
                Upload(each["Key"], each["UploadId"], as_ns(each["Initiated"]))
                for each in page.get("Uploads", [])
            ]
        yield from (upload for upload in there if upload.key.startswith(below))
        if not page["IsTruncated"]:
            return
        # Some stores tell the one marker only.
        named = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        following = {mark: str(page[told]) for mark, told in named.items() if page.get(told)}  # type: ignore[literal-required]
        if not following or following in seen:
            raise _incomplete(where)
        seen.append(following)
        marks = following


def parts(bucket: Bucket, key: str, upload_id: str, where: str, member: str = "") -> Iterator[Part]:
    """Parts that an upload has; ``member`` names the checksum wanted. Raises NoSuchUpload."""
    mark = 0
    while True:
        page = _part_page(bucket, key, upload_id, mark, where)
        with _sane(where):
            there = [_part(each, member) for each in page.get("Parts", [])]
        yield from there
        if not page["IsTruncated"]:
            return
        following = int(page.get("NextPartNumberMarker") or 0)
        if following <= mark:
            raise _incomplete(where)
        mark = following


def _pages(bucket: Bucket, below: str, where: str) -> Iterator[ListObjectsV2OutputTypeDef]:
    token: str | None = None
    seen: set[str] = set()
    while True:
        page = _page(bucket, below, token, where)
        yield page
        following = page.get("NextContinuationToken")
        if page["IsTruncated"] != bool(following) or following in seen:
            raise _incomplete(where)
        if following is None:
            return
        seen.add(following)
        token = following


def _page(bucket: Bucket, below: str, token: str | None, where: str) -> ListObjectsV2OutputTypeDef:
    more = {"ContinuationToken": token} if token is not None else {}

    def ask() -> ListObjectsV2OutputTypeDef:
        return bucket.client.list_objects_v2(
            Bucket=bucket.name,
            Prefix=below,
            Delimiter="/",
            **more,  # type: ignore[arg-type]
        )

    page = bucket.call(where, ask)
    _require_flag(page, where)
    return page


def _upload_page(
    bucket: Bucket, below: str, marks: dict[str, str], where: str
) -> ListMultipartUploadsOutputTypeDef:
    def ask() -> ListMultipartUploadsOutputTypeDef:
        return bucket.client.list_multipart_uploads(
            Bucket=bucket.name,
            Prefix=below,
            **marks,  # type: ignore[arg-type]
        )

    page = bucket.call(where, ask)
    _require_flag(page, where)
    return page


def _part_page(
    bucket: Bucket, key: str, upload_id: str, mark: int, where: str
) -> ListPartsOutputTypeDef:
    def ask() -> ListPartsOutputTypeDef:
        return bucket.client.list_parts(
            Bucket=bucket.name, Key=key, UploadId=upload_id, PartNumberMarker=mark
        )

    page = bucket.call(where, ask)
    _require_flag(page, where)
    return page


def _part(each: Any, member: str) -> Part:
    stored = each.get(member) if member else None
    return Part(each["PartNumber"], each["Size"], each["ETag"].strip('"'), stored)


@contextmanager
def _sane(where: str) -> Iterator[None]:
    """Members that an answer lacks."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise _incomplete(where) from error


def _last(key: str, below: str, where: str) -> str:
    if not key.startswith(below):
        raise StorageError(f"{where}: the store lists keys that were not asked for")
    return key.removeprefix(below)


def _require_flag(page: Any, where: str) -> None:
    if not isinstance(page.get("IsTruncated"), bool):
        raise _incomplete(where)


def _incomplete(where: str) -> StorageError:
    return StorageError(
        f"{where}: the store's listing contradicts itself, so it may be short",
        hint="a proxy or the store is broken; nothing is concluded from such a listing",
    )
