"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from pqkeep_protocol.startup.settings import POSTGRESQL, DatabaseAddress
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout, NoInstallationError, require_installation


def on_server(url: str) -> str:
    """Return the address of a database on a PostgreSQL server. Raises typer.BadParameter."""
    if not url.startswith(POSTGRESQL):
        raise typer.BadParameter(f"expected an address that begins with {POSTGRESQL}")
    try:
        return str(DatabaseAddress(url).location)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


AccountsDatabase = Annotated[
    str | None,
    typer.Option(
        metavar="URL", parser=on_server, help="An empty PostgreSQL database for accounts."
    ),
]
KeysDatabase = Annotated[
    str | None,
    typer.Option(metavar="URL", parser=on_server, help="An empty PostgreSQL database for keys."),
]
PasswordFile = Annotated[Path | None, typer.Option(help="Its password file, in libpq's format.")]
Data = Annotated[Path, typer.Option(help="The data directory.", file_okay=False, readable=False)]
"""What is in it may be for others than its owner: each command says itself what it cannot read."""


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
"""A data directory that has an installation; without one the command ends with status 1."""
UserIds = Annotated[
    tuple[int, int, int] | None,
    typer.Option(
        metavar="GATEWAY KEYSERVICE GROUP",
        help="Ids to use in place of the users pqkeep-gateway and pqkeep-keyservice and the group"
        " pqkeep, which are made where they are missing.",
    ),
]
Settings = Annotated[
    Path, typer.Argument(metavar="FILE", help="The settings file.", dir_okay=False)
]
SettingsOrData = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A settings file, or a data directory with several."),
]
