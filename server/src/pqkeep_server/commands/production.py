"""``pqkeepd init``, ``start``, ``gateway`` and ``keyservice``: an installation under two users."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.entitlements import Plan
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.startup.logs import write_logs
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server import users
from pqkeep_server.commands.arguments import Data, Settings, UserIds
from pqkeep_server.exit_status import end_on_signals, fail_on, ignore_user_signals
from pqkeep_server.initialise import (
    ACCOUNTS_FILE,
    KEYS_FILE,
    PLAN,
    InitialiseError,
    Layout,
    Stores,
)
from pqkeep_server.initialise import initialise as make_directory
from pqkeep_server.shard_folders import add_missing
from pqkeep_server.start import StartError
from pqkeep_server.start import start as run
from pqkeep_server.start_settings import MOST_SHARDS
from pqkeep_server.users import UsersError

KEEP = """\
operator's credential: {credential}
It is not shown again. Store it in a safe place on another machine.
Store a copy of the root key, {root_keys}, in another safe place:
it seals every private key, and no backup contains it.
Settings: {gateway} and {key_service}.
Start with: pqkeepd start --data {directory}"""


def init(
    *,
    data: Data,
    accounts_database: Annotated[
        str | None, typer.Option(metavar="URL", help="Keep accounts in PostgreSQL.")
    ] = None,
    keys_database: Annotated[
        str | None, typer.Option(metavar="URL", help="Keep keys and audit records in PostgreSQL.")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Keep rate limits in Redis or Valkey.")
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_SHARDS,
            help="Key services, each with its own database file. pqkeepd shard add can make more, and"
            " can use PostgreSQL.",
        ),
    ] = 1,
    default_plan: Annotated[
        Plan, typer.Option(help="The plan of tenants that an operator makes without a plan.")
    ] = PLAN,
    user_ids: UserIds = None,
) -> None:
    """Make an installation: two users, settings, root key, pepper and an operator's credential."""
    os.umask(0o077)
    stores = Stores(
        accounts=accounts_database or ACCOUNTS_FILE,
        keys=keys_database or KEYS_FILE,
        redis_url=redis_url,
    )
    credential = new_credential(CredentialKind.OPERATOR)
    layout = Layout(data.absolute())
    with fail_on(InitialiseError, UsersError):
        owners = users.chosen(user_ids)
        if data.exists() and data.stat().st_uid != 0:
            raise InitialiseError(f"{data} belongs to another user: it must belong to root")
        if shards > 1 and keys_database is not None:
            raise InitialiseError(
                "--shards cannot be combined with --keys-database: leave it out, and make each further"
                " shard with pqkeepd shard add NAME --keys-database URL"
            )
        make_directory(
            layout,
            credential,
            signup="operator",
            stores=stores,
            users=owners,
            default_plan=default_plan,
        )
        added = add_missing(layout, shards)
    typer.echo(
        KEEP.format(
            credential=credential,
            root_keys=", ".join(
                str(shard.root_key) for shard in (layout, *(folder.layout for folder in added))
            ),
            gateway=layout.gateway_settings,
            key_service=layout.key_service_settings,
            directory=layout.directory,
        )
    )


def start(*, data: Data) -> None:
    """Run the processes of an installation, each as its own user. This needs root."""
    write_logs("pqkeepd")
    end_on_signals(signal.SIGINT, signal.SIGTERM)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the supervisor handles it
    ignore_user_signals()
    with fail_on(StartError, status=os.EX_CONFIG):
        run(Layout(data.absolute()))


def gateway(settings: Settings) -> None:
    """Run the gateway in the foreground, as the user who starts it."""
    with fail_on(ConfigError, status=os.EX_CONFIG):
        gateway_config.read(settings)
    _become("pqkeep_gateway", settings)


def keyservice(settings: Settings) -> None:
    """Run the key service in the foreground, as the user who starts it."""
    with fail_on(ConfigError, status=os.EX_CONFIG):
        key_service_config.read(settings)
    _become("pqkeep_keyservice", settings)


def _become(module: str, settings: Path) -> None:
    """Replace this process and its imported modules: the gateway must not have cryptography."""
    command = [sys.executable, "-P", "-m", module, str(settings)]
    os.execv(command[0], command)  # noqa: S606 - without a shell
