"""The content id: what makes two copies one checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import itemgetter

from ckptgov.manifest.names import raw_path
from ckptgov.model.checkpoint import Shard


def content_id(shards: Iterable[Shard]) -> str:
    r"""``sha256:<64 hex>`` over the shards, in whatever order they come.

    The digest is over ``ckptgov-content-1\n`` and then, for each shard by raw path bytes,
    ``<decimal len(path)>:<path>\0<decimal bytes>\0<digest>\n``; path and its length are of the
    raw bytes, the digest has its ``xxh3_128:``. The path of a single-file checkpoint is empty.
    """
    rows = [(raw_path(shard.path, "content id"), shard) for shard in shards]
    rows.sort(key=itemgetter(0))
    text = "".join([f"{len(raw)}:{one.path}\0{one.bytes}\0{one.digest}\n" for raw, one in rows])
    digest = hashlib.sha256(b"ckptgov-content-1\n")
    digest.update(text.encode("utf-8", "surrogateescape"))
    return f"sha256:{digest.hexdigest()}"
