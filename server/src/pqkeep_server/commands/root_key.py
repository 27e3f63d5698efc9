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
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The shard whose root key it is. By default that of each shard here, one after the"
            " other.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Seal every private key under a new root key, while the service runs.

    If it is interrupted, run it again: it continues.
    """
    os.umask(0o077)
    known = Layout(data).shards
    with fail_on(RootKeyError):
        shards = _chosen(shard, known, to)
    for each in shards:
        _rotate(Layout(data, each), to, destroy_old=destroy_old, is_one=len(known) == 1)


def _chosen(shard: str | None, known: tuple[str, ...], to: str | None) -> tuple[str, ...]:
    """Return the shards whose root keys are changed. Raises RootKeyError."""
    if shard is not None and shard not in known:
        raise RootKeyError(f"there is no such shard here: there are {', '.join(known)}")
    if shard is None and to is not None and len(known) > 1:
        raise RootKeyError("each shard has a root key of its own: with --to, name one by --shard")
    return known if shard is None else (shard,)


def _rotate(layout: Layout, to: str | None, *, destroy_old: bool, is_one: bool) -> None:
    with fail_on(RootKeyError), progress("making a root key") as report:
        old = rotate_root_key(layout, to=to, destroy_old=destroy_old, report=report)
    of_shard = "" if is_one else f" of the shard {layout.shard}"
    typer.echo(
        f"Every private key{of_shard} is sealed under the new root key. Make a copy of it, and a"
        " new backup."
    )
    for each in old:
        typer.echo(f"Destroy {each}, and its copies once no backup needs them.")
