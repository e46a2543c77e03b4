"""Sealed checkpoints with their manifests, and candidates that are not sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zstandard
from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import col

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
    .order_by(col(CheckpointRow.step), col(CheckpointRow.attempt), col(CheckpointRow.content_id))
)
_MANIFEST = select(col(ManifestRow.packed)).where(
    col(ManifestRow.run_id) == bindparam("run_id"),
    col(ManifestRow.content_id) == bindparam("content_id"),
)
_SIGHTINGS = (
    select(SightingRow)
    .where(col(SightingRow.run_id) == bindparam("run_id"))
    .order_by(col(SightingRow.place), col(SightingRow.name), col(SightingRow.variant))
)
_FIRST_SEEN = select(
    col(SightingRow.name), col(SightingRow.variant), col(SightingRow.first_seen_at_ns)
).where(
    col(SightingRow.run_id) == bindparam("run_id"), col(SightingRow.place) == bindparam("place")
)


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
    added = connection.execute(insert(CheckpointRow).on_conflict_do_nothing(), values).rowcount
    if not added:
        return False
    packed = zstandard.ZstdCompressor().compress(manifest)
    connection.execute(insert(ManifestRow), {**key, "packed": packed})
    detail = (("name", sealed.name), ("line", str(sealed.line)), ("attempt", str(sealed.attempt)))
    write_event(connection, EventKind.SEALED, at_ns=sealed.sealed_at_ns, **key, detail=detail)
    return True


def checkpoints(connection: Connection, run_id: str) -> tuple[SealedFacts, ...]:
    return decoded(_sealed, connection.execute(_CHECKPOINTS, {"run_id": run_id}))


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


def put_sightings(
    connection: Connection, run_id: str, place: str, seen: Sequence[Sighting], at_ns: int
) -> None:
    wanted = {"run_id": run_id, "place": place}
    first_seen = {
        (name, variant): first for name, variant, first in connection.execute(_FIRST_SEEN, wanted)
    }
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
            "first_seen_at_ns": first_seen.get((each.name, each.found.variant), at_ns),
            "last_seen_at_ns": at_ns,
            "newest_mtime_ns": each.newest_mtime_ns,
        }
        for each in seen
    ]
    if rows:
        connection.execute(insert(SightingRow), rows)


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
