"""What a delivery is to leave in a bucket, and what the store showed of it."""

from __future__ import annotations

from msgspec import Struct

from ckptgov.errors import StorageError
from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_checksum import Checksum
from ckptgov.storage._s3_object import Head, delete
from ckptgov.storage.contract import ArrivalProof


class Target(Struct, frozen=True, kw_only=True):
    """What is to stand where in the end. ``metadata`` is without a nonce."""

    bucket: Bucket
    key: str
    where: str
    bytes: int
    metadata: dict[str, str]
    checksum: Checksum
    is_conditional: bool  # the store keeps If-None-Match
    is_verified: bool  # it was seen to refuse wrong checksums


def proof_of(target: Target, found: Head, value: int) -> ArrivalProof:
    """What a store that keeps our checksum beside the object has shown.

    Raises:
        StorageError: it keeps another one, so other bytes arrived; they were removed again.
    """
    stored = found.checksums.get(target.checksum.member)
    if stored is None or found.checksums.get("ChecksumType") == "COMPOSITE":
        return ArrivalProof.NONE
    if stored != target.checksum.text(value):
        delete(target.bucket, target.key, target.where, found.version_id)
        raise StorageError(
            f"{target.where}: the store's checksum of the object is not that of what was sent",
            hint="send it again; look at network, proxies and the store",
        )
    return ArrivalProof.CHECKSUM if target.is_verified else ArrivalProof.NONE
