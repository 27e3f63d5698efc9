"""``pqkeep notices``: what needs attention."""

from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_rows
from pqkeep.cli.invocation import Invocation

COLUMNS = {
    "severity": "SEVERITY",
    "kind": "KIND",
    "raised_at": "RAISED",
    "text": "NOTICE",
}

app = typer.Typer(
    name="notices",
    help="Show what needs attention. Owners and admins dismiss notices in the portal.",
    no_args_is_help=True,
)


@command(app, "list")
def list_notices(
    invocation: Invocation,
    *,
    closed: Annotated[
        bool, typer.Option("--closed", help="List the notices that closed in the last 30 days.")
    ] = False,
) -> None:
    """List the open notices, the last raised first."""
    with invocation.connect() as client:
        notices = client.notices.list(closed=closed)
    show_rows(invocation, "notices", notices, COLUMNS)
