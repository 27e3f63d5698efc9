"""What a transaction would insert, known without a database: so that it can be one statement."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

Rows = Mapping[sa.Table, Sequence[tuple[Any, ...]]]
"""Some for each of the tables, with a value for each column, in the order of the columns."""


class NotOnlyInsertsError(Exception):
    """Another statement than an INSERT is needed."""


class Inserts:
    """Stands in for a connection: notes the rows of INSERTs, and refuses every other statement."""

    dialect = DefaultDialect()
    """Of no kind of database: nothing is executed in a way that one of them alone has."""

    def __init__(self, texts: Mapping[str, sa.Table]) -> None:
        """Take the INSERTs that are executed as a text, each with all columns of its table."""
        self.rows: dict[sa.Table, Sequence[tuple[Any, ...]]] = {}
        self._texts = texts

    def exec_driver_sql(self, statement: str, rows: Sequence[tuple[Any, ...]] = ()) -> None:
        """Note the rows of an INSERT that is one of the texts. Raises NotOnlyInsertsError."""
        table = self._texts.get(statement)
        if table is None:
            raise NotOnlyInsertsError
        self.rows[table] = rows

    def execute(self, statement: sa.Executable, rows: object = None) -> None:
        """Note the rows of an INSERT, each by the names of its columns. Raises NotOnlyInsertsError."""
        if not isinstance(statement, sa.Insert) or not isinstance(rows, list):
            raise NotOnlyInsertsError
        table = statement.table
        assert isinstance(table, sa.Table)  # noqa: S101
        self.rows[table] = [tuple(row[column.name] for column in table.columns) for row in rows]
