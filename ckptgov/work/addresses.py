"""Addresses of places and of what lies in them: absolute paths and URLs under one set of calls.

An address is normalised (``work.locate.normal_path``): a path is absolute, a URL is as
``config.urls`` spells it. In an ``s3://`` URL names are percent-encoded, as they are in keys; in
other URLs and in paths they stand as they are. Nothing is looked up but by ``real`` and ``exists``.
"""

from __future__ import annotations

import os

from ckptgov.manifest.names import percent_decode, percent_encode


def is_url(address: str) -> bool:
    """Whether it leads to a store rather than into the file system."""
    return "://" in address


def join(root: str, below: str) -> str:
    """The address of a relative path below a root; the root itself for ``""``."""
    if not below:
        return root
    if root.startswith("s3://"):
        below = percent_encode(below, root)
    return f"{root.rstrip('/')}/{below}"


def relative(address: str, root: str) -> str | None:
    """The relative path of an address at (``""``) or below a root; None for any other.

    By name alone: both are to be ``real`` where symlinks may matter.
    """
    if address == root:
        return ""
    beginning = root if root.endswith("/") else root + "/"
    if not address.startswith(beginning):
        return None
    below = address.removeprefix(beginning)
    return percent_decode(below, root) if root.startswith("s3://") else below


def top(address: str) -> str:
    """The topmost address above: ``/``, or a store's scheme and name (its bucket, its host)."""
    if not is_url(address):
        return "/"
    scheme, _, rest = address.partition("://")
    name, _, path = rest.partition("/")
    if not name:  # hdfs:///first/second
        name = "/" + path.partition("/")[0]
    return f"{scheme}://{name}"


def parent(address: str) -> str:
    """The address above; the top has itself."""
    if not is_url(address):
        return os.path.dirname(address)
    return address if address == top(address) else address.rpartition("/")[0]


def name_of(address: str) -> str:
    """The last part; of a store's top its name, of ``/`` nothing."""
    return relative(address, parent(address)) or address.rpartition("/")[2]


def real(address: str) -> str:
    """Without symlinks. A URL has none."""
    return address if is_url(address) else os.path.realpath(address)


def unescaped_root(address: str) -> str:
    """The address itself or the nearest one above that a store can be opened at.

    Roots hold characters only that keys carry as they are.
    """
    while address.startswith("s3://") and "%" in address:
        address = parent(address)
    return address
