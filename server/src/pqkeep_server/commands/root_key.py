"""``pqkeepd root-key rotate``."""

import os
from typing import Annotated

import typer

from pqkeep_server.commands.arguments import Data
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.progress import progress
from pqkeep_server.root_key import RootKeyError
from pqkeep_server.root_key import rotate as rotate_root_key


def rotate(
    *,
    data: Data,
    destroy_old: Annotated[
        bool, typer.Option("--destroy-old", help="Overwrite and delete the old root key's file.")
    ] = False,
) -> None:
    """Seal every private key under a new root key, while the service runs.

    If it is interrupted, run it again: it continues.
    """
    os.umask(0o077)
    with fail_on(RootKeyError), progress("making a root key") as report:
        old = rotate_root_key(Layout(data), destroy_old=destroy_old, report=report)
    typer.echo(
        "Every private key is sealed under the new root key. Make a copy of it, and a new backup."
    )
    for path in old:
        typer.echo(f"Destroy {path}, and its copies once no backup needs them.")
