"""Journal records: one form, one row of members per kind.

``journal/<n, 8 digits>.<kind>.json``, create-once with the next free n from 1; a restart decision
is ``journal/restart.<sha256 of the id, 16 hex>.<epoch>.json``::

    {"format":"ckptgov.journal","version":1,"id":"<uuid>","kind":"rollback","run_id":"<uuid>",…

Members in this order: ``format``, ``version``, ``id``, ``kind``, ``run_id``, ``at_ns``, ``by``,
``reason?``, the kind's own, ``self``. One line of at most 64 KiB. The kinds' own members:

====================== ==========================================================================
``sealed``             content_id, step or ordinal or neither, line, attempt, save_id?, metrics?
                       (object of names, sorted, to decimal strings; never empty)
``line``               line, parent, base_step, cause (``rollback``, ``decision``, ``lower-step``)
``rollback``           to_step, line
``mark-bad``,          content_id; or from_step, until_step? (inclusive, not below from_step)
``unmark-bad``
``pin``, ``unpin``     content_id, pin_name, until_ns?
``metric``             content_id, name, value (a decimal string; ``nan`` and ``inf`` allowed)
``outcome``            content_id, restart_id, epoch, outcome (``started``, ``missing``,
                       ``corrupt``, ``load-failed``, ``failed-later``)
``restart``            restart_id, epoch, and content_id or fresh (``true``)
``lost``               content_id, place
``tombstone``,         content_id, place? (absent: everywhere), plan_id?
``undelete``
``retire``, ``finish`` none
====================== ==========================================================================
"""

from __future__ import annotations

from ckptgov.manifest.forms import fields, frame
from ckptgov.manifest.forms.fields import Cursor, Field, Member, StepMember, refuse
from ckptgov.model import journal
from ckptgov.model.journal import KIND_OF, LineCause, MarkBad, Record, Restart, UnmarkBad

_JOURNAL = "ckptgov.journal"

_ID: tuple[Field, ...] = (Member("id", fields.uuid),)
_STAMP: tuple[Field, ...] = (
    Member("run_id", fields.uuid),
    Member("at_ns", fields.count),
    Member("by", fields.label),
    Member("reason", fields.text, is_optional=True),
)


def _read_metrics(value: object, at: str) -> tuple[tuple[str, object], ...]:
    if not isinstance(value, dict) or not value:
        refuse(at, "not an object with members")
    if list(value) != sorted(value):
        refuse(at, "not sorted by name")
    return tuple(
        (fields.label(name, at), fields.decimal(number, f"{at}: {frame.quote(name)}"))
        for name, number in value.items()
    )


def _spell_metrics(value: object, at: str) -> dict[str, object]:
    assert isinstance(value, tuple)
    members = dict(sorted(value))
    if len(members) != len(value):
        refuse(at, "a name is given twice")
    return members


_CONTENT = Member("content_id", fields.content_id)
_MAYBE_CONTENT = Member("content_id", fields.content_id, is_optional=True)
_BAD: tuple[Field, ...] = (
    _MAYBE_CONTENT,
    Member("from_step", fields.count, is_optional=True),
    Member("until_step", fields.count, is_optional=True),
)
_PIN: tuple[Field, ...] = (
    _CONTENT,
    Member("pin_name", fields.label),
    Member("until_ns", fields.count, is_optional=True),
)
_REMOVAL: tuple[Field, ...] = (
    _CONTENT,
    Member("place", fields.uuid, is_optional=True),
    Member("plan_id", fields.label, is_optional=True),
)

_OWN: dict[str, tuple[Field, ...]] = {
    "sealed": (
        _CONTENT,
        StepMember(),
        Member("line", fields.count),
        Member("attempt", fields.count),
        Member("save_id", fields.label, is_optional=True),
        Member("metrics", _read_metrics, is_optional=True, absent=(), spell=_spell_metrics),
    ),
    "line": (
        Member("line", fields.count),
        Member("parent", fields.count),
        Member("base_step", fields.count),
        Member("cause", fields.one_of(LineCause)),
    ),
    "rollback": (Member("to_step", fields.count), Member("line", fields.count)),
    "mark-bad": _BAD,
    "unmark-bad": _BAD,
    "pin": _PIN,
    "unpin": _PIN,
    "metric": (_CONTENT, Member("name", fields.label), Member("value", fields.decimal)),
    "outcome": (
        _CONTENT,
        Member("restart_id", fields.label),
        Member("epoch", fields.count),
        Member("outcome", fields.one_of(journal.RestoreOutcome)),
    ),
    "restart": (
        Member("restart_id", fields.label),
        Member("epoch", fields.count),
        _MAYBE_CONTENT,
        Member("fresh", fields.true, is_optional=True, absent=False),
    ),
    "lost": (_CONTENT, Member("place", fields.uuid)),
    "tombstone": _REMOVAL,
    "undelete": _REMOVAL,
    "retire": (),
    "finish": (),
}
_CLASS_OF = {kind: record_class for record_class, kind in KIND_OF.items()}


def encode_record(record: Record) -> bytes:
    """The record's bytes; metrics are sorted here. Raises Malformed for what decodes to nothing."""
    return _write(record, f"{KIND_OF[type(record)]} record")


def decode_record(raw: bytes, *, where: str) -> Record:
    """The record in ``raw``; ``where`` is its path for messages. Raises Malformed."""
    end = frame.check_frame(raw, form=_JOURNAL, cap_bytes=frame.SMALL_BYTES, where=where)
    cursor = Cursor.after_head(frame.parse_object(raw[:end], where), where)
    identity = fields.read(_ID, cursor)
    kind = fields.text(cursor.take("kind"), cursor.at("kind"))
    if kind not in _OWN:
        refuse(cursor.at("kind"), "not a kind of version 1")
    stamp = journal.Stamp(**identity, **fields.read(_STAMP, cursor))  # type: ignore[arg-type]
    own = fields.read(_OWN[kind], cursor)
    cursor.close()
    record: Record = _CLASS_OF[kind](stamp=stamp, **own)
    frame.check_same(raw, _write(record, where), where)
    return record


def _write(record: Record, where: str) -> bytes:
    _check_sense(record, where)
    kind = KIND_OF[type(record)]
    members = {
        **fields.write(_ID, record.stamp, where),
        "kind": kind,
        **fields.write(_STAMP, record.stamp, where),
        **fields.write(_OWN[kind], record, where),
    }
    body = frame.open_object(_JOURNAL, members, where)
    return frame.seal(body, cap_bytes=frame.SMALL_BYTES, where=where)


def _check_sense(record: Record, where: str) -> None:
    """Rules between members."""
    match record:
        case MarkBad() | UnmarkBad():
            _check_bad(record, where)
        case Restart() if (record.content_id is None) != record.fresh:
            refuse(f'{where}: member "fresh"', "exactly one of content_id and fresh is given")
        case _:
            pass


def _check_bad(record: MarkBad | UnmarkBad, where: str) -> None:
    if (record.content_id is None) == (record.from_step is None):
        refuse(f'{where}: member "from_step"', "exactly one of content_id and from_step is given")
    if record.until_step is None:
        return
    if record.from_step is None or record.until_step < record.from_step:
        refuse(f'{where}: member "until_step"', "without from_step, or below it")
