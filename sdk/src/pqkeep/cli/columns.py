"""A column of a table as a place of ciphertexts. It needs the extra ``pqkeep[sql]``.

Names go through SQLAlchemy, which quotes them. Errors of the database are shown by their kind only:
their texts may have data or a password.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from io import FileIO
from typing import Any

import sqlalchemy as sa

from pqkeep import inputs
from pqkeep.cli.failures import UNAVAILABLE, Refusal
from pqkeep.cli.stored import LARGEST, KeyOfVersion, Stored, StoredKey, recognised, with_columns
from pqkeep.cli.stores import PAGE, Columns, Entry, Look, New, Ref, Result, Swap
from pqkeep.errors import UnreadableInputError
from pqkeep.new_files import ByteLocks

_FETCHED = 128
"""Rows in memory at a time."""
_LOCK_SECONDS = 60
_ATTEMPTS = 3
_BEHIND_ALL_DATA = 1 << 62
_WITH_OCTET_LENGTH = frozenset({"postgresql", "mysql", "mariadb"})
_AS_BYTES = "surrogateescape"
"""How a text keeps bytes that are not UTF-8. Only SQLite has such texts."""
_is_surrogate = re.compile("[\ud800-\udfff]").search


class _AnyValue(sa.types.UserDefinedType[Any]):
    """A value as the driver returns it.

    SQLite columns may hold values of other types than their own.
    """

    cache_ok = True


class Column:
    """A column of a table. Each page and each batch is a transaction of its own."""

    is_repeatable = True

    def __init__(
        self,
        url: str,
        columns: Columns,
        of_version: KeyOfVersion,
        default: StoredKey | None,
        *,
        wraps: bool,
    ) -> None:
        """Connect, and look at the table. Raises Refusal.

        ``default`` is the key of ciphertexts without a header and without columns that name it.
        """
        self._of_version = of_version
        self._default = default
        self._wraps = wraps
        self._names = columns
        self._file: FileIO | None = None
        with _database():
            self._engine = _engine(url)
            self._table = self._reflected(columns.table)
        self._column = self._named(columns.column)
        self._keys = self._key_columns(columns.keys)
        self._beside = {name: self._named(column) for name, column in columns.of_key.items()}
        self._bound = {name: self._named(column) for name, column in columns.of_binding.items()}
        self._update = self._updating()
        self._shown = self._unless_large()
        self.name = f"{self._address()}/{columns.table}.{columns.column}"

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()
        if self._file is not None:
            self._file.close()

    def pages(self, look: Look) -> Iterator[Sequence[Ref]]:
        """Yield the keys of rows to be moved, in the order of the keys."""
        self._require_keys()
        last: Ref | None = None
        while True:
            query = self._select().order_by(*self._keys).limit(PAGE)
            if last is not None:
                query = query.where(self._after(last))
            found: list[Ref] = []
            count = 0
            with _database(), self._engine.connect() as connection:
                rows = connection.execution_options(yield_per=_FETCHED).execute(query)
                for row in rows:
                    entry = self._entry(row)
                    last = entry.ref
                    count += 1
                    if look(entry):
                        found.append(last)
            yield found
            if count < PAGE:
                return

    @contextmanager
    def claim(self, refs: Sequence[Ref]) -> Iterator[Sequence[Ref]]:
        """Lock rows against other runs during a block. Yield the rows that no other run has locked.

        PostgreSQL has advisory locks. For SQLite, bytes far behind the end of the database's file
        are locked. Other programs can still change the rows. Other databases have no such locks.
        """
        place = (self._table.schema, self._table.name, self._column.name)
        digests = [blake2b(repr((place, ref)).encode(), digest_size=8).digest() for ref in refs]
        numbers = [int.from_bytes(digest, "big", signed=True) for digest in digests]
        if self._engine.dialect.name == "postgresql":
            every = sa.func.unnest(sa.cast(sa.literal(numbers), sa.ARRAY(sa.BigInteger)))
            with self._engine.connect() as connection:
                with _database():
                    own = connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(every)))
                    is_own = own.scalars().all()
                yield [ref for ref, is_ours in zip(refs, is_own, strict=True) if is_ours]
        elif (locks := self._locks_of_file()) is not None:
            try:
                yield [
                    ref
                    for ref, number in zip(refs, numbers, strict=True)
                    if locks.take(_BEHIND_ALL_DATA + number % _BEHIND_ALL_DATA)
                ]
            finally:
                locks.release()
        else:
            yield refs

    def _locks_of_file(self) -> ByteLocks | None:
        """Return locks of the file of a SQLite database. None if there is nothing to write to.

        The file stays open until the connections are closed: closing it drops SQLite's own locks.
        """
        if self._engine.dialect.name != "sqlite":
            return None
        if self._file is None:
            with _database(), self._engine.connect() as connection:
                query = "SELECT file FROM pragma_database_list WHERE name = 'main'"
                path = connection.exec_driver_sql(query).scalar_one()
            with suppress(OSError):  # a replacement says why it cannot be written
                self._file = FileIO(path, "r+b") if path else None
        return None if self._file is None else ByteLocks(self._file)

    def read(self, refs: Sequence[Ref]) -> Sequence[Entry]:
        """Read rows again."""
        (first, *more) = self._keys
        chosen = sa.tuple_(first, *more).in_(refs) if more else first.in_([ref[0] for ref in refs])
        with _database(), self._engine.connect() as connection:
            return [self._entry(row) for row in connection.execute(self._select().where(chosen))]

    def swap(self, new: Sequence[New]) -> Sequence[Result]:
        """Replace rows in one transaction. If one row fails, replace each in its own transaction."""
        try:
            with self._engine.begin() as connection:
                return [self._swap(connection, one) for one in new]
        except sa.exc.SQLAlchemyError:
            with _database():
                return [self._alone(one) for one in new]

    def _alone(self, new: New) -> Result:
        for attempt in range(_ATTEMPTS):
            try:
                with self._engine.begin() as connection:
                    return self._swap(connection, new)
            except sa.exc.OperationalError as error:
                if attempt + 1 == _ATTEMPTS:
                    if error.connection_invalidated or error.statement is None:
                        raise  # the database is away: it is no fault of the row
                    return _reason(error)
            except sa.exc.SQLAlchemyError as error:
                return _reason(error)
        return Swap.CHANGED

    def _swap(self, connection: sa.Connection, new: New) -> Result:
        entry = new.entry
        data = entry.data or b""
        values = {f"key_{number}": value for number, value in enumerate(entry.ref)}
        values |= {f"old_{name}": value for name, value in entry.beside.items()}
        values |= {f"new_{name}": getattr(new.key, name) for name in entry.beside}
        values["old"] = data.decode() if entry.is_text else data
        values["new"] = new.data.decode() if entry.is_text else new.data
        done = connection.execute(self._update, values)
        return Swap.DONE if done.rowcount == 1 else Swap.CHANGED

    def _updating(self) -> sa.Update:
        """Return the statement that replaces a row if no other program changed it."""
        conditions = [
            column == sa.bindparam(f"key_{number}", type_=column.type)
            for number, column in enumerate(self._keys)
        ]
        conditions.append(self._column == sa.bindparam("old", type_=self._column.type))
        values: dict[Any, Any] = {self._column: sa.bindparam("new", type_=self._column.type)}
        for name, column in self._beside.items():
            conditions.append(column == sa.bindparam(f"old_{name}", type_=column.type))
            values[column] = sa.bindparam(f"new_{name}", type_=column.type)
        return sa.update(self._table).where(*conditions).values(values)

    def _select(self) -> sa.Select[Any]:
        columns = [*self._keys, *self._shown, *self._beside.values(), *self._bound.values()]
        labelled = [column.label(f"pqkeep_{number}") for number, column in enumerate(columns)]
        return sa.select(*labelled)

    def _unless_large(self) -> tuple[sa.ColumnElement[Any], sa.ColumnElement[bool]]:
        """Return the column's value, and True if it is too large for a ciphertext (then NULL).

        The database checks the size, so a page of large values needs no memory. Some databases have
        no function for this.
        """
        column = self._column
        kind = self._engine.dialect.name
        if kind == "sqlite":
            size = sa.func.length(sa.cast(column, sa.LargeBinary))
        elif kind in _WITH_OCTET_LENGTH and isinstance(column.type, sa.String | sa.LargeBinary):
            size = sa.func.octet_length(column)
        else:
            return column, sa.false()
        is_large = sa.func.coalesce(size, 0) > LARGEST
        return sa.case((is_large, sa.null()), else_=column), is_large

    def _after(self, last: Ref) -> sa.ColumnElement[bool]:
        (first, *more) = self._keys
        values = [sa.literal(value, key.type) for key, value in zip(self._keys, last, strict=True)]
        condition = sa.tuple_(first, *more) > sa.tuple_(*values) if more else first > values[0]
        return sa.and_(condition)

    def _entry(self, row: sa.Row[Any]) -> Entry:
        values = [*row]
        count = len(self._keys)
        ref, value, is_large = tuple(values[:count]), *values[count : count + 2]
        beside = dict(zip(self._beside, values[count + 2 :], strict=False))
        bound = dict(zip(self._bound, values[count + 2 + len(beside) :], strict=True))
        named = zip(self._keys, ref, strict=True)
        name = ", ".join(f"{column.name}={part}" for column, part in named)
        entry = Entry(
            ref=ref,
            name=name,
            is_text=isinstance(value, str),
            beside=beside,
        )
        if is_large:
            return replace(entry, data=b"\0")
        if (problem := self._problem(entry, value, bound)) is not None:
            return replace(entry, problem=problem)
        if value is None:
            return entry
        bound = {name: _bytes(part) for name, part in bound.items() if part is not None}
        entry = replace(entry, data=_bytes(value), bound=bound)
        try:
            return replace(entry, stored=self._stored(entry))
        except UnreadableInputError as error:
            return replace(entry, problem=error.what)

    def _problem(self, entry: Entry, value: Any, bound: Mapping[str, Any]) -> str | None:
        """Return the reason why a row cannot be moved, whatever its ciphertext is."""
        if any(
            isinstance(part, str) and _is_surrogate(part)
            for part in (*entry.ref, *entry.beside.values())
        ):
            return "a key or a column of its key version is not UTF-8"
        named = {self._column.name: value}
        named |= {self._bound[name].name: part for name, part in bound.items()}
        for name, part in named.items():
            if not isinstance(part, str | bytes | memoryview | None):
                return f"column {name} has {type(part).__name__}, not text or bytes"
        return None

    def _stored(self, entry: Entry) -> Stored | None:
        data = entry.data or b""
        if "key_version" not in self._beside:
            return recognised(data, self._of_version)
        named = {**(self._default._asdict() if self._default else {}), **entry.beside}
        try:
            if None in named.values():
                raise ValueError  # noqa: TRY301 - as for other values that name no key
            key = StoredKey(
                str(named["keyring"]),
                inputs.canonical(str(named["algorithm"])),
                int(named["key_version"]),
            )
        except (KeyError, TypeError, ValueError):
            raise UnreadableInputError(
                "a row without a key version", "correct the column"
            ) from None
        return with_columns(data, key, is_wrapped=self._wraps)

    def _reflected(self, name: str) -> sa.Table:
        inspector = sa.inspect(self._engine)
        schema, _, table = name.rpartition(".")
        if not schema or inspector.has_table(name):
            schema, table = "", name
        if not inspector.has_table(table, schema=schema or None):
            raise Refusal(f"there is no table {name}", "name it with --table, as SCHEMA.TABLE")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sa.exc.SAWarning)  # types that nothing here uses
            found = sa.Table(
                table,
                sa.MetaData(),
                schema=schema or None,
                autoload_with=self._engine,
                resolve_fks=False,
            )
        if self._engine.dialect.name == "sqlite":
            for column in found.columns:
                column.type = _AnyValue()
        return found

    def _key_columns(self, names: Sequence[str]) -> Sequence[sa.Column[Any]]:
        primary = [*self._table.primary_key.columns]
        if not names:
            if not primary:
                raise Refusal(
                    f"table {self._names.table} has no primary key", "name a unique key: --key"
                )
            return primary
        chosen = [self._named(name) for name in names]
        unique = [{column.name for column in primary}]
        with _database():
            inspector, table = sa.inspect(self._engine), self._table
            unique += [
                {*constraint["column_names"]}
                for constraint in inspector.get_unique_constraints(table.name, table.schema)
            ]
            unique += [
                {*filter(None, index["column_names"])}
                for index in inspector.get_indexes(table.name, table.schema)
                if index["unique"] and not _is_partial(index)
            ]
        if not any(key and key <= {*names} for key in unique):
            raise Refusal(
                f"--key {', '.join(names)} is not unique",
                "name the columns of the primary key or of another unique key",
            )
        return chosen

    def _require_keys(self) -> None:
        """Raise Refusal if a row has no key: NULL is not found again."""
        nullable = [column.is_(None) for column in self._keys if column.nullable]
        if not nullable:
            return
        query = sa.select(sa.func.count()).select_from(self._table).where(sa.or_(*nullable))
        with _database(), self._engine.connect() as connection:
            count = connection.execute(query).scalar_one()
        if count:
            raise Refusal(
                f"{count} rows have NULL in a key column", "name another unique key: --key"
            )

    def _named(self, name: str) -> sa.Column[Any]:
        if name not in self._table.columns:
            raise Refusal(
                f"table {self._names.table} has no column {name}",
                f"name one of {', '.join(self._table.columns.keys())}",
            )
        return self._table.columns[name]

    def _address(self) -> str:
        url = self._engine.url
        host = url.host or ""
        return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def _is_partial(index: Any) -> bool:
    options = index.get("dialect_options", {})
    return None in index["column_names"] or any(name.endswith("_where") for name in options)


def _bytes(value: Any) -> bytes:
    return value.encode(errors=_AS_BYTES) if isinstance(value, str) else bytes(value)


def _engine(text: str) -> sa.Engine:
    """Return an engine. Its errors show no parameters. Raises Refusal, without the URL."""
    try:
        url = sa.make_url(text)
        dialect = url.get_dialect()
    except sa.exc.NoSuchModuleError:
        raise Refusal(
            "--sql names an unknown kind of database", "begin it with postgresql+psycopg://"
        ) from None
    except sa.exc.ArgumentError:
        raise Refusal(
            "--sql is not a database URL", "write DIALECT+DRIVER://USER@HOST/DATABASE"
        ) from None
    if dialect.is_async:
        raise Refusal(
            f"--sql names the driver {dialect.driver}, which is only for asyncio",
            "name another driver, such as postgresql+psycopg:// or sqlite://",
        )
    options = {"timeout": _LOCK_SECONDS} if url.get_backend_name() == "sqlite" else {}
    try:
        engine = sa.create_engine(url, hide_parameters=True, connect_args=options)
    except ModuleNotFoundError as error:
        raise Refusal(
            f"the driver {error.name} is not installed",
            "install it into the environment of pqkeep, or name another driver in --sql",
        ) from None
    if url.get_backend_name() == "sqlite":
        sa.event.listen(engine, "connect", _read_any_text)
    return engine


def _read_any_text(connection: Any, _: object) -> None:
    """Let one text that is not UTF-8 be a fault of its row, not of the database."""
    connection.text_factory = lambda data: data.decode(errors=_AS_BYTES)


@contextmanager
def _database() -> Iterator[None]:
    """Turn errors of the database into Refusals. Their texts may have data and passwords."""
    try:
        yield
    except (sa.exc.DataError, UnicodeError) as error:
        raise Refusal(
            f"the driver cannot read or send a value: {_reason(error)}",
            "name another unique key: --key",
        ) from None
    except sa.exc.SQLAlchemyError as error:
        raise Refusal(
            f"the database fails: {_reason(error)}",
            "check the address, the password, and that the role may read and update the table",
            UNAVAILABLE,
        ) from None


def _reason(error: Any) -> str:
    original = getattr(error, "orig", None) or error
    state = getattr(original, "sqlstate", None)
    return f"{type(original).__name__}{f' {state}' if state else ''}"
