"""Reads parts of lists in SQL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T")


class PositionNotFoundError(Exception):
    """The list does not contain the entry after which the part begins."""


@dataclass(frozen=True, slots=True)
class Part:
    """The requested part of a list."""

    limit: int | None = None
    """The most entries; None: all."""
    after: UUID | None = None
    """The entry after which the part begins."""


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    entries: tuple[T, ...]
    total: int
    """The number of entries in the whole list."""
    has_more: bool
    """Whether there are entries after this part."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a list: by time, then by identifier."""

    time: sa.Column[int]
    id: sa.Column[Any]
    newest_first: bool = False


async def read_page(
    connection: AsyncConnection,
    query: sa.Select[Any],
    order: Order,
    part: Part,
    read: Callable[[sa.Row[Any]], T],
) -> Page[T]:
    """Return a part of a query's result. Raises PositionNotFoundError."""
    count = sa.select(sa.func.count()).select_from(query.subquery())
    total = (await connection.execute(count)).scalar_one()
    if part.after is not None:
        position = query.with_only_columns(order.time).where(order.id == part.after)
        since = (await connection.execute(position)).scalar()
        if since is None:
            raise PositionNotFoundError
        is_behind = order.time < since if order.newest_first else order.time > since
        query = query.where(sa.or_(is_behind, sa.and_(order.time == since, order.id > part.after)))
    if part.limit is not None:
        query = query.limit(part.limit + 1)
    query = query.order_by(order.time.desc() if order.newest_first else order.time, order.id)
    rows = (await connection.execute(query)).all()
    entries = tuple(read(row) for row in rows[: part.limit])
    return Page(entries, total, has_more=len(rows) > len(entries))


@dataclass(frozen=True, slots=True)
class Sorted:
    """The requested part of a sorted list."""

    sort: str
    """A column's name, with a leading ``-`` for the reverse order."""
    offset: int = 0
    limit: int = 1000


def order_of(
    sort: str, columns: Mapping[str, sa.ColumnElement[Any]], *ties: sa.ColumnElement[Any]
) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the order by a named column. Rows without a value come last in both directions."""
    column = columns[sort.removeprefix("-")]
    return (column.is_(None), column.desc() if sort.startswith("-") else column, *ties)


async def read_sorted(
    connection: AsyncConnection,
    query: sa.Select[Any],
    order: tuple[sa.ColumnElement[Any], ...],
    part: Sorted,
    read: Callable[[sa.Row[Any]], T],
) -> Page[T]:
    """Return a part of a query's sorted result, by position."""
    count = sa.select(sa.func.count()).select_from(query.subquery())
    total = (await connection.execute(count)).scalar_one()
    page = query.order_by(*order).offset(part.offset).limit(part.limit)
    rows = (await connection.execute(page)).all()
    return Page(tuple(map(read, rows)), total, has_more=part.offset + len(rows) < total)
