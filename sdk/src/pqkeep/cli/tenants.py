"""``pqkeep tenants``: the organisations that own keys. Most commands are for the operator."""

from typing import Annotated, Literal

import typer

from pqkeep.cli import choice
from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import one_of

COLUMNS = {"id": "ID", "name": "NAME", "plan": "PLAN", "status": "STATUS"}
PLANS = ("free", "starter", "professional", "enterprise", "enterprise_plus")
STATUSES = ("active", "suspended", "deleting", "deleted")

app = typer.Typer(
    name="tenants", help="Show tenants; as the operator, change them.", no_args_is_help=True
)

Identifier = Annotated[str, typer.Argument(metavar="ID", help="The tenant's id.")]
Plan = Annotated[
    str | None,
    one_of(
        PLANS, metavar="PLAN", help="free, starter, professional, enterprise or enterprise_plus."
    ),
]


@command(app, "create")
def create(
    invocation: Invocation,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The tenant's name, of 1 to 255 characters.")
    ],
    *,
    plan: Plan = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The shard of the tenant's keys, by default the one with the fewest tenants.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a tenant, by default with the plan free. It has no API key yet."""
    with invocation.connect() as client:
        tenant = client.tenants.create(name, plan=plan, shard=shard)
    show_facts(invocation, tenant)
    invocation.note(f"make its first API key: pqkeep api-keys create --tenant {tenant.id}")


@command(app, "show")
def show(
    invocation: Invocation,
    tenant: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="The tenant's id, by default your own.", show_default=False
        ),
    ] = None,
) -> None:
    """Show a tenant."""
    with invocation.connect() as client:
        show_facts(invocation, client.tenants.get(choice.tenant_id(client, tenant)))


@command(app, "list")
def list_tenants(
    invocation: Invocation,
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="List only tenants with this text in their name, ignoring case.",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        str | None,
        one_of(
            STATUSES,
            metavar="STATUS",
            help="List only tenants of this status: active, suspended, deleting or deleted.",
        ),
    ] = None,
) -> None:
    """List the tenants that the credential may see."""
    with invocation.connect() as client:
        found = client.tenants.list(name=name, status=status)
        show_rows(invocation, "tenants", found, COLUMNS)


@command(app, "update")
def update(
    invocation: Invocation,
    tenant: Identifier,
    *,
    plan: Plan = None,
    tier: Annotated[
        str | None,
        typer.Option(metavar="TIER", help="A plan's name, or growth.", show_default=False),
    ] = None,
    subscription: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="active or ended.", show_default=False),
    ] = None,
    requests_per_minute: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="1 to 1000000, or plan to return to the plan's limit.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Change a tenant's plan, tier, subscription or rate limit at once."""
    with invocation.connect() as client:
        changed = client.tenants.update(
            tenant,
            plan=plan,
            tier=tier,
            subscription=subscription,
            requests_per_minute=_rate(requests_per_minute),
        )
    show_facts(invocation, changed)


@command(app, "suspend")
def suspend(invocation: Invocation, tenant: Identifier) -> None:
    """Suspend a tenant: all its requests are refused."""
    with invocation.connect() as client:
        show_facts(invocation, client.tenants.suspend(tenant))


@command(app, "resume")
def resume(invocation: Invocation, tenant: Identifier) -> None:
    """Accept the requests of a suspended tenant again."""
    with invocation.connect() as client:
        show_facts(invocation, client.tenants.resume(tenant))


@command(app, "delete")
def delete(
    invocation: Invocation,
    tenant: Identifier,
    *,
    days: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Days until the deletion, 1 to 90. The default is 7.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Schedule the deletion of a suspended tenant. Its keys are then destroyed for good."""
    with invocation.connect() as client:
        show_facts(invocation, client.tenants.delete(tenant, days=days))
    invocation.note(f"to cancel: pqkeep tenants cancel-deletion {tenant}")


@command(app, "cancel-deletion")
def cancel_deletion(invocation: Invocation, tenant: Identifier) -> None:
    """Cancel the scheduled deletion of a tenant. It stays suspended."""
    with invocation.connect() as client:
        show_facts(invocation, client.tenants.cancel_deletion(tenant))


def _rate(text: str | None) -> int | Literal["plan"] | None:
    if text is None:
        return None
    if text == "plan":
        return "plan"
    try:
        return int(text)
    except ValueError:
        raise Refusal(
            "--requests-per-minute must be a number or plan", "give 1 to 1000000, or plan"
        ) from None
