"""``pqkeepd shard``: which shards there are, and moving tenants between them."""

from typing import Annotated
from uuid import UUID

import typer

from pqkeep_protocol.keys import TenantId
from pqkeep_server.commands.arguments import Data
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.progress import progress
from pqkeep_server.shards import ShardError, ShardMoves


def list_shards(*, data: Data) -> None:
    """List the shards: name, tenants, whether it takes new ones, and moves that are not finished."""
    with fail_on(ShardError):
        found = ShardMoves(Layout(data), typer.echo).list()
    for each in found:
        state = "draining" if each.stored.draining else "open"
        moves = "does not answer here" if each.unfinished is None else f"{each.unfinished} moves"
        typer.echo(f"{each.stored.name}\t{each.stored.tenants} tenants\t{state}\t{moves}")


def move(
    tenant: Annotated[UUID, typer.Argument(help="The tenant's id.")],
    *,
    to: Annotated[str, typer.Option(metavar="SHARD", help="The shard that it moves to.")],
    data: Data,
) -> None:
    """Move a tenant to another shard, while everything runs. Its requests get 503 for a moment.

    If it is interrupted, run it again: it continues.
    """
    with fail_on(ShardError), progress("moving a tenant") as report:
        ShardMoves(Layout(data), report).move(TenantId(tenant), to)
    typer.echo(f"The tenant {tenant} is in the shard {to}.")


def drain(
    shard: Annotated[str, typer.Argument(help="The shard that is to be empty.")], *, data: Data
) -> None:
    """Move all tenants of a shard to others, one by one, and put no new ones there.

    If it is interrupted, run it again: it continues.
    """
    with fail_on(ShardError), progress("moving tenants") as report:
        moved = ShardMoves(Layout(data), report).drain(shard)
    typer.echo(f"The shard {shard} has no tenants: {moved} were moved.")
