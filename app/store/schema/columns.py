"""Column types of both databases, and the metadata with its naming convention.

Instants are aware UTC; constraint names follow one convention, so that migrations in batch mode can
drop them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    CheckConstraint,
    ColumnElement,
    DateTime,
    Dialect,
    MetaData,
    TypeDecorator,
    literal_column,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC instant; a naive one is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; SQLite stores it without the zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("naive datetime; use aware UTC")
        converted = value.astimezone(UTC)
        return converted.replace(tzinfo=None) if dialect.name == "sqlite" else converted

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware UTC instant on both databases."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def one_of(column: str, values: type[Any]) -> CheckConstraint:
    """Return the CHECK that a column holds a member of an enumeration."""
    words = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({words})", name=column)


def is_among(column: ColumnElement[str], words: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a column holds one of some words of this program's own.

    They are written out: bound values would be put into the statement anew each time.
    """
    return column.in_([literal_column(f"'{word}'") for word in words])
