"""``pqkeepd operator``: operators with names and credentials of their own.

They are in the accounts database, so every gateway knows of a change with the next request, and
the change is in the audit log as soon as a gateway runs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pqkeep_gateway import config
from pqkeep_gateway.access.principals import OperatorError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Data
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of

if TYPE_CHECKING:
    from pqkeep_gateway.tenancy.operators import Operators

T = TypeVar("T")
Name = Annotated[str, typer.Argument(help="The operator's name.")]

_KEEP = "Keep this credential: it is not shown again, and only a digest of it is stored."


class OperatorsUnavailableError(Exception):
    """The accounts database cannot be changed now."""

    def __init__(self) -> None:
        super().__init__(
            "the accounts database takes no change now: it cannot be reached, or events have waited"
            " for the audit log for five minutes; start the gateway and the key service"
        )


def add(name: Name, *, data: Data) -> None:
    """Add an operator, and print the credential."""
    _print_credential(_run(data, lambda each: each.add(name)))


def rotate(name: Name, *, data: Data) -> None:
    """Replace an operator's credential, at once, and print the new one."""
    _print_credential(_run(data, lambda each: each.rotate(name)))


def remove(name: Name, *, data: Data) -> None:
    """Remove an operator: the credential is refused from the next request on."""
    _run(data, lambda each: each.remove(name))


def list_operators(*, data: Data) -> None:
    """List the operators, and since when their credentials are valid."""
    for each in _run(data, lambda each: each.list()):
        typer.echo(f"{each.name}\t{each.rotated_at:%Y-%m-%dT%H:%M:%SZ}")


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
