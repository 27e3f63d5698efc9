"""Arguments of several commands."""

from pathlib import Path
from typing import Annotated

import typer

from pqkeep_protocol.startup.settings import POSTGRESQL, DatabaseAddress
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout, NoInstallationError, require_installation


def on_server(url: str) -> str:
    """Return the location of a PostgreSQL database. Raises typer.BadParameter."""
    if not url.startswith(POSTGRESQL):
        raise typer.BadParameter(f"the address must begin with {POSTGRESQL}")
    try:
        return str(DatabaseAddress(url).location)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


AccountsDatabase = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        parser=on_server,
        help="The address of an empty PostgreSQL database for accounts.",
    ),
]
KeysDatabase = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        parser=on_server,
        help="The address of an empty PostgreSQL database for keys.",
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option(help="The password file of that database, in libpq's format.")
]
Data = Annotated[Path, typer.Option(help="The data directory.", file_okay=False, readable=False)]
"""Its files may belong to several users: each command reports what it cannot read."""


def _installed(directory: Path) -> Path:
    with fail_on(NoInstallationError, OSError):
        require_installation(Layout(directory))
    return directory


Installed = Annotated[
    Path,
    typer.Option(
        "--data",
        help="The data directory.",
        file_okay=False,
        readable=False,
        callback=_installed,
    ),
]
"""A data directory with an installation. Without one the command ends with status 1."""
UserIds = Annotated[
    tuple[int, int, int] | None,
    typer.Option(
        metavar="GATEWAY KEYSERVICE GROUP",
        help="User and group ids to use instead of the users pqkeep-gateway and pqkeep-keyservice"
        " and the group pqkeep. By default these are made if they are missing.",
    ),
]
Settings = Annotated[
    Path, typer.Argument(metavar="FILE", help="The settings file.", dir_okay=False)
]
SettingsOrData = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A settings file or a data directory."),
]
