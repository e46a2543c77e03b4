"""From a tier's root, as configuration writes it, to its storage."""

from __future__ import annotations

from ckptgov.storage.contract import Storage
from ckptgov.storage.posix import PosixStorage

STALL_S = 120.0


def open_storage(root: str, *, endpoint: str | None = None, stall_s: float = STALL_S) -> Storage:
    """The storage at an absolute path, an ``s3://`` URL, or any URL that fsspec knows.

    A call of an object store that stays silent for half of ``stall_s`` (at most a minute) is tried
    again, until it was tried for some five times ``stall_s`` at most.

    Raises:
        FileNotFoundError, NotADirectoryError: a path that is no directory.
        StorageError: the scheme is unknown, or its library is missing.
    """
    scheme, separator, _ = root.partition("://")
    if not separator:
        return PosixStorage(root)
    if scheme == "s3":
        from ckptgov.storage.backoff import RetryPolicy  # boto3: dear to import
        from ckptgov.storage.s3 import S3Storage

        return S3Storage(
            root,
            endpoint=endpoint,
            read_timeout_s=min(60.0, stall_s / 2),
            policy=RetryPolicy(elapsed_s=min(300.0, 3 * stall_s)),
        )
    from ckptgov.storage.fsspec_storage import FsspecStorage

    return FsspecStorage(root)
