"""An open object: one state of one key, read in ranges."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ckptgov.errors import StorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._keyed import KeyedFile
from ckptgov.storage._ranged import RangedFile
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_errors import EndedEarly, Unmet, answer_of
from ckptgov.storage._s3_object import Head

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef


class _Source(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


class S3File(RangedFile, KeyedFile):
    """``OpenFile`` of one state of a key: what changed since raises, and is never mixed in."""

    MOST_BYTES = 64 * 2**20

    def __init__(self, bucket: Bucket, key: str, found: Head, where: str) -> None:
        super().__init__(found.bytes)
        self._bucket = bucket
        self._key = key
        self._found = found
        self._where = where

    def stat(self) -> FileStat:
        return self._found.stat

    def _call(self, operation: Callable[[], None]) -> None:
        try:
            self._bucket.call(self._where, operation)
        except (Unmet, FileNotFoundError) as error:
            raise self._changed() from error
        except StorageError as error:
            if answer_of(error)[1] == 416:  # it became shorter
                raise self._changed() from error
            raise

    def _get(self, start: int, end: int) -> _Body:
        version = {"VersionId": self._found.version_id} if self._found.version_id else {}
        answer = self._bucket.client.get_object(
            Bucket=self._bucket.name,
            Key=self._key,
            Range=f"bytes={start}-{end - 1}",
            IfMatch=f'"{self._found.etag}"',
            **version,  # type: ignore[arg-type]
        )
        body = _Body(answer, start, end)
        if answer["ETag"].strip('"') != self._found.etag:
            body.close()
            raise self._changed()  # the store does not keep conditions
        expected = f"bytes {start}-{end - 1}/{self._found.bytes}"
        if (
            answer.get("ContentRange", expected) != expected
            or answer["ContentLength"] != end - start
        ):
            body.close()
            raise StorageError(f"{self._where}: the store sends another range than asked for")
        return body

    def _changed(self) -> StorageError:
        return StorageError(
            f"{self._where}: changed or removed since it was opened",
            hint="published objects are never replaced; look who writes to this prefix",
        )


class _Body:
    """The body of one answer. ``position`` is where in the object the next byte comes from.

    Bytes are taken from the connection's own response where there is one: what boto3 puts around
    it copies each of them twice more.
    """

    def __init__(self, answer: GetObjectOutputTypeDef, start: int, end: int) -> None:
        self._raw: Any = answer["Body"].__enter__()  # the stream below, by botocore's own word
        below: Any = getattr(self._raw, "_fp", None)
        is_plain = isinstance(below, http.client.HTTPResponse)
        source: Any = below if is_plain else self._raw
        self._source: _Source = source
        self.position = start
        self.end = end

    def read_into(self, buffer: memoryview) -> int:
        """Some bytes, at least one. Raises EndedEarly."""
        with buffer[: self.end - self.position] as view:
            count = self._source.readinto(view)
        if count <= 0:
            raise EndedEarly("the answer ended early")
        self.position += count
        return count

    def close(self) -> None:
        """Give the connection back if all was read, else end it."""
        is_whole = self.position == self.end
        getattr(self._raw, "release_conn" if is_whole else "close", self._raw.close)()
