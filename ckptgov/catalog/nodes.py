"""The nodes of a cluster: when they were last heard of, and what was said of them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlmodel import col

from ckptgov.catalog.changes import bump
from ckptgov.catalog.cluster_tables import NodeRow
from ckptgov.catalog.database import Database, within
from ckptgov.catalog.dialect import put
from ckptgov.catalog.facts import EventKind
from ckptgov.catalog.history import write_event
from ckptgov.catalog.rows import decoded
from ckptgov.errors import UsageError
from ckptgov.model.cluster import NodeBeat, NodeFacts, NodeState

SILENCE_NS = 15 * 10**9
"""After so long without a beat, the next one is told as a change: answers may rest on it."""

_NODES = select(NodeRow).order_by(col(NodeRow.node))
_NODE = select(NodeRow).where(col(NodeRow.node) == bindparam("node"))


class NodeBook:
    """Nodes by name. Every call is one transaction, or part of the caller's own."""

    def __init__(self, database: Database, fleeting: Database) -> None:
        self._database = database
        self._fleeting = fleeting

    def beat(self, beat: NodeBeat) -> NodeFacts:
        """Note that a node lives; one declared dead is active again, other states stay.

        An ordinary beat waits for no disk and is told as no change. A new node, a restarted one,
        one that is heard again, or at another address, is.
        """
        with within(self._database, self._fleeting).write() as connection:
            now_ns = self._database.now_ns(connection)
            if _prolonged(connection, beat, now_ns):
                return _known(connection, beat.node)
        with self._database.write() as connection:
            now_ns = self._database.now_ns(connection)
            return _heard(connection, beat, now_ns)

    def set_state(self, node: str, state: NodeState, *, reason: str) -> NodeFacts:
        """Note what a person, or an alert, says of a node.

        Raises:
            UsageError: no such node was ever heard of.
        """
        with self._database.write() as connection:
            known = _found(connection, node)
            if known is None:
                raise UsageError(
                    f"node {node} was never heard of",
                    hint="start its agent, or check the name",
                )
            if (known.state, known.reason) == (state, reason):
                return known
            values = {"state": state.value, "reason": reason}
            connection.execute(update(NodeRow).where(col(NodeRow.node) == node).values(values))
            _tell(connection, node, state, reason, at_ns=self._database.now_ns(connection))
            return _known(connection, node)

    def nodes(self) -> tuple[NodeFacts, ...]:
        """Every node ever heard of, by name."""
        with self._database.read() as connection:
            return decoded(_node, connection.execute(_NODES))

    def node(self, name: str) -> NodeFacts | None:
        """The node of this name."""
        with self._database.read() as connection:
            return _found(connection, name)


def _prolonged(connection: Connection, beat: NodeBeat, now_ns: int) -> bool:
    """Whether it was the beat of a node that lives on as it is known; in one statement."""
    same = (
        col(NodeRow.node) == beat.node,
        col(NodeRow.state) != NodeState.DEAD.value,
        col(NodeRow.boot) == beat.boot,
        col(NodeRow.version) == beat.version,
        col(NodeRow.peer_url).is_not_distinct_from(beat.peer_url),
        col(NodeRow.beat_at_ns) > now_ns - SILENCE_NS,
    )
    return bool(connection.execute(update(NodeRow).where(*same).values(beat_at_ns=now_ns)).rowcount)


def _heard(connection: Connection, beat: NodeBeat, now_ns: int) -> NodeFacts:
    known = _found(connection, beat.node)
    is_back = known is not None and known.state is NodeState.DEAD
    values: dict[str, object] = {
        "boot": beat.boot,
        "version": beat.version,
        "peer_url": beat.peer_url,
        "beat_at_ns": now_ns,
    }
    if known is None or is_back:
        values |= {"state": NodeState.ACTIVE.value, "reason": ""}
    first = {"first_seen_at_ns": now_ns if known is None else known.first_seen_at_ns}
    put(connection, NodeRow, {"node": beat.node}, {**first, **_standing(known), **values})
    if known is None:
        detail = (("node", beat.node),)
        write_event(connection, EventKind.NODE_ADDED, at_ns=now_ns, detail=detail)
    elif is_back:
        _tell(connection, beat.node, NodeState.ACTIVE, "heard again", at_ns=now_ns)
    else:
        bump(connection, None)
    return _known(connection, beat.node)


def _standing(known: NodeFacts | None) -> dict[str, object]:
    return {} if known is None else {"state": known.state.value, "reason": known.reason}


def _tell(connection: Connection, node: str, state: NodeState, reason: str, *, at_ns: int) -> None:
    detail = (("node", node), ("state", state.value), ("reason", reason))
    write_event(connection, EventKind.NODE_STATE, at_ns=at_ns, detail=detail)


def _found(connection: Connection, name: str) -> NodeFacts | None:
    found = decoded(_node, connection.execute(_NODE, {"node": name}))
    return found[0] if found else None


def _known(connection: Connection, name: str) -> NodeFacts:
    (known,) = decoded(_node, connection.execute(_NODE, {"node": name}))
    return known


def _node(row: Any) -> NodeFacts:
    return NodeFacts(
        node=row.node,
        state=NodeState(row.state),
        reason=row.reason,
        boot=row.boot,
        version=row.version,
        peer_url=row.peer_url,
        first_seen_at_ns=row.first_seen_at_ns,
        beat_at_ns=row.beat_at_ns,
    )
