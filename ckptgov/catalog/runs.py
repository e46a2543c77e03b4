"""Places, runs, and where runs lie."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, insert, literal, select, update
from sqlmodel import col

from ckptgov.catalog.columns import RawText
from ckptgov.catalog.facts import EventKind, PlaceFacts, RunFacts, RunRootFacts
from ckptgov.catalog.history import write_event
from ckptgov.catalog.rows import decoded, expect_text, place_of, root_of, run_of
from ckptgov.catalog.tables import PlaceRow, RunRootRow, RunRow
from ckptgov.errors import UsageError
from ckptgov.model.checkpoint import RunIdentity

_PLACES = select(PlaceRow).order_by(
    col(PlaceRow.tier), col(PlaceRow.node).nulls_first(), col(PlaceRow.place)
)
_PLACE = select(PlaceRow).where(col(PlaceRow.place) == bindparam("place"))
_AT_ROOT = select(PlaceRow).where(
    col(PlaceRow.is_current),
    col(PlaceRow.root) == bindparam("root"),
    # The expression of the index: no node means every node.
    func.coalesce(col(PlaceRow.node), literal("", RawText)) == bindparam("node", type_=RawText),
)
_RUNS = select(RunRow).order_by(col(RunRow.name))
_RUN_NAMED = select(RunRow).where(col(RunRow.name) == bindparam("name"))
_RUN = select(RunRow).where(col(RunRow.run_id) == bindparam("run_id"))
_ROOTS = (
    select(RunRootRow)
    .where(col(RunRootRow.run_id) == bindparam("run_id"))
    .order_by(col(RunRootRow.place), col(RunRootRow.path))
)
_ALL_ROOTS = select(RunRootRow).order_by(
    col(RunRootRow.run_id), col(RunRootRow.place), col(RunRootRow.path)
)
_ROOT_AT = select(RunRootRow).where(
    col(RunRootRow.place) == bindparam("place"), col(RunRootRow.path) == bindparam("path")
)
_RUN_AT = select(RunRow).where(
    col(RunRow.run_id)
    == select(col(RunRootRow.run_id))
    .where(col(RunRootRow.place) == bindparam("place"), col(RunRootRow.path) == bindparam("path"))
    .scalar_subquery()
)


def put_place(connection: Connection, place: PlaceFacts, *, at_ns: int) -> None:
    values = {
        "tier": place.tier,
        "node": place.node,
        "root": place.root,
        "fs_type": place.fs_type,
        "source": place.source,
        "is_current": True,
    }
    known = connection.execute(_PLACE, {"place": place.place}).one_or_none()
    if known is not None and all(getattr(known, name) == value for name, value in values.items()):
        return
    _retire_other(connection, place, at_ns=at_ns)
    if known is None:
        row = {**values, "place": place.place, "first_seen_at_ns": place.first_seen_at_ns}
        connection.execute(insert(PlaceRow), row)
    else:
        this = col(PlaceRow.place) == place.place
        connection.execute(update(PlaceRow).where(this).values(values))
    kind = EventKind.PLACE_ADDED if known is None else EventKind.PLACE_CHANGED
    detail = (("tier", place.tier), ("root", place.root))
    write_event(connection, kind, at_ns=at_ns, place=place.place, detail=detail)


def _retire_other(connection: Connection, place: PlaceFacts, *, at_ns: int) -> None:
    """A root where another identity was met before: that disk is not there any more."""
    for other in places_at(connection, place.root, place.node):
        if other.place == place.place:
            continue
        this = col(PlaceRow.place) == other.place
        connection.execute(update(PlaceRow).where(this).values(is_current=False))
        detail = (("by", place.place),)
        write_event(
            connection, EventKind.PLACE_REPLACED, at_ns=at_ns, place=other.place, detail=detail
        )


def places(connection: Connection) -> tuple[PlaceFacts, ...]:
    return decoded(place_of, connection.execute(_PLACES))


def places_at(connection: Connection, root: str, node: str | None) -> tuple[PlaceFacts, ...]:
    """The current place at a root: one or none."""
    wanted = {"root": root, "node": node or ""}
    return decoded(place_of, connection.execute(_AT_ROOT, wanted))


def put_run(connection: Connection, identity: RunIdentity, *, at_ns: int) -> None:
    known = run_by_id(connection, identity.run_id)
    if known is not None and known.identity.name == identity.name:
        return
    if known is not None:
        raise UsageError(
            f"run {identity.run_id} is registered as {known.identity.name!r}, not {identity.name!r}"
        )
    taken = run_by_name(connection, identity.name)
    if taken is not None:
        raise UsageError(
            f"the name {identity.name!r} is taken by run {taken.identity.run_id}",
            hint="give this run another name with --run",
        )
    values = {
        "run_id": identity.run_id,
        "name": identity.name,
        "selector": identity.selector,
        "expect": expect_text(identity.expect),
        "created_at_ns": at_ns,
    }
    connection.execute(insert(RunRow), values)
    detail = (("name", identity.name),)
    write_event(connection, EventKind.RUN_ADDED, at_ns=at_ns, run_id=identity.run_id, detail=detail)


def runs(connection: Connection) -> tuple[RunFacts, ...]:
    return decoded(run_of, connection.execute(_RUNS))


def run_by_name(connection: Connection, name: str) -> RunFacts | None:
    return _only(decoded(run_of, connection.execute(_RUN_NAMED, {"name": name})))


def run_by_id(connection: Connection, run_id: str) -> RunFacts | None:
    return _only(decoded(run_of, connection.execute(_RUN, {"run_id": run_id})))


def run_at(connection: Connection, place: str, path: str) -> RunFacts | None:
    return _only(decoded(run_of, connection.execute(_RUN_AT, {"place": place, "path": path})))


def put_run_root(connection: Connection, root: RunRootFacts, *, at_ns: int) -> None:
    wanted = {"place": root.place, "path": root.path}
    for known in decoded(root_of, connection.execute(_ROOT_AT, wanted)):
        if known.run_id != root.run_id:
            raise UsageError(
                f"{root.path or 'the tier root'} at place {root.place} belongs to run "
                f"{known.run_id}"
            )
        if known == root:
            return
        at = (col(RunRootRow.place) == root.place, col(RunRootRow.path) == root.path)
        connection.execute(update(RunRootRow).where(*at).values(sidecar=root.sidecar))
        break
    else:
        values = {**wanted, "run_id": root.run_id, "sidecar": root.sidecar}
        connection.execute(insert(RunRootRow), values)
    write_event(
        connection,
        EventKind.RUN_ROOT_ADDED,
        at_ns=at_ns,
        run_id=root.run_id,
        place=root.place,
        detail=(("path", root.path), ("sidecar", root.sidecar)),
    )


def drop_run_root(connection: Connection, root: RunRootFacts, *, at_ns: int) -> None:
    at = (col(RunRootRow.place) == root.place, col(RunRootRow.path) == root.path)
    is_ours = col(RunRootRow.run_id) == root.run_id
    if not connection.execute(delete(RunRootRow).where(*at, is_ours)).rowcount:
        return
    write_event(
        connection,
        EventKind.RUN_ROOT_DROPPED,
        at_ns=at_ns,
        run_id=root.run_id,
        place=root.place,
        detail=(("path", root.path),),
    )


def roots_of(connection: Connection, run_id: str) -> tuple[RunRootFacts, ...]:
    return decoded(root_of, connection.execute(_ROOTS, {"run_id": run_id}))


def roots(connection: Connection) -> tuple[RunRootFacts, ...]:
    return decoded(root_of, connection.execute(_ALL_ROOTS))


def _only(found: tuple[RunFacts, ...]) -> RunFacts | None:
    return found[0] if found else None
