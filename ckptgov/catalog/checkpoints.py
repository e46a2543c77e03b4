"""Sealed checkpoints with their manifests, and candidates that are not sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zstandard
from sqlalchemy import (
    BigInteger,
    Connection,
    SQLColumnExpression,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    tuple_,
)
from sqlmodel import col

from ckptgov.catalog.changes import bump
from ckptgov.catalog.dialect import add_new
from ckptgov.catalog.facts import REBUILD_HINT, EventKind, SealedFacts, SightingFacts
from ckptgov.catalog.history import write_event
from ckptgov.catalog.rows import decoded, findings_text, notes_text, sighting_of
from ckptgov.catalog.tables import CheckpointRow, ManifestRow, SightingRow
from ckptgov.errors import StorageError
from ckptgov.model.checkpoint import Purpose, StepKind
from ckptgov.model.facts import Sighting

MAX_MANIFEST_BYTES = 256 * 2**20  # forms, version 1

_CHECKPOINTS = (
    select(CheckpointRow)
    .where(col(CheckpointRow.run_id) == bindparam("run_id"))
    .order_by(
        col(CheckpointRow.step).nulls_first(),
        col(CheckpointRow.attempt),
        col(CheckpointRow.content_id),
    )
)
_SEALED_OF = select(CheckpointRow).where(
    col(CheckpointRow.run_id) == bindparam("run_id"),
    col(CheckpointRow.content_id).in_(bindparam("content_ids", expanding=True)),
)
_MOST_AT_ONCE = 500  # how many values one statement is given
_TOTALS = select(
    col(CheckpointRow.run_id), func.count(), func.sum(col(CheckpointRow.size_bytes))
).group_by(col(CheckpointRow.run_id))
# In the words of the index, so that it is used.
_BY_AGE: tuple[SQLColumnExpression[int], ...] = (
    literal_column("coalesce(step, -1)", BigInteger),
    col(CheckpointRow.line),
    col(CheckpointRow.attempt),
)
_AGE = ("step", "line", "attempt")
_NEWEST = (
    select(CheckpointRow)
    .where(col(CheckpointRow.run_id) == bindparam("run_id"))
    .order_by(*(each.desc() for each in _BY_AGE), col(CheckpointRow.content_id).desc())
)
_BELOW = (
    # What the first says follows from the second, and is what finds the place in the index.
    _BY_AGE[0] <= bindparam("step"),
    tuple_(*_BY_AGE) < tuple_(*(bindparam(name, type_=BigInteger) for name in _AGE)),
)
_AT = tuple(each == bindparam(name) for each, name in zip(_BY_AGE, _AGE, strict=True))
_MANIFEST = select(col(ManifestRow.packed)).where(
    col(ManifestRow.run_id) == bindparam("run_id"),
    col(ManifestRow.content_id) == bindparam("content_id"),
)
_SIGHTINGS = (
    select(SightingRow)
    .where(col(SightingRow.run_id) == bindparam("run_id"))
    .order_by(col(SightingRow.place), col(SightingRow.name), col(SightingRow.variant))
)
_SIGHTINGS_AT = _SIGHTINGS.where(col(SightingRow.place) == bindparam("place"))


def put_sealed(connection: Connection, sealed: SealedFacts, manifest: bytes) -> bool:
    key = {"run_id": sealed.run_id, "content_id": sealed.content_id}
    values = {
        **key,
        "name": sealed.name,
        "step": sealed.step,
        "step_kind": sealed.step_kind.value,
        "layout": sealed.layout,
        "world_size": sealed.world_size,
        "purposes": " ".join(each.value for each in sealed.purposes),
        "size_bytes": sealed.bytes,
        "shard_count": sealed.shard_count,
        "line": sealed.line,
        "attempt": sealed.attempt,
        "sealed_at_ns": sealed.sealed_at_ns,
    }
    if not add_new(connection, CheckpointRow, values):
        return False
    packed = zstandard.ZstdCompressor().compress(manifest)
    connection.execute(insert(ManifestRow), {**key, "packed": packed})
    detail = (("name", sealed.name), ("line", str(sealed.line)), ("attempt", str(sealed.attempt)))
    write_event(connection, EventKind.SEALED, at_ns=sealed.sealed_at_ns, **key, detail=detail)
    return True


def checkpoints(connection: Connection, run_id: str) -> tuple[SealedFacts, ...]:
    return decoded(_sealed, connection.execute(_CHECKPOINTS, {"run_id": run_id}))


def sealed_of(
    connection: Connection, run_id: str, content_ids: Sequence[str]
) -> dict[str, SealedFacts]:
    found: dict[str, SealedFacts] = {}
    for start in range(0, len(content_ids), _MOST_AT_ONCE):
        some = {"run_id": run_id, "content_ids": content_ids[start : start + _MOST_AT_ONCE]}
        rows = decoded(_sealed, connection.execute(_SEALED_OF, some))
        found |= {one.content_id: one for one in rows}
    return found


def totals(connection: Connection, run_id: str | None) -> dict[str, tuple[int, int]]:
    query = _TOTALS if run_id is None else _TOTALS.where(col(CheckpointRow.run_id) == run_id)
    return {found: (count, int(size)) for found, count, size in connection.execute(query)}


def manifest_bytes(connection: Connection, run_id: str, content_id: str) -> bytes:
    wanted = {"run_id": run_id, "content_id": content_id}
    packed = connection.execute(_MANIFEST, wanted).scalar_one_or_none()
    if packed is None:
        raise FileNotFoundError(f"the catalog holds no manifest of {content_id} in run {run_id}")
    try:
        if zstandard.frame_content_size(packed) > MAX_MANIFEST_BYTES:
            raise zstandard.ZstdError("larger than a manifest may be")
        return zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_MANIFEST_BYTES)
    except zstandard.ZstdError as error:
        message = f"the catalog's manifest of {content_id} cannot be read: {error}"
        raise StorageError(message, hint=REBUILD_HINT) from error


def newest(
    connection: Connection, run_id: str, before: tuple[int, int, int] | None, limit: int
) -> tuple[SealedFacts, ...]:
    if limit < 1:
        return ()
    query = _NEWEST
    wanted: dict[str, int | str] = {"run_id": run_id}
    if before is not None:
        query = query.where(*_BELOW)
        wanted |= _named(before)
    found = decoded(_sealed, connection.execute(query.limit(limit), wanted))
    if len(found) < limit:
        return found
    # The next page begins below all three numbers, so those equal in them stay on one.
    last = age(found[-1])
    equal = {"run_id": run_id} | _named(last)
    ties = decoded(_sealed, connection.execute(_NEWEST.where(*_AT), equal))
    return (*(each for each in found if age(each) != last), *ties)


def _named(wanted: tuple[int, int, int]) -> dict[str, int | str]:
    return dict(zip(_AGE, wanted, strict=True))


def age(sealed: SealedFacts) -> tuple[int, int, int]:
    """What orders a run's checkpoints; a stepless one comes before all others."""
    return (-1 if sealed.step is None else sealed.step, sealed.line, sealed.attempt)


def put_sightings(
    connection: Connection, run_id: str, place: str, seen: Sequence[Sighting], at_ns: int
) -> None:
    wanted = {"run_id": run_id, "place": place}
    before = {
        (one.name, one.variant): one
        for one in decoded(sighting_of, connection.execute(_SIGHTINGS_AT, wanted))
    }
    now = {_key_of(each): each for each in seen}
    here = (col(SightingRow.run_id) == run_id, col(SightingRow.place) == place)
    connection.execute(delete(SightingRow).where(*here))
    rows = [
        {
            **wanted,
            "name": each.name,
            "variant": each.found.variant,
            "step": each.step,
            "step_kind": each.step_kind.value,
            "layout": each.layout,
            "size_bytes": each.bytes,
            "findings": findings_text(each.findings),
            "notes": notes_text(each.notes),
            "first_seen_at_ns": before[key].first_seen_at_ns if key in before else at_ns,
            "last_seen_at_ns": at_ns,
            "newest_mtime_ns": each.newest_mtime_ns,
        }
        for key, each in ((_key_of(one), one) for one in seen)
    ]
    if rows:
        connection.execute(insert(SightingRow), rows)
    if before.keys() != now.keys() or any(_is_other(one, now[key]) for key, one in before.items()):
        bump(connection, run_id)


def _key_of(one: Sighting) -> tuple[str, str]:
    return one.name, one.found.variant


def _is_other(before: SightingFacts, now: Sighting) -> bool:
    """Whether another look found something else, apart from when it looked."""
    return (
        before.step,
        before.step_kind,
        before.layout,
        before.bytes,
        before.findings,
        before.notes,
        before.newest_mtime_ns,
    ) != (
        now.step,
        now.step_kind,
        now.layout,
        now.bytes,
        now.findings,
        now.notes,
        now.newest_mtime_ns,
    )


def sightings(connection: Connection, run_id: str) -> tuple[SightingFacts, ...]:
    return decoded(sighting_of, connection.execute(_SIGHTINGS, {"run_id": run_id}))


def _sealed(row: Any) -> SealedFacts:
    return SealedFacts(
        run_id=row.run_id,
        content_id=row.content_id,
        name=row.name,
        step=row.step,
        step_kind=StepKind(row.step_kind),
        layout=row.layout,
        world_size=row.world_size,
        purposes=tuple(Purpose(word) for word in row.purposes.split()),
        bytes=row.size_bytes,
        shard_count=row.shard_count,
        line=row.line,
        attempt=row.attempt,
        sealed_at_ns=row.sealed_at_ns,
    )
