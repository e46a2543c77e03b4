"""Run revisions on a connection that is in a transaction. Imports Alembic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, delete, insert

from ckptgov.catalog.tables import ALEMBIC

SCRIPTS = Path(__file__).parent


def run(
    connection: Connection,
    version: int,
    target: int,
    reached: Callable[[int, int], None],
) -> None:
    """Bring the schema from ``version`` up or down to ``target``; 0 is an empty database.

    ``reached`` is told of each revision, within the transaction: from which version, to which.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))

    def on_version_apply(*, step: Any, **more: Any) -> None:
        down = int(step.down_revision_ids[0]) if step.down_revision_ids else 0
        up = int(step.up_revision_id)
        reached(*((down, up) if step.is_upgrade else (up, down)))

    config.attributes.update(connection=connection, on_version_apply=on_version_apply)
    _stamp(connection, version)
    if target >= version:
        command.upgrade(config, str(target))
    else:
        command.downgrade(config, str(target))


def _stamp(connection: Connection, version: int) -> None:
    """Let Alembic begin where ``meta`` says, whatever an older program did meanwhile."""
    ALEMBIC.create(connection, checkfirst=True)
    connection.execute(delete(ALEMBIC))
    if version:
        connection.execute(insert(ALEMBIC), {"version_num": str(version)})
