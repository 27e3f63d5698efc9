"""``pqkeepd config check``."""

import os

import typer

from pqkeep_protocol.startup.logs import write_warnings
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import SettingsOrData
from pqkeep_server.exit_status import fail_on
from pqkeep_server.settings_check import (
    UnreachableError,
    check_database,
    check_settings,
    settings_files,
)


def check(settings: SettingsOrData) -> None:
    """Check settings as their process would, with the environment; start nothing.

    A database on a server is connected to, and not changed: status 75 where it does not answer.
    Of a data directory all settings are checked: the gateway's, every shard's, and those of start.
    """
    write_warnings()
    with (
        fail_on(UnreachableError, status=os.EX_TEMPFAIL),
        fail_on(ConfigError, OSError, status=os.EX_CONFIG),
    ):
        for file in settings_files(settings):
            checked = check_settings(file)
            if checked.link is not None:
                checked.link.warn()
            check_database(file)
            typer.echo(f"{file}: the {checked.role} can start with these settings")
