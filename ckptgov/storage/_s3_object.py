"""One object: what a look at it tells, its metadata, and putting a new one in its place."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from ckptgov.errors import TransientStorageError
from ckptgov.model.files import Attributes, EntryKind, FileStat
from ckptgov.storage._s3_body import Body
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_errors import Unmet, Unsupported

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

NONCE = "ckptgov-put"
"""Metadata that tells our own write from another's when its answer was lost."""

_MODE = 0o644  # of objects that carry none


class Head(Struct, frozen=True, kw_only=True):
    """An object as HEAD tells it. ``metadata`` has lower-case names."""

    bytes: int
    etag: str
    modified_ns: int
    version_id: str | None
    metadata: Mapping[str, str]
    checksums: Mapping[str, str]
    is_locked: bool

    @property
    def stat(self) -> FileStat:
        """The same as the contract tells it."""
        there = self.attributes
        return file_stat(
            self.bytes,
            self.etag,
            self.modified_ns,
            version_id=self.version_id,
            mode=there.mode,
            uid=there.uid,
            gid=there.gid,
        )

    @property
    def attributes(self) -> Attributes:
        """What travelled with it; when it was stored, where nothing did."""
        return Attributes(
            mode=_number(self.metadata, "ckptgov-mode", _MODE, base=8) & 0o777,
            uid=_number(self.metadata, "ckptgov-uid", 0),
            gid=_number(self.metadata, "ckptgov-gid", 0),
            mtime_ns=_number(self.metadata, "ckptgov-mtime-ns", self.modified_ns),
        )


def head(bucket: Bucket, key: str, where: str, *, checksums: bool = False) -> Head:
    """Look at one object. Raises FileNotFoundError."""

    def look() -> Head:
        if checksums:
            told = bucket.client.head_object(Bucket=bucket.name, Key=key, ChecksumMode="ENABLED")
        else:
            told = bucket.client.head_object(Bucket=bucket.name, Key=key)
        return _head(told)

    return bucket.call(where, look)


def head_or_none(bucket: Bucket, key: str, where: str, *, checksums: bool = False) -> Head | None:
    """Look at one object; None where there is none."""
    try:
        return head(bucket, key, where, checksums=checksums)
    except FileNotFoundError:
        return None


def put(
    bucket: Bucket,
    key: str,
    where: str,
    content: memoryview,
    metadata: dict[str, str],
    checked: Mapping[str, str],
    condition: Mapping[str, str],
) -> tuple[Head, int]:
    """Store an object; the look at it afterwards, and the bytes sent.

    ``metadata`` has a nonce; ``checked`` is the checksum and ``condition`` what the store is to
    keep. Whatever it answered, or did not: an object that carries the nonce is ours.

    Raises:
        Unmet: the condition did not hold.
        Unsupported: the store does not know the condition.
        TransientStorageError: the tries ended, and it is not there; or someone else's is.
    """
    extra = {**checked, **condition}
    sent, etag = 0, ""

    def send() -> None:
        nonlocal sent, etag
        body = Body(content)
        try:
            answer = bucket.client.put_object(
                Bucket=bucket.name,
                Key=key,
                Body=body.as_boto,
                Metadata=metadata,
                **extra,  # type: ignore[arg-type]
            )
            etag = answer.get("ETag", "").strip('"')
        finally:
            sent += body.sent_bytes

    try:
        bucket.call(where, send)
    except (Unmet, Unsupported, TransientStorageError):
        found = head_or_none(bucket, key, where, checksums=True)
        if found is None or found.metadata.get(NONCE) != metadata[NONCE]:
            raise
        return found, sent
    found = head(bucket, key, where, checksums=True)
    if found.metadata.get(NONCE) != metadata[NONCE] and found.etag != etag:
        raise overwritten(where)
    return found, sent


def overwritten(where: str) -> TransientStorageError:
    """What was just stored is not what stands there, and what stands there is not ours."""
    return TransientStorageError(
        f"{where}: someone else replaced the object as it was written; theirs was left alone",
        hint="give what writes there a prefix of its own",
    )


def delete(
    bucket: Bucket, key: str, where: str, version_id: str | None, etag: str | None = None
) -> None:
    """Delete exactly this version, or what the bucket makes of the key without one.

    With ``etag`` only while the key has it, where the store knows such a condition.

    Raises:
        Unmet: it has another one.
    """
    version = {"VersionId": version_id} if version_id else {}

    def ask(**condition: str) -> None:
        bucket.client.delete_object(
            Bucket=bucket.name,
            Key=key,
            **version,  # type: ignore[arg-type]
            **condition,  # type: ignore[arg-type]
        )

    if etag is None:
        bucket.call(where, ask)
        return
    try:
        bucket.call(where, lambda: ask(IfMatch=f'"{etag}"'))
    except Unsupported:
        bucket.call(where, ask)


def described(attributes: Attributes | None, digest: str | None) -> dict[str, str]:
    """User metadata of a shard."""
    told = {} if digest is None else {"ckptgov-digest": digest}
    if attributes is not None:
        told["ckptgov-mode"] = f"{attributes.mode & 0o777:o}"
        told["ckptgov-uid"] = str(attributes.uid)
        told["ckptgov-gid"] = str(attributes.gid)
        told["ckptgov-mtime-ns"] = str(attributes.mtime_ns)
    return told


def file_stat(
    bytes: int,
    etag: str,
    modified_ns: int,
    *,
    version_id: str | None = None,
    mode: int = _MODE,
    uid: int = 0,
    gid: int = 0,
) -> FileStat:
    """An object as a file."""
    return FileStat(
        kind=EntryKind.FILE,
        bytes=bytes,
        mtime_ns=modified_ns,
        ctime_ns=0,
        inode=0,
        device=0,
        mode=stat.S_IFREG | mode,
        uid=uid,
        gid=gid,
        etag=etag,
        version_id=version_id,
    )


def as_ns(moment: datetime) -> int:
    """A time of the store in ns; stores tell whole seconds, some of them milliseconds."""
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def _head(told: HeadObjectOutputTypeDef) -> Head:
    named = cast("Mapping[str, object]", told)
    return Head(
        bytes=told["ContentLength"],
        etag=told["ETag"].strip('"'),
        modified_ns=as_ns(told["LastModified"]),
        version_id=told.get("VersionId"),
        metadata={name.lower(): text for name, text in told.get("Metadata", {}).items()},
        checksums={
            name: text
            for name, text in named.items()
            if name.startswith("Checksum") and isinstance(text, str)
        },
        is_locked=told.get("ObjectLockLegalHoldStatus") == "ON" or "ObjectLockMode" in named,
    )


def _number(metadata: Mapping[str, str], name: str, default: int, *, base: int = 10) -> int:
    """What others may have written there is no reason to fail."""
    text = metadata.get(name, "")
    try:
        found = int(text, base) if len(text) < 24 else -1
    except ValueError:
        return default
    return found if found >= 0 else default
