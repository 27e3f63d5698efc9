"""``pqkeepd backup``: both databases, the settings and the pepper, in one encrypted file.

The accounts are read at one moment and the keys at a later one. So an event is in the gateway's
outbox, or in the audit log, or in both, which is how it is delivered anyway, and never in neither.
A tenant that is made between the two moments is not there yet, whatever there is of its keys.
Root keys are never in a backup.
"""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import sqlalchemy as sa

from pqkeep_server.backup.contents import End, Manifest, Rows, write
from pqkeep_server.backup.databases import (
    KEYS,
    KINDS,
    DatabaseError,
    Session,
    place_of,
    revision,
    rows,
    snapshot,
    tables,
)
from pqkeep_server.backup.recovery_key import read_public
from pqkeep_server.backup.sealed_file import Writer
from pqkeep_server.initialise import Layout
from pqkeep_server.private_files import whole_file
from pqkeep_server.settings_file import SettingsFileError, path_in

Report = Callable[[str], None]
"""Hears what is being done now."""


class BackupError(Exception):
    """There is no backup. The message is for the person who wants it."""


async def backup(
    layout: Layout, recovery_key: Path, to: Path, *, version: str, report: Report
) -> None:
    """Back a data directory up, whether it is in use or not.

    Raises BackupError and RecoveryKeyError, and leaves no file then.
    """
    key = read_public(recovery_key)
    try:
        with whole_file(to, 0o600) as file:
            writer = Writer(file, key, created_at_us=time.time_ns() // 1000, version=version)
            await _write(layout, writer, report)
    except (DatabaseError, SettingsFileError) as error:
        raise BackupError(str(error)) from None
    except OSError as error:
        raise BackupError(f"cannot make the backup {to}: {error}") from None


async def _write(layout: Layout, writer: Writer, report: Report) -> None:
    settings = (layout.gateway_settings, layout.key_service_settings)
    places = [place_of(kind, each) for kind, each in zip(KINDS, settings, strict=True)]
    async with AsyncExitStack() as stack:
        sessions = {
            place.kind.name: await stack.enter_async_context(snapshot(place)) for place in places
        }
        write(writer, await _manifest(layout, sessions))
        counts = {
            name: await session.run(_write_rows, name, writer, report)
            for name, session in sessions.items()
        }
    write(writer, End(counts=counts))
    writer.finish()


async def _manifest(layout: Layout, sessions: dict[str, Session]) -> Manifest:
    contents = {
        layout.gateway_settings: layout.gateway_settings.read_bytes(),
        layout.key_service_settings: layout.key_service_settings.read_bytes(),
        layout.pepper: path_in(layout.gateway_settings, "pepper_file").read_bytes(),
    }
    if layout.development_credentials.exists():
        contents[layout.development_credentials] = layout.development_credentials.read_bytes()
    return Manifest(
        revisions={name: await session.run(revision) for name, session in sessions.items()},
        root_keys=await sessions[KEYS.name].run(_root_keys),
        files={str(path.relative_to(layout.directory)): data for path, data in contents.items()},
    )


def _root_keys(connection: sa.Connection) -> dict[int, bytes]:
    table = sa.Table("root_keys", sa.MetaData(), autoload_with=connection)
    found = connection.execute(sa.select(table.c.id, table.c.check_value))
    return {row.id: row.check_value for row in found}


def _write_rows(
    connection: sa.Connection, name: str, writer: Writer, report: Report
) -> dict[str, int]:
    counts = {}
    for table in tables(connection):
        title, count = str(table.name), 0
        columns = tuple(str(column.name) for column in table.columns)
        for some in rows(connection, table):
            write(writer, Rows(name, title, columns, some))
            count += len(some)
            report(f"{name}: {title}, {count:,} rows")
        counts[title] = count
    return counts
