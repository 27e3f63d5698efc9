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
    to: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help='Where the new root key comes from, as in the settings: file = "…",'
            ' credential = "…", pkcs11 = {…} or command = […]. A file, and a key in a token, are'
            " made if they are missing.",
        ),
    ] = None,
    destroy_old: Annotated[
        bool,
        typer.Option(
            "--destroy-old",
            help="Overwrite and delete the old root key's file, or destroy its key in the token.",
        ),
    ] = False,
) -> None:
    """Seal every private key under a new root key, while the service runs.

    If it is interrupted, run it again: it continues.
    """
    os.umask(0o077)
    with fail_on(RootKeyError), progress("making a root key") as report:
        old = rotate_root_key(Layout(data), to=to, destroy_old=destroy_old, report=report)
    typer.echo(
        "Every private key is sealed under the new root key. Make a copy of it, and a new backup."
    )
    for each in old:
        typer.echo(f"Destroy {each}, and its copies once no backup needs them.")
