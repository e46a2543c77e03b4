"""URLs of stores as tier roots: one spelling each, nothing secret in them. Knows no YAML."""

from __future__ import annotations

import re

from ckptgov.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY_PART = re.compile(r"[A-Za-z0-9._~=-]+")
_ESCAPED_PART = re.compile(r"(?:[A-Za-z0-9._~=-]|%[0-9a-f]{2})+")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_MOST_PREFIX_BYTES = 512
"""Keys end at 1,024 bytes (Amazon S3 user guide, object keys); runs and shards need the rest."""

_NAMES_BEFORE_AT = frozenset(
    {"abfs", "abfss", "az", "ftp", "ftps", "hdfs", "sftp", "smb", "ssh", "webhdfs"}
)
"""Schemes in which a bare name before "@" is a container or a user, and no secret."""

_ELSEWHERE = {
    "local": "write the absolute path",
    "http": "an S3 store is s3://bucket/prefix with 'endpoint' (--endpoint URL)",
    "https": "an S3 store is s3://bucket/prefix with 'endpoint' (--endpoint URL)",
    "s3a": "write s3://",
    "s3n": "write s3://",
}


def is_url(text: str) -> bool:
    """Whether a root leads to a store through a library, rather than through the file system."""
    match = _URL.match(text)
    return match is not None and match[1].lower() != "file"


def normal_url(url: str, *, escapes: bool = False) -> str:
    """The one spelling of a store's URL: scheme in lower case, without a trailing slash.

    ``s3://bucket/prefix``: the bucket's name by the rules for general purpose buckets, the prefix
    of the characters that keys carry unescaped. With ``escapes`` the prefix may hold ``%xx`` as
    our keys are spelt. URLs of other schemes stay as they are written otherwise.

    Raises:
        UsageError: the message never repeats the URL, which may hold a secret.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError("is no URL", hint="write scheme://name/…")
    scheme, rest = match[1].lower(), match[2]
    if scheme in _ELSEWHERE:
        raise UsageError(f"{scheme}:// leads to no tier", hint=_ELSEWHERE[scheme])
    _refuse_secrets(scheme, rest)
    if "?" in rest or "#" in rest:
        raise UsageError('holds "?" or "#"', hint="a tier's URL has neither query nor fragment")
    if not rest.isprintable() or " " in rest or "\\" in rest:
        raise UsageError("holds a blank, a backslash or a control character")
    rest = rest.rstrip("/")
    name, _, path = rest.partition("/")
    if not rest:
        raise UsageError("names nothing behind ://", hint="write scheme://name/…")
    if path and any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError('holds an empty, "." or ".." part', hint="write it without detours")
    if name in (".", ".."):
        raise UsageError('holds a "." or ".." part', hint="write it without detours")
    if scheme == "s3":
        _check_s3(name, path, escapes=escapes)
    return f"{scheme}://{rest}"


def normal_endpoint(text: str) -> str:
    """A store's address, ``http://`` or ``https://`` host, port and path, without trailing slash.

    Raises:
        UsageError: anything else; the message never repeats it.
    """
    match = _URL.fullmatch(text)
    scheme = match[1].lower() if match is not None else ""
    if match is None or scheme not in ("http", "https"):
        raise UsageError("is no http:// or https:// address", hint="write http://host:port")
    rest = match[2].rstrip("/")
    _refuse_secrets("s3", rest)
    host, _, path = rest.partition("/")
    if not _HOST.fullmatch(host) or (path and not re.fullmatch(r"[A-Za-z0-9._~/-]+", path)):
        raise UsageError("is no address of a host", hint="write http://host:port")
    host = host.lower().removesuffix(":80" if scheme == "http" else ":443")
    return f"{scheme}://{host}/{path}" if path else f"{scheme}://{host}"


def stands_in(path: str, root: str) -> bool:
    """Whether a path or URL is ``root`` or lies beneath it, by name alone."""
    return path == root or path.startswith(root + "/")


def _refuse_secrets(scheme: str, rest: str) -> None:
    before, at, _ = rest.partition("@")
    # A secret key may hold "/", so what follows the name counts as well.
    if not at or ("/" in before and ":" not in before):
        return
    if scheme in _NAMES_BEFORE_AT and re.fullmatch(r"[A-Za-z0-9._-]+", before):
        return
    hint = "keep credentials where the library looks for them: its environment or files of its own"
    if scheme == "s3":
        hint = "keep credentials in the usual AWS places: environment, profile, instance role"
    raise UsageError("holds credentials, which belong into no URL", hint=hint)


def _check_s3(bucket: str, prefix: str, *, escapes: bool) -> None:
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise UsageError(
            "names no possible bucket",
            hint="3 to 63 lower-case letters, digits, dots and hyphens: s3://bucket/prefix",
        )
    part_form = _ESCAPED_PART if escapes else _KEY_PART
    if prefix and not all(part_form.fullmatch(part) for part in prefix.split("/")):
        raise UsageError(
            "holds a character that keys of ours carry escaped only",
            hint="letters, digits and . _ ~ = - may stand in a prefix",
        )
    if len(prefix) > _MOST_PREFIX_BYTES and not escapes:
        raise UsageError(f"has a prefix longer than {_MOST_PREFIX_BYTES} bytes")
