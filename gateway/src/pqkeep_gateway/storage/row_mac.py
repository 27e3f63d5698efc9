"""The MAC of rows in the accounts database, under a key from the pepper.

Rows are found by a credential's digest, which does not depend on the owner. The MAC covers both. So
a row that was changed, copied or forged without the pepper is ignored.
"""

import hmac
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.ext.asyncio import AsyncConnection

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

ROW_KEY = "row_key"
"""The execution option of an engine with the key: 32 bytes."""
MAC = "mac"
"""The name of the column with the row's MAC."""
_COVERS = "covers"


def mac_column(table: str, *covers: str) -> sa.Column[bytes]:
    """Return the MAC column of a table (32 bytes), the last one, which an INSERT fills in.

    ``covers``: the columns that the MAC covers. An UPDATE of one must also set the MAC: see
    ``mac_of``.
    """

    def of_insert(context: DefaultExecutionContext) -> bytes:
        row = context.get_current_parameters()  # type: ignore[no-untyped-call] # of the library
        return _mac(context.execution_options[ROW_KEY], table, [row.get(name) for name in covers])

    return sa.Column(
        MAC, sa.LargeBinary(32), nullable=False, default=of_insert, info={_COVERS: covers}
    )


def covered(table: sa.Table) -> tuple[str, ...]:
    """Return the columns that a table's MAC covers."""
    columns: tuple[str, ...] = table.c[MAC].info[_COVERS]
    return columns


def mac_of(connection: AsyncConnection, table: sa.Table, row: Mapping[str, object]) -> bytes:
    """Return the MAC (32 bytes) of a row, given by its columns' names."""
    key = connection.engine.get_execution_options()[ROW_KEY]
    return _mac(key, table.name, [row[name] for name in covered(table)])


def mac_after(
    connection: AsyncConnection, table: sa.Table, row: sa.Row[Any], changes: Mapping[str, object]
) -> bytes:
    """Return the MAC (32 bytes) of an existing row after changes."""
    return mac_of(connection, table, {**_values(table, row), **changes})


async def authentic_row(
    connection: AsyncConnection, table: sa.Table, statement: sa.Executable
) -> sa.Row[Any] | None:
    """Return the row of a statement; None without a row, or where no gateway wrote it."""
    row = (await connection.execute(statement)).one_or_none()
    return row if row is not None and is_authentic(connection, table, row) else None


def is_authentic(connection: AsyncConnection, table: sa.Table, row: sa.Row[Any]) -> bool:
    """Return whether a gateway wrote a row, which must have all of the table's columns."""
    is_valid = has_valid_mac(connection, table, row)
    if not is_valid:
        _LOG.error(
            "a row of the accounts database was not written by a gateway: it is ignored",
            table=table.name,
        )
    return is_valid


def has_valid_mac(connection: AsyncConnection, table: sa.Table, row: sa.Row[Any]) -> bool:
    """Return whether a row's MAC is valid. The caller logs that it is not."""
    values = _values(table, row)
    try:
        return hmac.compare_digest(values[MAC], mac_of(connection, table, values))
    except TypeError:  # SQLite accepts values of any type in any column
        return False


def _values(table: sa.Table, row: sa.Row[Any]) -> dict[str, Any]:
    columns = row._mapping  # noqa: SLF001 - the public name of it
    return {name: columns[table.c[name]] for name in (MAC, *covered(table))}


def _mac(key: bytes, table: str, values: list[object]) -> bytes:
    parts = (_encoded(value) for value in (table, *values))
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, text, "sha256")


def _encoded(value: object) -> bytes:
    """Return a value as bytes with its type; different values have different bytes."""
    match value:
        case None:
            return b""
        case str():
            return b"s" + str(value).encode("utf-8", "surrogatepass")
        case int():
            return b"i%d" % value
        case UUID():
            return b"u" + value.bytes
        case bytes():
            return b"b" + value
        case _:
            raise TypeError(type(value).__name__)
