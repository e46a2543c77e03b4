"""Multipart uploads: begun, found again, ended."""

from __future__ import annotations

import hashlib
import itertools
import json
from contextlib import suppress

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_checksum import Checksum
from ckptgov.storage._s3_errors import NoSuchUpload
from ckptgov.storage._s3_listing import Part, parts, uploads
from ckptgov.storage._s3_object import NONCE
from ckptgov.storage.backoff import waits

MAX_PARTS = 9_999
"""Amazon takes 10,000; the last number tells what an upload is for, and is never completed."""

_IDENTITY = 10_000


class Begun(Struct, frozen=True, kw_only=True):
    """An upload to go on with. ``nonce`` is None where an earlier process began it."""

    upload_id: str
    nonce: str | None
    parts: dict[int, Part]


def begin(
    bucket: Bucket,
    key: str,
    where: str,
    metadata: dict[str, str],
    identity: dict[str, str],
    checksum: Checksum,
) -> Begun:
    """Begin an upload, and leave in it what it is for."""

    def create() -> str:
        return bucket.client.create_multipart_upload(
            Bucket=bucket.name,
            Key=key,
            Metadata=metadata,
            ChecksumAlgorithm=checksum.name,
            ChecksumType="FULL_OBJECT",
        )["UploadId"]

    upload_id = bucket.call(where, create)
    body = _encoded(identity)

    def tell() -> None:
        bucket.client.upload_part(
            Bucket=bucket.name,
            Key=key,
            UploadId=upload_id,
            PartNumber=_IDENTITY,
            Body=body,
            ChecksumAlgorithm=checksum.name,
            **{checksum.member: checksum.text(checksum.of(body))},  # type: ignore[arg-type]
        )

    try:
        bucket.call(where, tell)
    except StorageError:
        with suppress(StorageError):
            abort(bucket, key, upload_id, where)
        raise
    return Begun(upload_id=upload_id, nonce=metadata[NONCE], parts={})


def find(
    bucket: Bucket, key: str, where: str, identity: dict[str, str], checksum: Checksum
) -> Begun | None:
    """The upload with the most bytes that was begun for the same file; None without one."""
    best: Begun | None = None
    for upload in uploads(bucket, key, where):
        if upload.key != key:  # the listing is of everything that begins so
            continue
        try:
            there = {
                part.number: part
                for part in parts(bucket, key, upload.upload_id, where, checksum.member)
            }
        except NoSuchUpload:
            continue
        if _is_for(there.pop(_IDENTITY, None), _encoded(identity), checksum):
            found = Begun(upload_id=upload.upload_id, nonce=None, parts=there)
            best = max(best or found, found, key=_bytes)
    return best


def abort(bucket: Bucket, key: str, upload_id: str, where: str) -> None:
    """End an upload and free its parts; gone already is no error.

    Parts on their way may arrive after an abort (Amazon: abort until no parts are listed).

    Raises:
        StorageError: it is still there.
    """
    for pause_s in itertools.chain([0.0], waits(bucket.policy, bucket.random)):
        if pause_s:
            bucket.clock.sleep(pause_s)
        try:
            bucket.call(
                where,
                lambda: bucket.client.abort_multipart_upload(
                    Bucket=bucket.name, Key=key, UploadId=upload_id
                ),
            )
            next(parts(bucket, key, upload_id, where), None)
        except (NoSuchUpload, FileNotFoundError):
            return
    raise StorageError(
        f"{where}: the store keeps a multipart upload that was aborted",
        hint="let a lifecycle rule of the bucket end incomplete uploads",
    )


def _is_for(part: Part | None, told: bytes, checksum: Checksum) -> bool:
    if part is None or part.bytes != len(told):
        return False
    if part.checksum is not None:
        return part.checksum == checksum.text(checksum.of(told))
    return part.etag == hashlib.md5(told, usedforsecurity=False).hexdigest()


def _bytes(begun: Begun) -> int:
    return sum(part.bytes for part in begun.parts.values())


def _encoded(identity: dict[str, str]) -> bytes:
    return json.dumps(identity, sort_keys=True).encode("ascii")
