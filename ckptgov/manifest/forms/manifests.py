"""Manifests, and the parts they are merged from.

``manifests/<name>.<content id, 16 hex>.json``, create-once (one line here per line there)::

    {"format":"ckptgov.manifest","version":1,"content_id":"sha256:<64 hex>","name":"step_100",…
    {"path":".metadata","bytes":17266,"digest":"xxh3_128:<32 hex>"},
    {"path":"__0_0.distcp","bytes":134217729,"digest":"xxh3_128:…","chunks":["xxh3_128:…",…]}
    ],"self":"sha256:<64 hex>"}

Members of the first line, in this order: ``format``, ``version``, ``content_id`` (of exactly these
shards), ``name`` or ``name_pct``, ``step`` or ``ordinal`` or neither, ``layout``, ``world_size?``
(from 1), ``purpose`` (array: ``resume`` before ``weights``), ``shards``. Of a shard: ``path`` or
``path_pct``, ``bytes``, ``digest``, and ``chunks`` if and only if it is larger than 67,108,864
bytes: one digest per 67,108,864 bytes, the last one of what remains. See ``rows`` for the array,
``names`` for paths and their percent spelling. At most 256 MiB.

``parts/<name>.<save id or place>.<rank or node>.json`` is the same with ``"format":
"ckptgov.part"``, without ``content_id``, and before ``shards``: ``save_id?``, ``rank?`` or
``node?``, ``expected?`` (how many parts, from 1).
"""

from __future__ import annotations

from collections.abc import Callable

from ckptgov.manifest import content
from ckptgov.manifest.forms import fields, frame, rows
from ckptgov.manifest.forms.fields import Cursor, Field, Member, PathMember, StepMember, refuse
from ckptgov.manifest.names import shown
from ckptgov.model.checkpoint import Manifest, ManifestHeader, Part

_MANIFEST = "ckptgov.manifest"
_PART = "ckptgov.part"

_COMMON: tuple[Field, ...] = (
    PathMember("name"),
    StepMember(),
    Member("layout", fields.label),
    Member("world_size", fields.positive, is_optional=True),
    Member("purpose", fields.purposes, attribute="purposes"),
)
_MANIFEST_FIELDS: tuple[Field, ...] = (Member("content_id", fields.content_id), *_COMMON)
_PART_FIELDS: tuple[Field, ...] = (
    *_COMMON,
    Member("save_id", fields.label, is_optional=True),
    Member("rank", fields.count, is_optional=True),
    Member("node", fields.label, is_optional=True),
    Member("expected", fields.positive, attribute="expected_parts", is_optional=True),
)

_new_manifest: Callable[..., Manifest] = Manifest
_new_header: Callable[..., ManifestHeader] = ManifestHeader
_new_part: Callable[..., Part] = Part


def encode_manifest(manifest: Manifest) -> bytes:
    """The file's bytes. Raises Malformed for a value the decoder would refuse."""
    return _write_manifest(manifest, f"manifest of {shown(manifest.name)}")


def decode_manifest(raw: bytes, *, where: str) -> Manifest:
    """The manifest in ``raw``; ``where`` is its path for messages. Raises Malformed."""
    end = frame.check_frame(raw, form=_MANIFEST, cap_bytes=frame.LARGE_BYTES, where=where)
    head, lines = rows.split(raw, end, where)
    attributes = _read_head(head, _MANIFEST_FIELDS, where)
    manifest = _new_manifest(**attributes, shards=rows.read_shards(lines, where))
    rows.confirm(
        raw,
        lambda: _write_manifest(manifest, where),
        lines=lines,
        table=rows.SHARD_FIELDS,
        where=where,
    )
    return manifest


def decode_manifest_header(raw: bytes, *, where: str) -> ManifestHeader:
    """What stands before the shards; ``self`` is checked over the whole file.

    Promises nothing about the shards (they may be malformed), and costs one SHA-256 of the file.
    """
    end = frame.check_frame(raw, form=_MANIFEST, cap_bytes=frame.LARGE_BYTES, where=where)
    head = rows.head_of(raw, end, where)
    header = _new_header(**_read_head(head, _MANIFEST_FIELDS, where))
    again = frame.open_object(_MANIFEST, fields.write(_MANIFEST_FIELDS, header, where), where)
    frame.check_same(head, again.encode("ascii"), where)
    return header


def encode_part(part: Part) -> bytes:
    """The file's bytes. Raises Malformed for a value the decoder would refuse."""
    return _write_part(part, f"part of {shown(part.name)}")


def decode_part(raw: bytes, *, where: str) -> Part:
    """The part in ``raw``; ``where`` is its path for messages. Raises Malformed."""
    end = frame.check_frame(raw, form=_PART, cap_bytes=frame.LARGE_BYTES, where=where)
    head, lines = rows.split(raw, end, where)
    attributes = _read_head(head, _PART_FIELDS, where)
    part = _new_part(**attributes, shards=rows.read_shards(lines, where))
    rows.confirm(
        raw,
        lambda: _write_part(part, where),
        lines=lines,
        table=rows.SHARD_FIELDS,
        where=where,
    )
    return part


def _write_manifest(manifest: Manifest, where: str) -> bytes:
    head = frame.open_object(_MANIFEST, fields.write(_MANIFEST_FIELDS, manifest, where), where)
    body = head + rows.shards_text(manifest.shards, where)
    if manifest.content_id != content.content_id(manifest.shards):
        refuse(f'{where}: member "content_id"', "not the content id of these shards")
    return frame.seal(body, cap_bytes=frame.LARGE_BYTES, where=where)


def _write_part(part: Part, where: str) -> bytes:
    if part.rank is not None and part.node is not None:
        refuse(f'{where}: member "node"', "given beside rank")
    head = frame.open_object(_PART, fields.write(_PART_FIELDS, part, where), where)
    body = head + rows.shards_text(part.shards, where)
    return frame.seal(body, cap_bytes=frame.LARGE_BYTES, where=where)


def _read_head(head: bytes, table: tuple[Field, ...], where: str) -> dict[str, object]:
    cursor = Cursor.after_head(frame.parse_object(head, where), where)
    attributes = fields.read(table, cursor)
    cursor.close()
    return attributes
