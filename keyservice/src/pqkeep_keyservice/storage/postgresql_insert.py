"""Rows inserted into a PostgreSQL database by one statement, which is a transaction of its own.

A transaction of several statements is three answers that are waited for, and a row the work of a
statement. Here the rows come as one JSON text for each table, and the statement inserts nothing
unless the epoch is the current one, whose row it locks as every transaction that writes does.
"""

from functools import lru_cache
from itertools import starmap
from typing import Any

import asyncpg
import msgspec
import sqlalchemy as sa

from pqkeep_keyservice.storage.inserts import Rows
from pqkeep_keyservice.storage.postgresql_lock import LostEpochError
from pqkeep_keyservice.storage.schema import SERVICE_EPOCH


async def insert(driver: asyncpg.Connection, epoch: int, rows: Rows) -> None:
    """Insert rows, durably on return. Raises LostEpochError where the epoch is not the current one."""
    texts = [_text(table, of_table) for table, of_table in rows.items()]
    *_, last = rows.values()
    done = await driver.execute(_statement(tuple(rows)), epoch, *texts)
    if done != f"INSERT 0 {len(last)}":
        raise LostEpochError("another session has begun an epoch")


def _text(table: sa.Table, rows: Any) -> str:
    return msgspec.json.encode(list(starmap(_row_type(table), rows))).decode()


@lru_cache
def _row_type(table: sa.Table) -> type[msgspec.Struct]:
    """Return what is encoded as an object with the columns that are not null, and bytes as base64."""
    columns = [(str(column.name), Any, None) for column in table.columns]
    return msgspec.defstruct(str(table.name), columns, omit_defaults=True, gc=False)


@lru_cache
def _statement(tables: tuple[sa.Table, ...]) -> str:
    *others, last = [_insert(table, number) for number, table in enumerate(tables, 2)]
    held = f"held AS (SELECT FROM {SERVICE_EPOCH.name} WHERE epoch = $1 FOR SHARE)"
    inserted = [f"inserted_{number} AS ({each})" for number, each in enumerate(others)]
    return f"WITH {', '.join([held, *inserted])} {last}"


def _insert(table: sa.Table, parameter: int) -> str:
    columns = [(column.name, *_types(column)) for column in table.columns]
    names = ", ".join(f'"{name}"' for name, _, _ in columns)
    values = ", ".join(value.format(f'"{name}"') for name, _, value in columns)
    types = ", ".join(f'"{name}" {kind}' for name, kind, _ in columns)
    return (
        f'INSERT INTO "{table.name}" ({names}) '  # noqa: S608 - of a table's names
        f"SELECT {values} FROM held, json_to_recordset(${parameter}::json) AS new ({types})"
    )


def _types(column: sa.Column[Any]) -> tuple[str, str]:
    """Return a column's type in a JSON text, and its value."""
    if isinstance(column.type, sa.LargeBinary):
        return "text", "decode({}, 'base64')"
    return str(column.type), "{}"
