"""Putting a new object where none is, also on stores that do not know how to refuse a taken key."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from ckptgov.storage._s3_bucket import Bucket
from ckptgov.storage._s3_errors import Unmet, Unsupported
from ckptgov.storage._s3_listing import any_below
from ckptgov.storage._s3_object import Head, head_or_none, put


def put_new(
    bucket: Bucket,
    key: str,
    where: str,
    content: memoryview,
    metadata: dict[str, str],
    checked: Mapping[str, str],
    *,
    is_conditional: bool,
) -> tuple[Head, int]:
    """Store an object under a free key; what stands there, and the bytes sent for it.

    Without conditional writes a writer between the look and the put is overwritten.

    Raises:
        FileExistsError: the key is taken.
    """
    condition = {"IfNoneMatch": "*"} if is_conditional else {}
    if not is_conditional and head_or_none(bucket, key, where):
        raise taken(where)
    try:
        return put(bucket, key, where, content, metadata, checked, condition)
    except Unmet as error:
        # A store on a file system has no room for a key that others begin with.
        if head_or_none(bucket, key, where) or any_below(bucket, f"{key}/", where):
            raise taken(where) from error
        raise
    except Unsupported:
        if not condition:
            raise
        return put_new(bucket, key, where, content, metadata, checked, is_conditional=False)


def taken(where: str) -> FileExistsError:
    """The key is another's."""
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where)
