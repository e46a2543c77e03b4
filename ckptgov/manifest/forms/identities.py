"""Who a run root belongs to, and which place a tier root is.

``run.json``, create-once, made by the first write to a run root::

    {"format":"ckptgov.run","version":1,"run_id":"<uuid>","name":"team/llm-7b","selector":"*",…

Members in this order: ``format``, ``version``, ``run_id``, ``name`` or ``name_pct``, ``selector``,
``expect?`` (object: ``glob``, ``count?`` from 1, ``marker?``, ``step?``), ``self``.

``.ckptgov-tier.json``, create-once except for ``epoch``::

    {"format":"ckptgov.tier","version":1,"place":"<uuid>","tier":"lustre","fs_type":"lustre",…

Members in this order: ``format``, ``version``, ``place``, ``tier``, ``fs_type``, ``source``,
``catalog`` (a UUID), ``epoch``, ``self``. Both are one line of at most 64 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptgov.manifest.forms import fields, frame
from ckptgov.manifest.forms.fields import Cursor, Field, Member, PathMember
from ckptgov.model.checkpoint import Expect, RunIdentity, TierIdentity

_RUN = "ckptgov.run"
_TIER = "ckptgov.tier"

_EXPECT_FIELDS: tuple[Field, ...] = (
    Member("glob", fields.label),
    Member("count", fields.positive, is_optional=True),
    Member("marker", fields.label, is_optional=True),
    Member("step", fields.label, is_optional=True),
)

_new_expect: Callable[..., Expect] = Expect
_new_run: Callable[..., RunIdentity] = RunIdentity
_new_tier: Callable[..., TierIdentity] = TierIdentity


def _read_expect(value: object, at: str) -> Expect:
    if not isinstance(value, dict):
        fields.refuse(at, "not an object")
    cursor = Cursor(value, at)
    attributes = fields.read(_EXPECT_FIELDS, cursor)
    cursor.close()
    return _new_expect(**attributes)


def _spell_expect(value: object, at: str) -> dict[str, object]:
    return fields.write(_EXPECT_FIELDS, value, at)


_RUN_FIELDS: tuple[Field, ...] = (
    Member("run_id", fields.uuid),
    PathMember("name"),
    Member("selector", fields.label),
    Member("expect", _read_expect, is_optional=True, spell=_spell_expect),
)
_TIER_FIELDS: tuple[Field, ...] = (
    Member("place", fields.uuid),
    Member("tier", fields.label),
    Member("fs_type", fields.label),
    Member("source", fields.text),
    Member("catalog", fields.uuid),
    Member("epoch", fields.count),
)


def encode_run(run: RunIdentity) -> bytes:
    """The bytes of ``run.json``. Raises Malformed for a value the decoder would refuse."""
    return _write(_RUN, _RUN_FIELDS, run, "run.json")


def decode_run(raw: bytes, *, where: str) -> RunIdentity:
    """The run's identity in ``raw``; ``where`` is its path for messages. Raises Malformed."""
    run = _new_run(**_read(raw, _RUN, _RUN_FIELDS, where))
    frame.check_same(raw, _write(_RUN, _RUN_FIELDS, run, where), where)
    return run


def encode_tier(tier: TierIdentity) -> bytes:
    """The bytes of ``.ckptgov-tier.json``. Raises Malformed likewise."""
    return _write(_TIER, _TIER_FIELDS, tier, ".ckptgov-tier.json")


def decode_tier(raw: bytes, *, where: str) -> TierIdentity:
    """The tier's identity in ``raw``; ``where`` is its path for messages. Raises Malformed."""
    tier = _new_tier(**_read(raw, _TIER, _TIER_FIELDS, where))
    frame.check_same(raw, _write(_TIER, _TIER_FIELDS, tier, where), where)
    return tier


def _write(form: str, table: Sequence[Field], value: object, where: str) -> bytes:
    body = frame.open_object(form, fields.write(table, value, where), where)
    return frame.seal(body, cap_bytes=frame.SMALL_BYTES, where=where)


def _read(raw: bytes, form: str, table: Sequence[Field], where: str) -> dict[str, object]:
    end = frame.check_frame(raw, form=form, cap_bytes=frame.SMALL_BYTES, where=where)
    cursor = Cursor.after_head(frame.parse_object(raw[:end], where), where)
    attributes = fields.read(table, cursor)
    cursor.close()
    return attributes
