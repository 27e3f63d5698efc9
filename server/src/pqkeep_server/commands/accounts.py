"""``pqkeepd operator``, ``admin create`` and ``refused-events``: commands on the accounts database.

A change of an operator takes effect with the next request, and is in the audit log as soon as a
gateway runs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pqkeep_gateway import config
from pqkeep_gateway.access.callers import OperatorRole
from pqkeep_gateway.access.principals import OperatorError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Installed
from pqkeep_server.dev import HOST
from pqkeep_server.exit_status import fail_on
from pqkeep_server.gateway_client import (
    GatewayClient,
    GatewayError,
    accept_invitation_command,
    invitation_link,
    read_credential,
)
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of

if TYPE_CHECKING:
    from pqkeep_gateway.storage.audit_outbox import RefusedEvent
    from pqkeep_gateway.tenancy.operators import Operators

T = TypeVar("T")
Name = Annotated[str, typer.Argument(help="The operator's name.")]

_SECOND = 1_000_000
_KEEP = "Store this credential now: it is not shown again, and pqkeep keeps only its digest."


class OperatorsUnavailableError(Exception):
    """The accounts database cannot be written now."""

    def __init__(self) -> None:
        super().__init__(
            "the accounts database cannot be written now: it is unreachable, its disk is full, or"
            " events have waited for the audit log for five minutes. Run pqkeepd doctor for the cause"
        )


def add_operator(
    name: Name,
    *,
    role: Annotated[
        OperatorRole,
        typer.Option(
            help="admin: everything; tenant-admin: make and manage tenants; read-only: change nothing."
        ),
    ] = OperatorRole.ADMIN,
    data: Installed,
) -> None:
    """Add an operator and print the credential."""
    _print_credential(_run(data, lambda operators: operators.add(name, role)))


def rotate_operator(name: Name, *, data: Installed) -> None:
    """Replace an operator's credential at once and print the new one."""
    _print_credential(_run(data, lambda operators: operators.rotate(name)))


def remove_operator(name: Name, *, data: Installed) -> None:
    """Remove an operator. The credential is refused from the next request on."""
    _run(data, lambda operators: operators.remove(name))


def list_operators(*, data: Installed) -> None:
    """List the operators, the age of their credentials, and their roles."""
    for operator in _run(data, lambda operators: operators.list()):
        typer.echo(f"{operator.name}\t{operator.rotated_at:%Y-%m-%dT%H:%M:%SZ}\t{operator.role}")


def list_operator_sessions(*, data: Installed) -> None:
    """List the people who are signed in by a provider: start, person, role, address and e-mail."""
    for session in _run(data, lambda operators: operators.sessions()):
        if (operator := session.operator) is not None and (person := operator.person) is not None:
            shown = (str(person), operator.role, session.source_address, person.email or "")
            typer.echo("\t".join((f"{session.created_at:%Y-%m-%dT%H:%M:%SZ}", *shown)))


def end_operator_sessions(*, data: Installed) -> None:
    """End the browser sessions of all operators, with the next request."""
    typer.echo(f"ended {_run(data, lambda operators: operators.end_sessions())} sessions")


def _print_credential(credential: str) -> None:
    typer.echo(credential)
    typer.echo(_KEEP, err=True)


def _run(data: Path, action: "Callable[[Operators], Awaitable[T]]") -> T:
    layout = Layout(data)
    errors = (ConfigError, OperatorError, OperatorsUnavailableError, OSError)
    with fail_on(*errors), acting_as_owner_of(layout.gateway):
        return asyncio.run(_act(layout, action))


async def _act(layout: Layout, action: "Callable[[Operators], Awaitable[T]]") -> T:
    from pqkeep_gateway.wiring import open_operators  # noqa: PLC0415 - slow

    try:
        async with open_operators(config.read(layout.gateway_settings)) as opened:
            return await action(opened)
    except UnavailableError:
        raise OperatorsUnavailableError from None


def send_test_mail(
    *,
    to: Annotated[str, typer.Option(help="The e-mail address that gets the message.")],
    data: Installed,
) -> None:
    """Send a test message by the gateway's mail server, as the gateway's user."""
    layout = Layout(data)
    with fail_on(ConfigError, OSError), acting_as_owner_of(layout.gateway):
        from pqkeep_gateway import wiring  # noqa: PLC0415 - slow
        from pqkeep_gateway.delivery import mail_delivery  # noqa: PLC0415 - slow

        with fail_on(mail_delivery.MailDeferredError, mail_delivery.MailRejectedError):
            asyncio.run(wiring.send_test_mail(config.read(layout.gateway_settings), to))
    typer.echo(f"the message was accepted: look for it in the inbox of {to}")


def invite(
    *,
    email: Annotated[str, typer.Option(help="The person's e-mail address.")],
    tenant: Annotated[str, typer.Option(metavar="ID", help="The person's tenant.")],
    operator_key_file: Annotated[
        Path,
        typer.Option(help="A file of mode 0400 with only the operator's credential."),
    ],
    role: Annotated[
        str, typer.Option(help="The person's role: owner, admin, developer or viewer.")
    ] = "owner",
    url: Annotated[
        str, typer.Option(help="The gateway's address: https, or http on 127.0.0.1.")
    ] = f"http://{HOST}:8080",
    ca_file: Annotated[
        Path | None,
        typer.Option(
            help="A PEM file of certificate authorities to trust instead of the system's."
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The gateway's address for people, if it differs from --url."
        ),
    ] = None,
) -> None:
    """Invite a person: print a link for choosing a password, and a command that does the same.

    One of the two can be used, once, within a week.
    """
    with fail_on(ConfigError, GatewayError):
        gateway = GatewayClient(url, read_credential(operator_key_file), ca_file)
        token = gateway.invite(tenant, email, role)
    command = accept_invitation_command(public_url or url, token, ca_file)
    typer.echo(f"Link for a browser:\n  {invitation_link(public_url or url, token)}")
    typer.echo(f"Or a command; replace the password in it first:\n  {command}")


class AccountsUnavailableError(Exception):
    """The accounts database does not respond."""

    def __init__(self) -> None:
        super().__init__("the accounts database cannot be reached")


def refused_events(
    *,
    data: Installed,
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--acknowledge",
            help="Record in the audit log that these events were seen, which ends the alert and the"
            " finding of doctor.",
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List acknowledged events, too.")
    ] = False,
) -> None:
    """List the events that the audit log refused, with time, reason and tenant. They are kept."""
    layout = Layout(data)
    errors = (ConfigError, AccountsUnavailableError, OSError)
    with fail_on(*errors), acting_as_owner_of(layout.gateway):
        settings = config.read(layout.gateway_settings)
        found = _find(settings, acknowledged=everything, acknowledges=acknowledge)
    for refused in found:
        shown = [_time(refused.at_us), refused.reason, refused.id]
        if (event := refused.event) is not None:
            shown += [event.operation, event.outcome, str(event.tenant), event.principal]
        typer.echo("\t".join(shown))


def _find(
    settings: config.Config, *, acknowledged: bool, acknowledges: bool
) -> "Sequence[RefusedEvent]":
    from pqkeep_gateway.wiring import list_refused_events  # noqa: PLC0415 - slow

    try:
        return asyncio.run(
            list_refused_events(settings, acknowledged=acknowledged, acknowledges=acknowledges)
        )
    except UnavailableError:
        raise AccountsUnavailableError from None


def _time(at_us: int) -> str:
    """Return a time to the second, or the number itself if no calendar date has it."""
    try:
        return f"{datetime.fromtimestamp(at_us // _SECOND, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return str(at_us)
