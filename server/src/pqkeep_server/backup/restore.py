"""``pqkeepd restore``: an installation out of a backup and its root keys.

Everything is made in a folder beside the new data directory, and in one transaction on each
server: it comes to its place when the last segment of the backup has proved that all is there.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from pqkeep_keyservice.keys.sealing import Sealer, read_root_key
from pqkeep_keyservice.ledger.checkpoints import check_log
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.contents import End, Manifest, Message, Rows, read
from pqkeep_server.backup.databases import (
    ACCOUNTS,
    KEYS,
    POSTGRESQL,
    DatabaseError,
    Kind,
    Place,
    Session,
    count_on,
    filling,
    insert,
    migrate,
    tables,
)
from pqkeep_server.backup.recovery_key import read_private
from pqkeep_server.backup.sealed_file import Reader, SealedFileError
from pqkeep_server.data_lock import locked
from pqkeep_server.initialise import Layout
from pqkeep_server.private_files import sync, write_whole
from pqkeep_server.settings_file import SettingsFileError, Value, changed, root_key_settings

Report = Callable[[str], None]
"""Hears what is being done now."""


class RestoreError(Exception):
    """Nothing was restored. The message is for the person who wants it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an installation is to be restored to."""

    data: Path
    """A directory that is empty or not there yet."""
    servers: Mapping[Kind, Place] = field(default_factory=dict)
    """The databases that are to be on a PostgreSQL server, and not in files."""


def on_server(kind: Kind, url: str, password_file: Path | None) -> Place:
    """Return where a database is on a PostgreSQL server. Raises RestoreError."""
    if not url.startswith(POSTGRESQL):
        raise RestoreError(f"expected an address that begins with {POSTGRESQL}")
    return Place(kind, url, None if password_file is None else str(password_file.absolute()))


async def restore(
    file: Path, recovery_key: Path, root_keys: Sequence[Path], target: Target, *, report: Report
) -> None:
    """Restore a backup. Raises RestoreError and RecoveryKeyError, and leaves nothing then."""
    key = read_private(recovery_key)
    try:
        with file.open("rb") as opened, _draft(target.data) as draft:
            messages = read(Reader(opened, key))
            await _Restore(Layout(draft), root_keys, target.servers, report).run(messages)
            _sync_all(draft)
            draft.rename(target.data)
            sync(target.data.parent)
    except SealedFileError as error:
        raise RestoreError(f"cannot restore {file}: {error}") from None
    except (ConfigError, DatabaseError, SettingsFileError) as error:
        raise RestoreError(str(error)) from None
    except OSError as error:
        raise RestoreError(f"cannot restore {file}: {error}") from None


class _Restore:
    def __init__(
        self,
        layout: Layout,
        root_keys: Sequence[Path],
        servers: Mapping[Kind, Place],
        report: Report,
    ) -> None:
        self._layout = layout
        self._root_keys = root_keys
        self._servers = servers
        self._report = report

    async def run(self, messages: Iterator[Message]) -> None:
        manifest = next(messages)
        if not isinstance(manifest, Manifest):
            raise SealedFileError("it is damaged")
        root_keys = _matching(manifest.root_keys, self._root_keys)
        self._write_files(manifest, root_keys)
        async with AsyncExitStack() as stack:
            filled: dict[str, dict[str, _Filled]] = {}
            sessions: dict[str, Session] = {}
            for kind in (ACCOUNTS, KEYS):
                session = await stack.enter_async_context(filling(self._place(kind)))
                sessions[kind.name] = session
                made = await session.run(_make_tables, kind, manifest.revisions[kind.name])
                filled[kind.name] = {table.name: _Filled(table) for table in made}
            await self._fill(messages, sessions, filled)
            for kind in (ACCOUNTS, KEYS):
                self._report(f"{kind.name}: bringing the schema up to date")
                await sessions[kind.name].run(_finish, kind)
            await sessions[KEYS.name].run(check_log)

    def _place(self, kind: Kind) -> Place:
        in_file = Place(kind, str(self._layout.directory / kind.folder / kind.file))
        return self._servers.get(kind, in_file)

    async def _fill(
        self,
        messages: Iterator[Message],
        sessions: Mapping[str, Session],
        filled: Mapping[str, Mapping[str, "_Filled"]],
    ) -> None:
        for message in messages:
            match message:
                case Rows():
                    table = filled.get(message.database, {}).get(message.table)
                    if table is None:
                        raise DatabaseError(f"there is no table {message.table} to restore to")
                    session = sessions[message.database]
                    await session.run(insert, table.table, message.columns, message.rows)
                    table.count += len(message.rows)
                    self._report(f"{message.database}: {message.table}, {table.count:,} rows")
                case End():
                    if message.counts != {
                        name: {table: each.count for table, each in tables.items()}
                        for name, tables in filled.items()
                    }:
                        raise SealedFileError("rows are missing in it")
                case Manifest():
                    raise SealedFileError("it is damaged")

    def _write_files(self, manifest: Manifest, root_keys: Mapping[int, bytes]) -> None:
        layout = self._layout
        for folder in (layout.key_service, layout.gateway):
            folder.mkdir(mode=0o700)
        named = {each: f"root-{each}.key" if each > 1 else "root.key" for each in root_keys}
        for each, data in root_keys.items():
            write_whole(layout.key_service / named[each], data, 0o400)
        settings: dict[Path, dict[str, Value | None]] = {
            layout.gateway_settings: {
                **self._database_settings(ACCOUNTS),
                "pepper_file": layout.pepper.name,
                "key_service_socket": "../keyservice/keyservice.sock",
            },
            layout.key_service_settings: {
                **self._database_settings(KEYS),
                **root_key_settings(named),
                "socket": "keyservice.sock",
            },
        }
        for path, new in settings.items():
            text = self._file(manifest, path).decode()
            write_whole(path, changed(text, new).encode(), 0o600)
        write_whole(layout.pepper, self._file(manifest, layout.pepper), 0o400)
        credentials = layout.development_credentials
        if self._name(credentials) in manifest.files:
            write_whole(credentials, self._file(manifest, credentials), 0o600)

    def _database_settings(self, kind: Kind) -> dict[str, Value | None]:
        if kind not in self._servers:
            return {"database": kind.file, "database_password_file": None}
        place = self._servers[kind]
        return {"database": place.location, "database_password_file": place.password_file}

    def _file(self, manifest: Manifest, path: Path) -> bytes:
        try:
            return manifest.files[self._name(path)]
        except KeyError:
            raise SealedFileError(f"{self._name(path)} is missing in it") from None

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._layout.directory))


@dataclass(slots=True)
class _Filled:
    table: sa.Table
    count: int = 0


def _matching(check_values: Mapping[int, bytes], files: Sequence[Path]) -> dict[int, bytes]:
    """Return the root keys that a backup's private keys are sealed under, by id."""
    given = [read_root_key(path) for path in files]
    found = {}
    for each, check_value in check_values.items():
        match = [key for key in given if Sealer({each: key}).check_value(each) == check_value]
        if not match:
            raise ConfigError(
                f"the private keys in the backup are sealed under root key {each}, "
                "which is none of the files given with --root-key"
            )
        found[each] = bytes(match[0].reveal())
    return found


def _make_tables(connection: sa.Connection, kind: Kind, revision: str) -> list[sa.Table]:
    """Make the tables as they were in the backup, and empty."""
    migrate(connection, kind, revision)
    made = tables(connection)
    for table in reversed(made):
        connection.execute(sa.delete(table))  # what migrations put in is in the backup too
    return made


def _finish(connection: sa.Connection, kind: Kind) -> None:
    migrate(connection, kind, "head")
    for table in tables(connection):
        count_on(connection, table)


@contextmanager
def _draft(data: Path) -> Iterator[Path]:
    """Yield a new folder beside the data directory, locked; removed if it is still there then."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise RestoreError(f"{data} is not empty")
    parent = data.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{data.name}.", dir=parent))
    try:
        with locked(draft):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(path, name))
        sync(Path(path))
