"""``pqkeepd destructions``: lists and cancels scheduled destructions of all key services."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.administration import ScheduledArchive
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    CancelArchive,
    CancelDestruction,
    RestoreKeyring,
    ScheduledDestruction,
)
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Installed
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import (
    KeyServiceError,
    cancel_destruction,
    list_destructions,
)

Cancellation = CancelDestruction | RestoreKeyring | CancelArchive
"""A request that keeps private keys."""


class DestructionError(Exception):
    """Nothing was cancelled."""


def list_all(*, data: Installed) -> None:
    """List the tenants, keyrings and key versions that are to be destroyed: when, and which."""
    with fail_on(ConfigError, KeyServiceError):
        for _, destruction in _scheduled(data):
            typer.echo("\t".join(_fields(destruction)))


def cancel(
    tenant: Annotated[UUID, typer.Argument(help="The tenant's id.")],
    *,
    algorithm: Annotated[
        Algorithm | None,
        typer.Option(help="The algorithm of one key. By default the whole tenant is kept."),
    ] = None,
    key_version: Annotated[int | None, typer.Option(help="The version of this key.", min=1)] = None,
    keyring: Annotated[
        str, typer.Option(help="A deleted keyring, or the keyring of this key.")
    ] = DEFAULT_KEYRING,
    data: Installed,
) -> None:
    """Keep a tenant that is to be deleted, a deleted keyring, or one key version.

    The audit log records it. A gateway shows it within seconds.
    """
    if (algorithm is None) != (key_version is None):
        raise typer.BadParameter("name both --algorithm and --key-version, or neither")
    request: Cancellation = CancelDestruction(tenant=TenantId(tenant))
    if keyring != DEFAULT_KEYRING:
        request = RestoreKeyring(tenant=TenantId(tenant), keyring=keyring)
    if algorithm is not None and key_version is not None:
        request = CancelArchive(
            tenant=TenantId(tenant),
            keyring=keyring,
            algorithm=algorithm,
            version=KeyVersion(key_version),
        )
    with fail_on(ConfigError, KeyServiceError, DestructionError):
        for socket, destruction in _scheduled(data):
            if _is_of(destruction, request):
                cancel_destruction(socket, request)
                typer.echo("cancelled: " + "\t".join(_fields(destruction)))
                return
        raise DestructionError(
            "no such destruction is scheduled: pqkeepd destructions list shows what is"
        )


def _scheduled(data: Path) -> Iterator[tuple[Path, ScheduledDestruction | ScheduledArchive]]:
    """Yield scheduled destructions, each with its key service's socket.

    A shard that fails does not hide the others. At the end, raises ConfigError and KeyServiceError
    of the first shard that failed.
    """
    layout = Layout(data)
    failed: ConfigError | KeyServiceError | None = None
    for shard in layout.shards:
        try:
            socket = _operator_socket(Layout(layout.directory, shard))
            for destruction in list_destructions(socket):
                yield socket, destruction
        except (ConfigError, KeyServiceError) as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _operator_socket(layout: Layout) -> Path:
    socket = key_service_config.read(layout.key_service_settings).operator_socket
    if socket is None:
        raise ConfigError(f"{layout.key_service_settings} has no operator_socket: add one")
    return socket


def _fields(found: ScheduledDestruction | ScheduledArchive) -> tuple[str, ...]:
    if isinstance(found, ScheduledDestruction):
        at, state = found.destruction.at, found.destruction.state
        keys = "all keys"
        if found.keyring != DEFAULT_KEYRING:
            keys = f"all keys in {found.keyring}"
        return f"{at:%Y-%m-%dT%H:%M:%SZ}", str(found.tenant), keys, state
    key = (found.keyring, found.algorithm, f"version {found.version}")
    return f"{found.at:%Y-%m-%dT%H:%M:%SZ}", str(found.tenant), *key


def _is_of(found: ScheduledDestruction | ScheduledArchive, request: Cancellation) -> bool:
    if found.tenant != request.tenant:
        return False
    if isinstance(found, ScheduledDestruction):
        is_cancelled = isinstance(request, CancelDestruction | RestoreKeyring)
        return is_cancelled and found.keyring == request.keyring
    return isinstance(request, CancelArchive) and (
        (found.keyring, found.algorithm, found.version)
        == (request.keyring, request.algorithm, request.version)
    )
