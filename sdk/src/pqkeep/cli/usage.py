"""``pqkeep usage``: how much is done with keys."""

from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_table
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Tenant

COLUMNS = {"start": "START", "succeeded": "SUCCEEDED", "refused": "REFUSED"}
PERIODS = ("24h", "30d")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "usage")(usage)


def usage(
    invocation: Invocation,
    *,
    period: Annotated[
        str,
        typer.Option(
            metavar="PERIOD",
            help="24h, by the hour, or 30d, by the day.",
            autocompletion=lambda: list(PERIODS),
        ),
    ] = PERIODS[0],
    tenant: Tenant = None,
) -> None:
    """Show how many operations succeeded and how many were refused; as the operator, everybody's."""
    with invocation.connect() as client:
        found = client.usage.get(period=period, tenant_id=tenant)
    if invocation.is_json:
        show_facts(invocation, found)
    else:
        show_table(found.buckets, COLUMNS)
