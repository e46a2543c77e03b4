"""What Alembic runs revisions in: the connection and the transaction of whoever calls it."""

from __future__ import annotations

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], on_version_apply=given["on_version_apply"])
with context.begin_transaction():
    context.run_migrations()
