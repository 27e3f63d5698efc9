"""``pqkeepd migrate`` and ``pqkeepd migrate-store``.

They import the database libraries only when they run, as ``backup`` does.
"""

import asyncio
import os
from typing import Annotated

import typer

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.shards import DEFAULT_SHARD
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import AccountsDatabase, Data, KeysDatabase, PasswordFile
from pqkeep_server.data_lock import locked
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.progress import progress


class _NotNowError(Exception):
    pass


def migrate(*, data: Data) -> None:
    """Bring all databases to this version's schema, with the service stopped.

    A start does the same: this is for doing it before, and for seeing that it can be done.
    """
    from pqkeep_gateway.wiring import migrate_database
    from pqkeep_keyservice.process import open_database
    from pqkeep_keyservice.storage.database import DatabaseUnavailableError

    async def migrate_keys(shard: Layout) -> None:
        database = await open_database(key_service_config.read(shard.key_service_settings))
        await database.close()

    layout = Layout(data)
    with fail_on(ConfigError, _NotNowError, OSError):
        try:
            with locked(data):
                for name in layout.shards:
                    shard = Layout(data, name)
                    with acting_as_owner_of(shard.key_service):
                        asyncio.run(migrate_keys(shard))
                with acting_as_owner_of(layout.gateway):
                    asyncio.run(migrate_database(gateway_config.read(layout.gateway_settings)))
        except BlockingIOError:
            raise _NotNowError(f"pqkeepd runs on {data}: stop it first") from None
        except DatabaseUnavailableError:
            raise _NotNowError("the keys database cannot be reached") from None
        except UnavailableError:
            raise _NotNowError("the accounts database cannot be reached") from None
    typer.echo("All databases have this version's schema.")


def migrate_store(
    *,
    data: Data,
    accounts_database: AccountsDatabase = None,
    accounts_password_file: PasswordFile = None,
    keys_database: KeysDatabase = None,
    keys_password_file: PasswordFile = None,
    shard: Annotated[
        str, typer.Option(metavar="NAME", help="The shard whose keys database it is.")
    ] = DEFAULT_SHARD,
) -> None:
    """Move databases from files to a PostgreSQL server, with the service stopped.

    The settings name the server at the end. If it is interrupted, run it again: it continues.
    """
    from pqkeep_server.backup.databases import ACCOUNTS, KEYS
    from pqkeep_server.backup.restore import RestoreError, on_server
    from pqkeep_server.store_migration import StoreMigrationError
    from pqkeep_server.store_migration import migrate_store as move

    named = (
        (ACCOUNTS, accounts_database, accounts_password_file),
        (KEYS, keys_database, keys_password_file),
    )
    if not (accounts_database or keys_database):
        raise typer.BadParameter("name --accounts-database, --keys-database or both")
    os.umask(0o077)
    layout = Layout(data, shard)
    if shard not in layout.shards:
        raise typer.BadParameter(
            f"there is no such shard here: there are {', '.join(layout.shards)}"
        )
    with fail_on(RestoreError, StoreMigrationError), progress("reading") as report:
        targets = {kind: on_server(kind, url, passwords) for kind, url, passwords in named if url}
        moved = asyncio.run(move(layout, targets, report=report))
    for kind, contents in moved.items():
        log = f", {contents.records:,} audit records, root {contents.root.hex()}"
        typer.echo(f"{kind.name}: {contents.rows:,} rows{log if contents.root else ''}")
    typer.echo(
        "The settings name the server. Start, and destroy the old files when everything works:"
        " nothing may be started on them again."
        if moved
        else "The settings name the server already."
    )
