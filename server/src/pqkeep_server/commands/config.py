"""``pqkeepd config check``."""

import os

import typer

from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Settings
from pqkeep_server.exit_status import fail_on
from pqkeep_server.settings_check import check_settings


def check(settings: Settings) -> None:
    """Check a settings file as its process would, with the environment; start nothing."""
    with fail_on(ConfigError, status=os.EX_CONFIG):
        role = check_settings(settings)
    typer.echo(f"{settings}: the {role} can start with these settings")
