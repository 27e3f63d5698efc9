"""``pqkeepd shard`` and ``transfer-key``: make, list, drain and remove shards, and move tenants."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.keys.tenant_bundle import TRANSFER_KEY_SIZE
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.commands.arguments import Installed, PasswordFile
from pqkeep_server.exit_status import fail_on, message_of
from pqkeep_server.initialise import InitialiseError, Layout
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.progress import counted, progress
from pqkeep_server.shard_folders import add_shard, remove_shard
from pqkeep_server.shards import ShardError, ShardMoves

ADDED = """\
The shard {name} is made: {folder}. Keep a copy of its root key in a safe place elsewhere:
{root_key}
{then}"""
STARTED = """\
Then kill -HUP pqkeepd start, which starts its key service and renews the gateways; one gateway
without a redis_url, and processes of a service manager, are started again instead."""
REMOVED = """\
The shard {name} is removed. Its log stays: keep it for as long as it is to be verified, with the
root key. New backups do not have them.
  {folder}
  {database}
{then}"""
ENDED = """\
Then kill -HUP pqkeepd start, which ends its key service and renews the gateways; one gateway
without a redis_url is started again instead, and of a service manager the shard's unit is removed."""
IN_DEVELOPMENT = "Then end pqkeepd dev, and start it again."
NEW_TRANSFER_KEY = """\
The key service of the shard default has a transfer key now: start it again, before tenants move."""


def add(
    name: Annotated[str, typer.Argument(help="The shard's name, 1 to 32 of a-z, 0-9 and -.")],
    *,
    data: Installed,
    keys_database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An empty PostgreSQL database for the shard's keys, by default a new file.",
        ),
    ] = None,
    keys_password_file: PasswordFile = None,
) -> None:
    """Make another shard: its key service's folder, root key and settings, and the gateway's row.

    The service can keep running. If the command is interrupted, run it again to continue.
    """
    os.umask(0o077)
    layout = Layout(data.absolute())
    with fail_on(InitialiseError):
        added = add_shard(layout, name, database=keys_database, password_file=keys_password_file)
    made = added.layout
    then = _then(layout, STARTED)
    typer.echo(ADDED.format(name=name, folder=made.key_service, root_key=made.root_key, then=then))
    if added.had_no_transfer_key:
        typer.echo(NEW_TRANSFER_KEY)


def list_shards(*, data: Installed) -> None:
    """List the shards with their tenants, their state and their unfinished moves."""
    with fail_on(ShardError):
        found = ShardMoves(Layout(data), typer.echo).list()
    for shard in found:
        state = "draining" if shard.stored.draining else "open"
        waiting = max(shard.unfinished or 0, shard.stored.moving)
        moves = "does not answer here" if shard.unfinished is None else counted(waiting, "move")
        tenants = counted(shard.stored.tenants, "tenant")
        typer.echo(f"{shard.stored.name}\t{tenants}\t{state}\t{moves}")


def move(
    tenant: Annotated[UUID, typer.Argument(help="The tenant's id.")],
    *,
    to: Annotated[str | None, typer.Option(metavar="SHARD", help="The target shard.")] = None,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel",
            help="Cancel an unfinished move: the tenant stays in its old shard. This is refused unless"
            " the target shard proves that it does not have the tenant.",
        ),
    ] = False,
    data: Installed,
) -> None:
    """Move a tenant to another shard of the running service. Its requests get 503 for a moment.

    If the command is interrupted, run it again to continue.
    """
    if (to is None) != cancel:
        raise typer.BadParameter("exactly one of --to and --cancel is needed")
    if to is None:
        with fail_on(ShardError), progress("cancelling a move") as report:
            to = ShardMoves(Layout(data), report).cancel(TenantId(tenant))
        typer.echo(f"The move is cancelled: the tenant {tenant} is in the shard {to}.")
        return
    with fail_on(ShardError), progress("moving a tenant") as report:
        ShardMoves(Layout(data), report).move(TenantId(tenant), to)
    typer.echo(f"The tenant {tenant} is in the shard {to}.")


def drain(
    shard: Annotated[str, typer.Argument(help="The shard to empty.")],
    *,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel",
            help="Stop draining: the shard accepts new tenants again. Moved tenants stay where they are.",
        ),
    ] = False,
    data: Installed,
) -> None:
    """Move all tenants of a shard to other shards, one by one. The shard accepts no new tenants.

    If the command is interrupted, run it again to continue.
    """
    if cancel:
        with fail_on(ShardError), progress("ending the draining") as report:
            ShardMoves(Layout(data), report).end_draining(shard)
        typer.echo(f"The shard {shard} accepts new tenants.")
        return
    with fail_on(ShardError), progress("moving tenants") as report:
        moved = ShardMoves(Layout(data), report).drain(shard)
    typer.echo(f"The shard {shard} has no tenants; moved: {moved}.")


def remove(
    shard: Annotated[str, typer.Argument(help="A drained shard.")],
    *,
    leave_records: Annotated[
        bool,
        typer.Option(
            "--leave-records",
            help="Remove the shard even if its log has records of moved tenants. These tenants then see"
            " only their records in other shards.",
        ),
    ] = False,
    data: Installed,
) -> None:
    """Remove a shard without tenants. Its folder, root key, database and audit log stay.

    If the command is interrupted, run it again to continue.
    """
    layout = Layout(data.absolute())

    def note() -> None:
        ShardMoves(layout, typer.echo).remove(shard, leaves_records=leave_records)

    with fail_on(InitialiseError, ShardError):
        removed = remove_shard(layout, shard, note)
    typer.echo(
        REMOVED.format(
            name=shard,
            folder=removed.layout.key_service,
            database=removed.database,
            then=_then(layout, ENDED),
        )
    )


def rotate_transfer_key(*, data: Installed) -> None:
    """Make a new transfer key for all shards here. This is refused while a move is unfinished.

    If it is interrupted, run it again.
    """
    os.umask(0o077)
    with fail_on(ShardError):
        files = _write_new_transfer_key(Layout(data.absolute()))
    typer.echo("All shards here have a new transfer key:")
    for file in files:
        typer.echo(f"  {file}")
    typer.echo("The key services read it at the next move. Copy it to standbys and other hosts.")


def _write_new_transfer_key(layout: Layout) -> Sequence[Path]:
    """Write a new transfer key to the file of each key service here. Returns the files.

    No tenant is between two shards then, so nothing is sealed under the old key.

    An interrupted run leaves different keys, and no tenant can move until the command is run again.
    Raises ShardError.
    """
    try:
        files = {
            shard: _transfer_key_file(Layout(layout.directory, shard)) for shard in layout.shards
        }
        with ShardMoves(layout, lambda _: None).while_nobody_moves():
            key = secrets.token_bytes(TRANSFER_KEY_SIZE)
            for shard, file in files.items():
                with acting_as_owner_of(Layout(layout.directory, shard).key_service):
                    write_atomically(file, key, 0o400, replace=True)
    except (ConfigError, OSError) as error:
        raise ShardError(message_of(error)) from None
    return tuple(files.values())


def _transfer_key_file(shard: Layout) -> Path:
    with acting_as_owner_of(shard.key_service):
        file = key_service_config.read(shard.key_service_settings).transfer_key_file
    if file is None:
        raise ShardError(f"{shard.key_service_settings} has no transfer_key_file: set one")
    return file


def _then(layout: Layout, in_production: str) -> str:
    return IN_DEVELOPMENT if layout.development_credentials.exists() else in_production
