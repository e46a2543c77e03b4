"""Copies and their states: every change is a compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlmodel import col

from ckptgov.catalog.dialect import add_new, put
from ckptgov.catalog.facts import EventKind, Keep, PlacedCopy
from ckptgov.catalog.history import write_event
from ckptgov.catalog.rows import decoded, findings_of, findings_text
from ckptgov.catalog.tables import CopyRow
from ckptgov.errors import StaleState
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.copies import TRANSITIONS, CopyState
from ckptgov.model.facts import Finding

_COPIES = (
    select(CopyRow)
    .where(col(CopyRow.run_id) == bindparam("run_id"))
    .order_by(col(CopyRow.content_id), col(CopyRow.place))
)
_COPIES_OF = _COPIES.where(col(CopyRow.content_id).in_(bindparam("content_ids", expanding=True)))
_MOST_AT_ONCE = 500  # how many values one statement is given


def put_copy(connection: Connection, copy: PlacedCopy, *, at_ns: int) -> None:
    _check_evidence(copy.state, copy.evidence)
    if not add_new(connection, CopyRow, _key(copy) | _values(copy)):
        raise FileExistsError(f"{copy.content_id} already has a copy at place {copy.place}")
    _tell_added(connection, copy, at_ns=at_ns)


def refill(connection: Connection, copy: PlacedCopy, *, at_ns: int) -> None:
    """Record a copy as a rebuild found it, whatever was known at its place before."""
    put(connection, CopyRow, _key(copy), _values(copy))
    _tell_added(connection, copy, at_ns=at_ns)


def _key(copy: PlacedCopy) -> dict[str, object]:
    return {"run_id": copy.run_id, "content_id": copy.content_id, "place": copy.place}


def _values(copy: PlacedCopy) -> dict[str, object]:
    return {
        "name": copy.name,
        "state": copy.state.value,
        "coverage": copy.coverage,
        "evidence": copy.evidence.value,
        "verified_at_ns": copy.verified_at_ns,
        "findings": findings_text(copy.findings),
    }


def _tell_added(connection: Connection, copy: PlacedCopy, *, at_ns: int) -> None:
    write_event(
        connection,
        EventKind.COPY_ADDED,
        at_ns=at_ns,
        run_id=copy.run_id,
        content_id=copy.content_id,
        place=copy.place,
        detail=(("state", copy.state.value), ("name", copy.name)),
    )


def change(
    connection: Connection,
    key: tuple[str, str, str],
    *,
    expected: CopyState,
    to: CopyState,
    at_ns: int,
    evidence: Evidence | None,
    verified_at_ns: int | Keep | None,
    findings: Iterable[Finding] | None,
    coverage: bytes | Keep | None,
    name: str | None,
    why: Iterable[tuple[str, str]] = (),
) -> None:
    """Set the copy ``key`` (run, content id, place) from ``expected`` to ``to``, maybe the same.

    ``verified_at_ns`` KEEP: the evidence is that of the verdict which stands.
    """
    _check_evidence(to, evidence)
    if findings is None and to is CopyState.VERIFIED:
        findings = ()
    values: dict[str, object] = {"state": to.value}
    if evidence is not None and not isinstance(verified_at_ns, Keep):
        values["evidence"] = evidence.value
        values["verified_at_ns"] = at_ns if verified_at_ns is None else verified_at_ns
    if findings is not None:
        values["findings"] = findings_text(findings)
    if not isinstance(coverage, Keep):
        values["coverage"] = coverage
    if name is not None:
        values["name"] = name
    run_id, content_id, place = key
    statement = update(CopyRow).where(
        col(CopyRow.run_id) == run_id,
        col(CopyRow.content_id) == content_id,
        col(CopyRow.place) == place,
        col(CopyRow.state) == expected.value,
    )
    if not connection.execute(statement.values(values)).rowcount:
        raise StaleState(
            f"the copy of {content_id} at place {place} is not (or no longer) {expected}"
        )
    detail = [("from", expected.value), ("to", to.value)]
    if evidence is not None:
        detail.append(("evidence", evidence.value))
    detail += why
    write_event(
        connection,
        EventKind.COPY_CONFIRMED if to is expected else EventKind.COPY_STATE,
        at_ns=at_ns,
        run_id=run_id,
        content_id=content_id,
        place=place,
        detail=detail,
    )


def check_allowed(expected: CopyState, to: CopyState) -> None:
    """Raise ValueError unless ``to`` may follow ``expected``."""
    if to not in TRANSITIONS[expected]:
        raise ValueError(f"a copy that is {expected} cannot become {to}")


def copies(connection: Connection, run_id: str) -> tuple[PlacedCopy, ...]:
    return decoded(_copy, connection.execute(_COPIES, {"run_id": run_id}))


def copies_of(
    connection: Connection, run_id: str, content_ids: Sequence[str]
) -> dict[str, tuple[PlacedCopy, ...]]:
    """The copies of these checkpoints, by place; of one without any an empty tuple."""
    found: dict[str, list[PlacedCopy]] = {each: [] for each in content_ids}
    wanted = list(found)
    for start in range(0, len(wanted), _MOST_AT_ONCE):
        some = {"run_id": run_id, "content_ids": wanted[start : start + _MOST_AT_ONCE]}
        for one in decoded(_copy, connection.execute(_COPIES_OF, some)):
            found[one.content_id].append(one)
    return {content_id: tuple(each) for content_id, each in found.items()}


def _check_evidence(state: CopyState, evidence: Evidence | None) -> None:
    if state is CopyState.VERIFIED and evidence in {None, Evidence.NONE}:
        raise ValueError("a verified copy needs its evidence")


def _copy(row: Any) -> PlacedCopy:
    return PlacedCopy(
        run_id=row.run_id,
        content_id=row.content_id,
        place=row.place,
        name=row.name,
        state=CopyState(row.state),
        coverage=row.coverage,
        evidence=Evidence(row.evidence),
        verified_at_ns=row.verified_at_ns,
        findings=findings_of(row.findings),
    )
