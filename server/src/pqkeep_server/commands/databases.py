"""``pqkeepd backup``, ``restore``, ``migrate`` and ``migrate-store``: works on whole databases.

They import the database libraries only when they run: these take longer to import than all the
rest of pqkeepd, and no other command needs them.
"""

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.config import root_key_source as root_key_source_of
from pqkeep_protocol.keys import DEFAULT_SHARD, SHARD_NAME
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.encrypted_file import BackupNumber
from pqkeep_server.backup.recovery_key import RecoveryKeyError
from pqkeep_server.commands.arguments import (
    AccountsDatabase,
    Installed,
    KeysDatabase,
    PasswordFile,
    UserIds,
)
from pqkeep_server.data_lock import locked
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.progress import progress
from pqkeep_server.settings_file import SettingsFileError, parse_table
from pqkeep_server.users import UsersError, chosen

if TYPE_CHECKING:
    from pqkeep_server.backup.restore import Restored

MOST_DUE = 20
"""Lines about scheduled destructions."""


def _backup_number(text: str) -> BackupNumber:
    try:
        return BackupNumber.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def backup(
    *,
    data: Installed,
    recovery_key: Annotated[Path, typer.Option(help="The public half of a recovery key.")],
    to: Annotated[Path, typer.Option(help="The file to write. It must not exist yet.")],
) -> None:
    """Back up an installation to one encrypted file, while it runs.

    The backup has accounts, keys, audit log, settings and the gateway's pepper. It does not have the
    root key. Keep the root key and the private half of the recovery key in two other safe places.
    """
    from pqkeep_server.backup.announcement import announce, describe
    from pqkeep_server.backup.create import BackupError
    from pqkeep_server.backup.create import backup as make_backup

    os.umask(0o077)
    with fail_on(BackupError, RecoveryKeyError), progress("reading") as report:
        work = make_backup(
            Layout(data), recovery_key, to, version=version("pqkeep-server"), report=report
        )
        origin = asyncio.run(work)
    typer.echo(f"{describe(origin)}\nKeep the number of your newest backup: a restore asks for it.")
    try:
        announce(Layout(data), origin)
    except (ConfigError, KeyServiceError) as error:
        typer.echo(
            f"The backup is complete, but the key service did not record it: {error}", err=True
        )


def restore(  # noqa: PLR0913 - as many options as a restore decides
    file: Annotated[Path, typer.Argument(help="The backup.")],
    *,
    recovery_key: Annotated[Path, typer.Option(help="The private half of the recovery key.")],
    root_key: Annotated[
        list[Path] | None,
        typer.Option(
            help="The root key's file. Repeat it for each shard, and for the old and the new root "
            "key"
            " if the root key was being changed."
        ),
    ] = None,
    root_key_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help='Another source of the root key, as in the settings: credential = "…",'
            " pkcs11 = {…} or command = […].",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The new data directory. It must be empty or not exist.", file_okay=False
        ),
    ] = None,
    drill: Annotated[
        bool,
        typer.Option(
            "--drill",
            help="Only test the backup: restore it to a temporary folder and examine every key.",
        ),
    ] = False,
    accounts_database: AccountsDatabase = None,
    accounts_password_file: PasswordFile = None,
    keys_database: KeysDatabase = None,
    keys_password_file: PasswordFile = None,
    shard_database: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARD=URL",
            help="An empty PostgreSQL database for the keys of another shard. Can be repeated.",
        ),
    ] = None,
    shard_password_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARD=FILE",
            help="The password file of a shard's database, in libpq's format. Can be repeated.",
        ),
    ] = None,
    newest: Annotated[
        BackupNumber | None,
        typer.Option(
            metavar="NUMBER",
            parser=_backup_number,
            help="The number of your newest backup, as pqkeepd backup printed it, or 0.0.",
        ),
    ] = None,
    older: Annotated[
        bool, typer.Option("--older", help="Restore the backup even if a newer one exists.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING",
            help="Keep this setting of the backup, such as port or smtp. Can be repeated. Other "
            "settings that name a place or a peer are left out; on a terminal, pqkeepd asks.",
        ),
    ] = None,
    user_ids: UserIds = None,
) -> None:
    """Restore an installation from a backup into a new data directory.

    Nothing is overwritten. A failed restore leaves nothing behind.
    """
    from pqkeep_server.backup.announcement import OldBackupError, describe, require_newest
    from pqkeep_server.backup.authentication import authenticate
    from pqkeep_server.backup.databases import ACCOUNTS, KEYS, keys_of
    from pqkeep_server.backup.encrypted_file import BackupFileError
    from pqkeep_server.backup.restore import RestoreError, Target, on_server
    from pqkeep_server.backup.restore import drill as drill_restore
    from pqkeep_server.backup.restore import restore as restore_backup
    from pqkeep_server.backup.restored_files import is_for_two_users, settings_to_choose

    if not root_key and not root_key_source:
        raise typer.BadParameter("the root key is missing: add --root-key or --root-key-source")
    if drill == (data is not None):
        raise typer.BadParameter("exactly one of --data and --drill is needed")
    os.umask(0o077)
    passwords_of = _by_shard(shard_password_file, "--shard-password-file")
    named = [
        (ACCOUNTS, accounts_database, accounts_password_file),
        (KEYS, keys_database, keys_password_file),
    ]
    for shard, url in _by_shard(shard_database, "--shard-database").items():
        passwords = passwords_of.pop(shard, None)
        named.append((keys_of(shard), url, None if passwords is None else Path(passwords)))
    if passwords_of:
        raise typer.BadParameter(
            f"--shard-password-file needs --shard-database {min(passwords_of)}=…"
        )
    errors = (
        BackupFileError,
        ConfigError,
        OldBackupError,
        RecoveryKeyError,
        RestoreError,
        UsersError,
    )
    with fail_on(*errors, SettingsFileError):
        root_keys = [RootKeySource(file=file) for file in root_key or ()]
        root_keys += [
            root_key_source_of(parse_table(source), Path.cwd()) for source in root_key_source or ()
        ]
        servers = {kind: on_server(kind, url, passwords) for kind, url, passwords in named if url}
        with progress("checking the backup") as report:
            backup = authenticate(file, recovery_key, root_keys)
        typer.echo(describe(backup.origin))
        if data is None:
            with progress("reading") as report:
                found = asyncio.run(drill_restore(backup, report=report))
            recorded = sum(log.records for log in backup.origin.shards.values())
            typer.echo(
                f"everything can be restored: {found.keys:,} keys, {found.checkpoints:,} checkpoints"
                f" and {found.records:,} audit records ({found.records - recorded:,} of them about this"
                " drill). The temporary copy is removed"
            )
            return
        if newest is None and not older and sys.stdin.isatty():
            older = typer.confirm(
                "Is this your newest backup, and should it be restored?", abort=True
            )
        if not older:
            require_newest(backup.origin, newest)
        is_for_two = user_ids is not None or is_for_two_users(backup.manifest)
        users = chosen(user_ids) if is_for_two else None
        kept = _settings_to_keep(settings_to_choose(backup.manifest, backup.origin.shards), keep)
        with progress("reading") as report:
            target = Target(data, servers, users)
            restored = asyncio.run(restore_backup(backup, target, keep=kept, report=report))
    typer.echo(_restored_to(data, restored.logs))
    typer.echo("\n".join(_to_be_destroyed(restored)))


def _by_shard(named: list[str] | None, option: str) -> dict[str, str]:
    """Return an option's values by shard, without ``default``."""
    found: dict[str, str] = {}
    for text in named or ():
        shard, _, value = text.partition("=")
        if not value or not re.match(SHARD_NAME, shard) or shard in {DEFAULT_SHARD, *found}:
            raise typer.BadParameter(
                f"{option} must be SHARD=…, once for each shard except default"
            )
        found[shard] = value
    return found


def _restored_to(data: Path, logs: Mapping[str, UUID]) -> str:
    if len(logs) == 1:
        (log,) = logs.values()
        return (
            f"restored to {data}. Its audit log has the new id {log} and a new key: give auditors"
            " the response of GET /api/v1/audit/keys"
        )
    named = ", ".join(f"{log} ({shard})" for shard, log in logs.items())
    return (
        f"restored to {data}. Its audit logs have the new ids {named} and new keys: give auditors"
        " the response of GET /api/v1/audit/keys?shard=… for each shard"
    )


def _to_be_destroyed(restored: "Restored") -> Iterator[str]:
    """Yield lines about the restored installation's scheduled destructions."""
    if not restored.due:
        yield "no destruction of a key or a tenant is scheduled"
        return
    yield "scheduled to be destroyed, unless cancelled again:"
    for due in restored.due[:MOST_DUE]:
        tenant = f"{restored.tenants.get(due.tenant, 'unknown')} ({due.tenant})"
        what = "all keys"
        if due.key is not None:
            what = f"{due.key.algorithm} version {due.key.version} in {due.key.keyring}"
        elif due.keyring is not None:
            what = f"all keys in {due.keyring}"
        yield f"  {due.at:%Y-%m-%dT%H:%M:%SZ}  {what} of the tenant {tenant}"
    if len(restored.due) > MOST_DUE:
        yield f"  and {len(restored.due) - MOST_DUE:,} more"


def _settings_to_keep(settings: Mapping[str, str], keep: list[str] | None) -> set[str]:
    """Return the settings to keep: the settings of --keep, or those that the operator confirms."""
    if keep is None and sys.stdin.isatty():
        return {
            name for name, value in settings.items() if typer.confirm(f"Keep {name} = {value}?")
        }
    kept = set(keep or ())
    if unknown := sorted(kept - settings.keys()):
        raise SettingsFileError(f"--keep: the backup has no setting {unknown[0]}")
    if left_out := [f"  {name} = {value}" for name, value in settings.items() if name not in kept]:
        typer.echo("\n".join(("settings of the backup that are left out:", *left_out)))
    return kept


class _NotNowError(Exception):
    pass


def migrate(*, data: Installed) -> None:
    """Migrate all databases to this version's schema. Stop the service first.

    pqkeepd start does the same. Use this command to do it earlier, and to see errors early.
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
            raise _NotNowError(f"another pqkeepd uses {data}: stop it first") from None
        except DatabaseUnavailableError:
            raise _NotNowError("the keys database cannot be reached") from None
        except UnavailableError:
            raise _NotNowError("the accounts database cannot be reached") from None
    typer.echo("All databases have the schema of this version.")


def migrate_store(
    *,
    data: Installed,
    accounts_database: AccountsDatabase = None,
    accounts_password_file: PasswordFile = None,
    keys_database: KeysDatabase = None,
    keys_password_file: PasswordFile = None,
    shard: Annotated[
        str, typer.Option(metavar="NAME", help="The shard of the keys database.")
    ] = DEFAULT_SHARD,
) -> None:
    """Move databases from files to a PostgreSQL server. Stop the service first.

    At the end the settings name the server. If the command is interrupted, run it again to continue.
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
        raise typer.BadParameter("add --accounts-database, --keys-database or both")
    os.umask(0o077)
    layout = Layout(data, shard)
    with fail_on(OSError):
        known = layout.shards
    if shard not in known:
        raise typer.BadParameter(f"no such shard here: choose one of {', '.join(known)}")
    with fail_on(RestoreError, StoreMigrationError), progress("reading") as report:
        targets = {kind: on_server(kind, url, passwords) for kind, url, passwords in named if url}
        moved = asyncio.run(move(layout, targets, report=report))
    for kind, contents in moved.items():
        log = f", {contents.records:,} audit records, root {contents.root.hex()}"
        typer.echo(f"{kind.name}: {contents.rows:,} rows{log if contents.root else ''}")
    typer.echo(
        "The settings name the server. Start pqkeepd, and destroy the old files once "
        "everything works:"
        " nothing may start on them again."
        if moved
        else "The settings name the server already."
    )
