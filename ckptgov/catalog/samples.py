"""How full places were, time and again: what growth is read off."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs
from sqlalchemy import bindparam, delete, func, select, tuple_
from sqlmodel import col

from ckptgov.catalog.database import Database, within
from ckptgov.catalog.dialect import put
from ckptgov.catalog.removal_tables import SampleRow
from ckptgov.catalog.rows import decoded

KEPT_NS = 100 * 86400 * 10**9

_AT_PLACE = (
    select(SampleRow)
    .where(
        col(SampleRow.place) == bindparam("place"), col(SampleRow.at_ns) >= bindparam("since_ns")
    )
    .order_by(col(SampleRow.at_ns))
)
_NEWEST = (
    select(SampleRow)
    .where(
        tuple_(col(SampleRow.place), col(SampleRow.at_ns)).in_(
            select(col(SampleRow.place), func.max(col(SampleRow.at_ns))).group_by(
                col(SampleRow.place)
            )
        )
    )
    .order_by(col(SampleRow.place))
)


class TierSample(Struct, frozen=True, kw_only=True):
    """One place at one moment. None: there is nobody to ask, or no such limit."""

    place: str
    at_ns: int
    used_bytes: int
    free_bytes: int | None = None
    total_bytes: int | None = None
    files: int | None = None
    free_files: int | None = None
    quota_bytes: int | None = None
    quota_files: int | None = None


class SampleBook:
    """Samples by place. Those 100 days older than the newest of their place are dropped."""

    def __init__(self, database: Database, fleeting: Database) -> None:
        self._database = database
        self._fleeting = fleeting

    def add(self, sample: TierSample) -> None:
        """Keep a sample; another one of the same moment replaces it."""
        values = structs.asdict(sample)
        key = {name: values.pop(name) for name in ("place", "at_ns")}
        old = (
            col(SampleRow.place) == sample.place,
            col(SampleRow.at_ns) < sample.at_ns - KEPT_NS,
        )
        with within(self._database, self._fleeting).write() as connection:
            put(connection, SampleRow, key, values)
            connection.execute(delete(SampleRow).where(*old))

    def samples(self, place: str, *, since_ns: int) -> tuple[TierSample, ...]:
        """A place's samples from then on, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(_AT_PLACE, {"place": place, "since_ns": since_ns})
            return decoded(_sample, rows)

    def newest(self) -> tuple[TierSample, ...]:
        """The newest sample of each place, by place."""
        with self._database.read() as connection:
            return decoded(_sample, connection.execute(_NEWEST))


def _sample(row: Any) -> TierSample:
    return TierSample(**{name: getattr(row, name) for name in TierSample.__struct_fields__})
