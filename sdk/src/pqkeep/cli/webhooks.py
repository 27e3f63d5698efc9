"""``pqkeep webhooks``: signed messages about notices, and their deliveries."""

from itertools import islice
from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation

COLUMNS = {
    "id": "ID",
    "name": "NAME",
    "url": "URL",
    "state": "STATE",
    "last_success_at": "LAST SUCCESS",
    "failing_since": "FAILING SINCE",
}
DELIVERY_COLUMNS = {
    "id": "ID",
    "type": "TYPE",
    "state": "STATE",
    "created_at": "CREATED",
    "attempts": "ATTEMPTS",
    "status": "STATUS",
    "problem": "PROBLEM",
}

app = typer.Typer(
    name="webhooks",
    help="Show and test webhooks. Owners and admins create and change them in the portal.",
    no_args_is_help=True,
)
_Webhook = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The webhook's id.")]


@command(app, "list")
def list_webhooks(invocation: Invocation) -> None:
    """List the webhooks."""
    with invocation.connect() as client:
        webhooks = client.webhooks.list()
    show_rows(invocation, "webhooks", webhooks, COLUMNS)


@command(app, "deliveries")
def deliveries(
    invocation: Invocation,
    webhook: _Webhook,
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="COUNT", help="The most messages to list.")
    ] = 50,
) -> None:
    """List the newest messages to a webhook, with the status of the last response."""
    with invocation.connect() as client:
        found = tuple(islice(client.webhooks.deliveries(webhook, page_size=limit), limit))
    show_rows(invocation, "deliveries", found, DELIVERY_COLUMNS)


@command(app, "test")
def test(invocation: Invocation, webhook: _Webhook) -> None:
    """Send a signed test message to a webhook."""
    with invocation.connect() as client:
        show_facts(invocation, client.webhooks.test(webhook))
    invocation.note(f"see the result: pqkeep webhooks deliveries {webhook}")


@command(app, "resend")
def resend(
    invocation: Invocation,
    webhook: _Webhook,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="The delivery's id.")],
) -> None:
    """Send a message to a webhook again."""
    with invocation.connect() as client:
        show_facts(invocation, client.webhooks.resend(webhook, delivery))
