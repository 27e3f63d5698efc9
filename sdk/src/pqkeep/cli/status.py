"""``pqkeep status`` and ``pqkeep usage``: the service, the credential and the number of operations."""

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
    """Show the service and the credential that you use."""
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
    """Return the next step after a failed pqkeep status, or None."""
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
    """Return the owner of a credential. Raises PqkeepError."""
    try:
        tenants = client.tenants.list()
    except PolicyDeniedError:  # the scopes refuse it, so the service knows the API key
        return {"principal": "API key with scopes", "tenant": client.api_keys.own().tenant_id}
    if (
        len(tenants) != 1 or tenants[0].subscription is not None
    ):  # only the operator sees a subscription
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
            help="24h (by the hour) or 30d (by the day).",
            autocompletion=lambda: list(PERIODS),
        ),
    ] = PERIODS[0],
    tenant: Tenant = None,
) -> None:
    """Count successful and refused operations of your tenant; as the operator, of all tenants."""
    with invocation.connect() as client:
        found = client.usage.get(period=period, tenant_id=tenant)
    if invocation.is_json:
        show_facts(invocation, found)
    else:
        show_table(found.buckets, COLUMNS)
