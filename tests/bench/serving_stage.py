"""Catalogs with a run of very many checkpoints, on SQLite and PostgreSQL, for the serving bench.

One checkpoint is recorded as a scan would; the others are copies of its rows, made by the engine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy

from ckptgov.model.clock import SystemClock
from ckptgov.model.facts import Query
from ckptgov.ops import standing
from ckptgov.service.serving import Serving
from ckptgov.testing import postgres, sealed_runs

RUN = "bench"
_RUN_ID = "0b7a41c0-0000-4000-8000-000000000001"
_PLACE = "00000000-0000-4000-8000-000000000000"
_COPIED = ("checkpoints", "copies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A database engine; ``missing`` says why it cannot be measured here."""

    name: str
    missing: str | None = None


def engines() -> Iterator[Engine]:
    """Both of them."""
    yield Engine(name="SQLite")
    yield Engine(name="PostgreSQL", missing=postgres.reason_to_skip())


@contextmanager
def filled(engine: Engine, home: Path, count: int) -> Iterator[Path]:
    """A home directory whose catalog has a run of so many checkpoints; gone with the block."""
    root = home / f"serving-{engine.name}-{count}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        (root / "state").mkdir(parents=True)
        lines = ["tiers:", "  - name: shared", f"    url: {root}/shared"]
        url = None
        if engine.name == "PostgreSQL":
            url = stack.enter_context(postgres.postgres()).new_database()
            lines.insert(0, f"catalog: {url}")
        (root / "state/ckptgov.yaml").write_text("\n".join(lines) + "\n")
        with Serving.open(str(root / "state"), clock=SystemClock()) as serving:
            place = sealed_runs.put_place(
                serving.catalog, root / "shared", tier="shared", uuid=_PLACE
            )
            sealed_runs.put_run(serving.catalog, RUN, _RUN_ID, [place])
            newest = sealed_runs.manifest_of_step(10 * count)
            sealed_runs.record_sealed(serving.catalog, _RUN_ID, newest, [place.place])
        _multiply(url or f"sqlite:///{root}/state/catalog.sqlite", count - 1)
        yield root / "state"


def _multiply(url: str, count: int) -> None:
    """Rows of ``count`` older checkpoints like the one that is there."""
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for table in _COPIED:
            columns = [one["name"] for one in sqlalchemy.inspect(engine).get_columns(table)]
            values = [_older(engine.dialect.name, name) for name in columns]
            connection.exec_driver_sql(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
                f" INSERT INTO {table} ({', '.join(columns)})"
                f" SELECT {', '.join(values)} FROM {table}, n"
            )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()


def _older(dialect: str, column: str) -> str:
    if column == "content_id":
        hexed = "printf('%064x', i)" if dialect == "sqlite" else "lpad(to_hex(i), 64, '0')"
        return f"'sha256:' || {hexed}"
    return "i" if column == "step" else column


def computed(home: Path, *, times: int) -> None:
    """Answer from the catalog so many times, remembering nothing."""
    with Serving.open(os.fspath(home), clock=SystemClock()) as serving:
        for _ in range(times):
            with serving.context() as context:
                told = standing.latest(context, RUN, Query()).answer
            if told.error is not None:
                raise told.error
