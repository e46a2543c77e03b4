"""Arrays of shards: each element on its own line at column 0.

The array is ``[``, newline, the elements joined by comma and newline, newline, ``]``; sorted by raw
path bytes, never empty, at most 1,000,000 elements. A path comes once; the empty one, of a
single-file checkpoint, stands alone.

Reading is in two steps for speed and bounded memory: a pattern takes each line that looks like an
element and nothing else from the text, the caller writes what was taken again and compares. Only
when something is wrong the lines are read one by one as JSON to say which member it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from ckptgov.errors import Malformed
from ckptgov.manifest import names
from ckptgov.manifest.forms import fields
from ckptgov.manifest.forms.fields import MAX_COUNT, Cursor, Field, Member, PathMember, refuse
from ckptgov.manifest.forms.frame import SMALL_BYTES, check_same, parse_object, quote
from ckptgov.model.checkpoint import CHUNK_BYTES, Shard
from ckptgov.model.files import Token

MAX_SHARDS = 1_000_000
OPENING = ',"shards":['

Table = tuple[Field, ...]

SHARD_FIELDS: Table = (
    PathMember("path", may_be_empty=True),
    Member("bytes", fields.count),
    Member("digest", fields.digest),
    Member("chunks", fields.list_of(fields.digest), is_optional=True, absent=()),
)
TOKEN_FIELDS: Table = (
    PathMember("path", may_be_empty=True),
    Member("bytes", fields.count),
    Member("mtime_ns", fields.count),
    Member("ctime_ns", fields.count),
    Member("inode", fields.inode),
)
OBJECT_FIELDS: Table = (
    PathMember("path", may_be_empty=True),
    Member("bytes", fields.count),
    Member("etag", fields.label),
    Member("version_id", fields.label, is_optional=True),
)
"""A token on an object tier. One receipt is of one place, so its rows are all of one kind."""
_STRING = r'([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)'  # possessive: no memory for ways back
_COUNT = "(0|[1-9][0-9]{0,19})"
# Compiled when first used: a process that reads no shards has no time for it.
_SHARD = (
    rf'^\{{"(path|path_pct)":"{_STRING}","bytes":{_COUNT},"digest":"([^"\n]*)"'
    r'(?:,"chunks":\["([^\]\n]*)"\])?\}(?=,?$)'
)
_TOKEN = (
    rf'^\{{"(path|path_pct)":"{_STRING}","bytes":{_COUNT},"mtime_ns":{_COUNT},"ctime_ns":{_COUNT},'
    rf'"inode":{_COUNT}\}}(?=,?$)'
)
_OBJECT = (
    rf'^\{{"(path|path_pct)":"{_STRING}","bytes":{_COUNT},"etag":"{_STRING}"'
    rf'(?:,"version_id":"{_STRING}")?\}}(?=,?$)'
)


def shards_text(shards: Sequence[Shard], where: str) -> str:
    """The array of a manifest or part, from ``,"shards":[`` to its ``]``; checks every shard."""
    paths = [shard.path for shard in shards]
    _check_paths(paths, where)
    is_digest = fields.is_digest
    if not names.are_ordinary(paths):
        return _array([_shard_line(shard, where, n) for n, shard in enumerate(shards, 1)])
    return _array(
        [
            f'{{"path":"{shard.path}","bytes":{size},"digest":"{shard.digest}"}}'
            if type(size := shard.bytes) is int
            and 0 <= size <= CHUNK_BYTES
            and not shard.chunks
            and is_digest(shard.digest)
            else _shard_line(shard, where, n)
            for n, shard in enumerate(shards, 1)
        ]
    )


def tokens_text(tokens: Sequence[tuple[str, Token]], where: str) -> str:
    """The array of a receipt, likewise."""
    paths = [path for path, _ in tokens]
    _check_paths(paths, where)
    kinds = {token.etag is None for _, token in tokens}
    if len(kinds) > 1:
        refuse(f'{where}: member "shards"', "tokens of a file system and of an object store")
    if not names.are_ordinary(paths) or kinds == {False}:
        return _array([_token_line(*row, where, n) for n, row in enumerate(tokens, 1)])
    return _array(
        [
            f'{{"path":"{path}","bytes":{size},"mtime_ns":{mtime_ns},'
            f'"ctime_ns":{ctime_ns},"inode":{inode}}}'
            if type(size := token.bytes) is int
            and type(mtime_ns := token.mtime_ns) is int
            and type(ctime_ns := token.ctime_ns) is int
            and type(inode := token.inode) is int
            and 0 <= size <= MAX_COUNT
            and 0 <= mtime_ns <= MAX_COUNT
            and 0 <= ctime_ns <= MAX_COUNT
            and 0 <= inode <= MAX_COUNT
            else _token_line(path, token, where, n)
            for n, (path, token) in enumerate(tokens, 1)
        ]
    )


def split(raw: bytes, end: int, where: str) -> tuple[bytes, str]:
    """The members before ``shards`` (without closing brace), and the lines of the array."""
    first = raw.find(b"\n", 0, end)
    if not raw.startswith(b"\n]", end - 2) or first > end - 3:
        refuse(f'{where}: member "shards"', 'missing, or not the last member before "self"')
    try:
        return head_of(raw, end, where), raw[first + 1 : end - 2].decode("ascii")
    except UnicodeDecodeError as error:
        refuse(f'{where}: member "shards"', f"not ASCII: {error}")


def head_of(raw: bytes, end: int, where: str) -> bytes:
    """The members before ``shards``, without closing brace; looks at nothing behind them."""
    # No newline is ever inside a string, so the first one is the array's.
    opening = OPENING.encode()
    first = raw.find(b"\n", 0, min(end, SMALL_BYTES + len(opening) + 1))
    if first < 0 or not raw.startswith(opening, first - len(opening)):
        refuse(f'{where}: member "shards"', "missing, or not on lines of its own")
    return raw[: first - len(opening)]


def read_shards(text: str, where: str) -> tuple[Shard, ...]:
    """Shards from the lines of an array, without brackets. The caller confirms."""
    return tuple(
        [
            Shard(
                path if key == "path" and "\\" not in path else _path_of(key, path, where, n),
                int(size),
                digest,
                tuple(chunks.split('","')) if chunks else (),
            )
            for n, (key, path, size, digest, chunks) in enumerate(_found(text, _SHARD, where), 1)
        ]
    )


def read_tokens(text: str, where: str) -> tuple[tuple[str, Token], ...]:
    """Paths with their tokens, likewise."""
    if is_of_objects(text):
        return _read_objects(text, where)
    return tuple(
        [
            (
                path if key == "path" and "\\" not in path else _path_of(key, path, where, n),
                Token(int(size), int(mtime), int(ctime), int(inode)),
            )
            for n, (key, path, size, mtime, ctime, inode) in enumerate(
                _found(text, _TOKEN, where), 1
            )
        ]
    )


def is_of_objects(text: str) -> bool:
    """Whether the lines of a receipt are of an object tier, as the first of them tells."""
    first = text.partition("\n")[0]
    return re.match(_TOKEN, first) is None and '","bytes":' in first and ',"etag":"' in first


def token_table(text: str) -> Table:
    """The fields of a receipt's rows."""
    return OBJECT_FIELDS if is_of_objects(text) else TOKEN_FIELDS


def _read_objects(text: str, where: str) -> tuple[tuple[str, Token], ...]:
    return tuple(
        [
            (
                _path_of(key, path, where, n),
                Token(
                    int(size),
                    0,
                    0,
                    0,
                    _text_of(etag, where, n),
                    _text_of(version, where, n) if version else None,
                ),
            )
            for n, (key, path, size, etag, version) in enumerate(_found(text, _OBJECT, where), 1)
        ]
    )


def confirm(
    raw: bytes, again: Callable[[], bytes], *, lines: str, table: Table, where: str
) -> None:
    """Refuse ``raw`` unless ``again``, what was taken from it and written anew, is the same."""
    try:
        written = again()
    except Malformed:
        _explain(lines, table, where)  # nearer to what stands in the file, where it knows
        raise
    if written != raw:
        _explain(lines, table, where)
        check_same(raw, written, where)


def _array(lines: list[str]) -> str:
    return "".join((OPENING, "\n", ",\n".join(lines), "\n]"))


def _check_paths(paths: list[str], where: str) -> None:
    """Number and order; whether each is a path comes with its line."""
    if not 1 <= len(paths) <= MAX_SHARDS:
        refuse(f'{where}: member "shards"', f"{len(paths)} elements, not 1 to {MAX_SHARDS}")
    if "".join(paths).isascii() and _are_in_order(paths):  # then text sorts as its bytes do
        return
    raws = [names.raw_path(path, where) for path in paths]
    if _are_in_order(raws):
        return
    for n, (before, raw) in enumerate(pairwise(raws), 2):
        at = f"{where}: shard {n}"
        if raw <= before:
            why = "given twice" if raw == before else "not sorted by raw path bytes"
            refuse(at, f"path {names.shown(paths[n - 1])} {why}")
    refuse(f"{where}: shard 1", "the empty path stands alone")


def _are_in_order(paths: list[str] | list[bytes]) -> bool:
    is_sorted = len(set(paths)) == len(paths) and sorted(paths) == paths
    return is_sorted and (bool(paths[0]) or len(paths) == 1)


def _shard_line(shard: Shard, where: str, n: int) -> str:
    at = f"{where}: shard {n}"
    members = fields.write(SHARD_FIELDS, shard, at)
    size = shard.bytes
    wanted = -(-size // CHUNK_BYTES) if size > CHUNK_BYTES else 0
    if len(shard.chunks) != wanted:
        refuse(f'{at}: member "chunks"', f"{len(shard.chunks)}, {size} bytes have {wanted}")
    return quote(members)


def _token_line(path: str, token: Token, where: str, n: int) -> str:
    at = f"{where}: shard {n}"
    members = fields.write(TOKEN_FIELDS[:1], _Path(path), at)
    table = TOKEN_FIELDS if token.etag is None else OBJECT_FIELDS
    return quote(members | fields.write(table[1:], token, at))


class _Path:
    """A path that has no value of the model around it."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path


def _found(text: str, pattern: str, where: str) -> list[tuple[str, ...]]:
    lines = text.count("\n") + 1
    if lines > MAX_SHARDS:
        refuse(f'{where}: member "shards"', f"{lines} elements, more than {MAX_SHARDS}")
    return re.findall(pattern, text, re.MULTILINE)


def _path_of(key: str, text: str, where: str, n: int) -> str:
    at = f"{where}: shard {n}"
    if key == "path_pct":
        return names.percent_decode(text, f'{at}: member "path_pct"')
    return _text_of(text, where, n, member="path")


def _text_of(text: str, where: str, n: int, *, member: str = "etag") -> str:
    if "\\" not in text:
        return text
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError as error:
        refuse(f'{where}: shard {n}: member "{member}"', f"not a JSON string: {error}")


def _explain(text: str, table: Table, where: str) -> None:
    """Name what is wrong in the first line that is no element; return if every line is one."""
    for n, line in enumerate(text.split("\n"), 1):
        at = f"{where}: shard {n}"
        body = line.removesuffix(",")
        if not body.startswith("{") or not body.endswith("}"):
            refuse(at, "not an object on its own line")
        if len(body) > SMALL_BYTES:
            continue
        cursor = Cursor(parse_object(body[:-1].encode("ascii"), at), at)
        fields.read(table, cursor)
        cursor.close()
