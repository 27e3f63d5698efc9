"""``pqkeepd config check``."""

import os

import typer

from pqkeep_protocol.startup.logs import write_logs
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Settings
from pqkeep_server.exit_status import fail_on
from pqkeep_server.settings_check import check_settings


def check(settings: Settings) -> None:
    """Check a settings file as its process would, with the environment; start nothing."""
    write_logs("pqkeepd")
    with fail_on(ConfigError, OSError, status=os.EX_CONFIG):
        checked = check_settings(settings)
    if checked.link is not None:
        checked.link.warn()
    typer.echo(f"{settings}: the {checked.role} can start with these settings")
