"""Paths as the forms spell them, and the names of our own files.

Paths are ``str`` as ``os.fsdecode`` gives them on UTF-8 systems: bytes that are not UTF-8 are
surrogate escapes. Everything here works on the raw bytes behind them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from ckptgov.errors import Malformed

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 180
MAX_FILE_NAME_BYTES = 255  # NAME_MAX of the file systems we write to

_HEX = "0123456789abcdef"
_DIGITS = "0123456789"
_SAFE_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~/=-"
_SAFE = _SAFE_BYTES.decode("ascii")
_ENCODED = tuple(chr(byte) if byte in _SAFE_BYTES else f"%{byte:02x}" for byte in range(256))


def is_hex(text: str, digits: int) -> bool:
    """Whether ``text`` is this many lower-case hex digits."""
    # Here and below: patterns would take longer to compile than a fresh process has for this.
    return len(text) == digits and not text.strip(_HEX)


def is_content_id(text: str) -> bool:
    """Whether ``text`` is ``sha256:<64 hex>``."""
    return text.startswith("sha256:") and is_hex(text[7:], 64)


def raw_path(path: str, where: str) -> bytes:
    """The bytes behind ``path``. Raises Malformed where no bytes have this spelling."""
    if path.isascii():
        return path.encode("ascii")
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Malformed(f"{where}: path {shown(path)} holds a lone surrogate") from error
    # Escapes that together are good UTF-8 would give one file two spellings.
    if raw.decode("utf-8", "surrogateescape") != path:
        raise Malformed(f"{where}: path {shown(path)} escapes bytes that are plain UTF-8")
    return raw


def check_path(path: str, where: str) -> None:
    """Refuse, with Malformed, what is not a path of the forms.

    A path is relative and ``/``-separated, without empty, ``.`` or ``..`` part and without NUL,
    1 to 4,096 bytes long. (The shard of a single-file checkpoint is the one empty path; who
    allows it does not ask here.)
    """
    raw = raw_path(path, where)
    if (why := _why_not(raw)) is not None:
        raise Malformed(f"{where}: path {shown(path)} {why}")


def _why_not(raw: bytes) -> str | None:
    if not raw:
        return "is empty"
    if len(raw) > MAX_PATH_BYTES:
        return f"has {len(raw)} bytes, more than {MAX_PATH_BYTES}"
    if b"\0" in raw:
        return "holds a NUL"
    if raw.startswith(b"/"):
        return "is absolute"
    parts = raw.split(b"/")
    if b"" in parts:
        return "has an empty part"
    if b"." in parts or b".." in parts:
        return 'has a "." or ".." part'
    return None


def shown(path: str) -> str:
    """``path`` for a message: ASCII, quoted, cut."""
    text = ascii(path)
    return text if len(text) <= 200 else f"{text[:197]}..."


def are_ordinary(paths: Sequence[str]) -> bool:
    """Whether each of ``paths`` keeps all the rules and is written in JSON just as it is.

    A few searches over all of them: asking each costs more than the rest of its line.
    """
    joined = "\n".join(paths)
    if not joined.isascii() or joined.encode("ascii").translate(None, _SAFE_BYTES).strip(b"\n"):
        return False
    parts = f"\n{joined.replace('/', chr(10))}\n"
    return (
        joined.count("\n") == len(paths) - 1
        and max(map(len, paths)) <= MAX_PATH_BYTES
        and not any(part in parts for part in ("\n\n", "\n.\n", "\n..\n"))
    )


def needs_percent(path: str) -> bool:
    """Whether the forms write ``path`` percent-encoded: not UTF-8, or control characters."""
    if path.isascii():
        return not path.isprintable()
    return re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", path) is not None


def percent_encode(path: str, where: str) -> str:
    """``path`` with every byte outside ``A-Za-z0-9._~/=-`` as ``%xx``, lower case."""
    return "".join(map(_ENCODED.__getitem__, raw_path(path, where)))


def percent_decode(text: str, where: str) -> str:
    """The path that ``percent_encode`` wrote. Raises Malformed for any other spelling."""
    if not _is_encoded(text):
        raise Malformed(f"{where}: {shown(text)} is not percent-encoded")
    first, *rest = text.encode("ascii").split(b"%")
    raw = first + b"".join(bytes.fromhex(piece[:2].decode()) + piece[2:] for piece in rest)
    path = raw.decode("utf-8", "surrogateescape")
    if percent_encode(path, where) != text:
        raise Malformed(f"{where}: {shown(text)} escapes what needs no escape")
    return path


def _is_encoded(text: str) -> bool:
    first, *rest = text.split("%")
    return all(is_hex(piece[:2], 2) for piece in rest) and not "".join(
        [first, *(piece[2:] for piece in rest)]
    ).strip(_SAFE)


def file_name_of(name: str) -> str:
    """A checkpoint's name inside our file names: percent-encoded (``/`` too), cut at 180 bytes.

    The cut is never inside an escape. Two long names may come out equal: the content id behind
    them in each file name tells them apart.
    """
    check_path(name, "checkpoint name")
    encoded = percent_encode(name, "checkpoint name").replace("/", "%2f")
    if len(encoded) <= MAX_NAME_BYTES:
        return encoded
    cut = encoded.rfind("%", MAX_NAME_BYTES - 2, MAX_NAME_BYTES)
    return encoded[: cut if cut >= 0 else MAX_NAME_BYTES]


def manifest_file_name(name: str, content_id: str) -> str:
    """``<name>.<content id, 16 hex>.json``, below ``manifests/``."""
    return f"{file_name_of(name)}.{_hex16(content_id)}.json"


def part_file_name(name: str, save_or_place: str, rank_or_node: int | str) -> str:
    """``<name>.<save id or place>.<rank or node>.json``, below ``parts/``.

    Raises Malformed where the whole is longer than a file name may be (255 bytes).
    """
    group = percent_encode(save_or_place, "save id").replace("/", "%2f")
    member = percent_encode(str(rank_or_node), "node").replace("/", "%2f")
    whole = f"{file_name_of(name)}.{group}.{member}.json"
    if not group or not member or len(whole) > MAX_FILE_NAME_BYTES:
        raise Malformed(
            f"part of {shown(name)}: {len(whole)} bytes do not fit a file name",
            hint="give the part a rank instead of a node name, or a shorter save id",
        )
    return whole


def receipt_file_name(name: str, content_id: str, number: int) -> str:
    """``<name>.<content id, 16 hex>.<number, 6 digits>.json``, below ``receipts/``."""
    return f"{file_name_of(name)}.{_hex16(content_id)}.{_digits(number, 6, 'receipt')}.json"


def record_file_name(number: int, kind: str) -> str:
    """``<number, 8 digits>.<kind>.json``, below ``journal/``; not for restart decisions."""
    if kind == "restart":
        raise Malformed("a restart decision takes no number: its name is fixed by id and epoch")
    return f"{_digits(number, 8, 'journal')}.{kind}.json"


def restart_file_name(restart_id: str, epoch: int) -> str:
    """``restart.<sha256 of the id's UTF-8 bytes, 16 hex>.<epoch>.json``, below ``journal/``."""
    if not 0 <= epoch < 2**63:
        raise Malformed(f"restart epoch {epoch} is out of range")
    try:
        raw = restart_id.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed(f"restart id {shown(restart_id)} is not UTF-8") from error
    return f"restart.{hashlib.sha256(raw).hexdigest()[:16]}.{epoch}.json"


def parse_manifest_file_name(file_name: str) -> tuple[str, str] | None:
    """(encoded name, 16 hex of the content id), or None for any other file name."""
    name, _, rest = file_name.removesuffix(".json").rpartition(".")
    is_ours = file_name.endswith(".json") and is_hex(rest, 16) and _is_encoded_name(name)
    return (name, rest) if is_ours else None


def parse_receipt_file_name(file_name: str) -> tuple[str, str, int] | None:
    """(encoded name, 16 hex of the content id, number from 1), or None."""
    rest, _, digits = file_name.removesuffix(".json").rpartition(".")
    found = parse_manifest_file_name(f"{rest}.json")
    number = _number(digits, 6) if file_name.endswith(".json") else 0
    return (*found, number) if found and number else None


def parse_record_file_name(file_name: str) -> tuple[int, str] | None:
    """(number from 1, kind), or None. The kind may be one this program does not know."""
    digits, _, kind = file_name.removesuffix(".json").partition(".")
    number = _number(digits, 8) if file_name.endswith(".json") else 0
    is_kind = bool(kind) and not kind.strip("abcdefghijklmnopqrstuvwxyz-")
    return (number, kind) if number and is_kind else None


def parse_restart_file_name(file_name: str) -> tuple[str, int] | None:
    """(16 hex of the restart id's digest, epoch), or None."""
    word, _, rest = file_name.removesuffix(".json").partition(".")
    restart, _, epoch = rest.partition(".")
    if word != "restart" or not file_name.endswith(".json") or not is_hex(restart, 16):
        return None
    is_epoch = 1 <= len(epoch) <= 19 and not epoch.strip(_DIGITS)
    return (restart, int(epoch)) if is_epoch and str(int(epoch)) == epoch else None


def _is_encoded_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_BYTES and "/" not in name and _is_encoded(name)


def _number(digits: str, width: int) -> int:
    """The number from 1 in exactly ``width`` digits; 0 for anything else."""
    return int(digits) if len(digits) == width and not digits.strip(_DIGITS) else 0


def _hex16(content_id: str) -> str:
    if not is_content_id(content_id):
        raise Malformed(f"{shown(content_id)} is not a content id")
    return content_id[7:23]


def _digits(number: int, width: int, what: str) -> str:
    if not 1 <= number < 10**width:
        raise Malformed(f"{what} number {number} does not fit {width} digits")
    return f"{number:0{width}d}"


def attempt_name(number: int, name: str) -> str:
    """Where a checkpoint goes whose name is taken; no trainer's pattern matches that."""
    return f"attempt-{number}/{name}"


def without_attempt(name: str, *, slash: str = "/") -> str:
    """The name before it had to make way. ``slash`` is ``%2f`` in our file names.

    A trainer's own names may begin with "attempt-" too: only a number and a slash are ours.
    """
    return re.sub(rf"\A(?:attempt-[0-9]+{slash})(?=.)", "", name, flags=re.DOTALL)
