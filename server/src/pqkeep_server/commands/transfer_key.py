"""``pqkeepd transfer-key rotate``."""

import os

import typer

from pqkeep_server.commands.arguments import Data
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.shards import ShardError
from pqkeep_server.transfer_key import rotate_transfer_key


def rotate(*, data: Data) -> None:
    """Make a new transfer key for all shards here. Refused while a move is not finished.

    If it is interrupted, run it again.
    """
    os.umask(0o077)
    with fail_on(ShardError):
        files = rotate_transfer_key(Layout(data.absolute()))
    typer.echo("All shards here have a new transfer key:")
    for file in files:
        typer.echo(f"  {file}")
    typer.echo("They read it when a tenant moves. Standbys, and other hosts, need a copy of it.")
