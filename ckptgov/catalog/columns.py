"""What columns hold. Migrations are written in these: one that changed would change the past."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, LargeBinary, String, Text, TypeDecorator
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import TypeCompiler
from sqlalchemy.types import TypeEngine


class RawText(TypeDecorator[str]):
    """Text with surrogate escapes (``os.fsdecode``), stored as the raw bytes it stands for."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode("utf-8", "surrogateescape")

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else value.decode("utf-8", "surrogateescape")


class PlainText(TypeDecorator[str]):
    """Text that sorts by its bytes, whatever language the database speaks."""

    impl = String
    cache_ok = True


@compiles(PlainText, "postgresql")
def _plain_text_column(kind: PlainText, compiler: TypeCompiler, **more: Any) -> str:
    return 'VARCHAR COLLATE "C"'


class Number(TypeDecorator[int]):
    """A key that the database counts up; only INTEGER is one in SQLite."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[int]:
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else BigInteger())


class DecimalText(TypeDecorator[int]):
    """A whole number of any size, stored as decimal text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)
