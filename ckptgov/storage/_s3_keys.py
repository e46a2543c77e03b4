"""Paths of the contract <-> keys of a bucket, and the URL that names the root."""

from __future__ import annotations

import os
import re

from msgspec import Struct

from ckptgov.errors import UsageError
from ckptgov.storage._paths import printable, split

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~/=-")
_ENCODED = [chr(byte) if byte in _SAFE else f"%{byte:02x}" for byte in range(256)]
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


class Keys(Struct, frozen=True, kw_only=True):
    """Where the tree lies. ``prefix`` is as the store has it: empty, or with a slash at its end."""

    bucket: str
    prefix: str

    @property
    def root(self) -> str:
        """The root as an ``s3://`` URL, without a trailing slash."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, path: str) -> str:
        """The key of a file. Raises PathEscapes as ``split`` does."""
        return self.prefix + encode("/".join(split(path)))

    def below(self, path: str) -> str:
        """What the keys beneath a directory begin with; ``""`` for all of a whole bucket."""
        return f"{self.key(path)}/" if path else self.prefix

    def path(self, key: str) -> str | None:
        """The path that has this key; None for a key that no path of ours has."""
        return decode(key.removeprefix(self.prefix)) if key.startswith(self.prefix) else None

    def where(self, path: str) -> str:
        """A path for people."""
        return printable(f"{self.root}/{path}" if path else self.root)


def parse_url(url: str) -> Keys:
    """``s3://bucket`` or ``s3://bucket/prefix``; the prefix is taken as it stands.

    Raises:
        UsageError: it is no such URL, or the prefix has empty, ``.`` or ``..`` parts.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.rstrip("/").partition("/")
    parts = prefix.split("/") if prefix else []
    if scheme != "s3" or not _BUCKET.fullmatch(bucket) or {"", ".", ".."} & set(parts):
        raise UsageError(f"{printable(url)}: not an S3 address", hint="write s3://bucket/prefix")
    return Keys(bucket=bucket, prefix=f"{prefix}/" if prefix else "")


def encode(path: str) -> str:
    """Every byte outside ``A-Za-z0-9._~/=-`` as ``%xx``, lower case."""
    return "".join(map(_ENCODED.__getitem__, os.fsencode(path)))


def decode(text: str) -> str | None:
    """The path that ``encode`` wrote so; None for any other spelling, and for what is no path."""
    first, *rest = text.split("%")
    try:
        raw = first.encode("ascii")
        for piece in rest:
            raw += bytes.fromhex(piece[:2]) + piece[2:].encode("ascii")
    except ValueError:
        return None
    path = os.fsdecode(raw)
    is_plain = "\0" not in path and {"", ".", ".."}.isdisjoint(path.split("/"))
    return path if is_plain and encode(path) == text else None
