"""Tier URLs: which of them this build can use, and how a root is written as one."""

from __future__ import annotations

import os
import posixpath
import re
from urllib.parse import quote, unquote_to_bytes

from ckptgov.config.document import Item, shown

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE_URL = re.compile(r"file://(?:localhost)?(/.*)", re.IGNORECASE | re.DOTALL)


def root_of(item: Item) -> str:
    """The absolute directory of an absolute path or a ``file://`` URL, without doubled slashes.

    The file system is not asked: an unmounted or hanging root still loads.

    Raises:
        ConfigError: relative, "/" itself, with ``..``, or of a scheme this build cannot use.
    """
    url = item.text()
    path = _path_of(item, url)
    if not path.startswith("/"):
        raise item.wrong(
            f'"url" is {shown(path)}, a relative path', hint="write the absolute path of the root"
        )
    if ".." in path.split("/"):
        raise item.wrong('"url" holds a ".." part', hint="write the root without detours")
    root = "/" + posixpath.normpath(path).lstrip("/")
    if root == "/":
        raise item.wrong('"url" is "/": a tier needs a directory of its own')
    return root


def url_of(root: str) -> str:
    """A root as ``ckptgov.yaml`` can carry it: itself, or a ``file://`` URL where YAML cannot."""
    if root.isprintable():
        return root
    return "file://" + quote(os.fsencode(root))


def stands_in(path: str, root: str) -> bool:
    """Whether ``path`` is ``root`` or lies beneath it, by name alone."""
    return path == root or path.startswith(root + "/")


def _path_of(item: Item, url: str) -> str:
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    name = scheme[1].lower()
    if name != "file":
        raise item.wrong(
            f'"url" has the scheme {name}:, and this build moves bytes on POSIX tiers only',
            hint="use an absolute path or a file:// URL",
        )
    match = _FILE_URL.fullmatch(url)
    if match is None:
        raise item.wrong('"url" must read file:///absolute/path')
    rest = match[1]
    if "?" in rest or "#" in rest:
        raise item.wrong('"url" holds "?" or "#"; in a file:// URL write %3F or %23')
    path = os.fsdecode(unquote_to_bytes(rest))
    if "\0" in path:
        raise item.wrong('"url" holds a NUL character')
    return path
