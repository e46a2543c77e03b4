"""The ``Storage`` contract on a bucket of an S3 store.

Keys are ``<prefix>/<path>``, each path percent-encoded. There are no directories, no links and no
modes of directories: a directory is the common beginning of keys, it is there while a key begins
so, and making, syncing or removing one does nothing but look at the path. A key may be a file and
the beginning of others at once, which no file system has: it is listed and looked at as the file,
and what lies below stays reachable. Keys that no path of ours has are listed as ``OTHER`` under
their raw last name and never opened; zero-byte keys that end in a slash are nothing.

A file is one state of a key: its token is size and ETag (and version where the bucket keeps them),
and an open file never mixes two states. Stores differ; nothing is assumed of an ETag's digits, the
order of a listing, or the number of keys it claims. Single calls are tried again here, so no
wrapper needs to.
"""

from __future__ import annotations

import errno
import os
import random as _random
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ckptgov.errors import StaleState, StorageError, TransientStorageError, UsageError
from ckptgov.model.clock import Clock, SystemClock
from ckptgov.model.files import Attributes, FileStat, Token
from ckptgov.storage._entries import require_token
from ckptgov.storage._keyed import KeyedStorage
from ckptgov.storage._paths import split
from ckptgov.storage._s3_bucket import Bucket, is_amazon, make_client
from ckptgov.storage._s3_checksum import Checksum, preferred
from ckptgov.storage._s3_delivery import PartsDelivery
from ckptgov.storage._s3_errors import NoSuchUpload, Unmet, Unsupported, answer_of
from ckptgov.storage._s3_keys import parse_url
from ckptgov.storage._s3_listing import Part, level, parts, uploads
from ckptgov.storage._s3_looking import Looking
from ckptgov.storage._s3_object import (
    NONCE,
    Head,
    delete,
    described,
    head_or_none,
    put,
)
from ckptgov.storage._s3_probed import Probed
from ckptgov.storage._s3_put import put_new, taken
from ckptgov.storage._s3_target import Target
from ckptgov.storage._s3_uploads import MAX_PARTS, abort
from ckptgov.storage._s3_whole import WholeDelivery
from ckptgov.storage.backoff import RetryPolicy
from ckptgov.storage.contract import Delivery, PendingDelivery, Traits
from ckptgov.storage.mounts import FileSystem

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

PART_BYTES = 64 * 2**20
_LEAST_PART_BYTES = 5 * 2**20  # Amazon takes no smaller part but the last
_JOINED_BYTES = 256 * 2**20
_CLOCK, _POLICY = SystemClock(), RetryPolicy()


class S3Storage(Looking, Probed, KeyedStorage):
    """A tree of files beneath ``s3://bucket/prefix``. Threads may share it.

    Credentials, region and endpoint come by the usual AWS chain; ``endpoint`` goes before it.
    ``conditional``: the store keeps ``If-None-Match``; without, a taken key is only looked for.
    ``checksums_verified``: it was seen to refuse wrong checksums; only then a delivery says so.
    ``sign_payload``: by default over plain HTTP only. ``on_push_back`` is called at each answer
    that asks for less.

    Raises:
        UsageError: the URL or ``part_bytes`` (at least 5 MiB) makes no sense.
        StorageError: the AWS settings make no sense.
    """

    retries_itself = True

    def __init__(
        self,
        url: str,
        *,
        endpoint: str | None = None,
        client: S3Client | None = None,
        clock: Clock = _CLOCK,
        random: Callable[[], float] = _random.random,
        policy: RetryPolicy = _POLICY,
        part_bytes: int = PART_BYTES,
        read_timeout_s: float = 60.0,
        sign_payload: bool | None = None,
        conditional: bool = True,
        checksums_verified: bool = False,
        checksum: Checksum | None = None,
    ) -> None:
        if part_bytes < _LEAST_PART_BYTES:
            raise UsageError(f"parts of {part_bytes} bytes: a store takes 5 MiB or more")
        self._keys = parse_url(url)
        client = client or make_client(
            endpoint, read_timeout_s=read_timeout_s, sign_payload=sign_payload
        )
        self._bucket = Bucket(client, self._keys.bucket, clock=clock, random=random, policy=policy)
        self._part_bytes = part_bytes
        self._conditional = conditional
        self._verified = checksums_verified
        self._checksum = checksum or preferred()

    def rely_on(self, *, conditional: bool, checksums_verified: bool) -> None:
        """What the store was seen to do, for deliveries that begin from now on."""
        self._conditional, self._verified = conditional, checksums_verified

    @property
    def traits(self) -> Traits:
        return Traits(
            has_directories=False,
            has_links=False,
            piece_bytes=self._part_bytes,
            parallel_pieces=4,
        )

    @property
    def on_push_back(self) -> Callable[[], None]:
        """Called at each 503 SlowDown or 429, from whichever thread met it."""
        return self._bucket.on_push_back

    @on_push_back.setter
    def on_push_back(self, listener: Callable[[], None]) -> None:
        self._bucket.on_push_back = listener

    def publish(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        key, where = self._key(path), self._keys.where(path)
        if head_or_none(self._bucket, key, where):
            raise taken(where)
        content = self._joined(chunks, where)
        found, _ = put_new(
            self._bucket,
            key,
            where,
            content,
            {NONCE: secrets.token_hex(16)},
            self._checksum.checked(self._checksum.of(content)),
            is_conditional=self._conditional,
        )
        return found.stat

    def replace(self, path: str, chunks: Iterable[bytes]) -> FileStat:
        before, where = self._head(path), self._keys.where(path)
        content = self._joined(chunks, where)
        condition = {"IfMatch": f'"{before.etag}"'} if self._conditional else {}
        metadata = {**before.metadata, NONCE: secrets.token_hex(16)}
        checked = self._checksum.checked(self._checksum.of(content))
        sent = (self._bucket, self._key(path), where, content, metadata, checked)
        try:
            found, _ = put(*sent, condition)
        except Unsupported:
            found, _ = put(*sent, {})
        except Unmet as error:
            raise TransientStorageError(
                f"{where}: was replaced by someone else meanwhile", hint="look at it again"
            ) from error
        return found.stat

    def remove(self, path: str, *, only: Token | None = None) -> None:
        key, where = self._key(path), self._keys.where(path)
        found = self._head(path)
        require_token(found.stat, only, where)
        self._delete(key, where, found, is_bound=only is not None)
        if not found.version_id:
            return
        # Under an older version: the name must go too, and its bytes are not ours to free.
        shown = head_or_none(self._bucket, key, where)
        if shown and (only is None or shown.modified_ns <= found.modified_ns):
            self._delete(key, where, None)

    def remove_dir(self, path: str) -> None:
        where = self._keys.where(path)
        if not split(path):
            raise StorageError(f"{where}: the root is never removed")
        found = level(self._bucket, self._keys.below(path), where)
        if found.files or found.directories or found.others:
            raise StorageError(f"{where}: not empty")
        if head_or_none(self._bucket, self._keys.key(path), where):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where)

    def receive(
        self,
        path: str,
        size_bytes: int,
        *,
        attributes: Attributes | None = None,
        digest: str | None = None,
    ) -> Delivery:
        key, where = self._key(path), self._keys.where(path)
        if head_or_none(self._bucket, key, where):
            raise taken(where)
        target = Target(
            bucket=self._bucket,
            key=key,
            where=where,
            bytes=size_bytes,
            metadata=described(attributes, digest),
            checksum=self._checksum,
            is_conditional=self._conditional,
            is_verified=self._verified,
        )
        if size_bytes <= self._part_bytes:
            return WholeDelivery(target)
        part_bytes = self._part_bytes
        while part_bytes * MAX_PARTS < size_bytes:
            part_bytes *= 2
        return PartsDelivery(target, part_bytes=part_bytes, piece_bytes=self._part_bytes)

    def pending(self, directory: str) -> Sequence[PendingDelivery]:
        where = self._keys.where(directory)
        found = []
        for upload in uploads(self._bucket, self._keys.below(directory), where):
            path = self._keys.path(upload.key)
            if path is None:
                continue  # not ours to judge
            there = parts(self._bucket, upload.key, upload.upload_id, where)
            found.append(
                PendingDelivery(
                    path=path,
                    handle=upload.upload_id,
                    bytes=_bytes_there(there),
                    started_at_ns=upload.started_at_ns,
                )
            )
        return found

    def forget(self, pending: PendingDelivery) -> None:
        where = self._keys.where(pending.path)
        abort(self._bucket, self._key(pending.path), pending.handle, where)

    def filesystem(self) -> FileSystem:
        self._require_bucket()
        endpoint = self._bucket.client.meta.endpoint_url
        host = urlsplit(endpoint).netloc.rpartition("@")[2]
        return FileSystem(
            type="s3",
            source=self.root if is_amazon(endpoint) else f"{self.root}@{host}",
            mount_point="",
            is_network=True,
            granularity_ns=0,
        )

    def close(self) -> None:
        self._bucket.client.close()

    def _joined(self, chunks: Iterable[bytes], where: str) -> memoryview:
        content = bytearray()
        for chunk in chunks:
            content += chunk
            if len(content) > _JOINED_BYTES:
                raise StorageError(f"{where}: larger than what is published at once (256 MiB)")
        return memoryview(content)

    def _delete(self, key: str, where: str, found: Head | None, *, is_bound: bool = False) -> None:
        version_id = found.version_id if found else None
        # A version is never another one; without versions the store compares, where it can.
        etag = found.etag if found and is_bound and not version_id and self._conditional else None
        try:
            delete(self._bucket, key, where, version_id, etag)
        except Unmet as error:
            raise StaleState(f"{where}: another object has this key by now; left alone") from error
        except StorageError as error:
            if found is None or not found.is_locked or answer_of(error)[1] != 403:
                raise
            raise StorageError(
                f"{where}: an object lock or a legal hold keeps it",
                hint="let the retention time pass, or let whoever set the hold lift it",
            ) from error


def _bytes_there(there: Iterable[Part]) -> int:
    try:
        return sum(part.bytes for part in there)
    except NoSuchUpload:  # ended since the listing
        return 0
