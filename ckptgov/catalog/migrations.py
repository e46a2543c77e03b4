"""What turns an older schema into the next: statements frozen as they were then."""

from __future__ import annotations

from sqlalchemy import Connection

_MOVING = (
    """CREATE TABLE flows (
    flow_id VARCHAR NOT NULL,
    what BLOB NOT NULL,
    flow_class VARCHAR NOT NULL,
    source VARCHAR,
    target VARCHAR,
    node BLOB NOT NULL,
    size_bytes BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    turn VARCHAR NOT NULL,
    is_companion BOOLEAN NOT NULL,
    host BLOB NOT NULL,
    boot VARCHAR NOT NULL,
    pid BIGINT NOT NULL,
    started BIGINT NOT NULL,
    opened_at_ns BIGINT NOT NULL,
    lease_ns BIGINT NOT NULL,
    grant_seq BIGINT NOT NULL,
    granted_at_ns BIGINT NOT NULL,
    granted VARCHAR,
    held VARCHAR,
    fallback VARCHAR,
    waits_for VARCHAR NOT NULL,
    beats BIGINT NOT NULL,
    beat_at_ns BIGINT NOT NULL,
    moved_bytes BIGINT NOT NULL,
    measured_bytes_per_s BIGINT NOT NULL,
    wanted VARCHAR,
    read_push_backs BIGINT NOT NULL,
    write_push_backs BIGINT NOT NULL,
    PRIMARY KEY (flow_id)
)""",
    """CREATE TABLE allocator (
    only INTEGER NOT NULL,
    holder VARCHAR NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at_ns BIGINT NOT NULL,
    PRIMARY KEY (only)
)""",
    """CREATE TABLE tier_pace (
    subject VARCHAR NOT NULL,
    permille BIGINT NOT NULL,
    changed_at_ns BIGINT NOT NULL,
    PRIMARY KEY (subject)
)""",
    """CREATE TABLE abilities (
    place VARCHAR NOT NULL,
    told VARCHAR NOT NULL,
    checked_at_ns BIGINT NOT NULL,
    PRIMARY KEY (place)
)""",
    """CREATE TABLE copy_leases (
    content_id VARCHAR NOT NULL,
    place VARCHAR NOT NULL,
    holder VARCHAR NOT NULL,
    epoch BIGINT NOT NULL,
    expires_at_ns BIGINT NOT NULL,
    PRIMARY KEY (content_id, place)
)""",
)
"""Version 2: flows and their grants, abilities of places, leases on copying."""


def add_moving(connection: Connection) -> None:
    """From version 1 to version 2."""
    for statement in _MOVING:
        connection.exec_driver_sql(statement)
