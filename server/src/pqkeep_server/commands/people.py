"""``pqkeepd admin create``."""

from pathlib import Path
from typing import Annotated

import typer

from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.dev import HOST
from pqkeep_server.exit_status import fail_on
from pqkeep_server.gateway_client import (
    GatewayClient,
    GatewayError,
    accept_invitation_command,
    invitation_link,
    read_credential,
)


def create(
    *,
    email: Annotated[str, typer.Option(help="The person's e-mail address.")],
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant they belong to.")],
    operator_key_file: Annotated[
        Path,
        typer.Option(help="A file of mode 0400 that holds the operator's credential only."),
    ],
    role: Annotated[str, typer.Option(help="owner, admin, developer or viewer.")] = "owner",
    url: Annotated[
        str, typer.Option(help="The gateway's address: https, or http on 127.0.0.1.")
    ] = f"http://{HOST}:8080",
    ca_file: Annotated[
        Path | None,
        typer.Option(help="Certificate authorities to trust, in PEM, instead of the system's."),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The address at which people reach the gateway, if it is another."
        ),
    ] = None,
) -> None:
    """Invite a person: print the link with which they choose a password, and a command for it.

    Either can be used once, within a week.
    """
    with fail_on(ConfigError, GatewayError):
        gateway = GatewayClient(url, read_credential(operator_key_file), ca_file)
        token = gateway.invite(tenant, email, role)
    command = accept_invitation_command(public_url or url, token, ca_file)
    typer.echo(f"A link, for a browser:\n  {invitation_link(public_url or url, token)}")
    typer.echo(f"Or a command, in which the password is yet to choose:\n  {command}")
