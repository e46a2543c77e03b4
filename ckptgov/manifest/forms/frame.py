"""What every form has around its own members: head, ``self`` digest, caps, the last comparison."""

from __future__ import annotations

import hashlib
import json
import re
from typing import NoReturn

from ckptgov.errors import Malformed

VERSION = 1
SMALL_BYTES = 64 * 2**10
"""Cap of journal records and identities, and of the members before shards in the other forms."""
LARGE_BYTES = 256 * 2**20
"""Cap of manifests, parts and receipts."""

_TAIL_OPEN = b',"self":"sha256:'
_TAIL_CLOSE = b'"}\n'
_TAIL_BYTES = len(_TAIL_OPEN) + 64 + len(_TAIL_CLOSE)

_quoting = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)
quote = _quoting.encode
"""JSON text of a string, exactly as ``json.dumps(..., ensure_ascii=True)`` writes it."""


def open_object(form: str, members: dict[str, object], where: str) -> str:
    """The JSON text of a file up to, without, the comma before what follows ``members``."""
    text = quote({"format": form, "version": VERSION, **members}).removesuffix("}")
    if len(text) > SMALL_BYTES:
        raise Malformed(f"{where}: {len(text)} bytes of members, more than {SMALL_BYTES}")
    return text


def seal(body: str, *, cap_bytes: int, where: str) -> bytes:
    """The file: ``body`` (all before the comma that precedes ``self``), ``self``, newline."""
    raw = body.encode("ascii")
    size_bytes = len(raw) + _TAIL_BYTES
    if size_bytes > cap_bytes:
        raise Malformed(f"{where}: {size_bytes} bytes, more than {cap_bytes}")
    return raw + _tail(raw)


def _tail(body: bytes | memoryview) -> bytes:
    return _TAIL_OPEN + hashlib.sha256(body).hexdigest().encode() + _TAIL_CLOSE


def check_frame(raw: bytes, *, form: str, cap_bytes: int, where: str) -> int:
    """Where the body of a file ends, after size, ``self``, format and version were found right.

    ``self`` comes first: of a corrupt file nothing else is worth telling.
    """
    if len(raw) > cap_bytes:
        raise Malformed(f"{where}: {len(raw)} bytes, more than {cap_bytes}")
    end = len(raw) - _TAIL_BYTES
    if end <= 0 or not (raw.startswith(_TAIL_OPEN, end) and raw.endswith(_TAIL_CLOSE)):
        raise Malformed(f'{where}: corrupt: does not end in its member "self" (cut short?)')
    if not raw.endswith(_tail(memoryview(raw)[:end])):
        raise Malformed(f"{where}: corrupt: self digest does not match")
    opening = b'{"format":"%b","version":' % form.encode()
    if not raw.startswith(opening):
        raise Malformed(f'{where}: member "format": this is not a {form} file')
    if not raw.startswith(b"%d," % VERSION, len(opening)):
        _refuse_version(raw[len(opening) : len(opening) + 32], where)
    return end


def _refuse_version(text: bytes, where: str) -> NoReturn:
    digits = text.partition(b",")[0]
    if digits.isdigit() and int(digits) > VERSION and not digits.startswith(b"0"):
        raise Malformed(
            f'{where}: member "version": {int(digits)} is newer than this program knows',
            hint="upgrade ckptgov on this machine",
        )
    raise Malformed(f'{where}: member "version": not {VERSION}')


def parse_object(body: bytes, where: str) -> dict[str, object]:
    """The members of ``body``, an object without its closing brace. None may come twice."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise Malformed(f"{where}: member {quote(twice)}: twice")
        return members

    try:
        parsed: dict[str, object] = json.loads(body.decode("ascii") + "}", object_pairs_hook=once)
    except RecursionError as error:
        raise Malformed(f"{where}: nested too deeply") from error
    except ValueError as error:
        raise Malformed(f"{where}: not the JSON of this form: {error}") from error
    return parsed


def check_same(raw: bytes, again: bytes, where: str) -> None:
    """Refuse a file that is not what its form writes for the very values read from it."""
    if raw == again:
        return
    at = _first_difference(raw, again)
    names = re.findall(rb'"([a-z_]{1,32})":', raw[max(0, at - SMALL_BYTES) : at + 1])
    member = f"member {quote(names[-1].decode())}: " if names else ""
    raise Malformed(f"{where}: {member}not in the spelling of the form (byte {at})")


def _first_difference(one: bytes, other: bytes) -> int:
    size, step = min(len(one), len(other)), 2**16
    blocks = range(0, size, step)
    start = next((at for at in blocks if one[at : at + step] != other[at : at + step]), size)
    pairs = zip(one[start : start + step], other[start : start + step], strict=False)
    return next((start + n for n, (left, right) in enumerate(pairs) if left != right), size)
