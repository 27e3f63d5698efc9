"""The command ``pqkeepd`` and the table of its commands."""

from collections.abc import Callable, Mapping
from functools import wraps
from importlib.metadata import version
from typing import Annotated

import typer

from pqkeep_protocol.startup.logs import write_warnings
from pqkeep_server.commands import (
    accounts,
    checks,
    databases,
    destructions,
    dev,
    keys,
    production,
    rules,
    shard,
)
from pqkeep_server.exit_status import time_limit

GROUPS: Mapping[str, str] = {
    "admin": "Invite people.",
    "config": "Check settings.",
    "destructions": "List and cancel scheduled destructions of keys.",
    "mail": "Test the delivery of mail.",
    "operator": "Add, list and remove operators, who administer tenants.",
    "recovery-key": "Make recovery keys, which encrypt backups.",
    "rules": "List, set and remove a tenant's rules, also to weaken them.",
    "shard": "Make shards and move tenants between them.",
    "root-key": "Change the root key, which seals every private key.",
    "transfer-key": "Change the transfer key, which protects tenants that move between shards.",
}
"""The first words of two-word commands, with their help."""

COMMANDS: Mapping[str, Callable[..., None]] = {
    "dev": dev.dev,
    "init": production.init,
    "start": production.start,
    "doctor": checks.doctor,
    "gateway": production.gateway,
    "keyservice": production.keyservice,
    "certificates": keys.certificates,
    "config check": checks.check_config,
    "selftest": checks.selftest,
    "backup": databases.backup,
    "restore": databases.restore,
    "migrate": databases.migrate,
    "migrate-store": databases.migrate_store,
    "recovery-key create": keys.create_recovery_key,
    "root-key rotate": keys.rotate_root_key,
    "shard add": shard.add,
    "shard list": shard.list_shards,
    "shard move": shard.move,
    "shard drain": shard.drain,
    "shard remove": shard.remove,
    "transfer-key rotate": shard.rotate_transfer_key,
    "operator add": accounts.add_operator,
    "operator rotate": accounts.rotate_operator,
    "operator remove": accounts.remove_operator,
    "operator list": accounts.list_operators,
    "operator sessions": accounts.list_operator_sessions,
    "operator end-sessions": accounts.end_operator_sessions,
    "admin create": accounts.invite,
    "mail test": accounts.send_test_mail,
    "refused-events": accounts.refused_events,
    "destructions list": destructions.list_all,
    "destructions cancel": destructions.cancel,
    "rules list": rules.list_all,
    "rules set": rules.set_,
    "rules remove": rules.remove,
}
"""Every command, in the order of --help."""

SECONDS: Mapping[str, float] = {
    "doctor": 120,
    "config check": 60,
    "shard add": 120,
    "shard list": 60,
    "operator add": 60,
    "operator rotate": 60,
    "operator remove": 60,
    "operator list": 60,
    "operator sessions": 60,
    "operator end-sessions": 60,
    "admin create": 60,
    "mail test": 60,
    "refused-events": 60,
}
"""Time limits of short commands that read files which other users may write."""


def _limited(function: Callable[..., None], seconds: float) -> Callable[..., None]:
    @wraps(function)
    def run(*arguments: object, **options: object) -> None:
        with time_limit(seconds):
            function(*arguments, **options)

    return run


def _command() -> typer.Typer:
    app = typer.Typer(
        name="pqkeepd",
        help="pqkeep: post-quantum cryptography as a service.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(pqkeepd)
    groups: dict[str, typer.Typer] = {}
    for words, unlimited in COMMANDS.items():
        function = _limited(unlimited, SECONDS[words]) if words in SECONDS else unlimited
        first, _, second = words.partition(" ")
        if not second:
            app.command(first)(function)
            continue
        if first not in groups:
            groups[first] = typer.Typer(help=GROUPS[first], no_args_is_help=True)
            app.add_typer(groups[first], name=first)
        groups[first].command(second)(function)
    return app


def _show_version(value: bool) -> None:  # noqa: FBT001 - a Typer callback
    if value:
        typer.echo(f"pqkeepd {version('pqkeep-server')}")
        raise typer.Exit


def pqkeepd(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Start, supervise and administer a pqkeep installation."""
    write_warnings()  # a command that runs a process sets up its logs instead


app = _command()
