"""Copies on their way out: condemned, moved aside, purged, or brought back.

A copy leaves VERIFIED only through ``condemn`` and comes to be touched only through ``begin``;
both ask P2 (``guards``) of what stands then, in the transaction that changes the state. How far a
copy got is its own state; a removal tells what is still to be done with it, and when.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite

from msgspec.structs import replace
from sqlalchemy import Connection

from ckptgov.catalog import copies, guards, removal_rows, schema
from ckptgov.catalog.database import Database
from ckptgov.catalog.facts import KEEP, PlacedCopy
from ckptgov.catalog.guards import Doomed, Going, Guard
from ckptgov.catalog.removal_rows import Key
from ckptgov.errors import RefusedBySafety, StaleState
from ckptgov.model.checkpoint import Evidence
from ckptgov.model.copies import BEGUN, GONE, TRANSITIONS, CopyState
from ckptgov.model.retention import Removal


class RemovalBook:
    """Removals. Every call is one transaction, or part of the caller's own.

    A guard is made of the run's records: read them in the transaction of the call that is given
    it, so that no pin comes in between.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def condemn(
        self, run_id: str, doomed: Sequence[Doomed], guard: Guard, *, plan_id: str
    ) -> tuple[Removal, ...]:
        """Decide that copies go, all of them or none; nothing of them is touched yet.

        Raises:
            StaleState: one of them is not (or no longer) verified.
            RefusedBySafety: P2 forbids it; the message names what would be missed. Or another
                ckptgov has migrated the catalog meanwhile.
            ValueError: a copy twice, or a time that is none.
        """
        _check_times(doomed)
        keys = [(run_id, each.content_id, each.place) for each in doomed]
        if len(set(keys)) < len(keys):
            raise ValueError("a copy is condemned once")
        if not keys:
            return ()
        going = Going(
            copies=frozenset((each.content_id, each.place) for each in doomed),
            actions=tuple((each.content_id, each.action) for each in doomed),
        )
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            schema.require_current(connection, self._database.name)
            held = _verified(connection, run_id, keys)
            guards.check(connection, run_id, going, guard, now_ns=now_ns)
            return tuple(
                _condemned(connection, held[key], one, plan_id, now_ns)
                for key, one in zip(keys, doomed, strict=True)
            )

    def begin(self, run_id: str, content_id: str, place: str, guard: Guard) -> Removal:
        """Go on from deciding to doing: the copy may be moved aside now, and only forward.

        What else is condemned of the checkpoint is taken to go as well.

        Raises:
            StaleState: the copy is not (or no longer) condemned.
            RefusedBySafety: its grace is not over, P2 forbids it by now, or another ckptgov has
                migrated the catalog meanwhile.
        """
        key = (run_id, content_id, place)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            schema.require_current(connection, self._database.name)
            one = _known(connection, key, {CopyState.CONDEMNED})
            if now_ns < one.due_at_ns:
                left_s = (one.due_at_ns - now_ns) / 1e9
                raise RefusedBySafety(f"{one.name} may still be brought back for {left_s:.0f} s")
            together = removal_rows.removals_of(connection, run_id, content_id)
            going = Going(
                copies=frozenset(
                    (each.content_id, each.place)
                    for each in together
                    if each.state is CopyState.CONDEMNED
                ),
                actions=((content_id, one.action),),
            )
            guards.check(connection, run_id, going, guard, now_ns=now_ns)
            _move(connection, key, CopyState.CONDEMNED, CopyState.TRASHING, now_ns)
            return replace(one, state=CopyState.TRASHING)

    def ordered(self, removal: Removal) -> Removal:
        """Take over a removal that the service began: for the catalog of a node's agent only.

        Such a catalog sees one node, and cannot tell what the run would miss. P2 was asked of the
        service's, which sees all of them, when it began. What is on its way already goes on as it
        stands.

        Raises:
            StaleState: no copy stands there that could be moved aside.
        """
        key = (removal.run_id, removal.content_id, removal.place)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            known = removal_rows.removal(connection, key)
            if known is not None and known.state in BEGUN:
                return known
            held = _copy(connection, key)
            if known is None:
                if held is None or CopyState.CONDEMNED not in TRANSITIONS[held.state]:
                    raise StaleState(f"no copy of {key[1]} stands at place {key[2]}")
                _move(connection, key, held.state, CopyState.CONDEMNED, now_ns)
            removal_rows.drop(connection, key)
            _move(connection, key, CopyState.CONDEMNED, CopyState.TRASHING, now_ns)
            one = replace(removal, state=CopyState.TRASHING, trash="", error="")
            removal_rows.add(connection, one)
            return one

    def moved(self, run_id: str, content_id: str, place: str, *, trash: str) -> Removal:
        """Note that a copy was moved aside, to ``trash`` below the place's root.

        Raises:
            StaleState: nobody began to move it, or it was noted already.
        """
        key = (run_id, content_id, place)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            one = _known(connection, key, {CopyState.TRASHING})
            due_at_ns = now_ns + _ns(one.trash_s)
            _move(connection, key, CopyState.TRASHING, CopyState.TRASHED, now_ns)
            removal_rows.change(connection, key, trash=trash, due_at_ns=due_at_ns, error="")
            return replace(one, state=CopyState.TRASHED, trash=trash, due_at_ns=due_at_ns, error="")

    def purged(self, run_id: str, content_id: str, place: str) -> None:
        """Note that nothing is left of a copy, at the place or in its trash.

        Raises:
            StaleState: nobody began to move it, or it was noted already.
        """
        key = (run_id, content_id, place)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            one = _known(connection, key, BEGUN)
            removal_rows.drop(connection, key)
            _move(connection, key, one.state, CopyState.PURGED, now_ns)

    def undo(self, run_id: str, content_id: str, place: str) -> CopyState:
        """Give a copy back: a condemned one is as it was; one from the trash counts once compared.

        Where the copy was moved aside, its files must lie in their place again.

        Raises:
            StaleState: it is being moved just now, or there is nothing to undo.
        """
        key = (run_id, content_id, place)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            one = _known(connection, key, {CopyState.CONDEMNED, CopyState.TRASHED})
            removal_rows.drop(connection, key)
            if one.state is CopyState.TRASHED:
                _move(connection, key, one.state, CopyState.REOPENED, now_ns)
                return CopyState.REOPENED
            held = _copy(connection, key)
            assert held is not None  # a removal belongs to its copy
            copies.change(
                connection,
                key,
                expected=CopyState.CONDEMNED,
                to=CopyState.VERIFIED,
                at_ns=now_ns,
                evidence=held.evidence,
                verified_at_ns=KEEP,
                findings=held.findings,
                coverage=KEEP,
                name=None,
            )
            return CopyState.VERIFIED

    def resisted(self, run_id: str, content_id: str, place: str, error: str) -> None:
        """Note why storage does not let a copy go; it is tried again.

        Raises:
            StaleState: it is not on its way out.
        """
        with self._database.write() as connection:
            if not removal_rows.change(connection, (run_id, content_id, place), error=error):
                raise _gone((run_id, content_id, place))

    def adopt(self, removal: Removal) -> None:
        """Take over what lies in a trash, or on its way there, as a rebuild finds it.

        Again replaces what was known of it.

        Raises:
            UnknownRun: the checkpoint, or the place, is not known.
            StaleState: a copy stands at the place.
            ValueError: it is neither in the trash nor on its way.
        """
        if removal.state not in BEGUN:
            raise ValueError(f"what is {removal.state} lies in no trash")
        key = (removal.run_id, removal.content_id, removal.place)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            held = _copy(connection, key)
            if held is not None and held.state not in GONE:
                raise StaleState(
                    f"a copy of {removal.content_id} stands at place {removal.place} "
                    f"({held.state.value})"
                )
            removal_rows.drop(connection, key)
            copies.refill(connection, _trashed(removal, held), at_ns=now_ns)
            removal_rows.add(connection, removal)

    def removal(self, run_id: str, content_id: str, place: str) -> Removal | None:
        """The removal of one copy, if it is on its way out."""
        with self._database.read() as connection:
            return removal_rows.removal(connection, (run_id, content_id, place))

    def removals(
        self,
        *,
        run_id: str | None = None,
        place: str | None = None,
        states: Collection[CopyState] | None = None,
        due_before_ns: int | None = None,
        limit: int | None = None,
    ) -> tuple[Removal, ...]:
        """Copies on their way out, those due first; ``due_before_ns``: due by then."""
        with self._database.read() as connection:
            return removal_rows.removals(
                connection,
                run_id=run_id,
                place=place,
                states=states,
                due_before_ns=due_before_ns,
                limit=limit,
            )


def _check_times(doomed: Sequence[Doomed]) -> None:
    for each in doomed:
        for seconds in (each.grace_s, each.trash_s):
            if not (isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{seconds} s is no time to wait")


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _verified(connection: Connection, run_id: str, keys: Sequence[Key]) -> dict[Key, PlacedCopy]:
    found = copies.copies_of(connection, run_id, [content_id for _, content_id, _ in keys])
    held = {
        (run_id, one.content_id, one.place): one
        for those in found.values()
        for one in those
        if one.state is CopyState.VERIFIED
    }
    stale = [f"{content_id} at place {place}" for _, content_id, place in set(keys) - held.keys()]
    if stale:
        raise StaleState("not (or no longer) verified: " + ", ".join(sorted(stale)))
    return held


def _condemned(
    connection: Connection, held: PlacedCopy, one: Doomed, plan_id: str, now_ns: int
) -> Removal:
    removal = Removal(
        run_id=held.run_id,
        content_id=held.content_id,
        place=held.place,
        name=held.name,
        action=one.action,
        plan_id=plan_id,
        state=CopyState.CONDEMNED,
        condemned_at_ns=now_ns,
        due_at_ns=now_ns + _ns(one.grace_s),
        trash_s=one.trash_s,
        bytes=one.bytes,
        files=one.files,
    )
    key = (held.run_id, held.content_id, held.place)
    why = (("plan", plan_id), ("action", one.action.value))
    _move(connection, key, CopyState.VERIFIED, CopyState.CONDEMNED, now_ns, why)
    removal_rows.add(connection, removal)
    return removal


def _move(
    connection: Connection,
    key: Key,
    before: CopyState,
    after: CopyState,
    now_ns: int,
    why: Sequence[tuple[str, str]] = (),
) -> None:
    """Change the state alone: what was last said of the copy's bytes stays for an undo."""
    copies.check_allowed(before, after)
    copies.change(
        connection,
        key,
        expected=before,
        to=after,
        at_ns=now_ns,
        evidence=None,
        verified_at_ns=None,
        findings=None,
        coverage=KEEP,
        name=None,
        why=why,
    )


def _known(connection: Connection, key: Key, states: Collection[CopyState]) -> Removal:
    one = removal_rows.removal(connection, key)
    if one is None:
        raise _gone(key)
    if one.state not in states:
        raise StaleState(f"{one.name} at place {one.place} is {one.state.value} already")
    return one


def _gone(key: Key) -> StaleState:
    return StaleState(f"the copy of {key[1]} at place {key[2]} is not on its way out")


def _copy(connection: Connection, key: Key) -> PlacedCopy | None:
    run_id, content_id, place = key
    found = copies.copies_of(connection, run_id, [content_id])[content_id]
    return next((one for one in found if one.place == place), None)


def _trashed(removal: Removal, held: PlacedCopy | None) -> PlacedCopy:
    return PlacedCopy(
        run_id=removal.run_id,
        content_id=removal.content_id,
        place=removal.place,
        name=removal.name,
        state=removal.state,
        coverage=None if held is None else held.coverage,
        evidence=Evidence.NONE if held is None else held.evidence,
        verified_at_ns=None if held is None else held.verified_at_ns,
    )
