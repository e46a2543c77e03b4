"""A small file on its way into a bucket: one request."""

from __future__ import annotations

import secrets

from ckptgov.errors import StorageError
from ckptgov.model.files import FileStat
from ckptgov.storage._keyed import OnceDelivery
from ckptgov.storage._s3_object import NONCE
from ckptgov.storage._s3_put import put_new
from ckptgov.storage._s3_target import Target, proof_of
from ckptgov.storage.contract import ArrivalProof


class WholeDelivery(OnceDelivery):
    """A file small enough for one request, which ``finish`` sends. Nothing of it can be resumed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._content: bytearray | None = bytearray(target.bytes)
        self._pieces: dict[int, int] = {}
        self._sent = 0

    @property
    def sent_bytes(self) -> int:
        return self._sent

    def write(self, offset: int, piece: memoryview) -> None:
        content = self._content
        if content is None or offset + piece.nbytes > len(content):
            raise StorageError(f"{self._target.where}: a piece beyond the end, or after the end")
        content[offset : offset + piece.nbytes] = piece
        self._pieces[offset] = piece.nbytes

    def finish(self) -> tuple[FileStat, ArrivalProof]:
        target, content = self._target, self._content
        if content is None or sum(self._pieces.values()) != target.bytes:
            raise StorageError(f"{target.where}: the delivery is over, or not all was handed over")
        metadata = {**target.metadata, NONCE: secrets.token_hex(16)}
        with memoryview(content) as view:
            value = target.checksum.of(view)
            found, self._sent = put_new(
                target.bucket,
                target.key,
                target.where,
                view,
                metadata,
                target.checksum.checked(value),
                is_conditional=target.is_conditional,
            )
        self._content = None
        return found.stat, proof_of(target, found, value)

    def abandon(self) -> None:
        self._content = None

    def discard(self) -> None:
        self._content = None
