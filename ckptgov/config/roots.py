"""Tier URLs as configuration holds them, and how a root is written as one."""

from __future__ import annotations

import os
import posixpath
import re
from urllib.parse import quote, unquote_to_bytes

from ckptgov.config.document import Item, shown
from ckptgov.config.urls import is_url, normal_endpoint, normal_url
from ckptgov.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE_URL = re.compile(r"file://(?:localhost)?(/.*)", re.IGNORECASE | re.DOTALL)


def root_of(item: Item) -> str:
    """An absolute directory (of a path or a ``file://`` URL), or the URL of a store.

    The file system is not asked: an unmounted or hanging root still loads.

    Raises:
        ConfigError: relative, "/" itself, with ``..``, credentials, or an impossible URL.
    """
    url = item.text()
    if is_url(url):
        try:
            return normal_url(url)
        except UsageError as error:
            raise item.wrong(f'"url" {error.message}', hint=error.hint) from error
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
    if root.isprintable() or is_url(root):
        return root
    return "file://" + quote(os.fsencode(root))


def endpoint_of(item: Item) -> str:
    """The address of a store.

    Raises:
        ConfigError: no http:// or https:// address, or one with credentials.
    """
    try:
        return normal_endpoint(item.text())
    except UsageError as error:
        raise item.wrong(f'"endpoint" {error.message}', hint=error.hint) from error


def _path_of(item: Item, url: str) -> str:
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    name = scheme[1].lower()
    if name != "file":
        raise item.wrong(
            f'"url" begins with {name}: and is neither a path nor a URL',
            hint="write an absolute path, or scheme://name/… for a store",
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
