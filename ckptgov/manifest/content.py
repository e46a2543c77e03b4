"""The content id: what makes two copies one checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import attrgetter

from ckptgov.manifest.names import raw_path
from ckptgov.model.checkpoint import Shard


def content_id(shards: Iterable[Shard]) -> str:
    r"""``sha256:<64 hex>`` over the shards, in whatever order they come.

    The digest is over ``ckptgov-content-1\n`` and then, for each shard by raw path bytes,
    ``<decimal len(path)>:<path>\0<decimal bytes>\0<digest>\n``; path and its length are of the
    raw bytes, the digest has its ``xxh3_128:``. The path of a single-file checkpoint is empty.
    """
    rows = sort_shards(shards, "content id")
    if are_ascii(rows):
        lines = [f"{len(one.path)}:{one.path}\0{one.bytes}\0{one.digest}\n" for one in rows]
    else:
        lines = [_line(one) for one in rows]
    digest = hashlib.sha256(b"ckptgov-content-1\n")
    digest.update("".join(lines).encode("utf-8", "surrogateescape"))
    return f"sha256:{digest.hexdigest()}"


def sort_shards(shards: Iterable[Shard], where: str) -> list[Shard]:
    """By raw path bytes; ``where`` is for the message about a path that stands for none."""
    rows = list(shards)
    if are_ascii(rows):  # then text sorts as its bytes do
        return sorted(rows, key=attrgetter("path"))
    return sorted(rows, key=lambda shard: raw_path(shard.path, where))


def are_ascii(shards: Iterable[Shard]) -> bool:
    """Whether no path needs a closer look."""
    return "".join([shard.path for shard in shards]).isascii()


def _line(one: Shard) -> str:
    raw = raw_path(one.path, "content id")
    return f"{len(raw)}:{one.path}\0{one.bytes}\0{one.digest}\n"
