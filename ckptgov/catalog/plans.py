"""Plans as retention and capacity made them, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import zstandard
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update
from sqlmodel import col

from ckptgov.catalog.database import Database
from ckptgov.catalog.facts import EventKind
from ckptgov.catalog.history import add_event
from ckptgov.catalog.removal_tables import PlanRow
from ckptgov.catalog.rows import decoded
from ckptgov.errors import StaleState, StorageError, UsageError
from ckptgov.model.retention import Plan, PlanEntry, PlanState, StoredPlan

MOST_BYTES = 256 * 2**20
"""How large a plan's entries may be as JSON: of a million copies, with reasons."""
ALGORITHM = "sha256:"

_STANDING = (PlanState.PROPOSED, PlanState.WAITING, PlanState.APPROVED)
_REPLACEABLE = (PlanState.PROPOSED, PlanState.WAITING)
_MOST_FOUND = 100
_PLANS = select(*(each for each in PlanRow.__table__.columns if each.name != "entries"))  # type: ignore[attr-defined]
_PLAN = select(PlanRow).where(col(PlanRow.plan_id) == bindparam("plan_id"))
_ENTRIES = select(col(PlanRow.entries)).where(col(PlanRow.plan_id) == bindparam("plan_id"))


class PlanBook:
    """Plans by id. Every call is one transaction, or part of the caller's own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(
        self,
        plan: Plan,
        *,
        state: PlanState,
        by: str,
        note: str = "",
        replaces: Sequence[str] = (),
    ) -> StoredPlan:
        """Keep a plan; one that is kept already stays as it is, whatever its state.

        Of ``replaces`` those that are proposed or wait become STALE.

        Raises:
            UsageError: it is too large to be kept.
        """
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            for plan_id in dict.fromkeys(replaces):
                if plan_id != plan.plan_id:
                    _replace(connection, plan_id, by=by, now_ns=now_ns)
            known = _whole(connection, plan.plan_id)
            if known is not None:
                return known
            values = {
                "plan_id": plan.plan_id,
                "state": state.value,
                "stored_at_ns": now_ns,
                "changed_at_ns": now_ns,
                "by_whom": by,
                "note": note,
                "head": _packed(replace(plan, entries=())),
                "entries": _packed(plan.entries),
            }
            connection.execute(insert(PlanRow), values)
            detail = (
                ("plan", plan.plan_id),
                ("state", state.value),
                ("by", by),
                ("entries", str(len(plan.entries))),
            )
            add_event(connection, EventKind.PLAN_STORED, at_ns=now_ns, detail=detail)
        return StoredPlan(
            plan=plan, state=state, stored_at_ns=now_ns, changed_at_ns=now_ns, by=by, note=note
        )

    def plan(self, plan_id: str) -> StoredPlan | None:
        """The plan of exactly this id, whole."""
        with self._database.read() as connection:
            return _whole(connection, plan_id)

    def find(self, prefix: str) -> tuple[str, ...]:
        """Ids of plans that begin so, with or without the algorithm; newest first, at most 100."""
        begins = (
            func.substr(col(PlanRow.plan_id), 1, len(each)) == each
            for each in (prefix, ALGORITHM + prefix)
        )
        query = select(col(PlanRow.plan_id)).where(or_(*begins))
        newest = query.order_by(col(PlanRow.number).desc()).limit(_MOST_FOUND)
        with self._database.read() as connection:
            return tuple(connection.execute(newest).scalars())

    def plans(
        self, *, states: Collection[PlanState] | None = None, limit: int = 20
    ) -> tuple[StoredPlan, ...]:
        """Up to ``limit`` plans, newest first; those that are over without their entries."""
        query = _PLANS.order_by(col(PlanRow.number).desc()).limit(limit)
        if states is not None:
            query = query.where(col(PlanRow.state).in_([each.value for each in states]))
        with self._database.read() as connection:
            found = decoded(_without_entries, connection.execute(query))
            return tuple(
                _with_entries(connection, one) if one.state in _STANDING else one for one in found
            )

    def set_state(
        self, plan_id: str, *, expected: PlanState, to: PlanState, by: str, note: str = ""
    ) -> StoredPlan:
        """Change a plan's state, if it is still ``expected``; without a new note the old one stays.

        Raises:
            StaleState: it is in another state, or there is no such plan.
        """
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            _change(connection, plan_id, expected, to, by=by, note=note, now_ns=now_ns)
            changed = _whole(connection, plan_id)
        assert changed is not None  # it was changed just now
        return changed

    def forget(self, *, before_ns: int) -> int:
        """Drop plans that have been over since before then; how many there were."""
        gone = (
            col(PlanRow.state).not_in([each.value for each in _STANDING]),
            col(PlanRow.changed_at_ns) < before_ns,
        )
        with self._database.write() as connection:
            return connection.execute(delete(PlanRow).where(*gone)).rowcount


def _replace(connection: Connection, plan_id: str, *, by: str, now_ns: int) -> None:
    known = connection.execute(_PLAN, {"plan_id": plan_id}).one_or_none()
    if known is not None and known.state in _REPLACEABLE:
        before = PlanState(known.state)
        note = "a later plan takes its place"
        _change(connection, plan_id, before, PlanState.STALE, by=by, note=note, now_ns=now_ns)


def _change(
    connection: Connection,
    plan_id: str,
    expected: PlanState,
    to: PlanState,
    *,
    by: str,
    note: str,
    now_ns: int,
) -> None:
    values = {"state": to.value, "changed_at_ns": now_ns, "by_whom": by}
    if note:
        values["note"] = note
    this = (col(PlanRow.plan_id) == plan_id, col(PlanRow.state) == expected.value)
    if not connection.execute(update(PlanRow).where(*this).values(values)).rowcount:
        raise StaleState(f"plan {plan_id} is not (or no longer) {expected.value}")
    detail = (
        ("plan", plan_id),
        ("from", expected.value),
        ("to", to.value),
        ("by", by),
        ("note", note),
    )
    add_event(connection, EventKind.PLAN_STATE, at_ns=now_ns, detail=detail)


def _whole(connection: Connection, plan_id: str) -> StoredPlan | None:
    found = decoded(_without_entries, connection.execute(_PLAN, {"plan_id": plan_id}))
    return _with_entries(connection, found[0]) if found else None


def _with_entries(connection: Connection, one: StoredPlan) -> StoredPlan:
    packed = connection.execute(_ENTRIES, {"plan_id": one.plan.plan_id}).scalar_one()
    entries = _unpacked(packed, tuple[PlanEntry, ...])
    return replace(one, plan=replace(one.plan, entries=entries))


def _without_entries(row: Any) -> StoredPlan:
    return StoredPlan(
        plan=_unpacked(row.head, Plan),
        state=PlanState(row.state),
        stored_at_ns=row.stored_at_ns,
        changed_at_ns=row.changed_at_ns,
        by=row.by_whom,
        note=row.note,
    )


def _packed(value: object) -> bytes:
    # ASCII: names that are not UTF-8 have surrogate escapes, which msgspec would refuse.
    text = json.dumps(msgspec.to_builtins(value), ensure_ascii=True, separators=(",", ":"))
    if len(text) > MOST_BYTES:
        raise UsageError(
            f"a plan of {len(text) / 2**20:.0f} MiB is too large to be kept",
            hint="plan some runs at a time",
        )
    return zstandard.ZstdCompressor().compress(text.encode("ascii"))


def _unpacked(packed: bytes, kind: Any) -> Any:
    try:
        if zstandard.frame_content_size(packed) > MOST_BYTES:
            raise zstandard.ZstdError("larger than a plan may be")
        raw = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MOST_BYTES)
        return msgspec.convert(json.loads(raw), kind)
    except (zstandard.ZstdError, msgspec.ValidationError, ValueError, RecursionError) as error:
        message = f"a plan that the catalog keeps cannot be read: {error}"
        raise StorageError(message, hint="make a new one: ckptgov plan") from error
