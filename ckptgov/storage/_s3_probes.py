"""What one bucket really does: tried out on keys of our own, which are gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

from ckptgov.errors import StorageError
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_checksum import Checksum
from ckptgov.storage._s3_errors import Unmet, Unsupported, WrongChecksum, answer_of
from ckptgov.storage._s3_keys import Keys
from ckptgov.storage._s3_object import delete
from ckptgov.storage._s3_uploads import abort

T = TypeVar("T")

_BODY = b"ckptgov looks what this store does\n"


class Versioning(StrEnum):
    """What a bucket does with what is overwritten or deleted."""

    OFF = "off"
    ENABLED = "enabled"
    SUSPENDED = "suspended"
    UNKNOWN = "unknown"  # the store does not tell


class Ground:
    """Keys to try things on. Everything put through it is deleted, each version by its id."""

    def __init__(self, bucket: Bucket, keys: Keys, checksum: Checksum) -> None:
        self.bucket = bucket
        self.checksum = checksum
        self.below = f"{keys.prefix}.ckptgov/check-{secrets.token_hex(8)}/"
        self.where = f"s3://{bucket.name}/{self.below}"
        self._put: list[tuple[str, str | None]] = []
        self._uploads: list[tuple[str, str]] = []

    def put(self, name: str, *, value: int | None = None, **condition: str) -> None:
        """Put an object, with ``value`` as its checksum if given."""
        checked = {} if value is None else {self.checksum.member: self.checksum.text(value)}

        def send() -> str | None:
            return self.bucket.client.put_object(
                Bucket=self.bucket.name,
                Key=self.below + name,
                Body=_BODY,
                **checked,  # type: ignore[arg-type]
                **condition,  # type: ignore[arg-type]
            ).get("VersionId")

        self._put.append((name, self._call(send)))

    def begin(self, name: str) -> str:
        """Begin a multipart upload."""

        def create() -> str:
            return self.bucket.client.create_multipart_upload(
                Bucket=self.bucket.name,
                Key=self.below + name,
                ChecksumAlgorithm=self.checksum.name,
                ChecksumType="FULL_OBJECT",
            )["UploadId"]

        upload_id = self._call(create)
        self._uploads.append((name, upload_id))
        return upload_id

    def part(self, name: str, upload_id: str, *, value: int) -> str:
        """Send the only part; its ETag as told."""

        def send() -> str:
            return self.bucket.client.upload_part(
                Bucket=self.bucket.name,
                Key=self.below + name,
                UploadId=upload_id,
                PartNumber=1,
                Body=_BODY,
                ChecksumAlgorithm=self.checksum.name,
                **{self.checksum.member: self.checksum.text(value)},  # type: ignore[arg-type]
            )["ETag"]

        return self._call(send)

    def complete(self, name: str, upload_id: str, etag: str) -> None:
        """Complete the upload where nothing stands yet, as far as the store sees to it."""
        checked = {self.checksum.member: self.checksum.text(self.checksum.of(_BODY))}

        def send() -> str | None:
            return self.bucket.client.complete_multipart_upload(
                Bucket=self.bucket.name,
                Key=self.below + name,
                UploadId=upload_id,
                MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag, **checked}]},  # type: ignore[typeddict-item]
                IfNoneMatch="*",
            ).get("VersionId")

        self._put.append((name, self._call(send)))

    def keys(self) -> list[str]:
        """The keys, in the order of the listing."""

        def ask() -> list[str]:
            page = self.bucket.client.list_objects_v2(Bucket=self.bucket.name, Prefix=self.below)
            return [each["Key"] for each in page.get("Contents", [])]

        return self._call(ask)

    def clear(self) -> None:
        """Delete everything that was put."""
        for name, upload_id in self._uploads:
            abort(self.bucket, self.below + name, upload_id, self.where)
        for name, version_id in self._put:
            delete(self.bucket, self.below + name, self.where, version_id)

    def _call(self, operation: Callable[[], T]) -> T:
        return self.bucket.call(self.where, operation, lasting=(WrongChecksum,))


@contextmanager
def ground(bucket: Bucket, keys: Keys, checksum: Checksum) -> Iterator[Ground]:
    """A fresh prefix, cleared on the way out."""
    found = Ground(bucket, keys, checksum)
    try:
        yield found
    finally:
        found.clear()


def conditional_put(at: Ground) -> bool:
    """Whether If-None-Match keeps a put from overwriting."""
    at.put("taken")
    try:
        at.put("taken", IfNoneMatch="*")
    except (Unmet, Unsupported):
        return _refuses_only_taken(at)
    return False


def conditional_complete(at: Ground) -> bool:
    """Whether If-None-Match keeps the completion of an upload from overwriting."""
    at.put("taken")
    upload_id = at.begin("taken")
    etag = at.part("taken", upload_id, value=at.checksum.of(_BODY))
    try:
        at.complete("taken", upload_id, etag)
    except Unmet:
        return True
    except Unsupported:
        return False
    return False


def checksums(at: Ground) -> bool:
    """Whether wrong checksums are refused, of an object and of a part, and right ones taken."""
    right = at.checksum.of(_BODY)
    upload_id = at.begin("part")
    at.put("object", value=right)
    at.part("part", upload_id, value=right)
    tries: Sequence[Callable[[], object]] = (
        lambda: at.put("wrong", value=right ^ 1),
        lambda: at.part("part", upload_id, value=right ^ 1),
    )
    return all(_refused(each) for each in tries)


def list_order(at: Ground) -> bool:
    """Whether listings are in the order of the keys' bytes."""
    names = ["a-1", "a.b", "a/x", "a0"]
    for name in reversed(names):
        at.put(name)
    return at.keys() == [at.below + name for name in names]


def versioning(bucket: Bucket, where: str) -> Versioning:
    """What the bucket keeps of what is deleted."""

    def ask() -> str:
        return bucket.client.get_bucket_versioning(Bucket=bucket.name).get("Status", "Off")

    try:
        return Versioning(bucket.call(where, ask).lower())
    except (StorageError, FileNotFoundError, ValueError) as error:
        _require_told(error)
        return Versioning.UNKNOWN


def object_lock(bucket: Bucket, where: str) -> bool:
    """Whether the bucket may lock objects; False where the store knows no locks."""

    def ask() -> bool:
        told = bucket.client.get_object_lock_configuration(Bucket=bucket.name)
        return told.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"

    try:
        return bucket.call(where, ask)
    except (StorageError, FileNotFoundError) as error:
        _require_told(error, "ObjectLockConfigurationNotFoundError")
        return False


def lifecycle(bucket: Bucket, keys: Keys) -> list[Mapping[str, object]]:
    """The rules that may touch keys beneath the prefix, as the store tells them."""

    def ask() -> list[Mapping[str, object]]:
        told = bucket.client.get_bucket_lifecycle_configuration(Bucket=bucket.name)
        return [dict(rule) for rule in told.get("Rules", [])]

    try:
        rules = bucket.call(keys.root, ask)
    except (StorageError, FileNotFoundError) as error:
        _require_told(error, "NoSuchLifecycleConfiguration")
        return []
    return [rule for rule in rules if _touches(_prefix_of(rule), keys.prefix)]


def _refuses_only_taken(at: Ground) -> bool:
    try:
        at.put("free", IfNoneMatch="*")
    except (Unmet, Unsupported):
        return False
    return True


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except StorageError as error:
        if isinstance(error, WrongChecksum) or answer_of(error)[1] == 400:
            return True
        raise
    return False


def _require_told(error: Exception, *codes: str) -> None:
    """Pass over answers that say "there is none" or "I know no such thing"; raise all else."""
    code, status = answer_of(error)
    known = (*codes, "NotImplemented", "MethodNotAllowed", "UnsupportedOperation")
    if isinstance(error, ValueError) or code in known or status in (405, 501):
        return
    raise error


def _prefix_of(rule: Mapping[str, object]) -> str:
    """The beginning of keys a rule is about; ``""`` where tags or sizes choose, or nothing does."""
    found = rule.get("Filter", rule)
    if isinstance(found, Mapping) and isinstance(found.get("And"), Mapping):
        found = found["And"]
    prefix = found.get("Prefix", "") if isinstance(found, Mapping) else ""
    return prefix if isinstance(prefix, str) else ""


def _touches(theirs: str, ours: str) -> bool:
    return theirs.startswith(ours) or ours.startswith(theirs)
