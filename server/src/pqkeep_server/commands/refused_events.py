"""``pqkeepd refused-events``: what the gateway did, and the audit log refuses to record."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pqkeep_gateway import config
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Data
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.owner import acting_as_owner_of

if TYPE_CHECKING:
    from pqkeep_gateway.storage.audit_outbox import RefusedEvent

_SECOND = 1_000_000


class AccountsUnavailableError(Exception):
    """The accounts database does not answer."""

    def __init__(self) -> None:
        super().__init__("the accounts database cannot be reached")


def refused_events(
    *,
    data: Data,
    acknowledge: Annotated[
        bool,
        typer.Option(
            "--acknowledge",
            help="Note in the audit log that what is listed has been seen: doctor and the alert say"
            " it no more.",
        ),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List those that were acknowledged, too.")
    ] = False,
) -> None:
    """List the events that the audit log refused: when, why, what and whose. They are kept."""
    layout = Layout(data)
    errors = (ConfigError, AccountsUnavailableError, OSError)
    with fail_on(*errors), acting_as_owner_of(layout.gateway):
        settings = config.read(layout.gateway_settings)
        found = _find(settings, acknowledged=everything, acknowledges=acknowledge)
    for each in found:
        shown = [_time(each.at_us), each.reason, each.id]
        if (event := each.event) is not None:
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
    """Return a time to the second, or the number if it is none of the calendar's."""
    try:
        return f"{datetime.fromtimestamp(at_us // _SECOND, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return str(at_us)
