"""A large file on its way into a bucket: a multipart upload, taken up again after a crash."""

from __future__ import annotations

import hashlib
import secrets
import threading
from typing import TYPE_CHECKING

from ckptgov.errors import StorageError, TransientStorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._s3_body import Body
from ckptgov.storage._s3_errors import Conflict, NoSuchUpload, Unmet, Unsupported
from ckptgov.storage._s3_listing import Part
from ckptgov.storage._s3_object import (
    NONCE,
    Head,
    head,
    head_or_none,
    overwritten,
)
from ckptgov.storage._s3_put import taken
from ckptgov.storage._s3_target import Target, proof_of
from ckptgov.storage._s3_uploads import Begun, abort, begin, find
from ckptgov.storage.contract import ArrivalProof

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef


class PartsDelivery:
    """A multipart upload. Threads may hand over different pieces at once.

    A part is a piece, or several where 10,000 pieces would not hold the file: then pieces are
    kept until their part is full (in order, that is one part for each thread), and nothing is
    taken up again. Parts of an earlier upload count when the store's checksum of them, or their
    ETag where it is an MD5, is that of the piece. What an upload was begun for (size, digest,
    attributes) stands in a last part that is not completed; only an upload begun for the same is
    taken up, so movers who share one have the same file.
    """

    def __init__(self, target: Target, *, part_bytes: int, piece_bytes: int) -> None:
        self._target = target
        self._part_bytes = part_bytes
        self._is_by_pieces = part_bytes == piece_bytes
        self._done: dict[int, Part] = {}
        self._values: dict[int, int] = {}
        self._filling: dict[int, _Filling] = {}
        self._sent = self._resumed = 0
        self._is_over = False
        self._is_lost = False  # someone who shared the upload has completed it
        self._lock = threading.Lock()
        found = find(target.bucket, target.key, target.where, self._identity, target.checksum)
        self._upload: Begun = found or self._begin()

    @property
    def sent_bytes(self) -> int:
        return self._sent

    @property
    def resumed_bytes(self) -> int:
        return self._resumed

    def stands(self, offset: int, length: int) -> bool:
        part = self._upload.parts.get(self._number(offset))
        return part is not None and self._is_by_pieces and part.bytes == length

    def matches(self, offset: int, piece: memoryview) -> bool:
        if not self.stands(offset, piece.nbytes):
            return False
        number = self._number(offset)
        part, checksum = self._upload.parts[number], self._target.checksum
        value = checksum.of(piece)
        if part.checksum is not None:
            is_same = part.checksum == checksum.text(value)
        else:  # equal by chance it cannot be, whatever this store's ETags are otherwise
            is_same = part.etag == hashlib.md5(piece, usedforsecurity=False).hexdigest()
        if is_same:
            self._keep(number, part, value, resumed=part.bytes)
        return is_same

    def write(self, offset: int, piece: memoryview) -> None:
        number = self._number(offset)
        if self._is_over or offset + piece.nbytes > self._target.bytes:
            raise StorageError(f"{self._target.where}: a piece beyond the end, or after the end")
        if piece.nbytes == self._length(number):
            self._send(number, piece)
            return
        at = offset % self._part_bytes
        if self._is_by_pieces or at + piece.nbytes > self._length(number):
            raise StorageError(f"{self._target.where}: a piece of another size than agreed")
        with self._lock:
            filling = self._filling.setdefault(number, _Filling(bytearray(self._length(number))))
        filling.content[at : at + piece.nbytes] = piece
        with self._lock:
            filling.filled += piece.nbytes
            is_full = filling.filled == len(filling.content)
            if is_full:
                del self._filling[number]
        if is_full:
            with memoryview(filling.content) as view:
                self._send(number, view)

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        target = self._target
        numbers = range(1, self._number(target.bytes - 1) + 1)
        if self._is_lost:
            self._is_over = True
            raise taken(target.where)
        if self._is_over or any(number not in self._done for number in numbers):
            raise StorageError(f"{target.where}: the delivery is over, or not all was handed over")
        lengths = [(self._values[number], self._length(number)) for number in numbers]
        whole = target.checksum.whole(lengths)
        found = self._complete(list(numbers), whole, is_conditional=target.is_conditional)
        self._is_over = True
        return found.stat, proof_of(target, found, whole)

    def abandon(self) -> None:
        self._is_over = True
        self._filling.clear()

    def discard(self) -> None:
        if not self._is_over:
            self.abandon()
            target = self._target
            abort(target.bucket, target.key, self._upload.upload_id, target.where)

    @property
    def _identity(self) -> dict[str, str]:
        target = self._target
        return {
            **target.metadata,
            "bytes": str(target.bytes),
            "part": str(self._part_bytes),
            "checksum": target.checksum.name,
        }

    def _begin(self) -> Begun:
        target = self._target
        metadata = {**target.metadata, NONCE: secrets.token_hex(16)}
        checksum = target.checksum
        return begin(target.bucket, target.key, target.where, metadata, self._identity, checksum)

    def _number(self, offset: int) -> int:
        return offset // self._part_bytes + 1

    def _length(self, number: int) -> int:
        return min(self._part_bytes, self._target.bytes - (number - 1) * self._part_bytes)

    def _keep(self, number: int, part: Part, value: int, *, resumed: int = 0) -> None:
        with self._lock:
            self._done[number], self._values[number] = part, value
            self._resumed += resumed

    def _send(self, number: int, piece: memoryview) -> None:
        if self._is_lost:
            return
        target, checksum = self._target, self._target.checksum
        value = checksum.of(piece)
        text = checksum.text(value)

        def send() -> str:
            body = Body(piece)
            try:
                answer = target.bucket.client.upload_part(
                    Bucket=target.bucket.name,
                    Key=target.key,
                    UploadId=self._upload.upload_id,
                    PartNumber=number,
                    Body=body.as_boto,
                    ChecksumAlgorithm=checksum.name,
                    **{checksum.member: text},  # type: ignore[arg-type]
                )
            finally:
                with self._lock:
                    self._sent += body.sent_bytes
            return answer["ETag"].strip('"')

        try:
            etag = target.bucket.call(target.where, send)
        except NoSuchUpload as error:
            if self._look() is None:
                raise _gone(target) from error
            self._is_lost = True
            return
        self._keep(number, Part(number, piece.nbytes, etag, text), value)

    def _complete(self, numbers: list[int], whole: int, *, is_conditional: bool) -> Head:
        target, checksum = self._target, self._target.checksum
        if not is_conditional and (found := self._look()):
            return self._settle(found, was_tried=False)
        extra = {checksum.member: checksum.text(whole)}
        extra |= {"IfNoneMatch": "*"} if is_conditional else {}
        listed = [self._completed(number) for number in numbers]
        tries, etag = 0, ""

        def complete() -> None:
            nonlocal tries, etag
            tries += 1
            answer = target.bucket.client.complete_multipart_upload(
                Bucket=target.bucket.name,
                Key=target.key,
                UploadId=self._upload.upload_id,
                MultipartUpload={"Parts": listed},
                MpuObjectSize=target.bytes,
                ChecksumType="FULL_OBJECT",
                **extra,  # type: ignore[arg-type]
            )
            etag = answer.get("ETag", "").strip('"')

        try:
            target.bucket.call(target.where, complete, lasting=(Conflict,))
        except Conflict as error:  # Amazon: such an upload cannot be completed any more
            self.discard()
            raise _gone(target) from error
        except Unsupported:
            if not is_conditional:
                raise
            return self._complete(numbers, whole, is_conditional=False)
        except (Unmet, NoSuchUpload, TransientStorageError) as error:
            if found := self._look():
                return self._settle(found, was_tried=tries > 1 or not _is_told(error))
            if isinstance(error, NoSuchUpload):
                raise _gone(target) from error
            raise
        stored = head(target.bucket, target.key, target.where, checksums=True)
        if not self._is_same(stored) and stored.etag != etag:
            raise overwritten(target.where)
        return stored

    def _completed(self, number: int) -> CompletedPartTypeDef:
        checksum = self._target.checksum
        part: CompletedPartTypeDef = {"PartNumber": number, "ETag": self._done[number].etag}
        text = checksum.text(self._values[number])
        return {**part, checksum.member: text}  # type: ignore[misc]

    def _look(self) -> Head | None:
        target = self._target
        return head_or_none(target.bucket, target.key, target.where, checksums=True)

    def _settle(self, found: Head, *, was_tried: bool) -> Head:
        """The object that stands there: ours where an answer may have been lost; else raise."""
        if was_tried and self._is_same(found):
            return found
        self.discard()
        raise taken(self._target.where)

    def _is_same(self, found: Head) -> bool:
        """Whether an object came of this upload, as far as what travels with it tells."""
        nonce = self._upload.nonce
        if nonce is not None:
            return found.metadata.get(NONCE) == nonce
        # Begun by an earlier process for the very same file.
        rest = {name: text for name, text in found.metadata.items() if name != NONCE}
        return rest == self._target.metadata and found.bytes == self._target.bytes


class _Filling:
    """A part of several pieces until it is full."""

    __slots__ = ("content", "filled")

    def __init__(self, content: bytearray) -> None:
        self.content = content
        self.filled = 0


def _is_told(error: StorageError) -> bool:
    """Whether the store said no; otherwise it may have done what was asked."""
    return not isinstance(error, TransientStorageError)


def _gone(target: Target) -> TransientStorageError:
    return TransientStorageError(
        f"{target.where}: the multipart upload was ended by someone else",
        hint="send the file again",
    )
