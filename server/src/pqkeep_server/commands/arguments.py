"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

AccountsDatabase = Annotated[
    str | None, typer.Option(metavar="URL", help="An empty PostgreSQL database for accounts.")
]
KeysDatabase = Annotated[
    str | None, typer.Option(metavar="URL", help="An empty PostgreSQL database for keys.")
]
PasswordFile = Annotated[Path | None, typer.Option(help="Its password file, in libpq's format.")]
Data = Annotated[Path, typer.Option(help="The data directory.", file_okay=False, readable=False)]
"""What is in it may be for others than its owner: each command says itself what it cannot read."""
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
