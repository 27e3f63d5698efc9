"""The commands that look after an installation: recovery-key, backup, restore, root-key.

Backup and restore import what opens databases when they run: nothing else that pqkeepd does needs
it, and it takes longer to import than all the rest.
"""

import asyncio
import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from pqkeep_server.backup import recovery_key
from pqkeep_server.backup.recovery_key import RecoveryKeyError
from pqkeep_server.initialise import Layout
from pqkeep_server.progress import progress
from pqkeep_server.root_key import RootKeyError
from pqkeep_server.root_key import rotate as rotate_root_key

recovery_keys = typer.Typer(help="Recovery keys, which open backups.", no_args_is_help=True)
root_keys = typer.Typer(help="The root key, which seals every private key.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="The data directory.", file_okay=False)]


@recovery_keys.command()
def create(
    *,
    private: Annotated[Path, typer.Option(help="Where the private half goes. It opens backups.")],
    public: Annotated[Path, typer.Option(help="Where the public half goes. It makes them.")],
    algorithm: Annotated[
        Literal["ML-KEM-1024", "X-Wing"], typer.Option(help="The KEM.")
    ] = "ML-KEM-1024",
) -> None:
    """Make a recovery key. Do it on another machine, and keep the private half there."""
    try:
        recovery_key.create(algorithm, private, public)
    except RecoveryKeyError as error:
        _fail(error)
    typer.echo(
        f"{private} opens every backup that is made with {public}.\n"
        "Keep it away from the machine that pqkeep runs on: only the public half belongs there."
    )


def backup(
    *,
    data: Data,
    recovery_key: Annotated[Path, typer.Option(help="The public half of a recovery key.")],
    to: Annotated[Path, typer.Option(help="The file to write. It must not be there yet.")],
) -> None:
    """Back an installation up into one encrypted file, while it runs.

    Accounts, keys, audit log, settings and the gateway's pepper are in it. Root keys are not: keep
    them, and the private half of the recovery key, each in a place of its own.
    """
    from pqkeep_server.backup.create import BackupError
    from pqkeep_server.backup.create import backup as make_backup

    os.umask(0o077)
    try:
        with progress("reading") as report:
            work = make_backup(
                Layout(data), recovery_key, to, version=version("pqkeep-server"), report=report
            )
            asyncio.run(work)
    except (BackupError, RecoveryKeyError) as error:
        _fail(error)


def restore(
    file: Annotated[Path, typer.Argument(help="The backup.")],
    *,
    recovery_key: Annotated[Path, typer.Option(help="The private half of the recovery key.")],
    root_key: Annotated[
        list[Path],
        typer.Option(help="The root key; again for each, if it was being changed just then."),
    ],
    data: Annotated[
        Path, typer.Option(help="The new data directory: empty, or not there.", file_okay=False)
    ],
    accounts_database: Annotated[
        str | None, typer.Option(metavar="URL", help="An empty PostgreSQL database for accounts.")
    ] = None,
    accounts_password_file: Annotated[
        Path | None, typer.Option(help="Its password file, as libpq has it.")
    ] = None,
    keys_database: Annotated[
        str | None, typer.Option(metavar="URL", help="An empty PostgreSQL database for keys.")
    ] = None,
    keys_password_file: Annotated[
        Path | None, typer.Option(help="Its password file, as libpq has it.")
    ] = None,
) -> None:
    """Make an installation out of a backup, in a new data directory.

    Nothing is overwritten, and nothing is left behind unless all of it could be restored.
    """
    from pqkeep_server.backup.databases import ACCOUNTS, KEYS
    from pqkeep_server.backup.restore import RestoreError, Target, on_server
    from pqkeep_server.backup.restore import restore as restore_backup

    os.umask(0o077)
    named = (
        (ACCOUNTS, accounts_database, accounts_password_file),
        (KEYS, keys_database, keys_password_file),
    )
    try:
        servers = {kind: on_server(kind, url, passwords) for kind, url, passwords in named if url}
        with progress("reading") as report:
            work = restore_backup(
                file, recovery_key, root_key, Target(data, servers), report=report
            )
            asyncio.run(work)
    except (RestoreError, RecoveryKeyError) as error:
        _fail(error)


@root_keys.command()
def rotate(
    *,
    data: Data,
    destroy_old: Annotated[
        bool, typer.Option("--destroy-old", help="Overwrite and remove the old root key's file.")
    ] = False,
) -> None:
    """Seal every private key under a new root key, while the service runs.

    Whatever interrupts it: given again, it goes on.
    """
    os.umask(0o077)
    try:
        with progress("making a root key") as report:
            old = rotate_root_key(Layout(data), destroy_old=destroy_old, report=report)
    except RootKeyError as error:
        _fail(error)
    typer.echo(
        "Every private key is sealed under the new root key. Make a copy of it, and a backup."
    )
    for path in old:
        typer.echo(f"Destroy {path}, and its copies once no backup needs them any more.")


def _fail(error: Exception) -> NoReturn:
    typer.echo(f"pqkeepd: {error}", err=True)
    raise typer.Exit(1) from None
