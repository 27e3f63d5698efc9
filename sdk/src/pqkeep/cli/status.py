"""``pqkeep status`` and ``pqkeep usage``: which service a command talks to, as whom, and how much it is used."""

import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pqkeep.cli.command import command
from pqkeep.cli.configuration import configuration
from pqkeep.cli.display import show_facts, show_table
from pqkeep.cli.failures import end
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Tenant
from pqkeep.errors import (
    AuthenticationError,
    MalformedResponseError,
    PolicyDeniedError,
    PqkeepError,
    UnavailableError,
)

if TYPE_CHECKING:
    from pqkeep.client import Client


def installed_version() -> str:
    """Return this package's version."""
    from importlib.metadata import version  # noqa: PLC0415 - it takes as long to load as typer

    return version("pqkeep")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "status")(status)
    command(app, "usage")(usage)


def status(invocation: Invocation) -> None:
    """Show which service you use, and as whom."""
    used = configuration(invocation)
    facts: dict[str, Any] = {
        "service": used.url,
        "service_from": used.url_from,
        "api_key_from": used.api_key_from,
        "profile": used.profile,
        "compliance_profile": used.compliance_profile,
        "version": f"{installed_version()} (Python {platform.python_version()})",
        "answers": False,
        "principal": None,
        "tenant": None,
        "tenant_name": None,
        "plan": None,
        "tenant_status": None,
    }
    failure: PqkeepError | None = None
    with invocation.connect(retries=0) as client:
        try:
            client.status.health()
            facts |= who(client)
        except PqkeepError as error:
            failure = error
    facts["answers"] = not isinstance(failure, UnavailableError)
    show_facts(invocation, facts)
    if failure is not None:
        raise end(failure, next_step=_next_step(failure))


def _next_step(failure: PqkeepError) -> str | None:
    """Return what to do instead of pqkeep status."""
    match failure:
        case AuthenticationError():
            return "store another API key: pqkeep login"
        case MalformedResponseError():
            return "correct the address: pqkeep login, or PQKEEP_URL"
        case UnavailableError():
            return (
                "see that the address is right and the service runs; "
                "its operator can run pqkeepd doctor"
            )
        case _:
            return None


def who(client: "Client") -> dict[str, str]:
    """Return who a credential stands for. Raises PqkeepError."""
    try:
        tenants = client.tenants.list()
    except PolicyDeniedError:  # by its scopes, which means that the service knows it
        return {"principal": "API key with scopes"}
    if len(tenants) != 1 or tenants[0].subscription is not None:  # which only the operator is told
        return {"principal": "operator"}
    (tenant,) = tenants
    return {
        "principal": "tenant",
        "tenant": tenant.id,
        "tenant_name": tenant.name,
        "plan": tenant.plan,
        "tenant_status": tenant.status,
    }


COLUMNS = {"start": "START", "succeeded": "SUCCEEDED", "refused": "REFUSED"}
PERIODS = ("24h", "30d")


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
