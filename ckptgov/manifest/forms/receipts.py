"""Receipts: what was verified at one place.

``receipts/<name>.<content id, 16 hex>.<n, 6 digits>.json``, create-once with the next free n from
1 (one line here per line there)::

    {"format":"ckptgov.receipt","version":1,"content_id":"sha256:<64 hex>","place":"<uuid>",…
    {"path":"__0_0.distcp","bytes":134217729,"mtime_ns":…,"ctime_ns":…,"inode":…}
    ],"self":"sha256:<64 hex>"}

Members of the first line, in this order: ``format``, ``version``, ``content_id``, ``place``,
``evidence`` (``digest`` or ``structure``), ``verified_at_ns``, ``shards``. Of a shard: ``path`` or
``path_pct``, ``bytes``, ``mtime_ns``, ``ctime_ns``, ``inode``; on object tiers ``path`` or
``path_pct``, ``bytes``, ``etag`` (without quotes), ``version_id`` (where there is one). See
``rows`` for the array. At most 256 MiB.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptgov.manifest.forms import fields, frame, rows
from ckptgov.manifest.forms.fields import Cursor, Field, Member
from ckptgov.model.checkpoint import Evidence, Receipt

_RECEIPT = "ckptgov.receipt"

_FIELDS: tuple[Field, ...] = (
    Member("content_id", fields.content_id),
    Member("place", fields.uuid),
    Member("evidence", fields.one_of(Evidence, Evidence.NONE)),
    Member("verified_at_ns", fields.count),
)

_new_receipt: Callable[..., Receipt] = Receipt


def encode_receipt(receipt: Receipt) -> bytes:
    """The file's bytes. Raises Malformed for a value the decoder would refuse."""
    return _write(receipt, f"receipt of {receipt.content_id}")


def decode_receipt(raw: bytes, *, where: str) -> Receipt:
    """The receipt in ``raw``; ``where`` is its path for messages. Raises Malformed."""
    end = frame.check_frame(raw, form=_RECEIPT, cap_bytes=frame.LARGE_BYTES, where=where)
    head, lines = rows.split(raw, end, where)
    cursor = Cursor.after_head(frame.parse_object(head, where), where)
    attributes = fields.read(_FIELDS, cursor)
    cursor.close()
    receipt = _new_receipt(**attributes, tokens=rows.read_tokens(lines, where))
    rows.confirm(
        raw,
        lambda: _write(receipt, where),
        lines=lines,
        table=rows.token_table(lines),
        where=where,
    )
    return receipt


def _write(receipt: Receipt, where: str) -> bytes:
    head = frame.open_object(_RECEIPT, fields.write(_FIELDS, receipt, where), where)
    body = head + rows.tokens_text(receipt.tokens, where)
    return frame.seal(body, cap_bytes=frame.LARGE_BYTES, where=where)
