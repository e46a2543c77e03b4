"""A manifest in the form that public tools check: ``xxhsum -c`` in the checkpoint's directory."""

from __future__ import annotations

from collections.abc import Iterator

from ckptgov.errors import UsageError
from ckptgov.manifest.names import shown
from ckptgov.model.checkpoint import Manifest


def xxhsum_lines(manifest: Manifest) -> Iterator[str]:
    """Lines without newline, ``<32 hex>  <path>``, as ``xxhsum -H2`` writes them (xxHash 0.8).

    To be checked in the checkpoint's directory; for a single-file checkpoint the path is its base
    name, to be checked beside it. Names that are not UTF-8 stay surrogate escapes and must be
    written as the bytes they are (``errors="surrogateescape"``); xxhsum takes any bytes but a
    newline.

    Raises:
        UsageError: a name holds a newline. It is raised before the first line is given out.
    """
    broken = [
        shard.path for shard in manifest.shards if "\n" in (shard.path or _base(manifest.name))
    ]
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise UsageError(
            f"xxhsum cannot carry the name {shown(broken[0] or manifest.name)}{more}",
            hint="ckptgov verify compares every name",
        )
    return (
        f"{shard.digest.removeprefix('xxh3_128:')}  {_name(shard.path or _base(manifest.name))}"
        for shard in manifest.shards
    )


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _name(path: str) -> str:
    # xxhsum takes this one name for its standard input.
    return f"./{path}" if path == "stdin" else path
