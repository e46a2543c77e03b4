"""When a launcher last asked about a run: a sign that somebody wants it still."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select
from sqlmodel import col

from ckptgov.catalog.database import Database, within
from ckptgov.catalog.dialect import put
from ckptgov.catalog.removal_tables import SignRow

ONCE_NS = 3600 * 10**9

_SIGNS = select(SignRow).order_by(col(SignRow.run_id))
_SIGN = select(col(SignRow.asked_at_ns)).where(col(SignRow.run_id) == bindparam("run_id"))


class SignBook:
    """Signs by run, kept to the hour: a question is answered in less time than one is written."""

    def __init__(self, database: Database, fleeting: Database) -> None:
        self._database = database
        self._fleeting = fleeting

    def asked(self, run_id: str) -> None:
        """Note that somebody asks about a run now; costs one read where that is known."""
        with self._database.read() as connection:
            if self._is_known(connection, run_id):
                return
        with within(self._database, self._fleeting).write() as connection:
            now_ns = self._database.now_ns(connection)
            put(connection, SignRow, {"run_id": run_id}, {"asked_at_ns": now_ns})

    def signs(self) -> dict[str, int]:
        """When each run was last asked about, ns since the epoch, to the hour; by run id."""
        with self._database.read() as connection:
            return {row.run_id: row.asked_at_ns for row in connection.execute(_SIGNS)}

    def _is_known(self, connection: Connection, run_id: str) -> bool:
        """One from the future stays: the clock was set back, and the run lives all the longer."""
        known = connection.execute(_SIGN, {"run_id": run_id}).scalar_one_or_none()
        return known is not None and self._database.now_ns(connection) < known + ONCE_NS
